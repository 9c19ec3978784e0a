import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.encoder import BertConfig
from t5x_lite.nn.slots import bind
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.task_heads import Choose

MODEL = BertConfig(
    vocab_size=32, d_model=8, d_ff=16, num_heads=2, num_layers=1, max_positions=8, token_types=2,
    dropout_rate=0.0, unroll=True,
)  # fmt: skip


def batch(rng, *, num=3):
    tokens = rng.integers(5, 32, (4, num, 6)).astype(np.int32)
    segments = np.ones_like(tokens)
    segments[0, 2] = 0  # two choices
    segments[3] = 0  # a row of padding
    return {
        "encoder_input_tokens": jnp.asarray(tokens),
        "encoder_segment_ids": jnp.asarray(segments),
        "encoder_token_types": jnp.zeros_like(tokens),
        "labels": jnp.asarray([[2, 0], [3, 0], [0, 0], [0, 0]], jnp.int32),
    }


@pytest.fixture(scope="module")
def learner():
    return Learner.of(MODEL, Choose(), optimizer=None)


@pytest.mark.slow
def test_the_loss_is_that_of_the_texts_one_by_one(learner):
    given = batch(np.random.default_rng(0))
    params = learner.init(jax.random.key(0))
    loss = learner.loss(params, given)
    model = bind(learner.graphdef, params)
    tokens = given["encoder_input_tokens"]
    hidden = model.model(
        tokens.reshape(12, 6), segment_ids=given["encoder_segment_ids"].reshape(12, 6)
    )
    logits = np.asarray(model.heads["choice"](hidden)).reshape(4, 3).astype(np.float64)
    logits[0, 2] = -np.inf
    log_p = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
    total, weight, *_ = loss.terms["cross_entropy"]
    np.testing.assert_allclose(total, -(log_p[0, 1] + log_p[1, 2]), rtol=1e-5)
    right = (np.argmax(logits[0]) == 1) + (np.argmax(logits[1]) == 2)
    assert (float(weight), float(loss.metrics["accuracy"][0])) == (2.0, right)


@pytest.mark.slow
def test_every_parameter_gets_a_finite_gradient(learner):
    given = batch(np.random.default_rng(1))
    params = learner.init(jax.random.key(1))
    grads = flatten(jax.grad(lambda p: learner.loss(p, given).value())(params))
    assert all(np.all(np.isfinite(leaf)) for leaf in grads.values())
    assert np.any(np.abs(grads["heads/choice/out/kernel"]) > 1e-6)


def test_rows_of_another_layout_are_refused(learner):
    params = learner.init(jax.random.key(0))
    given = batch(np.random.default_rng(0))
    flat = {name: value.reshape(-1, value.shape[-1]) for name, value in given.items()}
    with pytest.raises(InputError, match=r"data\.layout must be choices"):
        learner.loss(params, flat)
