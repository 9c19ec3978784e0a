"""Graded pairs and triplets: by hand, and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.objectives.contrastive import CosineRegression, Triplets
from t5x_lite.objectives.learner import Learner
from tests.objectives.encoder_rows import CLS, MODEL, SEP, groups, random

NAN = float("nan")
PAIRS = groups(
    [[CLS, 10, SEP], [CLS, 11, SEP], []],
    [[[CLS, 20, SEP]], [[CLS, 21, SEP]], [[]]],
    teacher=[[5.0], [0.0], [NAN]],
)


def test_cosines_by_hand():
    queries, passages = [[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [[[3.0, 3.0]], [[1.0, 0.0]], [[0, 0]]]
    loss = CosineRegression(scale=5.0).of_vectors(
        jnp.asarray(queries), jnp.asarray(passages), PAIRS
    )
    total, weight, _ = loss.terms["squared_error"]
    assert (float(total), float(weight)) == (pytest.approx((0.5**0.5 - 1) ** 2), 2.0)


@pytest.mark.parametrize(
    ("distance", "expected"),
    # |q - p| = 1, |q - n| = 2 and 1/2, margin 3/4; cosines 0, -1 and 1.
    [("euclidean", [0.0, 1.25]), ("cosine", [0.0, 1.75])],
)
def test_triplets_by_hand(distance, expected):
    batch = groups([[CLS, 10], [CLS, 11]], [[[20], [21], [22]], [[23], [], []]])
    queries = jnp.array([[1.0, 0.0], [1.0, 0.0]])
    passages = jnp.array([[[1.0, 1.0], [-1.0, 0.0], [0.5, 0.0]]] * 2)
    if distance == "cosine":
        passages = jnp.array([[[0.0, 1.0], [-1.0, 0.0], [0.5, 0.0]]] * 2)
    loss = Triplets(margin=0.75, distance=distance).of_vectors(queries, passages, batch)
    total, weight, _ = loss.terms["triplets"]
    assert (float(total), float(weight)) == (pytest.approx(sum(expected)), 2.0)
    assert tuple(map(float, loss.metrics["accuracy"])) == (1.0, 2.0)


@pytest.mark.parametrize("objective", [CosineRegression(scale=5.0), Triplets()])
@pytest.mark.slow
def test_gradients_are_finite_with_padding(objective):
    batch = PAIRS
    if isinstance(objective, Triplets):
        batch = groups([[CLS, 10], []], [[[20], [20]], [[], []]])
    learner = Learner.of(MODEL, objective)
    params = random(learner.shapes)
    value, grads = jax.jit(jax.value_and_grad(lambda p: learner.whole_loss(p, batch).value()))(
        params
    )
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))


def test_rows_that_say_too_little_are_refused():
    zeros = jnp.zeros((1, 4))
    without = groups([[CLS]], [[[CLS]]])
    with pytest.raises(
        InputError,
        match=r"has no teacher_scores; set --data\.layout\.teacher True",
    ):
        CosineRegression().of_vectors(zeros, zeros[:, None], without)
    with pytest.raises(InputError, match=r"--data\.layout\.negatives 1 or more"):
        Triplets().of_vectors(zeros, zeros[:, None], without)
    with pytest.raises(InputError, match=r"objective\.scale must be above 0"):
        CosineRegression(scale=0.0)
    with pytest.raises(InputError, match=r"objective\.margin must be above 0"):
        Triplets(margin=0.0)
