"""Pairs of texts with a grade, and triplets: what sentence encoders are also trained on.

    CosineRegression(scale=5.0)     # (cos(a, b) - grade / 5)^2: STS-B, tasks.pairs:stsb
    Triplets(margin=1.0)            # max(0, |q - p| - |q - n| + margin) of each negative n

Both are sums over rows, so that microbatches are plain ones. Rows are those of data.layout
Groups(): of a pair the first text is the query, the second a passage, and the grade the teacher's
score (`Groups(teacher=True)`). Source: Reimers and Gurevych 2019, arXiv:1908.10084, section 3.
"""

import dataclasses
from typing import Any, Literal, get_args

import jax.numpy as jnp
from flax import nnx

from t5x_lite.errors import InputError
from t5x_lite.heads.base import HeadModules
from t5x_lite.heads.dense import unit
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.towers import Towers
from t5x_lite.objectives.base import Loss, Term
from t5x_lite.objectives.bi_encoder import BiEncoder, PairVectors, check_groups
from t5x_lite.types import Array, Batch, Key

Distance = Literal["euclidean", "cosine"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineRegression(BiEncoder):
    """The squared error of cosines.

    Attributes:
      scale: that grades are divided by, so that they are in [-1, 1].
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale > 0.0:
            raise InputError(f"objective.scale must be above 0: got {self.scale}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "GradedLoss":
        """Makes the loss module, which has no parameters."""
        del model, rngs
        return GradedLoss(self)

    def of_vectors(self, queries: Array, passages: Array, batch: Batch) -> Loss:
        """The loss of float32 vectors [B, D] and [B, P, D].

        Raises:
          InputError: the batch has no grades.
        """
        if "teacher_scores" not in batch:
            raise InputError(
                "objective CosineRegression reads grades: set --data.layout.teacher True, with a "
                'task whose pairs have "pos_scores"'
            )
        grades = batch["teacher_scores"]
        there = jnp.any(batch["passage_segment_ids"] > 0, axis=2) & ~jnp.isnan(grades)
        cosines = jnp.einsum("BD,BPD->BP", unit(queries), unit(passages))
        # Zeros in place of NaN before the square: a gradient of NaN times 0 is NaN.
        errors = jnp.where(there, cosines - jnp.nan_to_num(grades) / self.scale, 0.0)
        total, weight = jnp.sum(jnp.square(errors)), jnp.sum(there.astype(jnp.float32))
        return Loss(
            terms={"squared_error": Term(total, weight)},
            metrics={"squared_error": (total, weight)},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triplets(BiEncoder):
    """How much nearer a query's answer shall be than each of its negatives.

    Attributes:
      margin: of the distances.
      distance: "euclidean", or "cosine", 1 - the cosine.
    """

    margin: float = 1.0
    distance: Distance = "euclidean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.margin > 0.0:
            raise InputError(f"objective.margin must be above 0: got {self.margin}")
        if self.distance not in get_args(Distance):
            raise InputError(
                f"objective.distance must be one of {get_args(Distance)}: got {self.distance!r}"
            )

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "GradedLoss":
        """Makes the loss module, which has no parameters."""
        del model, rngs
        return GradedLoss(self)

    def of_vectors(self, queries: Array, passages: Array, batch: Batch) -> Loss:
        """The loss of float32 vectors [B, D] and [B, P, D].

        Raises:
          InputError: rows have no negatives.
        """
        if passages.shape[1] < 2:
            raise InputError(
                "objective Triplets compares an answer with negatives: set "
                "--data.layout.negatives 1 or more"
            )
        there = jnp.any(batch["passage_segment_ids"] > 0, axis=2)
        pairs = (there[:, :1] & there[:, 1:]).astype(jnp.float32)
        far = self._distances(queries[:, None], passages)
        losses = jnp.maximum(far[:, :1] - far[:, 1:] + self.margin, 0.0)
        right = 0.5 * (1.0 + jnp.sign(far[:, 1:] - far[:, :1]))  # a tie is half right
        weight = jnp.sum(pairs)
        return Loss(
            terms={"triplets": Term(jnp.sum(losses * pairs), weight)},
            metrics={"accuracy": (jnp.sum(right * pairs), weight)},
        )

    def _distances(self, a: Array, b: Array) -> Array:
        if self.distance == "cosine":
            return 1.0 - jnp.sum(unit(a) * unit(b), axis=-1)
        # The root of 0 has no finite gradient.
        return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(a - b), axis=-1), 1e-12))


class GradedLoss(nnx.Module):
    """Sums over the pairs of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: CosineRegression | Triplets):
        self.config = config
        self.vectors = PairVectors(config)

    def __call__(
        self,
        model: Any,
        heads: HeadModules,
        batch: Batch,
        *,
        key: Key | None = None,
        towers: Towers | None = None,
    ) -> Loss:
        """The loss of a batch of the layout Groups(); what is padding counts 0."""
        check_groups(self.config, batch)
        rows = self.vectors.encode(model, heads, batch, key=key, towers=towers)
        return self.config.of_vectors(rows["queries"], rows["passages"], batch)
