"""SVG charts of reports: curves over the training step, bars and histograms.

A curve with more than `MAX_POINTS` points is reduced to the lowest and highest value of every
interval, so that no spike is lost. A value that is not finite is a gap. Tooltips are <title>
elements, which need no script. The page's style sheet sets colors and fonts by the classes line,
dot, hit, grid, axis, x, y, count, c0 .. c5 and dashed.

    line_chart("Loss", [Series(name="training", points=[(1, 9.5), (2, 8.25)])])
    share_bar(0.25)                          # a bar that fills a quarter of its cell
    histogram("Characters", {6: 10, 7: 30})  # 10 pages of 32..63 characters, 30 of 64..127
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

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
    """Curve of a chart.

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
    """Format numbers with at least four digits, and as many as are needed to distinguish them."""
    for digits in range(4, 17):
        words = [number(value, digits=digits) for value in values]
        if len(set(words)) == len(set(values)):
            break
    return words


def downsample(points: Sequence[Point], *, limit: int = MAX_POINTS) -> list[Point]:
    """Return up to `limit` points: the lowest and highest value of each interval, and gaps."""
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
    """Return powers of ten within [low, high], and their multiples by 2 and 5 if there are few."""
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
    """Return the SVG area of a curve's band, limited to `lowest` on a logarithmic axis."""
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
