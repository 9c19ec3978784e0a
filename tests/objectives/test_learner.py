"""A model and its objective as one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.grammar import parse_module
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.tied_parameters import Int8, in_dtypes_of
from t5x_lite.core.trees import flatten
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Classifier, Mlm
from t5x_lite.models.t5 import T5, T5Config
from t5x_lite.models.vector_heads import Dense
from t5x_lite.objectives.learner import Learner, views_of
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import init_state, make_train_step, state_shardings
from t5x_lite.train.training import _trained_part

MODEL = T5Config(
    vocab_size=19, d_model=8, d_kv=3, d_ff=12, num_heads=2, num_encoder_layers=2,
    num_decoder_layers=2, dropout_rate=0.0,
)  # fmt: skip
BATCH = {
    "encoder_input_tokens": jnp.array([[5, 6, 7, 1], [8, 1, 0, 0]]),
    "decoder_input_tokens": jnp.array([[0, 9, 10], [0, 11, 0]]),
    "decoder_target_tokens": jnp.array([[9, 10, 1], [11, 1, 0]]),
    "decoder_loss_weights": jnp.array([[1, 1, 1], [1, 1, 0]]),
}


def learner(**changes):
    optimizer = AdamW(schedule=Constant(value=0.01))
    return Learner.of(MODEL.replace(**changes), Seq2Seq(), optimizer=optimizer)


def test_a_base_in_int8():
    adapters = (parse_module("m = lora(r=2)"),)
    whole, made = (
        Learner.of(MODEL, Seq2Seq(), adapters=adapters, base_dtype=dtype)
        for dtype in ("float32", "int8")
    )
    params = jax.jit(whole.init)(jax.random.key(0))
    stored = in_dtypes_of(params, made.shapes)
    shapes = {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(stored).items()}
    assert shapes == {p: (leaf.shape, leaf.dtype) for p, leaf in flatten(made.shapes).items()}
    path = "model/encoder/layers/attention/query/kernel"
    assert shapes[path] == ((2, 8, 6), "int8")
    assert shapes[path + "_scale"] == ((2, 1, 6), "float32")
    assert flatten(made.axes)[path + "_scale"] == ("layers", None, "joined_kv")
    assert shapes["model/token_embedding/table"][1] == "float32"
    read = flatten(made.read(stored))[path]
    scale = np.abs(flatten(params)[path]).max(axis=1, keepdims=True) / 127
    assert np.all(np.abs(read[...] - flatten(params)[path]) <= 0.501 * scale)
    assert made.float32_shapes == whole.shapes

    # The same loss and gradients as of a base with the rounded kernels.
    rounded = jax.tree.map(
        lambda x: x[...], made.read(stored), is_leaf=lambda x: isinstance(x, Int8)
    )

    def of(learner, params):
        own = {"adapters": jax.tree.map(lambda x: x + 0.1, params["adapters"])}
        loss = lambda own: learner.loss({**params, **own}, BATCH).value()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(own)

    ours, theirs = of(made, stored), of(whole, rounded)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_shapes_without_arrays():
    made = learner()
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(made.shapes))
    assert made.axes["model"]["lm_head"]["kernel"] == ("embed", "vocab")
    assert jax.eval_shape(made.init, jax.random.key(0)) == made.shapes == made.seen
    assert made.model_type is T5
    assert not made.views


@pytest.mark.slow
def test_the_module_has_the_compute_dtype():
    params = jax.jit(learner().init)(jax.random.key(0))
    for dtype in ("float32", "bfloat16"):
        made = Learner.of(MODEL, Seq2Seq(), dtype=dtype)
        assert made.bind_model(params).token_embedding.table[...].dtype == jnp.dtype(dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize("per_layer", [False, True])
def test_shared_layers_are_an_ordinary_t5_that_reads_the_encoder_twice(per_layer):
    shared = learner(share_layers=True, relative_bias_per_layer=per_layer)
    whole = learner(relative_bias_per_layer=per_layer)
    params = jax.jit(shared.init)(jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shared.shapes)
    seen = shared.read(params)
    assert flatten(seen).keys() == flatten(whole.shapes).keys()

    @jax.jit
    def both(params, seen):
        return shared.loss(params, BATCH).value(), whole.loss(seen, BATCH).value()

    ours, theirs = both(params, seen)
    assert float(ours) == float(theirs)
    gradients = jax.jit(jax.grad(lambda *args: both(*args)[0]))(params, seen)
    expected = jax.jit(jax.grad(lambda *args: both(*args)[1], argnums=1))(params, seen)
    for ours, theirs in (("encoder/layers/mlp/wo", "decoder/layers/mlp/wo"),
                         ("encoder/layers/attention/key", "decoder/layers/self_attention/key"),
                         ("encoder/final_norm", "decoder/final_norm")):  # fmt: skip
        name = "scale" if "norm" in ours else "kernel"
        got = flatten(gradients)[f"model/{ours}/{name}"]
        parts = [flatten(expected)[f"model/{path}/{name}"] for path in (ours, theirs)]
        np.testing.assert_allclose(got, sum(parts), rtol=1e-5, atol=1e-7)
        assert all(np.any(part) for part in parts)


def test_stored_parameters_are_written_from_what_is_read():
    shared = learner(share_layers=True)
    params = jax.jit(shared.init)(jax.random.key(0))
    again = shared.write(shared.read(params))
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert views_of(shared.model, shared.objective) == shared.views


def test_updates_need_an_optimizer():
    with pytest.raises(ValueError, match="needs an optimizer"):
        Learner.of(MODEL, Seq2Seq()).updates()


def test_refuses_a_model_that_the_objective_cannot_train():
    with pytest.raises(InputError, match="encoder"):
        Learner.of(MODEL, MaskedLM(mask_id=3))


ENCODER = BertConfig(
    vocab_size=9, d_model=4, d_ff=6, num_heads=2, num_layers=1, max_positions=8, dropout_rate=0.0
)
LABELLED = {
    "encoder_input_tokens": jnp.array([[1, 5, 2, 0], [1, 6, 7, 2]]),
    "encoder_segment_ids": jnp.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
    "labels": jnp.array([[1, 0], [2, 0]]),
}


@pytest.mark.slow
def test_a_head_that_the_loss_does_not_read_is_frozen():
    """No gradient, no decay, no optimizer state; after the steps it is what it was."""
    made = Learner.of(
        ENCODER,
        Classify(num_classes=2),
        heads=(Mlm(), Dense(), Classifier(num_classes=2, labels=("no", "yes"))),
        optimizer=AdamW(schedule=Constant(value=0.1), weight_decay=0.5),
    )
    assert made.frozen_heads == ("mlm", "dense")
    assert _trained_part(made, None) == [
        "the loss does not use the head mlm; keeping the head without training"
    ]
    assert made.heads["classifier"] == Classifier(num_classes=2, labels=("no", "yes"))
    (update,) = updates = made.updates()
    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    state = init_state(made.init, joint_optimizer(updates), layout, seed=0)
    trained = set(flatten(update.part(made.shapes)))
    assert {p for p in flatten(made.shapes) if p not in trained} == {
        f"heads/mlm/{name}"
        for name in ("bias", "dense/kernel", "dense/bias", "norm/scale", "norm/bias")
    }
    assert not [path for path in flatten(state.optimizer) if "heads/mlm" in path]
    before = jax.tree.map(np.asarray, state.params)
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=1)
    for _ in range(50):
        state, _ = step(state, LABELLED)
    for path, leaf in flatten(state.params).items():
        same = np.array_equal(leaf, flatten(before)[path])
        assert same == path.startswith("heads/mlm/"), path


def test_the_objective_s_heads_are_there_without_being_named():
    made = Learner.of(ENCODER, MaskedLM(mask_id=3))
    assert dict(made.heads) == {"mlm": Mlm()}
    assert made.frozen_heads == ()
    assert "heads/mlm/bias" in flatten(made.shapes)
