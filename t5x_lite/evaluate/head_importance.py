"""How much each attention head matters: the mean over examples of |dL / dmask| at masks of 1.

    I_h = 1/n sum_i | dL(x_i) / dmask_h |

The absolute value is taken of each example's gradient, so a batch of several is another number.
`divided` makes the importances of a layer a vector of length 1, by which layers are compared.
Source: Michel et al. 2019, arXiv:1905.10650, section 4.1.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.evaluate.fisher import mean_over_examples
from t5x_lite.objectives.base import Loss
from t5x_lite.types import Array, Batch, Params

_ADAPTERS = "adapters"


def head_importance(
    loss: Callable[[Params, Batch], Loss],
    params: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    name: str = "heads",
) -> dict[str, np.ndarray]:
    """The importance of each head.

    Args:
      loss: of a learner that has the masks, `t5x_lite.adapters.heads.Heads`.
      params: of the model and all else; masks are 1 where a head is whole.
      rows: batches of one row.
      name: of the masks' adapter.

    Returns:
      path of a mask below the adapter -> float32 [N, H].

    Raises:
      InputError: a batch has several rows, there is none, or the loss compares rows.
    """

    def value(masks: Any, batch: Batch) -> Array:
        given = loss({**params, _ADAPTERS: {**params[_ADAPTERS], name: masks}}, batch)
        if given.rows:
            raise InputError("a loss that compares the rows of a batch has no importance of heads")
        return given.value()

    masks = params[_ADAPTERS][name]

    @jax.jit
    def added(total: Any, batch: Batch) -> Any:
        return jax.tree.map(lambda t, g: t + jnp.abs(g), total, jax.grad(value)(masks, batch))

    return mean_over_examples(added, masks, rows, what="the importance of heads")


def divided(importance: Float[np.ndarray, "N H"]) -> Float[np.ndarray, "N H"]:
    """The importances of each layer by their length."""
    length = np.linalg.norm(importance, axis=-1, keepdims=True)
    return importance / np.where(length == 0, 1, length)


def pruned(importance: Mapping[str, np.ndarray], *, keep: float) -> dict[str, np.ndarray]:
    """Masks in which the most important heads are 1 and the others 0.

    Args:
      importance: as `head_importance` gives it; layers are compared after `divided`.
      keep: the share of all heads that are kept, above 0; rounded to whole heads, at least one.

    Returns:
      path -> float32 [N, H]. Equal heads are kept in the order of their paths, layers and numbers.

    Raises:
      InputError: keep is not above 0 and at most 1.
    """
    if not 0 < keep <= 1:
        raise InputError(f"keep must be above 0 and at most 1: got {keep}")
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
