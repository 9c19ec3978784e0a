"""The file of a run's metrics: metrics.jsonl in its work directory.

One object a line: {"step": 1, "time": seconds since the epoch, "loss": 5.4, ...}; not a number and
infinity are null. Of a step that was repeated after a restart the later line counts.

    with Record("work/run") as record:
        record.add(1, time.time(), {"loss": 5.4})
    evaluations("work/run", until=1000)     # [{"validation/loss": 5.2, ...}, ...]
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5x_lite import remote
from t5x_lite.errors import InputError

METRICS_FILE = "metrics.jsonl"
"""The file's name in a work directory."""


class Record:
    """Lines at the end of the file, each there at once; a context manager."""

    def __init__(self, workdir: str | os.PathLike) -> None:
        """Opens the file, and cuts what a killed run left unfinished.

        Raises:
          OSError: the directory or the file cannot be written.
        """
        path = Path(workdir) / METRICS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_partial_line(path)
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def add(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Writes one line; `seconds` since the epoch.

        Raises:
          OSError: the disk is full, for example.
        """
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        line = {"step": step, "time": round(seconds, 3), **finite}
        content = (json.dumps(line, allow_nan=False) + "\n").encode()
        while content:  # a disk that is about to be full takes a part
            content = content[self._file.write(content) :]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def evaluations(workdir: str | os.PathLike, *, until: int) -> list[dict[str, float]]:
    """The evaluations that a run's record holds, in the order of their steps.

    Args:
      workdir: the run's directory; a new one has none.
      until: the last step that counts, that of the checkpoint from which the run goes on.

    Returns:
      Metrics named "<split>/<name>", one dict a step; what was not finite is not a number.

    Raises:
      InputError: a line is no record.
    """
    return list(evaluated_steps(workdir, until=until).values())


def evaluated_steps(workdir: str | os.PathLike, *, until: int) -> dict[int, dict[str, float]]:
    """The evaluations that a run's record holds, by step and in their order.

    A partial last line is left out.

    Args:
      workdir: the run's directory; a new one has none.
      until: the last step that counts, that of the checkpoint from which the run goes on.

    Returns:
      step -> metrics named "<split>/<name>"; what was not finite is not a number.

    Raises:
      InputError: a line is no record.
    """
    found: dict[int, dict[str, float]] = {}
    for line in recorded(workdir):
        metrics = {
            name: math.nan if value is None else value
            for name, value in line.items()
            if "/" in name
        }
        if metrics and line["step"] <= until:
            found.setdefault(line["step"], {}).update(metrics)
    return {step: found[step] for step in sorted(found)}


def recorded(workdir: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The lines of a run's record, as they are; a partial last line is left out.

    Args:
      workdir: the run's directory; a new one has none.

    Raises:
      InputError: a line is no record.
    """
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
            raise InputError(f"{path}:{number} is not a record of metrics; delete the line")
        yield record


def _cut_partial_line(path: Path) -> None:
    """Cuts what follows the last newline of a file; a file that is missing stays missing."""
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
