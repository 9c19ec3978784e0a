"""The head that labels each token: names of things, parts of speech."""

import dataclasses

from flax import nnx
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, dense, encoder_of
from t5x_lite.heads.classifier import check_rate
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.dropout import dropout
from t5x_lite.types import Array, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token(Head):
    """Classes of each token.

    Attributes:
      num_classes: of the task.
      dropout_rate: of the head; None is the model's.
      labels: names of the classes, where they are known.
    """

    name: str = "token"
    num_classes: int = 2
    dropout_rate: float | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 2:
            raise InputError(f"num_classes must be at least 2: got {self.num_classes}")
        if self.labels and len(self.labels) != self.num_classes:
            raise InputError(
                f"labels must be {self.num_classes}, as many as num_classes: got {self.labels}"
            )
        check_rate(self.dropout_rate)

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
