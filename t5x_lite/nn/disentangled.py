"""Disentangled attention of DeBERTa v2 and v3 (He et al. 2020, section 3.1; He et al. 2021).

A token is seen by its content and by its distance; R is a table of distances for all layers:

    A[q, k] = (Q[q] K[k] + Q[q] Kr[I(q - k)] + K[k] Qr[I(q - k)]) / sqrt(3 d)
              content      content to position  position to content

    I(r) = b(r) + S          Kr, Qr: keys and queries of the rows of R, S of them to either side
    b(r) = r                 as far as a half of S
    b(r) = the logarithm     beyond: with S = 8 and max_positions 16,
                             r    0 1 2 3 4 5 6 7 8 9 10 ... 15 16
                             b(r) 0 1 2 3 4 5 5 6 6 6  7 ...  7  8
    I(r) is clipped to 0, ..., 2 S - 1: rows longer than max_positions read row 0, only to the left.

Both terms read the SAME row. The paper writes the second with the distance of k from q; its
released weights were not trained with that (microsoft/DeBERTa disentangled_attention.py:145,155).

The table is first written out by distance; `t5x_lite.nn.attention_pattern` does the rest.
"""

import dataclasses
import functools
import math
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.attention import Attention, dropped_values, of_rows
from t5x_lite.nn.attention_pattern import Distances, Operands, Pattern, attend, attend_in_blocks
from t5x_lite.nn.dense import Dense, lookup, truncated_normal
from t5x_lite.nn.dropout import dropout, split_key
from t5x_lite.nn.layers import PostNormConfig, PostNormLayer
from t5x_lite.nn.masks import Visibility

Term = Literal["c2p", "p2c"]
"""Content to position, position to content. Position to position (p2p) is broken in the source."""


@functools.cache
def log_buckets(
    position_buckets: int, max_positions: int, num: int | None = None
) -> tuple[int, ...]:
    """Return b(0), b(1), ..., by exact arithmetic: no logarithm is rounded.

    b(n) = n up to mid = position_buckets // 2, and beyond it
    ceil(log(n / mid) / log((max_positions - 1) / mid) * (mid - 1)) + mid.

    Args:
      position_buckets: S; the values of distances below max_positions are below it.
      max_positions: the distance from which on values reach S, or S - 1 if it is odd.
      num: number of distances; None is max_positions.

    Raises:
      ValueError: fewer than 2 buckets, or max_positions not above a half of them by 2.

    Source: microsoft/DeBERTa deberta/da_utils.py, make_log_bucket_position.
    """
    mid, last = position_buckets // 2, max_positions - 1
    if position_buckets < 2 or last <= mid:
        raise ValueError(
            "log buckets need at least 2 buckets and max_positions - 1 above a half of them: got "
            f"{position_buckets} and {max_positions}"
        )
    num = max_positions if num is None else num
    buckets = list(range(min(mid + 1, num)))
    step = 0
    for distance in range(mid + 1, num):
        # (distance / mid) ** (mid - 1) <= (last / mid) ** step, in integers
        while distance ** (mid - 1) * mid**step > last**step * mid ** (mid - 1):
            step += 1
        buckets.append(mid + step)
    return tuple(buckets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativePositions:
    """Settings of relative positions.

    Attributes:
      position_buckets: S, log buckets to either side; 0 for one row per distance.
      max_positions: distances from here on share a row on either side; without log buckets, S.
      terms: set of content to position ("c2p") and position to content ("p2c").
      shared: True if the keys' and queries' projections also make Kr and Qr (share_att_key); if
        False, Kr and Qr have separate projections.

    Raises:
      ValueError: another term (p2p too), none or one twice, or sizes that make no buckets.
    """

    position_buckets: int = 256
    max_positions: int = 512
    terms: tuple[str, ...] = ("p2c", "c2p")
    shared: bool = True

    def __post_init__(self) -> None:
        known = get_args(Term)
        if not self.terms or len({*self.terms}) < len(self.terms) or {*self.terms} - {*known}:
            raise ValueError(
                f"the terms of disentangled attention are some of {', '.join(known)}, each once: "
                f"got {self.terms}"
            )
        if self.position_buckets < 0 or self.max_positions < 1:
            raise ValueError(
                "position_buckets must be at least 0 and max_positions at least 1: got "
                f"{self.position_buckets} and {self.max_positions}"
            )
        if self.position_buckets:
            log_buckets(self.position_buckets, self.max_positions)

    @property
    def span(self) -> int:
        """S: the table has 2 S rows."""
        return self.position_buckets or self.max_positions

    def index(self, length: int) -> Int[np.ndarray, " W"]:
        """I(r) of r = -(length - 1), ..., length - 1."""
        distance = np.arange(1 - length, length)
        if self.position_buckets:
            buckets = log_buckets(self.position_buckets, self.max_positions, length)
            distance = np.sign(distance) * np.asarray(buckets)[np.abs(distance)]
        return np.clip(distance + self.span, 0, 2 * self.span - 1).astype(np.int32)

    def distances(self, table: Float[Array, "R D"], length: int) -> Distances:
        """Return the part of the table [2 S, D] that positions 0, ..., length - 1 need."""
        index = self.index(length)
        first, last = int(index.min()), int(index.max())
        return Distances(table[first : last + 1], index - first)


class DisentangledAttention(Attention):
    """Attention by content and by distance; the residual is not part of it.

    Args:
      config: sizes of the layer.
      relative: settings of relative positions.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: PostNormConfig, relative: RelativePositions, *, rngs: nnx.Rngs):
        super().__init__(config.d_model, **config.attention, rngs=rngs)
        own = () if relative.shared else relative.terms

        def dense() -> Dense:
            sizes, axes = (config.d_model, config.d_model), ("embed", "joined_kv")
            init = truncated_normal(config.initializer_stddev)
            return Dense(*sizes, axes=axes, initializer=init, bias=True, rngs=rngs)

        if "c2p" in own:
            self.position_key = dense()
        if "p2c" in own:
            self.position_query = dense()
        self.terms = relative.terms
        self.shared = relative.shared
        self.position_dropout_rate = config.dropout_rate
        # Each of the terms has d summands.
        self.scale = 1.0 / math.sqrt(self.d_kv * (1 + len(self.terms)))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B T D"],
        *,
        pattern: Pattern,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Attends from x to the source, which is of the same length.

        Args:
          x: source of the queries.
          source: source of keys and values.
          pattern: positions that each position attends to; a position without any gets zeros. With
            a `Visibility`, only its segments are used, and attention takes a block of queries at a
            time. The bias is the distances: rows of the relative table, after its norm and before
            dropout.
          key: turns dropout on, of weights and of the table.
        """
        mask: Any = pattern.mask
        distances = pattern.bias
        if not isinstance(distances, Distances):
            raise ValueError("disentangled attention needs a pattern with Distances as its bias")
        weights_key, table_key = split_key(key, 2)
        queries = self.queries(x, mask)
        keys, values = (self.heads(of(source, mask), None) for of in (self.key, self.value))
        rows = dropout(distances.rows, self.position_dropout_rate, key=table_key)
        rows = rows.astype(x.dtype)
        position_key = position_query = None
        if "c2p" in self.terms:
            project = self.key if self.shared else self.position_key
            # Counted from the key on: by the query, so the other way round.
            position_key = self._written_out(project(rows), distances.index[::-1])
        if "p2c" in self.terms:
            project = self.query if self.shared else self.position_query
            projected = (project.product(rows) * self.scale).astype(x.dtype)
            position_query = self._written_out(projected, distances.index)
        before = self.own_prefix(x, mask)
        if before is not None:
            before = of_rows(before, len(x), self.dropout_rate, key=weights_key)
        values, draws = dropped_values(
            values, self.dropout_rate, key=weights_key, share=self.share_dropout
        )
        operands = Operands(queries, keys, values, position_key, position_query, *(before or ()))
        if not isinstance(mask, Visibility):
            return self.close(attend(operands, mask, draws), mask)
        others = mask.causal or mask.hidden is not None or not mask.itself
        if mask.keys is None or mask.queries is None or others:
            raise ValueError("disentangled attention in blocks sees segments, and nothing else")
        out = attend_in_blocks(operands, mask.keys, block=mask.block_size, draws=draws)
        return self.close(out, mask)

    def _written_out(self, rows: Float[Array, "R D"], index: np.ndarray) -> Array:
        """Return the heads of a row for each distance: [W, H, K]."""
        return lookup(rows, jnp.asarray(index)).reshape(index.size, self.num_heads, -1)


class DisentangledLayer(PostNormLayer):
    """A post-norm layer with disentangled attention.

    Args:
      config: its sizes.
      relative: settings of relative positions.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: PostNormConfig, relative: RelativePositions, *, rngs: nnx.Rngs):
        self.relative = relative
        super().__init__(config, rngs=rngs)

    def make_attention(self, config: PostNormConfig, *, rngs: nnx.Rngs) -> DisentangledAttention:
        """Return the layer's attention; its pattern has the table's rows after its norm."""
        return DisentangledAttention(config, self.relative, rngs=rngs)
