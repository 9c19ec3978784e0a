"""Resumable output of commands: JSON lines, rows of an array, or a directory.

    with resumable_writer("out.jsonl", identity={"input": "in.jsonl", "seed": 0}, chunk=64) as file:
        for records in answers_after(file.done):    # 64 at a time, the last time perhaps fewer
            file.write(*records)

A command writes OUTPUT.partial, and renames it to OUTPUT when it is complete. The identity of the
command is stored next to OUTPUT.partial. If a killed command runs again, it truncates the output
after the last complete chunk and continues there, with the same batches as an uninterrupted
command. A command with another identity raises an error that lists the differences.

| | OUTPUT.partial | stored identity |
|---|---|---|
| `resumable_writer` | JSON lines | OUTPUT.partial.json |
| `resumable_array` | rows of a .npy file | OUTPUT.partial.json |
| `resumable_directory` | a directory, with `AppendedFiles` inside | identity.json in the directory
|
"""

import contextlib
import fcntl
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import locked, naming, reason, write_atomically, writing

if TYPE_CHECKING:  # commands' options are shown without NumPy
    import numpy as np

IDENTITY, PROGRESS = "identity.json", "progress.json"

_logger = logging.getLogger(__name__)


def encode(records: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode objects as JSON lines.

    Raises:
      ValueError: if a number is NaN or infinite, which JSON does not allow.
    """
    return "".join(
        json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records
    ).encode()


def identity_of_file(path: str | os.PathLike[str]) -> list[Any]:
    """Return a file's absolute path, size and modification time; for a URL, only the URL."""
    name = os.fspath(path)
    if "://" in name:
        return [name]
    try:
        stat = os.stat(name)
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({reason(error)})") from error
    return [os.path.abspath(name), stat.st_size, stat.st_mtime_ns]


def check_same(
    known: Any, identity: Mapping[str, Any], *, place: object, content: str, output: object
) -> None:
    """Raise InputError if an existing output was written with another command or other settings.

    Args:
      known: stored command and settings of the existing output; None if they cannot be read.
      identity: this command and its settings.
      place: path of the existing output.
      content: content of the output, such as "lines".
      output: the --output option, for the message.
    """
    asked = json.loads(json.dumps(identity))
    if known == asked:
        return
    what = "output of an unknown command"
    if isinstance(known, dict):
        names = [name for name in {**known, **asked} if known.get(name) != asked.get(name)]
        what = f"{content} of another command (other {', '.join(names)})"
    raise InputError(
        f"{place} contains {what}; run the command that wrote the file again, delete the file, or "
        f"choose another output than {output}"
    )


# Files.


class Sink(Protocol):
    """Writer of a resumable file.

    Attributes:
      done: number of written entries, including entries of an earlier process.
      failed: True if a write failed, for example on a full disk.
    """

    done: int
    failed: bool

    def finish(self) -> None:
        """Write the parts of the file that depend on its final length, such as a header."""
        ...


_Sink = TypeVar("_Sink", bound=Sink)


class ResumableWriter:
    """Writer that appends JSON objects to a file, one per line.

    Attributes:
      done: number of written objects, including objects of an earlier process.
      failed: True if a write failed, for example on a full disk.
    """

    def __init__(self, file: BinaryIO, *, chunk: int, path: str):
        self._descriptor, self._path, self.failed = file.fileno(), path, False
        self.done, self._size = _whole_lines(file, chunk)

    def write(self, *records: Mapping[str, Any]) -> None:
        """Write a chunk of objects, and wait until they are on the disk.

        Raises:
          InputError: if the file cannot be written.
        """
        content, self.failed = encode(records), True
        with writing(self._path):
            self._size = _append(self._descriptor, content, self._size)
            os.fsync(self._descriptor)
        self.failed = False
        self.done += len(records)

    def finish(self) -> None: ...


class ResumableArray:
    """Writer that appends rows of one shape to a .npy file.

    Attributes:
      done: number of written rows, including rows of an earlier process.
      failed: True if a write failed, for example on a full disk.
      shape: shape of a row; None before the first row.
    """

    def __init__(self, file: BinaryIO, *, chunk: int = 1, path: str):
        self._descriptor, self._path, self.failed = file.fileno(), path, False
        self.done, self._size = 0, 0
        self.shape: tuple[int, ...] | None = None
        self._dtype: Any = None
        if os.fstat(self._descriptor).st_size:
            self._resume(file, chunk)

    def _resume(self, file: BinaryIO, chunk: int) -> None:
        import numpy as np

        file.seek(0)
        with contextlib.suppress(ValueError, EOFError):
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            row = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
            start = file.tell()
            rows = (os.fstat(self._descriptor).st_size - start) // max(1, row)
            self.done, self.shape, self._dtype = rows // chunk * chunk, shape[1:], dtype
            self._size = start + self.done * row
        if not self.done:
            self._size, self.shape = 0, None
        os.ftruncate(self._descriptor, self._size)

    def write(self, rows: "np.ndarray", *, sync: bool = True) -> None:
        """Write a chunk of rows, and wait until they are on the disk if `sync` is True.

        Raises:
          InputError: if the file cannot be written, or if shape or dtype differ from earlier rows.
        """
        import numpy as np

        self.failed = True
        if self.shape is None:
            self.shape, self._dtype = rows.shape[1:], rows.dtype
            with writing(self._path):
                self._size = _append(self._descriptor, self._header(), 0)
        if rows.shape[1:] != self.shape or rows.dtype != self._dtype:
            raise InputError(
                f"{self._path}: the unfinished output has rows {self._dtype}{list(self.shape)}, "
                f"but new rows are {rows.dtype}{list(rows.shape[1:])}; delete the unfinished file"
            )
        with writing(self._path):
            content = np.ascontiguousarray(rows).tobytes()
            self._size = _append(self._descriptor, content, self._size)
            if sync:
                os.fsync(self._descriptor)
        self.failed = False
        self.done += len(rows)

    def finish(self) -> None:
        """Write the final number of rows into the header of the .npy file."""
        if self.shape is not None:
            with writing(self._path):
                _append(self._descriptor, self._header(), 0)
                os.fsync(self._descriptor)

    def _header(self) -> bytes:
        """Return the .npy header, which has the same length for every number of rows."""
        import numpy as np

        file = io.BytesIO()
        entries: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
        }
        entries["shape"] = (self.done, *(self.shape or ()))
        np.lib.format.write_array_header_1_0(file, entries)
        return file.getvalue()


def _append(descriptor: int, content: bytes, size: int) -> int:
    while content:  # not by the file, which would try again when it is closed
        written = os.pwrite(descriptor, content, size)
        content, size = content[written:], size + written
    return size


def _whole_lines(file: BinaryIO, chunk: int) -> tuple[int, int]:
    """Truncate a file of JSON objects to the largest complete multiple of `chunk` lines."""
    done, end, size = 0, 0, 0
    file.seek(0)
    for number, line in enumerate(file, start=1):
        if not (line.startswith(b"{") and line.endswith(b"}\n")):
            break
        size += len(line)
        if number % chunk == 0:
            done, end = number, size
    os.ftruncate(file.fileno(), end)
    return done, end


def is_resumable(path: str) -> bool:
    """Return True if a path is an ordinary file or missing; False for "-", pipes and devices."""
    return path != "-" and (Path(path).is_file() or not os.path.exists(path))


def resumable_writer(
    path: str,
    *,
    identity: Mapping[str, Any],
    chunk: int,
    complete: Callable[[Path, Path], object] = Path.replace,
) -> contextlib.AbstractContextManager[ResumableWriter]:
    """Open a JSON Lines file for writing; after a kill, the same command can continue the file.

    After an error or an interruption, OUTPUT.partial stays for the next start of the command. It is
    removed only after invalid input (InputError) before `complete`, and if no lines are from an
    earlier start.

    Args:
      path: path of an ordinary file, or of a file to create.
      identity: JSON object that identifies the command.
      chunk: number of objects per write.
      complete: function of OUTPUT.partial and OUTPUT that is called at the end. It must remove
        OUTPUT.partial last, because it is called again after a kill.

    Raises:
      InputError: if the file cannot be written, another process writes it, or OUTPUT.partial is
        from another command.
    """
    return _resumable_file(
        path,
        identity,
        "lines",
        lambda file: ResumableWriter(file, chunk=chunk, path=path),
        complete=complete,
    )


def resumable_array(
    path: str, *, identity: Mapping[str, Any], chunk: int
) -> contextlib.AbstractContextManager[ResumableArray]:
    """Open a .npy file for writing; after a kill, the same command can continue the file.

    Args:
      path: path of an ordinary file, or of a file to create.
      identity: JSON object that identifies the command.
      chunk: number of rows per write.
    """
    return _resumable_file(
        path, identity, "rows", lambda file: ResumableArray(file, chunk=chunk, path=path)
    )


@contextlib.contextmanager
def _resumable_file(
    path: str,
    identity: Mapping[str, Any],
    content: str,
    sink: Callable[[BinaryIO], _Sink],
    *,
    complete: Callable[[Path, Path], object] = Path.replace,
) -> Iterator[_Sink]:
    """Yield the writer of a resumable file; complete the file if the `with` block succeeds."""
    target = Path(os.path.realpath(path))
    partial = target.with_name(f"{target.name}.partial")
    state = partial.with_name(f"{partial.name}.json")
    with _locked_file(partial, path=path) as file:
        with writing(path):
            if file.read(1):
                known = _stored(state)
                check_same(known, identity, place=partial, content=content, output=path)
            else:
                write_atomically(state, json.dumps(identity, indent=1).encode() + b"\n")
            writer = sink(file)
        resumed, is_whole = writer.done, False
        if resumed:
            _logger.info(
                "resuming an unfinished output after %d %s of %s", resumed, content, partial
            )
        try:
            yield writer
            writer.finish()
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
            is_whole = True
            complete(partial, target)
        except BaseException as error:
            wrong_input = isinstance(error, InputError) and not writer.failed
            useless = wrong_input and not resumed and not is_whole
            if not writer.done or useless or not partial.exists():
                partial.unlink(missing_ok=True)
                state.unlink(missing_ok=True)
            else:
                _logger.info(
                    "saved %d %s in %s; run the same command again to resume",
                    writer.done,
                    content,
                    partial,
                )
            raise
        state.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked_file(partial: Path, *, path: str) -> Iterator[BinaryIO]:
    try:
        file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        if not _lock(file, partial):
            raise InputError(
                f"{path}: another process is writing this output; wait until that process ends, "
                "or give another output"
            )
        yield file
    finally:
        with naming(path):  # buffered content is written again if the disk was full
            file.close()


def _lock(file: BinaryIO, partial: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), partial.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:  # a file system without locks
        _logger.debug("using %s without a lock, because locking failed: %s", partial, error)
        return True


def _stored(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


# Directories.


@contextlib.contextmanager
def resumable_directory(
    output: str | os.PathLike[str],
    *,
    identity: Mapping[str, Any],
    content: str = "a part",
    scratch: bool = False,
) -> Iterator[Path]:
    """Yield the directory OUTPUT.partial, and rename it to OUTPUT when the `with` block succeeds.

    After an error or an interruption, the directory stays for the next start of the command. It is
    removed if it is empty, or after invalid input (InputError) if no files are from an earlier
    start.

    Args:
      output: path to create; it may be an empty directory.
      identity: JSON object that identifies the command, stored as identity.json in the directory.
      content: content of the directory, for error messages.
      scratch: True to remove the directory at the end instead of renaming it; `output` may then
        exist.

    Raises:
      InputError: if the output exists or cannot be written, another process writes it, or
        OUTPUT.partial is from another command.
    """
    target = Path(output)
    if not scratch and target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target} already exists; delete it, or choose another output")
    partial = target.with_name(f"{target.name}.partial")
    try:
        made = [parent for parent in partial.parents if not parent.exists()]
        partial.mkdir(parents=True, exist_ok=True)
        with locked(partial, output=target):
            resumed = bool(_files_in(partial))
            if resumed:
                known = _stored(partial / IDENTITY)
                check_same(known, identity, place=partial, content=content, output=target)
            encoded = json.dumps(identity, indent=1).encode() + b"\n"
            write_atomically(partial / IDENTITY, encoded)  # also as a later version has it
            try:
                yield partial
                if not scratch:
                    os.replace(partial, target)
            except BaseException as error:
                wrong_input = isinstance(error, InputError)
                wrong_input = wrong_input and not isinstance(error.__cause__, OSError)
                if (wrong_input and not resumed) or not _files_in(partial):
                    shutil.rmtree(partial, ignore_errors=True)
                    for parent in made:
                        with contextlib.suppress(OSError):
                            parent.rmdir()
                raise
            if scratch:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        place = partial if error.filename is None else Path(os.fsdecode(error.filename)).absolute()
        if partial.absolute() not in (place, *place.parents):
            raise
        raise InputError(f"{target}: cannot be written ({reason(error)})") from error


def _files_in(directory: Path) -> list[str]:
    names = (path.name for path in directory.iterdir())
    return [name for name in names if name != IDENTITY and not name.startswith(f".{IDENTITY}.")]


class AppendedFiles:
    """Files in a resumable directory that are appended to and committed together.

    If the command is killed, the files are truncated to their sizes at the last `commit`.

    Args:
      directory: directory of `resumable_directory`.

    Attributes:
      done: number of entries at the last commit, as stored in progress.json.
    """

    def __init__(self, directory: Path):
        self._directory, self._stack = directory, contextlib.ExitStack()
        self._files: dict[str, BinaryIO] = {}
        known = _stored(directory / PROGRESS) or {"done": 0, "sizes": {}}
        self.done: int = known["done"]
        for path in directory.iterdir():
            if path.name not in (IDENTITY, PROGRESS, *known["sizes"]):
                path.unlink()
        for name, size in known["sizes"].items():
            os.truncate(directory / name, size)

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading and writing, positioned at its end."""
        if name not in self._files:
            path = self._directory / name
            path.touch()
            self._files[name] = self._stack.enter_context(path.open("r+b"))
            self._files[name].seek(0, os.SEEK_END)
        return self._files[name]

    def commit(self, done: int) -> None:
        """Flush all files to the disk, and record `done` entries in progress.json."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}
        content = json.dumps({"done": done, "sizes": sizes})
        write_atomically(self._directory / PROGRESS, content.encode())
        self.done = done

    def close(self, *, whole: bool) -> None:
        """Close the files; if `whole` is True, also delete progress.json and identity.json."""
        self._stack.close()
        if whole:
            (self._directory / PROGRESS).unlink(missing_ok=True)
            (self._directory / IDENTITY).unlink(missing_ok=True)
