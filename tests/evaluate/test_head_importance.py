"""The importance of heads, against the mask that a finite difference moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.masks import Heads
from t5x_lite.core.errors import InputError
from t5x_lite.evaluate.results import divided, head_importance, pruned
from tests.adapters.hosts import learner, random


def rows_of(batch, num):
    return [{name: np.asarray(x)[row : row + 1] for name, x in batch.items()} for row in range(num)]


def test_importance_is_the_mean_of_absolute_slopes():
    made, batch = learner("bert", Heads())
    params = random(made.shapes)
    masks = jax.tree.map(jnp.ones_like, params["adapters"]["heads"])
    params["adapters"]["heads"] = masks
    rows = rows_of(batch, 2)
    [(path, found)] = head_importance(made.loss, params, rows).items()
    assert (path, found.shape) == ("encoder/attention/hidden/mask", (2, 2))

    @jax.jit
    def value(mask, row):
        moved = {"heads": {"encoder": {"attention": {"hidden": {"mask": mask}}}}}
        return made.loss({**params, "adapters": moved}, row).value()

    step = 0.01
    for layer, head in np.ndindex(2, 2):
        delta = jnp.zeros((2, 2)).at[layer, head].set(step)
        slopes = [(value(1 + delta, row) - value(1 - delta, row)) / (2 * step) for row in rows]
        assert found[layer, head] == pytest.approx(np.mean(np.abs(slopes)), rel=0.02, abs=1e-4)
    with pytest.raises(InputError, match="requires batches of 1 example"):
        head_importance(made.loss, params, [{p: np.asarray(x) for p, x in batch.items()}])
    with pytest.raises(InputError, match="requires at least one example"):
        head_importance(made.loss, params, [])


def test_the_heads_that_are_kept():
    scores = {"b": np.array([[3.0, 4.0], [0.0, 0.0]]), "a": np.array([[1.0, 0.0]])}
    np.testing.assert_allclose(divided(scores["b"]), [[0.6, 0.8], [0, 0]])
    kept = pruned(scores, keep=0.5)
    np.testing.assert_array_equal(kept["a"], [[1, 0]])
    np.testing.assert_array_equal(kept["b"], [[1, 1], [0, 0]])
    assert sum(x.sum() for x in pruned(scores, keep=0.01).values()) == 1
