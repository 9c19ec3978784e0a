"""Objectives of cross-encoders, and distillation of a teacher's ranking into bi-encoders.

A cross-encoder reads a query and a passage together and computes one score:

    Ranker()                                # the positive among the passages of its row
    Ranker(loss="pointwise")                # each passage by itself: is it relevant?
    Ranker(teacher_weight=1.0)              # also distill a teacher's ranking

The head "classifier" has one class, like transformers' *ForSequenceClassification with num_labels 1
and sentence-transformers' CrossEncoder (Nogueira and Cho 2019, arXiv:1901.04085; the listwise loss
follows Gao et al. 2021, arXiv:2101.08751). Other rows are not negatives: a query is read only with
its own passages. Rows have the features of data.layout Ranked().

    logits of a row [2, 1, 0], the first passage is the positive
    listwise   log(1 + 1/e + 1/e^2)                         = 0.408
    pointwise  log(1 + e^-2) + log(1 + e) + log(1 + 1)      = 2.133, divided by 3 passages

`Distill` trains a bi-encoder to rank passages like a teacher, such as a cross-encoder
(`score-pairs`). A row has a query, its passages and their "teacher_scores" (data.layout
Groups(teacher=True)). With t the softmax of the scores over the row's own passages, its group:

    kl      -sum_r t_r log softmax_r(s of the group / temperature), mean over the queries
    m3_kd   sum_r t_r * InfoNCE with passage r as the positive, among the passages of the batch
            without the group's passages that the teacher ranks above r
    loss    distillation_weight * one of them + contrastive_weight * InfoNCE

    two queries with groups of two, t [[.7 .3] [.6 .4]], s [[2 1 0 .5] [0 1 1.5 1]]:
    kl 0.643669, m3_kd 0.732672

`kl` is a cross-entropy: it differs from the divergence by the teacher's entropy, which has no
gradient. RetroMAE's code also divides the divergence by the group's size, and adds 1e-4 of InfoNCE
(`retromae_distill`; Xiao et al. 2022, arXiv:2205.12035). `m3_kd` is FlagEmbedding's loss.
FlagEmbedding assumes that the group is sorted by teacher scores; here the group is sorted first.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Layout, Ranked
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.models.heads import Classifier, ClassifierKind, Head, HeadModules
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, LossModule, Objective, Term
from t5x_lite.objectives.contrastive import (
    DOT,
    NEVER,
    Contrastive,
    candidates,
    of_scores,
    of_vectors,
    others,
)
from t5x_lite.objectives.likelihood import correct, cross_entropy, soft_cross_entropy, soft_targets
from t5x_lite.objectives.masked_lm import features

RankingLoss = Literal["listwise", "pointwise"]

_NEVER = -1e9
"""Logit of an absent passage; finite, so that a row of padding does not give NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranker(Objective):
    """Cross-encoder loss: scores of passages, each read together with the query.

    Attributes:
      loss: "listwise", the cross-entropy of the positive among the passages of its row, or
        "pointwise", the binary cross-entropy of each passage.
      temperature: divisor of the logits, only in training.
      teacher_weight: weight of the cross-entropy with the softmax of "teacher_scores"; 0 ignores
        teacher scores.
      teacher_temperature: divisor of the teacher's scores.
      head: kind of the head: "bert", "roberta", "electra" or "deberta".
      dropout_rate: dropout rate of the head; None is the model's rate.
    """

    loss: RankingLoss = "listwise"
    temperature: Annotated[float, Above(0)] = 1.0
    teacher_weight: Annotated[float, AtLeast(0)] = 0.0
    teacher_temperature: Annotated[float, Above(0)] = 1.0
    head: ClassifierKind = "bert"
    dropout_rate: float | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Ranked,)
    of_encoder: ClassVar[bool] = True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "RankerLoss":
        del model, rngs
        return RankerLoss(self)

    def forward_flops(self, model: ModelConfig, shapes: RowShapes) -> int | None:
        """Return the FLOPs for one row, a query with each of its passages."""
        num, length = shapes["encoder_input_tokens"]
        one = model.forward_flops({"encoder_input_tokens": (length,)})
        return None if one is None else num * one

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        own = Classifier(num_classes=1, kind=self.head, dropout_rate=self.dropout_rate)
        known = kept.get("classifier")
        if isinstance(known, Classifier) and known.num_classes == 1:
            return (dataclasses.replace(own, labels=known.labels),)
        return (own,)


class RankerLoss(LossModule):
    """Loss module that computes the cross-encoder loss of a batch."""

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """Return the loss of a batch; rows of padding are ignored.

        Raises:
          InputError: if the features belong to another layout, or teacher scores are missing.
        """
        tokens = batch.get("encoder_input_tokens")
        if tokens is None or tokens.ndim != 3 or "encoder_segment_ids" not in batch:
            raise InputError(
                "objective Ranker reads queries with passages (encoder_input_tokens [B, G, S]), "
                "so data.layout must be ranked"
            )
        if self.config.teacher_weight and "teacher_scores" not in batch:
            raise InputError(
                "objective.teacher_weight needs teacher scores, but the batch has none; set "
                "--data.layout.teacher True"
            )
        rows, num, length = tokens.shape
        flat = {name: value.reshape(-1, length) for name, value in features(batch).items()}
        model_key, head_key = split_key(key, 2)
        hidden = model(tokens.reshape(-1, length), **flat, key=model_key)
        logits = heads["classifier"](hidden, key=head_key).reshape(rows, num)
        return self.of_logits(logits, batch)

    def of_logits(self, logits: Float[Array, "B G"], batch: Batch) -> Loss:
        """Return the loss for the logits of each row's passages."""
        there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2)
        real = there[:, 0].astype(jnp.float32)
        masked = jnp.where(there, logits, _NEVER)
        scaled = masked / self.config.temperature
        terms = {self.config.loss: self._own_term(scaled, there, real)}
        if self.config.teacher_weight:
            total, weight = soft_cross_entropy(
                scaled, batch["teacher_scores"] / self.config.teacher_temperature, where=there
            )
            terms["distillation"] = Term(total, weight, self.config.teacher_weight)
        right = correct(masked, masked[:, 0])
        return Loss(terms=terms, metrics={"accuracy": (jnp.sum(right * real), jnp.sum(real))})

    def _own_term(
        self, scaled: Float[Array, "B G"], there: Bool[Array, "B G"], real: Float[Array, " B"]
    ) -> Term:
        if self.config.loss == "listwise":
            losses, _ = cross_entropy(scaled, jnp.zeros(len(scaled), jnp.int32))
            return Term(jnp.sum(losses * real), jnp.sum(real))
        first = jnp.arange(scaled.shape[1]) == 0
        losses = jnp.where(there, jax.nn.softplus(jnp.where(first, -scaled, scaled)), 0.0)
        return Term(jnp.sum(losses), jnp.sum(there.astype(jnp.float32)))


Distillation = Literal["kl", "m3_kd"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distill(Contrastive):
    """Distillation of a teacher's ranking of each query's passages, and optionally InfoNCE.

    Attributes:
      distillation: distillation loss, "kl" or "m3_kd".
      distillation_weight: weight of the distillation loss.
      contrastive_weight: weight of InfoNCE; 0 omits it.
      teacher_temperature: divisor of the teacher's scores.
    """

    distillation: Distillation = "kl"
    distillation_weight: Annotated[float, AtLeast(0)] = 1.0
    contrastive_weight: Annotated[float, AtLeast(0)] = 0.0
    teacher_temperature: Annotated[float, Above(0)] = 1.0

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """Return the loss of the vectors of a whole batch; see `Contrastive.joint`.

        Raises:
          InputError: if the batch has no teacher scores.
        """
        if "teacher_scores" not in batch:
            raise InputError(
                "objective Distill needs teacher scores, but the batch has none; set "
                "--data.layout.teacher True"
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
    """Return the sum of the `m3_kd` distillation losses, and the number of queries with a loss.

    Args:
      own: scores of each query and its own passages, divided by the temperature.
      rest: scores of candidates from other rows, divided by the temperature; `NEVER` for other
        passages.
      teacher: teacher scores of the query's own passages; NaN for passages without a score.
      there: True for passages that are not padding.
    """
    targets = soft_targets(teacher, where=there)
    # Best first; passages without a teacher score come after the others, padding at the end.
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
    places = jnp.arange(len(scores))[:, None] * num + jnp.arange(num)
    return jnp.take_along_axis(scores, places, axis=1)


def retromae_distill(*, group: int, **fields: Any) -> Distill:
    """Return RetroMAE's published distillation objective: KL / group + 1e-4 InfoNCE."""
    own = {"distillation": "kl", "distillation_weight": 1 / group, "contrastive_weight": 1e-4}
    return Distill(**{**DOT, **own, **fields})
