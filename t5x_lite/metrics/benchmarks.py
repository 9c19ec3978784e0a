"""Average scores of benchmarks, choice of checkpoints, confidence intervals and tests.

Bootstrap confidence intervals of metrics, and significance tests for two systems.

    interval(accuracy, targets, predictions, samples=1000, seed=0)      # {"accuracy": (0.61, 0.74)}

A bootstrap sample has as many examples as the data, sampled with replacement. Examples of one group
({"group", "value"}) are sampled together, because answers to the same question of MultiRC are not
independent. Equal seeds give equal intervals.

Fisher's paired randomization test estimates whether a difference of two systems is random:

    randomisation_test([0.5, 0.2, 0.9], [0.4, 0.2, 0.1], seed=0)    # 0.5, the p-value

Under the null hypothesis, the two values of each query can be exchanged. The p-value is the
fraction of exchanges with an absolute difference of means at least as large as the observed
difference. If up to 16 pairs differ, all exchanges are enumerated. Otherwise exchanges are sampled,
and the observed order is one of the samples.

Source: Smucker, Allan and Carterette 2007, "A comparison of statistical significance tests for
information retrieval evaluation".

Average scores of benchmarks such as GLUE, and selection of checkpoints by metrics.

The score of a task is the mean of its metrics, the score of MNLI is the mean of matched and
mismatched, and the score of a benchmark is the mean over its tasks (Wang et al. 2018,
arXiv:1804.07461, section 5; Wang et al. 2019, arXiv:1905.00537, section 5; the rows of both
leaderboards confirm this for MNLI):

    GLUE.score({"glue_rte": {"accuracy": 0.7}, "glue_mrpc": {"f1": 0.9, "accuracy": 0.86}, ...})

The diagnostic sets (AX, AX-b, AX-g) are excluded. T5 is not trained on WNLI, and the tables of the
T5 paper exclude WNLI from GLUE: `GLUE_WITHOUT_WNLI` (t5/evaluation/eval_utils.py, METRIC_NAMES).

`best_tasks` and `table` report each task at its best checkpoint, and the benchmarks' averages:

    evaluations = {5000: {"validation/glue_rte/score": 0.6, "validation/glue_rte/accuracy": 0.6}}
    best_steps(evaluations, ["glue_rte"], split="validation")       # {"glue_rte": 5000}
    tasks = best_tasks(evaluations, split="validation")
    tasks["glue_rte"]                       # Standing(step=5000, metrics={"accuracy": 0.6})
    print(table(tasks))

The paper reports each task with the checkpoint that is best on its validation set (Raffel et al.
2020, sections 3.1.2 and 3.5). If several checkpoints have the same score, the last one is selected.

Metrics for selecting checkpoints are named "<split>/<task>/<name>" or "<split>/<name>":

    matching("validation/*/score", ["validation/loss", "validation/glue_rte/score"])
    mode_of("validation/loss")                              # "min": the lowest is best
    best_step({100: 5.7, 200: 5.5}, mode="min")             # 200
    refuse_test("checkpoints.best", "test/accuracy")        # InputError

Checkpoint retention, early stopping, `--step best` and the report use these functions. Selecting by
a test split raises InputError, because the test metrics would then be biased.
"""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.metrics.classification import check_lengths

Metric = Callable[[list[Any], list[Any]], Mapping[str, float]]


def interval(
    metric: Metric,
    targets: Sequence[Any],
    predictions: Sequence[Any],
    *,
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Return the bootstrap confidence interval of each value of a metric, {name: (low, high)}.

    Args:
      metric: function (targets, predictions) -> {name: value}.
      targets: targets of the examples.
      predictions: predictions, one for each target.
      samples: number of bootstrap samples.
      level: fraction of the samples' values inside the interval.
      seed: random seed.

    Raises:
      ValueError: if the numbers of targets and predictions differ or are 0, `samples` is less than
        1, or `level` is not between 0 and 1.
    """
    check_lengths(targets, predictions)
    if samples < 1 or not 0 < level < 1:
        raise ValueError(
            f"samples must be at least 1 and level between 0 and 1, but are {samples} and {level}"
        )
    units = _units(targets)
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {}
    for _ in range(samples):
        chosen, wanted, given = rng.integers(0, len(units), len(units)), [], []
        for place, unit in enumerate(chosen):
            for row in units[unit]:
                wanted.append(_copy(targets[row], place))
                given.append(predictions[row])
        for name, value in metric(wanted, given).items():
            drawn.setdefault(name, []).append(float(value))
    tails = [(1 - level) / 2, (1 + level) / 2]
    ends = {name: np.quantile(values, tails) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _units(targets: Sequence[Any]) -> list[list[int]]:
    units: dict[Any, list[int]] = {}
    for row, target in enumerate(targets):
        units.setdefault(target["group"] if _is_grouped(target) else ("row", row), []).append(row)
    return list(units.values())


def _copy(target: Any, place: int) -> Any:
    if not _is_grouped(target):
        return target
    return {**target, "group": (place, target["group"])}


def _is_grouped(target: Any) -> bool:
    return isinstance(target, Mapping) and "group" in target


_ALL_EXCHANGES = 16
_AT_ONCE = 1 << 20


def randomisation_test(
    first: Sequence[float], second: Sequence[float], *, draws: int = 100_000, seed: int = 0
) -> float:
    """Return the two-sided p-value of the difference between two systems.

    Args:
      first: value of each query for one system.
      second: values for the other system, in the same order.
      draws: number of random permutations if there are too many permutations to enumerate.
      seed: random seed.

    Raises:
      ValueError: if the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(
            f"both systems need the same number of values, but have {len(first)} and {len(second)}"
        )
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[differences != 0]
    num = len(differences)
    if not num:
        return 1.0
    # Floating-point sums in another order differ in the last bits.
    least = abs(differences.sum()) * (1 - 1e-12)
    if num <= _ALL_EXCHANGES:
        bits = np.arange(1 << num)[:, None] >> np.arange(num) & 1
        return float(np.mean(np.abs((1 - 2.0 * bits) @ differences) >= least))
    rng, extreme, left = np.random.default_rng(seed), 0, draws
    while left:
        size = min(left, max(1, _AT_ONCE // num))
        signs = rng.integers(0, 2, (size, num)) * 2.0 - 1
        extreme += int((np.abs(signs @ differences) >= least).sum())
        left -= size
    return (extreme + 1) / (draws + 1)


Mode: TypeAlias = Literal["max", "min"]
"""Direction of a metric: "max" if the highest value is best, "min" if the lowest is best."""

_LOWEST_IS_BEST = re.compile(
    r"(?:.*[_-])?"
    r"(?:loss|(?:cross[_-]?)?entropy|perplexity|ppl|nll|error(?:[_-]rate)?|wer|cer|mse|rmse|mae"
    r"|bag_of_words)"
)
"""Pattern of the names of losses and errors; for all other metrics the highest value is best."""
_LISTED = 3


def mode_of(name: str, mode: Mode | None = None) -> Mode:
    """Return "max" if the highest value of a metric is best, or "min" if the lowest is best.

    Args:
      name: name of the metric. The lowest value is best for losses, cross entropies, perplexities
        and errors.
      mode: direction from the config; None to use the name.
    """
    if mode is not None:
        return mode
    own = name.rpartition("/")[2].lower()
    return "min" if _LOWEST_IS_BEST.fullmatch(own) else "max"


def best_step(values: Mapping[int, float], *, mode: Mode) -> int | None:
    """Return the step with the best finite value; if several are equal, return the last step."""
    sign = 1 if mode == "max" else -1
    finite = {step: sign * value for step, value in values.items() if math.isfinite(value)}
    return max(finite, key=lambda step: (finite[step], step), default=None)


def described(names: Sequence[str], mode: Mode | None = None) -> str:
    """Return a phrase for the best values of metrics, such as "the lowest validation/loss"."""
    groups = {
        word: [name for name in names if mode_of(name, mode) == one]
        for word, one in (("lowest", "min"), ("highest", "max"))
    }
    return ", ".join(f"the {word} {_listed(group)}" for word, group in groups.items() if group)


def contradiction(field: str, names: Sequence[str], mode: Mode | None) -> str | None:
    """Return a warning if a mode is unusual for a metric, such as "max" for a loss; else None.

    Args:
      field: name of the field with the mode, such as "checkpoints.best_mode".
      names: names of the metrics.
      mode: value of the field; None gives no warning.
    """
    against = [name for name in names if mode is not None and mode_of(name) != mode]
    if not against:
        return None
    return (
        f"{field} {mode!r} selects {described(against, mode)}, but the usual best is "
        f"{described(against)}; set {field} None for the usual direction"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a pattern with *, ? and [...], in the given order."""
    return [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]


def is_test(split: str) -> bool:
    """Return True if a split is a test split."""
    return split.strip().lower().startswith("test")


def refuse_test(field: str, name: str | None) -> None:
    """Raise InputError if a field of the config selects checkpoints by a metric of a test split.

    Args:
      field: name of the field with the metric.
      name: "<split>/<metric>" or a pattern; None is accepted.
    """
    if name is not None and is_test(name.partition("/")[0]):
        raise InputError(
            f"{field} {name!r} selects a model by a test split, so the test metrics would be "
            "biased; select by a validation split, and evaluate the test split with t5x-lite "
            "evaluate"
        )


Metrics = Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Tasks of a benchmark, such as GLUE, grouped into the rows of its table.

    Attributes:
      name: display name.
      rows: row name -> names of the row's tasks; a row's score is the mean over its tasks.
    """

    name: str
    rows: Mapping[str, Sequence[str]]

    def row_scores(self, tasks: Mapping[str, Metrics]) -> dict[str, float]:
        """Return the score of each row for which all tasks have metrics."""
        return {
            row: sum(task_score(tasks[name]) for name in names) / len(names)
            for row, names in self.rows.items()
            if all(tasks.get(name) for name in names)
        }

    def score(self, tasks: Mapping[str, Metrics]) -> float | None:
        """Return the benchmark's score, or None if a row has no score."""
        scores = self.row_scores(tasks)
        return sum(scores.values()) / len(scores) if len(scores) == len(self.rows) else None

    def missing(self, tasks: Mapping[str, Metrics]) -> list[str]:
        """Return the names of the rows for which a task has no metrics."""
        scores = self.row_scores(tasks)
        return [row for row in self.rows if row not in scores]


def task_score(metrics: Metrics) -> float:
    """Return the score of a task, the mean of its metrics; higher is better.

    Metrics for which the lowest value is best, such as an error rate, are negated. Precision,
    recall and class averages count only if the task has no other metrics.

    Raises:
      ValueError: if `metrics` is empty.
    """
    if not metrics:
        raise ValueError("the score of a task requires at least one metric, but the task has none")
    counted = {name: v for name, v in metrics.items() if not _PART.fullmatch(name)} or metrics
    signed = [value if mode_of(name) == "max" else -value for name, value in counted.items()]
    return sum(signed) / len(signed)


_PART = re.compile(r"(HasAns|NoAns|best)_.*|precision|recall|macro_f1|weighted_f1")


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


SCORE = "score"
"""Name of a task's score, and of the mean score of a mixture, among the metrics."""

Evaluations = Mapping[int, Mapping[str, float]]
"""Type of evaluations: step -> metrics named "<split>/<task>/<name>"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """Metrics of one task at its best checkpoint.

    Attributes:
      step: step of the checkpoint.
      metrics: metrics of the task.
    """

    step: int
    metrics: Mapping[str, float]


def scored(
    tasks: Mapping[str, Mapping[str, float]], *, aside: Iterable[str] = ()
) -> dict[str, float]:
    """Return one dict with the metrics and scores of a mixture's tasks, and the mean score.

    Args:
      tasks: metrics of each task, by the task's name.
      aside: tasks that are excluded from the mean score, unless this would exclude all tasks.

    Returns:
      {"<task>/<name>": metric, "<task>/score": score of the task, "score": mean over the tasks}.
    """
    found: dict[str, float] = {}
    scores = {name: task_score(metrics) for name, metrics in tasks.items()}
    for name, metrics in tasks.items():
        found |= {f"{name}/{metric}": value for metric, value in metrics.items()}
        found[f"{name}/{SCORE}"] = scores[name]
    counted = [score for name, score in scores.items() if name not in aside] or [*scores.values()]
    if counted:
        found[SCORE] = sum(counted) / len(counted)
    return found


def with_score(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a single task with its "score"; an existing "score" is kept.

    Args:
      metrics: metrics of the task; if empty, no score is added.
    """
    has_score = not metrics or SCORE in metrics
    return {**metrics, **({} if has_score else {SCORE: task_score(metrics)})}


def best_steps(evaluations: Evaluations, names: Iterable[str], *, split: str) -> dict[str, int]:
    """Return each task's best step; for tasks without metrics, the step with the best mean score.

    Args:
      evaluations: metrics of the checkpoints to select from.
      names: names of the tasks.
      split: split of the metrics for the selection.

    Raises:
      InputError: if no checkpoint has a score for the split.
    """
    overall = _best(evaluations, f"{split}/{SCORE}")
    if overall is None:
        measured = ", ".join(dict.fromkeys(name for one in evaluations.values() for name in one))
        raise InputError(
            f"no checkpoint has the metric {split}/{SCORE} (metrics of the checkpoints: "
            f"{measured or 'none'}); unset evaluation.best_per_task and give --step NUMBER or "
            "--step best (training evaluates the kept checkpoints if checkpoints.best is set)"
        )
    found = {name: _best(evaluations, f"{split}/{name}/{SCORE}") for name in names}
    return {name: overall if step is None else step for name, step in found.items()}


def best_tasks(evaluations: Evaluations, *, split: str) -> dict[str, Standing]:
    """Return the metrics of each evaluated task at its best step."""
    beginning = f"{split}/"
    names = dict.fromkeys(
        name.removeprefix(beginning).removesuffix(f"/{SCORE}")
        for metrics in evaluations.values()
        for name in metrics
        if name.startswith(beginning) and name.count("/") == 2 and name.endswith(f"/{SCORE}")
    )
    rows = {}
    for name in names:
        step = _best(evaluations, f"{split}/{name}/{SCORE}")
        if step is not None:
            rows[name] = Standing(step=step, metrics=_task_metrics(evaluations[step], split, name))
    return rows


def _best(evaluations: Evaluations, name: str) -> int | None:
    values = {step: metrics.get(name, math.nan) for step, metrics in evaluations.items()}
    return best_step(values, mode="max")


def _task_metrics(metrics: Mapping[str, float], split: str, name: str) -> dict[str, float]:
    beginning = f"{split}/{name}/"
    return {
        metric.removeprefix(beginning): value
        for metric, value in metrics.items()
        if metric.startswith(beginning) and metric != f"{beginning}{SCORE}"
    }


def benchmark_scores(tasks: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Return the scores of all benchmarks that include one of the tasks, as a JSON object.

    The form is {"GLUE": {"score", "rows", "missing"}}. A benchmark with a missing row has the score
    None.
    """
    found = {}
    for benchmark in BENCHMARKS:
        rows = benchmark.row_scores(tasks)
        if rows:
            found[benchmark.name] = {
                "score": benchmark.score(tasks),
                "rows": rows,
                "missing": benchmark.missing(tasks),
            }
    return found


def table(tasks: Mapping[str, Standing]) -> str:
    """Return a text table of the metrics of tasks, and the scores of benchmarks, in percent."""
    if not tasks:
        return "no task was evaluated"
    lines = [("task", "step", "score", "metrics")]
    for name, standing in tasks.items():
        metrics = "  ".join(f"{m} {_percent(value)}" for m, value in standing.metrics.items())
        score = _percent(task_score(standing.metrics))
        lines.append((name, f"{standing.step:,}", score, metrics))
    text = _columns(lines)
    for name, found in benchmark_scores({n: s.metrics for n, s in tasks.items()}).items():
        if not found["missing"]:
            text += f"\n{name}: {_percent(found['score'])}"
        elif name == GLUE_WITHOUT_WNLI.name or found["rows"].keys() == {"WNLI"}:
            continue  # GLUE's own line lists the missing rows; SuperGLUE runs include WNLI
        else:
            text += f"\n{name} average not computed; missing: {', '.join(found['missing'])}"
    return text


def _columns(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    return "\n".join(
        f"{line[0]:<{widths[0]}}  {line[1]:>{widths[1]}}  {line[2]:>{widths[2]}}  {line[3]}"
        for line in lines
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"
