"""Text to text: the likelihood of the targets given the inputs (Raffel et al. 2020).

Span corruption and every fine-tuning task are this objective; what differs is the data.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx

from t5x_lite.models.base import ModelConfig
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.losses import cross_entropy
from t5x_lite.types import Batch, InputError, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2Seq(Objective):
    """Cross-entropy of the targets.

    Attributes:
      z_loss: coefficient of log(Z)^2 (t5x: 1e-4).
      label_smoothing: probability given to the other tokens together.
    """

    z_loss: float = 1e-4
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.z_loss < 0.0:
            raise InputError(f"objective.z_loss must not be negative: got {self.z_loss}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise InputError(
                f"objective.label_smoothing must be in [0, 1): got {self.label_smoothing}"
            )

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "Seq2SeqLoss":
        """Makes the loss module; it has no parameters."""
        del model, rngs
        return Seq2SeqLoss(self)


class Seq2SeqLoss(nnx.Module):
    """Sums over the target tokens of a batch."""

    def __init__(self, config: Seq2Seq):
        self.config = config

    def __call__(self, model: Any, batch: Batch, *, key: Key | None = None) -> Loss:
        """The loss of a batch with seqio's encoder-decoder features, packed or not."""
        logits = model(
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            key=key,
        )
        targets = batch["decoder_target_tokens"]
        weights = batch["decoder_loss_weights"].astype(jnp.float32)
        loss, z_loss = cross_entropy(
            logits,
            targets,
            z_loss=self.config.z_loss,
            label_smoothing=self.config.label_smoothing,
        )
        weight = jnp.sum(weights)
        # The maximum is there already for the loss; argmax is another, slow pass over [B, T, V].
        target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        correct = (target_logits >= jnp.max(logits, axis=-1)).astype(jnp.float32)
        return Loss(
            terms={"cross_entropy": Term(jnp.sum(loss * weights), weight)},
            metrics={
                "token_accuracy": (jnp.sum(correct * weights), weight),
                "z_loss": (jnp.sum(z_loss * weights), weight),
                "cross_entropy": (jnp.sum((loss - z_loss) * weights), weight),
            },
        )
