"""Trackers: destinations of a run's metrics in addition to its work directory.

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
import importlib.util
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

from t5x_lite.core import project
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import AnyPath, write_whole

Outcome = Literal["finished", "interrupted", "failed"]
"""Outcome of a run: ended at its last step, by a signal, or by an error."""


TRACKERS_FILE = "trackers.json"


TENSORBOARD = "tensorboard"


_SHIPPED = {
    TENSORBOARD: "t5x_lite.train.trackers:TensorBoard",
    "wandb": "t5x_lite.train.trackers:WandB",
    "mlflow": "t5x_lite.train.trackers:MLflow",
}


_EXTRAS = ("wandb", "mlflow")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tracking:
    """Configuration of metric trackers, in addition to metrics.jsonl, which is always written.

    Attributes:
      to: tensorboard, wandb, mlflow (extras of the same names), or "module:name" of a custom
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
    """Description of a run, which its trackers receive.

    Attributes:
      directory: work directory, or a local directory if the work directory is in a bucket.
      name: name of the run.
      project: project of the run; "" for none.
      config: experiment config, as in config.json.
      total_steps: last step of the run.
      first_step: first step with new metrics; trackers already have the metrics of earlier steps.
      history: step -> metrics of earlier steps, for callbacks.
      id: id that the tracker had in an earlier start of the run; None for a new run.
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
    """Return True if a class, or a partial of a class, creates callbacks."""
    return bool(getattr(getattr(make, "func", make), "synchronous", False))


def find_trackers(tracking: Tracking) -> dict[str, MakeTracker]:
    """Return the functions that create the trackers of a config, by tracker name."""
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
    """Ids of a run in its trackers, stored in trackers.json of the work directory.

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
