"""Routing: weights by hand, rows of the module that they chose, gradients, decoding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.composition import Route, RouterLayer, metrics_of, penalties_of, routers_of
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.nn import experts
from t5x_lite.nn.masks import Visibility
from tests.adapters.hosts import decoded, learner, outputs, random

BLOCKS = tuple(seq_bn(name=name, reduction=4.0, activation="swish") for name in "ab")
LORAS = tuple(Lora(name=name, rank=2, alpha=4.0) for name in "ab")
SCALES = tuple(Ia3(name=name, feed_forward=False) for name in "ab")
ROUTER = "adapters/router/r/encoder"


def test_weights():
    """Of the mean over what is seen, or of each token; the likeliest; and numbers of their own."""
    x = jnp.log(jnp.array([[[1.0], [3.0], [9.0]]]))
    seen = Visibility(keys=jnp.array([[1, 1, 0]]))
    layer = RouterLayer(Route(("a", "b")), 1, axis=None, rngs=nnx.Rngs(0))
    layer.logits.kernel[...] = jnp.array([[1.0, 0.0]])
    token = Route(("a", "b"), by="token")
    np.testing.assert_allclose(layer(token, x, seen)[0, :, 0], [0.5, 0.75, 0.9], rtol=1e-6)
    root = 3**0.5
    soft = layer(Route(("a", "b")), x, seen)
    np.testing.assert_allclose(soft, [[[root / (1 + root), 1 / (1 + root)]]], rtol=1e-6)
    cold = layer(Route(("a", "b"), temperature=0.5), x, seen)
    np.testing.assert_allclose(cold[0, 0, 0], 0.75, rtol=1e-6)
    hard = dataclasses.replace(token, kind="hard")
    np.testing.assert_allclose(layer(hard, x, None)[0], [[1, 0], [1, 0], [1, 0]], atol=1e-6)

    def first(x):  # straight through: the gradient is that of the probability
        return jnp.sum(layer(hard, x, None)[..., 0])

    np.testing.assert_allclose(jax.grad(first)(x)[0, :, 0], [0.25, 0.1875, 0.09], rtol=1e-5)
    free = RouterLayer(Route(("a", "b"), kind="free"), 1, axis=None, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(free(Route(("a", "b"), kind="free"), x, seen), [[[0.5, 0.5]]])


def test_weights_of_the_largest_and_of_sigmoids():
    x = jnp.log(jnp.array([[[1.0], [3.0]]]))
    layer = RouterLayer(Route(("a", "b", "c")), 1, axis=None, rngs=nnx.Rngs(0))
    layer.logits.kernel[...] = jnp.array([[2.0, 1.0, 0.0]])

    def weights(**options):
        return layer(Route(("a", "b", "c"), by="token", **options), x, None)[0]

    third = 1 / 3  # the logits of the first token are 0, those of the second log 9, log 3 and 0
    np.testing.assert_allclose(weights(), [[third] * 3, [9 / 13, 3 / 13, 1 / 13]], rtol=1e-6)
    np.testing.assert_allclose(weights(top=2), [[0.5, 0.5, 0], [0.75, 0.25, 0]], rtol=1e-6)
    np.testing.assert_allclose(weights(top=1), [[1, 0, 0], [1, 0, 0]], rtol=1e-6)
    shares = np.array([0.9, 0.75, 0.5]) / 2.15
    found = weights(kind="sigmoid")
    np.testing.assert_allclose(found, [[third] * 3, shares], rtol=1e-6)
    found = weights(kind="sigmoid", top=2)[1]
    np.testing.assert_allclose(found, [0.9 / 1.65, 0.75 / 1.65, 0], rtol=1e-6)
    low = jnp.full((1, 1, 1), -200.0)
    assert jnp.all(jnp.isfinite(layer(Route(("a", "b", "c"), kind="sigmoid", top=1), low, None)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "hard", "top": 1}, "a Route of kind 'hard' has no top; remove top, or use kind"),
        ({"kind": "free", "top": 1}, "a Route of kind 'free' has no top"),
        ({"top": 3}, "top is 3, but the Route has 2 adapters; lower top"),
        ({"top": 0}, "top must be at least 1"),
    ],
)
def test_a_top_that_cannot_be(options, message):
    with pytest.raises(InputError, match=message):
        Route(("a", "b"), **options)


@pytest.mark.parametrize("by", ["example", "token"])
@pytest.mark.parametrize("modules", [BLOCKS, LORAS, SCALES])
def test_rows_and_tokens_have_the_module_that_they_chose(modules, by):
    """It alone is computed: the other one's numbers, which are none, do not matter."""
    use = parse_trees(f"Route(a, b, by='{by}', kind='hard', name='r')")
    made, batch = learner("bert", *modules, use=use)
    params = random(made.shapes)
    flat = flatten(params)
    for path in flat:
        if path.startswith(ROUTER) and path.endswith("bias"):
            flat[path] = jnp.broadcast_to(jnp.array([90.0, -90.0]), flat[path].shape)
        if path.startswith("adapters/b/"):
            flat[path] = jnp.full(flat[path].shape, jnp.nan)
    from t5x_lite.core.trees import unflatten

    params = unflatten(flat)
    alone, _ = learner("bert", modules[0])
    own = {**params, "adapters": {"a": params["adapters"]["a"]}}
    found = outputs(made, params, batch)
    np.testing.assert_allclose(found, outputs(alone, own, batch), rtol=1e-5, atol=1e-6)


def test_what_a_router_says():
    """Its balance, entropy and shares over tokens that are no padding, by hand."""
    layer = RouterLayer(Route(("a", "b")), 1, axis=None, rngs=nnx.Rngs(0))
    layer.logits.kernel[...] = jnp.array([[1.0, 0.0]])
    x = jnp.log(jnp.array([[[1 / 3], [3.0], [9.0]], [[3.0], [3.0], [99.0]]]))
    seen = Visibility(keys=jnp.array([[1, 1, 0], [1, 1, 0]]))
    use = (Route(("a", "b"), by="token", name="r", balance=0.5),)
    routers = routers_of((), use)
    assert routers == {"r": 0.5}

    def said(block, seen):
        with experts.collecting() as found:
            layer(block, x, seen)
            layer(block, x, seen)  # as another site
        metrics = {
            n: float(total / count) for n, (total, count) in metrics_of(found, routers).items()
        }
        return metrics, penalties_of(found, routers)

    metrics, terms = said(use[0], seen)
    # Of four tokens w_a is 1/4, 3/4, 3/4, 3/4: f = (3/4, 1/4), P = (5/8, 3/8).
    assert metrics == pytest.approx(
        {"r_entropy": 0.5623351, "r_share_0": 0.625, "r_share_1": 0.375}, rel=1e-5
    )
    assert terms == {"r_balance": (pytest.approx(2 * 2 * (0.75 * 0.625 + 0.25 * 0.375)), 0.5)}
    # By example there are two rows, of (0 + log 3) / 2 less log 3 / 2 and of log 3.
    rows, _ = said(dataclasses.replace(use[0], by="example"), seen)
    assert rows["r_share_0"] == pytest.approx((0.5 + 0.75) / 2, rel=1e-5)
    everything, _ = said(use[0], None)
    assert everything["r_share_0"] == pytest.approx((2.5 + 0.9 + 0.99) / 6, rel=1e-5)
    assert penalties_of({}, routers) == metrics_of({}, routers) == {}


@pytest.mark.slow
@pytest.mark.parametrize("host", ["bert", "t5"])
def test_the_loss_is_balanced(host):
    """In training alone; the term is 1 at equal shares, has a gradient, and evens out a router."""
    use = parse_trees("Route(a, b, by='token', kind='hard', name='r', balance=0.5)")
    made, batch = learner(host, *LORAS, use=use, train=("adapters/router",))
    params = made.init(jax.random.key(0))
    loss = jax.jit(lambda params, key: made.loss(params, batch, key))
    measured = jax.jit(lambda params: made.loss(params, batch))(params)
    assert "r_balance" not in measured.terms
    shares = [measured.metrics[f"r_share_{k}"] for k in range(2)]
    assert sum(float(total) for total, _ in shares) == pytest.approx(float(shares[0][1]))
    trained = loss(params, jax.random.key(1))
    term = trained.terms["r_balance"]
    sites = float(trained.metrics["r_entropy"][1])
    assert term.scale == 0.5
    assert float(term.total) == pytest.approx(sites, rel=0.5)  # layers and sites, 1 each or so

    @jax.jit
    def step(params):
        def value(params):
            return made.loss(params, batch, jax.random.key(1)).terms["r_balance"].total

        total, gradient = jax.value_and_grad(value)(params)
        return total, jax.tree.map(lambda x, g: x - 0.3 * g, params, gradient)

    flat = flatten(params)
    biases = [p for p in flat if p.startswith("adapters/router") and p.endswith("bias")]
    for path in biases:  # all tokens take the first child
        flat[path] = jnp.broadcast_to(jnp.array([1.0, -1.0]), flat[path].shape)
    from t5x_lite.core.trees import unflatten

    params, totals = unflatten(flat), []
    for _ in range(20):
        total, params = step(params)
        totals.append(float(total))
    assert totals[0] == pytest.approx(2 * 0.8808 * sites, rel=0.1)
    assert totals[-1] < 0.75 * totals[0]


@pytest.mark.parametrize("options", [{"balance": -0.1}, {"balance": 0.1, "kind": "free"}])
def test_a_balance_that_cannot_be(options):
    with pytest.raises(InputError, match="must be at least 0, and must be 0 with kind 'free'"):
        Route(("a", "b"), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "by"), [(BLOCKS, "example"), (BLOCKS, "token"), (SCALES, "token")]
)
def test_chosen_and_weighed_for_all_are_the_same(modules, by):
    """In output and gradients: children that differ in kind are all computed."""
    wide = seq_bn(name="b", reduction=2.0)
    options = f"by='{by}', kind='hard', name='r'"
    same, batch = learner("bert", *modules, use=parse_trees(f"Route(a, b, {options})"))
    stacked, _ = learner("bert", *modules, use=parse_trees(f"Route(Stack(a), Stack(b), {options})"))
    params = random(same.shapes)

    def run(made, theta):
        return jnp.sum(jnp.square(outputs(made, {**params, "adapters": theta}, batch)))

    each = [
        jax.jit(jax.value_and_grad(lambda theta, made=made: run(made, theta)))(params["adapters"])
        for made in (same, stacked)
    ]
    np.testing.assert_allclose(each[0][0], each[1][0], rtol=1e-5)
    theirs = flatten(each[1][1])
    for path, leaf in flatten(each[0][1]).items():
        np.testing.assert_allclose(leaf, theirs[path], rtol=1e-4, atol=1e-5, err_msg=path)
    moved = [p for p, leaf in theirs.items() if p.startswith("router/r/encoder") and leaf.any()]
    assert len(moved) == (2 if modules is BLOCKS else 4)
    other, _ = learner("bert", BLOCKS[0], wide, use=parse_trees("Route(a, b, kind='hard')"))
    assert np.isfinite(outputs(other, random(other.shapes), batch)).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["'soft'", "'hard'", "'sigmoid', top=2"])
def test_a_t5_decodes_what_it_computes_of_whole_targets(kind):
    use = parse_trees(f"Route(a, b, None, by='token', kind={kind})")
    made, batch = learner("t5", *LORAS, use=use)
    params = random(made.shapes)

    @jax.jit
    def run(params):
        bound = made.bind_model(params)
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        steps = decoded(bound.prepared(), inputs, targets[:, 1:])
        return bound(inputs, targets), steps

    whole, steps = run(params)
    np.testing.assert_allclose(steps, whole, rtol=1e-5, atol=1e-5)


def test_free_weights_combine_changes():
    """Two and minus one of the changes: what base and modules alone say together."""
    made, batch = learner("bert", *LORAS, use=parse_trees("Route(a, b, kind='free', name='r')"))
    params = random(made.shapes)
    flat = flatten(params)
    weights = [path for path in flat if path.startswith(ROUTER)]
    assert {path.rpartition("/")[2] for path in weights} == {"weights"}
    one = {**params, "adapters": {**params["adapters"]}}
    from t5x_lite.core.trees import unflatten

    flat |= {path: jnp.broadcast_to(jnp.array([1.0, 0.0]), flat[path].shape) for path in weights}
    one = unflatten(flat)
    alone, _ = learner("bert", LORAS[0])
    own = {**params, "adapters": {"a": params["adapters"]["a"]}}
    found = outputs(made, one, batch)
    np.testing.assert_allclose(found, outputs(alone, own, batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("host", "modules", "use", "message"),
    [
        ("t5", (Ia3(name="a"), Ia3(name="b")), "Route(a, b)", "a Route block supports adapters"),
        (
            "bert",
            LORAS,
            "Route(a, b, name='at')",
            "the name 'at' is reserved and not allowed for a router",
        ),
        (
            "bert",
            LORAS,
            "Stack(Route(a, b, name='r'), Route(b, a, name='r'))",
            "two router blocks are",
        ),
    ],
)
def test_what_cannot_be(host, modules, use, message):
    with pytest.raises(InputError, match=message):
        learner(host, *modules, use=parse_trees(use))


def test_it_trains_and_is_not_merged():
    made, _ = learner("bert", *LORAS, use=parse_trees("Route(a, b, name='r')"))
    assert made.trains(f"{ROUTER}/attention/query/logits/kernel")
    with pytest.raises(InputError, match="a Route block cannot be merged"):
        made.merged(random(made.shapes))
    deberta, batch = learner("deberta", *LORAS, use=parse_trees("Route(a, b)"))
    with pytest.raises(InputError, match="projects relative positions once for all rows"):
        outputs(deberta, random(deberta.shapes), batch)
