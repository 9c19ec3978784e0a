"""The config of decoding, sampling, the largest of many logits, and constraints of outputs.

Configuration of text generation: greedy decoding, sampling, or beam search.

Decoding()                                            greedy
Decoding(temperature=0.8, top_p=0.95, num_return=5)   five samples
Decoding(num_beams=4)                                 beam search as in T5X
Decoding(num_beams=4, length_rule="hf", num_return=4) beam search as in transformers, best four

Sampling from logits, top-k of large vocabularies, and constraints of generated outputs.

Sampling applies temperature, top-k, top-p, min-p in this order, each to the remaining tokens.

The definitions are those in transformers (generation/logits_process.py). Each request has its own
random key, and the step number is folded into the key. So the samples of a request do not depend on
the rest of the batch.

The k largest of many logits are found exactly, in two stages.

The k largest values of a row are in the k blocks with the largest maxima. One pass over the
vocabulary computes the block maxima, and the second stage only reads k blocks. XLA's own argmax and
top-k over 32128 logits take 15 and 6 times as long on CPU. Equal values come in the order of their
ids, as with `jnp.argmax` and `jax.lax.top_k`.

Constraints are pure functions that set logits to minus infinity.

Both constraints are as in transformers (MinNewTokensLengthLogitsProcessor,
NoRepeatNGramLogitsProcessor). N-grams are counted in the start token 0, the prompt and new tokens,
but not in the input. For an encoder-decoder, transformers does the same. For a language model,
transformers also counts the n-grams of the input. Here, an output may repeat its input with every
model, so that a request has the same result whether its text is an input or a prompt.

    no_repeat_ngram(logits, [[0, 5, 6, 5, .]], length=4, size=2)    6 followed 5: 6 is forbidden
"""

import dataclasses
import math
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Key, UInt32

from t5x_lite.core.devices import LARGEST
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import Count, In, Whole, check_bounds
from t5x_lite.core.trees import Array

LengthRule = Literal["t5x", "hf"]
EarlyStopping = bool | Literal["never"]

MIN_TEMPERATURE = 1e-6
"""Minimum temperature; with a lower temperature, divided logits may exceed float32."""
NUM_SEEDS = 2**32
"""Number of valid random seeds, because JAX keys keep 32 bits of a seed."""

DEFAULT_PENALTY: dict[LengthRule, float] = {"t5x": 0.6, "hf": 1.0}


_WHOLE = ("max_decode_length", "num_beams", "num_return", "top_k", "min_length",
          "no_repeat_ngram", "eos_id")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Configuration of text generation; all lengths exclude the prompt.

    Attributes:
      max_decode_length: maximum number of new tokens, including EOS.
      num_beams: number of beams; 1 for greedy decoding or sampling.
      length_rule: length normalization of beam search, "t5x" or "hf" (see
        `t5x_lite.decoding.search`).
      length_penalty: exponent of the length normalization; None is 0.6 for "t5x" and 1.0 for "hf".
      early_stopping: stopping rule of beam search with length_rule "hf": True, False or "never", as
        in transformers.
      num_return: number of outputs for each input, best first.
      temperature: sampling temperature, at least 1e-6; 0 for greedy decoding.
      top_k: number of likeliest tokens to sample from; 0 for all tokens.
      top_p: total probability of the likeliest tokens to sample from (nucleus sampling).
      min_p: minimum probability of sampled tokens, as a fraction of the likeliest token's
        probability.
      seed: random seed for sampling, in [0, 2**32).
      min_length: minimum number of new tokens, without EOS.
      no_repeat_ngram: size n of n-grams that must not repeat within an output and its prompt; 0
        disables the constraint. N-grams of the input are not counted.
      eos_id: id of the token that ends an output.
      max_length: former name of max_decode_length; rejected with an error.
    """

    max_decode_length: Count = 64
    num_beams: Count = 1
    length_rule: LengthRule = "t5x"
    length_penalty: float | None = None
    early_stopping: EarlyStopping = False
    num_return: Count = 1
    temperature: float = 0.0
    top_k: Whole = 0
    top_p: Annotated[float, In(0, 1, "(]")] = 1.0
    min_p: Annotated[float, In(0, 1, "[]")] = 0.0
    seed: int = 0
    min_length: Whole = 0
    no_repeat_ngram: Whole = 0
    eos_id: Whole = 1
    max_length: dataclasses.InitVar[int | None] = None

    def __post_init__(self, max_length: int | None) -> None:
        if max_length is not None:
            raise InputError("max_length has been renamed; use max_decode_length")
        check_bounds(self)
        for name in _WHOLE:
            if getattr(self, name) > LARGEST:
                raise InputError(
                    f"{name} must be at most {LARGEST:,}, got {shown(getattr(self, name))}"
                )
        if not 0 <= self.seed < NUM_SEEDS:
            raise InputError(f"seed must be from 0 to {NUM_SEEDS - 1}, got {self.seed}")
        sampled = self.temperature != 0.0
        if sampled and not MIN_TEMPERATURE <= self.temperature < math.inf:
            raise InputError(
                f"temperature must be 0, or finite and at least {MIN_TEMPERATURE:g}, got "
                f"{self.temperature}"
            )
        if not math.isfinite(self.penalty):
            raise InputError(f"length_penalty must be finite, got {self.length_penalty}")
        if self.min_length > self.max_decode_length:
            raise InputError(
                f"min_length {self.min_length} is above max_decode_length "
                f"{self.max_decode_length}; lower min_length or raise max_decode_length"
            )
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        samples = self.temperature > 0.0
        if samples and self.num_beams > 1:
            raise InputError(
                f"beam search does not support sampling, got num_beams {self.num_beams} and "
                f"temperature {self.temperature}; set num_beams to 1 or temperature to 0"
            )
        if not samples and (self.top_k, self.top_p, self.min_p) != (0, 1.0, 0.0):
            raise InputError(
                "top_k, top_p and min_p need sampling; set temperature above 0 (1 keeps the "
                "model's probabilities)"
            )
        if not samples and self.num_return > self.num_beams:
            raise InputError(
                f"num_return {self.num_return} is above num_beams {self.num_beams}; raise "
                "num_beams, or set temperature above 0 to sample"
            )
        if self.early_stopping is not False and self.length_rule != "hf":
            raise InputError(
                'early_stopping requires length_rule "hf"; set length_rule to "hf", or unset '
                "early_stopping"
            )

    @property
    def penalty(self) -> float:
        """Exponent of the length normalization; if unset, the default of the length rule."""
        given = self.length_penalty
        return DEFAULT_PENALTY[self.length_rule] if given is None else given


BLOCK = 128


def argmax(logits: Float[Array, "R V"]) -> Int[Array, " R"]:
    """Return the token id of the largest logit in each row; the lowest id if several are equal."""
    if logits.shape[-1] % BLOCK:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    blocks = _blocks(logits)
    block = jnp.argmax(jnp.max(blocks, axis=1), axis=0)
    within = jnp.argmax(jnp.take_along_axis(blocks, block[None, None], axis=0)[0], axis=0)
    return (block * BLOCK + within).astype(jnp.int32)


def top_k(logits: Float[Array, "R V"], k: int) -> tuple[Float[Array, "R k"], Int[Array, "R k"]]:
    """Return the k largest logits of each row and their token ids, largest first.

    Args:
      logits: logits without NaN.
      k: number of logits to return, at most V.
    """
    num_rows, size = logits.shape
    if size % BLOCK or size // BLOCK <= 2 * k:
        values, ids = jax.lax.top_k(logits, k)
        return values, ids
    blocks = _blocks(logits)
    _, best = jax.lax.top_k(jnp.max(blocks, axis=1).T, k)
    best = jnp.sort(best, axis=-1)  # for the order of equals
    kept = jnp.take_along_axis(blocks, best.T[:, None], axis=0)
    kept = kept.reshape(-1, num_rows).T
    values, index = jax.lax.top_k(kept, k)
    ids = jnp.take_along_axis(best, index // BLOCK, axis=1) * BLOCK + index % BLOCK
    return values, ids


def _blocks(logits: Float[Array, "R V"]) -> Float[Array, "N 128 R"]:
    """Reshape logits to blocks of 128 tokens, with the rows of the batch on the last axis."""
    return logits.T.reshape(-1, BLOCK, logits.shape[0])


def keep_top_k(logits: Float[Array, "R V"], k: int) -> Float[Array, "R V"]:
    """Set all logits below the k-th largest to minus infinity."""
    values, _ = top_k(logits, min(k, logits.shape[-1]))
    # The last of the values, as a minimum: XLA makes a whole sort of a top-k that is sliced.
    bound = jnp.min(values, axis=-1, keepdims=True)
    return jnp.where(logits < bound, -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "R V"], p: float) -> Float[Array, "R V"]:
    """Keep the likeliest tokens with total probability p (nucleus sampling); mask all others.

    A token is masked if it and all less likely tokens have a total probability of at most 1 - p
    (Holtzman et al. 2019); equally likely tokens are kept or masked together. The lowest kept logit
    is found by bisection over the 32 bits of a float, as in t5x's binary_search.py; sorting 32128
    logits takes 25 times as long.
    """
    probabilities = jax.nn.softmax(logits, axis=-1)
    bits = jax.lax.bitcast_convert_type(logits.astype(jnp.float32), jnp.int32)
    order = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers in the order of the floats

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)
        below = jnp.sum(jnp.where(order <= middle[:, None], probabilities, 0.0), axis=-1)
        enough = below > 1.0 - p
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    # The largest is never looked at: it stays whatever p is.
    largest = jnp.max(order, axis=-1)
    lowest = jnp.full_like(largest, jnp.iinfo(jnp.int32).min)
    _, bound = jax.lax.fori_loop(0, 32, halve, (lowest, largest))
    return jnp.where(order < bound[:, None], -jnp.inf, logits)


def keep_min_p(logits: Float[Array, "R V"], p: float) -> Float[Array, "R V"]:
    """Keep tokens with at least p times the probability of the likeliest token; mask all others."""
    bound = jnp.max(logits, axis=-1, keepdims=True) + jnp.log(jnp.float32(p))
    return jnp.where(logits < bound, -jnp.inf, logits)


def warped(logits: Float[Array, "R V"], decoding: Decoding) -> Float[Array, "R V"]:
    """Return the logits to sample from, after temperature, top-k, top-p and min-p."""
    logits = logits / decoding.temperature
    if decoding.top_k:
        logits = keep_top_k(logits, decoding.top_k)
    if decoding.top_p < 1.0:
        logits = keep_top_p(logits, decoding.top_p)
    if decoding.min_p:
        logits = keep_min_p(logits, decoding.min_p)
    return logits


def request_keys(seed: int | UInt32[Array, " B"], numbers: UInt32[Array, " B"]) -> Key[Array, " B"]:
    """Return a random key for each request.

    Args:
      seed: random seed, one for all requests or one for each, in [0, 2**32).
      numbers: index of each request among the requests with the same seed.
    """
    seeds = jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), numbers.shape)
    return jax.vmap(lambda seed, number: jax.random.fold_in(jax.random.key(seed), number))(
        seeds, numbers
    )


def sample_keys(keys: Key[Array, " B"], num: int) -> Key[Array, " R"]:
    """Return `num` random keys for each request, in one array."""
    folded = jax.vmap(
        lambda key: jax.vmap(lambda sample: jax.random.fold_in(key, sample))(jnp.arange(num))
    )(keys)
    return folded.reshape(-1)


def draw(
    keys: Key[Array, " R"], logits: Float[Array, "R V"], index: Int[Array, ""]
) -> Int[Array, " R"]:
    """Sample one token for each row from softmax(logits).

    One uniform random number per row selects a block of tokens, and then a token of the block, by
    cumulative probability. Sampling a Gumbel variate for each of 32128 tokens takes 30 times as
    long on CPU.

    Args:
      keys: random key of each row.
      logits: logits; minus infinity is never sampled.
      index: decoding step, which is folded into the keys.
    """
    uniform = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, index)))(keys)
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.pad(weights, ((0, 0), (0, -weights.shape[-1] % BLOCK)))
    blocks = weights.reshape(weights.shape[0], -1, BLOCK)
    totals = jnp.sum(blocks, axis=-1)
    block, rest = _locate(totals, uniform * jnp.sum(totals, axis=-1))
    within = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    token, _ = _locate(within, rest)
    return (block * BLOCK + token).astype(jnp.int32)


def _locate(
    weights: Float[Array, "R N"], target: Float[Array, " R"]
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Return where the cumulative weight exceeds `target`, and `target` minus earlier weights."""
    running = jnp.cumsum(weights, axis=-1)
    # Sums in another order may differ in the last bit: a weight of 0 is never the place, and the
    # last weight above 0 is it where the running sum ends below the target.
    found = (running > target[:, None]) & (weights > 0.0)
    last = weights.shape[-1] - 1 - jnp.argmax(weights[:, ::-1] > 0.0, axis=-1)
    index = jnp.where(jnp.any(found, axis=-1), jnp.argmax(found, axis=-1), last)
    before = jnp.take_along_axis(running - weights, index[:, None], axis=1)[:, 0]
    return index, jnp.maximum(target - before, 0.0)


def minimum_length(
    logits: Float[Array, "R V"], *, index: Int[Array, ""], minimum: int, eos_id: int
) -> Float[Array, "R V"]:
    """Set the logit of EOS to minus infinity until the output has `minimum` new tokens.

    Args:
      logits: logits of the next token.
      index: number of new tokens so far.
      minimum: minimum number of new tokens before EOS.
      eos_id: token id of EOS.
    """
    column = logits[:, eos_id]
    return logits.at[:, eos_id].set(jnp.where(index < minimum, -jnp.inf, column))


def no_repeat_ngram(
    logits: Float[Array, "R V"],
    history: Int[Array, "R H"],
    *,
    length: Int[Array, ""] | int,
    size: int,
) -> Float[Array, "R V"]:
    """Set logits of tokens that would repeat an n-gram of the output to minus infinity.

    Args:
      logits: logits of the next token.
      history: tokens so far; -1 before the first token of a shorter row.
      length: number of filled columns of `history`.
      size: n; with 1, no token may occur twice.
    """
    num_rows, width = history.shape
    num_windows = width - size + 1
    if num_windows < 1:
        return logits
    # With fewer than `size` tokens the suffix is not one, and no window is complete either.
    suffix = jax.lax.dynamic_slice_in_dim(history, length - (size - 1), size - 1, axis=1)
    banned = jnp.broadcast_to(jnp.arange(num_windows) + size <= length, (num_rows, num_windows))
    for offset in range(size - 1):
        same = history[:, offset : offset + num_windows] == suffix[:, offset, None]
        banned = banned & same
    last = history[:, size - 1 :]
    beyond = logits.shape[-1]
    tokens = jnp.where(banned & (last >= 0), last, beyond)
    return logits.at[jnp.arange(num_rows)[:, None], tokens].set(-jnp.inf, mode="drop")


def constrained(
    logits: Float[Array, "R V"],
    history: Int[Array, "R H"],
    *,
    index: Int[Array, ""],
    decoding: Decoding,
) -> Float[Array, "R V"]:
    """Return the logits after applying the minimum length and no-repeat constraints.

    Args:
      logits: logits of the next token.
      history: start token, prompt and new tokens, with space for max_decode_length new tokens.
      index: number of new tokens so far.
      decoding: config with the constraints min_length and no_repeat_ngram.
    """
    if decoding.no_repeat_ngram:
        length = history.shape[1] - decoding.max_decode_length + index
        logits = no_repeat_ngram(logits, history, length=length, size=decoding.no_repeat_ngram)
    if decoding.min_length:
        logits = minimum_length(
            logits, index=index, minimum=decoding.min_length, eos_id=decoding.eos_id
        )
    return logits
