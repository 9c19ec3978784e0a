"""The output directory of a run, and what is finished of it.

    OUTPUT/.work/run.json          what the run is: rules, inputs, shards
    OUTPUT/.work/<stage>/...       parts; each is there whole or not at all
    OUTPUT/.work/<stage>.json      the stage is finished, and what it counted
    OUTPUT/c4-*, manifest.json     the output

A run that was killed goes on where it stopped, if it is the same run; `.work` is removed when the
manifest is there. One process at a time holds `.work/lock`.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically

WORK = ".work"
_RUN = "run.json"
_LOCK = "lock"
_UNFINISHED = (".c4-*", ".manifest.json.*", ".stats.json.*", ".report.html.*")


class Workdir:
    """A run's directory.

    Attributes:
      output: the directory of the shards.
      work: that of the parts.
    """

    def __init__(self, output: Path):
        self.output = output
        self.work = output / WORK
        self._lock: BinaryIO | None = None

    def open(self, run: Mapping[str, Any]) -> None:
        """Takes the directory for a run, new or begun.

        Args:
          run: all that the output depends on, of JSON's types.

        Raises:
          InputError: it holds something else or another run, or a process is at it.
        """
        self._refuse_strangers()
        self.work.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._refuse_other(run)
        except InputError:
            self.close()
            raise
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Removes files of a process that was killed as it wrote."""
        left = [path for pattern in _UNFINISHED for path in self.output.glob(pattern)]
        for path in [*left, *self.work.glob("*/.*")]:
            path.unlink(missing_ok=True)

    def _refuse_other(self, run: Mapping[str, Any]) -> None:
        path = self.work / _RUN
        content = json.dumps(run, indent=1, sort_keys=True)
        if not path.exists():
            write_atomically(path, content.encode())
            return
        try:
            before = json.loads(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path} is damaged: remove {self.work}") from error
        refuse_other(self.output, before, json.loads(content))

    def _refuse_strangers(self) -> None:
        if not self.output.exists():
            return
        if not self.output.is_dir():
            raise InputError(f"--output {self.output}: is a file; give a directory")
        others = [path.name for path in self.output.iterdir() if path.name != WORK]
        if others and not (self.work / _RUN).exists():
            raise InputError(
                f"--output {self.output}: there is something in it ({min(others)}), and no "
                "unfinished run; give a new directory"
            )

    def _take_lock(self) -> None:
        self._lock = (self.work / _LOCK).open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"--output {self.output}: another process is writing it; wait for its end"
            ) from error

    def close(self) -> None:
        """Lets the directory go; the run stays as it is."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def directory(self, stage: str) -> Path:
        """The directory of a stage's parts."""
        path = self.work / stage
        path.mkdir(exist_ok=True)
        return path

    def finished(self, stage: str) -> Any | None:
        """What `finish` was given; None where the stage is not finished."""
        try:
            return json.loads((self.work / f"{stage}.json").read_bytes())
        except FileNotFoundError:
            return None

    def finish(self, stage: str, found: Mapping[str, Any]) -> None:
        """Records that a stage is finished, and what it found."""
        content = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")
        write_atomically(self.work / f"{stage}.json", content)

    def discard(self, stage: str) -> None:
        """Removes the parts of a stage that no later one needs."""
        shutil.rmtree(self.work / stage, ignore_errors=True)

    def remove(self) -> None:
        """Removes all that is not output."""
        self.close()
        shutil.rmtree(self.work, ignore_errors=True)


def refuse_other(output: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses a directory in which another run was begun or finished.

    Raises:
      InputError: naming the first thing that differs.
    """
    for name, was, wanted in differences(before, now):
        raise InputError(
            f"--output {output}: holds another run: {name} was {_short(was)}, and is now "
            f"{_short(wanted)}; give another directory, or remove this one"
        )


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two trees of JSON differ: the path, what was there, and what is there now."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            where = f"{name}.{key}" if name else key
            yield from differences(before.get(key), now.get(key), where)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (was, wanted) in enumerate(zip(before, now, strict=True)):
            yield from differences(was, wanted, f"{name}[{index}]")
    elif before != now:
        yield name, before, now


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} entries"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 100 else f"{text[:97]}..."
