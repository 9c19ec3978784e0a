"""An output file that a killed command goes on with.

    with resumable_writer("out.jsonl", identity={"input": "in.jsonl", "seed": 0}, chunk=64) as file:
        for records in answers_after(file.done):    # 64 at a time, the last time perhaps fewer
            file.write(*records)

Lines go to out.jsonl.partial, which takes the name out.jsonl when it is whole, so that nothing
half-written ever has that name. out.jsonl.partial.json says which command they belong to. The same
command cuts a torn line and what else is behind the last whole chunk, and goes on there, so that
its batches are those of a command that was left alone. Another command touches neither file: it
says what differs, and stops.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import naming, write_atomically
from t5x_lite.data.formats.lines import encode, writing

_logger = logging.getLogger(__name__)


class ResumableWriter:
    """Writes objects, one a line, behind those that are there.

    Attributes:
      done: objects that are written, those of an earlier process included.
      failed: whether the file could not be written, as on a full disk.
    """

    def __init__(self, file: BinaryIO, *, done: int, path: str):
        self._descriptor = file.fileno()
        self._size = file.seek(0, os.SEEK_END)
        self._path = path
        self.done = done
        self.failed = False

    def write(self, *records: Mapping[str, Any]) -> None:
        """Writes a chunk of objects; they are on the disk when it returns.

        Raises:
          InputError: they cannot be written.
        """
        content, self.failed = encode(records), True
        with writing(self._path):
            while content:  # not by the file, which would try again when it is closed
                size = os.pwrite(self._descriptor, content, self._size)
                content, self._size = content[size:], self._size + size
            os.fsync(self._descriptor)
        self.failed = False
        self.done += len(records)


def is_resumable(path: str) -> bool:
    """Whether a path leads to an ordinary file, or to none yet: not "-", a pipe or a device."""
    return path != "-" and (Path(path).is_file() or not os.path.exists(path))


@contextlib.contextmanager
def resumable_writer(
    path: str, *, identity: Mapping[str, Any], chunk: int
) -> Iterator[ResumableWriter]:
    """Opens an output that goes on where the same command was killed.

    After an error or an interruption the lines stay for the next try, unless the input is what was
    wrong (InputError) and all of them are this process's own.

    Args:
      path: an ordinary file, or none yet.
      identity: what makes two commands the same, as JSON.
      chunk: objects that are written at a time.

    Raises:
      InputError: the file cannot be written, another process writes the same output, or
        FILE.partial holds something else than lines of this command; it is left as it was.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(f"{target.name}.partial")
    state = partial.with_name(f"{partial.name}.json")
    with _locked(partial, path=path) as file:
        with writing(path):
            resumed = _resume(
                file, state, path=path, identity=json.loads(json.dumps(identity)), chunk=chunk
            )
        if resumed:
            _logger.info("resuming after %d lines of %s", resumed, partial)
        writer = ResumableWriter(file, done=resumed, path=path)
        try:
            yield writer
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
            partial.replace(target)
        except BaseException as error:
            wrong_input = isinstance(error, InputError) and not writer.failed
            if not writer.done or (wrong_input and not resumed):
                partial.unlink(missing_ok=True)
                state.unlink(missing_ok=True)
            else:
                _logger.info(
                    "%d lines are in %s; the same command resumes there", writer.done, partial
                )
            raise
        state.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(partial: Path, *, path: str) -> Iterator[BinaryIO]:
    """Opens the file for this process alone."""
    try:
        file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        if not _lock(file, partial):
            raise InputError(
                f"{path}: another process is writing it; wait for that, or give another output"
            )
        yield file
    finally:
        with naming(path):  # what a full disk did not take is written again
            file.close()


def _lock(file: BinaryIO, partial: Path) -> bool:
    """Whether the file could be locked, and has not been given its last name meanwhile."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), partial.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:  # a file system without locks
        _logger.debug("%s is not locked: %s", partial, error)
        return True


def _resume(file: BinaryIO, state: Path, *, path: str, identity: Any, chunk: int) -> int:
    """Cuts what this command did not write whole, and returns how many lines are left.

    Raises:
      InputError: the file is not this command's.
    """
    done, end, size = 0, 0, 0
    known = _read(state)
    if known == identity:
        for number, line in enumerate(file, start=1):
            if not (line.startswith(b"{") and line.endswith(b"}\n")):
                break
            size += len(line)
            if number % chunk == 0:
                done, end = number, size
    elif file.read(1):
        raise InputError(
            f"{state.with_suffix('')} holds {_origin(known, identity)}; give that one again, "
            f"delete the file, or give another output than {path}"
        )
    file.seek(end)
    file.truncate()
    if known != identity:
        write_atomically(state, json.dumps(identity, indent=1).encode() + b"\n")
    return done


def _read(state: Path) -> Any:
    try:
        return json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _origin(known: Any, identity: Mapping[str, Any]) -> str:
    """Whose the lines are: what differs, by name."""
    if not isinstance(known, dict):
        return "what no command that is known here wrote"
    names = [name for name in {**known, **identity} if known.get(name) != identity.get(name)]
    return f"lines of another command (other {', '.join(names)})"
