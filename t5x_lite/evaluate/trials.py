"""What is said of few-shot trials after a run: in metrics.json, and in the log."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.evaluate.few_shot import FewShot, Trial
from t5x_lite.evaluate.few_shot_evaluator import FewShotEvaluator
from t5x_lite.evaluate.spread import spread, table
from t5x_lite.evaluate.standings import SCORE, scored


@dataclasses.dataclass(frozen=True)
class Trials:
    """The trials of the tasks of a config.

    Attributes:
      config: what was shown.
      tasks: the tasks that were measured by prompts, after their run, by name.
      is_mixture: whether they are tasks of a mixture.
      aside: tasks that do not count in the mean of the scores.
    """

    config: FewShot
    tasks: Mapping[str, FewShotEvaluator]
    is_mixture: bool
    aside: Sequence[str] = ()

    def details(self) -> dict[str, Any]:
        """What metrics.json says besides the means; {} where no prompts were made."""
        found = {name: one.details() for name, one in self.tasks.items()}
        if not found:
            return {}
        if not self.is_mixture:
            return {"few_shot": next(iter(found.values()))}
        return {"few_shot": {"tasks": found, "spread": spread(self._scores())}}

    def lines(self) -> list[str]:
        """What is logged: how many prompts lack examples, and a table of the spread."""
        if not self.tasks:
            return []
        lines = []
        for name, one in self.tasks.items():
            cut, total = one.cut()
            if cut:
                lines.append(
                    f"{name}: {cut} of {total} prompts were longer than {one.prompts.length} "
                    "tokens, and examples were left out"
                )
        rows = {name: spread(one.trials()) for name, one in self.tasks.items()}
        if self.is_mixture:
            rows["all"] = spread(self._scores())
        number = len(self.config.trials)
        shown = f"{self.config.examples} examples of split {self.config.split}, {number} trials"
        return [*lines, f"few-shot, {shown}:\n{table(rows)}"]

    def _scores(self) -> dict[Trial, dict[str, float]]:
        """The mean of the tasks' scores in each trial."""
        found: dict[Trial, dict[str, dict[str, float]]] = {}
        for name, one in self.tasks.items():
            for trial, metrics in one.trials().items():
                found.setdefault(trial, {})[name] = metrics
        return {
            trial: {SCORE: scored(metrics, aside=self.aside)[SCORE]}
            for trial, metrics in found.items()
        }
