"""What `Seq2Seq` and `LanguageModel` share: the likelihood of `decoder_target_tokens`.

An objective is a list of the features that its model reads: the features' names are the arguments'
names, so that a model, an objective and a layout that do not go together are told apart by them.
"""

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.errors import InputError
from t5x_lite.models.base import ModelConfig
from t5x_lite.objectives.base import Loss, Objective, Term, names_of
from t5x_lite.objectives.chunked import TokenLosses, token_losses
from t5x_lite.objectives.losses import correct, cross_entropy
from t5x_lite.types import Array, Batch, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Likelihood(Objective):
    """Cross-entropy of the targets: base of the objectives that differ in what the model reads.

    Attributes:
      z_loss: coefficient of log(Z)^2 (t5x: 1e-4).
      label_smoothing: probability given to the other tokens together.
      logits_chunk: target positions of a row whose logits are made at a time; None makes all at
        once, which is faster, and [B, T, V] float32 numbers.
      reads: features that the model is given, by name.
      reads_if_there: features that it is given too where the batch has them.
    """

    z_loss: float = 1e-4
    label_smoothing: float = 0.0
    logits_chunk: int | None = None

    reads: ClassVar[tuple[str, ...]] = ()
    reads_if_there: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.z_loss < 0.0:
            raise InputError(f"objective.z_loss must not be negative: got {self.z_loss}")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise InputError(
                f"objective.label_smoothing must be in [0, 1): got {self.label_smoothing}"
            )
        if self.logits_chunk is not None and self.logits_chunk < 1:
            raise InputError(
                f"objective.logits_chunk must be at least 1, or None: got {self.logits_chunk}"
            )

    def smaller_logits(self) -> str:
        """A chunk of positions, where all logits are made at once."""
        return "--objective.logits-chunk 16" if self.logits_chunk is None else ""

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "LikelihoodLoss":
        """Makes the loss module; it has no parameters."""
        del model, rngs
        return LikelihoodLoss(self)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses a model whose arguments are not the features that this objective gives."""
        taken = inspect.signature(type(model).__call__).parameters
        needed = {
            name
            for name, parameter in taken.items()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is parameter.empty
        } - {"self"}
        if needed != set(self.reads) or not set(self.reads_if_there) <= set(taken):
            raise InputError(
                f"objective {type(self).__name__} gives its model {_names(self.reads)}, but the "
                f"model {type(model).__name__} takes {_names(needed)}: {REMEDY}"
            )

    def check_batch(self, batch: Iterable[str]) -> None:
        """Refuses a batch that lacks a feature, or holds tokens that the model would not see."""
        missing = {*self.reads, "decoder_target_tokens", "decoder_loss_weights"} - set(batch)
        unread = {name for name in batch if name.endswith("_input_tokens")} - set(self.reads)
        if missing or unread:
            fault = f"has no {_names(missing)}" if missing else f"has {_names(unread)} besides"
            raise InputError(
                f"objective {type(self).__name__} reads {_names(self.reads)}, but the batch "
                f"{fault}: data.layout must be {names_of(self.layouts)}"
            )


REMEDY = "an encoder-decoder takes Seq2Seq, a decoder-only model LanguageModel"


def _names(features: Iterable[str]) -> str:
    return ", ".join(sorted(features))


class LikelihoodLoss(nnx.Module):
    """Sums over the target tokens of a batch."""

    def __init__(self, config: Likelihood):
        self.config = config

    def __call__(self, model: Any, heads: Any, batch: Batch, *, key: Key | None = None) -> Loss:
        """The loss of a batch of seqio's features, packed or not.

        Raises:
          InputError: the features are those of another layout.
        """
        config = self.config
        config.check_batch(batch)
        given = {name: batch[name] for name in config.reads}
        given |= {name: batch[name] for name in config.reads_if_there if name in batch}
        z_loss, smoothing = config.z_loss, config.label_smoothing
        targets = batch["decoder_target_tokens"]
        if config.logits_chunk is None:
            logits = model(**given, key=key)
            losses = _of_logits(logits, targets, z_loss=z_loss, label_smoothing=smoothing)
        else:
            hidden = model.hidden(**given, key=key)
            losses = token_losses(
                hidden,
                model.output(),
                targets,
                chunk=config.logits_chunk,
                z_loss=z_loss,
                label_smoothing=smoothing,
            )
        return _sums(losses, batch["decoder_loss_weights"].astype(jnp.float32))


def _of_logits(
    logits: Float[Array, "B T V"], targets: Int[Array, "B T"], **options: float
) -> TokenLosses:
    loss, z_loss = cross_entropy(logits, targets, **options)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return TokenLosses(loss, z_loss, correct(logits, target_logits))


def _sums(losses: TokenLosses, weights: Float[Array, "B T"]) -> Loss:
    """Loss and metrics, as weighted sums."""
    loss, z_loss, correct = losses
    weight = jnp.sum(weights)
    return Loss(
        terms={"cross_entropy": Term(jnp.sum(loss * weights), weight)},
        metrics={
            "token_accuracy": (jnp.sum(correct * weights), weight),
            "z_loss": (jnp.sum(z_loss * weights), weight),
            "cross_entropy": (jnp.sum((loss - z_loss) * weights), weight),
        },
    )
