"""Contrastive training of a bi-encoder: InfoNCE with the other passages of the batch as negatives.

One encoder reads queries and passages apart; a text's vector is pooled from its states. A query's
own passage must be closer to it than all other passages of the batch, those of other queries and
the hard negatives of Groups() alike (Oord et al. 2018, arXiv:1807.03748; Karpukhin et al.
2020, arXiv:2004.04906; Gao et al. 2021, arXiv:2104.08821):

    loss of query i = -log( exp(s_ii / t) / sum_j exp(s_ij / t) ),     s_ij = q_i . p_j

    two queries, a passage each, t = 1:
    q = [[1, 0], [0, 1]], p = [[1, 0], [1, 1]]:  s = [[1, 1], [0, 1]]
    losses log 2 and log(1 + 1/e)

The passages are those of the whole batch, whatever devices it is spread over: they are gathered,
and the gradient is that of one device (RetroMAE's code gathers, and then averages the gradients of
the devices, which makes them too small by their number). Microbatches have the passages of the
whole batch, too: the loss has two stages (`objectives.base`), vectors of texts and a loss of all
vectors, which is gradient caching (Gao et al. 2021, arXiv:2101.06983).

Without labels, a text is query and passage at once (task tasks.pairs:same_text): the two are
encoded under two dropout keys, and so are two views of it (SimCSE). Which passages are no negatives
is said in `objectives.candidates`.

    dpr()         dot product, t 1, [CLS], an encoder for passages of its own
    retromae()    dot product, t 1, [CLS], one encoder
    bge()         cosine, t 0.02, [CLS], one encoder
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.errors import InputError
from t5x_lite.heads.dense import unit
from t5x_lite.models.base import ModelConfig
from t5x_lite.objectives.base import Loss, Term
from t5x_lite.objectives.bi_encoder import BiEncoder, PairVectors
from t5x_lite.objectives.candidates import BATCH, asking, candidates, check_scope
from t5x_lite.objectives.losses import correct, cross_entropy
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Batch

NEVER = -1e9
"""The score of what is no candidate; finite, so that a row of padding has no NaN."""
DOT: dict[str, Any] = {"temperature": 1.0, "normalize": False, "pooling": "cls"}
"""Fields of dot products of [CLS] states."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(BiEncoder):
    """Cross-entropy of a query's own passage among those that it is compared with.

    Attributes:
      temperature: that scores are divided by; in training alone.
      candidates: "batch", the passages of all rows; "group", those of the query's own row; or
        "block:N", those of N rows that follow each other, whatever the devices.
      symmetric: whether the queries compete for the first passages, too; the loss is the mean of
        both. For parallel texts.
    """

    temperature: float = 0.05
    candidates: str = BATCH
    symmetric: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0.0:
            raise InputError(f"objective.temperature must be above 0: got {self.temperature}")
        check_scope(self.candidates)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> PairVectors:
        """Makes the module of the first stage, which has no parameters."""
        del model, rngs
        return PairVectors(self)

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """InfoNCE of the vectors of a whole batch.

        Args:
          rows: "queries" [B, D], and "passages" [B, P, D]: of each row the answer, then the hard
            negatives.
          batch: says which of the texts there are, and which are the same.
          step: not used.
        """
        scores = self.scores(rows)
        real = jnp.any(batch["query_segment_ids"] > 0, axis=1).astype(jnp.float32)
        loss, weight = self.info_nce(scores, batch, real), jnp.sum(real)
        return Loss(
            terms={"contrastive": Term(loss, weight)},
            metrics={
                **of_scores(scores, candidates(batch, self.candidates), real),
                **of_vectors(rows, real),
            },
        )

    def scores(self, rows: Mapping[str, Array]) -> Float[Array, "B N"]:
        """Products of each query and each passage of the batch, not divided by the temperature."""
        passages = rows["passages"]
        # Every device needs all passages; the gradient goes back to those that made them.
        gathered = constrain(passages.reshape(-1, passages.shape[2]), None, None)
        highest = jax.lax.Precision.HIGHEST
        return jnp.einsum("BD,ND->BN", rows["queries"], gathered, precision=highest)

    def info_nce(
        self, scores: Float[Array, "B N"], batch: Batch, real: Float[Array, " B"]
    ) -> Float[Array, ""]:
        """The sum of the losses of real queries.

        Args:
          scores: of `scores`.
          batch: of the layout Groups().
          real: 1 for a query, and 0 for a row of padding.
        """
        num_rows, num = batch["passage_tokens"].shape[:2]
        scaled, rows = scores / self.temperature, jnp.arange(num_rows, dtype=jnp.int32)
        may = candidates(batch, self.candidates)
        losses, _ = cross_entropy(jnp.where(may, scaled, NEVER), rows * num)
        total = jnp.sum(losses * real)
        if not self.symmetric:
            return total
        back = jnp.where(asking(batch, self.candidates), scaled[:, ::num].T, NEVER)
        losses, _ = cross_entropy(back, rows)
        return (total + jnp.sum(losses * real)) / 2


def dpr(**fields: Any) -> Contrastive:
    """Two encoders, dot products of their [CLS] states (Karpukhin et al. 2020)."""
    return Contrastive(**{**DOT, "towers": "two", **fields})


def retromae(**fields: Any) -> Contrastive:
    """One encoder, dot products of its [CLS] states, as RetroMAE is fine-tuned."""
    return Contrastive(**{**DOT, **fields})


def bge(**fields: Any) -> Contrastive:
    """One encoder, cosines of its [CLS] states, temperature 0.02, as BGE is fine-tuned."""
    return Contrastive(**{"temperature": 0.02, "normalize": True, "pooling": "cls", **fields})


def of_scores(
    scores: Float[Array, "B N"], may: Bool[Array, "B N"], real: Float[Array, " B"]
) -> dict[str, tuple[Array, Array]]:
    """Metrics of a batch's scores: accuracy, and the means of what decides it.

    Args:
      scores: products of queries and passages.
      may: what each query is compared with, its own passage included.
      real: 1 for a query, and 0 for a row of padding.
    """
    num_rows, num = scores.shape[0], scores.shape[1] // scores.shape[0]
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    own = rows * num
    own_scores = jnp.take_along_axis(scores, own[:, None], axis=1)[:, 0]
    others = may & (jnp.arange(scores.shape[1])[None] != own[:, None])
    hardest = jnp.max(jnp.where(others, scores, -jnp.inf), axis=1)
    has_others = jnp.any(others, axis=1) * real
    right = correct(jnp.where(others, scores, -jnp.inf).at[rows, own].set(own_scores), own_scores)
    weight = jnp.sum(real)
    return {
        "accuracy": (jnp.sum(right * real), weight),
        "own_score": (jnp.sum(own_scores * real), weight),
        "hardest_negative_score": (
            jnp.sum(jnp.where(has_others > 0, hardest, 0.0)),
            jnp.sum(has_others),
        ),
    }


def of_vectors(
    rows: Mapping[str, Array], real: Float[Array, " B"]
) -> dict[str, tuple[Array, Array]]:
    """How near queries and answers are, and how evenly vectors lie on the sphere.

    Alignment is E |f(q) - f(p)|^2 of a query and its passage, uniformity log E exp(-2 |x - y|^2) of
    different texts of the batch, the mean of that of queries and that of first passages; both of
    vectors at length 1 (Wang and Isola 2020, arXiv:2005.10242). Uniformity is that of each batch,
    and the mean of these over several.

    Args:
      rows: see `Contrastive.joint`.
      real: 1 for a query, and 0 for a row of padding.
    """
    queries = unit(jax.lax.stop_gradient(rows["queries"]))
    passages = unit(jax.lax.stop_gradient(rows["passages"][:, 0]))
    weight = jnp.sum(real)
    apart = jnp.sum(jnp.square(queries - passages), axis=1)
    pairs = real[:, None] * real[None] * (1.0 - jnp.eye(len(real)))
    spread = jnp.float32(0)
    for vectors in (queries, passages):
        # |x - y|^2 = 2 - 2 x.y of vectors of length 1.
        cosines = jnp.einsum("BD,CD->BC", vectors, constrain(vectors, None, None))
        mean = jnp.sum(jnp.exp(4.0 * (cosines - 1.0)) * pairs) / jnp.maximum(jnp.sum(pairs), 1.0)
        spread += 0.5 * jnp.log(jnp.maximum(mean, 1e-30))
    return {
        "alignment": (jnp.sum(apart * real), weight),
        "uniformity": (spread * weight, weight),
    }
