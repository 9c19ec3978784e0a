"""Several tasks on one encoder, each with a head of its own.

    TaskHeads(tasks=("mnli=3", "stsb=1", "squad=span"))    # heads/mnli, heads/stsb, heads/squad

A row has the number of its task, `adapter_ids` (`data.adapter_of`), and is read by that task's head
alone: NAME=1 is a score by its squared error, NAME=2 and more are classes, NAME=span the ends of an
answer. Each term is the mean over its task's rows of the whole batch, so that a batch in which a
task has few rows weighs it no less; a task without rows adds 0. All heads run on all rows, and all
processes run one program. The tasks may share all weights, or have modules of their own by
MultiTask; with Parallel child i answers for the rows of task i.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar, get_args

import jax.numpy as jnp
from flax import nnx

from t5x_lite.data.config import ADAPTER_IDS
from t5x_lite.data.layouts import Labelled, Layout
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.classes import ClassHead
from t5x_lite.heads.classifier import Classifier, ClassifierKind
from t5x_lite.heads.span import Span
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, Objective
from t5x_lite.objectives.classify import check_labelled, loss_of_classes, squared_error
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.objectives.spans import loss_of_spans
from t5x_lite.types import Array, Batch, Key

_TASK = re.compile(r"([a-z][a-z0-9_]*)=(\d+|span)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskHeads(Objective):
    """The losses of several tasks, each of its own rows.

    Attributes:
      tasks: NAME=CLASSES, in the order of their numbers in `data.adapter_of`; one class is a score,
        and "span" the ends of an answer. The head is called NAME.
      scales: of the terms in the loss; () is 1 for each.
      head: "bert", "roberta", "electra" or "deberta", of classes and scores.
      dropout_rate: dropout rate of those heads; None is the model's.
      longest: tokens of an answer at most, where one is looked for.
    """

    tasks: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    head: ClassifierKind = "bert"
    dropout_rate: float | None = None
    longest: int = 30

    layouts: ClassVar[tuple[type[Layout], ...]] = (Labelled,)

    def __post_init__(self) -> None:
        if self.head not in get_args(ClassifierKind):
            kinds = get_args(ClassifierKind)
            raise InputError(f"objective.head must be one of {kinds}: got {self.head!r}")
        if self.scales and len(self.scales) != len(self.tasks):
            raise InputError(
                f"objective.scales must be one for each of {len(self.tasks)} tasks: got "
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
            raise InputError(f"objective.tasks has {twice} twice")
        try:
            self.heads({})
        except InputError as error:
            raise InputError(f"objective.tasks: {error}") from error

    @property
    def num_tasks(self) -> int:
        """See `Objective.num_tasks`."""
        return len(self.tasks)

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "TaskHeadsLoss":
        """Makes the loss module, which has no parameters.

        Raises:
          InputError: there are no tasks.
        """
        del model, rngs
        if not self.tasks:
            raise InputError("objective.tasks names no task: give it NAME=CLASSES of each")
        return TaskHeadsLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """A head for each task, with the names of its classes where they are known."""
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

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class TaskHeadsLoss(nnx.Module):
    """Sums over the labelled rows of each task of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: TaskHeads):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of the layout Labelled(); rows of no task count 0.

        Raises:
          InputError: the features are those of another layout, or rows have no number.
        """
        check_labelled(self.config, batch)
        if ADAPTER_IDS not in batch:
            raise InputError(
                "objective TaskHeads needs the number of each row's task: read caches, one for "
                "each, and give --data.adapter-of CACHE=NUMBER for each; to measure one task by "
                "its head alone, set --evaluation.loss False"
            )
        ids = jnp.reshape(batch[ADAPTER_IDS], (-1,))
        model_key, head_key = split_key(key, 2)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=model_key)
        keys = split_key(head_key, self.config.num_tasks)
        terms: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        scales = self.config.scales or (1.0,) * self.config.num_tasks
        for number, (line, scale) in enumerate(zip(self.config.tasks, scales, strict=True)):
            name, _, kind = line.partition("=")
            rows = _only(batch, ids == number)
            loss = self._loss(heads[name], kind, hidden, rows, keys[number])
            terms |= {f"{name}/{k}": x._replace(scale=scale) for k, x in loss.terms.items()}
            metrics |= {f"{name}/{k}": x for k, x in loss.metrics.items()}
        return Loss(terms=terms, metrics=metrics)

    def _loss(self, head: Any, kind: str, hidden: Array, rows: Batch, key: Key | None) -> Loss:
        """That of one task."""
        if kind == "span":
            return loss_of_spans(head, hidden, rows)
        logits = head(hidden, key=key)
        if kind == "1":
            return squared_error(logits[:, 0], rows)
        return loss_of_classes(logits, rows["labels"][:, 0])


def _only(batch: Batch, mine: Array) -> Batch:
    """The batch whose other rows have neither a label nor a score."""
    rows = {**batch, "labels": jnp.where(mine[:, None], batch["labels"], 0)}
    if "scores" in batch:
        rows["scores"] = jnp.where(mine, batch["scores"], jnp.nan)
    return rows
