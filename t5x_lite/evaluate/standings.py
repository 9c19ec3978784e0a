"""What a model scores on many tasks: each with its best checkpoint, and the benchmarks' averages.

    evaluations = {5000: {"validation/glue_rte/score": 0.6, "validation/glue_rte/accuracy": 0.6}}
    best_steps(evaluations, ["glue_rte"], split="validation")       # {"glue_rte": 5000}
    tasks = best_tasks(evaluations, split="validation")
    tasks["glue_rte"]                       # Standing(step=5000, metrics={"accuracy": 0.6})
    print(table(tasks))

The paper reports each task with the checkpoint that is best on its validation set (Raffel et al.
2020, sections 3.1.2 and 3.5). A task's score is the mean of its metrics; of checkpoints that are
equally good the last one is taken.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.metrics.benchmarks import BENCHMARKS, GLUE_WITHOUT_WNLI, task_score
from t5x_lite.metrics.selection import best_step

SCORE = "score"
"""The name of a task's score, and of the mean over the tasks of a mixture, among the metrics."""

Evaluations = Mapping[int, Mapping[str, float]]
"""step -> metrics named "<split>/<task>/<name>"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One task's row.

    Attributes:
      step: the checkpoint that it was measured with.
      metrics: the task's metrics.
    """

    step: int
    metrics: Mapping[str, float]


def scored(
    tasks: Mapping[str, Mapping[str, float]], *, aside: Iterable[str] = ()
) -> dict[str, float]:
    """The metrics of a mixture from those of its tasks: "<task>/<name>", and the scores.

    Args:
      tasks: the metrics of each task, by its name.
      aside: tasks that do not count in the mean, unless there are no others.

    Returns:
      Each task's metrics and its "<task>/score", and "score", the mean over the tasks.
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
    """The metrics of a single task, and its "score"; a metric of that name stays as it is.

    Args:
      metrics: none, where the task has no metrics of its own and thus no score.
    """
    has_score = not metrics or SCORE in metrics
    return {**metrics, **({} if has_score else {SCORE: task_score(metrics)})}


def best_steps(evaluations: Evaluations, names: Iterable[str], *, split: str) -> dict[str, int]:
    """The step that was best at each task; a task that was not measured has the best on the whole.

    Args:
      evaluations: of the checkpoints to choose among.
      names: the tasks.
      split: by which to choose.

    Raises:
      InputError: no checkpoint was measured.
    """
    overall = _best(evaluations, f"{split}/{SCORE}")
    if overall is None:
        measured = ", ".join(dict.fromkeys(name for one in evaluations.values() for name in one))
        raise InputError(
            f"no checkpoint has {split}/{SCORE} among its metrics, which are "
            f"{measured or 'none'}: leave out evaluation.best_per_task and give --step, a number "
            "or best; training measures what it keeps if checkpoints.best is set"
        )
    found = {name: _best(evaluations, f"{split}/{name}/{SCORE}") for name in names}
    return {name: overall if step is None else step for name, step in found.items()}


def best_tasks(evaluations: Evaluations, *, split: str) -> dict[str, Standing]:
    """The rows of all tasks that were measured, each at its best step."""
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
    """The benchmarks that tasks belong to, as JSON: {"GLUE": {"score", "rows", "missing"}}.

    The score is None where a row of the benchmark is missing.

    Args:
      tasks: the metrics of each task, by its name.
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
    """The rows as a table of text, values times 100, with the benchmarks' scores below."""
    if not tasks:
        return "no task was measured"
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
            continue  # GLUE's line says what is missing; WNLI is answered by a run of SuperGLUE
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
