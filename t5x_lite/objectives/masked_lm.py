"""Masked language modeling: selection of the predicted tokens, and the loss.

    objective = MaskedLM(mask_id=103)                                    # BERT, RoBERTa
    objective = MaskedLM(mask_id=103, whole_word=True)                   # whole-word BERT
    objective = MaskedLM(mask_id=4, whole_word=True, max_ngram=3)        # DeBERTa

Masks are sampled on the device at each step, so a text gets another mask each time. Without a key,
as in evaluation, masks are the same for all batches of the same shape. The head reads only the
masked positions, padded to a static number. The head's product with the vocabulary, which is most
of a small model's work, is thereby reduced to 15 %.

    unit_ids = units(word_ids, whole_word=True, max_ngram=1, key=...)  # masked together
    chosen = choose(unit_ids, counts(real, 0.15), key=...)             # Bool[B, S]
    inputs = replaced(tokens, chosen, mask_id=103, vocab_size=30522, key=...)

For the words  [CLS] un ##aff ##able men [SEP]  the word ids are 0 1 1 1 2 0, and so are the units;
with whole_word=False the units are 0 1 2 3 4 0. Special tokens and padding belong to no unit, and
are never masked.

With single tokens, the number of masked tokens is exact; with longer units, it is an upper bound.
Units are selected in random order, and a unit that exceeds the rest of the row's count is skipped
(google-research/bert create_pretraining_data.py). ELECTRA samples as many positions with
replacement, so some count twice; here they are all different. DeBERTa selects one n-gram in each
window of six tokens, which leaves the end of a long row unmasked; here all words of a row are
equally likely. All shapes are static.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, In, Share, check_bounds
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Encoder, Layout
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderConfig, EncoderModel
from t5x_lite.models.heads import Head, HeadModules, Mlm
from t5x_lite.objectives.base import Loss, LossModule, Objective, Term, names_of
from t5x_lite.objectives.likelihood import correct, cross_entropy

_ROUNDS = 3
"""Number of selection rounds; in each round, units that fit are selected until one is too large."""


class Slots(NamedTuple):
    """Selected positions of each row in ascending order, padded to equal length.

    Attributes:
      positions: int32 positions; 0 for padding.
      used: float32, 1 for selected positions and 0 for padding.
    """

    positions: Int[Array, "B _"]
    used: Float[Array, "B _"]


def counts(real: Bool[Array, "B S"], ratio: float) -> Int[Array, " B"]:
    """Return the number of tokens to mask in each row: max(1, round(ratio * tokens)).

    Args:
      real: True for tokens that are not padding; special tokens count.
      ratio: fraction of masked tokens, in (0, 1).
    """
    tokens = jnp.sum(real, axis=1)
    some = jnp.maximum(1, jnp.round(ratio * tokens.astype(jnp.float32)).astype(jnp.int32))
    return jnp.where(tokens > 0, some, 0)


def most(length: int, ratio: float) -> int:
    """Return the maximum number of masked tokens in a row of `length` tokens."""
    return max(1, int(np.round(np.float32(ratio) * np.float32(length))))


def units(
    word_ids: Int[Array, "B S"], *, whole_word: bool, max_ngram: int = 1, key: Key
) -> Int[Array, "B S"]:
    """Return unit numbers: tokens of a unit are masked together; unit 0 is never masked.

    Args:
      word_ids: word id of each token, equal for the adjacent tokens of a word; 0 for special tokens
        and padding.
      whole_word: True to mask the tokens of a word together.
      max_ngram: maximum number of consecutive words (or tokens) that are masked together. The
        probability of n is proportional to 1 / n (DeBERTa, SpanBERT's variant of BERT). N-grams do
        not cross special tokens.
      key: random key of the lengths of n-grams.
    """
    before = jnp.pad(word_ids, ((0, 0), (1, 0)))[:, :-1]
    maskable = word_ids > 0
    begins = maskable & ((word_ids != before) | (not whole_word))
    if max_ngram > 1:
        batch, length = word_ids.shape
        chances = -jnp.log(jnp.arange(1, max_ngram + 1, dtype=jnp.float32))
        sizes = 1 + jax.random.categorical(key, chances, shape=(batch, length))
        lasts = jnp.cumsum(sizes, axis=1)
        # ended[w]: word number w is the last of its run.
        ended = jax.vmap(lambda last: jnp.zeros(length + 1, bool).at[last].set(True, mode="drop"))(
            lasts
        )
        number = jnp.cumsum(begins, axis=1)
        after_a_run = jnp.take_along_axis(ended, jnp.maximum(number - 1, 0), axis=1)
        begins &= after_a_run | (before == 0)
    return jnp.where(maskable, jnp.cumsum(begins, axis=1), 0).astype(jnp.int32)


def choose(
    units: Int[Array, "*batch S"], counts: Int[Array, "*batch"], *, key: Key
) -> Bool[Array, "*batch S"]:
    """Select units of tokens at random, up to a maximum number of tokens per row.

    Args:
      units: unit of each token, numbered from 1 to at most S in each row; 0 is not selected.
      counts: maximum number of tokens to select in each row.
      key: random key of the order in which units are selected.
    """
    length = units.shape[-1]
    rows = units.reshape(-1, length)
    left = counts.reshape(-1, 1)
    sizes = jax.vmap(lambda row: jnp.zeros(length + 1, jnp.int32).at[row].add(1))(rows)
    sizes = sizes.at[:, 0].set(0)
    order = jnp.argsort(jax.random.uniform(key, sizes.shape), axis=1)
    sizes = jnp.take_along_axis(sizes, order, axis=1)
    taken = jnp.zeros(sizes.shape, bool)
    for _ in range(_ROUNDS):
        fits = ~taken & (sizes > 0) & (sizes <= left)
        new = fits & (jnp.cumsum(jnp.where(fits, sizes, 0), axis=1) <= left)
        left = left - jnp.sum(jnp.where(new, sizes, 0), axis=1, keepdims=True)
        taken |= new
    back = jax.vmap(lambda to, row: jnp.zeros_like(row).at[to].set(row))(order, taken)
    return jnp.take_along_axis(back, rows, axis=1).reshape(units.shape)


def replaced(
    tokens: Int[Array, "B S"],
    chosen: Bool[Array, "B S"],
    *,
    mask_id: int,
    vocab_size: int,
    mask: float = 0.8,
    random: float = 0.1,
    key: Key,
) -> Int[Array, "B S"]:
    """Return the model's input, in which chosen tokens are masked, random or unchanged.

    Args:
      tokens: original tokens.
      chosen: True for chosen tokens, from `choose`.
      mask_id: token id of [MASK].
      vocab_size: size of the vocabulary, from which random tokens are sampled uniformly.
      mask: probability of [MASK].
      random: probability of a random token; other chosen tokens are unchanged.
      key: random key of the replacements.
    """
    fate_key, token_key = jax.random.split(key)
    fate = jax.random.uniform(fate_key, tokens.shape)
    others = jax.random.randint(token_key, tokens.shape, 0, vocab_size, tokens.dtype)
    new = jnp.where(fate < mask, mask_id, jnp.where(fate < mask + random, others, tokens))
    return jnp.where(chosen, new.astype(tokens.dtype), tokens)


def slots(chosen: Bool[Array, "B S"], num: int) -> Slots:
    """Return the chosen positions of each row in ascending order.

    Args:
      chosen: True for chosen positions; positions after the first `num` are omitted.
      num: number of positions per row after padding, up to S.
    """
    length = chosen.shape[1]
    from_the_end = jnp.where(chosen, length - jnp.arange(length), 0)
    found, _ = jax.lax.top_k(from_the_end, num)
    used = found > 0
    positions = jnp.where(used, length - found, 0).astype(jnp.int32)
    return Slots(positions, used.astype(jnp.float32))


def at_slots(values: Array, slots: Slots) -> Array:
    """Gather the values [B, S, ...] at the selected positions: [B, num, ...]."""
    positions = slots.positions.reshape(*slots.positions.shape, *[1] * (values.ndim - 2))
    return jnp.take_along_axis(values, positions, axis=1)


def put_at_slots(
    tokens: Int[Array, "B S"], slots: Slots, new: Int[Array, "B _"]
) -> Int[Array, "B S"]:
    """Replace the tokens at the selected positions by new tokens."""
    nowhere = tokens.shape[1]
    positions = jnp.where(slots.used > 0, slots.positions, nowhere)

    def put(row: Array, where: Array, what: Array) -> Array:
        return row.at[where].set(what.astype(row.dtype), mode="drop")

    return jax.vmap(put)(tokens, positions, new)


def noise_and_dropout(key: Key | None) -> tuple[Key, Key | None]:
    """Split a random key into keys for masks and dropout; None gives fixed masks, no dropout."""
    if key is None:
        return jax.random.key(0), None
    noise, dropout = jax.random.split(key)
    return noise, dropout


Ratio = Annotated[float, In(0, 1, "()")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masks:
    """Settings of masked language modeling: selection of tokens, and their replacement.

    Attributes:
      mask_id: token id of [MASK] in the vocabulary.
      ratio: fraction of a row's tokens that are masked.
      whole_word: True to mask the tokens of a word together.
      max_ngram: maximum number of consecutive words that are masked together; the probability of n
        is proportional to 1 / n.
      mask_fraction: fraction of the masked tokens that [MASK] replaces.
      random_fraction: fraction of the masked tokens that a random token replaces; other masked
        tokens are unchanged.
    """

    mask_id: int = 103
    ratio: Ratio = 0.15
    whole_word: bool = False
    max_ngram: Count = 1
    mask_fraction: Share = 0.8
    random_fraction: Share = 0.1

    of_encoder: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bounds(self, prefix="objective.")
        if self.mask_fraction + self.random_fraction > 1.0:
            raise InputError(
                "objective.mask_fraction and objective.random_fraction must be at most 1 together: "
                f"got {self.mask_fraction} and {self.random_fraction}"
            )

    def masked_lm_flops(self, model: EncoderConfig, length: int) -> int:
        """Return the FLOPs of an encoder and its masked-LM head for one row."""
        slots = most(length, self.ratio)
        return model.text_flops(length, masked_lm=True) + model.masked_lm_head_flops(slots)

    def masks_with(self) -> int:
        return self.mask_id

    def check_vocabulary(self, model: ModelConfig) -> None:
        """Raise InputError if the id of [MASK] is outside the model's vocabulary."""
        if not 0 <= self.mask_id < model.vocab_size:
            raise InputError(
                f"objective.mask_id {self.mask_id} must be below model.vocab_size "
                f"{model.vocab_size}; set objective.mask_id to the id of [MASK] in the vocabulary"
            )

    def counted(self, batch: Batch, *, pad_id: int) -> Bool[Array, "B S"]:
        """Return True for the tokens that `ratio` counts: all tokens except padding."""
        return real_tokens(batch, pad_id=pad_id)

    def draw(
        self, batch: Batch, *, vocab_size: int, pad_id: int, key: Key
    ) -> tuple[Int[Array, "B S"], Slots]:
        """Sample masks; return the model's input and the masked positions.

        Args:
          batch: batch of tokenized texts.
          vocab_size: size of the vocabulary, from which random tokens are sampled.
          pad_id: token id of padding.
          key: random key of the masks.
        """
        tokens = batch["encoder_input_tokens"]
        real = self.counted(batch, pad_id=pad_id)
        unit_key, choice_key, fate_key = jax.random.split(key, 3)
        what = units(
            batch["encoder_word_ids"],
            whole_word=self.whole_word,
            max_ngram=self.max_ngram,
            key=unit_key,
        )
        chosen = choose(what, counts(real, self.ratio), key=choice_key)
        inputs = replaced(
            tokens,
            chosen,
            mask_id=self.mask_id,
            vocab_size=vocab_size,
            mask=self.mask_fraction,
            random=self.random_fraction,
            key=fate_key,
        )
        return inputs, slots(chosen, most(tokens.shape[1], self.ratio))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Masks, Objective):
    """Masked language modeling: cross-entropy of masked tokens."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (Encoder,)

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """Return the FLOPs for one row: the encoder, and the head at the masked positions."""
        return self.masked_lm_flops(model, *shapes["encoder_input_tokens"])

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "MaskedLMLoss":
        self.check_vocabulary(model)
        return MaskedLMLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        return (Mlm(),)


class MaskedLMLoss(LossModule):
    """Loss module that computes the cross-entropy of a batch's masked tokens."""

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        check_batch(self.config, batch)
        noise, dropout = noise_and_dropout(key)
        inputs, slots = self.config.draw(
            batch, vocab_size=model.config.vocab_size, pad_id=model.config.pad_id, key=noise
        )
        hidden = model.masked_lm_states(inputs, **features(batch), key=dropout)
        logits = heads["mlm"](at_slots(hidden, slots), model.tables()["token"])
        targets = at_slots(batch["encoder_input_tokens"], slots)
        total, correct, weight = sums(logits, targets, slots.used)
        return Loss(
            terms={"cross_entropy": Term(total, weight)},
            metrics={"token_accuracy": (correct, weight), "cross_entropy": (total, weight)},
        )


def sums(
    logits: Float[Array, "*batch V"], targets: Int[Array, "*batch"], weights: Float[Array, "*batch"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Return the weighted sums of cross-entropy and accuracy, and the sum of the weights."""
    losses, _ = cross_entropy(logits, targets)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    right = correct(logits, target_logits)
    return jnp.sum(losses * weights), jnp.sum(right * weights), jnp.sum(weights)


def features(batch: Batch) -> Mapping[str, Any]:
    """Return an encoder's optional inputs (segment ids, positions, token types) in a batch."""
    names = ("segment_ids", "positions", "token_types")
    return {name: batch[f"encoder_{name}"] for name in names if f"encoder_{name}" in batch}


def real_tokens(batch: Batch, *, pad_id: int) -> Bool[Array, "B S"]:
    """Return True for tokens that are not padding."""
    if "encoder_segment_ids" in batch:
        return batch["encoder_segment_ids"] > 0
    return batch["encoder_input_tokens"] != pad_id


def check_batch(objective: Objective, batch: Batch) -> None:
    """Raise InputError for a batch without tokens or word ids."""
    missing = {"encoder_input_tokens", "encoder_word_ids"} - set(batch)
    if missing:
        raise InputError(
            f"objective {type(objective).__name__} reads encoder_input_tokens and "
            f"encoder_word_ids, but the batch has no {', '.join(sorted(missing))}: data.layout "
            f"must be {names_of(objective.layouts)}"
        )
