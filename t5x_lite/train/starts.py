"""run.json of a work directory: how its run was started, each time, and with which versions.

    {"starts": [{"command": "t5x-lite train configs/tiny_pretrain.py --workdir work/run",
                 "time": 1700000000, "step": 0, "devices": "8 TPU v5 lite",
                 "versions": {"t5x_lite": "0.1.0", "python": "3.11.9", "jax": "0.10.2", ...}}]}

A run that resumes adds a start; the newest is last. The report and the model card name them. The
file decides nothing: a run without one, or with a damaged one, resumes all the same.
"""

import dataclasses
import importlib.metadata
import json
import platform
import sys
import time
from typing import Any

from t5x_lite.invocation import command
from t5x_lite.remote import AnyPath

RUN_FILE = "run.json"
_LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")
_KEPT = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run.

    Attributes:
      command: as it was typed, "" if unknown.
      time: seconds since the epoch, whole.
      step: the step from which it went on; 0 of a new run.
      devices: number and kind, such as "1 cpu".
      versions: of this package, Python and the libraries.
    """

    command: str = ""
    time: int = 0
    step: int = 0
    devices: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)


def versions() -> dict[str, str]:
    """Versions of this package, Python and the libraries that compute."""
    found = {"t5x_lite": _own_version(), "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _own_version() -> str:
    """Of the package that runs, which a checkout has without being installed."""
    return str(vars(sys.modules[__name__.partition(".")[0]])["__version__"])


def add_start(directory: AnyPath, *, step: int, devices: str) -> bytes:
    """The content of run.json with this start added.

    Args:
      directory: the work directory, which need not exist yet.
      step: from which this start goes on.
      devices: number and kind.
    """
    new = Start(
        command=command(), time=round(time.time()), step=step, devices=devices, versions=versions()
    )
    starts = [*read_starts(directory), new][-_KEPT:]
    content = {"starts": [dataclasses.asdict(start) for start in starts]}
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def read_starts(directory: AnyPath) -> list[Start]:
    """The starts of a run, the newest last; none where run.json is missing or damaged."""
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
