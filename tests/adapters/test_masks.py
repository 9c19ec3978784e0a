"""Masks of weights: what they keep, what trains, their gradients, and their delta."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.base import at_step
from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_parts import Mask
from t5x_lite.adapters.masks import Movement, Prune, Supermask, threshold
from t5x_lite.adapters.sparse import SparseTuning
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from tests.adapters.hosts import learner, random

WI = "layers/mlp/wi/kernel"  # [2, 8, 16]
TARGETS = (f"model/{WI}",)


def changed(made, params):
    return np.asarray(trees.flatten(made.changed(params)["model"])[WI])


def bind(adapter, *, seed=1):
    made, batch = learner("bert", adapter)
    params = {**random(made.shapes), "adapters": random(made.shapes["adapters"], seed=seed)}
    return made, params, batch


@pytest.mark.slow
def test_a_supermask_keeps_a_share_of_each_layer_and_the_weights_stand_still():
    made, params, batch = bind(Supermask(name="a", density=0.25, targets=TARGETS))
    own = params["adapters"]["a"]
    own["share"]["kept"] = jnp.float32(0.25)
    base, scores = (
        params["model"]["layers"]["mlp"]["wi"]["kernel"],
        trees.flatten(own)[f"{WI}/scores"],
    )
    kept = changed(made, params) != 0
    assert kept.sum(axis=(1, 2)).tolist() == [32, 32]
    for layer in range(2):
        limit = np.sort(np.ravel(scores[layer]))[-32]
        np.testing.assert_array_equal(kept[layer], np.asarray(scores[layer]) >= limit)
    assert [p for p in trees.flatten(made.shapes) if made.trains(p) and p[:6] != "heads/"] == [
        f"adapters/a/{WI}/scores"
    ]

    def loss(p):
        return made.loss(p, batch).value()

    gradient = jax.jit(jax.grad(loss))(params)
    bare, _ = learner("bert")
    masked = {**params, "model": made.changed(params)["model"]}
    masked.pop("adapters")
    full = jax.jit(jax.grad(lambda p: bare.loss(p, batch).value()))(masked)["model"]
    theirs = np.asarray(full["layers"]["mlp"]["wi"]["kernel"]) * np.asarray(base)
    ours = trees.flatten(gradient["adapters"]["a"])[f"{WI}/scores"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)  # dS = dL/d(W mask) W
    parts, rest = made.delta_form(params["adapters"])
    assert rest == ()
    assert isinstance(parts[f"model/{WI}"], Mask)
    applied = Delta(parts).apply({"model": params["model"]})
    np.testing.assert_array_equal(trees.flatten(applied)[f"model/{WI}"], changed(made, params))


def test_thresholds():
    made, params, _ = bind(threshold(name="a", targets=TARGETS))
    start = made.init(jax.random.key(0))
    assert np.all(changed(made, start) == start["model"]["layers"]["mlp"]["wi"]["kernel"])
    scores = trees.flatten(params["adapters"]["a"])[f"{WI}/scores"]
    np.testing.assert_array_equal(changed(made, params) != 0, np.asarray(scores) > 5e-3)
    soft, params, _ = bind(Supermask(name="a", by="sigmoid", rate=10.0, targets=TARGETS))
    scores = trees.flatten(params["adapters"]["a"])[f"{WI}/scores"]
    np.testing.assert_array_equal(changed(soft, params) != 0, np.asarray(scores) > 0)
    first = trees.flatten(soft.init(jax.random.key(0))["adapters"])[f"a/{WI}/scores"]
    assert 0.9 / np.sqrt(8) < 10 * np.abs(first).max() <= 1 / np.sqrt(8)


@pytest.mark.parametrize("adapter", [threshold, lambda **o: Supermask(by="sigmoid", **o)])
def test_a_layer_is_never_masked_whole(adapter):
    """One entry of 128, 0.5 %, is left at least: the highest score."""
    made, _ = learner("bert", adapter(name="a", targets=TARGETS))
    scores = -1.0 - jnp.arange(256.0).reshape(2, 8, 16)
    params = trees.flatten(random(made.shapes)) | {f"adapters/a/{WI}/scores": scores}
    kept = changed(made, trees.unflatten(params)) != 0
    assert [np.flatnonzero(layer).tolist() for layer in kept] == [[0], [0]]


def test_a_mask_is_of_what_other_modules_have_added():
    """In whichever order they are named: sums first, as the parts of a delta."""
    sum_, mask = SparseTuning(name="s", entries=((WI, 2),)), Prune(name="p", targets=TARGETS)
    found = []
    for adapters in ((sum_, mask), (mask, sum_)):
        made, _ = learner("bert", *adapters)
        flat = trees.flatten(random(made.shapes))
        flat[f"adapters/s/{WI}/indices"] = jnp.array([0, 1])
        flat[f"adapters/s/{WI}/values"] = jnp.array([5.0, 7.0])
        bits = np.packbits(np.arange(256) != 1)
        flat |= {f"adapters/p/{WI}/bits": jnp.asarray(bits)}
        flat |= {f"adapters/p/{WI}/difference": jnp.zeros((2, 8, 16))}
        params = trees.unflatten(flat)
        found.append(changed(made, params))
        base = np.asarray(flat[f"model/{WI}"])
        np.testing.assert_allclose(found[-1][0, 0, :2], [base[0, 0, 0] + 5, 0.0], rtol=1e-6)
        parts, _ = made.delta_form(params["adapters"])
        applied = Delta(parts).apply({"model": params["model"]})
        np.testing.assert_allclose(trees.flatten(applied)[f"model/{WI}"], found[-1], rtol=1e-6)


def test_movement_keeps_a_share_that_falls_with_the_steps():
    adapter = Movement(name="a", density=0.2, steps=100, warmup=10, cooldown=20, targets=TARGETS)
    for step, share in {0: 1.0, 10: 1.0, 45: 0.2 + 0.8 * 0.125, 80: 0.2, 100: 0.2}.items():
        assert float(adapter.kept(jnp.int32(step))) == pytest.approx(share, rel=1e-6)
    numbers = at_step([adapter])
    assert numbers is not None
    assert list(numbers(jnp.int32(0))) == ["adapters/a/share/kept"]
    made, params, _ = bind(adapter)
    assert not made.trains("adapters/a/share/kept")
    own = params["adapters"]["a"]
    flat = trees.flatten(own)
    moved = params["model"]["layers"]["mlp"]["wi"]["kernel"] + flat[f"{WI}/difference"]
    for share, number in {1.0: 128, 0.2: 26, 0.0: 1}.items():  # .5 % of a matrix stays at least
        own["share"]["kept"] = jnp.float32(share)
        kept = changed(made, params) != 0
        assert kept.sum(axis=(1, 2)).tolist() == [number] * 2
        np.testing.assert_array_equal(changed(made, params), np.where(kept, moved, 0))
    soft, _, batch = bind(Movement(name="a", by="sigmoid", penalty=6.0, targets=TARGETS))
    start = soft.init(jax.random.key(0))  # scores of 0 are above tau, so all is kept
    np.testing.assert_array_equal(changed(soft, start), changed(made, start))
    key = jax.random.key(0)
    loss = jax.jit(lambda p: (soft.loss(p, batch, key).value(), soft.loss(p, batch).value()))
    with_penalty, without = loss(start)
    assert float(with_penalty - without) == pytest.approx(3.0, abs=1e-4)


def test_pruned_weights_stay_0_and_rounds():
    adapter = Prune(name="a", density=0.5, targets=TARGETS)
    assert adapter.densities == pytest.approx([0.5 ** (n / 4) for n in (1, 2, 3, 4)])
    assert Prune(density=0.5, rounds=1).densities == (0.5,)
    assert Prune(density=0.8).densities == (0.8,)
    made, batch = learner("bert", adapter)
    start = made.init(jax.random.key(0))
    base = np.asarray(start["model"]["layers"]["mlp"]["wi"]["kernel"])
    np.testing.assert_array_equal(changed(made, start), base)
    kept = np.random.default_rng(0).random((2, 8, 16)) < 0.5
    own = start["adapters"]["a"]["layers"]["mlp"]["wi"]["kernel"]
    own["bits"] = jnp.asarray(np.packbits(kept))
    np.testing.assert_array_equal(changed(made, start), np.where(kept, base, 0))

    def loss(x):
        flat = {**trees.flatten(start), f"adapters/a/{WI}/difference": x}
        return made.loss(trees.unflatten(flat), batch).value()

    gradient = jax.jit(jax.grad(loss))(own["difference"])
    assert np.all(np.asarray(gradient)[~kept] == 0)
    assert np.any(np.asarray(gradient)[kept])
    own["difference"] = jnp.ones((2, 8, 16))
    parts, _ = made.delta_form(start["adapters"])
    applied = trees.flatten(Delta(parts).apply({"model": start["model"]}))[f"model/{WI}"]
    np.testing.assert_array_equal(applied, np.where(kept, base + 1, 0))


def test_what_is_refused():
    with pytest.raises(InputError, match=r"density must be in \(0, 1\]: got 0"):
        Supermask(density=0.0)
    with pytest.raises(InputError, match="exceed the number of steps, 10"):
        Movement(steps=10, warmup=8, cooldown=3)
    with pytest.raises(InputError, match="with by='sigmoid' must be between 0 and 1, got 2"):
        Supermask(by="sigmoid", tau=2.0)
    with pytest.raises(
        InputError, match="does not support the option sites; select the arrays to change"
    ):
        Prune(sites=("mlp/in",))
    with pytest.raises(InputError, match="'prune': 'modle' matches no parameter of the model"):
        learner("bert", Prune(targets=("modle",)))
    with pytest.raises(InputError, match=r"norm/\w+ is a vector and has no rows to prune; exclude"):
        learner("bert", Prune(targets=("model/.*norm/.*",), structure="rows"))
    with pytest.raises(InputError, match=f"both use the site model/{WI}; remove one of them from"):
        learner("bert", Supermask(targets=TARGETS), Prune(targets=TARGETS))
