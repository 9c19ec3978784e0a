"""The tail of every block: dropout, residual, norm.

x = residual(x, f(norm(x)))              pre-norm, as in T5
x = residual(x, f(x), norm=norm)         post-norm, as in BERT

An adapter in the slot takes the place of the sum and the norm.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Float

from t5x_lite.nn.dropout import dropout
from t5x_lite.nn.slots import Around, BlockSlot
from t5x_lite.types import Array, Key


def residual(
    x: Float[Array, "B T D"],
    y: Float[Array, "B T D"],
    *,
    rate: float = 0.0,
    key: Key | None = None,
    over_length: bool = False,
    norm: Callable[[Array], Array] | None = None,
    slot: BlockSlot | None = None,
    source: Float[Array, "B T D"] | None = None,
    mask: Any = None,
) -> Float[Array, "B T D"]:
    """x + dropout(y), and its norm where there is one.

    Args:
      x: what went into the block.
      y: what came out of it.
      rate: of the dropout.
      key: turns dropout on.
      over_length: whether the dropout's mask is one for all positions of a row, as in T5.
      norm: of a post-norm block.
      slot: makes the result of what is dropped out, x and the norm; None adds and normalises.
      source: what the block read, for the slot; None is x.
      mask: which positions see each other, for the slot; None in a decoder.
    """
    y = dropout(y, rate, key=key, broadcast_axes=(-2,) if over_length else ())
    if slot is not None:
        own_key = None if key is None else jax.random.fold_in(key, 1)
        return slot(y, x, norm, Around(x if source is None else source, mask, own_key))
    x = x + y
    return x if norm is None else norm(x)
