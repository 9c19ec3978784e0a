"""Records of a run: metrics.jsonl and run.json, and trackers as other destinations.

Records of a run in its work directory: metrics.jsonl and run.json.

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

Trackers: destinations of a run's metrics in addition to its work directory.

    --tracking.to tensorboard wandb mlflow my_trackers:Webhook --tracking.project summaries

A tracker is created once, by a function or class that gets a `TrackedRun`. It then receives the
metrics of each logged step. A custom tracker:

    # my_trackers.py, next to the config
    class Webhook:
        id = None                                   # or a name by which a resumed run finds it

        def __init__(self, run: TrackedRun): ...
        def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
        def close(self, outcome: Outcome) -> None: ...

All calls come from one thread of the first process, in order. Training does not wait for them. If a
tracker raises an error, a warning is logged, and later calls are skipped. Its `id` is stored in
trackers.json of the work directory, and becomes `TrackedRun.id` when the run resumes.

A callback is a tracker with the class attribute `synchronous = True`. Training waits for its calls.
It may end the run: if its `stop` is not empty after `log`, training saves a checkpoint and
finishes. `saved` is called for each complete checkpoint. `TrackedRun.history` has the metrics of
earlier starts, so a deterministic callback ends a resumed run at the same step.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from t5x_lite.core import project, remote
from t5x_lite.core.errors import InputError, command, install_command
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import AnyPath, write_whole

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
    """Record of one start of a training run.

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
    """Return the content of run.json after adding one start of a run."""
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


Outcome = Literal["finished", "interrupted", "failed"]
"""Outcome of a run: ended at its last step, by a signal, or by an error."""


TRACKERS_FILE = "trackers.json"


TENSORBOARD = "tensorboard"


_SHIPPED = {
    TENSORBOARD: "t5x_lite.train.track:TensorBoard",
    "wandb": "t5x_lite.train.track:WandB",
    "mlflow": "t5x_lite.train.track:MLflow",
}


_EXTRAS = ("wandb", "mlflow")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tracking:
    """Configuration of metric trackers, in addition to metrics.jsonl, which is always written.

    Attributes:
      to: tensorboard, wandb, mlflow (pip extras of the same names), or "module:name" of a custom
        tracker; () disables tracking.
      project: project of Weights & Biases or experiment of MLflow; "" is the tracker's default.
      name: name of the run in the tracker; "" is the name of the work directory.
    """

    to: tuple[str, ...] = (TENSORBOARD,)
    project: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        for name in self.to:
            if name not in _SHIPPED and not all(name.partition(":")):
                raise InputError(
                    f"tracking.to {name!r} is not one of {', '.join(_SHIPPED)} or a module:name"
                    f"{did_you_mean(name, _SHIPPED)}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Description of a training run for its metric trackers.

    Attributes:
      directory: work directory, or a local directory if the work directory is in a bucket.
      name: name of the run.
      project: project of the run; "" for none.
      config: experiment config, as in config.json.
      total_steps: last step of the run.
      first_step: first step with new metrics; trackers already have the metrics of earlier steps.
      history: step -> metrics of earlier steps, for callbacks.
      id: id that the tracker gave the run at an earlier start; None for a new run.
    """

    directory: str
    name: str
    project: str = ""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    total_steps: int = 0
    first_step: int = 1
    history: Mapping[int, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    id: str | None = None


@runtime_checkable
class RunTracker(Protocol):
    """Tracker that receives the metrics of a run.

    Attributes:
      id: identifier of the run in the tracker, for resuming, or None.
    """

    id: str | None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of a step; values may be NaN or infinite."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Receive the outcome of the run, as the last call."""
        ...


@runtime_checkable
class RunCallback(RunTracker, Protocol):
    """Tracker that training waits for, and that may end the run.

    Attributes:
      synchronous: always True; an attribute of the class.
      stop: reason to end the run, or None.
    """

    synchronous: bool
    stop: str | None

    def saved(self, step: int, directory: str) -> None:
        """Receive the step and directory of a complete checkpoint."""
        ...


MakeTracker = Callable[[TrackedRun], RunTracker]


def is_callback(make: MakeTracker) -> bool:
    """Return True if a tracker class, or a partial of it, can end a run (`RunCallback`)."""
    return bool(getattr(getattr(make, "func", make), "synchronous", False))


def find_trackers(tracking: Tracking) -> dict[str, MakeTracker]:
    """Map the name of each tracker in a config to a function that creates the tracker."""
    return {name: _find(name) for name in tracking.to}


def _find(name: str) -> MakeTracker:
    if name in _EXTRAS and importlib.util.find_spec(name) is None:
        raise InputError(
            f"tracking.to {name} needs the package {name}; run {install_command(name)}"
        )
    module_name, _, attribute = _SHIPPED.get(name, name).partition(":")
    try:
        shipped = name in _SHIPPED
        module = (importlib.import_module if shipped else project.import_module)(module_name)
    except ImportError as error:
        raise InputError(f"tracking.to {name}: {error}") from error
    make: Any = getattr(module, attribute, None)
    if not callable(make):
        near = did_you_mean(attribute, vars(module))
        raise InputError(f"tracking.to {name}: {module_name} has no {attribute}{near}")
    return cast(MakeTracker, make)


class KnownIds:
    """Ids that metric trackers gave to a run, stored in trackers.json of its work directory.

    Args:
      directory: work directory.
    """

    def __init__(self, directory: AnyPath):
        self._path = directory / TRACKERS_FILE
        self._lock = threading.Lock()  # each tracker has a thread

    def get(self, name: str) -> str | None:
        """Return the stored id of a tracker, or None if it is missing or the file is damaged."""
        found = self._read().get(name)
        return found if isinstance(found, str) else None

    def set(self, name: str, value: str) -> None:
        """Store the id of a tracker."""
        with self._lock:
            known = self._read()
            if known.get(name) != value:
                content = json.dumps({**known, name: value}, indent=1) + "\n"
                write_whole(self._path, content.encode())

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested config to option names, such as {"optimizer.schedule.value": 0.001}."""
    leaves: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, Sequence) and any(isinstance(each, Mapping) for each in value):
            for i, each in enumerate(value):
                leaves |= flat(
                    each if isinstance(each, Mapping) else {"": each}, f"{prefix}{name}.{i}."
                )
        else:
            leaves[prefix + name] = value
    return leaves
