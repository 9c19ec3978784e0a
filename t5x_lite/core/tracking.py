"""Trackers: destinations of a run's metrics in addition to its work directory.

    --tracking.to tensorboard wandb mlflow my_trackers:Webhook --tracking.project summaries

A tracker is created once, by a function or class that is called with a `TrackedRun`, and then gets
every record of metrics. A custom tracker:

    # my_trackers.py, next to the config
    class Webhook:
        id = None                                   # or a name by which a resumed run finds it

        def __init__(self, run: TrackedRun): ...
        def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
        def close(self, outcome: Outcome) -> None: ...

All calls come from one thread of the first process, in order. Training does not wait for them. A
tracker that raises is warned about once and omitted from then on: it never stops a run. Its `id`
is kept in trackers.json of the work directory, and is `TrackedRun.id` when the run resumes.

A callback is a tracker with the class attribute `synchronous = True`. Training waits for its calls.
It may end the run: if its `stop` is not empty after `log`, training saves and finishes. `saved`
gets each checkpoint when it is complete. A callback that is the same function of its records ends a
resumed run at the same step, because `TrackedRun.history` has all records of earlier starts.
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
"""End of a run: at its last step, by a signal (to be resumed), or by an error."""


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
    """Destinations of metrics in addition to metrics.jsonl, which is always written.

    Attributes:
      to: tensorboard, wandb, mlflow (extras of the same names), or "module:name" of a custom
        tracker (`config.run_options`); () disables tracking.
      project: the project of Weights & Biases, the experiment of MLflow; "" is their default.
      name: name of the run in the tracker; "" is the work directory's name.
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
    """A run, for its trackers.

    Attributes:
      directory: the work directory, or this machine's directory instead of a bucket.
      name: name of the run.
      project: that it belongs to, "" for none.
      config: the experiment, as config.json has it.
      total_steps: the step at which it ends.
      first_step: first step with metrics; earlier records were sent before.
      history: metrics of the steps before, by step, for callbacks.
      id: by which an earlier start of this run was known; None in a new run.
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
    """Receives the metrics of a run.

    Attributes:
      id: name by which a resumed run finds its earlier records, or None.
    """

    id: str | None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step; what is not finite is in it, too."""
        ...

    def close(self, outcome: Outcome) -> None:
        """Take the end of the run."""
        ...


@runtime_checkable
class RunCallback(RunTracker, Protocol):
    """A tracker that training waits for, and that may end the run.

    Attributes:
      synchronous: True, an attribute of the class.
      stop: reason to end the run, or None.
    """

    synchronous: bool
    stop: str | None

    def saved(self, step: int, directory: str) -> None:
        """Take the directory of a complete checkpoint."""
        ...


MakeTracker = Callable[[TrackedRun], RunTracker]


def is_callback(make: MakeTracker) -> bool:
    """Return True if a class, or a partial of it, makes callbacks."""
    return bool(getattr(getattr(make, "func", make), "synchronous", False))


def find_trackers(tracking: Tracking) -> dict[str, MakeTracker]:
    """Return the functions that make the trackers of a config, by name; nothing is sent yet."""
    return {name: _find(name) for name in tracking.to}


def _find(name: str) -> MakeTracker:
    if name in _EXTRAS and importlib.util.find_spec(name) is None:
        raise InputError(
            f"tracking.to {name} needs the package {name}: {install_command(name)}, or leave it out"
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
    """trackers.json of a work directory: tracker -> the id of its run there.

    Args:
      directory: the work directory.
    """

    def __init__(self, directory: AnyPath):
        self._path = directory / TRACKERS_FILE
        self._lock = threading.Lock()  # each tracker has a thread

    def get(self, name: str) -> str | None:
        """Return the stored id of a tracker; None if it has none, or the file is damaged."""
        found = self._read().get(name)
        return found if isinstance(found, str) else None

    def set(self, name: str, value: str) -> None:
        """Keep an id."""
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
    """Return a nested config by the names of its options: {"optimizer.schedule.value": 0.001}."""
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
