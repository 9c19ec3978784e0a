"""coCondenser: Condenser on spans of documents, whose [CLS] states know their document.

Gao & Callan 2022, arXiv:2108.05540, and the code of luyug/Condenser. A row has two spans of one
document (`layouts.Spans`). Each span has Condenser's losses; and its last [CLS] state must be
closer to that of the other span of its document than to all other spans of the batch:

    C = [CLS] states of the 2 B spans, float32, as they are: no norm, no temperature
    S = C C^T,  S_ii = -inf;   contrastive loss = mean_i ( logsumexp_j S_ij - S_{i, other span} )

    C = [1 0] [1 1] [0 1] [0 2], two documents:   S =  -  1  0  0       losses .551
                                                       1  -  1  2             1.551
                                                       0  1  -  2              .408
                                                       0  2  2  -              .759

The spans are those of the whole batch, on all devices and in all microbatches: the loss has two
stages (`objectives.base`), and microbatches, of documents, are the paper's gradient caching. Each
term is a sum over the batch by its own weight, so that a microbatch changes no weight; in the
reference's cached step the masked-LM terms weigh twice what they weigh without a cache, as its
chunks count spans and its batch documents (modeling.py:227). A span that has the tokens of either
span of the pair is no negative; there it is one.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool

from t5x_lite.data.layouts import Layout, Spans
from t5x_lite.heads.base import HeadModules
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.bert import Bert
from t5x_lite.objectives.base import Loss, Term
from t5x_lite.objectives.condenser import Condenser, CondenserLoss
from t5x_lite.objectives.losses import correct, cross_entropy
from t5x_lite.objectives.masked_lm import check_batch
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Batch, Key

_NEVER = -1e9
"""The score of what is no candidate; finite, so that a row of padding has no NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoCondenser(Condenser):
    """Condenser and a contrastive loss of spans; the fields are those of `Condenser`."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (Spans,)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "CoCondenserLoss":
        """Makes the loss module, whose parameters are those of the head's layers."""
        return CoCondenserLoss(self, self.checked(model), rngs=rngs)

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """The contrastive loss of the spans of a whole batch.

        Args:
          rows: "summaries" [B, 2, D], float32.
          batch: says which spans there are, and which are the same.
          step: not used.
        """
        documents, num, size = rows["summaries"].shape
        own = rows["summaries"].reshape(documents * num, size)
        # Every device needs all spans; the gradient goes back to those that made them.
        gathered = constrain(own, None, None)
        products = jnp.einsum("BD,ND->BN", own, gathered, precision=jax.lax.Precision.HIGHEST)
        scores = jnp.where(candidates(batch), products, _NEVER)
        other = jnp.arange(documents * num, dtype=jnp.int32) ^ 1
        losses, _ = cross_entropy(scores, other)
        there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2)
        weights = jnp.repeat(jnp.all(there, axis=1), num).astype(jnp.float32)
        score = jnp.take_along_axis(scores, other[:, None], axis=1)[:, 0]
        right = correct(scores, score)
        total, weight = jnp.sum(losses * weights), jnp.sum(weights)
        return Loss(
            terms={"contrastive": Term(total, weight)},
            metrics={
                "contrastive_cross_entropy": (total, weight),
                "contrastive_accuracy": (jnp.sum(right * weights), weight),
            },
        )


class CoCondenserLoss(CondenserLoss):
    """Condenser's sums over spans, and the spans' [CLS] states."""

    def __call__(
        self, model: Bert, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of the layout Spans(), or of a part of one.

        Raises:
          InputError: the features are those of another layout.
        """
        check_batch(self.config, batch)
        documents, num, length = batch["encoder_input_tokens"].shape
        flat = {
            name: value.reshape(documents * num, length)
            for name, value in batch.items()
            if name.startswith("encoder_")
        }
        loss, summaries = self.condensed(model, heads, flat, key=key)
        return loss._replace(rows={"summaries": summaries.reshape(documents, num, -1)})


def candidates(batch: Batch) -> Bool[Array, "N N"]:
    """Which spans of the batch a span is compared with: the other of its document, and negatives.

    Args:
      batch: of the layout Spans(), N / 2 documents.
    """
    documents, num, length = batch["encoder_input_tokens"].shape
    tokens = batch["encoder_input_tokens"].reshape(documents * num, length)
    there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2).reshape(-1)
    place = jnp.arange(documents * num)
    other = place ^ 1
    same = jnp.all(tokens[:, None] == tokens[None], axis=2)
    is_other = place[None] == other[:, None]
    return (there[None] & ~same & ~same[other]) | is_other
