"""Experts: the base at first, and then what each token's own experts make of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.bottleneck_variants import Experts
from t5x_lite.adapters.composition import routers_of
from t5x_lite.adapters.grammar import parse_module, parse_trees, write_module
from t5x_lite.adapters.lora import Lora
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten, unflatten
from t5x_lite.objectives.learner import Learner
from tests.adapters.hosts import HOSTS, decoded, learner, outputs, random

ADAPTER = Experts(num=3)


def with_changes(params, factor):
    """The parameters with the experts' differences times a number."""
    flat = flatten(params)
    return unflatten({k: x * factor if "/changes/" in k else x for k, x in flat.items()})


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("host", HOSTS)
def test_it_begins_as_the_base_and_copies_of_one_change_are_that_change(host, top):
    made, batch = learner(host, dataclasses.replace(ADAPTER, top=top))
    plain, _ = learner(host)
    params = random(made.shapes)
    base = {name: params[name] for name in params if name != "adapters"}
    run = jax.jit(lambda p: outputs(made, p, batch))
    bare = jax.jit(lambda p: outputs(plain, p, batch))
    np.testing.assert_allclose(run(with_changes(params, 0.0)), bare(base), rtol=1e-5, atol=1e-5)
    # All experts alike: whatever is chosen, the block with that change.
    flat = flatten(params)
    alike = {k: jnp.broadcast_to(x[:, :1], x.shape) for k, x in flat.items() if "/changes/" in k}
    changed = dict(flatten(base))
    names = {"wi": "wi_1" if "gate" in str(list(alike)) else "wi", "gate": "wi_0", "wo": "wo"}
    for path, x in alike.items():
        stack, leaf = path.split("/")[2], path.rpartition("/")[2]
        start = "model/layers/mlp/" if host != "t5" else f"model/{stack}/layers/mlp/"
        name = {"bi": "wi/bias", "bo": "wo/bias"}.get(leaf) or f"{names[leaf]}/kernel"
        changed[start + name] = changed[start + name] + x[:, 0]
    found, wanted = run(unflatten({**flat, **alike})), bare(unflatten(changed))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert np.abs(wanted - bare(base)).max() > 1e-2


def test_a_token_is_computed_by_its_likeliest_expert():
    """With a router that always says the same, it is the base with that expert's change."""
    made, batch = learner("bert", ADAPTER)
    flat = flatten(random(made.shapes))
    router = "adapters/experts/encoder/after_mlp/router"
    flat[f"{router}/kernel"] = jnp.zeros_like(flat[f"{router}/kernel"])
    flat[f"{router}/bias"] = jnp.broadcast_to(jnp.array([0.0, 0.0, 9.0]), (2, 3))
    last = {k: x[:, 2:] for k, x in flat.items() if "/changes/" in k}
    alike = {k: jnp.broadcast_to(x, flat[k].shape) for k, x in last.items()}
    run = jax.jit(lambda p: outputs(made, p, batch))
    found, wanted = run(unflatten(flat)), run(unflatten({**flat, **alike}))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_step_trains_routers_and_differences_alone_and_says_how_tokens_are_shared():
    made, batch = learner("t5", ADAPTER)
    params = made.init(jax.random.key(0))
    (update,) = made.updates()
    trained = {path for path in flatten(params) if made.trains(path)}
    assert {path.split("/")[0] for path in trained} == {"adapters"}
    assert any("/router/" in path for path in trained)

    def loss(theta):
        found = made.loss({**params, "adapters": theta}, batch, jax.random.key(1))
        return found.value(), found

    grads, found = jax.jit(jax.grad(loss, has_aux=True))(params["adapters"])
    for path, gradient in flatten(grads).items():
        assert np.abs(gradient).max() > 0, path
    assert "experts_balance" in found.terms
    shares = [found.metrics[f"experts_share_{k}"] for k in range(3)]
    np.testing.assert_allclose(sum(float(a / b) for a, b in shares), 1.0, rtol=1e-5)
    assert update.name is not None


def test_a_t5_decodes_by_steps_as_it_computes_whole_targets():
    made, batch = learner("t5", ADAPTER)
    params = random(made.shapes)
    inputs, targets = batch["encoder_input_tokens"][:2], jnp.array([[9, 3], [11, 6]])

    @jax.jit
    def run(params):
        model = made.bind_model(params)
        found = [decoded(each, inputs, targets[:, :1]) for each in (model, model.prepared())]
        return found, model(inputs, jnp.pad(targets, ((0, 0), (1, 0))))

    steps, whole = run(params)
    for each in steps:
        np.testing.assert_allclose(each, whole[:, :2], rtol=1e-4, atol=1e-4)


def test_its_line_its_router_and_what_is_refused():
    assert parse_module("moe = experts(num=8, top=2, balance=0.0)") == Experts(
        name="moe", num=8, top=2, balance=0.0
    )
    assert write_module(ADAPTER) == "experts = experts(num=3)"
    assert routers_of((ADAPTER, Lora()), ()) == {"experts": 0.01}
    for fields, match in (
        ({"num": 1}, "an experts adapter must have num of at least 2"),
        ({"top": 5}, "top from 1 to num"),
        ({"balance": -1.0}, "must be at least 0"),
        (
            {"sites": ("mlp/in",)},
            "the feed-forward block, but has sites=",
        ),
    ):
        with pytest.raises(InputError, match=match):
            Experts(**fields)
    other = Lora(name="other", sites=("mlp/in",))
    with pytest.raises(InputError, match="another adapter both use the site encoder/mlp/in"):
        learner("bert", ADAPTER, other)
    with pytest.raises(InputError, match="Stack > experts replaces the feed-forward bl"):
        learner("bert", ADAPTER, Lora(name="other"), use=parse_trees("Stack(other, experts)"))


def test_experts_are_split_over_the_axis_tensor():
    made = Learner.of(HOSTS["bert"][0], HOSTS["bert"][1], adapters=(Experts(num=4),))
    axes = flatten(made.axes)["adapters/experts/encoder/after_mlp/changes/wi"]
    assert tuple(axes) == ("layers", "experts", "embed", None)
