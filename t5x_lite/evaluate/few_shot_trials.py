"""Few-shot evaluation: metrics of a task over prompts with several seeds, orders and wordings.

After a run, metrics.json and the log report the spread of each metric over the trials.

    values = {Trial(seed=0): {"accuracy": 0.5}, Trial(seed=1): {"accuracy": 0.7}}
    spread(values)["accuracy"]
    # {"mean": 0.6, "min": 0.5, "max": 0.7, "std": 0.14,
    #  "seeds": {"min": 0.5, "max": 0.7, "std": 0.14}}

The spread over one axis (seeds, orders or wordings) holds the other axes fixed. For example, with
three seeds and two orders, "orders" is the spread over the two orders, averaged over the seeds.
Standard deviations are sample deviations (n - 1). An axis with a single value has no entry.

`ShownExamples` builds the few-shot prompts (`data.few_shot`) of each task in a config:

shown = ShownExamples(experiment, vocabulary)
shown.prompts("glue_rte", data)         # Prompts, with examples of glue_rte's training split
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.config import Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Params
from t5x_lite.data.config import Data
from t5x_lite.data.few_shot import FewShot, Prompts, Trial
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.inference.generate import BOOTSTRAP_ROUNDS, Example, Generator, Sample, TaskEvaluator
from t5x_lite.metrics.benchmarks import SCORE, interval, scored, with_score

AXES = {"seeds": "seed", "orders": "order", "wordings": "template"}
"""Axis of variation -> name of the field of `Trial`."""

Values = Mapping[Trial, Mapping[str, float]]
"""Trial -> metric name -> value."""


def means(values: Values) -> dict[str, float]:
    """Return the mean of each metric over all few-shot trials."""
    return {name: statistics.fmean(column) for name, column in _columns(values).items()}


def spread(values: Values) -> dict[str, dict[str, Any]]:
    """Return mean, min, max and standard deviation of each metric over few-shot trials."""
    trials = list(values)
    found = {}
    for name, column in _columns(values).items():
        own: dict[str, Any] = {"mean": statistics.fmean(column), **_extremes([column])}
        for axis, field in AXES.items():
            groups = _groups(trials, column, field=field)
            if len(groups[0]) > 1:
                own[axis] = _extremes(groups)
        found[name] = own
    return found


def table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Format the mean and spread of each task's few-shot metrics as a table, in percent."""
    names = ("task", "metric", "mean", "min", "max", "std")
    lines: list[tuple[str, ...]] = [(*names, *(f"std {axis}" for axis in AXES))]
    for task, metrics in rows.items():
        for metric, own in metrics.items():
            values = [own["mean"], own["min"], own["max"], own["std"]]
            values += [own[axis]["std"] if axis in own else None for axis in AXES]
            shown = ("-" if v is None else f"{100 * v:.2f}" for v in values)
            lines.append((task, metric, *shown))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _columns(values: Values) -> dict[str, list[float]]:
    names = next(iter(values.values()), {})
    return {name: [metrics[name] for metrics in values.values()] for name in names}


def _groups(trials: Sequence[Trial], column: Sequence[float], *, field: str) -> list[list[float]]:
    groups: dict[Trial, list[float]] = {}
    for trial, value in zip(trials, column, strict=True):
        groups.setdefault(dataclasses.replace(trial, **{field: 0}), []).append(value)
    return list(groups.values())


def _extremes(groups: Sequence[Sequence[float]]) -> dict[str, float]:
    return {
        "min": statistics.fmean(map(min, groups)),
        "max": statistics.fmean(map(max, groups)),
        "std": statistics.fmean(map(_deviation, groups)),
    }


def _deviation(values: Sequence[float]) -> float:
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotSample(Sample):
    """Prediction of one few-shot trial, with the complete prompt as its inputs.

    Attributes:
      seed: seed that sampled the prompt's examples.
      order: index of the order of the prompt's examples.
      template: index of the prompt's wording.
      examples: number of examples in the prompt.
    """

    seed: int
    order: int
    template: int
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompted:
    """Example of an evaluation split, with a few-shot prompt as its inputs."""

    inputs_text: str
    targets_text: str
    inputs: np.ndarray
    target: Any
    raw: Mapping[str, Any]


class FewShotEvaluator(TaskEvaluator):
    """Evaluator of a task with few-shot prompts; metrics are averaged over all trials.

    Attributes:
      examples: examples of the split, in order, without prompts.
      samples: predictions of the last run, trial by trial.
      prompts: builder of the prompts.

    Args:
      generator: generator of the predictions.
      examples: examples of the split, in order.
      postprocess: function that converts a predicted text to the value that metrics compare.
      metrics: functions (targets, predictions) -> dict of metrics.
      prompts: builder of the prompts.
    """

    def __init__(
        self,
        generator: Generator,
        examples: Sequence[Example],
        *,
        postprocess: Callable[..., Any],
        metrics: Sequence[Callable[[list[Any], list[Any]], Mapping[str, float]]],
        prompts: Prompts,
    ):
        super().__init__(generator, examples, postprocess=postprocess, metrics=metrics)
        prompts.check([example.inputs_text for example in examples])
        self.prompts = prompts
        self._found: dict[Trial, dict[str, float]] = {}
        self._left_out: dict[Trial, tuple[int, int]] = {}
        self._first: TaskEvaluator | None = None

    def run(self, params: Params) -> dict[str, float]:
        """Return metrics averaged over all trials, and store predictions in `samples`."""
        self.samples, self._found, self._left_out, self._first = [], {}, {}, None
        targets, columns = [example.target for example in self.examples], []
        for trial in self.prompts.config.trials:
            one, shown = self._of(trial)
            self._found[trial] = one.run(params)
            missing = [self.prompts.config.examples - number for number in shown]
            self._left_out[trial] = (sum(number > 0 for number in missing), sum(missing))
            columns.append(one._compared[1])
            self.samples += [
                FewShotSample(
                    **dataclasses.asdict(sample), **dataclasses.asdict(trial), examples=number
                )
                for sample, number in zip(one.samples, shown, strict=True)
            ]
            self._first = self._first or one
        self._compared = (targets, list(zip(*columns, strict=True)))
        return means(self._found)

    def _of(self, trial: Trial) -> tuple[TaskEvaluator, list[int]]:
        made = self.prompts.of(trial, [example.inputs_text for example in self.examples])
        prompted = [
            Prompted(
                inputs_text=prompt.text,
                targets_text=example.targets_text,
                inputs=prompt.tokens,
                target=example.target,
                raw=getattr(example, "raw", {}),
            )
            for prompt, example in zip(made, self.examples, strict=True)
        ]
        one = TaskEvaluator(
            self._generator, prompted, postprocess=self._postprocess, metrics=self._metrics
        )
        return one, [prompt.examples for prompt in made]

    def answers(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the fields and the prediction of each example in the first trial."""
        return iter(()) if self._first is None else self._first.answers()

    def intervals(self, *, samples: int) -> dict[str, tuple[float, float]]:
        """Return bootstrap confidence intervals of the mean metrics, by resampling examples."""

        def mean(targets: list[Any], predictions: list[Any]) -> dict[str, float]:
            columns = zip(*predictions, strict=True)
            found = [
                self._measure(targets, list(column), rounds=BOOTSTRAP_ROUNDS) for column in columns
            ]
            return {name: float(np.mean([one[name] for one in found])) for name in found[0]}

        return interval(mean, *self._compared, samples=samples)

    def trials(self) -> dict[Trial, dict[str, float]]:
        """Return the metrics and the score of each few-shot trial of the last run."""
        return {trial: with_score(metrics) for trial, metrics in self._found.items()}

    def cut(self) -> tuple[int, int]:
        """Return the number of shortened prompts, and the number of all prompts."""
        return sum(cut for cut, _ in self._left_out.values()), len(self.samples)

    def details(self) -> dict[str, Any]:
        """Return the last run's settings, trials and statistics over trials, for metrics.json."""
        config = self.prompts.config
        trials = [
            {
                **dataclasses.asdict(trial),
                "metrics": metrics,
                "prompts_cut": self._left_out[trial][0],
                "examples_left_out": self._left_out[trial][1],
            }
            for trial, metrics in self.trials().items()
        ]
        return {
            "examples": config.examples,
            "split": config.split,
            "separator": config.separator,
            "templates": list(config.wordings),
            "trials": trials,
            "spread": spread(self.trials()),
        }


@dataclasses.dataclass(frozen=True)
class Trials:
    """Few-shot trials of all tasks in a config.

    Attributes:
      config: config of the few-shot prompts.
      tasks: evaluators with few-shot prompts, which have run, by task name.
      is_mixture: True if the tasks are from a mixture.
      aside: names of tasks that are not part of the mean score.
    """

    config: FewShot
    tasks: Mapping[str, FewShotEvaluator]
    is_mixture: bool
    aside: Sequence[str] = ()

    def details(self) -> dict[str, Any]:
        """Return trials and statistics of each task for metrics.json; {} without few-shot."""
        found = {name: one.details() for name, one in self.tasks.items()}
        if not found:
            return {}
        if not self.is_mixture:
            return {"few_shot": next(iter(found.values()))}
        return {"few_shot": {"tasks": found, "spread": spread(self._scores())}}

    def lines(self) -> list[str]:
        """Return log lines: the number of shortened prompts, and a table of metrics over trials."""
        if not self.tasks:
            return []
        lines = []
        for name, one in self.tasks.items():
            cut, total = one.cut()
            if cut:
                lines.append(
                    f"{name}: removed examples from {cut} of {total} prompts, because the prompts "
                    f"were longer than {one.prompts.length} tokens"
                )
        rows = {name: spread(one.trials()) for name, one in self.tasks.items()}
        if self.is_mixture:
            rows["all"] = spread(self._scores())
        number = len(self.config.trials)
        shown = f"{self.config.examples} examples of split {self.config.split}, {number} trials"
        return [*lines, f"few-shot, {shown}:\n{table(rows)}"]

    def _scores(self) -> dict[Trial, dict[str, float]]:
        found: dict[Trial, dict[str, dict[str, float]]] = {}
        for name, one in self.tasks.items():
            for trial, metrics in one.trials().items():
                found.setdefault(trial, {})[name] = metrics
        return {
            trial: {SCORE: scored(metrics, aside=self.aside)[SCORE]}
            for trial, metrics in found.items()
        }


class ShownExamples:
    """Builder of few-shot prompts; the examples of each task are read once.

    Attributes:
      is_on: True if few-shot prompts are configured.

    Args:
      experiment: experiment config, with data and evaluation.few_shot.
      vocabulary: vocabulary of the data.

    Raises:
      InputError: if the data layout has no text inputs and targets.
    """

    def __init__(self, experiment: Experiment, vocabulary: Vocabulary):
        self._config = experiment.evaluation.few_shot
        self.is_on = self._config.is_on
        self._vocabulary = vocabulary
        self._layout = layout = experiment.data.layout
        self._made: dict[str, Prompts] = {}
        if self.is_on and not {"inputs", "targets"} <= {*layout.features}:
            answers = "predicts by a head" if layout.answered_by_head else "has no text targets"
            raise InputError(
                "evaluation.few_shot requires a text-to-text model, but a model with data.layout "
                f"{layout.name} {answers}; set --evaluation.few-shot.examples 0"
            )

    def prompts(self, name: str, data: Data) -> Prompts:
        """Return the builder of a task's few-shot prompts."""
        if name not in self._made:
            self._made[name] = Prompts(
                self._config,
                self._pool(data),
                task=name,
                vocabulary=self._vocabulary,
                length=data.inputs_length,
                ending=self._layout.ending(self._vocabulary, length=data.inputs_length),
            )
        return self._made[name]

    def _pool(self, data: Data) -> list:
        from t5x_lite.data.reading import demonstrations

        if not self._config.examples:
            return []
        try:
            return demonstrations(
                data, self._vocabulary, split=self._config.split, pool=self._config.pool
            )
        except InputError as error:
            raise InputError(f"evaluation.few_shot: {error}") from error
