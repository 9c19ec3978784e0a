"""Answers that are a span of the text: where one begins and where it ends (SQuAD 1.1 and 2.0).

Two numbers for each position, each a distribution over the row's tokens (Devlin et al. 2019,
section 4.2; transformers' *ForQuestionAnswering); the loss is the mean of both cross-entropies. No
answer is a span, too, that of [CLS] (section 4.3). Rows are those of data.layout Windows(), which
divides long contexts; or of Labelled(), which cuts them: of a row whose answer was cut off there is
no loss.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.data.layouts import Labelled, Layout, Windows
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.span import Span, SpanHead
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.classify import check_labelled
from t5x_lite.objectives.losses import correct, cross_entropy
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.types import Array, Batch, Key

_NEVER = -1e9
"""The logit of padding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans(Objective):
    """Cross-entropy of an answer's first and last token.

    Attributes:
      longest: tokens of an answer at most, where one is looked for.
    """

    longest: int = 30

    layouts: ClassVar[tuple[type[Layout], ...]] = (Windows, Labelled)

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise InputError(f"objective.longest must be at least 1: got {self.longest}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "SpansLoss":
        """Makes the loss module, which has no parameters."""
        del model, rngs
        return SpansLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """The head "span"."""
        return (Span(longest=self.longest),)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class SpansLoss(nnx.Module):
    """Sums over the labelled rows of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: Spans):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of Windows() or Labelled(); rows without a label count 0.

        Raises:
          InputError: the features are those of another layout.
        """
        check_labelled(self.config, batch)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=key)
        return loss_of_spans(heads["span"], hidden, batch)


def loss_of_spans(head: SpanHead, hidden: Float[Array, "B S D"], batch: Batch) -> Loss:
    """Cross-entropy of both ends, and the share of answers that are right.

    Args:
      head: gives the logits of all positions.
      hidden: the encoder's states.
      batch: with "labels", the ends + 1; rows whose first one is 0 count 0.
    """
    logits = span_logits(head, hidden, batch["encoder_segment_ids"])
    weights = (batch["labels"][:, 0] > 0).astype(jnp.float32)
    targets = jnp.maximum(batch["labels"] - 1, 0)
    losses, _ = cross_entropy(logits, targets)
    ends = correct(logits, jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0])
    right = jnp.prod(ends, axis=-1)
    weight = jnp.sum(weights)
    return Loss(
        terms={"cross_entropy": Term(jnp.sum(jnp.mean(losses, axis=-1) * weights), weight)},
        metrics={"accuracy": (jnp.sum(right * weights), weight)},
    )


def span_logits(
    head: SpanHead, hidden: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
) -> Float[Array, "B 2 S"]:
    """Float32 logits of an answer's first and of its last token; padding is neither.

    Args:
      head: gives those of all positions.
      hidden: the encoder's states.
      segment_ids: 0 is padding.
    """
    both = jnp.stack(head(hidden), axis=1)
    return jnp.where(segment_ids[:, None] > 0, both, _NEVER)
