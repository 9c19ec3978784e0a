"""A cross-encoder: one number of a query and a passage that are read together.

    Ranker()                                # the passage that answers, among those of its row
    Ranker(loss="pointwise")                # each passage alone: does it answer?
    Ranker(teacher_weight=1.0)              # and as a teacher ranks them

The head "classifier" has one class, as transformers' *ForSequenceClassification with num_labels 1
and sentence-transformers' CrossEncoder have it (Nogueira and Cho 2019, arXiv:1901.04085; the
listwise loss is that of Gao et al. 2021, arXiv:2101.08751). There are no negatives of other rows:
each query is read with each of its own passages alone. Rows are those of data.layout Ranked().

    logits of a row [2, 1, 0], the first answers
    listwise   log(1 + 1/e + 1/e^2)                         = 0.408
    pointwise  log(1 + e^-2) + log(1 + e) + log(1 + 1)      = 2.133, divided by 3 passages
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.data.layouts import Layout, Ranked
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.classifier import Classifier, ClassifierKind
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.losses import correct, cross_entropy, soft_cross_entropy
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.types import Array, Batch, Key

RankingLoss = Literal["listwise", "pointwise"]

_NEVER = -1e9
"""The logit of a passage that is not there; finite, so that a row of padding has no NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranker(Objective):
    """How well a passage answers a query.

    Attributes:
      loss: "listwise", the cross-entropy of the passage that answers among those of its row, or
        "pointwise", the binary cross-entropy of each passage.
      temperature: that logits are divided by, in training alone.
      teacher_weight: of the cross-entropy with the softmax of "teacher_scores"; 0 reads none.
      teacher_temperature: that these are divided by.
      head: "bert", "roberta", "electra" or "deberta".
      dropout_rate: of the head; None is the model's.
    """

    loss: RankingLoss = "listwise"
    temperature: float = 1.0
    teacher_weight: float = 0.0
    teacher_temperature: float = 1.0
    head: ClassifierKind = "bert"
    dropout_rate: float | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Ranked,)

    def __post_init__(self) -> None:
        for name, kinds in (("loss", RankingLoss), ("head", ClassifierKind)):
            if (value := getattr(self, name)) not in get_args(kinds):
                raise InputError(
                    f"objective.{name} must be one of {get_args(kinds)}: got {value!r}"
                )
        for name in ("temperature", "teacher_temperature"):
            if not getattr(self, name) > 0.0:
                raise InputError(f"objective.{name} must be above 0: got {getattr(self, name)}")
        if self.teacher_weight < 0.0:
            raise InputError(
                f"objective.teacher_weight must not be negative: got {self.teacher_weight}"
            )

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "RankerLoss":
        """Makes the loss module, which has no parameters."""
        del model, rngs
        return RankerLoss(self)

    def forward_flops(self, model: ModelConfig, shapes: RowShapes) -> int | None:
        """FLOPs of one row: of a query with each of its passages."""
        num, length = shapes["encoder_input_tokens"]
        one = model.forward_flops({"encoder_input_tokens": (length,)})
        return None if one is None else num * one

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """The head "classifier", of one class."""
        own = Classifier(num_classes=1, kind=self.head, dropout_rate=self.dropout_rate)
        known = kept.get("classifier")
        if isinstance(known, Classifier) and known.num_classes == 1:
            return (dataclasses.replace(own, labels=known.labels),)
        return (own,)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class RankerLoss(nnx.Module):
    """Sums over the queries of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: Ranker):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of the layout Ranked(); rows of padding count 0.

        Raises:
          InputError: the features are those of another layout, or lack a teacher's scores.
        """
        tokens = batch.get("encoder_input_tokens")
        if tokens is None or tokens.ndim != 3 or "encoder_segment_ids" not in batch:
            raise InputError(
                "objective Ranker reads queries with passages, encoder_input_tokens [B, G, S]: "
                "data.layout must be ranked"
            )
        if self.config.teacher_weight and "teacher_scores" not in batch:
            raise InputError(
                "objective.teacher_weight needs a teacher's scores: set --data.layout.teacher True"
            )
        rows, num, length = tokens.shape
        flat = {name: value.reshape(-1, length) for name, value in features(batch).items()}
        model_key, head_key = split_key(key, 2)
        hidden = model(tokens.reshape(-1, length), **flat, key=model_key)
        logits = heads["classifier"](hidden, key=head_key).reshape(rows, num)
        return self.of_logits(logits, batch)

    def of_logits(self, logits: Float[Array, "B G"], batch: Batch) -> Loss:
        """The loss of the logits of each row's passages."""
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
