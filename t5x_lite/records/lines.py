"""Lines of UTF-8 text files, compressed ones and standard input among them."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from t5x_lite.buckets.paths import data_path
from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE, reason, without_bom
from t5x_lite.records.compressed import is_compressed, open_text
from t5x_lite.records.json_lines import lines_of
from t5x_lite.remote import is_remote

LONGEST_COLUMNS = 1 << 20
"""Maximum bytes of a line of ids, numbers or tags: the columns of runs, judgments and CoNLL."""


def read_lines(paths: Sequence[str], *, longest: int = LONGEST_LINE) -> Iterator[str]:
    """Lines of UTF-8 files one after another, without their line ends; "-" is standard input.

    Files that end in .gz, .zst or .xz are compressed.

    Args:
      paths: the files.
      longest: maximum bytes of a line.

    Raises:
      InputError: at the call if no path is given or a file is missing or unreadable; while
        reading, at a line that is not UTF-8 or too long, with file and line number.
    """
    if not paths:
        raise InputError("no input file was given; name one, or - for standard input")
    for path in paths:
        if path == "-":
            continue
        if is_remote(path):
            if not data_path(path).is_file():
                raise InputError(f"{path}: {os.strerror(errno.ENOENT)}")
            continue
        # No trial opening: a pipe such as <(command) can be opened once only.
        if not os.path.exists(path):
            raise InputError(f"{path}: {os.strerror(errno.ENOENT)}")
        if os.path.isdir(path):
            raise InputError(f"{path}: {os.strerror(errno.EISDIR)}; name the files in it")
        if not os.access(path, os.R_OK):
            raise InputError(f"{path}: {os.strerror(errno.EACCES)}")
    return _read_lines(paths, longest)


def _read_lines(paths: Sequence[str], longest: int) -> Iterator[str]:
    for path in paths:
        name = "<stdin>" if path == "-" else path
        try:
            with contextlib.ExitStack() as stack:
                standard = path == "-"
                stream = sys.stdin.buffer if standard else stack.enter_context(open_text(path))
                lines = lines_of(stream, name=name, longest=longest)
                for number, line in enumerate(without_bom(lines), start=1):
                    yield _decode_line(line, where=f"{name}:{number}")
        except OSError as error:
            raise InputError(f"{name}: {reason(error)}") from error


def _decode_line(line: bytes, *, where: str) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1}); "
            f"convert the text first, for example with iconv"
        ) from error


_COUNTED = 1 << 28
"""Bytes of a file whose lines are counted in advance."""


def count_lines(path: str) -> int | None:
    """The lines of a plain file of moderate size, for progress; None of other inputs.

    Args:
      path: a file, "-" or an address.
    """
    file = Path(path)
    if is_compressed(file) or not file.is_file() or file.stat().st_size > _COUNTED:
        return None
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 16), b""))
