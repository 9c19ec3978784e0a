"""One vector of each text, from an encoder's states: those of its [CLS], or their mean.

    pool(model(tokens), tokens != pad_id, "mean")       # [B, D]

BERT's and SimCSE's "cls" is the state of a text's first token; "mean" is that of all that is no
padding, [CLS] and [SEP] included (Reimers and Gurevych 2019, arXiv:1908.10084).
"""

from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from t5x_lite.errors import InputError
from t5x_lite.types import Array

Pooling = Literal["cls", "mean"]


def pool(
    hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | Int[Array, "B T"], kind: Pooling
) -> Float[Array, "B D"]:
    """The vectors of texts, one a row, in float32.

    Args:
      hidden: an encoder's states.
      mask: what is no padding: true, or above 0. A row of padding alone has the mean 0.
      kind: "cls" or "mean".

    Raises:
      InputError: there is no such kind.
    """
    check_pooling("pooling", kind)
    if kind == "cls":
        return hidden[:, 0].astype(jnp.float32)
    weights = (mask > 0).astype(jnp.float32)
    total = jnp.sum(hidden.astype(jnp.float32) * weights[..., None], axis=1)
    return total / jnp.maximum(jnp.sum(weights, axis=1), 1.0)[:, None]


def check_pooling(name: str, kind: str) -> None:
    """Refuses, by an InputError, a kind that does not exist.

    Args:
      name: of the field, for the message.
      kind: its value.
    """
    if kind not in get_args(Pooling):
        raise InputError(f"{name} must be one of {get_args(Pooling)}: got {kind!r}")
