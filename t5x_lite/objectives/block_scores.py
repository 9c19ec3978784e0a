"""Scores of queries and passages that are made within blocks of rows that follow each other.

    four rows, two passages each, blocks of two rows: a query has the scores of four passages
    row   0  1 | 2  3          passages of rows 0 and 1 | of rows 2 and 3

A block is a number of rows, whatever the devices. Blocks are apart from each other, so devices that
have whole ones exchange nothing; a single block's passages go to all of them.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from t5x_lite.heads.lexical import scores as lexical_scores
from t5x_lite.heads.multi_vector import late_scores
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Batch


def own_block(x: Shaped[Array, "B N"], block: int) -> Shaped[Array, "B M"]:
    """Of numbers of each query and all passages, those of the passages of the query's block.

    Args:
      x: N / B passages a row.
      block: rows.
    """
    size = x.shape[1] // len(x) * block
    first = jnp.arange(len(x)) // block * size
    return jnp.take_along_axis(x, first[:, None] + jnp.arange(size), axis=1)


def own_group(x: Shaped[Array, "B M"], block: int, num: int) -> Shaped[Array, "B P"]:
    """Of numbers of a block's passages, those of each query's own.

    Args:
      x: of `own_block`.
      block: rows.
      num: passages of a row.
    """
    first = jnp.arange(len(x)) % block * num
    return jnp.take_along_axis(x, first[:, None] + jnp.arange(num), axis=1)


def of_lexical(rows: Mapping[str, Array], batch: Batch, *, block: int) -> Float[Array, "B M"]:
    """Scores of common terms.

    Args:
      rows: "query_terms" [B, Lq] and "passage_terms" [B, P, Lp], of `LexicalHead.terms`.
      batch: has the tokens.
      block: rows.
    """
    asked = _of_queries(batch["query_tokens"], block), _of_queries(rows["query_terms"], block)
    shown = (
        _of_passages(batch["passage_tokens"], block),
        _of_passages(rows["passage_terms"], block),
    )
    return _flat(jax.vmap(lexical_scores)(asked, shown))


def of_multi_vectors(rows: Mapping[str, Array], batch: Batch, *, block: int) -> Float[Array, "B M"]:
    """Scores of vectors of tokens.

    Args:
      rows: "query_vectors" [B, Lq - 1, K] and "passage_vectors" [B, P, Lp - 1, K], of
        `MultiVectorHead`.
      batch: says what is padding.
      block: rows.
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
    """[B, ...] as [blocks, rows, ...]."""
    return x.reshape(-1, block, *x.shape[1:])


def _of_passages(x: Array, block: int) -> Array:
    """[B, P, ...] as [blocks, rows * P, ...]."""
    found = x.reshape(-1, block * x.shape[1], *x.shape[2:])
    return constrain(found, *[None] * found.ndim) if len(found) == 1 else found


def _flat(scores: Float[Array, "A G M"]) -> Float[Array, "B M"]:
    return scores.reshape(-1, scores.shape[2])
