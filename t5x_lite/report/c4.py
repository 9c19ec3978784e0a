"""Report of a `t5x-lite c4` run: report.html for people and stats.json for programs.

    stats.json    the configuration and every count of the tally; only the largest domains
    report.html   the funnel (pages and bytes after every stage), dropped pages of each rule with
                  samples, lengths, splits, languages, the largest domains, damaged records

The page is one file without scripts. All text from the crawl is untrusted and therefore escaped.
Both files depend only on the tally and the configuration, without dates or durations, so equal runs
have equal reports.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5x_lite.c4.config import OPTIONS, SOURCES, option
from t5x_lite.c4.pages import STAGES, Tally
from t5x_lite.core.remote import open_path, write_whole
from t5x_lite.report import page as report_page
from t5x_lite.report.page import histogram, share_bar, text

STATS, REPORT = "stats.json", "report.html"
DOMAINS_KEPT = 1000
"""Maximum number of domains in stats.json; a complete crawl has millions of domains."""
_DOMAINS_SHOWN = 50
_DAMAGED_SHOWN = 100
_KEPT_SHOWN = 5
_STAGE_WORDS = {
    "read": "read",
    "length": "page length",
    "domains": "listed domains",
    "url_dedup": "deduplicate URLs",
    "urls": "listed URLs",
    "paragraphs": "paragraphs",
    "clean": "clean lines",
    "dedup": "deduplicate text",
    "language": "language",
    "bad_words": "bad words",
}


def write_report(output: str, tally: Tally, about: Mapping[str, Any]) -> None:
    """Write the counts of a C4 pipeline run to stats.json and report.html."""
    directory = open_path(output)
    content = json.dumps(stats(tally, about), ensure_ascii=True, indent=1) + "\n"
    write_whole(directory / STATS, content.encode())
    # A lone surrogate of a page becomes "\udc80": visible, and no error.
    write_whole(directory / REPORT, page(tally, about).encode("utf-8", "backslashreplace"))


def stats(tally: Tally, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a C4 pipeline run, its settings and its largest domains, as JSON."""
    counts = tally.to_json()
    counts["domains"] = dict(largest(tally.domains, DOMAINS_KEPT))
    return {**about, "num_domains": num_domains(tally), **counts}


def num_domains(tally: Tally) -> int:
    """Return the total number of domains that a C4 pipeline run counted."""
    return tally.notes.get("domains", len(tally.domains))


def largest(counts: Counter[str], number: int) -> list[tuple[str, int]]:
    """Return the entries of a mapping with the largest counts; ties are sorted by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def page(tally: Tally, about: Mapping[str, Any]) -> str:
    """Return the HTML report of a C4 pipeline run."""
    words = " ".join(str(about[name]) for name in ("preset", "variant") if about.get(name))
    return report_page.page(
        "C4 from Common Crawl",
        f"{words}: what was kept, and what was dropped and why" if words else "",
        [
            report_page.facts(_facts(tally)),
            _warnings(tally),
            _funnel(tally),
            _kept(tally),
            _rules(tally, about),
            _samples(tally),
            _lengths(tally),
            _written(tally),
            _domains(tally),
            _damaged(tally),
            _about(about),
        ],
    )


def size(count: int) -> str:
    """Return a number of bytes with a unit, such as 512 bytes, 1.50 kB or 2.00 GB."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count:,} bytes" if unit == "bytes" else f"{value:.3g} {unit}"


def _facts(tally: Tally) -> Iterator[tuple[str, str, str]]:
    first, last = _ends(tally)
    pages, kept = first["pages_in"], last["pages_out"]
    yield "Pages read", f"{pages:,}", ""
    yield "Pages kept", f"{kept:,}", _percent(kept, pages)
    yield "Text read", size(first["bytes_in"]), ""
    yield "Text kept", size(last["bytes_out"]), _percent(last["bytes_out"], first["bytes_in"])
    for split, counts in list(tally.splits.items())[:4] if len(tally.splits) <= 4 else []:
        yield f"Pages in {split}", f"{counts['pages']:,}", size(counts["bytes"])
    if tally.damage:
        yield "Damaged records", f"{tally.damage.total():,}", "see below"


def _ends(tally: Tally) -> tuple[Counter[str], Counter[str]]:
    names = stage_names(tally)
    if not names:
        return Counter(), Counter()
    return tally.stages[names[0]], tally.stages[names[-1]]


def stage_names(tally: Tally) -> list[str]:
    """Return the names of the C4 pipeline stages that have counts, in pipeline order."""
    return [stage for stage in STAGES if stage in tally.stages]


def _warnings(tally: Tally) -> str:
    first, last = _ends(tally)
    lines = []
    if not first["pages_in"]:
        lines.append("The input has no pages.")
    elif not last["pages_out"]:
        lines.append("No page was kept; the table below shows the rules that dropped the pages.")
    elif not tally.splits.get("validation", {}).get("pages", 1):
        lines.append(
            "The validation split is empty, because it has only about one page in a thousand."
        )
    if tally.damage:
        lines.append(f"{tally.damage.total():,} damaged records were skipped; see below.")
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>' if lines else ""


def _funnel(tally: Tally) -> str:
    first, _ = _ends(tally)
    read, volume = first["pages_in"], first["bytes_in"]
    rows = []
    for stage in stage_names(tally):
        counts = tally.stages[stage]
        fell = counts["pages_in"] - counts["pages_out"]
        cells = [
            f"{counts['pages_in']:,}",
            f"{fell:,}",
            f"{counts['pages_out']:,}",
            _percent(counts["pages_out"], read),
            size(counts["bytes_in"]),
            size(counts["bytes_out"]),
            _percent(counts["bytes_out"], volume),
        ]
        bar = share_bar(counts["pages_out"] / read if read else 0.0)
        rows.append((_STAGE_WORDS.get(stage, stage), bar, cells))
    headings = ("stage", "", "pages in", "dropped", "pages out", "of all", "text in", "text out")
    return "<h2>The funnel</h2>" + _bar_table((*headings, "of all"), rows)


def _bar_table(headings: tuple[str, ...], rows: list[tuple[str, str, list[str]]]) -> str:
    head = "".join(f'<th scope="col">{text(heading)}</th>' for heading in headings)
    body = "".join(
        f"<tr><td>{text(words)}</td><td>{bar}</td>"
        + "".join(f"<td>{text(cell)}</td>" for cell in cells)
        + "</tr>"
        for words, bar, cells in rows
    )
    return (
        f'<div class="card scroll"><table class="numbers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _kept(tally: Tally) -> str:
    samples = tally.kept_samples
    if not samples:
        return ""
    note = (
        f'<p class="note">{len(samples):,} of {sum(c["pages"] for c in tally.splits.values()):,} '
        "pages, picked by URL hash, and their beginnings.</p>"
    )
    table = _sample_table(samples[:_KEPT_SHOWN])
    if more := samples[_KEPT_SHOWN:]:
        table += f"<details><summary>More kept pages</summary>{_sample_table(more)}</details>"
    return f'<h2>Kept pages</h2>{note}<div class="card">{table}</div>'


def _sample_table(samples: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><td data-label="text"><div>{text(words)}</div></td>'
        f'<td data-label="page"><div>{text(url)}</div></td></tr>'
        for url, words in samples
    )
    return (
        '<table class="samples"><thead><tr><th scope="col">text, truncated</th><th '
        f'scope="col">page</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _rules(tally: Tally, about: Mapping[str, Any]) -> str:
    rows = []
    for stage, rule in _rule_names(tally):
        counts = tally.rules[stage][rule]
        rows.append(
            (
                _rule_words(stage, rule),
                _option_set(stage, rule, about),
                f"{counts['pages']:,}" if counts["pages"] else "",
                size(counts["page_bytes"]) if counts["pages"] else "",
                f"{counts['lines']:,}" if counts["lines"] else "",
                size(counts["line_bytes"]) if counts["lines"] else "",
            )
        )
    if not rows:
        return ""
    note = (
        '<p class="note">The option of t5x-lite c4 changes the rule. Bytes of a page are '
        "counted when the rule drops it. Lines of pages that a later rule dropped are "
        "included.</p>"
    )
    headings = ("rule", "option", "pages", "their text", "lines", "their text")
    return "<h2>What each rule dropped</h2>" + note + report_page.table(headings, rows)


def _rule_words(stage: str, rule: str) -> str:
    return f"{_STAGE_WORDS.get(stage, stage)}: {rule.replace('_', ' ')}"


def _option_set(stage: str, rule: str, about: Mapping[str, Any]) -> str:
    words = option(stage, rule)
    cleaning = about.get("cleaning")
    value = cleaning.get(OPTIONS[stage][rule]) if words and isinstance(cleaning, Mapping) else None
    return f"{words} {value}".strip() if isinstance(value, bool | int | float | str) else words


def _rule_names(tally: Tally) -> list[tuple[str, str]]:
    order = {
        (stage, rule): (STAGES.index(stage), index)
        for stage, rules in SOURCES.items()
        for index, rule in enumerate(rules)
    }
    found = [(stage, rule) for stage, rules in tally.rules.items() for rule in rules]
    return sorted(found, key=lambda name: (order.get(name, (len(STAGES), 0)), name))


def _samples(tally: Tally) -> str:
    parts = []
    for stage, rule in _rule_names(tally):
        samples = tally.samples(stage, rule)
        if not samples:
            continue
        counts = tally.rules[stage][rule]
        what = ", ".join(
            f"{counts[unit]:,} {unit if counts[unit] != 1 else unit[:-1]}"
            for unit in ("pages", "lines")
            if counts[unit]
        )
        source = SOURCES.get(stage, {}).get(rule, "")
        parts.append(
            f"<details><summary>{text(_rule_words(stage, rule))} "
            f"<small>({text(what)})</small></summary>"
            f'<p class="note">{text(source)}</p>{_sample_table(samples)}</details>'
        )
    if not parts:
        return ""
    note = (
        '<p class="note">Samples are selected by URL hash, not by position. The text is the '
        "unfiltered text of the crawl.</p>"
    )
    return "<h2>Samples of what was dropped</h2>" + note + "".join(parts)


def _lengths(tally: Tally) -> str:
    names = stage_names(tally)
    shown = [
        stage
        for index, stage in enumerate(names)
        if index == 0 or tally.stages[stage]["bytes_in"] != tally.stages[stage]["bytes_out"]
    ]
    cards = [
        histogram(f"after {_STAGE_WORDS.get(stage, stage)}", tally.lengths[stage], colour=index)
        for index, stage in enumerate(shown)
    ]
    if not any(cards):
        return ""
    note = (
        '<p class="note">Number of pages by characters of their text; each bar is a power '
        "of two.</p>"
    )
    return f'<h2>Lengths</h2>{note}<div class="charts">{"".join(cards)}</div>'


def _written(tally: Tally) -> str:
    if not tally.splits:
        return ""
    rows = [
        (split, f"{counts['pages']:,}", size(counts["bytes"]))
        for split, counts in sorted(tally.splits.items())
    ]
    found = "<h2>Written</h2>" + report_page.table(("split", "pages", "text"), rows)
    languages = largest(tally.languages, len(tally.languages))
    if len(languages) > 1:
        pages = [(name or "none", f"{count:,}") for name, count in languages]
        found += "<h2>Languages</h2>" + report_page.table(("language", "pages"), pages)
    return found


def _domains(tally: Tally) -> str:
    if not tally.domains:
        return ""
    written = tally.domains.total()
    top = largest(tally.domains, _DOMAINS_SHOWN)
    rows = [
        (name or "none", share_bar(count / written), [f"{count:,}", _percent(count, written)])
        for name, count in top
    ]
    note = f'<p class="note">{num_domains(tally):,} in all; {STATS} has up to {DOMAINS_KEPT:,}.</p>'
    table = _bar_table(("domain", "", "pages", "of all"), rows)
    return f"<h2>The largest domains</h2>{note}{table}"


def _damaged(tally: Tally) -> str:
    if not tally.damage:
        return ""
    reasons = [(reason, f"{count:,}") for reason, count in largest(tally.damage, 100)]
    named = tally.damaged_records[:_DAMAGED_SHOWN]
    rows = [(path, f"{offset:,}", reason) for path, offset, reason in named]
    return (
        '<h2>Damaged records</h2><p class="note">Only these records were skipped; the rest of '
        f"each file was read. {STATS} lists more damaged records.</p>"
        + report_page.table(("reason", "records"), reasons)
        + "<details><summary>Which</summary>"
        + report_page.table(("file", "byte", "reason"), rows)
        + "</details>"
    )


def _about(about: Mapping[str, Any]) -> str:
    if not about:
        return ""
    words = text(json.dumps(about, indent=2, ensure_ascii=False))
    return f"<details><summary>Configuration</summary><pre>{words}</pre></details>"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"
