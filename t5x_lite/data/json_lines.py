"""JSON lines in and out: what `predict` and `score` read and write.

    for example in read_examples("inputs.jsonl", fields=("inputs",)):
        example.record["inputs"]

Reading streams; writing goes to a temporary file that takes its name when it is whole.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from t5x_lite.errors import InputError


class Line(NamedTuple):
    """One object and where it stands, as "file:line"."""

    where: str
    record: dict[str, Any]


def read_examples(path: str, *, fields: Sequence[str]) -> Iterator[Line]:
    """Reads objects that have the given fields, each a string; blank lines are passed over.

    Args:
      path: a file in UTF-8; "-" is standard input.
      fields: fields that every object must have.

    Raises:
      InputError: naming file and line: unreadable, not UTF-8, not a JSON object, a field missing.
    """
    name = "standard input" if path == "-" else path
    with _open(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parse(line, where=f"{name}:{number}", fields=fields)


def _open(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _parse(line: bytes, *, where: str, fields: Sequence[str]) -> Line:
    try:
        record = json.loads(line.decode("utf-8").rstrip())
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start}); convert the file") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise InputError(f"{where}: not JSON that can be read ({error})") from error
    if b"\\ud" in line.lower() and not _is_text(record):
        raise InputError(f"{where}: half of a surrogate pair (\\ud...) is not text; remove it")
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be a JSON object, got {type(record).__name__}")
    for field in fields:
        if not isinstance(record.get(field), str):
            raise InputError(
                f'{where}: must have "{field}", a string; it has {sorted(record) or "nothing"}'
            )
    return Line(where, record)


def _is_text(record: Any) -> bool:
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def writer(path: str) -> Iterator["Writer"]:
    """Opens an output that appears whole, or not at all; "-" is standard output.

    Raises:
      InputError: the directory cannot be written.
    """
    if path == "-":
        yield Writer(sys.stdout)
        return
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{path}: cannot be written (Is a directory)")
    if target.exists() and not target.is_file():  # a pipe or a device is written to, not replaced
        with target.open("w", encoding="utf-8") as file:
            yield Writer(file)
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        file = temporary.open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with file:
            yield Writer(file)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


class Writer:
    """Writes objects, one a line, non-ASCII characters as they are."""

    def __init__(self, file: Any):
        self._file = file

    def write(self, record: Mapping[str, Any]) -> None:
        """Writes one object."""
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
