"""Classification and regression by a head on an encoder: GLUE as BERT does it (Devlin et al. 2019).

    Classify(num_classes=3)        # cross-entropy: MNLI
    Classify(num_classes=1)        # a score, by its squared error: STS-B

The head "classifier" reads the state of the first token, [CLS] (`heads.classifier`). Rows are those
of data.layout Labelled().
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.data.labels import PARTS_OF_SCORE
from t5x_lite.data.layouts import Labelled, Layout
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.classifier import Classifier, ClassifierKind, Problem
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.losses import correct, cross_entropy
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.types import Array, Batch, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(Objective):
    """Cross-entropy of classes, or the squared error of a score.

    Attributes:
      num_classes: number of classes; 1 is a score, 0 the number of the task's labels.
      head: "bert", "roberta", "electra" or "deberta"; "auto" is that of the model's family.
      dropout_rate: dropout rate of the head; None is the model's.
    """

    num_classes: int = 2
    head: ClassifierKind | Literal["auto"] = "bert"
    dropout_rate: float | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Labelled,)

    def __post_init__(self) -> None:
        kinds = (*get_args(ClassifierKind), "auto")
        if self.head not in kinds:
            raise InputError(f"objective.head must be one of {kinds}: got {self.head!r}")
        try:
            self._head()
        except InputError as error:
            raise InputError(f"objective.{error}") from error

    def undecided(self) -> tuple[str, ...]:
        """See `Objective.undecided`."""
        return ("head",) * (self.head == "auto") + ("classes",) * (not self.num_classes)

    def with_classes(self, *, kind: str, num_classes: int) -> "Classify":
        """See `Objective.with_classes`; what the config decides stays."""
        head: Any = kind if self.head == "auto" else self.head
        return dataclasses.replace(self, head=head, num_classes=self.num_classes or num_classes)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ClassifyLoss":
        """Makes the loss module, which has no parameters."""
        del model, rngs
        return ClassifyLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """The head "classifier", with what is known of its classes."""
        known = kept.get("classifier")
        if isinstance(known, Classifier) and known.num_classes == self.num_classes:
            return (self._head(known.labels, known.problem_type),)
        return (self._head(),)

    def _head(self, labels: tuple[str, ...] = (), problem_type: Problem = "auto") -> Classifier:
        # What the data and the checkpoint say is not known before a run (`run.data_facts`).
        return Classifier(
            num_classes=self.num_classes or 2,
            kind="bert" if self.head == "auto" else self.head,
            dropout_rate=self.dropout_rate,
            labels=labels,
            problem_type=problem_type,
        )

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class ClassifyLoss(nnx.Module):
    """Sums over the labelled rows of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: Classify):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of the layout Labelled(); rows without a label count 0.

        Raises:
          InputError: the features are those of another layout.
        """
        check_labelled(self.config, batch)
        model_key, head_key = split_key(key, 2)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=model_key)
        logits = heads["classifier"](hidden, key=head_key)
        if self.config.num_classes == 1:
            return squared_error(logits[:, 0], batch)
        return loss_of_classes(logits, batch["labels"][:, 0])


def loss_of_classes(logits: Float[Array, "*B C"], label: Int[Array, "*B"]) -> Loss:
    """Cross-entropy and accuracy of the rows, or the tokens, that have a label.

    Args:
      logits: of the classes.
      label: the class + 1; 0 is none.
    """
    weights = (label > 0).astype(jnp.float32)
    weight = jnp.sum(weights)
    targets = jnp.maximum(label - 1, 0)
    losses, _ = cross_entropy(logits, targets)
    right = correct(logits, jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0])
    return Loss(
        terms={"cross_entropy": Term(jnp.sum(losses * weights), weight)},
        metrics={"accuracy": (jnp.sum(right * weights), weight)},
    )


def squared_error(predicted: Float[Array, " B"], batch: Batch) -> Loss:
    """The squared error of the rows that have a score.

    Args:
      predicted: the scores of a head.
      batch: with "scores", NaN where a row has none, or with labels.
    """
    label = batch["labels"][:, 0]
    # Caches of earlier versions have scores as labels, in thousandths.
    given = jnp.where(label > 0, (label - 1).astype(jnp.float32) / PARTS_OF_SCORE, jnp.nan)
    scores = batch.get("scores", given)
    weights = (~jnp.isnan(scores)).astype(jnp.float32)
    # Zeros in place of NaN before the square: a gradient of NaN times 0 is NaN.
    errors = jnp.where(jnp.isnan(scores), 0.0, predicted - jnp.nan_to_num(scores))
    total, weight = jnp.sum(jnp.square(errors)), jnp.sum(weights)
    return Loss(
        terms={"squared_error": Term(total, weight)},
        metrics={"squared_error": (total, weight)},
    )


def check_labelled(objective: Objective, batch: Batch) -> None:
    """Refuses a batch that has no labels."""
    missing = {"encoder_input_tokens", "encoder_segment_ids", "labels"} - set(batch)
    if missing:
        raise InputError(
            f"objective {type(objective).__name__} reads texts with labels, but the batch has no "
            f"{', '.join(sorted(missing))}: data.layout must be labelled"
        )
