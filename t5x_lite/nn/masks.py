"""Attention masks: boolean arrays [B or 1, 1, T, S], True where a query may see a key.

causal(3)            segments([[1, 1, 2]], [[1, 1, 2]])
1 0 0                1 1 0
1 1 0                1 1 0
1 1 1                0 0 1

`Visibility` is what such an array is made of, a few numbers for each position: `dense` gives the
array, `block` the part of it that some of the keys make (`t5x_lite.nn.blocked_attention`); the
kernel (`t5x_lite.nn.pallas_attention`) makes it of the same numbers.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Bool, Int

from t5x_lite.core.trees import Array

MASKED = -1e10
"""A masked logit. A query that may see no key at all attends to all of them equally."""


def padding(keys: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Let every query attend to the keys that are not padding (token 0)."""
    return (keys > 0)[:, None, None, :]


def causal(length: int) -> Bool[Array, "1 1 T T"]:
    """Return the mask in which a query attends to itself and the keys before it."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def segments(queries: Int[Array, "B T"], keys: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """Return the mask in which a query attends to its segment (packed example); 0 is padding."""
    same = queries[:, None, :, None] == keys[:, None, None, :]
    return same & (keys > 0)[:, None, None, :]


def combine(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """Return the masks' conjunction, broadcast together, or None without any mask."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    result = given[0]
    for mask in given[1:]:
        result = result & mask
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visibility:
    """Keys that a query attends to: the keys that all fields allow.

    Attributes:
      keys: segment id of each key, or its token if `queries` is None. 0 is padding, which is
        masked. If None, no key is padding.
      queries: segment id of each query, which attends only to keys of its segment. If None, it
        attends to all of them.
      causal: if True, a query attends to itself and the keys before it, and T is S.
      both_ways: group of each position. Positions of a group attend to each other in both
        directions, as far as keys and queries allow. 0 is outside all groups; None without groups.
      hidden: masks of keys, True where a key is hidden from the queries with this mask; None
        without masks.
      picked: index of each query's mask in `hidden`.
      itself: True if a query may attend to its own position; if False, T is S.
      block_size: keys per block of attention; for disentangled attention, queries per block.
      kernel: True if the kernel for TPUs runs the blocks.
      fused: True if cuDNN's fused attention runs, without blocks.
      one_text: True if each row is known to hold one text, followed by its padding. cuDNN's
        attention then reads lengths instead of a mask.
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
        """True if a query attends to itself and all earlier keys, in every row."""
        others = (self.keys, self.queries, self.both_ways, self.hidden)
        return self.causal and self.itself and all(ids is None for ids in others)

    @property
    def has_lengths(self) -> bool:
        """True if rows differ only in their number of keys."""
        others = (self.both_ways, self.hidden)
        return self.one_text and self.itself and all(ids is None for ids in others)

    def dense(self, num_queries: int) -> Bool[Array, "#B 1 #T S"] | None:
        """Return the full mask of `num_queries` queries, or None if all keys are allowed."""
        order = causal(num_queries) if self.causal else None
        if order is not None and self.both_ways is not None:
            order = order | segments(self.both_ways, self.both_ways)
        columns = jnp.arange(num_queries)
        return combine(
            order, self._same_segment(self.keys), self._unhidden(self.hidden, num_queries, columns)
        )

    def block(
        self, num_queries: int, start: int | Int[Array, ""], size: int
    ) -> Bool[Array, "#B 1 #T size"] | None:
        """Return the mask's columns start, ..., start + size - 1; later ones are undefined."""
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
        self, hidden: Bool[Array, "B P _"] | None, num_queries: int, columns: Int[Array, " _"]
    ) -> Bool[Array, "#B 1 T _"] | None:
        """Return some columns of the mask by position and by the queries' own mask."""
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
    """Return an encoder's mask: all that is not padding, or the position's own segment."""
    if segment_ids is None:
        return Visibility(keys=tokens)
    return Visibility(keys=segment_ids, queries=segment_ids)


def of_decoder(
    segment_ids: Int[Array, "B T"] | None = None, *, prefix: Int[Array, "B T"] | None = None
) -> Visibility:
    """Return a decoder's mask: the position and earlier ones within its segment.

    Args:
      segment_ids: segment ids of packed examples; None for one segment without padding.
      prefix: above 0 where positions of one segment see each other both ways (a prefix LM's
        inputs).
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
    """Return the targets' mask of the inputs: all that is not padding, or their own segment.

    Raises:
      ValueError: one of the segment ids is given and the other is not.
    """
    if (segment_ids is None) != (target_segment_ids is None):
        raise ValueError("segment ids are given for both encoder and decoder, or for neither")
    if segment_ids is None:
        return Visibility(keys=tokens)
    return Visibility(keys=segment_ids, queries=target_segment_ids)
