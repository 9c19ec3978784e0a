"""Bars for the report of `t5x-lite c4`: shares in a table, and histograms of lengths, as SVG.

Pure functions of numbers to strings; colours and fonts are those of `report.page`. A
tooltip is a <title> element, which needs no script.

    share_bar(0.25)                          # a bar that fills a quarter of its cell
    histogram("Characters", {6: 10, 7: 30})  # 10 pages of 32..63 characters, 30 of 64..127
"""

from collections.abc import Mapping

from t5x_lite.report.chart import number
from t5x_lite.report.page import text

_WIDTH, _HEIGHT = 480, 200
_LEFT, _TOP, _BOTTOM = 8, 20, 30
_GAP = 2.0


def share_bar(share: float, *, colour: int = 0) -> str:
    """A horizontal bar.

    Args:
      share: how much of the cell it fills, 0 to 1.
      colour: 0 .. 5, an index into the page's colours.
    """
    width = 100 * min(max(share, 0.0), 1.0)
    return (
        f'<svg class="c{colour % 6}" viewBox="0 0 100 8" preserveAspectRatio="none" '
        f'style="height:.8em;min-width:6em" role="img" aria-label="{share:.1%}">'
        f'<rect class="grid" fill="none" width="100" height="8"/>'
        f'<rect class="dot" width="{width:.2f}" height="8"/></svg>'
    )


def histogram(title: str, counts: Mapping[int, int], *, colour: int = 0) -> str:
    """A card with one bar for each power of two.

    Args:
      title: the heading.
      counts: bits -> pages of 2**(bits-1) to 2**bits - 1 characters (0: none).
      colour: 0 .. 5.

    Returns:
      A <figure>; empty where there is no page.
    """
    total = sum(counts.values())
    if not total:
        return ""
    bins = range(min(counts), max(counts) + 1)
    tallest = max(counts.values())
    step = (_WIDTH - 2 * _LEFT) / len(bins)
    room = _HEIGHT - _TOP - _BOTTOM
    every = 1 if len(bins) <= 12 else 2
    parts = []
    for index, bits in enumerate(bins):
        count = counts.get(bits, 0)
        height = room * count / tallest
        x, y = _LEFT + index * step, _TOP + room - height
        tip = text(f"{_range(bits)} characters: {count:,} pages ({count / total:.1%})")
        parts.append(
            f'<rect class="dot" x="{x + _GAP / 2:.1f}" y="{y:.1f}" width="{step - _GAP:.1f}" '
            f'height="{height:.1f}"><title>{tip}</title></rect>'
        )
        if index % every == 0:
            label = text(number(_low(bits), digits=3))
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}">{label}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP + room}H{_WIDTH - _LEFT}"/>')
    return (
        f'<figure class="card"><figcaption><h3>{text(title)}</h3></figcaption>'
        f'<svg class="c{colour % 6}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{text(title)}">{"".join(parts)}</svg></figure>'
    )


def _low(bits: int) -> int:
    return 2 ** (bits - 1) if bits else 0


def _range(bits: int) -> str:
    return f"{_low(bits):,} to {2**bits - 1:,}" if bits else "0"
