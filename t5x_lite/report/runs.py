"""A work directory in one HTML page: the task's metric, curves, throughput, samples, warnings.

Reads what training wrote (`report.history`) and nothing else; needs no model, checkpoint or
network. The page names the task, the command and the options of the run.

Worked example: `write_report("runs/tiny")` writes runs/tiny/report.html and returns its path.
`report.compare` puts several runs on one page.
"""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically
from t5x_lite.report import chart as report_chart
from t5x_lite.report import page as report_page
from t5x_lite.report.history import Run, read_run
from t5x_lite.report.settings import option_lines
from t5x_lite.train import goodput

TITLES = {
    "loss": "Loss",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens per second",
    "steps_per_second": "Steps per second",
    "accuracy": "Accuracy",
    "z_loss": "z-loss",
    "goodput": "Share of the time by cause",
    "mfu": "Model FLOPs utilization",
    "data_wait": "Share of the time waiting for data",
}
"""Charts in this order behind those of the task's metric, the others after them by name."""
LOG_OFFERED = ("loss", "learning_rate", "gradient_norm", "perplexity")
_OF_MACHINE = (
    *("tokens_per_second", "steps_per_second", "mfu", "data_wait", "epoch"),
    *("slowest_host", "slowest_host_seconds", *goodput.FIELDS),
)
_MAX_SAMPLES = 50


def write_report(
    workdir: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path:
    """Writes the report of one run, atomically.

    Args:
      workdir: the directory that training wrote.
      output: the HTML file; workdir/report.html if None.

    Returns:
      The path of the page.

    Raises:
      InputError: the directory or its metrics.jsonl is missing, a line is malformed (named as
        file:line), or the page cannot be written.
    """
    run = read_run(workdir)
    sections = [
        command_of(run),
        report_page.facts(_facts(run)),
        _warnings(run),
        _charts(run),
        _evaluation(run),
        _samples(run),
        _options(run),
    ]
    path = Path(output) if output is not None else run.directory / "report.html"
    return write_page(path, report_page.page(_title(run), _subtitle(run), sections))


def written_now() -> str:
    """When the page is written, as its reader sees it."""
    return datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def write_page(path: Path, page: str) -> Path:
    """Writes a page, atomically.

    Raises:
      InputError: it cannot be written.
    """
    try:
        write_atomically(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot write the report ({error.strerror}): give another output file"
        ) from error
    return path


def _title(run: Run) -> str:
    """The run and its task: "sst2: tasks.glue:sst2"."""
    return f"{run.name}: {run.task}" if run.task else run.name


def _subtitle(run: Run) -> str:
    """Model, objective and checkpoint that the run began with, and when the page was written."""
    kinds = [_kind(run.config.get(part)) for part in ("model", "objective")]
    words = [kind for kind in kinds if kind]
    init = run.config.get("init")
    if isinstance(init, dict) and init.get("checkpoint"):
        words.append(f"from {init['checkpoint']}")
    words.append(f"written {written_now()}")
    return f"Training report. {', '.join(words)}"


def _kind(part: Any) -> str:
    """The class of a part of the config, without its module: "T5Config"."""
    name = part.get("type") if isinstance(part, dict) else None
    return name.rpartition(":")[2] if isinstance(name, str) else ""


def command_of(run: Run) -> str:
    """The command of the newest start, and those before it."""
    commands = [start.command for start in run.starts if start.command]
    if not commands:
        return ""
    newest = commands[-1]
    shown = report_page.command(newest)
    if before := list(dict.fromkeys(c for c in commands[:-1] if c != newest)):
        lines = report_page.text("\n".join(before))
        shown += f"<details><summary>Earlier commands</summary><pre>{lines}</pre></details>"
    return shown


def _facts(run: Run) -> list[tuple[str, str, str]]:
    """The tiles at the top: (label, value, note)."""
    number = report_chart.number
    last, planned = run.last_step, run.config.get("steps")
    items = []
    # The task's metric and the held-out loss say most; the table below has all of them.
    for name in run.headlines():
        step, value = run.best(name)
        items.append((f"Best {words_of(name)}", number(value), f"at step {step:,}"))
    items.append(("Last step", f"{last:,}", f"of {planned:,}" if isinstance(planned, int) else ""))
    if loss := run.finite("loss"):
        items.append(("Training loss", number(loss[-1][1]), f"at step {loss[-1][0]:,}"))
    items += _totals(run)
    parameters = run.finite("num_parameters")
    count = parameters[-1][1] if parameters else run.config.get("num_parameters")
    if isinstance(count, int | float) and 0 < count < 1e15:
        items.append(("Parameters", number(float(f"{count:.4g}")), ""))
    return items


def _totals(run: Run) -> list[tuple[str, str, str]]:
    """Time and tokens, reckoned from the measured rates."""
    number, last, items = report_chart.number, run.last_step, []
    steps = {step: rate for step, rate in run.finite("steps_per_second") if rate > 0}
    tokens = dict(run.finite("tokens_per_second"))
    if steps:
        seconds = last * sum(1 / rate for rate in steps.values()) / len(steps)
        duration = str(datetime.timedelta(seconds=round(min(seconds, 1e12))))
        items.append(("Training time", duration, "about; without compiling, evaluation"))
    if tokens:
        items.append(("Tokens per second", number(sum(tokens.values()) / len(tokens)), "mean"))
    if each := [tokens[step] / steps[step] for step in steps if step in tokens]:
        seen = last * sum(each) / len(each)
        items.append(("Tokens seen", number(float(f"{seen:.3g}")), "about"))
    return items


def _warnings(run: Run) -> str:
    lines = []
    for name, curve in run.curves.items():
        steps = [step for step, value in curve.items() if value is None]
        if steps:
            listed = ", ".join(f"{step:,}" for step in steps[:10])
            more = f" and {len(steps) - 10:,} more" if len(steps) > 10 else ""
            plural = "s" if len(steps) > 1 else ""
            lines.append(f"{name} was not a finite number at step{plural} {listed}{more}.")
    for before, after in run.restarts:
        lines.append(f"The run was restarted: step {before:,} was followed by step {after:,}.")
    if run.partial:
        lines.append("The last line of metrics.jsonl is incomplete and was left out.")
    if not lines:
        return ""
    items = "".join(f"<li>{report_page.text(line)}</li>" for line in lines)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>'


def charts_of(curves: dict[str, list[report_chart.Series]], *, first: Sequence[str]) -> str:
    """Charts under two headings: the model's, and those of the machine.

    Args:
      curves: base name of a metric -> its curves.
      first: base names whose charts come first.
    """
    order = {name: i for i, name in enumerate(dict.fromkeys([*first, *TITLES]))}
    cards: dict[bool, list[str]] = {False: [], True: []}
    for base in sorted(curves, key=lambda base: (order.get(base, len(order)), base)):
        card = report_page.chart_card(
            title_of(base),
            curves[base],
            name=f"log{len(cards[False])}",
            offer_log=base in LOG_OFFERED,
            from_zero=base.endswith("_per_second"),
        )
        if card:
            cards[base in _OF_MACHINE].append(card)
    sections = [
        f'<h2>{heading}</h2><div class="charts">{"".join(cards[of_machine])}</div>'
        for heading, of_machine in (("Curves", False), ("Speed and time", True))
        if cards[of_machine]
    ]
    return "\n".join(sections) or '<p class="note">No metrics were logged yet.</p>'


def charted(run: Run) -> dict[str, dict[str, str]]:
    """Base name of a metric -> split, or "training" -> its full name, of what a chart shows."""
    groups: dict[str, dict[str, str]] = {}
    for name in run.curves:
        if run.scored_alone(name):
            continue  # the same curve again
        split, slash, base = name.partition("/")
        groups.setdefault(base if slash else name, {})[split if slash else "training"] = name
    for name in ("num_parameters", *goodput.FIELDS[1:]):
        groups.pop(name, None)
    if "tokens_per_second" in groups:
        groups.pop("steps_per_second", None)  # the same curve, but for the scale
    return groups


def _charts(run: Run) -> str:
    """A chart for every metric, with training and every split as its curves."""
    groups = charted(run)
    known = ["training", "validation"]
    others = sorted({split for group in groups.values() for split in group} - set(known))
    colours = {split: index for index, split in enumerate(known + others)}
    curves = {
        base: [
            report_chart.Series(
                name=split, points=list(run.curves[group[split]].items()), colour=colours[split]
            )
            for split in sorted(group, key=colours.__getitem__)
        ]
        for base, group in groups.items()
    }
    if "goodput" in curves:
        curves["goodput"] = _time_shares(run)
    return charts_of(curves, first=base_names(run.headlines()))


def _time_shares(run: Run) -> list[report_chart.Series]:
    """Shares of the time since the run began: in steps, and the largest of those that were lost."""
    last = {name: run.finite(name)[-1][1] for name in goodput.FIELDS[1:-1] if run.finite(name)}
    largest = sorted(last, key=lambda name: -last[name])[:4]
    return [
        report_chart.Series(
            name="training steps" if name == "goodput" else words_of(name.removeprefix("lost_to_")),
            points=list(run.curves[name].items()),
            colour=colour,
        )
        for colour, name in enumerate(["goodput", *largest])
    ]


def base_names(names: Sequence[str]) -> list[str]:
    """The names without their split: "validation/glue_rte/accuracy" is "glue_rte/accuracy"."""
    return [name.partition("/")[2] for name in names]


def _evaluation(run: Run) -> str:
    headlines = run.headlines()
    rows = []
    for name in [*headlines, *sorted(set(run.measured) - set(headlines))]:
        (step, value), last, number = run.best(name), run.finite(name)[-1], report_chart.number
        rows.append((name, number(last[1]), f"{last[0]:,}", number(value), f"{step:,}"))
    if not rows:
        return ""
    headings = ("metric", "last", "at step", "best", "at step")
    return "<h2>Evaluation</h2>" + report_page.table(headings, rows)


def _samples(run: Run) -> str:
    samples = run.samples
    if not samples:
        return ""
    differing = sum(sample["prediction"] != sample["targets"] for sample in samples)
    note = f"Step {run.samples_step:,}: {len(samples):,} samples, "
    note += f"{differing:,} differ from their targets."
    if len(samples) > _MAX_SAMPLES:
        note += f" The first {_MAX_SAMPLES} are shown."
    shown = report_page.samples_table(samples[:_MAX_SAMPLES])
    return f'<h2>Sample predictions</h2><p class="note">{note}</p>{shown}'


def _options(run: Run) -> str:
    """The config by the names of its options, and the versions that trained it."""
    if not run.config:
        return ""
    words = report_page.text("\n".join(option_lines(run.config)))
    found = f"<details><summary>Options</summary><pre>{words}</pre></details>"
    if run.starts and (versions := run.starts[-1].versions):
        rows = [("devices", run.starts[-1].devices), *versions.items()]
        table = report_page.table(("version of", ""), rows)
        found += f"<details><summary>Versions and devices</summary>{table}</details>"
    return found


def words_of(name: str) -> str:
    """A metric's name in words: "validation glue rte accuracy"."""
    return name.replace("/", " ").replace("_", " ")


def title_of(base: str) -> str:
    """The heading of a metric; that of a mixture's task names the task: "glue_rte: accuracy"."""
    if base in TITLES:
        return TITLES[base]
    task, slash, metric = base.rpartition("/")
    words = words_of(metric)
    return f"{task}: {words}" if slash else words[:1].upper() + words[1:]
