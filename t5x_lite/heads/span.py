"""The head that finds an answer in a text: where it begins and where it ends."""

import dataclasses

from flax import nnx
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, dense, encoder_of
from t5x_lite.models.base import ModelConfig
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span(Head):
    """An answer's first and last token.

    Attributes:
      longest: tokens of an answer at most, where one is looked for.
    """

    name: str = "span"
    longest: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest < 1:
            raise InputError(f"longest must be at least 1: got {self.longest}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "SpanHead":
        """Makes the module."""
        encoder = encoder_of(self, model)
        return SpanHead(encoder.d_model, stddev=encoder.initializer_stddev, rngs=rngs)


class SpanHead(nnx.Module):
    """Where an answer begins and where it ends: two numbers for each position (SQuAD).

    Args:
      d_model: size of the hidden states.
      stddev: of the kernel at the start.
      rngs: the stream "params" is used.
    """

    def __init__(self, d_model: int, *, stddev: float = 0.02, rngs: nnx.Rngs):
        self.out = dense(
            d_model,
            2,
            axes=("embed", None),
            stddev=stddev,
            rngs=rngs,
        )

    def __call__(
        self, hidden: Float[Array, "B S D"]
    ) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
        """Logits of the first and of the last token."""
        logits = self.out.product(hidden)
        return logits[..., 0], logits[..., 1]
