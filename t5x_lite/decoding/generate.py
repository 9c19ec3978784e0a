"""Text generation with a single model or an ensemble: greedy, sampling or beam search.

    tokens, scores = decode(model, inputs, decoding=Decoding(num_beams=4))
    tokens[:, 0]     the best output of each input, int32 [B, 64], 0 after the EOS

Call the functions under `jax.jit`. The first token comes from the logits of the prefill, and each
loop iteration computes one more token. The loop ends when all rows have ended.

An ensemble: the average of several models' logits (Raffel et al. 2020, section 3.6).

    model = Ensemble([first, second])     # generates text like a single model
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Key

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Array
from t5x_lite.decoding.sampling import Decoding, argmax, constrained, draw, sample_keys, warped
from t5x_lite.decoding.search import Generative, Start, beam_search, begin, log_normaliser, prepared

Choose = Callable[[Array, Array], Array]
"""Function (logits [R, V], decoding step) -> next tokens [R]."""


class _Rows(NamedTuple):
    """State of greedy decoding or sampling after one step."""

    index: Any  # int32 [], new tokens so far
    history: Any  # int32 [R, H]
    last: Any  # int32 [R], the newest token
    scores: Any  # float32 [R]
    ended: Any  # bool [R]


def decode(
    model: Generative,
    inputs: Int[Array, "B S"],
    *,
    prompt: Int[Array, "B P"] | None = None,
    keys: Key[Array, " B"] | None = None,
    ended: Bool[Array, " B"] | None = None,
    decoding: Decoding,
) -> tuple[Int[Array, "B n L"], Float[Array, "B n"]]:
    """Generate token sequences for each input, by the method that `decoding` selects.

    Args:
      model: model to generate with.
      inputs: token ids, padded with 0 on the right.
      prompt: first tokens of the outputs, padded with 0 on the right, or None.
      keys: random key of each input, for sampling.
      ended: True for padding rows of the batch, for which nothing is generated.
      decoding: config of greedy decoding, sampling or beam search.

    Returns:
      New tokens, int32, best output first, including EOS and padded with 0; and their scores. A
        score is the log-probability of the new tokens without temperature and constraints; in beam
        search, it is normalized by the length rule.

    Raises:
      ValueError: if the config needs sampling, but `keys` are missing.
    """
    if decoding.num_beams > 1:
        return beam_search(model, inputs, prompt=prompt, ended=ended, decoding=decoding)
    if decoding.temperature == 0.0:
        tokens, scores = greedy(model, inputs, prompt=prompt, ended=ended, decoding=decoding)
        return tokens[:, None], scores[:, None]
    if keys is None:
        raise ValueError("sampling requires a random key for each input; pass the argument keys")
    return sample(model, inputs, prompt=prompt, keys=keys, ended=ended, decoding=decoding)


def greedy(
    model: Generative,
    inputs: Int[Array, "B S"],
    *,
    prompt: Int[Array, "B P"] | None = None,
    ended: Bool[Array, " B"] | None = None,
    decoding: Decoding,
) -> tuple[Int[Array, "B L"], Float[Array, " B"]]:
    """Generate the likeliest token at every step (greedy decoding)."""
    start = begin(model, inputs, prompt=prompt, num=1, max_length=decoding.max_decode_length)
    return _grow(model, start, lambda logits, _: argmax(logits), ended=ended, decoding=decoding)


def sample(
    model: Generative,
    inputs: Int[Array, "B S"],
    *,
    prompt: Int[Array, "B P"] | None = None,
    keys: Key[Array, " B"],
    ended: Bool[Array, " B"] | None = None,
    decoding: Decoding,
) -> tuple[Int[Array, "B n L"], Float[Array, "B n"]]:
    """Sample num_return outputs for each input, best score first."""
    num = decoding.num_return
    start = begin(model, inputs, prompt=prompt, num=num, max_length=decoding.max_decode_length)
    row_keys = sample_keys(keys, num)

    def choose(logits: Array, index: Array) -> Array:
        return draw(row_keys, warped(logits, decoding), index)

    ended = None if ended is None else jnp.repeat(ended, num)
    tokens, scores = _grow(model, start, choose, ended=ended, decoding=decoding)
    tokens, scores = tokens.reshape(inputs.shape[0], num, -1), scores.reshape(-1, num)
    order = jnp.argsort(-scores, axis=1, stable=True)
    tokens = jnp.take_along_axis(tokens, order[:, :, None], axis=1)
    return tokens, jnp.take_along_axis(scores, order, axis=1)


def _grow(
    model: Generative,
    start: Start,
    choose: Choose,
    *,
    ended: Array | None,
    decoding: Decoding,
) -> tuple[Int[Array, "R L"], Float[Array, " R"]]:
    num_rows, width = start.history.shape
    first = width - decoding.max_decode_length

    def take(rows: _Rows, logits: Array) -> _Rows:
        allowed = constrained(logits, rows.history, index=rows.index, decoding=decoding)
        tokens = choose(allowed, rows.index)
        largest, normaliser = log_normaliser(logits)
        chosen = jnp.take_along_axis(logits, tokens[:, None], axis=1)
        gain = (chosen - largest - normaliser)[:, 0]
        tokens = jnp.where(rows.ended, 0, tokens)
        return _Rows(
            index=rows.index + 1,
            history=jax.lax.dynamic_update_slice_in_dim(
                rows.history, tokens[:, None], first + rows.index, axis=1
            ),
            last=tokens,
            scores=rows.scores + jnp.where(rows.ended, 0.0, gain),
            ended=rows.ended | (tokens == decoding.eos_id),
        )

    def going(carry: tuple[_Rows, Any]) -> Array:
        rows, _ = carry
        return (rows.index < decoding.max_decode_length) & ~jnp.all(rows.ended)

    def advance(carry: tuple[_Rows, Any]) -> tuple[_Rows, Any]:
        rows, cache = carry
        logits, cache = model.step(rows.last, cache)
        return take(rows, logits), cache

    none = jnp.zeros((num_rows,), bool)
    rows = _Rows(
        index=jnp.zeros((), jnp.int32),
        history=start.history,
        last=jnp.zeros((num_rows,), jnp.int32),
        scores=jnp.zeros((num_rows,), jnp.float32),
        ended=none if ended is None else ended,
    )
    rows, _ = jax.lax.while_loop(going, advance, (take(rows, start.logits), start.cache))
    return rows.history[:, first:], rows.scores


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Ensemble of models that averages their next-token logits; a pytree if all models are pytrees.

    Attributes:
      models: at least one model; all must share a vocabulary.
    """

    models: Sequence[Any]

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError("an ensemble needs at least one model")

    def prepared(self) -> "Ensemble":
        return Ensemble([prepared(model) for model in self.models])

    def prefill(
        self,
        inputs: Int[Array, "B S"],
        *,
        max_length: int,
        prompt: Int[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], tuple]:
        return _together(
            model.prefill(inputs, max_length=max_length, prompt=prompt) for model in self.models
        )

    def step(self, tokens: Int[Array, " R"], cache: tuple) -> tuple[Float[Array, "R V"], tuple]:
        return _together(
            model.step(tokens, own) for model, own in zip(self.models, cache, strict=True)
        )

    def repeat(self, cache: tuple, num: int) -> tuple:
        return tuple(m.repeat(own, num) for m, own in zip(self.models, cache, strict=True))

    def select(self, cache: tuple, rows: Int[Array, " R"]) -> tuple:
        return tuple(m.select(own, rows) for m, own in zip(self.models, cache, strict=True))

    def target_logits(
        self, inputs: Int[Array, "B S"], targets: Int[Array, "B T"]
    ) -> Float[Array, "B T V"]:
        """Return the mean logits of all models for given target tokens (teacher forcing)."""
        return average([model.target_logits(inputs, targets) for model in self.models])


def average(logits: Sequence[Float[Array, "*batch V"]]) -> Float[Array, "*batch V"]:
    """Return the mean of several models' logits, in float32.

    Raises:
      InputError: if the vocabulary sizes differ.
    """
    sizes = sorted({array.shape[-1] for array in logits})
    if len(sizes) > 1:
        raise InputError(
            f"the models of an ensemble must share a vocabulary, got vocabulary sizes {sizes}; "
            "use checkpoints with the same vocab_size"
        )
    total = logits[0].astype(jnp.float32)
    for array in logits[1:]:
        total = total + array.astype(jnp.float32)
    return total / len(logits)


def _together(results: Any) -> tuple[Any, tuple]:
    logits, caches = zip(*results, strict=True)
    return average(logits), caches
