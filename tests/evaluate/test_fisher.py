import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.evaluate.results import fisher_diagonal
from t5x_lite.objectives.base import Loss, Term

PARAMS = {"model": {"w": jnp.array([[1.0, -1.0, 0.5], [0.0, 2.0, 1.0]])}, "heads": {"s": 2.0}}
ROWS = [
    {"x": np.array([[1.0, 2.0]], np.float32), "labels": np.array([[label, 0]])}
    for label in (1, 3, 2)
]


def loss(params, batch):
    """A classifier of three classes: logits x W s."""
    scores = params["heads"]["s"] * batch["x"] @ params["model"]["w"]
    log = jax.nn.log_softmax(scores)
    total = -jnp.sum(jnp.take_along_axis(log, batch["labels"][:, :1] - 1, axis=1))
    return Loss(terms={"cross_entropy": Term(total, jnp.float32(1))}, metrics={})


def by_hand(x, label):
    """x (p - onehot)^T s."""
    p = np.exp(2.0 * x @ np.asarray(PARAMS["model"]["w"]))
    p = p / p.sum()
    return p, 2.0 * np.outer(x, p - np.eye(3)[label])


def test_the_mean_of_squares_one_at_a_time():
    found = fisher_diagonal(loss, PARAMS, ROWS)
    assert list(found) == ["model/w"]
    squares = [by_hand(row["x"][0], row["labels"][0, 0] - 1)[1] ** 2 for row in ROWS]
    np.testing.assert_allclose(found["model/w"], np.mean(squares, axis=0), rtol=1e-5)
    sums = np.sum([by_hand(r["x"][0], r["labels"][0, 0] - 1)[1] for r in ROWS], axis=0)
    assert not np.allclose(found["model/w"], sums**2 / 3, rtol=1e-2)


def test_expected_labels_are_all_classes_by_their_probabilities():
    found = fisher_diagonal(loss, PARAMS, ROWS[:1], classes=3)["model/w"]
    p, _ = by_hand(ROWS[0]["x"][0], 0)
    expected = sum(p[y] * by_hand(ROWS[0]["x"][0], y)[1] ** 2 for y in range(3))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_what_is_refused():
    two = {name: np.concatenate([value] * 2) for name, value in ROWS[0].items()}
    for rows, options, reason in (
        ([], {}, "at least one example"),
        ([two], {}, "batches of 1 example"),
        ([{"x": ROWS[0]["x"]}], {"classes": 3}, "requires examples with class labels"),
    ):
        with pytest.raises(InputError, match=reason):
            fisher_diagonal(loss, PARAMS, rows, **options)

    def compared(params, batch):
        return loss(params, batch)._replace(rows={"x": batch["x"]})

    with pytest.raises(InputError, match="the loss of this checkpoint compares examples"):
        fisher_diagonal(compared, PARAMS, ROWS)
    assert trees.flatten(PARAMS).keys() == {"model/w", "heads/s"}
