"""A work directory in one HTML page: curves, throughput, metrics, sample predictions, warnings.

Reads what training wrote and nothing else; needs no model, checkpoint or network:

    metrics.jsonl   {"step": 100, "time": 1.7e9, "loss": 5.4, "validation/loss": 5.5} a line;
                    null is a number that was not finite
    config.json     the resolved experiment; optional
    samples.jsonl   {"step", "inputs", "targets", "prediction"} a line; optional

A run that was killed leaves its traces here: the last line of a file may be incomplete, and is
then left out; a step may be logged twice, and then the later line wins.

Worked example: `write_report("runs/tiny")` writes runs/tiny/report.html and returns its path.
"""

import datetime
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically
from t5x_lite.metrics.selection import Mode, best_step, matching, mode_of
from t5x_lite.report import chart as report_chart
from t5x_lite.report import page as report_page

_TITLES = {
    "loss": "Loss",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens per second",
    "steps_per_second": "Steps per second",
    "accuracy": "Accuracy",
}
"""Charts in this order, the others after them by name."""
_LOG_OFFERED = ("loss", "learning_rate", "gradient_norm", "perplexity")
_SCORE = "score"
_MAX_SAMPLES = 50
_LARGEST = 1e300  # what is beyond has diverged, and an axis that spans it would overflow


@dataclass(kw_only=True)
class _History:
    """What metrics.jsonl says: every metric's values by step, and what went wrong.

    Attributes:
      curves: metric name -> step -> value, None where it was not finite.
      restarts: (last step before, first step after) of every restart that repeated steps.
      partial: the last line was incomplete.
      best: the metric, or the pattern, that checkpoints.best of the config names; or "".
      lowest_is_best: whether the config says so of it; else its name says.
    """

    curves: dict[str, dict[int, float | None]] = field(default_factory=dict)
    restarts: list[tuple[int, int]] = field(default_factory=list)
    partial: bool = False
    best: str = ""
    lowest_is_best: bool = False

    @property
    def last_step(self) -> int:
        return max((step for curve in self.curves.values() for step in curve), default=0)

    def mode(self, name: str) -> Mode:
        """Whether the highest or the lowest value of a metric is best."""
        lowest = self.lowest_is_best and matching(self.best, [name])
        return mode_of(name, "min" if lowest else None)


def write_report(workdir: str | os.PathLike, output: str | os.PathLike | None = None) -> Path:
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
    directory = Path(workdir)
    metrics = directory / "metrics.jsonl"
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory: give the workdir of a training run")
    if not metrics.is_file():
        raise InputError(f"{metrics} is missing: give a workdir that `t5x-lite train` wrote to")
    history = _read_history(metrics)
    config = _read_config(directory / "config.json")
    history.best, history.lowest_is_best = _choices(config)
    samples_step, samples = _read_samples(directory / "samples.jsonl")
    sections = [
        report_page.facts(_facts(history, config)),
        _warnings(history),
        _charts(history),
        _evaluation(history),
        _samples(samples_step, samples),
        _config(config),
    ]
    title = directory.resolve().name or "run"
    written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    page = report_page.page(title, f"Training report, written {written}", sections)
    return _write(Path(output) if output is not None else directory / "report.html", page)


def _write(path: Path, page: str) -> Path:
    try:
        write_atomically(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot write the report ({error.strerror}): give another output file"
        ) from error
    return path


def _read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yields ("file:line", object) a line; None for a last line that was cut by a kill."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot read it ({error.strerror}): check the file") from error
    for index, line in enumerate(lines):
        where = f"{path}:{index + 1}"
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8"))
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            if index == len(lines) - 1:
                yield where, None
                return
            raise InputError(f"{where}: not a line of JSON: repair or remove it") from error
        if not isinstance(value, dict):
            raise InputError(f"{where}: not a JSON object: repair or remove the line")
        yield where, value


def _step(record: Mapping[str, Any], where: str) -> int:
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 10**15:
        raise InputError(f'{where}: "step" must be a whole number: repair or remove the line')
    return step


def _value(value: Any, name: str, where: str) -> float | None:
    """The number, or None where it is not finite."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f'{where}: "{name}" must be a number or null: repair or remove the line')
    return float(value) if -_LARGEST < value < _LARGEST else None


def _read_history(path: Path) -> _History:
    history = _History()
    before: tuple[int, set[str]] = (0, set())
    for where, record in _read_objects(path):
        if record is None:
            history.partial = True
            break
        step = _step(record, where)
        values = {
            name: _value(value, name, where)
            for name, value in record.items()
            if name not in ("step", "time")
        }
        training = {name for name in values if "/" not in name}
        if step < before[0] or (step == before[0] and training & before[1]):
            history.restarts.append((before[0], step))
        before = (step, training | (before[1] if step == before[0] else set()))
        for name, value in values.items():
            history.curves.setdefault(name, {})[step] = value
    history.curves = {name: dict(sorted(curve.items())) for name, curve in history.curves.items()}
    return history


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # JSONDecodeError and UnicodeDecodeError too
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: not readable JSON: repair or remove the file") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}:1: not a JSON object: repair or remove the file")
    return config


def _read_samples(path: Path) -> tuple[int, list[dict[str, str]]]:
    """The newest step's samples; one that was written again after a restart counts once."""
    newest, samples = 0, {}
    if not path.exists():
        return 0, []
    for where, record in _read_objects(path):
        if record is None:
            break
        step = _step(record, where)
        if missing := {"inputs", "targets", "prediction"} - record.keys():
            raise InputError(f"{where}: no {sorted(missing)[0]!r}: repair or remove the line")
        if step != newest:
            newest, samples = step, {}
        sample = {name: str(record[name]) for name in ("inputs", "targets", "prediction")}
        samples[sample["inputs"], sample["targets"]] = sample
    return newest, list(samples.values())


def _facts(history: _History, config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The tiles at the top: (label, value, note)."""
    number = report_chart.number
    last, planned = history.last_step, config.get("steps")
    items = [("Last step", f"{last:,}", f"of {planned:,}" if isinstance(planned, int) else "")]
    if loss := _finite(history, "loss"):
        items.append(("Training loss", number(loss[-1][1]), f"at step {loss[-1][0]:,}"))
    evaluated = [name for name in history.curves if "/" in name and _finite(history, name)]
    # The held-out loss and the task's metric say most; the table below has all of them.
    for name in _headlines(history, evaluated):
        step, value = _best(history, name)
        items.append((f"Best {_words(name)}", number(value), f"at step {step:,}"))
    items += _totals(history)
    parameters = _finite(history, "num_parameters")
    count = parameters[-1][1] if parameters else config.get("num_parameters")
    if isinstance(count, int | float) and 0 < count < 1e15:
        items.append(("Parameters", number(float(f"{count:.4g}")), ""))
    return items


def _totals(history: _History) -> list[tuple[str, str, str]]:
    """Time and tokens, reckoned from the measured rates."""
    number, last, items = report_chart.number, history.last_step, []
    steps = {step: rate for step, rate in _finite(history, "steps_per_second") if rate > 0}
    tokens = dict(_finite(history, "tokens_per_second"))
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


def _warnings(history: _History) -> str:
    lines = []
    for name, curve in history.curves.items():
        steps = [step for step, value in curve.items() if value is None]
        if steps:
            listed = ", ".join(f"{step:,}" for step in steps[:10])
            more = f" and {len(steps) - 10:,} more" if len(steps) > 10 else ""
            plural = "s" if len(steps) > 1 else ""
            lines.append(f"{name} was not a finite number at step{plural} {listed}{more}.")
    for before, after in history.restarts:
        lines.append(f"The run was restarted: step {before:,} was followed by step {after:,}.")
    if history.partial:
        lines.append("The last line of metrics.jsonl is incomplete and was left out.")
    if not lines:
        return ""
    items = "".join(f"<li>{report_page.text(line)}</li>" for line in lines)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>'


def _charts(history: _History) -> str:
    """A chart for every metric, with training and every split as its curves."""
    groups: dict[str, dict[str, str]] = {}
    for name in history.curves:
        if _scored_alone(history, name):
            continue  # the same curve again
        split, slash, base = name.partition("/")
        groups.setdefault(base if slash else name, {})[split if slash else "training"] = name
    groups.pop("num_parameters", None)
    if "tokens_per_second" in groups:
        groups.pop("steps_per_second", None)  # the same curve, but for the scale
    known = ["training", "validation"]
    others = sorted({split for group in groups.values() for split in group} - set(known))
    colours = {split: index for index, split in enumerate(known + others)}
    order = {name: index for index, name in enumerate(_TITLES)}
    cards = []
    for base in sorted(groups, key=lambda base: (order.get(base, len(order)), base)):
        series = [
            report_chart.Series(
                name=split,
                points=list(history.curves[groups[base][split]].items()),
                colour=colours[split],
            )
            for split in sorted(groups[base], key=colours.__getitem__)
        ]
        card = report_page.chart_card(
            _title(base),
            series,
            name=f"log{len(cards)}",
            offer_log=base in _LOG_OFFERED,
            from_zero=base.endswith("_per_second"),
        )
        cards.append(card)
    if not any(cards):
        return '<p class="note">No metrics were logged yet.</p>'
    return f'<h2>Curves</h2><div class="charts">{"".join(cards)}</div>'


def _evaluation(history: _History) -> str:
    rows = []
    for name in sorted(name for name in history.curves if "/" in name):
        if points := _finite(history, name):
            step, value = _best(history, name)
            last = points[-1]
            number = report_chart.number
            rows.append((name, number(last[1]), f"{last[0]:,}", number(value), f"{step:,}"))
    if not rows:
        return ""
    headings = ("metric", "last", "at step", "best", "at step")
    return "<h2>Evaluation</h2>" + report_page.table(headings, rows)


def _samples(step: int, samples: Sequence[Mapping[str, str]]) -> str:
    if not samples:
        return ""
    differing = sum(sample["prediction"] != sample["targets"] for sample in samples)
    note = f"Step {step:,}: {len(samples):,} samples, {differing:,} differ from their targets."
    if len(samples) > _MAX_SAMPLES:
        note += f" The first {_MAX_SAMPLES} are shown."
    shown = report_page.samples_table(samples[:_MAX_SAMPLES])
    return f'<h2>Sample predictions</h2><p class="note">{note}</p>{shown}'


def _config(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    words = report_page.text(json.dumps(config, indent=2, ensure_ascii=False))
    return f"<details><summary>Configuration</summary><pre>{words}</pre></details>"


def _finite(history: _History, name: str) -> list[tuple[int, float]]:
    curve = history.curves.get(name, {})
    return [(step, value) for step, value in curve.items() if value is not None]


def _best(history: _History, name: str) -> tuple[int, float]:
    """The step that has the best value, the last of equals, and that value."""
    values = dict(_finite(history, name))
    step = best_step(values, mode=history.mode(name))
    assert step is not None
    return step, values[step]


def _headlines(history: _History, names: Sequence[str]) -> list[str]:
    """The loss, and the metric of the task: the one that keeps checkpoints, or its score."""
    lowest = [name for name in names if history.mode(name) == "min"]
    highest = [name for name in names if name not in lowest]
    scores = [name for name in highest if name.partition("/")[2] == _SCORE]
    alone = [only for name in scores if (only := _scored_alone(history, name))]
    task = [*(n for n in highest if n == history.best and n not in scores), *alone, *scores]
    return lowest[:1] + [*task, *highest][:1]


def _scored_alone(history: _History, name: str) -> str | None:
    """The one metric of which a task's score is the mean, where it has one; of others None."""
    split, _, base = name.rpartition("/")
    if base != _SCORE:
        return None
    curve = history.curves[name]
    same = [
        other
        for other, values in history.curves.items()
        if other != name and other.rpartition("/")[0] == split and values == curve
    ]
    return same[0] if len(same) == 1 else None


def _choices(config: Mapping[str, Any]) -> tuple[str, bool]:
    """checkpoints.best of a config, or "", and whether it says that the lowest is best."""
    settings = config.get("checkpoints")
    settings = settings if isinstance(settings, dict) else {}
    best = settings.get("best")
    return (best if isinstance(best, str) else ""), settings.get("best_mode") == "min"


def _words(name: str) -> str:
    return name.replace("/", " ").replace("_", " ")


def _title(base: str) -> str:
    return _TITLES[base] if base in _TITLES else _words(base)[:1].upper() + _words(base)[1:]
