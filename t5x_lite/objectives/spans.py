"""Answers that are a span of the text: where one begins and where it ends (SQuAD 1.1).

Two numbers for each position, each a distribution over the row's tokens (Devlin et al. 2019,
section 4.2; transformers' *ForQuestionAnswering); the loss is the mean of both cross-entropies. Of
a row whose answer was cut off there is no loss. Rows are those of data.layout "labelled".
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig, EncoderModel
from t5x_lite.nn.heads import SpanHead
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.classify import check_labelled
from t5x_lite.objectives.losses import cross_entropy
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.types import Array, Batch, Key

NEVER = -1e9
"""The logit of padding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans(Objective):
    """Cross-entropy of an answer's first and last token.

    Attributes:
      longest: tokens of an answer at most, where one is looked for.
    """

    longest: int = 30

    layouts: ClassVar[tuple[str, ...]] = ("labelled",)

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise InputError(f"objective.longest must be at least 1: got {self.longest}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "SpansLoss":
        """Makes the loss module, whose parameters are those of the head."""
        if not isinstance(model, EncoderConfig):
            raise InputError(f"Spans needs an encoder, not {type(model).__name__}")
        return SpansLoss(self, model, rngs=rngs)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class SpansLoss(nnx.Module):
    """Sums over the labelled rows of a batch.

    Args:
      config: the objective.
      model: of the encoder.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Spans, model: EncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.spans = SpanHead(model.d_model, stddev=model.initializer_stddev, rngs=rngs)

    def __call__(self, model: EncoderModel, batch: Batch, *, key: Key | None = None) -> Loss:
        """The loss of a batch of the layout "labelled"; rows without a label count 0.

        Raises:
          InputError: the features are those of another layout.
        """
        check_labelled(self.config, batch)
        logits = self.logits(model, batch, key=key)
        weights = (batch["labels"][:, 0] > 0).astype(jnp.float32)
        targets = jnp.maximum(batch["labels"] - 1, 0)
        losses, _ = cross_entropy(logits, targets)
        right = jnp.all(jnp.argmax(logits, axis=-1) == targets, axis=-1).astype(jnp.float32)
        weight = jnp.sum(weights)
        return Loss(
            terms={"cross_entropy": Term(jnp.sum(jnp.mean(losses, axis=-1) * weights), weight)},
            metrics={"accuracy": (jnp.sum(right * weights), weight)},
        )

    def logits(
        self, model: EncoderModel, batch: Batch, *, key: Key | None = None
    ) -> Float[Array, "B 2 S"]:
        """Float32 logits of an answer's first and of its last token; padding is neither.

        Args:
          model: the encoder.
          batch: of the layout "labelled"; its labels are not read.
          key: turns dropout on.
        """
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=key)
        both = jnp.stack(self.spans(hidden), axis=1)
        return jnp.where(batch["encoder_segment_ids"][:, None] > 0, both, NEVER)
