"""Pages that compare: several training runs, or several measured rankings.

Report that compares several runs: final metrics, different settings, and curves in one chart.

    compare(["work/a", "work/b", "work/c"])     # writes work/compare.html

Each run has one color on the complete page. Runs may have different lengths and tasks; a missing
metric is an empty cell.

    compare_seeds(["work/a0", "work/a1", "work/b0", "work/b1"])     # returns also the numbers

Runs that differ only in their seed form a group. A group has the mean and the sample standard
deviation of each metric at the end and at each run's best step. As in table 1 of the T5 paper
(Raffel et al. 2020), a value within two standard deviations of the best value is bold. The standard
deviation is taken from the group with the most runs, or from the best group if several have the
most runs.

Report of evaluated rankings: a table, curves over depth, and queries that differ most.
"""

import dataclasses
import datetime
import itertools
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically
from t5x_lite.report import page
from t5x_lite.report import page as chart
from t5x_lite.report import page as report_chart
from t5x_lite.report import page as report_page
from t5x_lite.report.runs import (
    Run,
    base_names,
    charted,
    charts_of,
    command_of,
    read_run,
    settings,
    write_page,
    written_now,
)

PAGE = "compare.html"
_NOT_COMPARED = ("--workdir",)
_SEED = "--seed"
_OF_RUN = ("--tracking.", "--hosts.", "--compilation-cache", "--profile.", "--log-period")
"""Prefixes of options that do not affect the trained model."""
_LENGTHS = ("--steps", "total-steps", "warmup-steps")
_WITHIN = 2.0
"""Number of standard deviations from the best value within which a value is bold."""


def compare(
    workdirs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None
) -> Path:
    """Write an HTML page that compares several runs, and return its path."""
    resolved, runs, names = _read(workdirs)
    sections = [_runs(runs, names), _metrics(runs, names), _settings(runs, names)]
    sections += [_charts(runs, names), _commands(runs, names)]
    subtitle = f"{', '.join(names)}; written {written_now()}"
    page = report_page.page(f"{len(runs)} runs compared", subtitle, sections)
    return write_page(resolved[0].with_name(PAGE) if output is None else Path(output), page)


def _read(
    workdirs: Sequence[str | os.PathLike[str]],
) -> tuple[list[Path], list[Run], list[str]]:
    resolved = [Path(workdir).resolve() for workdir in workdirs]
    if len(set(resolved)) < len(resolved):
        raise InputError("a work directory is given twice; give different work directories")
    return resolved, [read_run(workdir) for workdir in workdirs], short_names(resolved)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and standard deviation of a metric over the runs of a group.

    Attributes:
      mean: mean of the metric.
      sd: sample standard deviation; None for a single run.
      n: number of runs that have the metric.
      bold: True if the mean is within two standard deviations of the best group's mean.
    """

    mean: float
    sd: float | None
    n: int
    bold: bool = False

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return mean and standard deviation of a list of values, or None for an empty list."""
        if not values:
            return None
        sd = statistics.stdev(values) if len(values) > 1 else None
        return cls(mean=statistics.fmean(values), sd=sd, n=len(values))

    def __str__(self) -> str:
        """Return the text of a table cell, such as "0.8312 ± 0.0021"."""
        mean = report_chart.number(self.mean)
        return mean if self.sd is None else f"{mean} ± {report_chart.number(self.sd, digits=3)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
      name: name of the group, made of the settings that differ between groups.
      names: names of the runs.
      runs: runs in the order of their seeds.
      seeds: seeds of the runs.
      settings: settings that all runs of the group share.
    """

    name: str
    names: tuple[str, ...]
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, str]

    def last(self, name: str) -> Spread | None:
        """Return mean and standard deviation of a metric's last value in each run."""
        return Spread.of([run.finite(name)[-1][1] for run in self.runs if run.finite(name)])

    def best(self, name: str) -> Spread | None:
        """Return mean and standard deviation of a metric's best value in each run."""
        return Spread.of([run.best(name)[1] for run in self.runs if run.finite(name)])


def compare_seeds(
    workdirs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None
) -> tuple[Path, list[dict[str, Any]]]:
    """Write an HTML page that compares groups of runs with different seeds."""
    resolved, runs, names = _read(workdirs)
    groups = grouped(runs, names)
    table = _table(groups)
    sections = [_groups(groups), _table_one(groups, table), _spreads(groups, table)]
    if len(groups) > 1:
        sections.append(_settings_of(groups))
    sections += [_bands(groups), _commands(runs, names)]
    title = f"{len(runs)} runs in {len(groups)} group{'s' if len(groups) > 1 else ''} by seed"
    page = report_page.page(title, f"{', '.join(names)}; written {written_now()}", sections)
    path = write_page(resolved[0].with_name(PAGE) if output is None else Path(output), page)
    found = [
        {
            "group": group.name,
            "n": len(group.runs),
            "seeds": list(group.seeds),
            "runs": list(group.names),
            "metrics": {
                metric: {when: None if one is None else dataclasses.asdict(one)}
                | {other: None if two is None else dataclasses.asdict(two)}
                for metric in _metrics_of(groups)
                for when, one in [("last", table["last", metric][number])]
                for other, two in [("best", table["best", metric][number])]
            },
        }
        for number, group in enumerate(groups)
    ]
    return path, found


def grouped(runs: Sequence[Run], names: Sequence[str]) -> list[Group]:
    """Group runs that differ only in their seed, in the order of each group's first run."""
    each = []
    for run in runs:
        if not run.config:
            raise InputError(
                f"run {run.directory} has no config.json, so the seed of the run is unknown; "
                "remove this run, or report without --group"
            )
        found = settings(run.config)
        each.append(
            {k: v for k, v in found.items() if not k.startswith((*_NOT_COMPARED, *_OF_RUN))}
        )
    seeds = [int(found.pop(_SEED, "0")) for found in each]
    _check_lengths(runs, each, seeds)
    keys = [tuple(sorted(found.items())) for found in each]
    places = {
        key: [i for i, other in enumerate(keys) if other == key] for key in dict.fromkeys(keys)
    }
    options = dict.fromkeys(option for found in each for option in found)
    differing = [o for o in options if len({found.get(o) for found in each}) > 1]
    groups = []
    for chosen in places.values():
        chosen.sort(key=lambda i: seeds[i])
        for one, other in itertools.pairwise(chosen):
            if seeds[one] == seeds[other]:
                raise InputError(
                    f"runs {runs[one].directory} and {runs[other].directory} have the same "
                    f"settings and the same seed {seeds[one]}; give each seed once"
                )
        found = each[chosen[0]]
        words = [f"{o.removeprefix('--')} {found.get(o) or 'unset'}" for o in differing]
        groups.append(
            Group(
                name=", ".join(words) or runs[chosen[0]].task or "all runs",
                names=tuple(names[i] for i in chosen),
                runs=tuple(runs[i] for i in chosen),
                seeds=tuple(seeds[i] for i in chosen),
                settings=found,
            )
        )
        _check_ends(groups[-1])
    return groups


def _check_lengths(
    runs: Sequence[Run], each: Sequence[Mapping[str, str]], seeds: Sequence[int]
) -> None:
    """Raise InputError if runs that only differ in their seeds have different numbers of steps."""
    alike: dict[Any, list[int]] = {}
    for i, found in enumerate(each):
        key = tuple(sorted((k, v) for k, v in found.items() if not k.endswith(_LENGTHS)))
        alike.setdefault(key, []).append(i)
    for chosen in alike.values():
        steps = {each[i].get("--steps") for i in chosen}
        if len(steps) > 1 and len({seeds[i] for i in chosen}) == len(chosen):
            first = chosen[0]
            other = next(i for i in chosen if each[i].get("--steps") != each[first].get("--steps"))
            raise InputError(
                f"run {runs[first].directory} (seed {seeds[first]}) has "
                f"{each[first].get('--steps')} steps, but run {runs[other].directory} (seed "
                f"{seeds[other]}) has {each[other].get('--steps')} steps; train all seeds for the "
                "same number of steps"
            )


def _check_ends(group: Group) -> None:
    early = group.settings.get("--stop-early.metric", "None") != "None"
    ends = [run.last_step for run in group.runs]
    if early or len(set(ends)) == 1:
        return
    short, far = min(range(len(ends)), key=ends.__getitem__), ends.index(max(ends))
    raise InputError(
        f"run {group.runs[short].directory} (seed {group.seeds[short]}) is at step "
        f"{ends[short]:,}, but run {group.runs[far].directory} (seed {group.seeds[far]}) is at "
        f"step {ends[far]:,}; finish or remove the shorter run"
    )


def _metrics_of(groups: Sequence[Group]) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    heads = dict.fromkeys(name for run in runs for name in run.headlines())
    measured = {n for run in runs for n in run.measured if not run.scored_alone(n)}
    return [*heads, *sorted(measured - set(heads))]


def _table(groups: Sequence[Group]) -> dict[tuple[str, str], list[Spread | None]]:
    found: dict[tuple[str, str], list[Spread | None]] = {}
    for metric in _metrics_of(groups):
        runs = [run for group in groups for run in group.runs]
        mode = next(run.mode(metric) for run in runs if run.finite(metric))
        found["last", metric] = _bold([group.last(metric) for group in groups], mode)
        found["best", metric] = _bold([group.best(metric) for group in groups], mode)
    return found


def _bold(spreads: Sequence[Spread | None], mode: str) -> list[Spread | None]:
    there = [spread for spread in spreads if spread is not None]
    best = (max if mode == "max" else min)(there, key=lambda spread: spread.mean)
    with_sd = [spread for spread in there if spread.sd is not None]
    most = max((spread.n for spread in with_sd), default=0)
    largest = [spread for spread in with_sd if spread.n == most]
    baseline = best if best in largest else next(iter(largest), None)
    room = _WITHIN * (baseline.sd or 0.0) if baseline is not None else 0.0
    return [
        None
        if spread is None
        else dataclasses.replace(
            spread, bold=len(there) > 1 and abs(spread.mean - best.mean) <= room
        )
        for spread in spreads
    ]


def _groups(groups: Sequence[Group]) -> str:
    rows = [
        (
            group.name,
            (
                str(len(group.runs)),
                ", ".join(map(str, group.seeds)),
                f"{group.runs[0].last_step:,}",
                ", ".join(group.names),
            ),
            (),
        )
        for group in groups
    ]
    return report_page.compared(("group", "n", "seeds", "steps", "runs"), rows, numbers=False)


def _table_one(
    groups: Sequence[Group], table: Mapping[tuple[str, str], Sequence[Spread | None]]
) -> str:
    metrics = list(dict.fromkeys(n for g in groups for run in g.runs for n in run.headlines()))
    if not metrics:
        return ""
    rows = []
    for number, group in enumerate(groups):
        spreads = [table["best", metric][number] for metric in metrics]
        bold = {i for i, one in enumerate(spreads) if one is not None and one.bold}
        cells = [_cell(spread) for spread in spreads]
        rows.append((f"{group.name} (n = {len(group.runs)})", cells, bold))
    note = (
        "Mean and sample standard deviation over the seeds, each run at its best step. Bold: "
        "within two standard deviations of the best."
    )
    heading = f'<h2>Mean over seeds</h2><p class="note">{note}</p>'
    return heading + report_page.compared(("group", *metrics), rows)


def _spreads(
    groups: Sequence[Group], table: Mapping[tuple[str, str], Sequence[Spread | None]]
) -> str:
    rows = [
        (
            f"{metric}, {'at the end' if when == 'last' else 'best'}",
            [_cell(spread) for spread in spreads],
            {i for i, one in enumerate(spreads) if one is not None and one.bold},
        )
        for (when, metric), spreads in table.items()
    ]
    if not rows:
        return '<p class="note">The runs have no evaluation yet.</p>'
    names = [f"{group.name} (n = {len(group.runs)})" for group in groups]
    return "<h2>All metrics</h2>" + report_page.compared(("metric", *names), rows)


def _cell(spread: Spread | None) -> str:
    return "" if spread is None else str(spread)


def _settings_of(groups: Sequence[Group]) -> str:
    options = dict.fromkeys(option for group in groups for option in group.settings)
    rows = [
        (option, [group.settings.get(option, "") for group in groups], ())
        for option in options
        if len({group.settings.get(option) for group in groups}) > 1
    ]
    names = [group.name for group in groups]
    return "<h2>Settings that differ</h2>" + report_page.compared(
        ("option", *names), rows, numbers=False
    )


def _bands(groups: Sequence[Group]) -> str:
    curves: dict[str, list[report_chart.Series]] = {}
    for colour, group in enumerate(groups):
        for base, splits in charted(group.runs[0]).items():
            for split, name in splits.items():
                title = base if split == "training" else f"{base} ({split})"
                series = _mean_curve(group, name, colour=colour)
                if series.points:
                    curves.setdefault(title, []).append(series)
    heads = dict.fromkeys(n for group in groups for run in group.runs for n in run.headlines())
    first = [
        f"{base} ({name.partition('/')[0]})"
        for name, base in zip(heads, base_names(list(heads)), strict=True)
    ]
    return charts_of(curves, first=first)


def _mean_curve(group: Group, name: str, *, colour: int) -> report_chart.Series:
    values = [dict(run.finite(name)) for run in group.runs]
    steps = sorted(set(values[0]).intersection(*values[1:]))
    points, band = [], []
    for step in steps:
        spread = Spread.of([one[step] for one in values])
        assert spread is not None
        points.append((step, spread.mean))
        if spread.sd is not None and math.isfinite(spread.sd):
            band.append((step, spread.mean - spread.sd, spread.mean + spread.sd))
    return report_chart.Series(name=group.name, points=points, colour=colour, band=band)


def short_names(directories: Sequence[Path]) -> list[str]:
    """Return the shortest unique ends of directory paths, such as ["a/run", "b/run"]."""
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
    values = [point[1] for point in points if point is not None]
    best = max(values) if mode == "max" else min(values)
    winners = {i for i, point in enumerate(points) if point is not None and point[1] == best}
    return winners if len(winners) < len(values) else set()


def _settings(runs: Sequence[Run], names: Sequence[str]) -> str:
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


_TITLES = {"ndcg": "nDCG@k", "recall": "Recall@k", "top": "Questions answered in the first k"}
_MOST_QUERIES = 20
_MOST_DOCUMENTS = 5
_SNIPPET = 200
"""Maximum number of characters of a text in the tables of examples."""
_LISTS = {"failed": "Queries that fail", "better": "Improved queries", "worse": "Worsened queries"}


class Measured(NamedTuple):
    """Retrieval metrics of one ranking file.

    Attributes:
      name: name of the ranking file.
      means: mean of each metric over the queries.
      by_query: metrics of each query.
      curves: pairs (k, mean of the metric at k), by metric.
    """

    name: str
    means: Mapping[str, float]
    by_query: Mapping[str, Mapping[str, float]]
    curves: Mapping[str, Sequence[tuple[int, float]]]


def write_retrieval_page(
    path: Path,
    measured: Sequence[Measured],
    result: Mapping[str, Any],
    *,
    source: str,
    examples: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write an HTML page that compares rankings by their metrics on the same queries."""
    first = measured[0]
    sections = [
        page.facts(
            [
                ("Queries", f"{len(first.by_query):,}", ""),
                *((name, chart.number(value), first.name) for name, value in first.means.items()),
            ][:6]
        ),
        "<h2>Metrics</h2>" + _runs_table(measured, result),
        f'<h2>By depth, and by query</h2><div class="charts">{_curves(measured)}</div>',
        *(_differences(first, other) for other in measured[1:]),
        *_example_tables(examples, [one.name for one in measured]),
    ]
    written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    document = page.page("Retrieval", f"{source}, written {written}", sections)
    try:
        write_atomically(path, document.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error


def _example_tables(examples: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> list[str]:
    tables = []
    lists = itertools.groupby(examples, key=lambda one: (one["list"], one.get("run")))
    for (kind, run), group in lists:
        shown, rows = [runs[0], run] if run else [*runs], []
        for one in group:
            relevant = [
                f"{_text(found)}: {', '.join(str(found['ranks'][name] or '-') for name in shown)}"
                for found in one["relevant"]
            ]
            more = len(relevant) - _MOST_DOCUMENTS
            last = [f"{more} more"] if more > 0 else []
            cells = [
                " | ".join([*relevant[:_MOST_DOCUMENTS], *last]),
                *(f"{one['values'][name]:.3f}: {_text(one['first'][name])}" for name in shown),
            ]
            rows.append((f"{one['query']}: {one['text'][:_SNIPPET]}", cells, ()))
        headings = ["query", f"relevant documents: ranks in {', '.join(shown)}"]
        headings += [f"{name}: value and first document" for name in shown]
        title = _LISTS[kind] + (f", {run} against {runs[0]}" if run else "")
        table = page.compared(headings, rows, numbers=False)
        tables.append(f"<h2>{page.text(title)}</h2>{table}")
    return tables


def _text(document: Mapping[str, Any]) -> str:
    words = " ".join(document.get("text", "").split())[:_SNIPPET]
    return f"{document['document'] or '-'}{f' ({words})' if words else ''}"


def _runs_table(measured: Sequence[Measured], result: Mapping[str, Any]) -> str:
    headings = ["metric", measured[0].name]
    for one in measured[1:]:
        headings += [one.name, "difference", "p"]
    p_values = result["p_values"] if len(measured) > 1 else {}
    rows = []
    for metric, value in measured[0].means.items():
        row = [metric, f"{value:.4f}"]
        for one in measured[1:]:
            other = one.means[metric]
            row += [f"{other:.4f}", f"{other - value:+.4f}", _p(p_values[one.name][metric])]
        rows.append(row)
    note = (
        '<p class="note">p is the p-value of a two-sided paired randomization test against '
        f"{page.text(measured[0].name)}.</p>"
        if len(measured) > 1
        else ""
    )
    return page.table(headings, rows) + note


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _curves(measured: Sequence[Measured]) -> str:
    cards = [
        page.chart_card(
            _TITLES[kind],
            [
                chart.Series(name=one.name, points=list(one.curves[kind]), colour=number)
                for number, one in enumerate(measured)
            ],
            name=f"curve{place}",
            from_zero=True,
            axis="k",
        )
        for place, kind in enumerate(measured[0].curves)
    ]
    return "".join([*cards, _distribution(measured)])


def _distribution(measured: Sequence[Measured]) -> str:
    metric = next(iter(measured[0].means))
    series = []
    for number, one in enumerate(measured):
        values = sorted((values[metric] for values in one.by_query.values()), reverse=True)
        points = list(enumerate(values, start=1))
        series.append(chart.Series(name=one.name, points=points, colour=number))
    title = f"{metric} of the queries, in order"
    return page.chart_card(title, series, name="sorted", axis="query")


def _differences(first: Measured, other: Measured) -> str:
    metric = next(iter(first.means))
    pairs = [
        (query, values[metric], other.by_query[query][metric])
        for query, values in first.by_query.items()
    ]
    pairs.sort(key=lambda pair: -abs(pair[2] - pair[1]))
    rows = [
        (query, f"{ours:.3f}", f"{theirs:.3f}", f"{theirs - ours:+.3f}")
        for query, ours, theirs in pairs[:_MOST_QUERIES]
        if ours != theirs
    ]
    better, worse = (
        sum(sign * (theirs - ours) > 0 for _, ours, theirs in pairs) for sign in (1, -1)
    )
    heading = f"<h2>{page.text(other.name)} against {page.text(first.name)}</h2>"
    note = (
        f'<p class="note">{metric}: {better:,} queries are better, {worse:,} worse, '
        f"{len(pairs) - better - worse:,} equal. Queries with the largest differences:</p>"
    )
    table = page.table(("query", first.name, other.name, "difference"), rows) if rows else ""
    return heading + note + table
