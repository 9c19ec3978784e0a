"""The diagonal of a Fisher matrix: the mean of squared gradients, one example at a time.

    F = 1/n sum_i (d log p(y_i | x_i) / d theta)^2            empirical: y_i is the label
    F = 1/n sum_i sum_y p(y | x_i) (d log p(y | x_i))^2       expected: all classes y

A batch of several examples would square the gradient of their sum, which is another number.
Source: Sung et al. 2021, arXiv:2111.09839; Matena and Raffel 2021, arXiv:2111.09832.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import progress, trees
from t5x_lite.errors import InputError
from t5x_lite.evaluate.interruption import between_batches
from t5x_lite.learner import Learner
from t5x_lite.objectives.base import Loss
from t5x_lite.types import Array, Batch, Params

_LABELS = "labels"


def fisher_diagonal(
    loss: Callable[[Params, Batch], Loss],
    params: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    part: str = "model",
    classes: int | None = None,
) -> dict[str, np.ndarray]:
    """The diagonal for one part of the parameters.

    Args:
      loss: whose terms are sums of negative log-likelihoods.
      params: of the model and all else, in float32.
      rows: batches of one row.
      part: of the parameters.
      classes: how many there are, for the expected diagonal; a row has its class + 1 in "labels".
        None is the empirical one.

    Returns:
      path -> float32, of the array's shape.

    Raises:
      InputError: a batch has several rows, there is none, or the loss compares rows.
    """

    def surprise(own: Any, batch: Batch) -> Array:
        given = loss({**params, part: own}, batch)
        if given.rows:
            raise InputError("a loss that compares the rows of a batch has no Fisher diagonal")
        terms = [term.scale * term.total for term in given.terms.values()]
        return sum(terms[1:], start=terms[0])

    @jax.jit
    def added(total: Any, own: Any, batch: Batch) -> Any:
        if classes is None:
            return jax.tree.map(
                lambda t, g: t + jnp.square(g), total, jax.grad(surprise)(own, batch)
            )
        for label in range(1, classes + 1):
            labelled = {**batch, _LABELS: jnp.asarray(batch[_LABELS]).at[:, 0].set(label)}
            value, gradient = jax.value_and_grad(surprise)(own, labelled)
            chance = jnp.exp(-value)
            total = jax.tree.map(lambda t, g, p=chance: t + p * jnp.square(g), total, gradient)
        return total

    def step(total: Any, row: Batch) -> Any:
        if classes is not None and _LABELS not in row:
            raise InputError("the expected Fisher diagonal needs rows with a class; use empirical")
        return added(total, params[part], row)

    flat = mean_over_examples(step, params[part], rows, what="a Fisher diagonal")
    return {f"{part}/{path}": x for path, x in flat.items()}


def mean_over_examples(
    added: Callable[[Any, Batch], Any],
    like: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    what: str,
) -> dict[str, np.ndarray]:
    """The mean of what each example adds to a total that begins as 0.

    Args:
      added: (total, batch of one row) -> the total with that row's.
      like: nested arrays, of the total's shapes.
      rows: batches of one row.
      what: it is, for errors.

    Returns:
      path -> float32, of the array's shape.

    Raises:
      InputError: a batch has several rows, or there is none.
    """
    total, number = jax.tree.map(jnp.zeros_like, like), 0
    for row in rows:
        between_batches()
        if any(value.shape[0] != 1 for value in row.values()):
            raise InputError(f"{what} is of one example at a time: give batches of 1 row")
        total, number = added(total, dict(row)), number + 1
        progress.step(1)
    if not number:
        raise InputError(f"{what} needs one example at least")
    flat = trees.flatten(total)
    return {path: np.asarray(x) / np.float32(number) for path, x in flat.items()}


def classes_of(learner: Learner) -> int:
    """How many classes a classifier has.

    Raises:
      InputError: it is none.
    """
    head = learner.heads.get("classifier")
    classes = 0 if head is None else vars(head).get("num_classes", 0)
    if classes < 2:
        raise InputError(
            "labels expected are those of a classifier with classes, which this checkpoint is not: "
            "use --labels empirical"
        )
    return classes
