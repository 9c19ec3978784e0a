"""Several runs on one page: final metrics, the settings that differ, and curves on one chart.

    compare(["work/a", "work/b", "work/c"])     # writes work/compare.html

A curve has the colour of its run on the whole page. The runs may be of any length and task; a
metric that one of them lacks is empty there.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from t5x_lite.errors import InputError
from t5x_lite.report import chart as report_chart
from t5x_lite.report import page as report_page
from t5x_lite.report.history import Run, read_run
from t5x_lite.report.runs import (
    base_names,
    charted,
    charts_of,
    command_of,
    write_page,
    written_now,
)
from t5x_lite.report.settings import settings

PAGE = "compare.html"
_NOT_COMPARED = ("--workdir",)


def compare(
    workdirs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None
) -> Path:
    """Writes the page of several runs, atomically.

    Args:
      workdirs: directories that training wrote, two at least.
      output: the HTML file; if None, compare.html next to the first work directory.

    Returns:
      The path of the page.

    Raises:
      InputError: a directory is no run or is given twice, a line in it is malformed, or the page
        cannot be written.
    """
    resolved = [Path(workdir).resolve() for workdir in workdirs]
    if len(set(resolved)) < len(resolved):
        raise InputError("a run is given twice: give different work directories to compare")
    runs = [read_run(workdir) for workdir in workdirs]
    names = short_names(resolved)
    sections = [_runs(runs, names), _metrics(runs, names), _settings(runs, names)]
    sections += [_charts(runs, names), _commands(runs, names)]
    subtitle = f"{', '.join(names)}; written {written_now()}"
    page = report_page.page(f"{len(runs)} runs compared", subtitle, sections)
    return write_page(resolved[0].with_name(PAGE) if output is None else Path(output), page)


def short_names(directories: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart: ["a/run", "b/run"]."""
    for length in range(1, max(len(directory.parts) for directory in directories) + 1):
        names = ["/".join(directory.parts[-length:]) for directory in directories]
        if len(set(names)) == len(names):
            break
    return names


def _runs(runs: Sequence[Run], names: Sequence[str]) -> str:
    rows = []
    for run, name in zip(runs, names, strict=True):
        planned = run.config.get("steps")
        steps = f"{run.last_step:,}" + (f" of {planned:,}" if isinstance(planned, int) else "")
        parameters = run.finite("num_parameters")
        count = report_chart.number(parameters[-1][1]) if parameters else ""
        rows.append((name, (run.task, steps, count), ()))
    return report_page.compared(("run", "task", "steps", "parameters"), rows, numbers=False)


def _metrics(runs: Sequence[Run], names: Sequence[str]) -> str:
    """The best and the last value of each metric of the evaluations, and the last training loss."""
    heads = dict.fromkeys(name for run in runs for name in run.headlines())
    measured = {n for run in runs for n in run.measured if not run.scored_alone(n)}
    every = sorted(measured - set(heads))
    rows: list[tuple[str, list[str], set[int]]] = []
    for name in [*heads, *every]:
        best = [run.best(name) if run.finite(name) else None for run in runs]
        last = [run.finite(name)[-1] if run.finite(name) else None for run in runs]
        mode = next(run.mode(name) for run in runs if run.finite(name))
        rows.append((f"{name}, best", [_at(one) for one in best], _winners(best, mode)))
        if best != last:
            rows.append((f"{name}, last", [_at(one) for one in last], _winners(last, mode)))
    losses = [run.finite("loss")[-1] if run.finite("loss") else None for run in runs]
    if any(losses):
        rows.append(("training loss, last", [_at(one) for one in losses], _winners(losses, "min")))
    if not rows:
        return ""
    note = '<p class="note">A value and its step; the best of a row is bold.</p>'
    return f"<h2>Metrics</h2>{note}{report_page.compared(('metric', *names), rows)}"


def _at(point: tuple[int, float] | None) -> str:
    return "" if point is None else f"{report_chart.number(point[1])} at {point[0]:,}"


def _winners(points: Sequence[tuple[int, float] | None], mode: str) -> set[int]:
    """The indices of the best values; none where all are equal."""
    values = [point[1] for point in points if point is not None]
    best = max(values) if mode == "max" else min(values)
    winners = {i for i, point in enumerate(points) if point is not None and point[1] == best}
    return winners if len(winners) < len(values) else set()


def _settings(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Options whose values differ; also versions."""
    each = [settings(run.config) for run in runs]
    for found, run in zip(each, runs, strict=True):
        if run.starts:
            newest = run.starts[-1]
            found |= {f"version of {name}": value for name, value in newest.versions.items()}
            found["devices"] = newest.devices
    rows = [
        (option, [found.get(option, "") for found in each], ())
        for option in dict.fromkeys(option for found in each for option in found)
        if option not in _NOT_COMPARED and len({found.get(option) for found in each}) > 1
    ]
    heading = "<h2>Settings that differ</h2>"
    if not rows:
        return f'{heading}<p class="note">None.</p>'
    return heading + report_page.compared(("option", *names), rows, numbers=False)


def _charts(runs: Sequence[Run], names: Sequence[str]) -> str:
    """A chart for each metric and split, with a curve for each run."""
    curves: dict[str, list[report_chart.Series]] = {}
    for colour, (run, label) in enumerate(zip(runs, names, strict=True)):
        for base, splits in charted(run).items():
            for split, name in splits.items():
                title = base if split == "training" else f"{base} ({split})"
                points = list(run.curves[name].items())
                series = report_chart.Series(name=label, points=points, colour=colour)
                curves.setdefault(title, []).append(series)
    heads = dict.fromkeys(name for run in runs for name in run.headlines())
    first = [
        f"{base} ({name.partition('/')[0]})"
        for name, base in zip(heads, base_names(list(heads)), strict=True)
    ]
    return charts_of(curves, first=first)


def _commands(runs: Sequence[Run], names: Sequence[str]) -> str:
    parts = [
        f"<h3>{report_page.text(name)}</h3>{shown}"
        for run, name in zip(runs, names, strict=True)
        if (shown := command_of(run))
    ]
    return f"<h2>Commands</h2>{''.join(parts)}" if parts else ""
