"""Rankers and their students: cross-encoders, distilled bi-encoders, and BGE-M3.

Objectives of cross-encoders, and distillation of a teacher's ranking into bi-encoders.

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

BGE-M3: one encoder with three retrieval scores, which are also distilled from their sum.

Chen et al. 2024 (arXiv:2402.03216) and FlagEmbedding's m3/modeling.py. A text has a vector (head
"dense"), a weight for each term ("lexical") and a vector for each token ("multi_vector"). Scores
are divided by the temperature t before a softmax:

    s_all   w1 s_dense + w2 s_lexical + w3 s_multi_vector
    L_x     InfoNCE of a score;        L'_x  -sum softmax(s_all / t) log softmax(s_x / t)
    L       (l1 L_dense + l2 L_lexical + l3 L_multi_vector + L_all) / 4
    L'      (l1 L'_dense + l2 L'_lexical + l3 L'_multi_vector) / 3
    loss    (L + L') / 2 from the step `distill_from` on, and L before it

    two queries, a passage each, t .5:   dense .9 .1   lexical .5 .0   multi_vector .7 .2
                                               .2 .8           .1 .3                .3 .6
    m3()       L .183866    L' .276107   loss .229987       w (1, .3, 1), l (1, .1, 1)
    m3_v1()    L 1.012105   L' .389902   loss 1.402007      all 1; L a sum without L_all; L + L'

The teacher softmax(s_all / t) has no gradient, but L_all has a gradient for all heads. The dense
loss compares the passages of the whole batch. The lexical and the multi-vector score cost Lq x Lp
products for each pair, so they are computed within blocks of rows (`objectives.bi_encoder`). The
number of rows in a block does not depend on the devices; FlagEmbedding uses the rows of one device.
No array has an axis of the vocabulary.

FlagEmbedding differs as follows:

- vectors of padding take part in the maximum;
- the gradients of its dense loss, with passages from W devices, weigh 1 / W of the other gradients
  (`dense_scale` gives the same);
- its warm-up counts forward calls, and starts again when a run resumes;
- with negatives of the group only, L_all is lost.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, Count, Whole
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Layout, Ranked
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.models.heads import Classifier, ClassifierKind, Head, HeadModules
from t5x_lite.models.vector_heads import Lexical, MultiVector
from t5x_lite.nn.dense import split_key
from t5x_lite.objectives.base import Loss, LossModule, Objective, Term
from t5x_lite.objectives.contrastive import (
    DOT,
    GROUP,
    NEVER,
    Contrastive,
    block_size,
    candidates,
    check_groups,
    of_lexical,
    of_multi_vectors,
    of_scores,
    of_vectors,
    others,
    own_block,
    own_group,
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
        """Return the distillation loss, and optionally InfoNCE, for the vectors of a whole batch.

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
    """Return the sum of BGE-M3's distillation losses, and the number of queries with a loss.

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
    """Return RetroMAE's published distillation objective: KL / group size + 1e-4 InfoNCE."""
    own = {"distillation": "kl", "distillation_weight": 1 / group, "contrastive_weight": 1e-4}
    return Distill(**{**DOT, **own, **fields})


Combination = Literal["mean", "sum"]
Scores = dict[str, Array]
"""Scores [B, M] of each query for the passages of its block, float32, by name."""
Sums = tuple[Array, Array]
"""Total and weight of a loss or metric."""

WAYS = ("dense", "lexical", "multi_vector")
"""Names of the three scores and of their heads."""
ALL = "all"
"""Name of the weighted sum of the three scores."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class M3(Contrastive):
    """BGE-M3's objective: losses of three retrieval scores and of their weighted sum.

    Each score is also distilled from the weighted sum.

    Attributes:
      weights: weights of the dense, the lexical and the multi-vector score in their sum.
      loss_weights: weights of the losses of the three scores.
      combination: "mean" to average the losses, or "sum" as in the first version of the paper.
      distill_from: optimizer step from which on the scores are distilled from their sum; None
        disables this. Evaluation omits the distillation loss.
      score_block: number of rows per block; lexical and multi-vector scores compare only texts of
        the same block. None is N for `candidates` "block:N", 1 for "group", else all rows.
      dense_scale: scale of the dense loss, in addition to its weight; 1 / W is like FlagEmbedding
        on W devices.
      distillation: loss for rows with teacher scores: "m3_kd" instead of InfoNCE, or "kl" in
        addition to InfoNCE; None ignores teacher scores.
      teacher_temperature: divisor of the teacher's scores.
      vector_size: dimensions of a token's vector; None is the initial checkpoint's setting, by
        default the size of the hidden states.
      specials: ids of tokens that are not terms; None is the initial checkpoint's setting, by
        default XLM-R's special tokens.
    """

    temperature: float = 0.02
    weights: Annotated[tuple[float, float, float], AtLeast(0)] = (1.0, 0.3, 1.0)
    loss_weights: Annotated[tuple[float, float, float], AtLeast(0)] = (1.0, 0.1, 1.0)
    combination: Combination = "mean"
    distill_from: Whole | None = 0
    score_block: Count | None = None
    dense_scale: Annotated[float, Above(0)] = 1.0
    distillation: Distillation | None = None
    teacher_temperature: Annotated[float, Above(0)] = 1.0
    vector_size: Count | None = None
    specials: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symmetric or self.towers != "one":
            raise InputError(
                "objective M3 supports neither two towers nor a symmetric loss; set "
                "--objective.towers one --objective.symmetric False"
            )

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "M3Rows":
        del model, rngs
        return M3Rows(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        return (self._dense(kept), self._lexical(kept), self._multi_vector(kept))

    def _lexical(self, kept: Mapping[str, Head]) -> Lexical:
        head = kept.get(WAYS[1])
        head = head if isinstance(head, Lexical) else Lexical()
        return head if self.specials is None else dataclasses.replace(head, specials=self.specials)

    def _multi_vector(self, kept: Mapping[str, Head]) -> MultiVector:
        head = kept.get(WAYS[2])
        head = head if isinstance(head, MultiVector) else MultiVector()
        return dataclasses.replace(
            head,
            size=head.size if self.vector_size is None else self.vector_size,
            normalize=head.normalize if self.normalize is None else self.normalize,
        )

    def resolved(self, kept: Mapping[str, Head]) -> "M3":
        own = {
            "vector_size": self._multi_vector(kept).size,
            "specials": self._lexical(kept).specials,
        }
        known: Any = super().resolved(kept)
        return dataclasses.replace(known, **own)

    def no_terms(self) -> tuple[int, ...]:
        return self._lexical({}).specials

    def block_rows(self, rows: int) -> int:
        """Return the number of rows per block, for a batch of `rows` rows.

        Raises:
          InputError: if blocks do not divide the batch.
        """
        if self.candidates == GROUP:
            return 1
        block = min(rows, block_size(self.candidates) or rows, self.score_block or rows)
        if rows % block:
            raise InputError(
                f"blocks of {block} rows do not divide a batch of {rows}; change "
                "--objective.score-block, --objective.candidates or --data.batch-size"
            )
        return block

    def joint(self, rows: Mapping[str, Array], batch: Batch, *, step: Array | None) -> Loss:
        """Return the losses of all scores for a whole batch.

        Args:
          rows: outputs of `M3Rows`.
          batch: batch with the texts, to detect padding and duplicates.
          step: step of the optimizer; None in evaluation.

        Raises:
          InputError: if blocks do not divide the batch, or teacher scores are missing.
        """
        real = jnp.any(batch["query_segment_ids"] > 0, axis=1).astype(jnp.float32)
        block = self.block_rows(len(real))
        of_batch = self.scores(rows)
        scores = self.within_blocks(rows, batch, of_batch)
        may = own_block(candidates(batch, self._scope(block)), block)
        if self.distillation is None:
            losses = self._info_nces(scores, may, real)
            losses[WAYS[0]] = (self.info_nce(of_batch, batch, real), jnp.sum(real))
        else:
            losses = self._taught(scores, may, real, batch)
        first, second = self._shares(step)
        terms, metrics = self._terms(losses, first), {f"{n}_loss": x for n, x in losses.items()}
        if self.distill_from is not None:
            taught = self._self_taught(scores, may & (real[:, None] > 0))
            for (name, sums), share in zip(taught.items(), self.loss_weights, strict=True):
                terms[name] = Term(second * sums[0], sums[1], share / 3)
                metrics[f"{name}_loss"] = sums
        metrics |= of_scores(of_batch, candidates(batch, self.candidates), real)
        for name in (*WAYS[1:], ALL):
            accuracy = _accuracy(scores[name], may, real, block)
            metrics[f"{name}_accuracy"] = (accuracy, jnp.sum(real))
        return Loss(terms=terms, metrics={**metrics, **of_vectors(rows, real)})

    def within_blocks(
        self, rows: Mapping[str, Array], batch: Batch, of_batch: Float[Array, "B N"]
    ) -> Scores:
        """Return the dense, lexical, multi-vector and combined scores of queries within row blocks.

        Args:
          rows: outputs of `M3Rows`.
          batch: batch with the tokens.
          of_batch: dense scores of all passages.
        """
        block = self.block_rows(len(of_batch))
        found = (
            own_block(of_batch, block),
            of_lexical(rows, batch, block=block),
            of_multi_vectors(rows, batch, block=block),
        )
        weighted = [x * weight for x, weight in zip(found, self.weights, strict=True)]
        return {**dict(zip(WAYS, found, strict=True)), ALL: weighted[0] + weighted[1] + weighted[2]}

    def _scope(self, block: int) -> str:
        return GROUP if block == 1 else f"block:{block}"

    def _shares(self, step: Array | None) -> tuple[Array | float, Array | float]:
        if self.distill_from is None or step is None:
            return 1.0, 0.0
        on = (step >= self.distill_from).astype(jnp.float32)
        return (1.0 - on / 2, on / 2) if self.combination == "mean" else (1.0, on)

    def _terms(self, losses: Mapping[str, Sums], share: Array | float) -> dict[str, Term]:
        dense, *rest = self.loss_weights
        scales = dict(zip(WAYS, (dense * self.dense_scale, *rest), strict=True))
        if self.combination == "mean":
            scales = {name: x / 4 for name, x in {**scales, ALL: 1.0}.items()}
        return {
            name: Term(share * losses[name][0], losses[name][1], scale)
            for name, scale in scales.items()
        }

    def _info_nces(
        self, scores: Scores, may: Bool[Array, "B M"], real: Float[Array, " B"]
    ) -> dict[str, Sums]:
        block = self.block_rows(len(real))
        own = jnp.arange(len(real)) % block * (may.shape[1] // block)

        def of(score: Array) -> Sums:
            losses, _ = cross_entropy(jnp.where(may, score / self.temperature, NEVER), own)
            return jnp.sum(losses * real), jnp.sum(real)

        return {name: of(score) for name, score in scores.items()}

    def _self_taught(self, scores: Scores, where: Bool[Array, "B M"]) -> dict[str, Sums]:
        teacher = jax.lax.stop_gradient(scores[ALL]) / self.temperature
        return {
            f"self_{name}": soft_cross_entropy(
                scores[name] / self.temperature, teacher, where=where
            )
            for name in WAYS
        }

    def _taught(
        self, scores: Scores, may: Bool[Array, "B M"], real: Float[Array, " B"], batch: Batch
    ) -> dict[str, Sums]:
        if "teacher_scores" not in batch:
            raise InputError(
                "objective.distillation needs teacher scores, but the batch has none; set "
                "--data.layout.teacher True, or --objective.distillation None"
            )
        block = self.block_rows(len(real))
        there = jnp.any(batch["passage_segment_ids"] > 0, axis=2)
        teacher = batch["teacher_scores"] / self.teacher_temperature
        rest = own_block(others(batch, self._scope(block)), block)

        def of(score: Array) -> Sums:
            scaled = score / self.temperature
            own = own_group(scaled, block, there.shape[1])
            if self.distillation == "m3_kd":
                return m3_kd(own, jnp.where(rest, scaled, NEVER), teacher, there=there)
            return soft_cross_entropy(own, teacher, where=there)

        taught = {name: of(score) for name, score in scores.items()}
        if self.distillation == "m3_kd":
            return taught
        plain = self._info_nces(scores, may, real)
        # Both are sums over queries; queries without teacher scores have only InfoNCE.
        return {name: (taught[name][0] + plain[name][0], plain[name][1]) for name in taught}


class M3Rows(LossModule):
    """Loss module that computes dense vectors, lexical weights and token vectors."""

    def __call__(
        self, model: Any, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        check_groups(self.config, batch)
        query_key, passage_key = split_key(key, 2)
        num_rows, num, length = batch["passage_tokens"].shape
        asked = (batch["query_tokens"], batch["query_segment_ids"])
        flat = [batch[f"passage_{name}"] for name in ("tokens", "segment_ids")]
        shown = [x.reshape(num_rows * num, length) for x in flat]
        queries = _read(model, heads, *asked, key=query_key)
        passages = _read(model, heads, *shown, key=passage_key)
        sums = [_active(heads, x, *texts) for x, texts in ((queries, asked), (passages, shown))]
        (active, terms), (more, rest) = sums
        found = [queries[name] for name in _ROWS]
        under = [passages[name].reshape(num_rows, num, *passages[name].shape[1:]) for name in _ROWS]
        return Loss(
            terms={},
            metrics={"sparse_active": (active + more, terms + rest)},
            rows={
                **dict(zip(("queries", "query_terms", "query_vectors"), found, strict=True)),
                **dict(zip(("passages", "passage_terms", "passage_vectors"), under, strict=True)),
            },
        )


_ROWS = ("vector", "terms", "vectors")


def _read(
    model: Any, heads: HeadModules, tokens: Array, segment_ids: Array, *, key: Key | None
) -> dict[str, Array]:
    hidden = model(tokens, segment_ids=segment_ids, key=key)
    return {
        "vector": heads["dense"](hidden, segment_ids),
        "weights": heads["lexical"](hidden),
        "terms": heads["lexical"].terms(hidden, tokens, segment_ids),
        "vectors": heads["multi_vector"](hidden, segment_ids),
    }


def _active(
    heads: HeadModules, found: Mapping[str, Array], tokens: Array, segment_ids: Array
) -> Sums:
    """Return the number of terms with a positive lexical weight, and the number of terms.

    If a ReLU gives all terms the weight 0, training cannot change that.
    """
    is_term = heads["lexical"].is_term(tokens, segment_ids).astype(jnp.float32)
    return jnp.sum(is_term * (found["weights"] > 0)), jnp.sum(is_term)


def _accuracy(
    score: Float[Array, "B M"], may: Bool[Array, "B M"], real: Float[Array, " B"], block: int
) -> Float[Array, ""]:
    own = own_group(score, block, score.shape[1] // block)[:, 0]
    return jnp.sum(correct(jnp.where(may, score, -jnp.inf), own) * real)


def m3(**fields: Any) -> M3:
    """Return BGE-M3's objective: weights (1, .3, 1), loss weights (1, .1, 1), cosines of [CLS]."""
    return M3(**{"normalize": True, "pooling": "cls", **fields})


def m3_v1(**fields: Any) -> M3:
    """Return the objective of the paper's first version: all weights 1, sums instead of means."""
    ones = {"weights": (1.0, 1.0, 1.0), "loss_weights": (1.0, 1.0, 1.0), "combination": "sum"}
    return m3(**{**ones, **fields})
