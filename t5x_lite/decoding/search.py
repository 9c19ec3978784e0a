"""The base of all searches, and beam search with the length rules of T5X and transformers.

Base of all decoding algorithms: conversion of the model for decoding, and its prefill.

Decoding has R rows, `num` for each of the B inputs: row b * num + w. The history has the whole
decoder sequence of each row, aligned so that all rows write to the same column:

    . . 0 | _ _ _ _      no prompt          -1 (.) on the left of the shorter prompts
    0 7 8 | _ _ _ _      prompt 7 8         0 (_) where the new tokens go

The parameters are converted once to a faster layout for decoding, for many batches (docs/adr/0012):

    prepare = Preparation(bind)
    tokens, scores = jax.jit(decode)(prepare(params), inputs)    # made by the first call

In this layout, decoder layers are separate, and matrix products with the same input are one product
with transposed kernels. The results do not change.

Beam search with the length rules of T5X and of transformers.

W unfinished outputs (live beams) grow by one token per step. The 2 W likeliest continuations are
considered, so that W remain even if all beams end at once. The W best finished continuations are
kept, by a score that compensates for length. k is the number of tokens, the EOS included.

| | "t5x" (t5x/decoding.py) | "hf" (transformers, generation/utils.py) |
|---|---|---|
| score | log p / ((5 + k) / 6)^penalty, k with the prompt | log p / k^penalty, k without it |
| what may finish | every EOS among the 2 W | an EOS among the first W |
| an input is done | when no live beam could beat the worst finished one | by early_stopping |
| at max_length | live beams are lost, unless none is finished | the first W finish unchanged |

Constraints are applied to log-probabilities, which are not normalized again, as in transformers. If
fewer than num_return outputs are finished, the best live beams follow, with their log-probability
as score. T5X does so only if no output is finished.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from t5x_lite.core.trees import Array, Params
from t5x_lite.decoding.sampling import Decoding, EarlyStopping, constrained, top_k

START_ID = 0
"""First input token of the decoder; T5 uses the padding token."""


@runtime_checkable
class Generative(Protocol):
    """Protocol of models that generate text token by token."""

    def prefill(
        self, inputs: Array, *, max_length: int, prompt: Array | None = None
    ) -> tuple[Array, Any]:
        """Run the model on the inputs and the prompt, before the first new token.

        Args:
          inputs: token ids, int [B, S], padded with 0 on the right.
          max_length: maximum number of new tokens.
          prompt: first decoder tokens, int [B, P], padded with 0 on the right.

        Returns:
          Logits of the first new token, float32 [B, V], and the cache.
        """
        ...

    def step(self, tokens: Array, cache: Any) -> tuple[Array, Any]:
        """Read one token per row; return the next tokens' logits [R, V] and the new cache."""
        ...

    def repeat(self, cache: Any, num: int) -> Any:
        """Return a cache with `num` adjacent copies of each row."""
        ...

    def select(self, cache: Any, rows: Array) -> Any:
        """Return a cache with the given rows, such as the rows of the best beams."""
        ...


class Start(NamedTuple):
    """State of text generation before the first new token.

    Attributes:
      logits: logits of the first new token, float32 [R, V].
      history: decoder sequence, int32 [R, H]: start token, prompt, and max_length new tokens.
      prompt_lengths: number of prompt tokens, int32 [B].
      cache: decoding cache of the model.
    """

    logits: Any
    history: Any
    prompt_lengths: Any
    cache: Any


def begin(
    model: Generative,
    inputs: Int[Array, "B S"],
    *,
    prompt: Int[Array, "B P"] | None,
    num: int,
    max_length: int,
) -> Start:
    """Run the model on inputs and prompts, and return the state before the first new token.

    Args:
      model: model to generate with.
      inputs: token ids, padded with 0 on the right.
      prompt: first tokens of the outputs, padded with 0 on the right, or None.
      num: number of rows for each input, such as beams.
      max_length: maximum number of new tokens.
    """
    logits, cache = model.prefill(inputs, max_length=max_length, prompt=prompt)
    given = jnp.zeros((inputs.shape[0], 0), jnp.int32) if prompt is None else prompt
    history = jnp.pad(left_padded(given), ((0, 0), (0, max_length)))
    if num > 1:
        cache = model.repeat(cache, num)
        logits, history = jnp.repeat(logits, num, axis=0), jnp.repeat(history, num, axis=0)
    return Start(logits, history, jnp.sum(given > 0, axis=1), cache)


def left_padded(prompt: Int[Array, "B P"]) -> Int[Array, "B Q"]:
    """Convert right-padded prompts to rows with a start token, padded with -1 on the left."""
    batch_size, width = prompt.shape
    missing = width - jnp.sum(prompt > 0, axis=1, keepdims=True)
    column = jnp.arange(width + 1) - missing  # column of [start, *prompt]
    start = jnp.full((batch_size, 1), START_ID, jnp.int32)
    tokens = jnp.concatenate([start, prompt.astype(jnp.int32)], axis=1)
    aligned = jnp.take_along_axis(tokens, jnp.maximum(column, 0), axis=1)
    return jnp.where(column < 0, -1, aligned)


def log_normaliser(logits: Float[Array, "R V"]) -> tuple[Float[Array, "R 1"], Float[Array, "R 1"]]:
    """Return the maximum logit m of each row, and log sum exp(logits - m)."""
    by_token = logits.T  # so a model laid out for decoding computes them
    largest = jnp.max(by_token, axis=0)
    total = jnp.sum(jnp.exp(by_token - largest), axis=0)
    return largest[:, None], jnp.log(total)[:, None]


@runtime_checkable
class Preparable(Generative, Protocol):
    """Protocol of models that can be converted to a faster layout for decoding."""

    def prepared(self) -> Generative:
        """Return the same model with its weights in the layout for decoding, as a pytree."""
        ...


def prepared(model: Generative) -> Any:
    """Return the model in its fast layout for decoding, or unchanged if it has no such layout."""
    return model.prepared() if isinstance(model, Preparable) else model


class Preparation:
    """Callable that converts parameters to a model for decoding, and caches the last result.

    Args:
      bind: function from parameters to a model; its decoding layout must be a pytree.
    """

    def __init__(self, bind: Callable[[Params], Any]):
        self._prepare = jax.jit(lambda params: prepared(bind(params)))
        self._leaves: list[Any] = []
        self._model: Any = None

    def __call__(self, params: Params) -> Any:
        """Return the model for decoding; the last model is reused for unchanged parameters."""
        leaves = jax.tree.leaves(params)
        if self._model is None or [*map(id, leaves)] != [*map(id, self._leaves)]:
            self._model = None  # its arrays go before new ones come
            self._model, self._leaves = self._prepare(params), leaves
        return self._model


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5XRule:
    """Beam search rule of T5X for scores, finished outputs and stopping.

    Attributes:
      penalty: length penalty (alpha).
      max_length: maximum number of new tokens.
      nothing: score of each finished output that is still missing.
    """

    penalty: float
    max_length: int
    nothing: float = -1e7

    def score(
        self, log_p: Float[Array, "B K"], *, length: Int[Array, ""] | int, prompt: Int[Array, "B 1"]
    ) -> Float[Array, "B K"]:
        """Return scores of outputs: log-probabilities, normalized by length as in T5X.

        Args:
          log_p: log-probabilities of the outputs.
          length: number of new tokens, including EOS.
          prompt: lengths of the prompts.
        """
        return log_p / ((5.0 + prompt + length) / 6.0) ** self.penalty

    def finishing(
        self, eos: Bool[Array, "B K"], *, last: Bool[Array, ""]
    ) -> tuple[Bool[Array, "B K"], Bool[Array, "B K"]]:
        """Return which continuations end, and which of these may become finished outputs.

        Args:
          eos: True for continuations that end with EOS.
          last: True if max_length is reached.
        """
        return eos, eos

    def done(
        self,
        live: Float[Array, "B 1"],
        worst: Float[Array, " B"],
        full: Bool[Array, " B"],
        *,
        length: Int[Array, ""],
        prompt: Int[Array, "B 1"],
    ) -> Bool[Array, " B"]:
        """Return a mask of the inputs for which the beam search can stop.

        Args:
          live: log-probability of the best live beam.
          worst: score of the worst finished output, or `nothing` if fewer than num_beams are
            finished.
          full: True if num_beams outputs are finished.
          length: number of new tokens.
          prompt: lengths of the prompts.
        """
        # t5x counts its dummy first token into the greatest length.
        return worst > self.score(live, length=self.max_length + 1, prompt=prompt)[:, 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuggingFaceRule:
    """Beam search rule of transformers for scores, finished outputs and stopping.

    Attributes:
      early_stopping: stopping rule of transformers: True, False or "never".
    """

    penalty: float
    max_length: int
    early_stopping: EarlyStopping
    nothing: float = -1e9

    def score(
        self, log_p: Float[Array, "B K"], *, length: Int[Array, ""] | int, prompt: Int[Array, "B 1"]
    ) -> Float[Array, "B K"]:
        """Return scores log p / length^penalty, where the length excludes the prompt."""
        powers = [1.0, *(float(k) ** self.penalty for k in range(1, self.max_length + 1))]
        return log_p / jnp.asarray(np.asarray(powers, np.float32))[length]

    def finishing(
        self, eos: Bool[Array, "B K"], *, last: Bool[Array, ""]
    ) -> tuple[Bool[Array, "B K"], Bool[Array, "B K"]]:
        """Return which continuations end, and which of these may become finished outputs.

        Only the better half of the continuations may become outputs. At max_length, all end.
        """
        ends = eos | last
        return ends, ends & (jnp.arange(eos.shape[1]) < eos.shape[1] // 2)

    def done(
        self,
        live: Float[Array, "B 1"],
        worst: Float[Array, " B"],
        full: Bool[Array, " B"],
        *,
        length: Int[Array, ""],
        prompt: Int[Array, "B 1"],
    ) -> Bool[Array, " B"]:
        whole = self.early_stopping == "never" and self.penalty > 0.0
        bound = self.score(live, length=self.max_length if whole else length, prompt=prompt)
        beaten = worst >= bound[:, 0]
        return full | beaten if self.early_stopping is True else beaten


Rule = T5XRule | HuggingFaceRule


class _Beams(NamedTuple):
    """State of a beam search after one step; live and finished beams are sorted, best first."""

    index: Any  # int32 [], new tokens so far
    live: Any  # int32 [B, W, H]
    live_scores: Any  # float32 [B, W], log-probabilities
    parents: Any  # int32 [B, W], the beams before the step that the live ones continue
    finished: Any  # int32 [B, W, H]
    finished_scores: Any  # float32 [B, W]
    filled: Any  # bool [B, W], True for taken finished ranks
    done: Any  # bool [B]


class _Continuations(NamedTuple):
    """Candidates for the next beams of each input: beams longer by one token, best first."""

    histories: Any  # int32 [B, 2W, H]
    tokens: Any  # int32 [B, 2W]
    parents: Any  # int32 [B, 2W]
    log_p: Any  # float32 [B, 2W]


def beam_search(
    model: Generative,
    inputs: Int[Array, "B S"],
    *,
    prompt: Int[Array, "B P"] | None = None,
    ended: Bool[Array, " B"] | None = None,
    decoding: Decoding,
) -> tuple[Int[Array, "B n L"], Float[Array, "B n"]]:
    """Generate outputs by beam search, and return the num_return best outputs of each input.

    Args:
      model: model to generate with.
      inputs: token ids, padded with 0 on the right.
      prompt: first tokens of the outputs, padded with 0 on the right, or None.
      ended: True for padding rows of the batch, for which nothing is generated.
      decoding: config of the beam search.

    Returns:
      New tokens, int32, best output first, including EOS and padded with 0; and their scores.
    """
    length, width = decoding.max_decode_length, decoding.num_beams
    start = begin(model, inputs, prompt=prompt, num=width, max_length=length)
    batch_size, first = inputs.shape[0], start.history.shape[1] - length
    rule = _rule(decoding)

    def going(carry: tuple[_Beams, Any]) -> Array:
        beams, _ = carry
        return (beams.index < length) & ~jnp.all(beams.done)

    def advance(carry: tuple[_Beams, Any]) -> tuple[_Beams, Any]:
        beams, cache = carry
        offset = jnp.arange(batch_size)[:, None] * width
        cache = model.select(cache, (offset + beams.parents).reshape(-1))
        newest = jax.lax.dynamic_index_in_dim(
            beams.live, first + beams.index - 1, axis=2, keepdims=False
        )
        logits, cache = model.step(newest.reshape(-1), cache)
        return _advance(beams, logits, start.prompt_lengths, rule, decoding), cache

    beams = _first(start.history, rule, ended, width=width)
    beams = _advance(beams, start.logits, start.prompt_lengths, rule, decoding)
    beams, _ = jax.lax.while_loop(going, advance, (beams, start.cache))
    tokens, scores = _best(beams, num=decoding.num_return)
    return tokens[:, :, first:], scores


def _rule(decoding: Decoding) -> Rule:
    if decoding.length_rule == "t5x":
        return T5XRule(penalty=decoding.penalty, max_length=decoding.max_decode_length)
    return HuggingFaceRule(
        penalty=decoding.penalty,
        early_stopping=decoding.early_stopping,
        max_length=decoding.max_decode_length,
    )


def _first(history: Array, rule: Rule, ended: Array | None, *, width: int) -> _Beams:
    """Return the initial beams. All beams of an input are equal, so only the first one counts."""
    batch_size = history.shape[0] // width
    live = history.reshape(batch_size, width, -1)
    empty = jnp.full((batch_size, width), rule.nothing, jnp.float32)
    return _Beams(
        index=jnp.zeros((), jnp.int32),
        live=live,
        live_scores=empty.at[:, 0].set(0.0),
        parents=jnp.zeros((batch_size, width), jnp.int32),
        finished=live,
        finished_scores=empty,
        filled=jnp.zeros((batch_size, width), bool),
        done=jnp.zeros((batch_size,), bool) if ended is None else ended,
    )


def _advance(
    beams: _Beams, logits: Array, prompt_lengths: Array, rule: Rule, decoding: Decoding
) -> _Beams:
    index, width = beams.index + 1, decoding.num_beams
    prompt = prompt_lengths[:, None]
    found = _continuations(beams, logits, decoding)
    ends, may_finish = rule.finishing(
        found.tokens == decoding.eos_id, last=index == decoding.max_decode_length
    )
    live_scores, on = jax.lax.top_k(jnp.where(ends, rule.nothing, found.log_p), width)

    may_finish = may_finish & ~beams.done[:, None] & (found.log_p > rule.nothing)
    scores = rule.score(found.log_p, length=index, prompt=prompt)
    scores = jnp.where(may_finish, scores, rule.nothing)
    scores = jnp.concatenate([beams.finished_scores, scores], axis=1)
    finished_scores, best = jax.lax.top_k(scores, width)
    finished = jnp.concatenate([beams.finished, found.histories], axis=1)
    filled = jnp.concatenate([beams.filled, may_finish], axis=1)
    filled = jnp.take_along_axis(filled, best, axis=1)

    full = jnp.all(filled, axis=1)
    worst = jnp.where(full, finished_scores[:, -1], rule.nothing)
    done = rule.done(live_scores[:, :1], worst, full, length=index, prompt=prompt)
    return _Beams(
        index=index,
        live=jnp.take_along_axis(found.histories, on[:, :, None], axis=1),
        live_scores=live_scores,
        parents=jnp.take_along_axis(found.parents, on, axis=1),
        finished=jnp.take_along_axis(finished, best[:, :, None], axis=1),
        finished_scores=finished_scores,
        filled=filled,
        done=beams.done | done,
    )


def _continuations(beams: _Beams, logits: Array, decoding: Decoding) -> _Continuations:
    """Return the 2 * num_beams likeliest one-token continuations of each input's beams."""
    batch_size, width, columns = beams.live.shape
    history = beams.live.reshape(-1, columns)
    largest, normaliser = log_normaliser(logits)
    allowed = constrained(logits, history, index=beams.index, decoding=decoding)
    num = min(2 * width, logits.shape[-1])
    values, ids = top_k(allowed, num)
    log_p = (values - largest - normaliser).reshape(batch_size, width, num)
    log_p = log_p + beams.live_scores[:, :, None]
    log_p, chosen = jax.lax.top_k(log_p.reshape(batch_size, -1), 2 * width)
    parents = (chosen // num).astype(jnp.int32)
    tokens = jnp.take_along_axis(ids.reshape(batch_size, -1), chosen, axis=1).astype(jnp.int32)
    histories = jnp.take_along_axis(beams.live, parents[:, :, None], axis=1)
    position = columns - decoding.max_decode_length + beams.index
    histories = jax.lax.dynamic_update_slice_in_dim(histories, tokens[:, :, None], position, axis=2)
    return _Continuations(histories, tokens, parents, log_p)


def _best(beams: _Beams, *, num: int) -> tuple[Array, Array]:
    count = jnp.sum(beams.filled, axis=1, keepdims=True)
    place = jnp.arange(num)
    width = beams.filled.shape[1]
    order = jnp.where(place < count, place, width + place - count)
    histories = jnp.concatenate([beams.finished, beams.live], axis=1)
    scores = jnp.concatenate([beams.finished_scores, beams.live_scores], axis=1)
    return (
        jnp.take_along_axis(histories, order[:, :, None], axis=1),
        jnp.take_along_axis(scores, order, axis=1),
    )
