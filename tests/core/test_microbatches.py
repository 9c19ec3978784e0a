"""Parts of a batch; and of a loss in two stages: cached, recomputed and uncached are the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import (
    MESH_AXES,
    MeshConfig,
    Parts,
    check_microbatches,
    make_mesh,
    split_batch,
    together,
    tokens_of_row,
)
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.partial import Update
from t5x_lite.train.step import TrainState, abstract_state, make_train_step, state_shardings
from tests.objectives.encoder_rows import MODEL, random

KEPT = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
)
"""An optimizer that keeps the gradient in its state and changes nothing."""
DESCENT = optax.GradientTransformation(
    lambda _: {}, lambda grads, state, params: (jax.tree.map(jnp.negative, grads), state)
)


def four_by_two():
    return jax.sharding.Mesh(np.array(jax.devices()[:1] * 4).reshape(1, 2, 2, 1, 1), MESH_AXES)


def test_microbatches_are_strided():
    batch = {"a": jnp.arange(6)[:, None], "b": jnp.arange(6)}
    parts = split_batch(batch, 3, make_mesh(MeshConfig()))
    assert parts["b"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert parts["a"].tolist() == [[[0], [3]], [[1], [4]], [[2], [5]]]
    assert together(parts["b"]).tolist() == list(range(6))


def test_a_number_of_microbatches_that_does_not_divide():
    check_microbatches(16, 4, four_by_two())
    expected = r"data.batch_size 16 is not divisible by microbatches 3 \* 4 devices"
    with pytest.raises(InputError, match=expected):
        check_microbatches(16, 3, four_by_two())
    with pytest.raises(InputError, match=r"microbatches 3 \* 4 devices"):
        Parts(count=3).of({"x": np.zeros((16, 2))}, four_by_two())


def test_parts_by_their_tokens():
    batch = {
        "query_tokens": np.zeros((24, 4)),
        "passage_tokens": np.zeros((24, 3, 8)),
        "passage_segment_ids": np.zeros((24, 3, 8)),
        "decoder_target_tokens": np.zeros((24, 100)),
    }
    assert tokens_of_row(batch) == 4 + 3 * 8
    # 6 rows on each of 4 devices, of 28 tokens.
    found = {t: Parts(tokens=t).of(batch, four_by_two()) for t in (28, 55, 56, 84, 167, 168, 999)}
    assert found == {28: 6, 55: 6, 56: 3, 84: 2, 167: 2, 168: 1, 999: 1}
    with pytest.raises(InputError, match="tokens_per_part 27 is less than the 28 tokens of one"):
        Parts(tokens=27).of(batch, four_by_two())
    assert (Parts().may_be_several, Parts(tokens=9).may_be_several) == (False, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "microbatches: count must be at least 1: got 0"),
        ({"tokens": 0}, "microbatches: tokens must be at least 1: got 0"),
        ({"count": 2, "tokens": 9}, "microbatches 2 and tokens_per_part 9 both set"),
    ],
)
def test_refuses_nonsense(fields, message):
    with pytest.raises(InputError, match=message):
        Parts(**fields)


def pairs(num, *, query=4, passage=6, passages=2):
    rng = np.random.default_rng(0)
    shapes = {"query": (num, query), "passage": (num, passages, passage)}
    batch = {f"{name}_tokens": rng.integers(5, 50, shape) for name, shape in shapes.items()}
    batch |= {f"{name}_segment_ids": np.ones(shape) for name, shape in shapes.items()}
    return {name: jnp.asarray(value, jnp.int32) for name, value in batch.items()}


BATCH = pairs(8)


@functools.cache
def learner():
    model = MODEL.replace(dropout_rate=0.1, attention_dropout_rate=0.1)
    made = Learner.of(model, Contrastive(temperature=0.5, pooling="mean"))
    return made, random(made.shapes)


@functools.cache
def in_parts(parts):
    """The gradient of one step, and its loss."""
    made, params = learner()
    update = Update(made.loss, KEPT, lambda _: 1.0, joint=made.joint)
    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.axes)
    step = make_train_step([update], mesh=mesh, layout=layout, seed=0, microbatches=parts)
    own = jax.tree.map(jnp.array, params)
    state, metrics = step(TrainState(jnp.int32(0), own, KEPT.init(own)), BATCH)
    return state.optimizer, float(metrics["loss"])


def uncached(num, *, wrong=False):
    """The gradient of the same parts under the same keys, or others, all at once; and the loss."""
    made, params = learner()
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 0)
    keys = [jax.random.fold_in(key, i + wrong) for i in range(num)] if num > 1 else [key]

    def loss(params):
        parts = [{name: x[i::num] for name, x in BATCH.items()} for i in range(num)]
        rows = [made.loss(params, *given).rows for given in zip(parts, keys, strict=True)]
        whole = jax.tree.map(lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *rows)
        return made.joint(whole, BATCH).value()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    return grads, float(value)


def relative(found, expected):
    """The length of the difference of two gradients, beside that of the second."""
    norms = [optax.tree.norm(tree) for tree in (optax.tree.sub(found, expected), expected)]
    return float(norms[0] / norms[1])


@pytest.mark.parametrize(
    "num",
    [
        1,
        2,
        4,
        pytest.param(8, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.gate("2")
@pytest.mark.slow
def test_cached_recomputed_and_uncached_are_the_same_with_dropout(num):
    expected, loss = uncached(num)
    for mode in ("cached", "recompute"):
        grads, value = in_parts(Parts(count=num, mode=mode))
        assert value == pytest.approx(loss, rel=1e-6)
        assert relative(grads, expected) < 1e-6, mode


@pytest.mark.exhaustive
def test_another_key_in_the_second_pass_would_be_seen():
    found, _ = in_parts(Parts(count=2))
    assert relative(found, uncached(2, wrong=True)[0]) > 1e-2


@pytest.mark.slow
def test_parts_by_tokens_are_the_step_of_their_number():
    found, value = in_parts(Parts(tokens=4 * (4 + 2 * 6)))
    expected, loss = in_parts(Parts(count=2))
    assert value == loss
    assert relative(found, expected) == 0.0


def temporary_bytes(rows, parts):
    """Of the compiled step of an encoder of some size, without dropout."""
    made = Learner.of(
        MODEL.replace(d_model=32, d_ff=128, num_layers=2, dropout_rate=0.0),
        Contrastive(temperature=0.5, pooling="mean"),
    )
    update = Update(made.loss, DESCENT, lambda _: 1.0, joint=made.joint)
    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, {})
    step = make_train_step([update], mesh=mesh, layout=layout, seed=0, microbatches=parts)
    state = abstract_state(made.shapes, DESCENT, layout)
    batch = jax.eval_shape(lambda: pairs(rows, query=16, passage=16))
    return step.lower(state, batch).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["cached", "recompute"])
def test_the_memory_of_parts_grows_as_their_vectors_and_scores_do(mode):
    """At 16 rows a part; the plain step's grows as the batch does."""
    small, large = (temporary_bytes(rows, Parts(count=rows // 16, mode=mode)) for rows in (64, 512))
    vectors = 4 * 3 * 32 * 2  # a row's three vectors and their gradient, float32
    scores = 4 * 2  # of one row and one row, two passages, float32
    grown = (512 - 64) * vectors + (512**2 - 64**2) * scores
    # Scores, their gradient, masks and numbers of places are a handful of such arrays at a time.
    assert large - small < 8 * grown
    plain = [temporary_bytes(rows, 1) for rows in (64, 512)]
    assert plain[1] / plain[0] > 6
    assert large < 0.5 * plain[1]
