"""Disentangled attention of DeBERTa v2 and v3 (He et al. 2020, section 3.1; He et al. 2021).

Attention scores depend on the content of two tokens and on their distance. R is the relative
position embedding, shared by all layers:

    A[q, k] = (Q[q] K[k] + Q[q] Kr[I(q - k)] + K[k] Qr[I(q - k)]) / sqrt(3 d)
              content      content to position  position to content

    I(r) = b(r) + S          Kr, Qr: keys and queries of the 2 S rows of R, S rows to either side
    b(r) = r                 up to half of S
    b(r) = logarithmic       beyond half of S: with S = 8 and max_positions 16,
                             r    0 1 2 3 4 5 6 7 8 9 10 ... 15 16
                             b(r) 0 1 2 3 4 5 5 6 6 6  7 ...  7  8
    I(r) is clipped to 0, ..., 2 S - 1: rows longer than max_positions read row 0, only to the left.

Both terms read the SAME row of R. In the paper, the second term uses the distance of k from q, but
the released weights were not trained with it (microsoft/DeBERTa disentangled_attention.py:145,155).

This module expands the embedding by distance; `t5x_lite.nn.attention_pattern` computes the
attention.
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
from t5x_lite.nn.dense import Dense, dropout, lookup, split_key, truncated_normal
from t5x_lite.nn.layers import PostNormConfig, PostNormLayer
from t5x_lite.nn.masks import Visibility

Term = Literal["c2p", "p2c"]
"""Term of the attention score: content to position, or position to content.

Microsoft's code also has position to position (p2p), which is broken there.
"""


@functools.cache
def log_buckets(
    position_buckets: int, max_positions: int, num: int | None = None
) -> tuple[int, ...]:
    """Return the logarithmic bucket b(n) of each distance n = 0, 1, ..., in exact arithmetic.

        b(n) = n    up to mid = position_buckets // 2, and beyond mid
        b(n) = ceil(log(n / mid) / log((max_positions - 1) / mid) * (mid - 1)) + mid

    Args:
      position_buckets: number of buckets S.
      max_positions: bound of the distances; all distances below it have buckets below S.
      num: number of distances; default: max_positions.

    Raises:
      ValueError: if there are fewer than 2 buckets, or max_positions - 1 is at most half of them.

    Source: microsoft/DeBERTa deberta/da_utils.py, make_log_bucket_position.
    """
    mid, last = position_buckets // 2, max_positions - 1
    if position_buckets < 2 or last <= mid:
        raise ValueError(
            "log buckets need position_buckets of at least 2 and max_positions - 1 above half of "
            f"position_buckets, but got {position_buckets} and {max_positions}"
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
    """Settings of DeBERTa's relative positions.

    Attributes:
      position_buckets: number of logarithmic buckets on each side; 0 for one row per distance.
      max_positions: distance from which on all distances of one side share a row.
      terms: terms of the attention score: "c2p" (content to position), "p2c" (position to content).
      shared: True to project distances by the projections of keys and queries (share_att_key);
        False for separate projections.

    Raises:
      ValueError: if a term is unknown or repeated, no term is given, or the sizes allow no buckets.
    """

    position_buckets: int = 256
    max_positions: int = 512
    terms: tuple[str, ...] = ("p2c", "c2p")
    shared: bool = True

    def __post_init__(self) -> None:
        known = get_args(Term)
        if not self.terms or len({*self.terms}) < len(self.terms) or {*self.terms} - {*known}:
            raise ValueError(
                f"disentangled attention needs one or more of the terms {', '.join(known)}, each "
                f"once, but got {self.terms}"
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
        """Number S of relative positions on each side; the relative embedding has 2 S rows."""
        return self.position_buckets or self.max_positions

    def index(self, length: int) -> Int[np.ndarray, " W"]:
        """Return the embedding row of each distance r = -(length - 1), ..., length - 1."""
        distance = np.arange(1 - length, length)
        if self.position_buckets:
            buckets = log_buckets(self.position_buckets, self.max_positions, length)
            distance = np.sign(distance) * np.asarray(buckets)[np.abs(distance)]
        return np.clip(distance + self.span, 0, 2 * self.span - 1).astype(np.int32)

    def distances(self, table: Float[Array, "R D"], length: int) -> Distances:
        """Return the relative embeddings of all distances in a sequence of `length` positions."""
        index = self.index(length)
        first, last = int(index.min()), int(index.max())
        return Distances(table[first : last + 1], index - first)


class DisentangledAttention(Attention):
    """Attention by content and by distance, without the residual connection.

    Args:
      config: sizes of the layer.
      relative: settings of relative positions.
      rngs: random streams; "params" is used.
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
        """Attend from x to a source of the same length.

        Args:
          x: source of the queries.
          source: source of keys and values.
          pattern: mask, and a bias of class `Distances` that holds rows of the normalized relative
            embedding. A position without visible keys gets zeros. With a `Visibility`, only its
            segments are used, and attention is computed in blocks of queries, or by the kernel for
            TPUs. A prefix disables the kernel.
          key: random key of the dropout of weights and relative embedding; None disables dropout.
        """
        mask: Any = pattern.mask
        distances = pattern.bias
        if not isinstance(distances, Distances):
            raise ValueError(
                "disentangled attention requires a bias of class Distances, got "
                f"{type(distances).__name__}"
            )
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
            before = of_rows(before, x.shape[0], self.dropout_rate, key=weights_key)
        values, draws = dropped_values(
            values, self.dropout_rate, key=weights_key, share=self.share_dropout
        )
        operands = Operands(queries, keys, values, position_key, position_query, *(before or ()))
        if not isinstance(mask, Visibility):
            return self.close(attend(operands, mask, draws), mask)
        others = mask.causal or mask.hidden is not None or not mask.itself
        if mask.keys is None or mask.queries is None or others:
            raise ValueError(
                "disentangled attention in blocks of keys requires a mask made only of segment ids"
            )
        attention = attend_in_blocks
        if mask.kernel and before is None:
            # Late: importing Pallas takes as long as importing this package.
            from t5x_lite.nn.pallas_disentangled import pallas_disentangled as attention
        out = attention(operands, mask.keys, block=mask.block_size, draws=draws)
        return self.close(out, mask)

    def _written_out(self, rows: Float[Array, "R D"], index: np.ndarray) -> Array:
        return lookup(rows, jnp.asarray(index)).reshape(index.size, self.num_heads, -1)


class DisentangledLayer(PostNormLayer):
    """Post-norm layer with disentangled attention.

    Args:
      config: sizes of the layer.
      relative: settings of relative positions.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: PostNormConfig, relative: RelativePositions, *, rngs: nnx.Rngs):
        self.relative = relative
        super().__init__(config, rngs=rngs)

    def make_attention(self, config: PostNormConfig, *, rngs: nnx.Rngs) -> DisentangledAttention:
        return DisentangledAttention(config, self.relative, rngs=rngs)
