"""HTML of report pages: cards, tables and CSS; and the page of an evaluation suite.

A page needs no network: it has no scripts, fonts and images, and a content security policy that
forbids them. All text from a run is escaped. Colors follow the browser's light or dark preference.
"""

import datetime
import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically
from t5x_lite.report import chart
from t5x_lite.report.chart import Series, line_chart


def text(value: object) -> str:
    """Return a value as escaped HTML text, which may also be used in attributes."""
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
    """Return a card with a chart, title and legend, and optionally a logarithmic switch."""
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
    """Return a row of tiles with label, value and note; the note may be empty."""
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
    """Return an HTML table that compares columns, with best cells in bold."""
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
    """Return an HTML table of samples, which marks predictions that differ from the target."""
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
    """Return the complete HTML document; sections are already HTML."""
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
    """Write the HTML page with the metrics of all data sets of an evaluation suite."""
    mean, sets, missing = result["mean"], result["sets"], result["missing"]
    tiles = [("Sets", f"{len(sets):,}", f"{len(missing)} missing" if missing else "all")]
    tiles += [(name, chart.number(value), "mean") for name, value in mean.items()]
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
