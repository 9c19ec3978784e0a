"""What saves time or memory leaves training as it is: losses of several steps, the same to 1e-5."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant

MODEL = T5Config(
    vocab_size=32,
    d_model=8,
    d_kv=4,
    d_ff=16,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    dropout_rate=0.0,
)
OBJECTIVE = Seq2Seq(label_smoothing=0.1)
STEPS = 5

VARIANTS = {
    "unrolled": ({"unroll": True}, {}),
    "two at a time": ({"unroll": 2}, {}),
    "remat full": ({"remat": "full"}, {}),
    "remat full, unrolled": ({"remat": "full", "unroll": True}, {}),
    "remat dots": ({"remat": "dots"}, {}),
    "remat dots_no_batch": ({"remat": "dots_no_batch"}, {}),
    "remat products": ({"remat": "products"}, {}),
    "remat attention": ({"remat": "attention", "attention": "blocked"}, {}),
    "chunked loss": ({}, {"logits_chunk": 4}),
    "blocked attention": ({"attention": "blocked", "attention_block": 5}, {}),
}
ALL = (
    {"remat": "dots", "attention": "pallas", "attention_block": 5},  # on CPU blocked
    {"logits_chunk": 4},
)


def packed_batch():
    """Two rows of seqio's features: three examples and padding, and two examples."""
    rng = np.random.default_rng(1)
    encoder_ids = np.array([[1] * 5 + [2] * 4 + [3] * 2 + [0], [1] * 8 + [2] * 4])
    decoder_ids = np.array([[1] * 2 + [2] * 4 + [3] * 2 + [0], [1] * 5 + [2] * 4])
    targets = rng.integers(2, 32, size=decoder_ids.shape) * (decoder_ids > 0)
    first = np.diff(decoder_ids, axis=1, prepend=0) != 0
    return {
        "encoder_input_tokens": rng.integers(2, 32, size=encoder_ids.shape) * (encoder_ids > 0),
        "encoder_segment_ids": encoder_ids,
        "decoder_input_tokens": np.where(first, 0, np.roll(targets, 1, axis=1)),
        "decoder_target_tokens": targets,
        "decoder_segment_ids": decoder_ids,
        "decoder_loss_weights": (decoder_ids > 0).astype(np.int32),
    }


@functools.cache
def losses(model, objective):
    """Losses of `STEPS` steps on one batch, from the same parameters."""
    graphdef, abstract, axes = shapes(lambda rngs: Bound(model, objective, rngs=rngs))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape, scale=0.3).astype(np.float32)),
        abstract,
    )
    optimizer = Adafactor(schedule=Constant(value=0.05)).build(axes)
    batch = jax.tree.map(jnp.asarray, packed_batch())

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(lambda p: bind(graphdef, p)(batch).value())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, seen = optimizer.init(params), []
    for _ in range(STEPS):
        params, state, loss = step(params, state)
        seen.append(float(loss))
    return seen


def check(options):
    model, objective = options
    plain = losses(MODEL, OBJECTIVE)
    assert plain[-1] < 0.95 * plain[0]  # it learns
    ours = losses(MODEL.replace(**model), Seq2Seq(label_smoothing=0.1, **objective))
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_all_of_them_together_train_as_the_plain_model():
    check(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_each_of_them_trains_as_the_plain_model(options):
    check(options)
