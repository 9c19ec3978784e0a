"""Vectors of texts: an encoder's [CLS] states, or the mean of its states over a text's tokens.

    embedder = Embedder(bind, batch_size=32, pooling="mean", normalize=True)
    embedder.run(params, [tokens, other_tokens])        # float32 [2, D], each of length 1

Texts of about one length go through the model together, so that there is little padding; lengths
are rounded up to few sizes, so that few programs are compiled. What is padding is said by the
lengths of the rows, and not by their tokens: an encoder's padding need not be token 0.
"""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.evaluate.generate import Bind, batched, padded_length
from t5x_lite.heads.dense import Role
from t5x_lite.models.pooling import Pooling, check_pooling, pool
from t5x_lite.sharding import jit_rows, rounded_rows
from t5x_lite.types import Array, Params

_IN_FLIGHT = 4
"""Batches whose vectors are still on the way from the device: it computes while the host pads."""
_SHORTEST_NORM = 1e-12
"""Vectors of a smaller length are divided by it, as PyTorch's `normalize` does."""


class Embedder:
    """Encodes in batches of one size, and of few lengths.

    Args:
      bind: puts together a model that has `encode`.
      batch_size: rows encoded at once; on a mesh, rounded up to what its devices can share.
      pooling: "cls" or "mean"; `models.pooling`.
      normalize: whether vectors are divided by their lengths.
      pad_id: the model's token of padding.
      max_length: tokens that rows are padded to at most, such as a model's positions; None is no
        limit. An input may not be longer.
      lengths: that rows are padded to, ascending, where no other program may be compiled; None
        rounds.
      mesh: whose devices share the rows; None runs where the parameters are.
      whole: puts together the learner, where the role of a text matters: its encoders
        (`Bound.encoder`) and its head "dense" with a projection; `bind` is not used then.
      bag: gives what stands behind the pooled states in a vector, of the parameters, the states and
        what is no padding; None is nothing.
    """

    def __init__(
        self,
        bind: Bind,
        *,
        batch_size: int,
        pooling: Pooling = "mean",
        normalize: bool = False,
        pad_id: int = 0,
        max_length: int | None = None,
        lengths: Sequence[int] | None = None,
        mesh: Mesh | None = None,
        whole: Bind | None = None,
        bag: Callable[[Params, Array, Array], Array] | None = None,
    ):
        check_pooling("pooling", pooling)

        def encode(
            params: Params, tokens: Array, lengths: Array, role: Role
        ) -> tuple[Array, Array]:
            segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
            encoder = bind(params) if whole is None else whole(params).encoder(role)
            hidden = encoder.encode(tokens, segment_ids=segment_ids)
            return hidden.astype(jnp.float32), segment_ids

        def vectors(params: Params, tokens: Array, lengths: Array, role: Role) -> Array:
            states, segment_ids = encode(params, tokens, lengths, role)
            found = pool(states, segment_ids, pooling)
            if whole is not None:
                found = whole(params).heads["dense"].project(found, role=role)
            if bag is not None:
                found = jnp.concatenate([found, bag(params, states, segment_ids)], axis=1)
            return unit_length(found) if normalize else found

        def states(params: Params, tokens: Array, lengths: Array, role: Role) -> Array:
            return encode(params, tokens, lengths, role)[0]

        self._states, self._vectors = (
            {role: jit_rows(functools.partial(each, role=role), mesh) for role in get_args(Role)}
            for each in (states, vectors)
        )
        self._batch_size = rounded_rows(batch_size, mesh)
        self._pad_id, self._max_length, self._lengths = pad_id, max_length, lengths

    def run(
        self, params: Params, inputs: Sequence[np.ndarray], *, role: Role = "query"
    ) -> Float[np.ndarray, "n D"]:
        """The vector of each input, in order.

        Args:
          params: what `bind` takes.
          inputs: int32 tokens of each, with those that begin and end a row.
          role: of the texts, where it matters.
        """
        # Of no inputs a row of padding tells D.
        rows = list(inputs) or [np.zeros(0, np.int32)]
        found: np.ndarray | None = None
        for batch, vectors in self._results(self._vectors[role], params, rows):
            if found is None:
                found = np.empty((len(rows), vectors.shape[1]), np.float32)
            found[batch] = vectors[: len(batch)]
        assert found is not None
        return found[: len(inputs)]

    def states(
        self, params: Params, inputs: Sequence[np.ndarray], *, role: Role = "query"
    ) -> list[np.ndarray]:
        """The encoder's states of each input's tokens: float32 [length, D], in order."""
        found: dict[int, np.ndarray] = {}
        for batch, states in self._results(self._states[role], params, inputs):
            found |= {row: v[: len(inputs[row])] for row, v in zip(batch, states, strict=False)}
        return [found[row] for row in range(len(inputs))]

    def _results(
        self, function: Callable[..., Any], params: Params, inputs: Sequence[np.ndarray]
    ) -> Iterator[tuple[list[int], Any]]:
        """What a function gives for each batch, and the numbers of the inputs in it."""
        under_way: collections.deque[tuple[list[int], Any]] = collections.deque()
        # Long ones first: what does not fit the memory is seen at once.
        order = sorted(range(len(inputs)), key=lambda row: -len(inputs[row]))
        for batch in batched(order, self._batch_size):
            tokens, lengths = self._pad([inputs[row] for row in batch])
            under_way.append((list(batch), function(params, tokens, lengths)))
            if len(under_way) > _IN_FLIGHT:
                done, result = under_way.popleft()
                yield done, jax.tree.map(np.asarray, jax.device_get(result))
        for done, result in under_way:
            yield done, jax.tree.map(np.asarray, jax.device_get(result))

    def _pad(self, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [batch_size, length] and the number of those that are no padding."""
        longest = max(len(row) for row in rows)
        size = rounded_length(longest)
        if self._lengths is not None:
            size = min(length for length in self._lengths if length >= longest)
        elif self._max_length is not None:
            size = max(longest, min(size, self._max_length))
        tokens = np.full((self._batch_size, size), self._pad_id, np.int32)
        lengths = np.zeros(self._batch_size, np.int32)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = row
            lengths[place] = len(row)
        return tokens, lengths


def unit_length(vectors: Float[Array, "B D"]) -> Float[Array, "B D"]:
    """The vectors divided by their lengths."""
    norm = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / jnp.maximum(norm, _SHORTEST_NORM)


def rounded_length(length: int) -> int:
    """Round up to 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, ...: four sizes an octave.

    Powers of two pad a quarter of all tokens, these sizes a tenth.
    """
    step = max(32, padded_length(length) // 8)
    return -(-length // step) * step if length > 16 else 16
