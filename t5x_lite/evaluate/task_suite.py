"""Evaluation of the tasks in a config, each with its settings and its generator of predictions.

    suite = TaskSuite(experiment, vocabulary, bind=bind, mesh=mesh)
    suite.run(params)           # {"accuracy": 0.9, "score": 0.9}
    suite.run(params)           # for a mixture {"glue_rte/accuracy": 0.7, ...}
    suite.answers("glue_rte", params)       # to the test split, for a submission

A mixture is evaluated on all tasks with data; the log lists tasks without data. If the data layout
is for an encoder head, the head predicts the labels (`inference.head_answers`).

`TaskSettings` resolves evaluation.per_task (`config.checks`) to the settings of each task:

settings = TaskSettings(experiment.evaluation, experiment.data)
settings.evaluation("wmt_ende").num_beams       # 4, by "wmt_*: num_beams=4"
settings.data("wmt_ende", data).inputs_length

`Answerers` builds the generator of a task: a search, a ranking of the task's labels, or a head.

answerers = Answerers(experiment, vocabulary, bind=bind, mesh=mesh)
answerers.of(task, settings)        # a Generator; tasks with equal settings share one
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from t5x_lite.config import Evaluation, Experiment
from t5x_lite.config.evaluation import Line
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.trees import Params
from t5x_lite.data.config import Data
from t5x_lite.data.few_shot import Prompts
from t5x_lite.data.mixtures import Member, find_mixture
from t5x_lite.data.postprocess import is_answer, is_known
from t5x_lite.data.tasks.labelled import task_form
from t5x_lite.data.vocabularies import encoder_tokens as unknown_tokens
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.evaluate.few_shot_trials import FewShotEvaluator, ShownExamples, Trials
from t5x_lite.evaluate.submission import FORMATS, Answer, example_index
from t5x_lite.inference.generate import (
    Bind,
    Generator,
    LabelGenerator,
    Ranker,
    Scorer,
    TaskEvaluator,
    as_text,
)
from t5x_lite.inference.head_answers import check_head, head_answers, is_in_order
from t5x_lite.inference.loading import position_bytes
from t5x_lite.metrics.benchmarks import scored, with_score
from t5x_lite.metrics.classification import CLASS_METRICS, ClassTable, values
from t5x_lite.models.heads import Head, with_labels
from t5x_lite.objectives.learner import heads_of

_logger = logging.getLogger(__name__)


class TaskSettings:
    """Evaluation settings of each task in a config.

    Args:
      evaluation: evaluation config, with settings for all tasks and for single tasks.
      data: data config, with the task or mixture.

    Raises:
      InputError: if a setting is for a task that the mixture lacks, or sets the inputs length of an
        encoder head.
    """

    def __init__(self, evaluation: Evaluation, data: Data):
        self._evaluation = evaluation
        self._lines = evaluation.lines
        # Tasks in mixing.leave_out count as known: a line about them is allowed.
        mixing = dataclasses.replace(data.mixing, leave_out=())
        mixture = find_mixture(dataclasses.replace(data, mixing=mixing))
        members = (Member(task=data.task),) if mixture is None else mixture.members
        self._names = {member.name: _names(member) for member in members}
        for line in self._lines:
            self._check(line, is_mixture=mixture is not None)
            if "inputs_length" in line.values and data.layout.answered_by_head:
                raise InputError(
                    f"evaluation.per_task {line.pattern!r} sets inputs_length, but data.layout "
                    f"{data.layout.name} has one length for all rows; set --data.inputs-length"
                )

    def _check(self, line: Line, *, is_mixture: bool) -> None:
        if any(map(line.matches, self._names.values())):
            return
        if not is_mixture:  # one task is measured with a mixture's config
            _logger.info(
                "ignoring the line %r of evaluation.per_task, which does not match data.task",
                line.pattern,
            )
            return
        known = [name for names in self._names.values() for name in names]
        hint = did_you_mean(line.pattern, known) or f"; the tasks are {', '.join(self._names)}"
        raise InputError(f"evaluation.per_task: no task matches the pattern {line.pattern!r}{hint}")

    def _values(self, name: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for line in self._lines:
            values |= line.values if line.matches(self._names[name]) else {}
        return values

    def evaluation(self, name: str) -> Evaluation:
        """Return the evaluation settings of a task."""
        return self._evaluation.changed(self._values(name))

    def data(self, name: str, data: Data) -> Data:
        """Return the data config of a task, with the task's inputs length."""
        length = self._values(name).get("inputs_length", data.inputs_length)
        return (
            data
            if length == data.inputs_length
            else dataclasses.replace(data, inputs_length=length)
        )

    def shown(self, name: str, data: Data) -> Data:
        """Return the data config of the task from which few-shot examples are taken."""
        task = self._values(name).get("examples_of", data.task)
        return data if task == data.task else dataclasses.replace(data, task=task)


def _names(member: Member) -> tuple[str, ...]:
    module, _, function = member.task.partition(":")
    return member.name, member.task, module, function


class Answerers:
    """Factory of the generators that predict a task's outputs.

    Args:
      experiment: experiment config, with data, heads and objective.
      vocabulary: vocabulary of the data.
      bind: function that binds parameters to the model.
      mesh: device mesh.
      learner: function that binds parameters to the model with its heads, or None.
    """

    def __init__(
        self,
        experiment: Experiment,
        vocabulary: Vocabulary,
        *,
        bind: Bind,
        mesh: Mesh,
        learner: Bind | None = None,
    ):
        self._data = experiment.data
        self._position_bytes = position_bytes(experiment.model, dtype=experiment.compute_dtype)
        self._heads = heads_of(experiment.objective, experiment.heads)
        self._vocabulary = vocabulary
        self._bind, self._mesh, self._learner = bind, mesh, learner
        self._searches: dict[tuple[Decoding, int], Generator] = {}
        self._rankers: dict[int, Ranker] = {}

    @property
    def reads_labels(self) -> bool:
        """True if an encoder's head predicts labels; False if the model generates text."""
        return self._data.layout.answered_by_head

    def of(self, task: Any, settings: Evaluation) -> Generator:
        """Return the generator of predictions for a task."""
        from t5x_lite.data import loading

        size = settings.batch_size or self._data.batch_size
        if self.reads_labels:
            return self._head(task, settings, batch_size=size)
        labels = loading.task_labels(task) if settings.rank else None
        if labels is None:
            return self._search(decoding(settings), batch_size=size)
        tokens = [
            np.asarray([*ids, self._vocabulary.eos_id], np.int32)
            for ids in self._vocabulary.encode_batch(labels)
        ]
        return LabelGenerator(self._ranker(batch_size=size), labels, tokens)

    def check_head(self, task: Any) -> str:
        """Return the name of the encoder head for a task; raise InputError if none is suitable."""
        from t5x_lite.data import loading

        form = task_form(task)
        return check_head(
            self._heads,
            None if form is None else form.head,
            loading.task_labels(task),
            where=self._where,
            task=task.name,
        )

    def named_heads(self, heads: Sequence[Head], task: Any) -> tuple[Head, ...]:
        """Return the head configs, with the class names of a task set in its head."""
        from t5x_lite.data import loading

        labels = loading.task_labels(task)
        own = self._heads[self.check_head(task)]
        return tuple(heads) if labels is None else with_labels(heads, own, labels)

    def in_order(self, task: Any) -> bool:
        """Return True if the classes of the head have the order of a task's labels."""
        from t5x_lite.data import loading

        return is_in_order(self._heads[self.check_head(task)], loading.task_labels(task))

    def _head(self, task: Any, settings: Evaluation, *, batch_size: int) -> Generator:
        from t5x_lite.data import loading

        if self._learner is None:
            raise InputError(
                f"{self._where}: predictions with a head are not supported for several "
                "checkpoints (an ensemble); give a single --checkpoint"
            )
        tokens, form = encoder_tokens(self._vocabulary), task_form(task)
        nulls = form is not None and form.nulls
        return head_answers(
            self._learner,
            self._heads[self.check_head(task)],
            loading.task_labels(task),
            where=self._where,
            layout=self._data.layout,
            null_threshold=settings.null_threshold if nulls else None,
            candidates=form is not None and bool(form.candidates),
            batch_size=batch_size,
            longest=self._data.inputs_length,
            pad_id=tokens.pad_id,
            sep_id=tokens.sep_id,
            mesh=self._mesh,
        )

    def _search(self, how: Decoding, *, batch_size: int) -> Generator:
        key = how, batch_size
        if key not in self._searches:
            self._searches[key] = Generator(
                self._bind,
                self._vocabulary,
                batch_size=batch_size,
                decoding=how,
                mesh=self._mesh,
                position_bytes=self._position_bytes,
            )
        return self._searches[key]

    def _ranker(self, *, batch_size: int) -> Ranker:
        if batch_size not in self._rankers:
            scorer = Scorer(self._bind, batch_size=batch_size, mesh=self._mesh)
            self._rankers[batch_size] = Ranker(scorer)
        return self._rankers[batch_size]

    @property
    def _where(self) -> str:
        return f"data.task {self._data.task!r}"


def decoding(settings: Evaluation) -> Decoding:
    """Return the decoding config for generation with some evaluation settings."""
    return Decoding(
        max_decode_length=settings.max_decode_length,
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
    )


_FIRST = 100
"""Number of examples that are checked for labels if no metric needs the examples."""

ParamsOf = Callable[[str], Params]
"""Function from a task name to the parameters that evaluate the task."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Evaluation data of a task, and settings of its evaluation.

    Attributes:
      data: data config of the task.
      task: seqio.Task.
      is_measured: True if the task's metrics are computed.
      counts: True if the mean score over tasks includes the task.
    """

    data: Data
    task: Any
    is_measured: bool = True
    counts: bool = True


class TaskSuite:
    """Evaluator of all tasks in a config.

    Attributes:
      is_mixture: True if data.task is a mixture, so that metric names begin with the task name.
      sources: task name -> data, for tasks with data.
      evaluators: task name -> evaluator, for tasks with metrics and with labels in the split.
      unlabelled: names of tasks without labels in the split.
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
                "skipping task metrics, because no task of the mixture %s has a split %s",
                self._data.task,
                self._settings.split,
            )

    def _sources(self) -> dict[str, Source]:
        from t5x_lite.data import loading

        if not self.is_mixture:
            task = loading.load_task(self._data, self._vocabulary)
            if self._answerers.reads_labels:
                self._answerers.check_head(task)
            name = Member(task=self._data.task).name
            ranks = self._by_task.evaluation(name).rank
            if ranks and loading.task_labels(task) is None:
                raise InputError(
                    "evaluation.rank needs a task with a fixed set of labels, but postprocess_fn "
                    f"of data.task {self._data.task!r} has no attribute labels; set "
                    "--evaluation.rank False"
                )
            return {name: Source(data=self._by_task.data(name, self._data), task=task)}
        found = loading.members(self._data, self._vocabulary)
        for name, reason in found.absent.items():
            _logger.info("skipping task %s: %s", name, reason)
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
        from t5x_lite.data import loading

        settings = self._settings
        for name, source in self.sources.items():
            _, metrics = loading.task_metrics(source.task)
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
        from t5x_lite.data import loading

        postprocess, metrics = loading.task_metrics(self.sources[name].task)
        if self._class_labels(name, [example.target for example in examples]) is not None:
            metrics += [CLASS_METRICS[each] for each in self._settings.class_metrics]
        elif self._settings.class_metrics and not self.is_mixture:
            raise InputError(
                "evaluation.class_metrics needs a task with classes, but data.task "
                f"{self._data.task!r} has none; unset evaluation.class_metrics"
            )
        generator = self._generator(name)
        if not self._shown.is_on:
            return TaskEvaluator(generator, examples, postprocess=postprocess, metrics=metrics)
        prompts = self._prompts(name, no="is not evaluated")
        if prompts is None:
            return None
        self._few_shot[name] = FewShotEvaluator(
            generator, examples, postprocess=postprocess, metrics=metrics, prompts=prompts
        )
        return self._few_shot[name]

    def _prompts(self, name: str, *, no: str) -> Prompts | None:
        from t5x_lite.data import loading

        source, split = self.sources[name], self._settings.few_shot.split
        shown = self._by_task.shown(name, source.data)
        try:
            return self._shown.prompts(name, shown)
        except InputError as error:
            no_split = shown is source.data and split not in source.task.splits
            lacks = no_split or loading.is_absent(error)
            if not self.is_mixture or not lacks:
                raise
            _logger.info(
                "task %s %s, because its few-shot prompts are not available: %s", name, no, error
            )
            return None

    def _has_labels(self, name: str, examples: Sequence[Any]) -> bool:
        if any(is_known(example.targets_text, example.target) for example in examples):
            return True
        if not self.is_mixture:
            raise no_labels(self._data.task, self._settings.split, self.sources[name].task.splits)
        _logger.info(
            "skipping task %s, because its split %s has no labels", name, self._settings.split
        )
        self.unlabelled.append(name)
        return False

    def _check_loss(self) -> None:
        split = self._settings.split
        if self.is_mixture or self.evaluators or not self._settings.loss or "test" not in split:
            return
        for name in self.sources:
            examples = self._examples(name, split=split, limit=_FIRST, may_lack=False)
            self._has_labels(name, examples or ())

    def check_test(self, name: str) -> None:
        """Raise InputError if the test split of a task cannot be read."""
        from t5x_lite.data import loading

        try:
            self.sources[name].task.source.get_dataset(split="test", shuffle=False)
        except InputError as error:
            if not loading.is_absent(error):
                raise

    def _examples(
        self, name: str, *, split: str, limit: int | None, may_lack: bool
    ) -> list[Any] | None:
        """Return the examples of a split, or None for a missing split if `may_lack` is True."""
        from t5x_lite.data import loading, reading

        try:
            return reading.eval_examples(
                self.sources[name].data, self._vocabulary, split=split, max_examples=limit
            )
        except InputError as error:
            if not may_lack or not loading.is_absent(error):
                raise
            _logger.info("task %s has no split %s: %s", name, split, error)
            return None

    def tell_unknown(self) -> None:
        """Warn about tasks with text that the vocabulary cannot encode."""
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
        """Return the names of the metrics that `run` returns."""
        if not self.is_mixture:
            own = [name for one in self.evaluators.values() for name in one.names()]
            return list(with_score(dict.fromkeys(own, 0.0)))
        zeros = {name: dict.fromkeys(one.names(), 0.0) for name, one in self.evaluators.items()}
        return list(scored(zeros, aside=self._aside()))

    def _aside(self) -> list[str]:
        return [name for name, source in self.sources.items() if not source.counts]

    def run(self, params: Params | ParamsOf) -> dict[str, float]:
        """Evaluate all tasks; return their metrics, and "score", the mean score of the tasks."""
        found = {
            name: evaluator.run(params(name) if callable(params) else params)
            for name, evaluator in self.evaluators.items()
        }
        if self.is_mixture:
            return scored(found, aside=self._aside())
        return with_score(next(iter(found.values()), {}))

    def invalid(self) -> dict[str, int]:
        """Return the number of invalid predictions in the last run, by task name."""
        counts = {}
        for name, evaluator in self.evaluators.items():
            postprocess = self.sources[name].task.postprocessor
            found = [is_answer(postprocess, sample.prediction) for sample in evaluator.samples]
            if None not in found:
                counts[name] = found.count(False)
        return counts

    def class_tables(self) -> dict[str, ClassTable]:
        """Return the metrics of each class in the last run, by name of the task.

        With few-shot prompts, only the first trial counts.
        """
        tables = {}
        for name, evaluator in self.evaluators.items():
            targets = [example.target for example in evaluator.examples]
            labels = self._class_labels(name, targets)
            predictions = values(answer for _, answer in evaluator.answers())
            if labels is not None and predictions:
                tables[name] = ClassTable.of(labels, values(targets), predictions)
        return tables

    def _class_labels(self, name: str, targets: Sequence[Any]) -> tuple[str, ...] | None:
        """Return the class names of a task, or None if its targets are not class numbers."""
        from t5x_lite.data import loading

        are_numbers = all(isinstance(target, int | np.integer) for target in values(targets))
        return loading.task_labels(self.sources[name].task) if are_numbers else None

    @property
    def trials(self) -> Trials:
        """Few-shot trials of the last run."""
        return Trials(self._settings.few_shot, self._few_shot, self.is_mixture, aside=self._aside())

    def is_whole(self, name: str) -> bool:
        """Return True if all examples of a task are evaluated, without max_examples."""
        return self._by_task.evaluation(name).max_examples is None

    def submittable(self) -> list[str]:
        """Return the names of tasks with a test split and a submission format."""
        return [
            name
            for name, source in self.sources.items()
            if name in FORMATS and "test" in source.task.splits
        ]

    def answers(self, name: str, params: Params) -> list[Answer] | None:
        """Predict the test split of a task; return None if the split has no file."""
        from t5x_lite.data import loading

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
        postprocess, _ = loading.task_metrics(task)
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
        return self._answerers.of(self.sources[name].task, self._by_task.evaluation(name))

    def named_heads(self, heads: Sequence[Head]) -> tuple[Head, ...]:
        """Return the head configs, with a task's class names set in the trained head."""
        if not self._answerers.reads_labels or self.is_mixture:
            return tuple(heads)
        [source] = self.sources.values()
        return self._answerers.named_heads(heads, source.task)

    def in_order(self) -> bool:
        """Return True if the classes of the head have the order of the task's labels."""
        if not self._answerers.reads_labels or self.is_mixture:
            return True
        return all(self._answerers.in_order(one.task) for one in self.sources.values())


def no_labels(task: str, split: str, splits: Sequence[str]) -> InputError:
    """Return the InputError for an evaluation of a split without labels."""
    remedy = (
        "set --evaluation.split validation; with --output DIR, predictions of the test split are "
        "also written, if the task has a benchmark server"
        if "validation" in splits
        else "run `evaluate --output DIR` on the task's mixture (tasks.mixtures:glue or "
        "tasks.mixtures:super_glue) to write predictions"
    )
    return InputError(
        f"data.task {task!r} has no labels in split {split!r}, so metrics cannot be computed; "
        f"{remedy}"
    )


def task_rows(
    suite: TaskSuite, metrics: Mapping[str, float], *, steps: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return the metrics of each task in a mixture, for metrics.json."""
    invalid = suite.invalid()
    rows = {}
    for name in suite.evaluators:
        own = {
            m.removeprefix(f"{name}/"): v for m, v in metrics.items() if m.startswith(f"{name}/")
        }
        counted = {"invalid_predictions": invalid[name]} if name in invalid else {}
        rows[name] = {"step": steps[name], **own, **counted}
    return rows
