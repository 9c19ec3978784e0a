"""The parts of report pages: cards, tables, HTML, CSS, and charts as SVG.

SVG charts of reports: curves over the training step, bars and histograms.

A curve with more than `MAX_POINTS` points is reduced to the lowest and highest value of every
interval, so that no spike is lost. A value that is not finite is a gap. Tooltips are <title>
elements, which need no script. The page's style sheet sets colors and fonts by the classes line,
dot, hit, grid, axis, x, y, count, c0 .. c5 and dashed.

    line_chart("Loss", [Series(name="training", points=[(1, 9.5), (2, 8.25)])])
    share_bar(0.25)                          # a bar that fills a quarter of its cell
    histogram("Characters", {6: 10, 7: 30})  # 10 pages of 32..63 characters, 30 of 64..127

HTML of report pages: cards, tables and CSS; and the page of an evaluation suite.

A page needs no network: it has no scripts, fonts and images, and a content security policy that
forbids them. All text from a run is escaped. Colors follow the browser's light or dark preference.
"""

import datetime
import html
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically

Number: TypeAlias = int | float
Point: TypeAlias = tuple[int, Number | None]
"""Type of a point: step and value; the value None is a gap in the line."""

MAX_POINTS = 2000
MAX_TOOLTIPS = 250
WIDTH, HEIGHT = 480, 260
LEFT, RIGHT, TOP, BOTTOM = 68, 22, 10, 38
BAR_WIDTH, BAR_HEIGHT = 480, 200
BAR_LEFT, BAR_TOP, BAR_BOTTOM = 8, 20, 30
BAR_GAP = 2.0


@dataclass(frozen=True, kw_only=True)
class Series:
    """Curve of a line chart in a report.

    Attributes:
      name: name of the curve in the legend.
      points: pairs (step, value), by ascending step.
      colour: index of one of the page's six colors; from 6 on, the colors repeat with dashed lines.
      band: triples (step, lowest, highest) of a band around the curve, by ascending step; () for no
        band.
    """

    name: str
    points: Sequence[Point]
    colour: int = 0
    band: Sequence[tuple[int, Number, Number]] = ()

    @property
    def css(self) -> str:
        """The CSS classes for the color and dashes of the curve."""
        return f"c{self.colour % 6}" + (" dashed" if self.colour >= 6 else "")


def number(value: Number, *, digits: int = 4) -> str:
    """Format a number for people, such as 1,000; 12.3k; 2.317; 1.00e-05."""
    size = abs(value)
    if size < 10_000 and value == int(value):
        return f"{value:,.0f}"
    for divisor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if max(divisor, 9999.5) <= size < 1e15:
            return f"{value / divisor:.{digits}g}{unit}"
    return f"{value:.{digits}g}" if 1e-3 <= size < 1e15 else f"{value:.{digits - 2}e}"


def labels(values: Sequence[Number]) -> list[str]:
    """Format numbers with enough digits to distinguish them, at least four."""
    for digits in range(4, 17):
        words = [number(value, digits=digits) for value in values]
        if len(set(words)) == len(set(values)):
            break
    return words


def downsample(points: Sequence[Point], *, limit: int = MAX_POINTS) -> list[Point]:
    """Return up to `limit` points of a curve, with the extreme values of each interval."""
    if len(points) <= limit:
        return list(points)
    stretch = math.ceil(len(points) / ((limit - 2) // 3))
    kept: set[int] = {0, len(points) - 1}
    for start in range(0, len(points), stretch):
        indices = range(start, min(start + stretch, len(points)))
        kept.update([index for index in indices if points[index][1] is None][:1])
        finite = [(value, i) for i in indices if (value := points[i][1]) is not None]
        if finite:
            kept.update((min(finite)[1], max(finite)[1]))
    return [points[index] for index in sorted(kept)]


def ticks(low: Number, high: Number, *, count: int = 5) -> list[float]:
    """Return about `count` round numbers (1, 2 or 5 times a power of ten) within [low, high]."""
    if not high > low:
        return [float(low)]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if raw <= factor * power * (1 + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]


def log_ticks(low: Number, high: Number) -> list[float]:
    """Return round tick positions for a logarithmic axis, such as powers of ten."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if len(decades) > 7:
        decades = decades[:: math.ceil(len(decades) / 7)]
    for factors in ((1,), (1, 2, 5)):
        values = [float(f"{f}e{d}") for d in decades for f in factors]
        inside = [value for value in values if low <= value <= high]
        if len(inside) >= 3:
            return inside
    return ticks(low, high)


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    log: bool = False,
    from_zero: bool = False,
    axis: str = "step",
) -> str:
    """Return an SVG chart of curves over the training step or another integer."""
    values = [value for one in series for _, value in one.points if value is not None]
    values += [end for one in series for _, *ends in one.band for end in ends if not log or end > 0]
    steps = [step for one in series for step, _ in one.points]
    if not values:
        return ""
    low, high = _padded(min(values), max(values), log=log, from_zero=from_zero)
    first, last = (0 if min(steps) <= max(steps) / 2 else min(steps)), max(steps)
    if first == last:
        first, last = max(0, first - 1), last + 1
    scale = math.log10 if log else float
    across = (WIDTH - LEFT - RIGHT) / (last - first)
    up = (HEIGHT - TOP - BOTTOM) / (scale(high) - scale(low))

    def place(step: Number, value: Number) -> tuple[float, float]:
        return LEFT + (step - first) * across, HEIGHT - BOTTOM - (scale(value) - scale(low)) * up

    parts = []
    marks = log_ticks(low, high) if log else ticks(low, high)
    for tick, label in zip(marks, labels(marks), strict=True):
        y = place(first, tick)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="y" x="{LEFT - 7}" y="{y + 4:.1f}">{label}</text>')
    foot = HEIGHT - BOTTOM
    parts.append(f'<path class="axis" d="M{LEFT} {foot}H{WIDTH - RIGHT}"/>')
    marks = [tick for tick in ticks(first, last) if tick == int(tick)]
    for tick, label in zip(marks, labels(marks), strict=True):
        x = place(tick, low)[0]
        parts.append(f'<path class="axis" d="M{x:.1f} {foot}v4"/>')
        parts.append(f'<text class="x" x="{x:.1f}" y="{foot + 18}">{label}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="x name" x="{middle:.0f}" y="{HEIGHT - 3}">{html.escape(axis)}</text>'
    )
    for one in series:
        parts.append(_band(one, place, lowest=low if log else -math.inf))
        parts.append(_curve(one, place))
    label = f"{title}, steps {first:,} to {last:,}"
    return _svg(parts, size=(WIDTH, HEIGHT), label=label)


def share_bar(share: float, *, colour: int = 0) -> str:
    """Return a horizontal SVG bar that fills a fraction of its width."""
    width = 100 * min(max(share, 0.0), 1.0)
    parts = (
        '<rect class="grid" fill="none" width="100" height="8"/>',
        f'<rect class="dot" width="{width:.2f}" height="8"/>',
    )
    more = 'preserveAspectRatio="none" style="height:.8em;min-width:6em" '
    return _svg(parts, size=(100, 8), label=f"{share:.1%}", colour=colour, more=more)


def histogram(title: str, counts: Mapping[int, int], *, colour: int = 0) -> str:
    """Return an HTML card with a histogram that has one bar for each power of two."""
    total = sum(counts.values())
    if not total:
        return ""
    bins = range(min(counts), max(counts) + 1)
    tallest = max(counts.values())
    step = (BAR_WIDTH - 2 * BAR_LEFT) / len(bins)
    room = BAR_HEIGHT - BAR_TOP - BAR_BOTTOM
    every = 1 if len(bins) <= 12 else 2
    parts = []
    for index, bits in enumerate(bins):
        count = counts.get(bits, 0)
        height = room * count / tallest
        x, y = BAR_LEFT + index * step, BAR_TOP + room - height
        tip = html.escape(f"{_range(bits)} characters: {count:,} pages ({count / total:.1%})")
        parts.append(
            f'<rect class="dot" x="{x + BAR_GAP / 2:.1f}" y="{y:.1f}" width="{step - BAR_GAP:.1f}" '
            f'height="{height:.1f}"><title>{tip}</title></rect>'
        )
        if count:
            words = number(count, digits=3 if step > 30 else 2)
            parts.append(
                f'<text class="x count" x="{x + step / 2:.1f}" y="{y - 4:.1f}">{words}</text>'
            )
        if index % every == 0:
            label = html.escape(number(_low(bits), digits=3))
            parts.append(f'<text x="{x:.1f}" y="{BAR_HEIGHT - 12}">{label}</text>')
    parts.append(f'<path class="axis" d="M{BAR_LEFT} {BAR_TOP + room}H{BAR_WIDTH - BAR_LEFT}"/>')
    drawn = _svg(parts, size=(BAR_WIDTH, BAR_HEIGHT), label=title, colour=colour)
    heading = html.escape(title)
    return f'<figure class="card"><figcaption><h3>{heading}</h3></figcaption>{drawn}</figure>'


def _low(bits: int) -> int:
    return 2 ** (bits - 1) if bits else 0


def _range(bits: int) -> str:
    return f"{_low(bits):,} to {2**bits - 1:,}" if bits else "0"


def _svg(
    parts: Sequence[str],
    *,
    size: tuple[int, int],
    label: str,
    colour: int | None = None,
    more: str = "",
) -> str:
    colours = "" if colour is None else f'class="c{colour % 6}" '
    return (
        f'<svg {colours}viewBox="0 0 {size[0]} {size[1]}" {more}role="img" '
        f'aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )


def _padded(low: Number, high: Number, *, log: bool, from_zero: bool) -> tuple[Number, Number]:
    if log:
        room = (high / low) ** 0.04 if high > low else 2.0
        return low / room, high * room
    room = (high - low) * 0.04 if high > low else abs(high) * 0.1 or 1.0
    padded = low - room
    return (0.0 if low >= 0 and (from_zero or padded < 0) else padded), high + room


def _band(
    series: Series, place: Callable[[Number, Number], tuple[float, float]], *, lowest: Number
) -> str:
    if len(series.band) < 2:
        return ""
    band = [
        series.band[0],
        *series.band[1 : -1 : -(-len(series.band) // MAX_POINTS)],
        series.band[-1],
    ]
    upper = [place(step, max(high, lowest)) for step, _, high in band]
    lower = [place(step, max(low, lowest)) for step, low, _ in reversed(band)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*upper, *lower])
    return f'<path class="band {series.css}" d="M{path}Z"/>'


def _curve(series: Series, place: Callable[[Number, Number], tuple[float, float]]) -> str:
    points = downsample(series.points)
    stretches: list[list[tuple[int, Number]]] = [[]]
    for step, value in points:
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append((step, value))
    finite = [point for stretch in stretches for point in stretch]
    dotted = len(finite) <= 30
    parts = [f'<g class="{series.css}">']
    for stretch in stretches:
        if len(stretch) > 1:
            path = "L".join("{:.1f} {:.1f}".format(*place(*point)) for point in stretch)
            parts.append(f'<path class="line" d="M{path}"/>')
        elif stretch and not dotted:
            x, y = place(*stretch[0])
            parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>')
    every = math.ceil(len(finite) / MAX_TOOLTIPS) or 1
    for step, value in finite[::every]:
        x, y = place(step, value)
        kind, radius = ("dot", 3) if dotted else ("hit", 7)
        tip = f"step {step:,}: {series.name} {value:.6g}"
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
            f"<title>{html.escape(tip)}</title></circle>"
        )
    return "".join([*parts, "</g>"])


def text(value: object) -> str:
    """Return a value as text that is escaped for HTML."""
    return html.escape(str(value), quote=True)


def chart_card(
    title: str,
    series: Sequence[Series],
    *,
    name: str,
    offer_log: bool = False,
    from_zero: bool = False,
    axis: str = "step",
) -> str:
    """Return an HTML card with a chart and its legend, and optionally a logarithmic axis."""
    chart = line_chart(title, series, from_zero=from_zero, axis=axis)
    if not chart:
        return ""
    values = [value for one in series for _, value in one.points if value is not None]
    keys = "".join(
        f'<li class="{one.css}"><svg viewBox="0 0 16 8"><path class="line" d="M0 4H16"/>'
        f"</svg>{text(one.name)}</li>"
        for one in series
    )
    body = f'<div class="linear">{chart}</div>'
    switch = ""
    if offer_log and min(values) > 0 and max(values) > min(values):
        switch = f'<label class="switch"><input type="checkbox" id="{name}"> log scale</label>'
        body += f'<div class="log">{line_chart(title, series, log=True, axis=axis)}</div>'
    return (
        f'<figure class="card"><figcaption><h3>{text(title)}</h3>{switch}</figcaption>'
        f'<ul class="legend">{keys}</ul>{body}</figure>'
    )


def command(line: str) -> str:
    """Return the HTML of a command line, with line breaks between options."""
    words = " ".join(f"<span>{text(word)}</span>" for word in re.split(r" (?=--)", line))
    return f'<pre class="command">{words}</pre>'


def facts(items: Iterable[tuple[str, str, str]]) -> str:
    """Return the HTML of a row of tiles, each with label, value and an optional note."""
    tiles = (
        f"<div><dt>{text(label)}</dt><dd>{text(value)}"
        + (f"<small>{text(note)}</small>" if note else "")
        + "</dd></div>"
        for label, value, note in items
    )
    return f'<dl class="facts">{"".join(tiles)}</dl>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with words in the first column and numbers in the other columns."""
    head = "".join(f'<th scope="col">{text(heading)}</th>' for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="card scroll"><table class="numbers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def compared(
    headings: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str], Collection[int]]],
    *,
    numbers: bool = True,
) -> str:
    """Return an HTML table with one column for each heading, and the best values in bold."""
    head = "".join(f'<th scope="col">{text(heading)}</th>' for heading in headings)
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th>'
        + "".join(
            f"<td{' class=best' if i in best else ''}>{text(cell)}</td>"
            for i, cell in enumerate(cells)
        )
        + "</tr>"
        for name, cells, best in rows
    )
    kind = "numbers" if numbers else "words"
    return (
        f'<div class="card scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def samples_table(samples: Sequence[Mapping[str, str]]) -> str:
    """Return an HTML table of predictions; predictions that differ from the target are marked."""
    rows = []
    for sample in samples:
        same = sample["prediction"] == sample["targets"]
        mark = "" if same else '<span class="mark">differs</span> '
        rows.append(
            f"<tr{'' if same else ' class=differs'}>"
            f'<td data-label="inputs"><div>{text(sample["inputs"])}</div></td>'
            f'<td data-label="targets"><div>{text(sample["targets"])}</div></td>'
            f'<td data-label="prediction"><div>{mark}{text(sample["prediction"])}</div></td></tr>'
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("inputs", "targets", "prediction"))
    return (
        f'<div class="card"><table class="samples"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Return a complete HTML document with a title and sections; the sections are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{text(title)}</h1><p>{text(subtitle)}</p></header>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


# Curve colors: Okabe and Ito's palette for color-blind readers, lightened for dark pages.
_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#5c6876;
--rule:#e2e6eb;--bad:#b3261e;--bad-card:#fdf0ee;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#a9568a;
--c4:#8a6d00;--c5:#3f8fc4}
@media(prefers-color-scheme:dark){:root{--page:#11151a;--card:#191f26;--ink:#e4e9ef;--soft:#98a4b2;
--rule:#2b333d;--bad:#ff9d92;--bad-card:#2e1c1b;--c0:#56b4e9;--c1:#f0883e;--c2:#3fc79a;--c3:#dd8fc0;
--c4:#e0c341;--c5:#8fc7ee}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 56px}
h1{margin:0;font-size:26px;line-height:1.25;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{margin:32px 0 12px;font-size:18px}h3{margin:0;font-size:15px}
header p{margin:4px 0 20px;color:var(--soft);overflow-wrap:anywhere}
.card,.facts div,.warnings,details{background:var(--card);
border:1px solid var(--rule);border-radius:10px}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:12px;margin:0}
.facts div{padding:12px 16px}.facts dt{color:var(--soft);font-size:13px}
.facts dd{margin:0;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums}
.facts small{display:block;font-size:12.5px;font-weight:400;color:var(--soft)}
.warnings{margin:16px 0 0;padding:12px 16px 12px 34px;background:var(--bad-card);
border-color:var(--bad)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(430px,100%),1fr));gap:16px}
.card{margin:0;padding:14px 16px;min-width:0}
figcaption{display:flex;justify-content:space-between;align-items:baseline;gap:12px}
.switch{font-size:13px;color:var(--soft);white-space:nowrap;cursor:pointer}
.log,.card:has(input:checked) .linear{display:none}.card:has(input:checked) .log{display:block}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;margin:4px 0 8px;padding:0;list-style:none;
font-size:13px;color:var(--soft)}
.legend svg{width:16px;height:8px;margin-right:6px;vertical-align:1px}
svg{display:block;width:100%;height:auto}.legend svg{display:inline-block}
svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
.y{text-anchor:end}.x{text-anchor:middle}
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}
.line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.dashed .line,.dashed.line{stroke-dasharray:6 4}.count{font-size:11px}
.band{fill:var(--c);fill-opacity:.16;stroke:none}
.dot{fill:var(--c)}.hit{fill:transparent}.hit:hover,.dot:hover{fill:var(--c);stroke:var(--card);stroke-width:2}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
table{width:100%;border-collapse:collapse;font-size:14px}.scroll{overflow-x:auto}
th{text-align:left;color:var(--soft);font-size:13px;font-weight:500}
th,td{padding:8px 12px 8px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tbody tr:last-child td{border-bottom:0}
.words td{overflow-wrap:anywhere;min-width:7em}
.words tbody th{white-space:nowrap}
tbody th{color:var(--ink);font-size:14px;font-weight:400}
tbody tr:last-child th{border-bottom:0}
.numbers{font-variant-numeric:tabular-nums}
.numbers th:not(:first-child),.numbers td:not(:first-child){text-align:right;white-space:nowrap}
.samples{table-layout:fixed}.samples th:first-child{width:50%}
.samples td div{max-height:12em;overflow:auto;overflow-wrap:anywhere;white-space:pre-wrap}
.differs td:last-child{color:var(--bad)}
.mark{padding:1px 7px;border:1px solid currentColor;border-radius:9px;font-size:11.5px}
details{margin-top:10px;padding:12px 16px}summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;
font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
.command{margin:0 0 16px;padding:10px 14px;white-space:pre-wrap;overflow-wrap:anywhere;
background:var(--card);border:1px solid var(--rule);border-radius:10px}
.command span{display:inline-block;max-width:100%;white-space:pre-wrap}
td.best{font-weight:600}
.note{color:var(--soft);font-size:14px}
@media(max-width:640px){svg text{font-size:15px}main{padding:18px 12px 40px}
.facts{grid-template-columns:1fr 1fr;gap:8px}
.facts dd{font-size:19px}.card{padding:12px}.samples thead{display:none}
.samples tr,.samples td{display:block}.samples td{border:0;padding:3px 0}
.samples tr{padding:8px 0;border-bottom:1px solid var(--rule)}
.samples td::before{content:attr(data-label);display:block;color:var(--soft);font-size:12px}}
@media print{body{background:#fff}.card,details{break-inside:avoid}.switch{display:none}}
"""


def write_suite_page(path: Path, suite: str, result: Mapping[str, Any]) -> None:
    """Write an HTML page with the metrics of all data sets of a benchmark suite."""
    mean, sets, missing = result["mean"], result["sets"], result["missing"]
    tiles = [("Sets", f"{len(sets):,}", f"{len(missing)} missing" if missing else "all")]
    tiles += [(name, number(value), "mean") for name, value in mean.items()]
    rows = [
        [name, *(f"{value:.4f}" for value in values.values())]
        for name, values in [*sets.items(), ("mean", mean)]
    ]
    body = [facts(tiles), "<h2>Sets</h2>", table(["set", *mean], rows)]
    if missing:
        names = text(", ".join(missing))
        body.append(f'<p class="note">The mean excludes the missing sets: {names}.</p>')
    written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    document = page(suite.upper(), f"written {written}", body)
    try:
        write_atomically(path, document.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error
