"""The task or the tasks of a config, each with what answers it: for its metrics, and for servers.

    suite = TaskSuite(experiment, vocabulary, bind=bind, mesh=mesh)
    suite.run(params)           # {"accuracy": 0.9, "score": 0.9}
    suite.run(params)           # of a mixture {"glue_rte/accuracy": 0.7, ...}
    suite.answers("glue_rte", params)       # to the test split, for a submission

Of a mixture, the tasks are measured whose data are there; the others are named in the log. Where
the rows are those of a head on an encoder it answers its one task (`evaluate.heads`).
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from t5x_lite.config import Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.data.mixtures import Member, find_mixture
from t5x_lite.data.postprocess import is_answer, is_known
from t5x_lite.data.tasks.labelled import task_form
from t5x_lite.decoding.config import Decoding
from t5x_lite.errors import InputError
from t5x_lite.evaluate.generate import Bind, Generator, TaskEvaluator, as_text
from t5x_lite.evaluate.heads import check_head, head_answers, is_in_order
from t5x_lite.evaluate.rank import LabelGenerator, Ranker
from t5x_lite.evaluate.score import Scorer
from t5x_lite.evaluate.standings import scored, with_score
from t5x_lite.evaluate.submission import FORMATS, Answer, example_index
from t5x_lite.heads.base import Head
from t5x_lite.heads.classes import with_labels
from t5x_lite.learner import heads_of
from t5x_lite.types import Params
from t5x_lite.vocabulary import unknown_tokens
from t5x_lite.vocabulary.encoder_tokens import encoder_tokens
from t5x_lite.vocabulary.loading import Vocabulary

_logger = logging.getLogger(__name__)

_FIRST = 100
"""Examples that are looked at where no metric needs all."""

ParamsOf = Callable[[str], Params]
"""The parameters with which a task is answered."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A task of a config.

    Attributes:
      data: the config by which it is read alone.
      task: the seqio.Task.
      is_measured: whether its metrics are wanted.
      counts: whether its score counts in the mean over the tasks.
    """

    data: Data
    task: Any
    is_measured: bool = True
    counts: bool = True


class TaskSuite:
    """Tasks that are measured, by name.

    Attributes:
      is_mixture: whether data.task is a mixture; a single task's metrics have no task's name.
      sources: all tasks whose data are there.
      evaluators: those of them that have metrics, and labels in the split.
      unlabelled: those that have no labels in the split.
    """

    def __init__(
        self,
        experiment: Experiment,
        vocabulary: Vocabulary,
        *,
        bind: Bind,
        mesh: Mesh,
        learner: Bind | None = None,
    ) -> None:
        """Reads the examples.

        Args:
          experiment: its data and its evaluation.
          vocabulary: of the data.
          bind: the model that answers.
          mesh: where batches go.
          learner: the model with its heads, one of which may answer; None where there are none.

        Raises:
          InputError: a task cannot be made or read, has no labels to rank, or is none for the head.
        """
        self._learner = learner
        self._heads = heads_of(experiment.objective, experiment.heads)
        self._data, self._settings = experiment.data, experiment.evaluation
        self._vocabulary = vocabulary
        self._bind, self._mesh = bind, mesh
        self.is_mixture = find_mixture(self._data) is not None
        self.sources = self._sources()
        self.unlabelled: list[str] = []
        self.evaluators = dict(self._evaluators())
        self._check_loss()
        if self.is_mixture and self._settings.task_metrics and not self.evaluators:
            _logger.warning(
                "no task of the mixture %s has a split %s to be measured on",
                self._data.task,
                self._settings.split,
            )

    def _sources(self) -> dict[str, Source]:
        from t5x_lite.data.live import members
        from t5x_lite.data.live import tasks as live_tasks

        if not self.is_mixture:
            task = live_tasks.load_task(self._data, self._vocabulary)
            if self._reads_labels:
                self._check_head(task)
            if self._settings.rank and live_tasks.task_labels(task) is None:
                raise InputError(
                    f"evaluation.rank: data.task {self._data.task!r} has no closed set of labels "
                    "to rank (the attribute labels of its postprocess_fn); set --evaluation.rank "
                    "False"
                )
            return {Member(task=self._data.task).name: Source(data=self._data, task=task)}
        found = members.members(self._data, self._vocabulary)
        for name, reason in found.absent.items():
            _logger.info("%s is not measured: %s", name, reason)
        return {
            one.member.name: Source(
                data=one.data,
                task=one.task,
                is_measured=one.member.measured,
                counts=not one.member.form_of,
            )
            for one in found.present
        }

    def _evaluators(self) -> Iterator[tuple[str, TaskEvaluator]]:
        from t5x_lite.data.live import tasks as live_tasks

        settings = self._settings
        for name, source in self.sources.items():
            postprocess, metrics = live_tasks.task_metrics(source.task)
            has_split = not self.is_mixture or settings.split in source.task.splits
            if not (settings.task_metrics and metrics and source.is_measured and has_split):
                continue
            examples = self._examples(
                name,
                split=settings.split,
                limit=settings.max_examples,
                may_lack=self.is_mixture,
            )
            if examples is not None and self._has_labels(name, examples):
                yield (
                    name,
                    TaskEvaluator(
                        self._generator(source.task),
                        examples,
                        postprocess=postprocess,
                        metrics=metrics,
                    ),
                )

    def _has_labels(self, name: str, examples: Sequence[Any]) -> bool:
        """Whether any target of a split is known; a task that stands alone must have one.

        Raises:
          InputError: it has none.
        """
        if any(is_known(example.targets_text, example.target) for example in examples):
            return True
        if not self.is_mixture:
            raise no_labels(self._data.task, self._settings.split, self.sources[name].task.splits)
        _logger.info("%s is not measured: its split %s has no labels", name, self._settings.split)
        self.unlabelled.append(name)
        return False

    def _check_loss(self) -> None:
        """Refuses the loss of a task on a test split that has no labels.

        Raises:
          InputError: its first targets are all unknown.
        """
        split = self._settings.split
        if self.is_mixture or self.evaluators or not self._settings.loss or "test" not in split:
            return
        for name in self.sources:
            examples = self._examples(name, split=split, limit=_FIRST, may_lack=False)
            self._has_labels(name, examples or ())

    def check_test(self, name: str) -> None:
        """Reads the test split of a task, without its tokens.

        Raises:
          InputError: its file cannot be read; not where there is none.
        """
        from t5x_lite.data.live import members

        try:
            self.sources[name].task.source.get_dataset(split="test", shuffle=False)
        except InputError as error:
            if not members.is_absent(error):
                raise

    def _examples(
        self, name: str, *, split: str, limit: int | None, may_lack: bool
    ) -> list[Any] | None:
        """A split's examples; None where there is no file for it, and the task may lack it."""
        from t5x_lite.data.live import members, pipeline

        try:
            return pipeline.eval_examples(
                self.sources[name].data, self._vocabulary, split=split, max_examples=limit
            )
        except InputError as error:
            if not may_lack or not members.is_absent(error):
                raise
            _logger.info("%s has no split %s: %s", name, split, error)
            return None

    def tell_unknown(self) -> None:
        """Warns of the tasks whose text the vocabulary cannot spell."""
        for name, evaluator in self.evaluators.items():
            first = evaluator.examples[: unknown_tokens.FIRST]
            texts = [example.targets_text for example in first]
            known = [
                not self._reads_labels and is_known(one.targets_text, one.target) for one in first
            ]
            targets = self._vocabulary.encode_batch(texts)
            examples = [
                {"inputs": one.inputs, **({"targets": ids} if told else {})}
                for one, ids, told in zip(first, targets, known, strict=True)
            ]
            unknown_tokens.tell(name, examples, self._vocabulary)

    def names(self) -> list[str]:
        """The names of the metrics that `run` gives."""
        if not self.is_mixture:
            own = [name for one in self.evaluators.values() for name in one.names()]
            return list(with_score(dict.fromkeys(own, 0.0)))
        zeros = {name: dict.fromkeys(one.names(), 0.0) for name, one in self.evaluators.items()}
        return list(scored(zeros, aside=self._aside()))

    def _aside(self) -> list[str]:
        """The tasks that do not count in the mean of the scores."""
        return [name for name, source in self.sources.items() if not source.counts]

    def run(self, params: Params | ParamsOf) -> dict[str, float]:
        """The metrics and the score, of a mixture as `standings.scored` names them.

        Args:
          params: of the model; or, by a task's name, those to answer it with.
        """
        found = {
            name: evaluator.run(params(name) if callable(params) else params)
            for name, evaluator in self.evaluators.items()
        }
        if self.is_mixture:
            return scored(found, aside=self._aside())
        return with_score(next(iter(found.values()), {}))

    def invalid(self) -> dict[str, int]:
        """Predictions of the last run that were no valid answer, of tasks that do not take any."""
        counts = {}
        for name, evaluator in self.evaluators.items():
            postprocess = self.sources[name].task.postprocessor
            found = [is_answer(postprocess, sample.prediction) for sample in evaluator.samples]
            if None not in found:
                counts[name] = found.count(False)
        return counts

    def submittable(self) -> list[str]:
        """The tasks whose answers a benchmark's server takes."""
        return [
            name
            for name, source in self.sources.items()
            if name in FORMATS and "test" in source.task.splits
        ]

    def answers(self, name: str, params: Params) -> list[Answer] | None:
        """A model's answers to the test split of one task; None where that is not there.

        Raises:
          InputError: its file cannot be read.
        """
        from t5x_lite.data.live import tasks as live_tasks

        examples = self._examples(name, split="test", limit=None, may_lack=True)
        if examples is None:
            return None
        task = self.sources[name].task
        predicted = self._generator(task).run(params, [example.inputs for example in examples])
        postprocess, _ = live_tasks.task_metrics(task)
        answers = []
        for number, (example, (best, *_)) in enumerate(zip(examples, predicted, strict=True)):
            value = postprocess(best.text, example=example.raw, is_target=False)
            answer = Answer(
                index=example_index(example.raw, number=number),
                text=as_text(best.text, value),
                value=value,
                example=example.raw,
            )
            answers.append(answer)
        return answers

    def _generator(self, task: Any) -> Generator:
        """What answers a task's examples: a search, or the rank of its labels."""
        from t5x_lite.data.live import tasks as live_tasks

        if self._reads_labels:
            return self._head(task)
        labels = live_tasks.task_labels(task) if self._settings.rank else None
        if labels is None:
            return self._search
        tokens = [
            np.asarray([*ids, self._vocabulary.eos_id], np.int32)
            for ids in self._vocabulary.encode_batch(labels)
        ]
        return LabelGenerator(self._ranker, labels, tokens)

    def _check_head(self, task: Any) -> str:
        """The name of the head that answers a task.

        Raises:
          InputError: there is none.
        """
        from t5x_lite.data.live import tasks as live_tasks

        form = task_form(task)
        return check_head(
            self._heads,
            None if form is None else form.head,
            live_tasks.task_labels(task),
            where=self._where,
        )

    def named_heads(self, heads: Sequence[Head]) -> tuple[Head, ...]:
        """An experiment's heads, with the names of the task's classes where a head is trained.

        Raises:
          InputError: see `heads.classes.with_labels`.
        """
        from t5x_lite.data.live import tasks as live_tasks

        if not self._reads_labels or self.is_mixture:
            return tuple(heads)
        [source] = self.sources.values()
        labels = live_tasks.task_labels(source.task)
        own = self._heads[self._check_head(source.task)]
        return tuple(heads) if labels is None else with_labels(heads, own, labels)

    def in_order(self) -> bool:
        """Whether the loss has the classes of a head in the order of the task's labels."""
        from t5x_lite.data.live import tasks as live_tasks

        if not self._reads_labels or self.is_mixture:
            return True
        return all(
            is_in_order(self._heads[self._check_head(one.task)], live_tasks.task_labels(one.task))
            for one in self.sources.values()
        )

    def _head(self, task: Any) -> Generator:
        """What answers a task's examples by a head.

        Raises:
          InputError: there is none.
        """
        from t5x_lite.data.live import tasks as live_tasks

        if self._learner is None:
            raise InputError(
                f"{self._where}: an ensemble has no head in common; give one --checkpoint"
            )
        tokens, form = encoder_tokens(self._vocabulary), task_form(task)
        nulls = form is not None and form.nulls
        return head_answers(
            self._learner,
            self._heads[self._check_head(task)],
            live_tasks.task_labels(task),
            where=self._where,
            layout=self._data.layout,
            null_threshold=self._settings.null_threshold if nulls else None,
            candidates=form is not None and bool(form.candidates),
            batch_size=self._batch_size,
            longest=self._data.inputs_length,
            pad_id=tokens.pad_id,
            sep_id=tokens.sep_id,
            mesh=self._mesh,
        )

    @property
    def _reads_labels(self) -> bool:
        """Whether a head on an encoder answers, and no text is written."""
        return self._data.layout.answered_by_head

    @property
    def _where(self) -> str:
        return f"data.task {self._data.task!r}"

    @functools.cached_property
    def _search(self) -> Generator:
        return Generator(
            self._bind,
            self._vocabulary,
            batch_size=self._batch_size,
            decoding=decoding(self._settings),
            mesh=self._mesh,
        )

    @functools.cached_property
    def _ranker(self) -> Ranker:
        return Ranker(Scorer(self._bind, batch_size=self._batch_size, mesh=self._mesh))

    @property
    def _batch_size(self) -> int:
        return self._settings.batch_size or self._data.batch_size


def no_labels(task: str, split: str, splits: Sequence[str]) -> InputError:
    """The error of a split that has nothing to compare predictions with.

    Args:
      task: data.task.
      split: evaluation.split.
      splits: those of the task.
    """
    remedy = (
        "measure --evaluation.split validation; its answers to the test split are then written "
        "with --output DIR, for a task that has a benchmark's server"
        if "validation" in splits
        else "its answers are written by `evaluate --output DIR` on the mixture that it belongs to "
        "(tasks.mixtures:glue, tasks.mixtures:super_glue)"
    )
    return InputError(
        f"data.task {task!r} has no labels in split {split!r}, so there is nothing to measure: "
        f"{remedy}"
    )


def decoding(settings: Evaluation) -> Decoding:
    """How an evaluation decodes."""
    return Decoding(
        max_length=settings.max_decode_length,
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
    )


def task_rows(
    suite: TaskSuite, metrics: Mapping[str, float], *, steps: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """What metrics.json says of each task of a mixture.

    Args:
      suite: after its run.
      metrics: what the run gave.
      steps: the step of the checkpoint with which each task was answered.
    """
    invalid = suite.invalid()
    rows = {}
    for name in suite.evaluators:
        own = {
            m.removeprefix(f"{name}/"): v for m, v in metrics.items() if m.startswith(f"{name}/")
        }
        counted = {"invalid_predictions": invalid[name]} if name in invalid else {}
        rows[name] = {"step": steps[name], **own, **counted}
    return rows
