"""The single numbers of GLUE and SuperGLUE, from the metrics of their tasks.

A task with several metrics counts by their mean, MNLI by the mean of matched and mismatched, and
the benchmark is the mean over its tasks (Wang et al. 2018, arXiv:1804.07461, section 5; Wang et al.
2019, arXiv:1905.00537, section 5; the sums of both leaderboards' rows say the same of MNLI):

    GLUE.score({"glue_rte": {"accuracy": 0.7}, "glue_mrpc": {"f1": 0.9, "accuracy": 0.86}, ...})

The diagnostic sets (AX, AX-b, AX-g) do not count. T5's tables leave WNLI out of GLUE, on which it
is not trained: `GLUE_WITHOUT_WNLI` (t5/evaluation/eval_utils.py, METRIC_NAMES).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from t5x_lite.metrics.selection import mode_of

Metrics = Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark's rows.

    Attributes:
      name: as it calls itself.
      rows: the rows of its table, and the tasks of which each is the mean.
    """

    name: str
    rows: Mapping[str, Sequence[str]]

    def row_scores(self, tasks: Mapping[str, Metrics]) -> dict[str, float]:
        """The scores of the rows all of whose tasks were measured.

        Args:
          tasks: the metrics of each task, by the task's name.
        """
        return {
            row: sum(task_score(tasks[name]) for name in names) / len(names)
            for row, names in self.rows.items()
            if all(tasks.get(name) for name in names)
        }

    def score(self, tasks: Mapping[str, Metrics]) -> float | None:
        """The benchmark's score; None where a row is missing.

        Args:
          tasks: the metrics of each task, by the task's name.
        """
        scores = self.row_scores(tasks)
        return sum(scores.values()) / len(scores) if len(scores) == len(self.rows) else None

    def missing(self, tasks: Mapping[str, Metrics]) -> list[str]:
        """The rows that were not measured, or not wholly."""
        scores = self.row_scores(tasks)
        return [row for row in self.rows if row not in scores]


def task_score(metrics: Metrics) -> float:
    """A task's one number, best where highest: the mean of its metrics.

    Those that are best where lowest, such as an error rate, count negatively. Beside others, parts
    of them and thresholds do not count (`no_answer.squad_v2`, `entities.entity_f1`).

    Raises:
      ValueError: it has none.
    """
    if not metrics:
        raise ValueError("a task without metrics has no score")
    counted = {name: v for name, v in metrics.items() if not _PART.fullmatch(name)} or metrics
    signed = [value if mode_of(name) == "max" else -value for name, value in counted.items()]
    return sum(signed) / len(signed)


_PART = re.compile(r"(HasAns|NoAns|best)_.*|precision|recall")


_GLUE_ROWS = {
    "CoLA": ("glue_cola",),
    "SST-2": ("glue_sst2",),
    "MRPC": ("glue_mrpc",),
    "STS-B": ("glue_stsb",),
    "QQP": ("glue_qqp",),
    "MNLI": ("glue_mnli_matched", "glue_mnli_mismatched"),
    "QNLI": ("glue_qnli",),
    "RTE": ("glue_rte",),
}

GLUE = Benchmark(name="GLUE", rows={**_GLUE_ROWS, "WNLI": ("glue_wnli",)})
GLUE_WITHOUT_WNLI = Benchmark(name="GLUE without WNLI", rows=_GLUE_ROWS)
SUPER_GLUE = Benchmark(
    name="SuperGLUE",
    rows={
        "BoolQ": ("super_glue_boolq",),
        "CB": ("super_glue_cb",),
        "COPA": ("super_glue_copa",),
        "MultiRC": ("super_glue_multirc",),
        "ReCoRD": ("super_glue_record",),
        "RTE": ("super_glue_rte",),
        "WiC": ("super_glue_wic",),
        "WSC": ("super_glue_wsc",),
    },
)
XNLI = Benchmark(
    name="XNLI",
    rows={
        language: (f"xnli_{language}",)
        for language in (
            *("ar", "bg", "de", "el", "en", "es", "fr", "hi"),
            *("ru", "sw", "th", "tr", "ur", "vi", "zh"),
        )
    },
)
BENCHMARKS = (GLUE, GLUE_WITHOUT_WNLI, SUPER_GLUE, XNLI)
