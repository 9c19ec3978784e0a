"""The encoder of T5 alone, for what needs a vector for each token and no text.

    config = T5EncoderConfig(vocab_size=32128, d_model=512, d_ff=1024, num_heads=6, num_layers=8)
    hidden = config.build(rngs=nnx.Rngs(0))(tokens)      # [B, S, D]

Parameter paths are those of `t5x_lite.models.t5`, so that a T5's encoder fits in as it is.
"""

import dataclasses
from typing import Any, ClassVar

from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.models.base import RowShapes, TokenModel
from t5x_lite.models.t5 import StackConfig
from t5x_lite.nn import masks
from t5x_lite.nn.embedding import Embedding
from t5x_lite.nn.slots import InvertibleSlot, TokenSlot, after_prompt
from t5x_lite.nn.stack import Encoder
from t5x_lite.types import Array, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5EncoderConfig(StackConfig):
    """Sizes and choices of an encoder; those of `StackConfig` and this.

    Attributes:
      num_layers: number of layers.
    """

    num_layers: int

    below: ClassVar[tuple[str, ...]] = ("token_embedding", "encoder/relative_bias")

    def forward_flops(self, shapes: RowShapes) -> int:
        """FLOPs of one forward pass for one row."""
        (length,) = shapes["encoder_input_tokens"]
        return self.text_flops(length)

    def text_flops(self, length: int) -> int:
        """FLOPs of one text's forward pass.

        Args:
          length: its tokens.
        """
        return self.num_layers * self.layer_flops(length)

    def build(self, *, rngs: nnx.Rngs) -> "T5Encoder":
        """Makes the module with fresh parameters."""
        return T5Encoder(self, rngs=rngs)


class T5Encoder(TokenModel):
    """Token embedding and encoder.

    Args:
      config: its sizes.
      rngs: the stream "params" is used.
    """

    prompt: TokenSlot | None = None
    invertible: InvertibleSlot | None = None

    def __init__(self, config: T5EncoderConfig, *, rngs: nnx.Rngs):
        self.token_embedding = Embedding(config.vocab_size, config.d_model, rngs=rngs)
        self.encoder = Encoder(
            config.layer, num_layers=config.num_layers, running=config.running, rngs=rngs
        )

    def stacks(self) -> dict[str, Any]:
        """The stacked layers, which have slots, by the names of their stacks."""
        return {"encoder": self.encoder.layers}

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """The encoder's output.

        Args:
          tokens: padded with 0.
          segment_ids: of packed examples, from 1; 0 is padding.
          key: turns dropout on.
        """
        x = self.embed(tokens)
        x = x if self.invertible is None else self.invertible(x)
        if self.prompt is None:
            return self.encoder(x, mask=masks.of_encoder(tokens, segment_ids), key=key)
        ids = None if segment_ids is None else after_prompt(segment_ids, self.prompt)
        mask = masks.of_encoder(after_prompt(tokens, self.prompt), ids)
        x = self.prompt(x, self.token_table())
        return self.encoder(x, mask=mask, key=key)[:, self.prompt.length :]

    def encode(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """The call under the name that it has in T5."""
        return self(tokens, segment_ids=segment_ids, key=key)
