"""The head that labels each token: names of things, parts of speech."""

import dataclasses
from typing import ClassVar

from flax import nnx
from jaxtyping import Float

from t5x_lite.heads.base import dense, encoder_of
from t5x_lite.heads.classes import ClassHead
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.dropout import dropout
from t5x_lite.types import Array, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token(ClassHead):
    """Classes of each token."""

    name: str = "token"

    fewest: ClassVar[int] = 2

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "TokenHead":
        """Makes the module."""
        encoder = encoder_of(self, model)
        rate = encoder.dropout_rate if self.dropout_rate is None else self.dropout_rate
        return TokenHead(
            encoder.d_model,
            self.num_classes,
            dropout_rate=rate,
            stddev=encoder.initializer_stddev,
            rngs=rngs,
        )


class TokenHead(nnx.Module):
    """dropout -> linear, at each position (transformers' *ForTokenClassification).

    Args:
      d_model: size of the hidden states.
      num_classes: logits.
      dropout_rate: before the layer.
      stddev: of the kernel at the start.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        num_classes: int,
        *,
        dropout_rate: float = 0.1,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.out = dense(d_model, num_classes, axes=("embed", None), stddev=stddev, rngs=rngs)
        self.dropout_rate = dropout_rate

    def __call__(
        self, hidden: Float[Array, "B S D"], *, key: Key | None = None
    ) -> Float[Array, "B S C"]:
        """Float32 logits of the classes; a key turns dropout on."""
        return self.out.product(dropout(hidden, self.dropout_rate, key=key))
