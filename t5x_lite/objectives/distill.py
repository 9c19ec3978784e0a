"""A bi-encoder that ranks passages as a teacher does, such as a cross-encoder (`score-pairs`).

A row has a query, its passages and "teacher_scores" of these (data.layout Groups(teacher=True)).
With t the softmax of the scores over the row's own passages, its group:

    kl      -sum_r t_r log softmax_r(s of the group / temperature), mean over the queries
    m3_kd   sum_r t_r * InfoNCE with passage r as the answer, among the passages of the batch
            without those of the group that the teacher ranks above r
    loss    distillation_weight * one of them + contrastive_weight * InfoNCE

    two queries with groups of two, t [[.7 .3] [.6 .4]], s [[2 1 0 .5] [0 1 1.5 1]]:
    kl 0.643669, m3_kd 0.732672

`kl` is a cross-entropy: it differs from the divergence by the teacher's entropy, which has no
gradient. RetroMAE's code divides the divergence by the group's size as well, and adds 1e-4 of
InfoNCE (`retromae_distill`; Xiao et al. 2022, arXiv:2205.12035). `m3_kd` is FlagEmbedding's, which
assumes that the group is sorted by its teacher and does not sort it; here it is sorted.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from t5x_lite.errors import InputError
from t5x_lite.objectives.base import Loss, Term
from t5x_lite.objectives.candidates import candidates, others
from t5x_lite.objectives.contrastive import DOT, NEVER, Contrastive, of_scores, of_vectors
from t5x_lite.objectives.losses import soft_cross_entropy, soft_targets
from t5x_lite.types import Array, Batch

Distillation = Literal["kl", "m3_kd"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distill(Contrastive):
    """A teacher's ranking of each query's passages, and InfoNCE beside it.

    Attributes:
      distillation: "kl" or "m3_kd".
      distillation_weight: of that term.
      contrastive_weight: of InfoNCE; 0 leaves it out.
      teacher_temperature: that the teacher's scores are divided by.
    """

    distillation: Distillation = "kl"
    distillation_weight: float = 1.0
    contrastive_weight: float = 0.0
    teacher_temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distillation not in get_args(Distillation):
            raise InputError(
                f"objective.distillation must be one of {get_args(Distillation)}: got "
                f"{self.distillation!r}"
            )
        for name in ("distillation_weight", "contrastive_weight"):
            if getattr(self, name) < 0.0:
                raise InputError(
                    f"objective.{name} must not be negative: got {getattr(self, name)}"
                )
        if not self.teacher_temperature > 0.0:
            raise InputError(
                f"objective.teacher_temperature must be above 0: got {self.teacher_temperature}"
            )

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """See `Contrastive.joint`.

        Raises:
          InputError: the batch has no teacher's scores.
        """
        if "teacher_scores" not in batch:
            raise InputError(
                "objective Distill reads a teacher's scores: set --data.layout.teacher True"
            )
        scores = self.scores(rows)
        real = jnp.any(batch["query_segment_ids"] > 0, axis=1).astype(jnp.float32)
        teacher = batch["teacher_scores"] / self.teacher_temperature
        of = self._kl if self.distillation == "kl" else self._m3_kd
        total, weight = of(scores / self.temperature, teacher, batch)
        terms = {self.distillation: Term(total, weight, self.distillation_weight)}
        metrics = {self.distillation: (total, weight)}
        if self.contrastive_weight:
            loss = self.info_nce(scores, batch, real)
            terms["contrastive"] = Term(loss, jnp.sum(real), self.contrastive_weight)
        may = candidates(batch, self.candidates)
        return Loss(
            terms=terms,
            metrics={**metrics, **of_scores(scores, may, real), **of_vectors(rows, real)},
        )

    def _kl(
        self, scaled: Float[Array, "B N"], teacher: Float[Array, "B P"], batch: Batch
    ) -> tuple[Array, Array]:
        there = jnp.any(batch["passage_segment_ids"] > 0, axis=2)
        return soft_cross_entropy(_of_groups(scaled, there.shape[1]), teacher, where=there)

    def _m3_kd(
        self, scaled: Float[Array, "B N"], teacher: Float[Array, "B P"], batch: Batch
    ) -> tuple[Array, Array]:
        there = jnp.any(batch["passage_segment_ids"] > 0, axis=2)
        rest = jnp.where(others(batch, self.candidates), scaled, NEVER)
        return m3_kd(_of_groups(scaled, there.shape[1]), rest, teacher, there=there)


def m3_kd(
    own: Float[Array, "B P"],
    rest: Float[Array, "B M"],
    teacher: Float[Array, "B P"],
    *,
    there: Bool[Array, "B P"],
) -> tuple[Array, Array]:
    """The sum of `m3_kd`'s losses, and the number of queries that have one.

    Args:
      own: scores of each query and its own passages, divided by the temperature.
      rest: the same of what is compared besides; `NEVER` where it is not.
      teacher: scores of the query's own passages; NaN where there is none.
      there: what is no padding.
    """
    targets = soft_targets(teacher, where=there)
    # Best first; what the teacher does not know comes behind what it does, padding at the end.
    rank = jnp.where(there, jnp.nan_to_num(teacher, nan=NEVER), -jnp.inf)
    order = jnp.argsort(-rank, axis=1, stable=True)
    own = jnp.where(there, own, NEVER)
    own, targets = (jnp.take_along_axis(x, order, axis=1) for x in (own, targets))
    # Candidates of rank r: other rows' passages, and the group's from r on.
    below = jax.lax.cumlogsumexp(own, axis=1, reverse=True)
    log_z = jnp.logaddexp(jax.nn.logsumexp(rest, axis=1)[:, None], below)
    known = jnp.any(targets > 0, axis=1)
    losses = jnp.sum(jnp.where(targets > 0, targets * (log_z - own), 0.0), axis=1)
    return jnp.sum(losses), jnp.sum(known.astype(jnp.float32))


def _of_groups(scores: Float[Array, "B N"], num: int) -> Float[Array, "B P"]:
    """The scores of each query's own passages."""
    places = jnp.arange(len(scores))[:, None] * num + jnp.arange(num)
    return jnp.take_along_axis(scores, places, axis=1)


def retromae_distill(*, group: int, **fields: Any) -> Distill:
    """As RetroMAE's second stage was published: KL / group + 1e-4 InfoNCE, dot products of [CLS].

    Args:
      group: passages of a row.
      **fields: of `Distill`.
    """
    own = {"distillation": "kl", "distillation_weight": 1 / group, "contrastive_weight": 1e-4}
    return Distill(**{**DOT, **own, **fields})
