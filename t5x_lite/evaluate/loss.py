"""Held-out loss, Fisher diagonals and the importance of attention heads.

The diagonal of a Fisher matrix is the mean over examples of squared gradients:

    F = 1/n sum_i (d log p(y_i | x_i) / d theta)^2            empirical: y_i is the label
    F = 1/n sum_i sum_y p(y | x_i) (d log p(y | x_i))^2       expected: all classes y

Each batch has one example, because the square of a sum is not the sum of squares. Source: Sung et
al. 2021, arXiv:2111.09839; Matena and Raffel 2021, arXiv:2111.09832.

The importance of an attention head is the mean over examples of |dL / dmask| at masks of 1:

    I_h = 1/n sum_i | dL(x_i) / dmask_h |

Here too, each batch has one example. `divided` scales the importances of each layer to length 1,
which makes layers comparable. Source: Michel et al. 2019, arXiv:1905.10650, section 4.1.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.core import progress, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.progress import step
from t5x_lite.core.sharding import put_whole, replicated
from t5x_lite.core.trees import Array, Batch, Params
from t5x_lite.inference.generate import between_batches
from t5x_lite.objectives.base import Loss, metric_value
from t5x_lite.objectives.learner import Learner


class LossEvaluator:
    """Evaluator of an objective's loss and metrics over a data split, without dropout.

    Args:
      loss_function: function (params, batch) -> Loss.
      batches: function that starts a new pass over the split; every process reads complete batches.
      mesh: device mesh that splits the rows of a batch.
    """

    def __init__(
        self,
        loss_function: Callable[[Params, Batch], Any],
        batches: Callable[[], Iterable[Mapping[str, np.ndarray]]],
        *,
        mesh: Mesh,
    ):
        self._loss = jax.jit(loss_function, out_shardings=replicated(mesh))
        self._batches = batches
        self._mesh = mesh

    def over(self, batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]) -> "LossEvaluator":
        """Return an evaluator for other batches, which reuses this evaluator's compiled loss."""
        other = copy.copy(self)
        other._batches = batches
        return other

    def names(self, params: Any) -> list[str]:
        """Return the names of the metrics, from shapes of the parameters and one batch."""
        batch = next(iter(self._batches()))
        return ["loss", *jax.eval_shape(self._loss, params, batch).metrics]

    def run(self, params: Params) -> dict[str, float]:
        """Return loss and metrics over all batches; every process gets the same values."""
        sums: Any = None
        with jax.set_mesh(self._mesh):
            for batch in self._batches():
                between_batches()
                loss = self._loss(params, put_whole(batch, self._mesh))
                loss = jax.tree.map(np.float64, jax.device_get(loss))
                sums = loss if sums is None else sums.plus(loss)
                step(len(next(iter(batch.values()))))
        if sums is None:
            raise ValueError("the evaluation split has no batch")
        metrics = {name: metric_value(value) for name, value in sums.metrics.items()}
        return {name: float(value) for name, value in {"loss": sums.value(), **metrics}.items()}


_LABELS = "labels"


def fisher_diagonal(
    loss: Callable[[Params, Batch], Loss],
    params: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    part: str = "model",
    classes: int | None = None,
) -> dict[str, np.ndarray]:
    """Return path -> Fisher diagonal, for the parameters below one top-level key.

    Args:
      loss: function (params, batch) -> Loss.
      params: parameter tree.
      rows: batches of one example.
      part: top-level key of the parameters.
      classes: number of classes for the expected diagonal; None computes the empirical diagonal.
    """

    def surprise(own: Any, batch: Batch) -> Array:
        given = loss({**params, part: own}, batch)
        if given.rows:
            raise InputError(
                "a Fisher diagonal needs a loss of single examples, but this loss compares examples"
            )
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
            raise InputError(
                "--labels expected needs examples with a class; use --labels empirical"
            )
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
    """Return path -> mean array over examples; `added(total, example)` adds one example."""
    total, number = jax.tree.map(jnp.zeros_like, like), 0
    for row in rows:
        between_batches()
        if any(value.shape[0] != 1 for value in row.values()):
            raise InputError(f"{what} needs batches of 1 row")
        total, number = added(total, dict(row)), number + 1
        progress.step(1)
    if not number:
        raise InputError(f"{what} needs at least one example")
    flat = trees.flatten(total)
    return {path: np.asarray(x) / np.float32(number) for path, x in flat.items()}


def classes_of(learner: Learner) -> int:
    """Return the number of classes of a classifier, or raise InputError for other models."""
    head = learner.heads.get("classifier")
    classes = 0 if head is None else vars(head).get("num_classes", 0)
    if classes < 2:
        raise InputError(
            "--labels expected needs a classifier with classes, but this checkpoint has none; use "
            "--labels empirical"
        )
    return classes


_ADAPTERS = "adapters"


def head_importance(
    loss: Callable[[Params, Batch], Loss],
    params: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    name: str = "heads",
) -> dict[str, np.ndarray]:
    """Return path -> importance of attention heads, from the gradients of their masks."""

    def value(masks: Any, batch: Batch) -> Array:
        given = loss({**params, _ADAPTERS: {**params[_ADAPTERS], name: masks}}, batch)
        if given.rows:
            raise InputError(
                "head importance needs a loss of single examples, but this loss compares examples"
            )
        return given.value()

    masks = params[_ADAPTERS][name]

    @jax.jit
    def added(total: Any, batch: Batch) -> Any:
        return jax.tree.map(lambda t, g: t + jnp.abs(g), total, jax.grad(value)(masks, batch))

    return mean_over_examples(added, masks, rows, what="the importance of heads")


def divided(importance: Float[np.ndarray, "N H"]) -> Float[np.ndarray, "N H"]:
    """Divide the head importances of each layer by their Euclidean norm."""
    length = np.linalg.norm(importance, axis=-1, keepdims=True)
    return importance / np.where(length == 0, 1, length)


def pruned(importance: Mapping[str, np.ndarray], *, keep: float) -> dict[str, np.ndarray]:
    """Return head masks: 1 for the fraction `keep` of most important heads, 0 for others."""
    paths = sorted(importance)
    scores = np.concatenate([divided(importance[path]).reshape(-1) for path in paths])
    num = max(1, round(keep * scores.size))
    kept = np.zeros(scores.size, np.float32)
    kept[np.argsort(-scores, kind="stable")[:num]] = 1.0
    masks, first = {}, 0
    for path in paths:
        shape = importance[path].shape
        masks[path] = kept[first : first + importance[path].size].reshape(shape)
        first += importance[path].size
    return masks
