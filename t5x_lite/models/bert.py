"""BERT and what has its layers: RoBERTa, XLM-R, ELECTRA (Devlin et al. 2019; Clark et al. 2020).

    config = BertConfig(vocab_size=30522, d_model=768, d_ff=3072, num_heads=12, num_layers=12,
                        token_types=2)                         # or encoder_presets.bert_base()
    hidden = config.build(rngs=nnx.Rngs(0))(tokens)            # [B, S, D]

RoBERTa and XLM-R count positions from pad_id + 1 (`position_offset` 2) and have one token type;
ELECTRA has tables of `embedding_size` columns and a projection. There is no pooler: it is the first
half of `nn.heads.ClassificationHead`. `positions="relative_bias"` puts T5's bias in place of the
table of positions, one for all layers.
"""

import dataclasses
from typing import ClassVar, Literal, get_args

import jax
from flax import nnx
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.models.encoder import EncoderConfig, EncoderModel
from t5x_lite.nn.bind import stacked
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.pattern import Pattern
from t5x_lite.nn.positions import RelativeBias
from t5x_lite.nn.post_norm import PostNormLayer
from t5x_lite.nn.scan import scan_layers
from t5x_lite.types import Array, Key

PositionKind = Literal["learned", "relative_bias"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """Sizes and choices of a BERT; those of `EncoderConfig` and these.

    Attributes:
      positions: "learned", a table; or "relative_bias", T5's buckets.
      position_offset: the table's row of a document's first token.
      relative_buckets: rows of the relative bias table.
      relative_max_distance: distances from here on share a bucket.
    """

    positions: PositionKind = "learned"
    position_offset: int = 0
    relative_buckets: int = 32
    relative_max_distance: int = 128

    below: ClassVar[tuple[str, ...]] = (*EncoderConfig.below, "relative_bias")

    @property
    def classifier_kind(self) -> Literal["bert", "roberta"]:
        """RoBERTa's where positions are counted as RoBERTa does."""
        return "roberta" if self.position_offset else "bert"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in get_args(PositionKind):
            raise InputError(
                f"model.positions must be one of {get_args(PositionKind)}: got {self.positions!r}"
            )
        if not 0 <= self.position_offset < self.max_positions:
            raise InputError(
                f"model.position_offset must be in [0, max_positions), {self.max_positions}: "
                f"got {self.position_offset}"
            )
        if self.relative_buckets < 4 or self.relative_max_distance <= self.relative_buckets // 2:
            raise InputError(
                "model.relative_buckets must be at least 4 and model.relative_max_distance above "
                f"half of it: got {self.relative_buckets} and {self.relative_max_distance}"
            )

    @property
    def position_rows(self) -> int:
        """Rows of the table of positions; 0 with a relative bias."""
        return self.max_positions if self.positions == "learned" else 0

    @property
    def first_position(self) -> int:
        """The row that a document's first token reads."""
        return self.position_offset

    def build(self, *, rngs: nnx.Rngs) -> "Bert":
        """Makes the module with fresh parameters."""
        return Bert(self, rngs=rngs)


class Bert(EncoderModel):
    """Embeddings and post-norm layers.

    Args:
      config: its sizes.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        if config.positions == "relative_bias":
            self.relative_bias = RelativeBias(
                config.num_heads,
                num_buckets=config.relative_buckets,
                max_distance=config.relative_max_distance,
                rngs=rngs,
            )
        self.relative = config.positions == "relative_bias"
        layer = config.layer
        self.layers = stacked(
            lambda rngs: PostNormLayer(layer, rngs=rngs), rngs, num=config.num_layers
        )

    def apply_layers(
        self,
        x: Float[Array, "B S D"],
        *,
        mask: Visibility,
        key: Key | None = None,
        part: tuple[int, int] | None = None,
    ) -> Float[Array, "B S D"]:
        """All layers, or some that follow each other.

        The layers of a part draw the dropout that they draw among all: one part after the other is
        the whole.

        Args:
          x: embeddings of d_model columns, or the states before the part's first layer.
          mask: which keys a token sees.
          key: turns dropout on.
          part: the layers [first, last); None is all of them.
        """
        pattern = self.pattern(mask, x.shape[1])

        def call(layer: PostNormLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, pattern=pattern, key=key), None

        keys = None if key is None else jax.random.split(key, self.config.num_layers)
        running = self.config.running
        return scan_layers(self.layers, call, x, inputs=keys, running=running, part=part)[0]

    def pattern(self, mask: Visibility, length: int) -> Pattern:
        """What its layers attend to, with the relative bias where there is one.

        Args:
          mask: which keys a token sees.
          length: of the rows.
        """
        pattern = self.config.running.pattern(mask, length)
        return pattern.biased(self.relative_bias, bidirectional=True) if self.relative else pattern
