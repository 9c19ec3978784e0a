"""JSON lines in and out: what `predict` and `score` read and write.

    for example in read_examples("inputs.jsonl", fields=("inputs",)):
        example.record["inputs"]

Reading streams. Writing, too, but the file takes its name when it is whole; `resumable` writes one
that a killed command goes on with.
"""

import contextlib
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE, open_atomically, without_bom
from t5x_lite.records.compressed import open_text

NUMBER_LIMIT = 2**32
"""Of the fields that `read_examples` takes for numbers: they fit 32 bits."""


class Line(NamedTuple):
    """One object and where it stands, as "file:line"."""

    where: str
    record: dict[str, Any]


def read_examples(
    path: str,
    *,
    fields: Sequence[str],
    optional: Sequence[str] = (),
    numbers: Sequence[str] = (),
    skip: int = 0,
    longest: int = LONGEST_LINE,
) -> Iterator[Line]:
    """Reads objects that have the given fields, each a string; blank lines are passed over.

    Args:
      path: a file in UTF-8, which may be compressed (.gz, .zst); "-" is standard input.
      fields: fields that every object must have.
      optional: fields that must be strings where an object has them.
      numbers: fields that must be whole numbers in [0, 2**32) where an object has them.
      skip: objects at the beginning that are passed over, unread.
      longest: bytes of a line at most.

    Raises:
      InputError: naming file and line: unreadable, not UTF-8, too long, not a JSON object, a field
        missing.
        NaN and infinity, which Python's json takes, are no JSON.
    """
    name = "standard input" if path == "-" else path
    with _open(path) as lines:
        numbered = enumerate(without_bom(lines_of(lines, name=name, longest=longest)), start=1)
        filled = ((number, line) for number, line in numbered if line.strip())
        for number, line in itertools.islice(filled, skip, None):
            found = parse_object(line, where=f"{name}:{number}", fields=fields, optional=optional)
            for field in numbers:
                check_number(found, field)
            yield found


def lines_of(file: Any, *, name: str, longest: int) -> Iterator[bytes]:
    """The lines of a file, of which no more than a line is ever in memory.

    Args:
      file: open for reading.
      name: for the message.
      longest: bytes of a line at most, its end included.

    Raises:
      InputError: a line is longer, of which no more was read.
    """
    lines = iter(functools.partial(file.readline, longest + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > longest:
            raise InputError(too_long(name, number, longest))
        yield line


def too_long(name: str, number: int, longest: int) -> str:
    """The message about a line, from 1, of more than so many bytes."""
    return (
        f"{name}:{number}: the line has more than {longest} bytes: divide it, or raise "
        "--longest-line where the command has it (predict, score, embed)"
    )


def _open(path: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open_text(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def parse_object(
    line: bytes, *, where: str, fields: Sequence[str], optional: Sequence[str]
) -> Line:
    """The object of a line; see `read_examples`.

    Raises:
      InputError: naming the place.
    """
    try:
        record = _DECODER.decode(line.decode("utf-8").rstrip())
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start}); convert the file") from error
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # "Unterminated string starting at"
        raise InputError(f"{where}: not JSON ({what} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise InputError(f"{where}: not JSON that can be read ({error})") from error
    check_surrogates(record, line, where=where)
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be a JSON object, got {type(record).__name__}")
    for field in fields:
        if field not in record:
            raise InputError(
                f'{where}: must have "{field}", a string; it has {sorted(record) or "nothing"}'
            )
    for field in (*fields, *optional):
        if not isinstance(record.get(field, ""), str):
            raise InputError(
                f'{where}: "{field}" must be a string, got {type(record[field]).__name__}'
            )
    return Line(where, record)


def parse_json(content: bytes, *, where: str) -> Any:
    """Parse the JSON of a file that people give.

    Args:
      content: UTF-8.
      where: the place, for messages.

    Raises:
      InputError: it is not UTF-8 or not JSON, nests too deep, or has half a surrogate pair.
    """
    try:
        found = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start}); convert the file") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where}: not JSON that can be read ({error})") from error
    check_surrogates(found, content, where=where)
    return found


def check_surrogates(found: Any, content: str | bytes, *, where: str) -> None:
    """Raise InputError if JSON has an escaped half of a surrogate pair.

    Args:
      found: the parsed value.
      content: its source.
      where: the place, for the message.
    """
    if isinstance(content, bytes):
        escaped = b"\\u" in content and b"\\ud" in content.lower()
    else:
        escaped = "\\ud" in content.lower()
    if escaped and not _is_text(found):
        raise InputError(f"{where}: half of a surrogate pair (\\ud...) is not text; remove it")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large for a float")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def check_number(line: Line, field: str) -> None:
    """Refuses a field that is no whole number in [0, 2**32); a line may lack it.

    Raises:
      InputError: naming file, line and field.
    """
    value = line.record.get(field, 0)
    if type(value) is not int or not 0 <= value < NUMBER_LIMIT:
        raise InputError(
            f'{line.where}: "{field}" must be a whole number from 0 to {NUMBER_LIMIT - 1}, got '
            f"{json.dumps(value)[:40]}"
        )


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
      InputError: it cannot be written.
    """
    if path == "-":
        yield Writer(sys.stdout.buffer)
        return
    with contextlib.ExitStack() as stack:
        with writing(path):
            file = stack.enter_context(open_atomically(path))
        yield Writer(file, path)
        with writing(path):
            stack.close()


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Around what writes an output: says which one it was, of which a full disk says nothing.

    Raises:
      InputError: it cannot be written.
    """
    try:
        yield
    except BrokenPipeError:  # the reader has gone, as head does
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


class Writer:
    """Writes objects, one a line, non-ASCII characters as they are.

    Attributes:
      done: objects that were there at the start, which is none.
    """

    done = 0

    def __init__(self, file: Any, path: str = "standard output"):
        self._file = file
        self._path = path

    def write(self, *records: Mapping[str, Any]) -> None:
        """Writes objects, and hands them on at once."""
        content = encode(records)
        with writing(self._path):
            self._file.write(content)
            self._file.flush()

    def write_text(self, text: str) -> None:
        """Writes text as it is; what was written may be seen later only."""
        with writing(self._path):
            self._file.write(text.encode())


def encode(records: Iterable[Mapping[str, Any]]) -> bytes:
    """The lines of objects.

    Raises:
      ValueError: a number is NaN or infinite, which JSON does not have.
    """
    return "".join(
        json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records
    ).encode()
