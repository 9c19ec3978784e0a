"""Sampling from logits, top-k of large vocabularies, and constraints of generated outputs.

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

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Key, UInt32

from t5x_lite.core.trees import Array
from t5x_lite.decoding.config import Decoding

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
    (Holtzman et al. 2019); equally likely tokens are kept or masked together. The bound is found by
    bisection over the 32 bits of a float, as in t5x's binary_search.py; sorting 32128 logits takes
    25 times as long.
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
    """Return `num` random keys per request, as one axis; the first keys do not depend on `num`."""
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
    """Return the index at which the cumulative weight exceeds `target`, and the remainder."""
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
