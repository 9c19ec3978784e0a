"""Sparse differences: K numbers train, the rest stays bit for bit; and diff pruning's gates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_parts import Dense, Sparse
from t5x_lite.adapters.grammar import parse_module, write_module
from t5x_lite.adapters.sparse import Diff, SparseTuning, gate
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import TrainState, make_train_step, state_shardings
from tests.adapters.hosts import learner, random

WI, TOKEN = "layers/mlp/wi/kernel", "embedding/token"
PLACES = {WI: [0, 17, 130, 255], TOKEN: [5, 6]}
ENTRIES = tuple((path, len(places)) for path, places in PLACES.items())
ADAPTER = SparseTuning(name="a", entries=ENTRIES, l1=20.0)


def with_places(params, *, value=None):
    flat = trees.flatten(params)
    for path, places in PLACES.items():
        stem = f"adapters/a/{path}/"
        flat[f"{stem}indices"] = jnp.asarray(places, jnp.int32)
        if value is not None:
            flat[f"{stem}values"] = jnp.full(len(places), value)
    return trees.unflatten(flat)


def test_a_line_states_the_entries():
    line = write_module(ADAPTER)
    assert parse_module(line) == ADAPTER
    assert "entries=(('layers/mlp/wi/kernel', 4)," in line
    short: Any = parse_module("a = sparse(entries={'embedding/token': 2})")
    assert short.entries == ((TOKEN, 2),)


@pytest.mark.slow
def test_nothing_but_the_entries_moves():
    """AdamW's decay moves weights whose gradient is masked alone; these have no state at all."""
    made, batch = learner("bert", ADAPTER)
    own = {"adapters": with_places(made.init(jax.random.key(0)))["adapters"]}
    params = {**made.init(jax.random.key(0)), **own}
    updates, mesh = made.updates(), make_mesh(MeshConfig(data=1))
    optimizer = joint_optimizer(updates)
    moments = trees.flatten(jax.eval_shape(optimizer.init, made.shapes)["mu"])
    assert sum(x.size for p, x in moments.items() if p.startswith("adapters/")) == 6
    assert not any(path.startswith("model/") for path in moments)
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0)
    state = TrainState(jnp.int32(0), jax.tree.map(jnp.copy, params), optimizer.init(params))
    for _ in range(3):
        state, metrics = step(state, batch)
    before, after = trees.flatten(params), trees.flatten(state.params)
    for path, leaf in before.items():
        if path.startswith("model/") or path.endswith("indices"):
            np.testing.assert_array_equal(after[path], leaf, err_msg=path)
    parts, rest = made.delta_form(state.params["adapters"])
    assert rest == ()
    assert {type(part) for part in parts.values()} == {Sparse}
    merged = trees.flatten(jax.jit(made.merged)(state.params))
    for path, leaf in trees.flatten(params["model"]).items():
        moved = np.flatnonzero(np.ravel(merged[path]) != np.ravel(leaf))
        assert moved.tolist() == PLACES.get(path, []), path
    delta = Delta(parts)
    back = (delta - delta * 0.5).apply({"model": params["model"]})
    for path, places in PLACES.items():
        half = np.ravel(after[f"model/{path}"])[places]
        half = half + 0.5 * np.asarray(after[f"adapters/a/{path}/values"])
        np.testing.assert_allclose(np.ravel(trees.flatten(back)[f"model/{path}"])[places], half)
    assert metrics["loss"] > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_gradient_of_a_value_is_that_of_its_weight_and_l1_is_of_all_arrays():
    made, batch = learner("bert", ADAPTER)
    bare, _ = learner("bert")
    params = with_places({**random(bare.shapes), "adapters": {}}, value=-0.5)

    flat = trees.flatten(params)

    def loss(values):
        return made.loss(trees.unflatten({**flat, **values}), batch).value()

    ours = jax.jit(jax.grad(loss))({p: x for p, x in flat.items() if p.endswith("/values")})
    moved = {"model": made.changed(params)["model"], "heads": params["heads"]}
    full = trees.flatten(jax.jit(jax.grad(lambda p: bare.loss(p, batch).value()))(moved))
    for path, places in PLACES.items():
        np.testing.assert_allclose(
            ours[f"adapters/a/{path}/values"],
            np.ravel(full[f"model/{path}"])[places],
            rtol=1e-5,
            atol=1e-7,
        )
    with_l1 = made.loss(params, batch, jax.random.key(0)).terms["a_penalty"].total
    total = trees.count_parameters(bare.shapes["model"])
    assert float(with_l1) == pytest.approx(20.0 * 6 * 0.5 / total, rel=1e-5)
    assert "a_penalty" not in made.loss(params, batch).terms


def test_two_sparse_modules_of_one_array_are_added():
    """A language's and a task's difference of the same weights."""
    made, _ = learner("bert", ADAPTER, SparseTuning(name="b", entries=((WI, 128),)))
    params = with_places(random(made.shapes), value=1.0)
    params["adapters"]["b"]["layers"]["mlp"]["wi"]["kernel"]["indices"] = jnp.arange(128)
    sums = trees.flatten(made.changed(params)["model"])[WI]
    part = made.delta_form(params["adapters"])[0][f"model/{WI}"]
    assert isinstance(part, Sparse)
    assert part.values.size == 130
    base = params["model"]["layers"]["mlp"]["wi"]["kernel"]
    np.testing.assert_allclose(sums, base + part.dense(), rtol=1e-6)


def test_gates():
    """Louizos et al. 2018: 0 and 1 have mass of their own; the middle is 1 at alpha 5."""
    alpha = jnp.array([5.0, 0.0, -5.0])
    np.testing.assert_allclose(gate(alpha, l=-1.5, r=1.5, key=None), [1.0, 0.0, 0.0], atol=1e-6)
    many = gate(jnp.zeros(4000), l=-1.5, r=1.5, key=jax.random.key(0))
    # P(z > 0) = sigmoid(alpha - log(-l / r)), which is what is penalised
    assert np.mean(np.asarray(many) > 0) == pytest.approx(0.5, abs=0.03)
    assert np.mean(np.asarray(many) == 1) == pytest.approx(1 / 6, abs=0.03)
    assert many.min() == 0


@pytest.mark.exhaustive
def test_the_relaxed_phase_of_diff_pruning():
    adapter = Diff(name="a", penalty=0.5, structured=True, targets=(f"model/{WI}",))
    made, batch = learner("bert", adapter)
    start = made.init(jax.random.key(0))
    base = np.asarray(start["model"]["layers"]["mlp"]["wi"]["kernel"])
    own = start["adapters"]["a"]["layers"]["mlp"]["wi"]["kernel"]
    assert own["group"].shape == (2, 1, 1)
    penalty = made.loss(start, batch, jax.random.key(0)).terms["a_penalty"].total
    assert float(penalty) == pytest.approx(0.5 * (256 + 2) / (1 + np.exp(-5)), rel=1e-5)
    own["difference"] = jnp.ones((2, 8, 16))
    own["alpha"] = own["alpha"].at[0, 0, 0].set(-10 / 1000)  # log alpha 5 - 10
    own["group"] = own["group"].at[1].set(-10 / 1000)
    expected = np.ones((2, 8, 16))
    expected[0, 0, 0], expected[1] = 0, 0
    part = made.delta_form(start["adapters"])[0][f"model/{WI}"]
    assert isinstance(part, Dense)
    np.testing.assert_allclose(part.dense(), expected, atol=1e-6)

    def read(key):
        return trees.flatten(made.changed(start, key=key)["model"])[WI] - base

    one, two = read(jax.random.key(0)), read(jax.random.key(1))
    np.testing.assert_allclose(read(None), expected, atol=1e-5)
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(one, read(jax.random.key(0)))


def test_what_is_refused():
    wrong: Any = (
        ({"density": 0.0}, r"density must be in \(0, 1\]"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"rounds": 2, "select": "magnitude"}, "rounds above 1 require select='lottery'"),
        ({"full_steps": 2, "select": "fisher"}, "not supported with select='fisher'"),
        ({"l1": -1.0}, "must be at least 0"),
        ({"entries": ((WI, 0),)}, "at least one entry of each listed array"),
    )
    for options, message in wrong:
        with pytest.raises(InputError, match=message):
            SparseTuning(**options)
    with pytest.raises(
        InputError, match="the entries to train are not selected yet; `t5x-lite train`"
    ):
        learner("bert", SparseTuning())
    with pytest.raises(InputError, match="needs 1 entries of the array x"):
        learner("bert", SparseTuning(entries=(("x", 1),)))
    with pytest.raises(InputError, match="l must be below 0 and option r above 1"):
        Diff(l=0.0)
