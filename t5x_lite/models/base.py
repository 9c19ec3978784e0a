"""What the architectures have in common: the config, the embedding and the output layer."""

import dataclasses
import math
from typing import Any, NamedTuple

from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.nn import cache as caching
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.linear import FAN_IN_TRUNCATED, Embedding, Linear
from t5x_lite.sharding import constrain
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base of the architectures' configs.

    Attributes:
      vocab_size: rows of the embedding, the vocabulary's size rounded up.
    """

    vocab_size: int

    def build(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the module with fresh parameters from the stream "params"."""
        raise TypeError(f"{type(self).__name__} does not define build")

    def replace(self, **changes: Any) -> Any:
        """A copy with other field values."""
        return dataclasses.replace(self, **changes)


class Output(NamedTuple):
    """An output layer taken apart: logits are hidden states times the kernel, over the divisor.

    Attributes:
      kernel: [V, D], or [D, V].
      axes: its logical axes: ("vocab", "embed"), or ("embed", "vocab").
      divisor: of the float32 product; 1 divides nothing.
    """

    kernel: Array
    axes: tuple[str, str]
    divisor: float


class TokenModel(nnx.Module):
    """What all models over tokens have: the embedding, and the output of those that decode.

    Attributes:
      token_embedding: the table.
      tied: whether the output is the embedding; else `lm_head` is the output.
    """

    token_embedding: Embedding
    tied: bool
    lm_head: Linear

    def make_output(self, d_model: int, vocab_size: int, *, tied: bool, rngs: nnx.Rngs) -> None:
        """Adds the output layer; the last thing of a constructor, as it draws from `rngs`."""
        self.tied = tied
        if not tied:
            self.lm_head = Linear(
                d_model,
                vocab_size,
                axes=("embed", "vocab"),
                initializer=FAN_IN_TRUNCATED,
                rngs=rngs,
            )

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Token embeddings."""
        return constrain(self.token_embedding(tokens), "batch", "length", "activation_embed")

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Next-token logits in float32."""
        if self.tied:
            logits = self.token_embedding.logits(hidden)
        else:
            logits = self.lm_head.product(hidden)
        return constrain(logits, "batch", "length", "vocab")

    def output(self) -> Output:
        """What `logits` multiplies with, for a loss that never has all logits at once."""
        if self.tied:
            table = self.token_embedding.table[...]
            return Output(table, ("vocab", "embed"), math.sqrt(table.shape[1]))
        return Output(self.lm_head.kernel[...], ("embed", "vocab"), 1.0)

    def repeat(self, cache: Cache, num: int) -> Cache:
        """The cache with `num` rows for each row; the inputs' keys and values are not copied."""
        return caching.repeat(cache, num)

    def select(self, cache: Cache, rows: Int[Array, " R"]) -> Cache:
        """The cache of the given rows, each from among the rows of its own input."""
        return caching.select(cache, rows)
