"""HTML report of a training run: the task's metric, curves, throughput, samples and warnings.

The report is built only from the metric and config files of the work directory.

Example: `write_report("runs/tiny")` writes runs/tiny/report.html and returns its path.
`report.compare` compares several runs on one page.

`settings` returns a run's config by the names of command-line options:

    settings({"steps": 20, "model": {"type": "t5x_lite.models.t5:T5Config", "d_model": 64}})
    # {"--steps": "20", "model": "T5Config", "--model.d-model": "64"}

Settings without an option, such as the model's class, have names without dashes.

A report reads these files of a work directory:

    metrics.jsonl   {"step": 100, "time": 1.7e9, "loss": 5.4, "validation/loss": 5.5} a line;
                    null is a number that was not finite
    config.json     the resolved experiment; optional
    run.json        commands and versions of the run (`core.run_history`); optional
    samples.jsonl   {"step", "inputs", "targets", "prediction"} a line; optional
    classes.jsonl   {"step", "task", "classes", "averages", "confusion"} a line; optional

If a run was killed, the last line of a file may be incomplete and is then ignored. If a step was
logged twice, the later line is used.

    run = read_run("work/sst2")
    run.best("validation/accuracy")     # (600, 0.81)
    run.headlines()                     # ["validation/accuracy", "validation/loss"]
"""

import datetime
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError, quoted
from t5x_lite.core.files import write_atomically
from t5x_lite.core.tracking import Start, flat, read_starts
from t5x_lite.metrics.benchmarks import Mode, best_step, matching, mode_of
from t5x_lite.metrics.classification import OTHER
from t5x_lite.report import page as report_chart
from t5x_lite.report import page as report_page
from t5x_lite.train import track

_TYPE = "type"


def settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a config as a dict of options, such as {"--steps": "20"}."""
    found = {}
    for path, value in flat(config).items():
        parent, _, name = path.rpartition(".")
        if name == _TYPE:
            if parent:  # the whole is an Experiment
                found[parent] = str(value).rpartition(":")[2]
        else:
            found[f"--{path.replace('_', '-')}"] = _words(value)
    return found


def option_lines(config: Mapping[str, Any]) -> list[str]:
    """Return the fields of a config as lines of options, such as "--steps 20"."""
    return [
        f"{name} {value}".rstrip() if name.startswith("--") else f"# {name}: {value}"
        for name, value in settings(config).items()
    ]


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(_words(each) for each in value)
    return quoted(value) if isinstance(value, str) else str(value)


SCORE = "score"
ClassRows = list[tuple[str, ...]]
"""Type of the headings and rows of a table of classes."""
_LARGEST = 1e300  # larger values have diverged, and would overflow the axis


@dataclass(kw_only=True)
class Run:
    """Content of a work directory: metrics by step, config, commands, and samples.

    Attributes:
      directory: path of the work directory.
      curves: metric name -> step -> value; None for a value that was not finite.
      restarts: pairs (last logged step of a start, first of the next) where steps were repeated.
      partial: True if the last line of metrics.jsonl is incomplete.
      config: resolved experiment; {} if it is missing.
      starts: starts of the run, newest last.
      samples_step: newest step that has samples.
      samples: predictions at step `samples_step`, each with "inputs", "targets", "prediction".
      classes: task -> (step of its newest evaluation, scores of each class).
    """

    directory: Path
    curves: dict[str, dict[int, float | None]] = field(default_factory=dict)
    restarts: list[tuple[int, int]] = field(default_factory=list)
    partial: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    samples_step: int = 0
    samples: list[dict[str, str]] = field(default_factory=list)
    classes: dict[str, tuple[int, list[ClassRows]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.directory.resolve().name or "run"

    @property
    def task(self) -> str:
        """The task or caches of the run, such as "tasks.glue:sst2"; "" if unknown."""
        data = _section(self.config, "data")
        source = data.get("task") or data.get("cache") or ""
        return ", ".join(map(str, source)) if isinstance(source, list) else str(source)

    @property
    def last_step(self) -> int:
        """The last step with a logged metric."""
        return max((step for curve in self.curves.values() for step in curve), default=0)

    @property
    def measured(self) -> list[str]:
        """Names of evaluation metrics that have a finite value, such as "validation/loss"."""
        return [name for name in self.curves if "/" in name and self.finite(name)]

    def finite(self, name: str) -> list[tuple[int, float]]:
        """Return pairs (step, value) of a metric, without infinite and NaN values."""
        curve = self.curves.get(name, {})
        return [(step, value) for step, value in curve.items() if value is not None]

    def mode(self, name: str) -> Mode:
        """Return "max" if the highest value of a metric is best, or "min" if the lowest is best."""
        lowest = self._kept[1] and matching(self._kept[0], [name])
        return mode_of(name, "min" if lowest else None)

    def best(self, name: str) -> tuple[int, float]:
        """Return the step with the best value of a metric, and the value.

        If several values are equal, return the last step.
        """
        values = dict(self.finite(name))
        step = best_step(values, mode=self.mode(name))
        assert step is not None
        return step, values[step]

    def headlines(self) -> list[str]:
        """Return the names of the most important metrics: the task's metric, and then the loss.

        Without a task metric, as in pretraining, the loss is first.
        """
        names = self.measured
        lowest = [name for name in names if self.mode(name) == "min"]
        highest = [name for name in names if name not in lowest]
        scores = [name for name in highest if name.rpartition("/")[2] == SCORE]
        scores.sort(key=lambda name: name.count("/"))  # a mixture's score before its tasks' scores
        alone = [only for name in scores if (only := self.scored_alone(name))]
        kept = [name for name in highest if name == self._kept[0] and name not in scores]
        task = [*kept, *alone, *scores][:1]
        return task + lowest[:1] if task else lowest[:1] + highest[:1]

    def scored_alone(self, name: str) -> str | None:
        """Return the name of the only metric in a task's score; None if the score is an average."""
        split, _, base = name.rpartition("/")
        if base != SCORE:
            return None
        curve = self.curves[name]
        same = [
            other
            for other, values in self.curves.items()
            if other != name and other.rpartition("/")[0] == split and values == curve
        ]
        return same[0] if len(same) == 1 else None

    @property
    def _kept(self) -> tuple[str, bool]:
        settings = _section(self.config, "checkpoints")
        best = settings.get("best")
        return (best if isinstance(best, str) else ""), settings.get("best_mode") == "min"


def read_run(workdir: str | os.PathLike[str]) -> Run:
    """Read the files of a work directory."""
    directory = Path(workdir)
    metrics = directory / "metrics.jsonl"
    if not directory.is_dir():
        raise InputError(
            f"{directory} is not a directory; give the work directory of a training run"
        )
    if not metrics.is_file():
        raise InputError(f"file {metrics} is missing; give a work directory of `t5x-lite train`")
    run = Run(directory=directory, config=_read_config(directory / "config.json"))
    _read_metrics(run, metrics)
    run.starts = read_starts(directory)
    run.samples_step, run.samples = _read_samples(directory / "samples.jsonl")
    run.classes = _read_classes(directory / "classes.jsonl")
    return run


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the file") from error
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
            raise InputError(f"{where} is not a line of JSON; repair or remove the line") from error
        if not isinstance(value, dict):
            raise InputError(f"{where} is not a JSON object; repair or remove the line")
        yield where, value


def _step(record: Mapping[str, Any], where: str) -> int:
    step = record.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 10**15:
        raise InputError(f'{where}: "step" must be an integer; repair or remove the line')
    return step


def _value(value: Any, name: str, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f'{where}: "{name}" must be a number or null; repair or remove the line')
    return float(value) if -_LARGEST < value < _LARGEST else None


def _read_metrics(run: Run, path: Path) -> None:
    before: tuple[int, set[str]] = (0, set())
    for where, record in _read_objects(path):
        if record is None:
            run.partial = True
            break
        step = _step(record, where)
        values = {
            name: _value(value, name, where)
            for name, value in record.items()
            if name not in ("step", "time")
        }
        training = {name for name in values if "/" not in name}
        if step < before[0] or (step == before[0] and training & before[1]):
            run.restarts.append((before[0], step))
        before = (step, training | (before[1] if step == before[0] else set()))
        for name, value in values.items():
            run.curves.setdefault(name, {})[step] = value
    run.curves = {name: dict(sorted(curve.items())) for name, curve in run.curves.items()}


def _read_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # JSONDecodeError and UnicodeDecodeError too
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line} is not JSON; repair or remove the file") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} is not a JSON object; repair or remove the file")
    return config


def _read_samples(path: Path) -> tuple[int, list[dict[str, str]]]:
    newest, samples = 0, {}
    if not path.exists():
        return 0, []
    for where, record in _read_objects(path):
        if record is None:
            break
        step = _step(record, where)
        if missing := {"inputs", "targets", "prediction"} - record.keys():
            raise InputError(
                f"{where}: the field {sorted(missing)[0]!r} is missing; repair or remove the line"
            )
        if step != newest:
            newest, samples = step, {}
        sample = {name: str(record[name]) for name in ("inputs", "targets", "prediction")}
        samples[sample["inputs"], sample["targets"]] = sample
    return newest, list(samples.values())


def _read_classes(path: Path) -> dict[str, tuple[int, list[ClassRows]]]:
    found = {}
    for where, record in _read_objects(path) if path.exists() else ():
        if record is None:
            break
        try:
            found[str(record["task"])] = (_step(record, where), _class_rows(record))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{where}: the line has no valid class scores; repair or remove the line"
            ) from error
    return found


def _class_rows(record: Mapping[str, Any]) -> list[ClassRows]:
    rows = {**record["classes"], **record["averages"]}
    scores = [
        (name, *(f"{row[one]:.4f}" for one in ("precision", "recall", "f1")), f"{row['support']:,}")
        for name, row in rows.items()
    ]
    tables: list[ClassRows] = [[("class", "precision", "recall", "F1", "support"), *scores]]
    if record["confusion"] is not None:
        labels = [*record["classes"]]
        counts = zip(labels, record["confusion"], strict=True)
        confusions = [(name, *(f"{count:,}" for count in row)) for name, row in counts]
        tables.append([("target, predicted:", *labels, OTHER), *confusions])
    return tables


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
"""Titles of charts by metric, in the order of the charts."""
LOG_OFFERED = ("loss", "learning_rate", "gradient_norm", "perplexity")
_OF_MACHINE = (
    *("tokens_per_second", "steps_per_second", "mfu", "data_wait", "epoch"),
    *("slowest_host", "slowest_host_seconds", *track.FIELDS),
)
_MAX_SAMPLES = 50


def write_report(
    workdir: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> Path:
    """Write the HTML report of one run, and return its path."""
    run = read_run(workdir)
    sections = [
        command_of(run),
        report_page.facts(_facts(run)),
        _warnings(run),
        _charts(run),
        _evaluation(run),
        _classes(run),
        _samples(run),
        _options(run),
    ]
    path = Path(output) if output is not None else run.directory / "report.html"
    return write_page(path, report_page.page(_title(run), _subtitle(run), sections))


def written_now() -> str:
    """Return the current local time as text for a report."""
    return datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def write_page(path: Path, page: str) -> Path:
    """Write an HTML page atomically."""
    try:
        write_atomically(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); give another output file"
        ) from error
    return path


def _title(run: Run) -> str:
    return f"{run.name}: {run.task}" if run.task else run.name


def _subtitle(run: Run) -> str:
    kinds = [_kind(run.config.get(part)) for part in ("model", "objective")]
    words = [kind for kind in kinds if kind]
    init = run.config.get("init")
    if isinstance(init, dict) and init.get("checkpoint"):
        words.append(f"from {init['checkpoint']}")
    words.append(f"written {written_now()}")
    return f"Training report. {', '.join(words)}"


def _kind(part: Any) -> str:
    name = part.get("type") if isinstance(part, dict) else None
    return name.rpartition(":")[2] if isinstance(name, str) else ""


def command_of(run: Run) -> str:
    """Return the HTML of the newest and the earlier commands of a run."""
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
    number = report_chart.number
    last, planned = run.last_step, run.config.get("steps")
    items = []
    # Only the task's metric and the held-out loss; the table below has all metrics.
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
        lines.append("The last line of metrics.jsonl is incomplete and was ignored.")
    if not lines:
        return ""
    items = "".join(f"<li>{report_page.text(line)}</li>" for line in lines)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>'


def charts_of(curves: dict[str, list[report_chart.Series]], *, first: Sequence[str]) -> str:
    """Return the HTML of all charts; charts of speed and time are last."""
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
    """Group a run's metrics for charts: name without split -> split -> full name."""
    groups: dict[str, dict[str, str]] = {}
    for name in run.curves:
        if run.scored_alone(name):
            continue  # the same curve again
        split, slash, base = name.partition("/")
        groups.setdefault(base if slash else name, {})[split if slash else "training"] = name
    for name in ("num_parameters", *track.FIELDS[1:]):
        groups.pop(name, None)
    if "tokens_per_second" in groups:
        groups.pop("steps_per_second", None)  # the same curve, but for the scale
    return groups


def _charts(run: Run) -> str:
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
    """Return the fraction of the run's time in training steps and in each cause of lost time."""
    last = {name: run.finite(name)[-1][1] for name in track.FIELDS[1:-1] if run.finite(name)}
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
    """Return metric names without the split, such as "accuracy" for "validation/accuracy"."""
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


def _classes(run: Run) -> str:
    cards = [
        f"<h3>{report_page.text(task)} at step {step:,}</h3>"
        + "".join(report_page.table(rows[0], rows[1:]) for rows in tables)
        for task, (step, tables) in run.classes.items()
    ]
    return "<h2>Classes</h2>" + "".join(cards) if cards else ""


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
    """Return a metric's name in words: "validation glue rte accuracy"."""
    return name.replace("/", " ").replace("_", " ")


def title_of(base: str) -> str:
    """Return the title of a metric's chart, such as "glue_rte: accuracy"."""
    if base in TITLES:
        return TITLES[base]
    task, slash, metric = base.rpartition("/")
    words = words_of(metric)
    return f"{task}: {words}" if slash else words[:1].upper() + words[1:]
