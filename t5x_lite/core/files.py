"""Atomic writing of files and directories: a path holds the complete new content or the old one.

    write_atomically("runs/tiny/report.html", page.encode())

    with open_atomically("answers.jsonl") as file:
        for line in lines:
            file.write(line)

The bytes are written to a hidden file next to the target. When all of them are on the disk, the
hidden file is renamed to the target. If the target is a symbolic link, the file behind it is
replaced. A device or a pipe, such as /dev/stdout, cannot be replaced, so it is written directly.
"""

import codecs
import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from t5x_lite.core.errors import InputError, shown

_unfinished: dict[str, tuple[str, ...]] = {}
"""Unfinished path -> parent directories created for it; used by `remove_unfinished`."""

LONGEST_LINE = 64 << 20
"""Default maximum size in bytes of a line that is read into memory."""


def plain_json(content: str | bytes) -> Any:
    """Parse a JSON text; raise ValueError if its value cannot be encoded as UTF-8."""
    value = json.loads(content)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def inside(directory: Path, name: object, *, where: object) -> Path:
    """Join a directory and an untrusted path; raise InputError if it leaves the directory."""
    parts = Path(name).parts if isinstance(name, str) and "\0" not in name else ("/",)
    if ".." in parts or Path(*parts).is_absolute() or "\\" in str(name):
        raise InputError(
            f"{where}: the path {shown(name)} must be inside the directory {directory}"
        )
    return directory.joinpath(*parts)


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that its path always holds the complete new or the complete old content."""
    with open_atomically(path) as file:
        file.write(content)


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing; it replaces `path` when the `with` block ends without an error."""
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if mode is not None and not stat.S_ISREG(mode):
        with _opened(Path(path)) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished(temporary), _opened(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except OSError as error:
        _name_target(error, temporary, path)
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def unfinished(
    path: str | os.PathLike[str], *, parents: Iterable[str | os.PathLike[str]] = ()
) -> Iterator[None]:
    """Let `remove_unfinished` delete a path if the process ends within the `with` block.

    The block must remove the path itself after an error.
    """
    name = os.fspath(path)
    _unfinished[name] = tuple(os.fspath(parent) for parent in parents)
    try:
        yield
    finally:
        _unfinished.pop(name, None)


@contextlib.contextmanager
def locked(directory: Path, *, output: str | os.PathLike[str]) -> Iterator[None]:
    """Hold an exclusive lock on a directory within the `with` block.

    Nothing is locked if the file system has no locks.

    Raises:
      InputError: if another process holds the lock.
    """
    descriptor = None
    try:
        try:
            descriptor = os.open(directory, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own = os.path.samestat(os.fstat(descriptor), os.stat(directory))
        except (BlockingIOError, FileNotFoundError):
            own = False
        except OSError:
            own = True
        if not own:
            raise InputError(
                f"{output}: another process is writing this output; wait until that process ends, "
                "or give another output"
            )
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def scratch_directory(
    path: Path, *, output: str | os.PathLike[str] | None = None
) -> Iterator[Path]:
    """Yield a new temporary directory, and remove it after the `with` block unless it was renamed.

    After an error, parent directories that did not exist before are removed too.
    """
    output = path if output is None else output
    made = [parent for parent in path.parents if not parent.exists()]
    if path.exists():
        with locked(path, output=output):
            shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path, output=output), _removed_after(path, made):
        yield path


@contextlib.contextmanager
def _removed_after(path: Path, made: list[Path]) -> Iterator[None]:
    try:
        with unfinished(path, parents=made):
            yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def made_directory(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Create a directory and its parents; after an error, remove the empty directories again."""
    path = Path(directory)
    made = [one for one in (path, *path.parents) if not one.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in made:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise


def remove_unfinished() -> None:
    """Delete unfinished output files and directories before the process exits."""
    for name, parents in list(_unfinished.items()):
        if os.path.isdir(name):
            shutil.rmtree(name, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(name)
        for parent in parents:
            with contextlib.suppress(OSError):
                os.rmdir(parent)
    _unfinished.clear()


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise InputError with the path of an output if the `with` block cannot write it."""
    try:
        yield
    except BrokenPipeError:  # the reader has ended, as head does
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Set the file path of operating system errors that have none, such as write errors."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def sync_to_disk(path: str | os.PathLike[str]) -> None:
    """Wait until the content of a file, or the entries of a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def check_temporary_directory() -> None:
    """Raise InputError if the temporary directory cannot hold a file of 16 KiB.

    TensorFlow writes code there, and otherwise fails later with an unrelated error.
    """
    try:
        with tempfile.TemporaryFile(prefix="t5x_lite.") as file:
            file.write(bytes(1 << 14))
            file.flush()
            file.truncate(0)
    except OSError as error:
        place = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
        raise InputError(
            f"the temporary directory {place} cannot be written ({reason(error)}); free space in "
            "it, or set TMPDIR to another directory"
        ) from error


def _name_target(error: OSError, temporary: Path, path: str | os.PathLike[str]) -> None:
    unnamed = error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if unnamed or error.filename == os.fspath(temporary):
        error.filename, error.filename2 = os.fspath(path), None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing; after an error in the `with` block, ignore errors of closing it."""
    file = path.open("wb")
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
        raise
    file.close()


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def without_bom(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a UTF-8 file; a byte order mark at its beginning is removed."""
    lines = iter(lines)
    for first in lines:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from lines


def reason(error: OSError) -> str:
    """Return the reason of a file error, such as "No such file or directory"."""
    return error.strerror or type(error).__name__


@contextlib.contextmanager
def new_directory(destination: str | Path) -> Iterator[Path]:
    """Yield a temporary directory; rename it to the destination when the `with` block ends.

    After an error or an interruption, the temporary directory is removed.

    Raises:
      InputError: if the destination is a file or a directory that is not empty, or cannot be
        written.
    """
    target = Path(destination).absolute()
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{destination} exists and is not a directory; give another name")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.is_dir() and any(target.iterdir()):
            raise InputError(f"{destination} exists and is not empty; give another name")
        made = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # from a dead process with this id
            temporary.mkdir()
            with unfinished(temporary, parents=made):
                yield temporary
                os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            for parent in made:
                with contextlib.suppress(OSError):
                    parent.rmdir()
            raise
    except OSError as error:
        reason = error.strerror or error
        where = target if error.filename is None else Path(os.fsdecode(error.filename)).absolute()
        if temporary not in (where, *where.parents) and where not in (target, *target.parents):
            raise InputError(f"{where}: {reason}") from error  # a file that the block reads
        raise InputError(f"{destination} cannot be written: {where}: {reason}") from error
