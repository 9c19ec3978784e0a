"""Report of evaluated rankings: a table, curves over depth, and queries that differ most."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically
from t5x_lite.report import chart, page

_TITLES = {"ndcg": "nDCG@k", "recall": "Recall@k", "top": "Questions answered in the first k"}
_MOST_QUERIES = 20


class Measured(NamedTuple):
    """Metrics of one ranking file.

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


def write_page(
    path: Path, measured: Sequence[Measured], result: Mapping[str, Any], *, source: str
) -> None:
    """Write the HTML page of rankings that were evaluated on the same queries."""
    first = measured[0]
    sections = [
        page.facts(
            [
                ("Queries", f"{len(first.by_query):,}", ""),
                *((name, chart.number(value), first.name) for name, value in first.means.items()),
            ][:6]
        ),
        "<h2>Metrics</h2>" + _table(measured, result),
        f'<h2>By depth, and by query</h2><div class="charts">{_curves(measured)}</div>',
        *(_differences(first, other) for other in measured[1:]),
    ]
    written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    document = page.page("Retrieval", f"{source}, written {written}", sections)
    try:
        write_atomically(path, document.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error


def _table(measured: Sequence[Measured], result: Mapping[str, Any]) -> str:
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
