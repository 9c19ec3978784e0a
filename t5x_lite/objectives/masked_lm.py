"""Masked language modelling (Devlin et al. 2019, section 3.1; Liu et al. 2019 without pairs).

    objective = MaskedLM(mask_id=103)                                    # BERT, RoBERTa
    objective = MaskedLM(mask_id=103, whole_word=True)                   # whole-word BERT
    objective = MaskedLM(mask_id=4, whole_word=True, max_ngram=3)        # DeBERTa

The masks are drawn on the device at each step (`objectives.masking`), so that no text has the same
mask twice; without a key, in evaluation, they are the same for every batch of one shape. The head
reads the masked positions only, in a static number of places: the product with the vocabulary,
which is most of a small model's work, is 15 % of what it would be.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.data.layouts import Encoder, Layout
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.mlm import Mlm
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderConfig, EncoderModel
from t5x_lite.objectives import masking
from t5x_lite.objectives.base import Loss, Objective, Term, names_of
from t5x_lite.objectives.losses import correct, cross_entropy
from t5x_lite.types import Array, Batch, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """Which tokens are predicted, and what the model reads in their place.

    Attributes:
      mask_id: the vocabulary's [MASK].
      ratio: part of a row's tokens that is masked.
      whole_word: whether the pieces of a word are masked together.
      max_ngram: the longest run of words that is masked together; the probability of n is
        proportional to 1 / n.
      mask_fraction: share of the masked tokens that [MASK] replaces.
      random_fraction: those that a random token replaces; the rest stay as they are.
    """

    mask_id: int = 103
    ratio: float = 0.15
    whole_word: bool = False
    max_ngram: int = 1
    mask_fraction: float = 0.8
    random_fraction: float = 0.1

    def __post_init__(self) -> None:
        require_ratio("ratio", self.ratio)
        if self.max_ngram < 1:
            raise InputError(f"objective.max_ngram must be at least 1: got {self.max_ngram}")
        mask, random = self.mask_fraction, self.random_fraction
        if min(mask, random) < 0.0 or mask + random > 1.0:
            raise InputError(
                "objective.mask_fraction and objective.random_fraction must be at least 0, and "
                f"at most 1 together: got {mask} and {random}"
            )

    def masked_lm_flops(self, model: EncoderConfig, length: int) -> int:
        """FLOPs of an encoder and of its head at the masked positions of one row."""
        slots = masking.most(length, self.ratio)
        return model.text_flops(length, masked_lm=True) + model.masked_lm_head_flops(slots)

    def masks_with(self) -> int:
        """Its [MASK]."""
        return self.mask_id

    def check_vocabulary(self, model: ModelConfig) -> None:
        """Refuses a [MASK] that the model's vocabulary does not have."""
        if not 0 <= self.mask_id < model.vocab_size:
            raise InputError(
                f"objective.mask_id {self.mask_id} must be below model.vocab_size "
                f"{model.vocab_size}; give the [MASK] of the vocabulary"
            )

    def counted(self, batch: Batch, *, pad_id: int) -> Bool[Array, "B S"]:
        """The tokens of which `ratio` is masked: all that are not padding."""
        return real_tokens(batch, pad_id=pad_id)

    def draw(
        self, batch: Batch, *, vocab_size: int, pad_id: int, key: Key
    ) -> tuple[Int[Array, "B S"], masking.Slots]:
        """What the model reads, and the masked positions.

        Args:
          batch: of the layout Encoder().
          vocab_size: random tokens are below it.
          pad_id: the token of padding.
          key: of the masks.
        """
        tokens = batch["encoder_input_tokens"]
        real = self.counted(batch, pad_id=pad_id)
        unit_key, choice_key, fate_key = jax.random.split(key, 3)
        what = masking.units(
            batch["encoder_word_ids"],
            whole_word=self.whole_word,
            max_ngram=self.max_ngram,
            key=unit_key,
        )
        chosen = masking.choose(what, masking.counts(real, self.ratio), key=choice_key)
        inputs = masking.replaced(
            tokens,
            chosen,
            mask_id=self.mask_id,
            vocab_size=vocab_size,
            mask=self.mask_fraction,
            random=self.random_fraction,
            key=fate_key,
        )
        return inputs, masking.slots(chosen, masking.most(tokens.shape[1], self.ratio))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Masks, Objective):
    """Cross-entropy of the masked tokens; its fields are those of `Masks`."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (Encoder,)

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """FLOPs of the loss of one row: the encoder, and the head at the masked positions."""
        return self.masked_lm_flops(model, *shapes["encoder_input_tokens"])

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "MaskedLMLoss":
        """Makes the loss module, which has no parameters."""
        self.check_vocabulary(model)
        return MaskedLMLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """The head "mlm"."""
        return (Mlm(),)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class MaskedLMLoss(nnx.Module):
    """Sums over the masked tokens of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: MaskedLM):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of the layout Encoder(), packed or not.

        Raises:
          InputError: the features are those of another layout.
        """
        check_batch(self.config, batch)
        noise, dropout = masking.noise_and_dropout(key)
        inputs, slots = self.config.draw(
            batch, vocab_size=model.config.vocab_size, pad_id=model.config.pad_id, key=noise
        )
        hidden = model.masked_lm_states(inputs, **features(batch), key=dropout)
        logits = heads["mlm"](masking.at_slots(hidden, slots), model.tables()["token"])
        targets = masking.at_slots(batch["encoder_input_tokens"], slots)
        total, correct, weight = sums(logits, targets, slots.used)
        return Loss(
            terms={"cross_entropy": Term(total, weight)},
            metrics={"token_accuracy": (correct, weight), "cross_entropy": (total, weight)},
        )


def sums(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], weights: Float[Array, "*batch"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Cross-entropy, targets that are the likeliest, and weights, summed."""
    losses, _ = cross_entropy(logits, targets)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    right = correct(logits, target_logits)
    return jnp.sum(losses * weights), jnp.sum(right * weights), jnp.sum(weights)


def features(batch: Batch) -> Mapping[str, Any]:
    """What an encoder is given besides the tokens, as far as the batch has it."""
    names = ("segment_ids", "positions", "token_types")
    return {name: batch[f"encoder_{name}"] for name in names if f"encoder_{name}" in batch}


def real_tokens(batch: Batch, *, pad_id: int) -> Bool[Array, "B S"]:
    """What is not padding."""
    if "encoder_segment_ids" in batch:
        return batch["encoder_segment_ids"] > 0
    return batch["encoder_input_tokens"] != pad_id


def check_batch(objective: Objective, batch: Batch) -> None:
    """Refuses a batch that does not say where its words are."""
    missing = {"encoder_input_tokens", "encoder_word_ids"} - set(batch)
    if missing:
        raise InputError(
            f"objective {type(objective).__name__} reads encoder_input_tokens and "
            f"encoder_word_ids, but the batch has no {', '.join(sorted(missing))}: data.layout "
            f"must be {names_of(objective.layouts)}"
        )


def require_encoder(objective: Objective, model: nnx.Module) -> None:
    """Refuses a model that is no encoder."""
    if not isinstance(model, EncoderModel):
        raise InputError(
            f"objective {type(objective).__name__} trains an encoder, but the model is a "
            f"{type(model).__name__}: take a BertConfig or a DebertaConfig"
        )


def require_ratio(name: str, value: float) -> None:
    """Refuses a ratio that is not between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise InputError(f"objective.{name} must be above 0 and below 1: got {value}")
