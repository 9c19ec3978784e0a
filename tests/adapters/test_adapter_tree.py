"""Composed modules in whole models: rows of a batch as each module alone, decoded and trained."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.adapter_tree import FusionLayer, Named
from t5x_lite.adapters.bottleneck import par_bn, seq_bn
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.prefix import Prompt
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten, unflatten
from t5x_lite.objectives.learner import Learner
from tests.adapters.hosts import HOSTS, decoded, learner, outputs, random

LORA = {"rank": 2, "sites": ("(cross_)?attention/(query|value)", "mlp/in")}
MODULES = (
    Lora(name="a", **LORA),
    Lora(name="b", **LORA),
    seq_bn(name="c", reduction=4.0),
    Ia3(name="d"),
)
IDS = jnp.array([0, 1, 2, 3, 0, 1, 2, 3])
ROWS = "MultiTask(a, b, Stack(c, d), None)"


@pytest.mark.slow
def test_rows_are_those_of_each_module_alone_and_decode():
    """In one program: teacher forcing by rows, modules alone, and steps of decoding."""
    model, objective, batch = HOSTS["t5"]
    model = model.replace(unroll=True, num_encoder_layers=1, num_decoder_layers=1)
    made = Learner.of(model, objective, adapters=MODULES, use=parse_trees(ROWS))
    params = random(made.shapes)

    def alone(params, names, use):
        """What the model gives with some modules only."""
        modules = [module for module in MODULES if module.name in names]
        one = Learner.of(model, objective, adapters=modules, use=parse_trees(use))
        own = {name: params["adapters"][name] for name in names}
        return outputs(one, {**params, "adapters": own}, batch)

    @jax.jit
    def run(params):
        bound = made.bind_model(params, adapter_ids=IDS)
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        each = [alone(params, "a", "a"), alone(params, "cd", "Stack(c, d)")]
        steps = decoded(bound.prepared(), inputs, targets[:, 1:])
        return bound(inputs, targets), each, steps

    rows, (a, stack), steps = run(params)
    np.testing.assert_allclose(rows[::4], a[::4], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows[2::4], stack[2::4], rtol=1e-5, atol=1e-5)
    assert not np.allclose(rows[1::4], a[1::4], atol=1e-2)
    np.testing.assert_allclose(steps, rows, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="cannot be merged"):
        made.merged(params)
    with pytest.raises(InputError, match="has children 0 to 3, but adapter_ids contain 4"):
        made.bind_model(params, adapter_ids=IDS.at[0].set(4))
    with pytest.raises(InputError, match="it has a block other than Stack"):
        made.delta_form(params["adapters"])


@pytest.mark.slow
def test_what_is_merged_is_what_is_attached():
    use = parse_trees("Average(Stack(a, d), b, weights=(0.5, 2))")
    made, batch = learner("t5", MODULES[0], MODULES[1], MODULES[3], use=use)
    params = random(made.shapes)

    @jax.jit
    def run(params):
        plain, _ = learner("t5")
        return outputs(made, params, batch), outputs(plain, {"model": made.merged(params)}, batch)

    attached, merged = run(params)
    np.testing.assert_allclose(merged, attached, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_layers_without_a_module():
    """Merged, attached and decoded; a bottleneck is one that was trained with `leave_out`."""
    lora, ia3 = MODULES[0], MODULES[3]
    made, batch = learner("t5", lora, ia3, use=parse_trees("Drop(Stack(a, d), layers=(0, 3))"))
    plain, _ = learner("t5", lora, ia3, use=parse_trees("Stack(a, d)"))
    base, _ = learner("t5")
    params = random(made.shapes)

    def without(path, leaf):
        """The module with nothing in the first encoder layer and the second decoder layer."""
        layer = 0 if "/encoder/" in path else 1
        return leaf.at[layer].set(1.0 if path.endswith("scale") else 0.0)

    flat = {path: without(path, leaf) for path, leaf in flatten(params["adapters"]).items()}

    @jax.jit
    def run(params, less):
        bound = made.bind_model(params)
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        steps = decoded(bound.prepared(), inputs, targets[:, 1:])
        merged = outputs(base, {"model": made.merged(params)}, batch)
        written_out = outputs(plain, {**params, "adapters": less}, batch)
        return bound(inputs, targets), written_out, merged, steps

    found, *others = run(params, unflatten(flat))
    for other in others:
        np.testing.assert_allclose(other, found, rtol=1e-5, atol=1e-5)
    wrong, _ = learner("t5", lora, use=parse_trees("Drop(a, layers=(4,))"))
    with pytest.raises(InputError, match="the model's layers are 0 to 3"):
        wrong.merged(random(wrong.shapes))


def test_a_bottleneck_that_some_layers_lack():
    block = seq_bn(name="m", reduction=4.0)
    dropped, batch = learner("bert", block, use=parse_trees("Drop(m, layers=(1,))"))
    left_out, _ = learner("bert", dataclasses.replace(block, leave_out=(1,)))
    params = random(dropped.shapes)
    found = outputs(dropped, params, batch)
    np.testing.assert_allclose(found, outputs(left_out, params, batch), rtol=1e-6, atol=1e-6)
    whole, _ = learner("bert", block)
    assert np.abs(np.asarray(found - outputs(whole, params, batch))).max() > 1e-2


USES = ("MultiTask(a, b)", "Parallel(a, b)", "a", "b")


@pytest.mark.slow
def test_a_batch_says_which_module_a_row_has_and_fusions_train():
    """adapter_ids are a feature; frozen modules stay; Parallel has the mean of its children."""
    two = (seq_bn(name="a", reduction=4.0), seq_bn(name="b", reduction=4.0))
    uses = {use: [m for m in two if m.name in use.removeprefix("Par")] for use in USES}
    made = {u: learner("bert", *modules, use=parse_trees(u))[0] for u, modules in uses.items()}
    batch = {**HOSTS["bert"][2], "adapter_ids": jnp.array([[0]] * 8)}
    params = random(made["MultiTask(a, b)"].shapes)

    @jax.jit
    def run(params):
        """The loss of each."""
        return {
            use: one.loss(
                {**params, "adapters": {m.name: params["adapters"][m.name] for m in uses[use]}},
                batch,
            ).value()
            for use, one in made.items()
        }

    losses = run(params)
    np.testing.assert_allclose(losses["MultiTask(a, b)"], losses["a"], rtol=1e-6)
    mean = (losses["a"] + losses["b"]) / 2
    np.testing.assert_allclose(losses["Parallel(a, b)"], mean, rtol=1e-6)

    made, batch = learner(
        "bert", *two, use=parse_trees("Fuse(a, b)"), train=("adapters/fusion/.*", "heads/.*")
    )
    assert not any(made.trains(path) for path in flatten(made.shapes) if "adapters/a/" in path)
    terms = {}
    jax.eval_shape(
        lambda p: terms.update(made.loss(p, batch, jax.random.key(0)).terms), made.shapes
    )
    assert set(terms) == {"cross_entropy", "fusion_penalty"}
    assert terms["fusion_penalty"].scale == 0.01


@pytest.mark.slow
def test_a_fusion_decodes_what_it_computes_and_blocks_of_one_are_that_one():
    """By steps, beside teacher forcing; a Route of one child, and modules that begin as 0."""
    two = (seq_bn(name="a", reduction=4.0), seq_bn(name="b", reduction=4.0))
    made, batch = learner("t5", *two, use=parse_trees("Fuse(a, b)"))
    routed, _ = learner("t5", two[0], use=parse_trees("Route(a)"))
    alone, _ = learner("t5", two[0])
    zero, _ = learner("t5", par_bn(name="x"), Lora(name="y"), use=parse_trees("Stack(x, y)"))
    bare, _ = learner("t5")
    params = random(made.shapes)
    one = {**params, "adapters": {"a": params["adapters"]["a"]}}
    route = trees_of(random(routed.shapes)["adapters"], "router")
    start = zero.init(jax.random.key(0))

    @jax.jit
    def run(params):
        bound = made.bind_model(params)
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        steps = decoded(bound.prepared(), inputs, targets[:, 1:])
        with_route = {**one, "adapters": {**one["adapters"], **route}}
        pairs = [(outputs(routed, with_route, batch), outputs(alone, one, batch))]
        base = {part: start[part] for part in start if part != "adapters"}
        pairs.append((outputs(zero, start, batch), outputs(bare, base, batch)))
        return bound(inputs, targets), steps, pairs

    whole, steps, pairs = run(params)
    np.testing.assert_allclose(steps, whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(*pairs[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(*pairs[1])


def trees_of(tree, *names):
    return {name: tree[name] for name in names}


def test_columns_of_rows_with_a_prompt():
    split = parse_trees("p, Split(a, b, splits=(2, 'rest'))")
    modules = (Prompt(name="p", length=2), *(seq_bn(name=name, reduction=4.0) for name in "ab"))
    with pytest.raises(
        InputError, match="splits the tokens of a row by position, but the prompt adapter"
    ):
        learner("bert", *modules, use=split)[0].bind_model(
            random(learner("bert", *modules)[0].shapes)
        )


def test_a_fusion_begins_near_the_mean():
    layer = FusionLayer(4, rngs=nnx.Rngs(0))
    u = jnp.ones((1, 2, 4))
    np.testing.assert_allclose(layer(u, [u, -u]), jnp.zeros_like(u), atol=0.2)
    np.testing.assert_allclose(layer.penalty(), 12 * 1e-12, rtol=1e-3)
    assert set(Named({"x": layer}).all()) == {"x"}


def test_distances_of_all_rows_have_no_modules_of_rows():
    made, batch = learner("deberta", *MODULES[:2], use=parse_trees("BatchSplit(a, b)"))
    with pytest.raises(InputError, match="projects relative positions once for all rows"):
        jax.eval_shape(lambda p: outputs(made, p, batch), made.shapes)
