import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.objectives.base import BINS, LARGEST, Roc


def exact(logits, labels):
    """The share of pairs in the right order, ties a half."""
    positives, negatives = logits[labels][:, None], logits[~labels][None]
    return np.mean((positives > negatives) + 0.5 * (positives == negatives))


def roc(logits, labels, weights=None):
    logits = jnp.asarray(logits, jnp.float32)
    weights = jnp.ones(logits.shape) if weights is None else jnp.asarray(weights, jnp.float32)
    return Roc.of(logits, jnp.asarray(labels, bool), weights)


def test_the_example_of_the_docstring():
    made = roc([-3.0, 1.0, 1.01, 4.0], [0, 0, 1, 1])
    assert float(made.area()) == 3.5 / 4
    assert float(made.error()) == pytest.approx(0.5 * 0.5 * 0.5)


@pytest.mark.parametrize(
    ("labels", "area"),
    [([0, 0, 1, 1], 1.0), ([1, 1, 0, 0], 0.0), ([1, 0, 0, 1], 0.5), ([1, 1, 1, 1], 0.5)],
)
def test_literals(labels, area):
    assert float(roc([-9.0, -2.0, 2.0, 100.0], labels).area()) == area


@pytest.mark.slow
def test_sums_of_parts_are_within_the_bound_of_the_exact_area():
    rng = np.random.default_rng(0)
    labels = rng.random(3000) < 0.15
    logits = (rng.normal(size=3000) + 1.5 * labels).astype(np.float32)
    weights = np.ones(3000)
    weights[2900:] = 0.0  # padding
    parts = [roc(logits[i::3], labels[i::3], weights[i::3]) for i in range(3)]
    summed = jax.tree.map(
        lambda *leaves: sum(np.asarray(leaf, np.float64) for leaf in leaves), *parts
    )
    wanted = exact(logits[:2900], labels[:2900])
    assert abs(summed.area() - wanted) <= summed.error() < 2e-3
    assert 0.8 < wanted < 0.9
    whole = roc(logits, labels, weights)
    assert float(whole.area()) == pytest.approx(summed.area(), abs=1e-6)


def test_what_lies_beyond_is_in_the_first_and_the_last_bin():
    made = roc([-1e9, -LARGEST, LARGEST, 1e9], [1, 1, 0, 0])
    assert (float(made.positives[0]), float(made.negatives[BINS - 1])) == (2.0, 2.0)
