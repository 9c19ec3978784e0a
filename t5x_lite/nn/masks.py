"""Attention masks: boolean arrays [B or 1, 1, T, S], True where a query attends to a key.

    causal(3)            segments([[1, 1, 2]], [[1, 1, 2]])
    1 0 0                1 1 0
    1 1 0                1 1 0
    1 1 1                0 0 1

`Visibility` describes a mask by a few numbers per position. `dense` returns the full array, and
`block` its columns for some of the keys (`t5x_lite.nn.fused_attention`). The TPU kernel
(`t5x_lite.nn.pallas_attention`) reads the same numbers.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Bool, Int

from t5x_lite.core.trees import Array, Size

MASKED = -1e10
"""Value of a masked logit. A query without visible keys attends to all keys equally."""


def padding(keys: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Return the mask in which queries attend to all keys except padding (token 0)."""
    return (keys > 0)[:, None, None, :]


def causal(length: Size) -> Bool[Array, "1 1 T T"]:
    """Return the mask in which a query attends to itself and to earlier keys."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def segments(queries: Int[Array, "B T"], keys: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """Return the mask in which queries attend to keys of the same segment; 0 is padding."""
    same = queries[:, None, :, None] == keys[:, None, None, :]
    return same & (keys > 0)[:, None, None, :]


def combine(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """Return the logical AND of the given masks, broadcast together, or None without any mask."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    result = given[0]
    for mask in given[1:]:
        result = result & mask
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visibility:
    """Compact attention mask: a query attends to the keys that all fields allow.

    Attributes:
      keys: segment id of each key, or its token if `queries` is None. 0 is padding, which is
        masked. If None, no key is padding.
      queries: segment id of each query, which attends only to keys of its segment. If None,
        segments are ignored.
      causal: True if a query attends only to itself and to earlier keys; T must equal S.
      both_ways: group of each position. Positions of a group attend to each other in both
        directions, as far as `keys` and `queries` allow. 0 is outside all groups; None without
        groups.
      hidden: P masks of each row's keys, True where a key is hidden from the queries that use the
        mask; None without such masks.
      picked: index in `hidden` of the mask for each query.
      itself: True if a query may attend to its own position; if False, T must equal S.
      block_size: number of keys per block of attention; in disentangled attention, number of
        queries.
      kernel: True if the kernel for TPUs computes the blocks.
      fused: True if cuDNN's fused attention runs, without blocks.
      one_text: True if each row is known to hold one text, followed by padding. cuDNN's attention
        then reads lengths instead of a mask.
    """

    keys: Int[Array, "B S"] | None = None
    queries: Int[Array, "B T"] | None = None
    causal: bool = False
    both_ways: Int[Array, "B T"] | None = None
    hidden: Bool[Array, "B P S"] | None = None
    picked: Int[Array, "B T"] | None = None
    itself: bool = True
    block_size: int = 128
    kernel: bool = False
    fused: bool = False
    one_text: bool = False

    @property
    def is_only_causal(self) -> bool:
        """True if every query attends to itself and to all earlier keys, in every row."""
        others = (self.keys, self.queries, self.both_ways, self.hidden)
        return self.causal and self.itself and all(ids is None for ids in others)

    @property
    def has_lengths(self) -> bool:
        """True if a row's number of keys and `causal` determine its mask."""
        others = (self.both_ways, self.hidden)
        return self.one_text and self.itself and all(ids is None for ids in others)

    def dense(self, num_queries: Size) -> Bool[Array, "#B 1 #T S"] | None:
        """Return the full mask for `num_queries` queries, or None if all keys are allowed."""
        order = causal(num_queries) if self.causal else None
        if order is not None and self.both_ways is not None:
            order = order | segments(self.both_ways, self.both_ways)
        columns = jnp.arange(num_queries)
        return combine(
            order, self._same_segment(self.keys), self._unhidden(self.hidden, num_queries, columns)
        )

    def block(
        self, num_queries: Size, start: int | Int[Array, ""], size: int
    ) -> Bool[Array, "#B 1 #T size"] | None:
        """Return `size` mask columns from `start` on; columns past the last key are undefined."""
        columns = start + jnp.arange(size)

        def taken(ids: Array | None) -> Array | None:
            return None if ids is None else jnp.take(ids, columns, axis=1, mode="clip")

        order = None
        if self.causal:
            order = (columns[None, :] <= jnp.arange(num_queries)[:, None])[None, None]
            groups = taken(self.both_ways)
            if self.both_ways is not None and groups is not None:
                order = order | segments(self.both_ways, groups)
        hidden = self.hidden
        if hidden is not None:
            hidden = jnp.take(hidden, columns, axis=2, mode="clip")
        return combine(
            order,
            self._same_segment(taken(self.keys)),
            self._unhidden(hidden, num_queries, columns),
        )

    def _unhidden(
        self, hidden: Bool[Array, "B P _"] | None, num_queries: Size, columns: Int[Array, " _"]
    ) -> Bool[Array, "#B 1 T _"] | None:
        own = None
        if not self.itself:
            own = (columns[None, :] != jnp.arange(num_queries)[:, None])[None, None]
        if hidden is None or self.picked is None:
            return own
        return combine(own, ~jnp.take_along_axis(hidden, self.picked[..., None], axis=1)[:, None])

    def _same_segment(self, keys: Array | None) -> Bool[Array, "B 1 #T _"] | None:
        if keys is None:
            return None
        return padding(keys) if self.queries is None else segments(self.queries, keys)


def of_encoder(
    tokens: Int[Array, "B S"], segment_ids: Int[Array, "B S"] | None = None
) -> Visibility:
    """Return an encoder's mask: all tokens except padding, or the tokens of the same segment."""
    if segment_ids is None:
        return Visibility(keys=tokens)
    return Visibility(keys=segment_ids, queries=segment_ids)


def of_decoder(
    segment_ids: Int[Array, "B T"] | None = None, *, prefix: Int[Array, "B T"] | None = None
) -> Visibility:
    """Return a decoder's mask: causal attention within segments.

    Args:
      segment_ids: segment ids of packed examples; None for one segment without padding.
      prefix: positive for positions that attend to each other in both directions within a segment
        (the inputs of a prefix LM); None for a causal mask.
    """
    groups = None
    if prefix is not None:
        groups = jnp.where(prefix > 0, 1 if segment_ids is None else segment_ids, 0)
    return Visibility(keys=segment_ids, queries=segment_ids, causal=True, both_ways=groups)


def across(
    tokens: Int[Array, "B S"],
    segment_ids: Int[Array, "B S"] | None = None,
    target_segment_ids: Int[Array, "B T"] | None = None,
) -> Visibility:
    """Return a cross-attention mask: all inputs except padding, or inputs of the same segment."""
    if (segment_ids is None) != (target_segment_ids is None):
        raise ValueError("segment ids must be given for both encoder and decoder, or for neither")
    if segment_ids is None:
        return Visibility(keys=tokens)
    return Visibility(keys=segment_ids, queries=target_segment_ids)
