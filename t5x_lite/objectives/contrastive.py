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
encoded under two dropout keys, and so are two views of it (SimCSE). A passage that is the same as
the query's own, or the answer of the same query in another row, is no negative.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool

from t5x_lite.data.layouts import Groups, Layout
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.dense import Dense, dense_of
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.models.pooling import Pooling, check_pooling
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.losses import cross_entropy
from t5x_lite.objectives.masked_lm import require_encoder
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Batch, Key

_FEATURES = ("query_tokens", "query_segment_ids", "passage_tokens", "passage_segment_ids")
_NEVER = -1e9
"""The score of what is no candidate; finite, so that a row of padding has no NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(Objective):
    """Cross-entropy of a query's own passage among those of the batch.

    Attributes:
      temperature: that scores are divided by.
      normalize: whether vectors have length 1, so that a score is a cosine; None is as the
        checkpoint says that the run begins from, and else True.
      pooling: "cls" or "mean" (`models.pooling`); None is as that checkpoint says, and else "cls".
    """

    temperature: float = 0.05
    normalize: bool | None = None
    pooling: Pooling | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Groups,)

    def __post_init__(self) -> None:
        if self.temperature <= 0.0:
            raise InputError(f"objective.temperature must be above 0: got {self.temperature}")
        if self.pooling is not None:
            check_pooling("objective.pooling", self.pooling)

    def forward_flops(self, model: Any, shapes: RowShapes) -> int:
        """FLOPs of one row: a query, and its passages; not of their scores."""
        (query,), (num, passage) = shapes["query_tokens"], shapes["passage_tokens"]
        return model.text_flops(query) + num * model.text_flops(passage)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ContrastiveLoss":
        """Makes the loss module, which has no parameters."""
        return ContrastiveLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """The head "dense", with the longest text and the prompts that are known."""
        return (self._dense(kept),)

    def _dense(self, kept: Mapping[str, Head]) -> Dense:
        head = dense_of(kept) or Dense(pooling="cls")
        return dataclasses.replace(
            head,
            pooling=head.pooling if self.pooling is None else self.pooling,
            normalize=head.normalize if self.normalize is None else self.normalize,
        )

    def resolved(self, kept: Mapping[str, Head]) -> "Contrastive":
        """With the pooling and the length that None leaves to the head."""
        head = self._dense(kept)
        return dataclasses.replace(self, pooling=head.pooling, normalize=head.normalize)

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """InfoNCE of the vectors of a whole batch.

        Args:
          rows: "queries" [B, D], and "passages" [B, P, D]: of each row the answer, then the hard
            negatives.
          batch: says which of the texts there are, and which are the same.
          step: not used.
        """
        queries, passages = rows["queries"], rows["passages"]
        num_rows, num, size = passages.shape
        # Every device needs all passages; the gradient goes back to those that made them.
        gathered = constrain(passages.reshape(num_rows * num, size), None, None)
        products = jnp.einsum("BD,ND->BN", queries, gathered, precision=jax.lax.Precision.HIGHEST)
        scores = jnp.where(candidates(batch), products / self.temperature, _NEVER)
        own = jnp.arange(num_rows, dtype=jnp.int32) * num
        losses, _ = cross_entropy(scores, own)
        weights = jnp.any(batch["query_segment_ids"] > 0, axis=1).astype(jnp.float32)
        own_scores = jnp.take_along_axis(scores, own[:, None], axis=1)[:, 0]
        right = (own_scores >= jnp.max(scores, axis=1)).astype(jnp.float32)
        total, weight = jnp.sum(losses * weights), jnp.sum(weights)
        return Loss(
            terms={"contrastive": Term(total, weight)},
            metrics={"accuracy": (jnp.sum(right * weights), weight)},
        )

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class ContrastiveLoss(nnx.Module):
    """The vectors of texts, of which `Contrastive.joint` makes the loss.

    Args:
      config: the objective.
    """

    def __init__(self, config: Contrastive):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The vectors of a batch of the layout Groups(), or of a part of one.

        Raises:
          InputError: the features are those of another layout.
        """
        missing = sorted(set(_FEATURES) - set(batch))
        if missing:
            raise InputError(
                f"objective Contrastive reads {', '.join(_FEATURES)}, but the batch has no "
                f"{', '.join(missing)}: data.layout must be groups"
            )
        return Loss(terms={}, metrics={}, rows=self.encode(model, heads, batch, key=key))

    def encode(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> dict[str, Array]:
        """The vectors of queries and passages; a key turns dropout on, of each its own."""
        query_key, passage_key = split_key(key, 2)
        rows, num, length = batch["passage_tokens"].shape

        def vectors(tokens: Array, segment_ids: Array, *, key: Key | None) -> Array:
            hidden = model(tokens, segment_ids=segment_ids, key=key)
            return heads["dense"](hidden, segment_ids)

        queries = vectors(batch["query_tokens"], batch["query_segment_ids"], key=query_key)
        passages = vectors(
            batch["passage_tokens"].reshape(rows * num, length),
            batch["passage_segment_ids"].reshape(rows * num, length),
            key=passage_key,
        )
        return {"queries": queries, "passages": passages.reshape(rows, num, -1)}


def candidates(batch: Batch) -> Bool[Array, "B N"]:
    """Which passages of the batch, N of them, a query is compared with: its own, and negatives.

    Args:
      batch: of the layout Groups(), B rows of N / B passages.
    """
    queries, passages = batch["query_tokens"], batch["passage_tokens"]
    rows, num, length = passages.shape
    there = jnp.any(batch["passage_segment_ids"] > 0, axis=2).reshape(1, rows * num)
    first = jnp.arange(num) == 0
    asked_again = jnp.all(queries[:, None] == queries[None], axis=2)
    answers_it = (asked_again[:, :, None] & first).reshape(rows, rows * num)
    flat = passages.reshape(1, rows * num, length)
    same_text = jnp.all(passages[:, :1] == flat, axis=2)
    own = jnp.arange(rows * num)[None] == jnp.arange(rows)[:, None] * num
    return (there & ~answers_it & ~same_text) | own
