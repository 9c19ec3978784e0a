"""What a run wrote, as its report reads it: metrics, config, samples, how it was started.

    metrics.jsonl   {"step": 100, "time": 1.7e9, "loss": 5.4, "validation/loss": 5.5} a line;
                    null is a number that was not finite
    config.json     the resolved experiment; optional
    run.json        its commands and versions (`train.starts`); optional
    samples.jsonl   {"step", "inputs", "targets", "prediction"} a line; optional

A run that was killed leaves its traces here: the last line of a file may be incomplete, and is
then left out; a step may be logged twice, and then the later line wins.

    run = read_run("work/sst2")
    run.best("validation/accuracy")     # (600, 0.81)
    run.headlines()                     # ["validation/accuracy", "validation/loss"]
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.metrics.selection import Mode, best_step, matching, mode_of
from t5x_lite.train.starts import Start, read_starts

SCORE = "score"
_LARGEST = 1e300  # what is beyond has diverged, and an axis that spans it would overflow


@dataclass(kw_only=True)
class Run:
    """A run: every metric's values by step, how it was configured, and what went wrong.

    Attributes:
      directory: the work directory.
      curves: metric name -> step -> value, None where it was not finite.
      restarts: (last step before, first step after) of every restart that repeated steps.
      partial: the last line was incomplete.
      config: the resolved experiment, {} if it is missing.
      starts: how it was started, the newest last.
      samples_step: the newest step that has samples.
      samples: of that step: {"inputs", "targets", "prediction"} each.
    """

    directory: Path
    curves: dict[str, dict[int, float | None]] = field(default_factory=dict)
    restarts: list[tuple[int, int]] = field(default_factory=list)
    partial: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    samples_step: int = 0
    samples: list[dict[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.directory.resolve().name or "run"

    @property
    def task(self) -> str:
        """The task or the caches that it read, "" if unknown: "tasks.glue:sst2"."""
        data = _section(self.config, "data")
        source = data.get("task") or data.get("cache") or ""
        return ", ".join(map(str, source)) if isinstance(source, list) else str(source)

    @property
    def last_step(self) -> int:
        """The last step of which a metric was logged."""
        return max((step for curve in self.curves.values() for step in curve), default=0)

    @property
    def measured(self) -> list[str]:
        """Names of the evaluation's metrics that have a finite value: "validation/loss"."""
        return [name for name in self.curves if "/" in name and self.finite(name)]

    def finite(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric, without values that were not finite."""
        curve = self.curves.get(name, {})
        return [(step, value) for step, value in curve.items() if value is not None]

    def mode(self, name: str) -> Mode:
        """Whether the highest or the lowest value of a metric is best."""
        lowest = self._kept[1] and matching(self._kept[0], [name])
        return mode_of(name, "min" if lowest else None)

    def best(self, name: str) -> tuple[int, float]:
        """The step that has the best value, the last of equals, and that value."""
        values = dict(self.finite(name))
        step = best_step(values, mode=self.mode(name))
        assert step is not None
        return step, values[step]

    def headlines(self) -> list[str]:
        """The task's metric (which keeps checkpoints, or its score), then the loss.

        Where the task has none, as in pretraining, the loss is first.
        """
        names = self.measured
        lowest = [name for name in names if self.mode(name) == "min"]
        highest = [name for name in names if name not in lowest]
        scores = [name for name in highest if name.rpartition("/")[2] == SCORE]
        scores.sort(key=lambda name: name.count("/"))  # a mixture's own before those of its tasks
        alone = [only for name in scores if (only := self.scored_alone(name))]
        kept = [name for name in highest if name == self._kept[0] and name not in scores]
        task = [*kept, *alone, *scores][:1]
        return task + lowest[:1] if task else lowest[:1] + highest[:1]

    def scored_alone(self, name: str) -> str | None:
        """The one metric of which a task's score is the mean, where it has one; of others None."""
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
        """checkpoints.best of the config, or "", and whether it says that the lowest is best."""
        settings = _section(self.config, "checkpoints")
        best = settings.get("best")
        return (best if isinstance(best, str) else ""), settings.get("best_mode") == "min"


def read_run(workdir: str | os.PathLike[str]) -> Run:
    """Reads a work directory.

    Raises:
      InputError: the directory or its metrics.jsonl is missing, or a line is malformed, named as
        file:line.
    """
    directory = Path(workdir)
    metrics = directory / "metrics.jsonl"
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory: give the workdir of a training run")
    if not metrics.is_file():
        raise InputError(f"{metrics} is missing: give a workdir that `t5x-lite train` wrote to")
    run = Run(directory=directory, config=_read_config(directory / "config.json"))
    _read_metrics(run, metrics)
    run.starts = read_starts(directory)
    run.samples_step, run.samples = _read_samples(directory / "samples.jsonl")
    return run


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


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
