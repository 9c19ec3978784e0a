"""The task or the tasks of a config, each with what answers it: for its metrics, and for servers.

    suite = TaskSuite(experiment, vocabulary, bind=bind, mesh=mesh)
    suite.run(params)           # {"accuracy": 0.9, "score": 0.9}
    suite.run(params)           # of a mixture {"glue_rte/accuracy": 0.7, ...}
    suite.answers("glue_rte", params)       # to the test split, for a submission

Of a mixture, the tasks are measured whose data are there; the others are named in the log. Where
the rows are those of a head on an encoder it answers its one task (`evaluate.heads`).
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from t5x_lite.config import Experiment
from t5x_lite.data.config import Data
from t5x_lite.data.mixtures import Member, find_mixture
from t5x_lite.data.postprocess import is_answer, is_known
from t5x_lite.errors import InputError
from t5x_lite.evaluate.few_shot import Prompts
from t5x_lite.evaluate.few_shot_evaluator import FewShotEvaluator
from t5x_lite.evaluate.generate import Bind, Generator, TaskEvaluator, as_text
from t5x_lite.evaluate.standings import scored, with_score
from t5x_lite.evaluate.submission import FORMATS, Answer, example_index
from t5x_lite.evaluate.trials import Trials
from t5x_lite.heads.base import Head
from t5x_lite.run.answerers import Answerers
from t5x_lite.run.shown_examples import ShownExamples
from t5x_lite.run.task_settings import TaskSettings
from t5x_lite.types import Params
from t5x_lite.vocabulary import unknown_tokens
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
        self._data, self._settings = experiment.data, experiment.evaluation
        self._vocabulary = vocabulary
        self._answerers = Answerers(experiment, vocabulary, bind=bind, mesh=mesh, learner=learner)
        self._by_task = TaskSettings(self._settings, self._data)
        self._shown = ShownExamples(experiment, vocabulary)
        self.is_mixture = find_mixture(self._data) is not None
        self.sources = self._sources()
        self.unlabelled: list[str] = []
        self._few_shot: dict[str, FewShotEvaluator] = {}
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
            if self._answerers.reads_labels:
                self._answerers.check_head(task)
            name = Member(task=self._data.task).name
            ranks = self._by_task.evaluation(name).rank
            if ranks and live_tasks.task_labels(task) is None:
                raise InputError(
                    f"evaluation.rank: data.task {self._data.task!r} has no closed set of labels "
                    "to rank (the attribute labels of its postprocess_fn); set --evaluation.rank "
                    "False"
                )
            return {name: Source(data=self._by_task.data(name, self._data), task=task)}
        found = members.members(self._data, self._vocabulary)
        for name, reason in found.absent.items():
            _logger.info("%s is not measured: %s", name, reason)
        return {
            one.member.name: Source(
                data=self._by_task.data(one.member.name, one.data),
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
            _, metrics = live_tasks.task_metrics(source.task)
            has_split = not self.is_mixture or settings.split in source.task.splits
            if not (settings.task_metrics and metrics and source.is_measured and has_split):
                continue
            examples = self._examples(
                name,
                split=settings.split,
                limit=self._by_task.evaluation(name).max_examples,
                may_lack=self.is_mixture,
            )
            if examples is None or not self._has_labels(name, examples):
                continue
            evaluator = self._evaluator(name, examples)
            if evaluator is not None:
                yield name, evaluator

    def _evaluator(self, name: str, examples: Sequence[Any]) -> TaskEvaluator | None:
        """What measures a task; None of a mixture's without the examples that prompts show."""
        from t5x_lite.data.live import tasks as live_tasks

        postprocess, metrics = live_tasks.task_metrics(self.sources[name].task)
        generator = self._generator(name)
        if not self._shown.is_on:
            return TaskEvaluator(generator, examples, postprocess=postprocess, metrics=metrics)
        prompts = self._prompts(name, no="is not measured")
        if prompts is None:
            return None
        self._few_shot[name] = FewShotEvaluator(
            generator, examples, postprocess=postprocess, metrics=metrics, prompts=prompts
        )
        return self._few_shot[name]

    def _prompts(self, name: str, *, no: str) -> Prompts | None:
        """The prompts of a task; None of a mixture's that has no examples to show.

        Args:
          name: the task's.
          no: what such a task lacks then, for the log.

        Raises:
          InputError: the examples cannot be read, or a task that stands alone has none.
        """
        from t5x_lite.data.live import members

        source, split = self.sources[name], self._settings.few_shot.split
        shown = self._by_task.shown(name, source.data)
        try:
            return self._shown.prompts(name, shown)
        except InputError as error:
            no_split = shown is source.data and split not in source.task.splits
            lacks = no_split or members.is_absent(error)
            if not self.is_mixture or not lacks:
                raise
            _logger.info("%s %s: %s", name, no, error)
            return None

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
                not self._answerers.reads_labels and is_known(one.targets_text, one.target)
                for one in first
            ]
            targets = self._vocabulary.encode_batch(texts)
            examples = [
                {
                    "inputs": one.inputs,
                    **({"targets": ids, "targets_pretokenized": one.targets_text} if told else {}),
                }
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

    @property
    def trials(self) -> Trials:
        """The few-shot trials of the last run."""
        return Trials(self._settings.few_shot, self._few_shot, self.is_mixture, aside=self._aside())

    def is_whole(self, name: str) -> bool:
        """Whether all examples of a task are answered."""
        return self._by_task.evaluation(name).max_examples is None

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
        inputs = [example.inputs for example in examples]
        if self._shown.is_on:
            prompts = self._prompts(name, no="has no submission file")
            if prompts is None:
                return None
            first, texts = prompts.config.trials[0], [example.inputs_text for example in examples]
            inputs = [prompt.tokens for prompt in prompts.of(first, texts)]
        predicted = self._generator(name).run(params, inputs)
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

    def _generator(self, name: str) -> Generator:
        """What answers a task's examples."""
        return self._answerers.of(self.sources[name].task, self._by_task.evaluation(name))

    def named_heads(self, heads: Sequence[Head]) -> tuple[Head, ...]:
        """An experiment's heads, with the names of the task's classes where a head is trained.

        Raises:
          InputError: see `heads.classes.with_labels`.
        """
        if not self._answerers.reads_labels or self.is_mixture:
            return tuple(heads)
        [source] = self.sources.values()
        return self._answerers.named_heads(heads, source.task)

    def in_order(self) -> bool:
        """Whether the loss has the classes of a head in the order of the task's labels."""
        if not self._answerers.reads_labels or self.is_mixture:
            return True
        return all(self._answerers.in_order(one.task) for one in self.sources.values())


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
