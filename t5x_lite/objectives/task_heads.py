"""Objectives of task heads: classes, scores, choices, spans and token labels; several tasks.

`TaskHeads` trains several tasks on one encoder, each with its own head.

    TaskHeads(tasks=("mnli=3", "stsb=1", "squad=span"))    # heads/mnli, heads/stsb, heads/squad
    TaskHeads(tasks=("mnli=3", "stsb=1"), class_weights=("mnli=1,1,2",))

Each row has the number of its task in `adapter_ids` (`data.adapter_of`), and only the loss of this
task's head counts for the row. NAME=1 is regression by squared error, NAME=2 and more are classes,
and NAME=span is the first and last token of an answer. Each term is the mean over its task's rows
of the whole batch, so a task with few rows in a batch has the same weight; a task without rows adds
0. All heads run on all rows, so that all processes run one program. The tasks may share all
weights, or have separate adapters by MultiTask; with Parallel, adapter i computes the rows of task
i.

`Choose` is multiple choice by a head on an encoder: COPA, SWAG, RACE. A question is read with each
of its choices. The head "choice" computes a number from each [CLS] hidden state, and the loss is
the cross-entropy of the right choice (Devlin et al. 2019, section 4.4; SWAG). Rows have the
features of data.layout Choices().

`Classify` is classification and regression by a head on an encoder: GLUE as in BERT (Devlin et al.
2019).

    Classify(num_classes=3)        # cross-entropy: MNLI
    Classify(num_classes=1)        # a score, by its squared error: STS-B
    Classify(num_classes=2, class_weights=(0.5, 2.0), label_smoothing=0.1)

Class weights w and label smoothing s follow torch.nn.functional.cross_entropy: a row of class y has
the loss (1 - s) w_y (-log p_y) + s / C sum_c w_c (-log p_c) and the weight w_y, and the sum over
the global batch is divided by the sum of the weights. "balanced" weights are n / (k n_c) of n
training examples, k classes that occur, and n_c examples of the class (scikit-learn,
compute_class_weight).

The head "classifier" reads the hidden state of the first token, [CLS] (`models.heads`). Rows have
the features of data.layout Labelled().

`Spans` predicts an answer in a text by its first and last token (SQuAD 1.1 and 2.0). Two numbers
for each position give two distributions over the row's tokens (Devlin et al. 2019, section 4.2;
transformers' *ForQuestionAnswering). The loss is the mean of both cross-entropies. No answer is the
span of [CLS] (section 4.3). Rows have the features of data.layout Windows(), which divides long
contexts; or of Labelled(), which truncates them: rows with a truncated answer have no loss.

`TagTokens` labels each word by a head on an encoder: named entities, parts of speech (CoNLL-2003).

    TagTokens(num_classes=9)       # O, and B- and I- of four kinds of names

The head "token" reads the hidden state of each token. The loss is the cross-entropy at the first
token of each word, the mean over the words of the global batch (Devlin et al. 2019, section 5.3;
transformers' *ForTokenClassification, which labels other tokens -100). Rows have the features of
data.layout Tokens().

`objective_for` selects an objective and a task for an imported head.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, Rate, Whole, did_you_mean
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import Choices, Labelled, Layout, Tokens, Windows
from t5x_lite.layouts.base import ADAPTER_IDS
from t5x_lite.layouts.labelled import PARTS_OF_SCORE
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.models.heads import (
    Choice,
    ClassHead,
    Classifier,
    ClassifierKind,
    Head,
    HeadModules,
    Mlm,
    Problem,
    Span,
    SpanHead,
    Token,
)
from t5x_lite.nn.dense import split_key
from t5x_lite.objectives.base import Loss, LossModule, NoLoss, Objective, Term
from t5x_lite.objectives.likelihood import correct, cross_entropy
from t5x_lite.objectives.masked_lm import MaskedLM, features

BALANCED = "balanced"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassObjective(Objective):
    """Base class of objectives with one classification head.

    Attributes:
      class_weights: weight of each class in the loss, in the order of the task's labels; "balanced"
        computes the weights from the training data when the run begins, and () is 1 for each class.
      label_smoothing: total probability that smoothed targets spread over all classes.
    """

    class_weights: Annotated[tuple[float, ...] | Literal["balanced"], AtLeast(0)] = ()
    label_smoothing: Rate = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        num, weights = vars(self)["num_classes"], self.class_weights
        if num == 1 and (weights or self.label_smoothing):
            raise InputError(
                "objective.class_weights and objective.label_smoothing need classes, but "
                "objective.num_classes 1 is regression"
            )
        if weights in ((), BALANCED):
            return
        if num and len(weights) != num:
            raise InputError(
                f"objective.class_weights must have one weight for each of {num} classes: got "
                f"{len(weights)}"
            )
        if not any(weights):
            raise InputError("at least one weight of objective.class_weights must be above 0")

    def undecided(self) -> tuple[str, ...]:
        return ("weights",) * (self.class_weights == BALANCED)

    def with_weights(self, weights: tuple[float, ...]) -> "ClassObjective":
        return dataclasses.replace(self, class_weights=weights) if self.undecided() else self

    def loss_of_classes(self, logits: Float[Array, "*B C"], label: Int[Array, "*B"]) -> Loss:
        """Return the cross-entropy with the objective's class weights and label smoothing."""
        if isinstance(self.class_weights, str):
            raise InputError(
                'objective.class_weights "balanced" is supported only by `t5x-lite train`, which '
                "computes the weights"
            )
        return loss_of_classes(
            logits,
            label,
            class_weights=self.class_weights,
            label_smoothing=self.label_smoothing,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(ClassObjective):
    """Text classification by cross-entropy, or regression by squared error.

    Attributes:
      num_classes: number of classes; 1 is regression, 0 the number of the task's labels.
      head: kind of the head: "bert", "roberta", "electra" or "deberta"; "auto" selects by model
        family.
      dropout_rate: dropout rate of the head; None is the model's rate.
    """

    num_classes: Whole = 2
    head: ClassifierKind | Literal["auto"] = "bert"
    dropout_rate: Rate | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Labelled,)
    of_encoder: ClassVar[bool] = True

    def undecided(self) -> tuple[str, ...]:
        open_fields = ("head",) * (self.head == "auto") + ("classes",) * (not self.num_classes)
        return open_fields + super().undecided()

    def with_classes(self, *, kind: str, num_classes: int) -> "Classify":
        head: Any = kind if self.head == "auto" else self.head
        return dataclasses.replace(self, head=head, num_classes=self.num_classes or num_classes)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ClassifyLoss":
        del model, rngs
        return ClassifyLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        known = kept.get("classifier")
        if isinstance(known, Classifier) and known.num_classes == self.num_classes:
            return (self._head(known.labels, known.problem_type),)
        return (self._head(),)

    def _head(self, labels: tuple[str, ...] = (), problem_type: Problem = "auto") -> Classifier:
        # The data and the checkpoint are read only when a run starts (`train.completion`).
        return Classifier(
            num_classes=self.num_classes or 2,
            kind="bert" if self.head == "auto" else self.head,
            dropout_rate=self.dropout_rate,
            labels=labels,
            problem_type=problem_type,
        )


class ClassifyLoss(LossModule):
    """Loss module that computes the classification or regression loss of labeled rows."""

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        check_labelled(self.config, batch)
        model_key, head_key = split_key(key, 2)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=model_key)
        logits = heads["classifier"](hidden, key=head_key)
        if self.config.num_classes == 1:
            return squared_error(logits[:, 0], batch)
        return self.config.loss_of_classes(logits, batch["labels"][:, 0])


def loss_of_classes(
    logits: Float[Array, "*B C"],
    label: Int[Array, "*B"],
    *,
    class_weights: tuple[float, ...] = (),
    label_smoothing: float = 0.0,
) -> Loss:
    """Return cross-entropy and accuracy of the rows or tokens that have a label.

    Args:
      logits: logits of the classes.
      label: class + 1; 0 for rows or tokens without a label.
      class_weights: weight of each class in the cross-entropy; () is 1 for each. The accuracy is
        unweighted.
      label_smoothing: total probability that smoothed targets spread over all classes.
    """
    weights = (label > 0).astype(jnp.float32)
    targets = jnp.maximum(label - 1, 0)
    right = correct(logits, jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0])
    accuracy = (jnp.sum(right * weights), jnp.sum(weights))
    if class_weights or label_smoothing:
        classes = logits.shape[-1]
        scales = jnp.asarray(class_weights or (1.0,) * classes, jnp.float32)
        own = jax.nn.one_hot(targets, classes) * scales
        mixed = (1.0 - label_smoothing) * own + label_smoothing / classes * scales
        losses = -jnp.sum(mixed * jax.nn.log_softmax(logits.astype(jnp.float32)), axis=-1)
        scaled = weights * scales[targets]
    else:
        losses, _ = cross_entropy(logits, targets)
        scaled = weights
    return Loss(
        terms={"cross_entropy": Term(jnp.sum(losses * weights), jnp.sum(scaled))},
        metrics={"accuracy": accuracy},
    )


def squared_error(predicted: Float[Array, " B"], batch: Batch) -> Loss:
    """Return the squared error of the rows that have a score.

    Args:
      predicted: predicted score of each row.
      batch: batch with "scores", in which NaN marks rows without a score; or else with "labels".
    """
    label = batch["labels"][:, 0]
    # Caches of earlier versions have scores as labels, in thousandths.
    given = jnp.where(label > 0, (label - 1).astype(jnp.float32) / PARTS_OF_SCORE, jnp.nan)
    scores = batch.get("scores", given)
    weights = (~jnp.isnan(scores)).astype(jnp.float32)
    # Zeros instead of NaN before the square: a gradient of NaN times 0 is NaN.
    errors = jnp.where(jnp.isnan(scores), 0.0, predicted - jnp.nan_to_num(scores))
    total, weight = jnp.sum(jnp.square(errors)), jnp.sum(weights)
    return Loss(
        terms={"squared_error": Term(total, weight)},
        metrics={"squared_error": (total, weight)},
    )


def check_labelled(objective: Objective, batch: Batch) -> None:
    """Raise InputError for a batch without labels."""
    missing = {"encoder_input_tokens", "encoder_segment_ids", "labels"} - set(batch)
    if missing:
        raise InputError(
            f"objective {type(objective).__name__} reads texts with labels, but the batch has no "
            f"{', '.join(sorted(missing))}: data.layout must be labelled"
        )


_NEVER = -1e9
"""Logit of an absent choice or position; finite, so that a row of padding does not give NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose(Objective):
    """Multiple choice: cross-entropy of the right choice of a question.

    Attributes:
      head: kind of the head: "bert", "roberta", "electra" or "deberta".
      dropout_rate: dropout rate of the head; None is the model's rate.
    """

    head: ClassifierKind = "bert"
    dropout_rate: Rate | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Choices,)
    of_encoder: ClassVar[bool] = True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ChooseLoss":
        del model, rngs
        return ChooseLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        return (Choice(kind=self.head, dropout_rate=self.dropout_rate),)


class ChooseLoss(LossModule):
    """Loss module that computes the multiple-choice loss of labeled rows."""

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        tokens = batch.get("encoder_input_tokens")
        if tokens is None or tokens.ndim != 3 or "labels" not in batch:
            raise InputError(
                "objective Choose reads labels and questions with choices (encoder_input_tokens "
                "[B, C, S]), so data.layout must be choices"
            )
        rows, num, length = tokens.shape
        flat = {name: value.reshape(-1, length) for name, value in features(batch).items()}
        model_key, head_key = split_key(key, 2)
        hidden = model(tokens.reshape(-1, length), **flat, key=model_key)
        logits = heads["choice"](hidden, key=head_key).reshape(rows, num)
        there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2)
        logits = jnp.where(there, logits, _NEVER)
        return loss_of_classes(logits, batch["labels"][:, 0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans(Objective):
    """Extractive question answering: cross-entropy of an answer's first and last token.

    Attributes:
      longest: maximum length of an answer, in tokens.
    """

    longest: Count = 30

    layouts: ClassVar[tuple[type[Layout], ...]] = (Windows, Labelled)
    of_encoder: ClassVar[bool] = True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "SpansLoss":
        del model, rngs
        return SpansLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        return (Span(longest=self.longest),)


class SpansLoss(LossModule):
    """Loss module that computes the loss of answer spans in labeled rows."""

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        check_labelled(self.config, batch)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=key)
        return loss_of_spans(heads["span"], hidden, batch)


def loss_of_spans(head: SpanHead, hidden: Float[Array, "B S D"], batch: Batch) -> Loss:
    """Return the mean cross-entropy of an answer's two ends, and the accuracy of answers.

    Args:
      head: head that computes the logits of all positions.
      hidden: hidden states of the encoder.
      batch: batch with "labels": positions of the answer's first and last token, plus 1; rows with
        0 are ignored.
    """
    logits = span_logits(head, hidden, batch["encoder_segment_ids"])
    weights = (batch["labels"][:, 0] > 0).astype(jnp.float32)
    targets = jnp.maximum(batch["labels"] - 1, 0)
    losses, _ = cross_entropy(logits, targets)
    ends = correct(logits, jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0])
    right = jnp.prod(ends, axis=-1)
    weight = jnp.sum(weights)
    return Loss(
        terms={"cross_entropy": Term(jnp.sum(jnp.mean(losses, axis=-1) * weights), weight)},
        metrics={"accuracy": (jnp.sum(right * weights), weight)},
    )


def span_logits(
    head: SpanHead, hidden: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
) -> Float[Array, "B 2 S"]:
    """Return float32 logits of an answer's first and last token; padding is masked out.

    Args:
      head: head that computes the logits of all positions.
      hidden: hidden states of the encoder.
      segment_ids: segment id of each token; 0 is padding.
    """
    both = jnp.stack(head(hidden), axis=1)
    return jnp.where(segment_ids[:, None] > 0, both, _NEVER)


_TASK = re.compile(r"([a-z][a-z0-9_]*)=(\d+|span)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskHeads(Objective):
    """Multi-task training: losses of several task heads, each for the rows of its task.

    Attributes:
      tasks: NAME=CLASSES for each task, in the order of the task numbers in `data.adapter_of`. One
        class is regression, and "span" predicts first and last token of an answer. The head has the
        name NAME.
      scales: scale of each task's term in the loss; () is 1 for each.
      class_weights: NAME=W1,W2,... for tasks with classes: weight of each class in the task's loss,
        in the order of the task's labels. The weights of other tasks are 1.
      label_smoothing: total probability that smoothed targets spread over all classes of a task.
      head: kind of the heads of classes and scores: "bert", "roberta", "electra" or "deberta".
      dropout_rate: dropout rate of the heads of classes and scores; None is the model's rate.
      longest: maximum length of an answer, in tokens.
    """

    tasks: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    class_weights: tuple[str, ...] = ()
    label_smoothing: Rate = 0.0
    head: ClassifierKind = "bert"
    dropout_rate: Rate | None = None
    longest: Count = 30

    layouts: ClassVar[tuple[type[Layout], ...]] = (Labelled,)
    of_encoder: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scales and len(self.scales) != len(self.tasks):
            raise InputError(
                f"objective.scales must have one scale for each of {len(self.tasks)} tasks: got "
                f"{self.scales}"
            )
        for line in self.tasks:
            if _TASK.fullmatch(line) is None:
                raise InputError(
                    f"objective.tasks must be NAME=CLASSES or NAME=span, such as mnli=3: got "
                    f"{line!r}"
                )
        names = [line.partition("=")[0] for line in self.tasks]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"objective.tasks names the task {twice} twice")
        try:
            self.heads({})
        except InputError as error:
            raise InputError(f"objective.tasks: {error}") from error
        self.weights_by_task()

    def weights_by_task(self) -> dict[str, tuple[float, ...]]:
        """Return the class weights of the tasks in `class_weights`.

        Raises:
          InputError: if a task is unknown, named twice or has no classes, or a weight is invalid.
        """
        kinds = dict(line.split("=") for line in self.tasks)
        found: dict[str, tuple[float, ...]] = {}
        for line in self.class_weights:
            name, _, values = line.partition("=")
            where = f"objective.class_weights {line!r}"
            if name not in kinds:
                raise InputError(f"{where}: no task is called {name!r}{did_you_mean(name, kinds)}")
            if name in found:
                raise InputError(f"{where}: the task {name} is named twice")
            if kinds[name] in ("1", "span"):
                raise InputError(f"{where}: the task {name}={kinds[name]} has no classes")
            try:
                weights = tuple(map(float, values.split(",")))
            except ValueError as error:
                raise InputError(f"{where} must be NAME=W1,W2,..., such as mnli=1,1,2") from error
            if len(weights) != int(kinds[name]):
                raise InputError(
                    f"{where} must have one weight for each of {kinds[name]} classes: got "
                    f"{len(weights)}"
                )
            if not (all(0 <= w < math.inf for w in weights) and any(weights)):
                raise InputError(f"{where}: weights must be at least 0, and one of them above 0")
            found[name] = weights
        return found

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "TaskHeadsLoss":
        """Build the loss module, which has no parameters."""
        del model, rngs
        if not self.tasks:
            raise InputError("objective.tasks is empty; set NAME=CLASSES for each task")
        return TaskHeadsLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        return tuple(self._head(line, kept) for line in self.tasks)

    def _head(self, line: str, kept: Mapping[str, Head]) -> Head:
        name, _, kind = line.partition("=")
        if kind == "span":
            return Span(name=name, longest=self.longest)
        known = kept.get(name)
        labels = known.labels if isinstance(known, ClassHead) else ()
        return Classifier(
            name=name,
            num_classes=int(kind),
            kind=self.head,
            dropout_rate=self.dropout_rate,
            labels=labels if len(labels) == int(kind) else (),
        )


class TaskHeadsLoss(LossModule):
    """Loss module that computes the loss of each task from the rows of the task."""

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """Return the loss of a batch; rows without a task are ignored.

        Raises:
          InputError: if the features belong to another layout, or rows have no task number.
        """
        check_labelled(self.config, batch)
        if ADAPTER_IDS not in batch:
            raise InputError(
                "objective TaskHeads needs the task number of each row, but the batch has none; "
                "read one cache per task, with --data.adapter-of CACHE=NUMBER for each, or set "
                "--evaluation.loss False to evaluate a task only by its head"
            )
        ids = jnp.reshape(batch[ADAPTER_IDS], (-1,))
        model_key, head_key = split_key(key, 2)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=model_key)
        keys = split_key(head_key, self.config.num_tasks)
        terms: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        scales = self.config.scales or (1.0,) * self.config.num_tasks
        weights = self.config.weights_by_task()
        for number, (line, scale) in enumerate(zip(self.config.tasks, scales, strict=True)):
            name, _, kind = line.partition("=")
            rows = _only(batch, ids == number)
            own = weights.get(name, ())
            loss = self._loss(heads[name], kind, hidden, rows, keys[number], class_weights=own)
            terms |= {f"{name}/{k}": x._replace(scale=scale) for k, x in loss.terms.items()}
            metrics |= {f"{name}/{k}": x for k, x in loss.metrics.items()}
        return Loss(terms=terms, metrics=metrics)

    def _loss(
        self,
        head: Any,
        kind: str,
        hidden: Array,
        rows: Batch,
        key: Key | None,
        *,
        class_weights: tuple[float, ...],
    ) -> Loss:
        if kind == "span":
            return loss_of_spans(head, hidden, rows)
        logits = head(hidden, key=key)
        if kind == "1":
            return squared_error(logits[:, 0], rows)
        return loss_of_classes(
            logits,
            rows["labels"][:, 0],
            class_weights=class_weights,
            label_smoothing=self.config.label_smoothing,
        )


def _only(batch: Batch, mine: Array) -> Batch:
    rows = {**batch, "labels": jnp.where(mine[:, None], batch["labels"], 0)}
    if "scores" in batch:
        rows["scores"] = jnp.where(mine, batch["scores"], jnp.nan)
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagTokens(ClassObjective):
    """Token labeling: cross-entropy of the classes of words, such as named entities.

    Attributes:
      num_classes: number of classes.
      dropout_rate: dropout rate of the head; None is the model's rate.
    """

    num_classes: Annotated[int, AtLeast(2)] = 2
    dropout_rate: Rate | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Tokens,)
    of_encoder: ClassVar[bool] = True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "TagTokensLoss":
        del model, rngs
        return TagTokensLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        known = kept.get("token")
        if isinstance(known, Token) and known.num_classes == self.num_classes:
            return (self._head(known.labels),)
        return (self._head(),)

    def _head(self, labels: tuple[str, ...] = ()) -> Token:
        return Token(num_classes=self.num_classes, dropout_rate=self.dropout_rate, labels=labels)


class TagTokensLoss(LossModule):
    """Loss module that computes the token classification loss of labeled tokens."""

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        missing = {"encoder_input_tokens", "encoder_segment_ids", "token_labels"} - set(batch)
        if missing:
            raise InputError(
                "objective TagTokens reads tokens with labels, but the batch has no "
                f"{', '.join(sorted(missing))}: data.layout must be tokens"
            )
        model_key, head_key = split_key(key, 2)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=model_key)
        logits = heads["token"](hidden, key=head_key)
        return self.config.loss_of_classes(logits, batch["token_labels"])


DOCUMENTS = "tasks.encoder:documents"
_BY_CLASSES = {1: "tasks.glue:stsb", 3: "tasks.glue:mnli"}


def objective_for(head: Head | None, *, mask_id: int) -> tuple[Objective, str]:
    """Return an objective and a suitable task for training a head of an encoder.

    Args:
      head: head of the checkpoint; None for an encoder without a head.
      mask_id: token id of [MASK] in the vocabulary.
    """
    if isinstance(head, Mlm):
        return MaskedLM(mask_id=mask_id), DOCUMENTS
    if isinstance(head, Choice):
        return Choose(head=head.kind, dropout_rate=head.dropout_rate), "tasks.super_glue:copa"
    if isinstance(head, Span):
        return Spans(longest=head.longest), "tasks.squad:squad"
    if isinstance(head, Token):
        tag = TagTokens(num_classes=head.num_classes, dropout_rate=head.dropout_rate)
        return tag, "tasks.tokens:conll"
    if isinstance(head, Classifier):
        objective = Classify(
            num_classes=head.num_classes, head=head.kind, dropout_rate=head.dropout_rate
        )
        return objective, _BY_CLASSES.get(head.num_classes, "tasks.glue:sst2")
    return NoLoss(), DOCUMENTS
