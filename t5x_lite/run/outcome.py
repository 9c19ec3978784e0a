"""What `t5x-lite evaluate` tells and writes when it has measured.

metrics.json                    the metrics; of a mixture also each task's row, and benchmarks;
                                of few-shot prompts each trial, and the spread
predictions.jsonl               {"inputs", "targets", "prediction"} a line; of a mixture
predictions/glue_rte.jsonl      one file a task
submission/glue/RTE.tsv         the files for a benchmark's server
submission/squad_v2.0/          predictions.json and null_odds.json, of the split that was measured
rankings.trec                   of retrieval, what was found for each query, for trec_eval; of
rankings/WAY.trec               several heads, a file a way
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_lite.config import Evaluation
from t5x_lite.errors import InputError
from t5x_lite.evaluate import squad_files
from t5x_lite.evaluate.retrieval import Found, trec_lines
from t5x_lite.evaluate.standings import SCORE, Standing, benchmark_scores, table
from t5x_lite.files import made_directory
from t5x_lite.records import json_lines
from t5x_lite.run.best import SameParams
from t5x_lite.run.submissions import Submissions
from t5x_lite.run.task_suite import TaskSuite, task_rows
from t5x_lite.vocabulary.files import write_file

_logger = logging.getLogger(__name__)


def check_output(directory: Path) -> None:
    """Refuses a directory that cannot be made or written, before the work and not after it.

    Raises:
      InputError: it is a file, or its parent does not allow it.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(f"--output {directory} is not a directory")
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"--output {directory} cannot be written: {existing} does not allow it")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was measured.

    Attributes:
      suite: the tasks, after their run; None where there is none.
      settings: of the evaluation.
      metrics: named "<split>/<name>".
      chosen: the checkpoints with which tasks were answered.
      submissions: the files for servers, checked before the measuring.
      rankings: of retrieval, by way and by query; the way of the vector is "".
    """

    suite: TaskSuite | None
    settings: Evaluation
    metrics: Mapping[str, float]
    chosen: SameParams
    submissions: Submissions
    rankings: Mapping[str, Mapping[str, Sequence[Found]]] = dataclasses.field(default_factory=dict)

    def tell(self) -> None:
        """Logs how many predictions were invalid, and a mixture's table, on the first process."""
        if self.suite is None or jax.process_index():
            return
        for name, number in self.suite.invalid().items():
            if number:
                total = len(self.suite.evaluators[name].samples)
                _logger.info(
                    "%s: %d of %d predictions were not valid labels and count as wrong",
                    name,
                    number,
                    total,
                )
        for line in self.suite.trials.lines():
            _logger.info("%s", line)
        if self.suite.is_mixture:
            own = {
                name: {m: v for m, v in row.items() if m not in _NOT_METRICS}
                for name, row in self._rows().items()
            }
            standings = {n: Standing(step=self.chosen.step(n), metrics=m) for n, m in own.items()}
            _logger.info("%s", table(standings))

    def _rows(self) -> dict[str, dict[str, Any]]:
        """Each task's row."""
        assert self.suite is not None
        beginning = f"{self.settings.split}/"
        metrics = {name.removeprefix(beginning): value for name, value in self.metrics.items()}
        steps = {name: self.chosen.step(name) for name in self.suite.evaluators}
        return task_rows(self.suite, metrics, steps=steps)

    def write(self, directory: Path, summary: Mapping[str, Any]) -> None:
        """Writes all files; the model answers the test splits for it.

        Args:
          directory: made if it is missing.
          summary: what metrics.json begins with.

        Raises:
          InputError: a file cannot be written, or, after all others are, one for a server.
        """
        if jax.process_index() == 0:
            with (
                made_directory(directory),
                json_lines.writer(str(directory / "metrics.json")) as file,
            ):
                file.write({**summary, **self._more()})
            self._write_predictions(directory)
            self._write_squad(directory / "submission")
            for way, rankings in self.rankings.items():
                path = directory / (f"rankings/{way}.trec" if way else "rankings.trec")
                path.parent.mkdir(exist_ok=True)
                write_file("".join(trec_lines(rankings)).encode(), path)
            _logger.info("wrote %s/metrics.json and the files beside it", directory)
        self.submissions.write(directory / "submission", self.chosen)

    def _more(self) -> dict[str, Any]:
        """What metrics.json says beyond the metrics."""
        if self.suite is None:
            return {}
        more = self.suite.trials.details()
        if self.settings.bootstrap:
            more["intervals"] = {
                f"{self.settings.split}/{name + '/' if self.suite.is_mixture else ''}{metric}": ends
                for name, evaluator in self.suite.evaluators.items()
                for metric, ends in evaluator.intervals(samples=self.settings.bootstrap).items()
            }
        if not self.suite.is_mixture:
            counts = self.suite.invalid().values()
            return more | ({"invalid_predictions": sum(counts)} if counts else {})
        rows = self._rows()
        own = {
            name: {m: v for m, v in row.items() if m not in _NOT_METRICS}
            for name, row in rows.items()
        }
        return more | {"tasks": rows, "benchmarks": benchmark_scores(own)}

    def _write_predictions(self, directory: Path) -> None:
        if self.suite is None:
            return
        for name, evaluator in self.suite.evaluators.items():
            path = directory / "predictions.jsonl"
            if self.suite.is_mixture:
                path = directory / "predictions" / f"{name}.jsonl"
                path.parent.mkdir(exist_ok=True)
            with json_lines.writer(str(path)) as file:
                file.write(*(dataclasses.asdict(sample) for sample in evaluator.samples))

    def _write_squad(self, directory: Path) -> None:
        """Writes SQuAD's files of a whole split."""
        settings = self.settings
        if self.suite is None or not settings.submission:
            return
        for name, evaluator in self.suite.evaluators.items():
            if name in squad_files.FOLDERS and self.suite.is_whole(name):
                folder = directory / squad_files.FOLDERS[name]
                for path in squad_files.write(evaluator.answers(), folder):
                    _logger.info("wrote %s", path)


_NOT_METRICS = ("step", "invalid_predictions", SCORE)
