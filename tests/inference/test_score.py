"""Log-likelihoods: the sums of log-softmax, computed by hand from the model's logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.inference.generate import Scorer
from t5x_lite.models.t5 import T5Config

# The last pair is of another length when it is padded.
INPUTS = [[7, 5, 1], [9, 1], [3, 4, 1], [*range(10, 30), 1]]
TARGETS = [[11, 12, 1], [13, 1], [12, 11, 1], [*range(5, 25), 1]]


@pytest.fixture(scope="module")
def model():
    config = T5Config(
        vocab_size=40,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    return config.build(rngs=nnx.Rngs(0))


def arrays(rows):
    return [np.array(row, np.int32) for row in rows]


@pytest.fixture(scope="module")
def score(model):
    graphdef, state = nnx.split(model)

    def run(*, batch_size, inputs=INPUTS, targets=TARGETS):
        scorer = Scorer(lambda params: nnx.merge(graphdef, params), batch_size=batch_size)
        return scorer.run(nnx.to_pure_dict(state), arrays(inputs), arrays(targets))

    return run


def by_hand(model, inputs, targets):
    """The sum over the target's tokens, EOS included, of log softmax, without any padding."""
    logits = jax.jit(model)(jnp.array([inputs]), jnp.array([[0, *targets[:-1]]]))
    log_probabilities = np.asarray(jax.nn.log_softmax(logits[0]), np.float64)
    return sum(log_probabilities[i, token] for i, token in enumerate(targets))


@pytest.mark.slow
def test_scores_equal_the_sums_computed_by_hand_whatever_the_batch_size_and_order(model, score):
    expected = [by_hand(model, *pair) for pair in zip(INPUTS, TARGETS, strict=True)]
    assert all(value < -1 for value in expected)
    for batch_size in (1, 3):
        np.testing.assert_allclose(score(batch_size=batch_size), expected, atol=1e-4)
    backwards = score(batch_size=3, inputs=INPUTS[::-1], targets=TARGETS[::-1])
    np.testing.assert_allclose(backwards[::-1], expected, atol=1e-4)


def test_nothing_to_score(score):
    assert score(batch_size=2, inputs=[], targets=[]) == []
