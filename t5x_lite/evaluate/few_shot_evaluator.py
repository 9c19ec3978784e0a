"""A task's metrics over few-shot prompts: once for each seed, order and wording."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.evaluate.few_shot import Prompts, Trial
from t5x_lite.evaluate.generate import (
    BOOTSTRAP_ROUNDS,
    Example,
    Generator,
    Sample,
    TaskEvaluator,
)
from t5x_lite.evaluate.spread import means, spread
from t5x_lite.evaluate.standings import with_score
from t5x_lite.metrics.bootstrap import interval
from t5x_lite.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotSample(Sample):
    """One prediction of one trial; its inputs are the whole prompt.

    Attributes:
      seed: seed that drew the examples.
      order: number of their order.
      template: number of the wording.
      examples: number of examples in the prompt.
    """

    seed: int
    order: int
    template: int
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompted:
    """An example whose inputs are a prompt."""

    inputs_text: str
    targets_text: str
    inputs: np.ndarray
    target: Any
    raw: Mapping[str, Any]


class FewShotEvaluator(TaskEvaluator):
    """A task's own metrics, the mean over all trials.

    Attributes:
      examples: of the split, in order, without prompts.
      samples: every prediction of the last run, trial by trial.
      prompts: what makes the prompts.

    Args:
      generator: makes the predictions.
      examples: of the split, in order.
      postprocess: as for `TaskEvaluator`.
      metrics: as for `TaskEvaluator`.
      prompts: makes the prompts.
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
        """The means of the task's metrics; `samples` then holds every prediction."""
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
        """What measures one trial, and the number of examples in each prompt."""
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
        """As of `TaskEvaluator`, of the first trial."""
        return iter(()) if self._first is None else self._first.answers()

    def intervals(self, *, samples: int) -> dict[str, tuple[float, float]]:
        """As of `TaskEvaluator`, of the means; examples are drawn, and trials are not."""

        def mean(targets: list[Any], predictions: list[Any]) -> dict[str, float]:
            columns = zip(*predictions, strict=True)
            found = [
                self._measure(targets, list(column), rounds=BOOTSTRAP_ROUNDS) for column in columns
            ]
            return {name: float(np.mean([one[name] for one in found])) for name in found[0]}

        return interval(mean, *self._compared, samples=samples)

    def trials(self) -> dict[Trial, dict[str, float]]:
        """The metrics of each trial of the last run, and their score."""
        return {trial: with_score(metrics) for trial, metrics in self._found.items()}

    def cut(self) -> tuple[int, int]:
        """Prompts of the last run that lack examples for their length, and prompts in all."""
        return sum(cut for cut, _ in self._left_out.values()), len(self.samples)

    def details(self) -> dict[str, Any]:
        """What metrics.json says of the last run: the config, each trial, and the spread."""
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
