"""Records of a run in its work directory: metrics.jsonl and run.json.

Each line of metrics.jsonl is an object: {"step": 1, "time": seconds since the epoch, "loss": 5.4,
...}. NaN and infinity are written as null. If a step is repeated after a restart, the later line is
used.

    with Record("work/run") as record:
        record.add(1, time.time(), {"loss": 5.4})
    evaluations("work/run", until=1000)     # [{"validation/loss": 5.2, ...}, ...]

run.json lists each start of the run, newest last, with its command and library versions:

    {"starts": [{"command": "t5x-lite train configs/tiny_pretrain.py --workdir work/run",
                 "time": 1700000000, "step": 0, "devices": "8 TPU v5 lite",
                 "versions": {"t5x_lite": "0.1.0", "python": "3.11.9", "jax": "0.10.2", ...}}]}

The report and the model card use run.json; a run resumes without it.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5x_lite.core import remote
from t5x_lite.core.errors import InputError, command
from t5x_lite.core.remote import AnyPath

METRICS_FILE = "metrics.jsonl"
"""Name of the metrics file in a work directory."""


class Record:
    """Writer that appends metrics to metrics.jsonl, one line per step; a context manager."""

    def __init__(self, workdir: str | os.PathLike) -> None:
        """Open metrics.jsonl, and remove a partial last line of a killed run."""
        path = Path(workdir) / METRICS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_partial_line(path)
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def add(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Append the metrics of a step; `seconds` is the time since the epoch."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = {"step": step, "time": round(seconds, 3), **finite}
        content = (json.dumps(line, allow_nan=False) + "\n").encode()
        while content:  # a disk that is about to be full takes a part
            content = content[self._file.write(content) :]

    def close(self) -> None:
        self._file.close()


def evaluations(workdir: str | os.PathLike, *, until: int) -> list[dict[str, float]]:
    """Return the evaluation metrics of a run up to step `until`, in order of steps."""
    return list(evaluated_steps(workdir, until=until).values())


def evaluated_steps(
    workdir: str | os.PathLike, *, until: int, training: bool = False
) -> dict[int, dict[str, float]]:
    """Map each evaluated step of a run, up to step `until`, to its metrics.

    A partial last line is skipped. If `training` is True, training metrics are included.
    """
    found: dict[int, dict[str, float]] = {}
    for line in recorded(workdir):
        metrics = {
            name: math.nan if value is None else value
            for name, value in line.items()
            if "/" in name or (training and name not in ("step", "time"))
        }
        if metrics and line["step"] <= until:
            found.setdefault(line["step"], {}).update(metrics)
    return {step: found[step] for step in sorted(found)}


def recorded(workdir: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yield the records of a run's metrics.jsonl, except a partial last line."""
    path = remote.open_path(workdir) / METRICS_FILE
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or "step" not in record:
            raise InputError(f"{path}:{number} is not a valid record of metrics; delete the line")
        yield record


def _cut_partial_line(path: Path) -> None:
    """Truncate a file after its last newline, if the file exists."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        kept = 0
        while end and not kept:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            kept = start + newline + 1 if newline >= 0 else 0
            end = start
        file.truncate(kept)


RUN_FILE = "run.json"
_LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")
_KEPT = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run.

    Attributes:
      command: command line as typed; "" if unknown.
      time: whole seconds since the epoch.
      step: step from which the run continued; 0 for a new run.
      devices: number and kind of the devices, such as "1 cpu".
      versions: versions of this package, Python and the numerical libraries.
    """

    command: str = ""
    time: int = 0
    step: int = 0
    devices: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)


def versions() -> dict[str, str]:
    """Return the versions of this package, Python and the numerical libraries."""
    found = {"t5x_lite": _own_version(), "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _own_version() -> str:
    return str(vars(sys.modules[__name__.partition(".")[0]])["__version__"])


def add_start(directory: AnyPath, *, step: int, devices: str) -> bytes:
    """Return the content of run.json with one more start."""
    new = Start(
        command=command(), time=round(time.time()), step=step, devices=devices, versions=versions()
    )
    starts = [*read_starts(directory), new][-_KEPT:]
    content = {"starts": [dataclasses.asdict(start) for start in starts]}
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def read_starts(directory: AnyPath) -> list[Start]:
    """Return the starts of a run, newest last; [] if run.json is missing or damaged."""
    try:
        content = json.loads((directory / RUN_FILE).read_bytes())
        return [_start(each) for each in content["starts"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def _start(value: dict[str, Any]) -> Start:
    names = [field.name for field in dataclasses.fields(Start)]
    start = Start(**{name: value[name] for name in names if name in value})
    if not isinstance(start.command, str) or not isinstance(start.versions, dict):
        raise TypeError("not a start")
    return start
