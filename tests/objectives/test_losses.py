import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from t5x_lite.models.heads import SpanHead
from t5x_lite.objectives import electra, likelihood, m3, masked_lm, task_heads
from t5x_lite.objectives.base import Roc
from t5x_lite.objectives.contrastive import Triplets, of_scores
from t5x_lite.objectives.likelihood import correct, cross_entropy
from t5x_lite.objectives.m3 import Ranker, RankerLoss

LOG3 = math.log(3.0)


def test_values_by_hand():
    # Z = 4: probabilities 1/4 and 3/4, log Z = 1.386294.
    logits = jnp.array([[0.0, LOG3], [0.0, LOG3]])
    loss, penalty = cross_entropy(logits, jnp.array([0, 1]))
    np.testing.assert_allclose(loss, [1.386294, 0.287682], rtol=1e-5)
    assert penalty.tolist() == [0, 0]


def test_z_loss_is_the_squared_log_of_the_normaliser():
    # 1.386294^2 = 1.921812
    logits = jnp.array([[0.0, LOG3], [0.0, LOG3]])
    loss, penalty = cross_entropy(logits, jnp.array([0, 1]), z_loss=0.5)
    np.testing.assert_allclose(penalty, [0.960906, 0.960906], rtol=1e-5)
    np.testing.assert_allclose(loss, [1.386294 + 0.960906, 0.287682 + 0.960906], rtol=1e-5)


def test_label_smoothing_by_hand():
    # Targets .9, .05, .05; probabilities 1/2, 1/4, 1/4; cross-entropy less the targets' entropy:
    # (.9 log 2 + .1 log 4) - (-.9 log .9 - .1 log .05) = 0.762462 - 0.394398.
    logits = jnp.log(jnp.array([0.5, 0.25, 0.25]))
    loss, _ = cross_entropy(logits, jnp.array(0), label_smoothing=0.1)
    np.testing.assert_allclose(loss, 0.762462 - 0.394398, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_a_perfect_prediction_has_loss_0(smoothing):
    classes = 5
    perfect = np.full(classes, smoothing / (classes - 1))
    perfect[2] = 1 - smoothing
    logits = jnp.asarray(np.log(np.maximum(perfect, 1e-30)), jnp.float32)
    loss, _ = cross_entropy(logits, jnp.array(2), label_smoothing=smoothing)
    np.testing.assert_allclose(loss, 0.0, atol=1e-5)
    worse, _ = cross_entropy(logits, jnp.array(1), label_smoothing=smoothing)
    assert worse > 0.1


def test_shapes_follow_the_targets():
    logits = jnp.zeros((2, 3, 7))
    loss, penalty = cross_entropy(logits, jnp.zeros((2, 3), jnp.int32), z_loss=1.0)
    np.testing.assert_allclose(loss, np.full((2, 3), math.log(7) + math.log(7) ** 2), rtol=1e-5)
    assert penalty.shape == (2, 3)


def test_large_logits_neither_overflow_nor_cancel():
    logits = jnp.array([1e4, 0.0, -1e4])
    assert float(cross_entropy(logits, jnp.array(0))[0]) == 0.0
    assert float(cross_entropy(logits, jnp.array(2))[0]) == 2e4


def test_bfloat16_logits_are_taken_as_float32():
    logits = jnp.array([0.0, 1.0986], jnp.bfloat16)
    loss, _ = cross_entropy(logits, jnp.array(1))
    assert loss.dtype == jnp.float32
    expected, _ = cross_entropy(logits.astype(jnp.float32), jnp.array(1))
    assert float(loss) == float(expected)


def naive(logits, targets, z_loss, smoothing):
    """Over one-hot targets, as the definition says."""
    classes = logits.shape[-1]
    low = smoothing / (classes - 1)
    smoothed = jax.nn.one_hot(targets, classes) * (1 - smoothing - low) + low
    log_p = jax.nn.log_softmax(logits)
    cross = -jnp.sum(smoothed * log_p, axis=-1)
    constant = sum(-q * math.log(q) for q in [1 - smoothing] + [low] * (classes - 1) if q > 0)
    return cross - constant + z_loss * jax.nn.logsumexp(logits, axis=-1) ** 2


@pytest.mark.parametrize(("z_loss", "smoothing"), [(0.0, 0.0), (0.01, 0.0), (0.01, 0.1)])
def test_values_and_gradients_equal_a_naive_version(z_loss, smoothing):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(4, 6, 11), scale=3).astype(np.float32))
    targets = jnp.asarray(rng.integers(11, size=(4, 6)))
    weights = rng.uniform(size=(4, 6)).astype(np.float32)

    def ours(logits):
        loss, _ = cross_entropy(logits, targets, z_loss=z_loss, label_smoothing=smoothing)
        return jnp.sum(loss * weights), loss

    def plain(logits):
        loss = naive(logits, targets, z_loss, smoothing)
        return jnp.sum(loss * weights), loss

    both = jax.jit(lambda logits: [jax.grad(f, has_aux=True)(logits) for f in (ours, plain)])
    (grad, loss), (expected_grad, expected_loss) = both(logits)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-5, atol=1e-5)
    # t5x losses.py: (1 + 2 z log Z) softmax - targets.
    log_z = np.log(np.exp(np.asarray(logits, np.float64)).sum(-1, keepdims=True))
    smoothed = np.full((4, 6, 11), smoothing / 10)
    np.put_along_axis(smoothed, np.asarray(targets)[..., None], 1 - smoothing, axis=-1)
    by_hand = (1 + 2 * z_loss * log_z) * np.exp(logits - log_z) - smoothed
    np.testing.assert_allclose(grad, by_hand * weights[..., None], rtol=1e-5, atol=1e-5)


def test_gradients_equal_finite_differences():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32))
    function = jax.jit(
        lambda logits: cross_entropy(logits, jnp.array([0, 4, 2]), z_loss=0.1, label_smoothing=0.1)[
            0
        ]
    )
    check_grads(function, (logits,), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], 0.25),
        ([2.0, 2.0, 1.0, 0.0], 0.5),
        ([2.0, 1.0, 0.0, 0.0], 1.0),
        ([1.0, 2.0, 2.0, 0.0], 0.0),
        ([float("nan")] * 4, 0.0),
    ],
)
def test_a_tie_counts_one_over_the_number_of_the_tied(scores, expected):
    found = correct(jnp.array([scores]), jnp.array([scores[0]]))
    np.testing.assert_array_equal(found, np.float32([expected]))


FOUR, ONE = jnp.zeros((1, 4)), jnp.ones(1)
ALL = jnp.ones((1, 4), bool)
PASSAGES = {"encoder_segment_ids": jnp.ones((1, 4, 2), jnp.int32)}
DEAD = {
    # The metric of four equal scores, as a sum over one row.
    "contrastive": lambda: of_scores(FOUR, ALL, ONE)["accuracy"][0],
    "m3": lambda: m3._accuracy(FOUR, ALL, ONE, 1),
    "classes": lambda: task_heads.loss_of_classes(FOUR, jnp.array([3])).metrics["accuracy"][0],
    "tokens": lambda: masked_lm.sums(FOUR, jnp.array([3]), ONE)[1],
    "ranker": lambda: RankerLoss(Ranker()).of_logits(FOUR, PASSAGES).metrics["accuracy"][0],
    "decoder": lambda: likelihood._of_logits(FOUR[None], jnp.array([[2]])).correct[0, 0],
}


@pytest.mark.parametrize("objective", DEAD)
def test_a_dead_head_has_the_accuracy_of_a_random_choice(objective):
    assert float(DEAD[objective]()) == 0.25


def test_candidates_that_are_left_out_are_not_tied():
    found = of_scores(FOUR, jnp.array([[True, True, False, False]]), ONE)
    assert float(found["accuracy"][0]) == 0.5


def test_a_dead_span_head_has_the_accuracy_of_two_random_choices():
    head = SpanHead(4, rngs=nnx.Rngs(0))
    batch = {"labels": jnp.array([[2, 3]]), "encoder_segment_ids": jnp.ones((1, 4), jnp.int32)}
    loss = task_heads.loss_of_spans(head, jnp.zeros((1, 4, 4)), batch)
    assert float(loss.metrics["accuracy"][0]) == 1 / 16


def test_a_triplet_of_equal_distances_is_half_right():
    batch = {"passage_segment_ids": jnp.ones((1, 2, 3), jnp.int32)}
    loss = Triplets().of_vectors(jnp.ones((1, 2)), jnp.ones((1, 2, 2)), batch)
    assert float(loss.metrics["accuracy"][0]) == 0.5


def test_a_ranker_does_not_count_passages_that_are_left_out_as_tied():
    there = jnp.array([[[1, 1], [1, 1], [0, 0], [0, 0]]], jnp.int32)
    loss = RankerLoss(Ranker()).of_logits(FOUR, {"encoder_segment_ids": there})
    assert tuple(map(float, loss.metrics["accuracy"])) == (0.5, 1.0)


def test_a_dead_discriminator_detects_half_of_the_tokens():
    replaced = jnp.array([[True, False, False, True]])
    weights = jnp.array([[1.0, 1.0, 1.0, 0.0]])
    found = electra.detections(FOUR, replaced, weights)
    assert {name: tuple(map(float, value)) for name, value in found.items()} == {
        "detection_accuracy": (1.5, 3.0),
        "detection_recall": (0.5, 1.0),
        "replaced": (1.0, 3.0),
    }
    assert float(Roc.of(FOUR, replaced, weights).area()) == 0.5
