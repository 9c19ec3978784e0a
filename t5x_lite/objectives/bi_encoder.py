"""Base of the retrieval objectives: vectors of texts, and scores within blocks of rows.

    rows = PairVectors(objective)(model, heads, batch).rows
    rows["queries"], rows["passages"]                   # float32 [B, D], [B, P, D]

One encoder computes all vectors, or queries and passages have separate encoders. The head "dense"
pools the hidden states, and may apply a projection. Rows have the features of data.layout Groups().

Other functions compute scores of queries and passages within blocks of consecutive rows:

    four rows, two passages each, blocks of two rows: a query has the scores of four passages
    row   0  1 | 2  3          passages of rows 0 and 1 | of rows 2 and 3

The size of a block is a number of rows, independent of the devices. Blocks do not interact, so
devices with complete blocks exchange no data; the passages of a single block are copied to all
devices.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Shaped

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Groups, Layout
from t5x_lite.models.base import RowShapes
from t5x_lite.models.heads import Head, HeadModules
from t5x_lite.models.t5 import T5Encoder
from t5x_lite.models.towers import Pooling, Towers
from t5x_lite.models.vector_heads import Dense, Role, dense_of, late_scores
from t5x_lite.models.vector_heads import scores as lexical_scores
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, LossModule, Objective

NumTowers = Literal["one", "two"]

_FEATURES = ("query_tokens", "query_segment_ids", "passage_tokens", "passage_segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiEncoder(Objective):
    """Base class of objectives that compute a vector of each query and of each passage.

    Attributes:
      normalize: True if vectors are scaled to length 1, so that a score is a cosine; if None, the
        initial checkpoint's setting, or else True.
      pooling: "cls" or "mean" (`models.towers`); if None, the initial checkpoint's setting, or else
        "cls".
      projection: dimensions of a vector after a linear layer that follows the pooling; if None, the
        initial checkpoint's setting, or else without this layer.
      tied_projection: True if queries and passages share the projection.
      towers: "one" encoder for queries and passages, or "two": passages have a separate encoder
        (`towers/passage`), which starts as a copy of the queries' encoder.
    """

    normalize: bool | None = None
    pooling: Pooling | None = None
    projection: int | None = None
    tied_projection: bool = True
    towers: NumTowers = "one"

    layouts: ClassVar[tuple[type[Layout], ...]] = (Groups,)
    of_encoder: ClassVar[bool] = True

    def with_one_tower(self) -> "BiEncoder":
        return dataclasses.replace(self, towers="one")

    def with_two_towers(self) -> "BiEncoder":
        return dataclasses.replace(self, towers="two")

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """Return the FLOPs for one row, a query and its passages; scores are not counted."""
        (query,), (num, passage) = shapes["query_tokens"], shapes["passage_tokens"]
        return model.text_flops(query) + num * model.text_flops(passage)

    def more_towers(self) -> tuple[str, ...]:
        return ("passage",) if self.towers == "two" else ()

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        return (self._dense(kept),)

    def _dense(self, kept: Mapping[str, Head]) -> Dense:
        head = dense_of(kept) or Dense(pooling="cls")
        return dataclasses.replace(
            head,
            pooling=head.pooling if self.pooling is None else self.pooling,
            normalize=head.normalize if self.normalize is None else self.normalize,
            **(
                {}
                if self.projection is None
                else {"projection": self.projection, "tied": self.tied_projection}
            ),
        )

    def resolved(self, kept: Mapping[str, Head]) -> "BiEncoder":
        head = self._dense(kept)
        return dataclasses.replace(
            self,
            pooling=head.pooling,
            normalize=head.normalize,
            projection=head.projection,
            tied_projection=head.tied,
        )

    def check_model(self, model: nnx.Module) -> None:
        """Raise InputError unless the model is an encoder, including T5's encoder."""
        if not isinstance(model, T5Encoder):
            super().check_model(model)


class PairVectors(LossModule):
    """Loss module that computes vectors of queries and passages, the first stage of a loss."""

    def __call__(
        self,
        model: Any,
        heads: HeadModules,
        batch: Batch,
        *,
        key: Key | None = None,
        towers: Towers | None = None,
    ) -> Loss:
        """Return a loss without terms, with the vectors of a batch or microbatch as its rows."""
        check_groups(self.config, batch)
        rows = self.encode(model, heads, batch, key=key, towers=towers)
        return Loss(terms={}, metrics={}, rows=rows)

    def encode(
        self,
        model: Any,
        heads: HeadModules,
        batch: Batch,
        *,
        key: Key | None = None,
        towers: Towers | None = None,
    ) -> dict[str, Array]:
        """Return the vectors of queries and passages; a key enables dropout."""
        query_key, passage_key = split_key(key, 2)
        rows, num, length = batch["passage_tokens"].shape
        passage_model = model if towers is None else towers["passage"]

        def vectors(
            model: Any, tokens: Array, segment_ids: Array, *, role: Role, key: Key | None
        ) -> Array:
            hidden = model(tokens, segment_ids=segment_ids, key=key)
            return heads["dense"](hidden, segment_ids, role=role)

        asked = (batch["query_tokens"], batch["query_segment_ids"])
        shown = (batch["passage_tokens"], batch["passage_segment_ids"])
        flat = [x.reshape(rows * num, length) for x in shown]
        queries = vectors(model, *asked, role="query", key=query_key)
        passages = vectors(passage_model, *flat, role="passage", key=passage_key)
        return {"queries": queries, "passages": passages.reshape(rows, num, -1)}


def check_groups(objective: Objective, batch: Batch) -> None:
    """Raise InputError, naming missing features, unless the batch has the layout `Groups`."""
    missing = sorted(set(_FEATURES) - set(batch))
    if missing:
        raise InputError(
            f"objective {type(objective).__name__} reads {', '.join(_FEATURES)}, but the batch has "
            f"no {', '.join(missing)}: data.layout must be groups"
        )


def own_block(x: Shaped[Array, "B N"], block: int) -> Shaped[Array, "B M"]:
    """Select each query's values (such as scores) for the passages in its block.

    Args:
      x: values of B queries for all N passages, N / B per row.
      block: number of rows per block.
    """
    size = x.shape[1] // len(x) * block
    first = jnp.arange(len(x)) // block * size
    return jnp.take_along_axis(x, first[:, None] + jnp.arange(size), axis=1)


def own_group(x: Shaped[Array, "B M"], block: int, num: int) -> Shaped[Array, "B P"]:
    """Select each query's values for its own `num` passages, from the result of `own_block`."""
    first = jnp.arange(len(x)) % block * num
    return jnp.take_along_axis(x, first[:, None] + jnp.arange(num), axis=1)


def of_lexical(rows: Mapping[str, Array], batch: Batch, *, block: int) -> Float[Array, "B M"]:
    """Return lexical scores of queries and the passages of their blocks, by common terms.

    Args:
      rows: "query_terms" [B, Lq] and "passage_terms" [B, P, Lp], from `LexicalHead.terms`.
      batch: batch with the tokens.
      block: number of rows per block.
    """
    asked = _of_queries(batch["query_tokens"], block), _of_queries(rows["query_terms"], block)
    shown = (
        _of_passages(batch["passage_tokens"], block),
        _of_passages(rows["passage_terms"], block),
    )
    return _flat(jax.vmap(lexical_scores)(asked, shown))


def of_multi_vectors(rows: Mapping[str, Array], batch: Batch, *, block: int) -> Float[Array, "B M"]:
    """Return multi-vector scores of queries and the passages of their blocks.

    Args:
      rows: "query_vectors" [B, Lq - 1, K] and "passage_vectors" [B, P, Lp - 1, K], from
        `MultiVectorHead`.
      batch: batch with the segment ids; 0 is padding.
      block: number of rows per block.
    """
    asked = batch["query_segment_ids"][:, 1:] > 0
    shown = batch["passage_segment_ids"][:, :, 1:] > 0
    return _flat(
        late_scores(
            (_of_queries(rows["query_vectors"], block), _of_queries(asked, block)),
            (_of_passages(rows["passage_vectors"], block), _of_passages(shown, block)),
        )
    )


def _of_queries(x: Array, block: int) -> Array:
    """Reshape [B, ...] to [blocks, rows, ...]."""
    return x.reshape(-1, block, *x.shape[1:])


def _of_passages(x: Array, block: int) -> Array:
    """Reshape [B, P, ...] to [blocks, rows * P, ...]."""
    found = x.reshape(-1, block * x.shape[1], *x.shape[2:])
    return constrain(found, *[None] * found.ndim) if len(found) == 1 else found


def _flat(scores: Float[Array, "A G M"]) -> Float[Array, "B M"]:
    return scores.reshape(-1, scores.shape[2])
