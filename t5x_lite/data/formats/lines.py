"""Lines of plain or compressed text, and JSON lines.

Text files may be plain, gzip's .gz, Zstandard's .zst, or .xz:

    with open_text("prose.txt.gz") as file:     # bytes, as of open(path, "rb")
        for line in file: ...
    plain_name("c4-train.00000-of-01024.json.gz")     # "c4-train.00000-of-01024.json"

A file may hold several members or frames in sequence. A truncated or damaged file raises an error
that names it. Paths may be in buckets.

JSON lines, the inputs and outputs of `predict` and `score`:

    for example in read_examples("inputs.jsonl", fields=("inputs",)):
        example.record["inputs"]

Files are read and written as streams. A written file gets its name when it is complete. The writers
in `core.jobs` write files that a killed command resumes.
"""

import contextlib
import errno
import functools
import gzip
import io
import itertools
import json
import lzma
import math
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.files import LONGEST_LINE, open_atomically, reason, without_bom, writing
from t5x_lite.core.jobs import encode
from t5x_lite.core.object_store import data_path, open_stream
from t5x_lite.core.remote import is_remote

COMPRESSED = (".gz", ".zst", ".xz")
_INPUT_BYTES = 1 << 12
"""Compressed bytes read at a time: a few bytes of a .zst file may expand to 128 KiB."""


def is_compressed(path: str | os.PathLike[str]) -> bool:
    """Return True if the name of a file ends in .gz, .zst or .xz."""
    return os.fspath(path).endswith(COMPRESSED)


def plain_name(path: str | os.PathLike[str]) -> str:
    """Return a path without the suffix .gz, .zst or .xz."""
    text = os.fspath(path)
    ending = next((each for each in COMPRESSED if text.endswith(each)), "")
    return text.removesuffix(ending)


def open_text(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[BinaryIO]:
    """Open a plain or compressed file as a stream of decompressed bytes."""
    return _named(path, decompressed(path))


LARGEST_WHOLE = 512 << 20
"""Maximum bytes of text in a file that is read at once."""
_EXPANSION = 200
"""Maximum ratio of text to compressed bytes in files with more than 64 MiB of text."""


def read_whole(path: str | os.PathLike[str], *, most: int = LARGEST_WHOLE) -> bytes:
    """Read the decompressed content of a file; raise InputError if it exceeds `most` bytes."""
    allowed = most
    if is_compressed(path) and not is_remote(path):
        allowed = min(most, max(LONGEST_LINE, _EXPANSION * os.stat(path).st_size))
    with open_text(path) as file:
        content = file.read(allowed + 1)
    if len(content) > allowed:
        raise InputError(
            f"{path}: the file has more than {allowed:,} bytes of text, but is read into memory at "
            "once; divide the file"
            + (", or decompress it first if its size is right" if allowed < most else "")
        )
    return content


@contextlib.contextmanager
def _named(path: str | os.PathLike[str], file: BinaryIO) -> Iterator[BinaryIO]:
    with file, naming_damage(path):
        yield file


def decompressed(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a plain or compressed file as a stream of decompressed bytes.

    Use the stream in a `naming_damage` block, which converts read errors to InputError.
    """
    file = _opened(path)
    if os.fspath(path).endswith(".gz"):
        return io.BufferedReader(_Gzip(fileobj=file))
    if os.fspath(path).endswith(".zst"):
        return io.BufferedReader(_Zstandard(file))
    if os.fspath(path).endswith(".xz"):
        return io.BufferedReader(_Xz(file))
    return file


@contextlib.contextmanager
def naming_damage(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert decompression errors in a `with` block to InputError with the path of the file."""
    try:
        yield
    except EOFError as error:
        raise InputError(f"{path}: the file is truncated; copy or download it again") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, _ZstandardError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: damaged, or not compressed in the format of its suffix ({reason}); copy or "
            "download it again"
        ) from error


def _opened(path: str | os.PathLike[str]) -> Any:
    if not is_remote(path):
        return open(path, "rb")
    return open_stream(os.fspath(path))


class _Gzip(gzip.GzipFile):
    """Stream of the decompressed bytes of a .gz file."""

    def close(self) -> None:
        file: Any = self.fileobj
        super().close()
        if file is not None:
            file.close()


class _Xz(io.RawIOBase):
    """Stream of the decompressed bytes of an .xz file, with limited memory."""

    def __init__(self, file: BinaryIO):
        self._file, self._stream = file, _xz_stream()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._stream.eof:
                data = self._stream.unused_data or self._more()
                while data and not data.lstrip(b"\0"):  # padding between streams
                    data = self._more()
                if not data:
                    return 0
                self._stream, data = _xz_stream(), data.lstrip(b"\0")
            else:
                data = self._more() if self._stream.needs_input else b""
                if not data and self._stream.needs_input:
                    raise EOFError
            found = self._stream.decompress(data, len(buffer))
            if found:
                buffer[: len(found)] = found
                return len(found)

    def _more(self) -> bytes:
        return self._file.read(_INPUT_BYTES)

    def close(self) -> None:
        self._file.close()
        super().close()


_XZ_MEMORY = 1 << 28


def _xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)


class _ZstandardError(Exception):
    """Decompression error of zstandard, a package that may not be installed."""


class _Zstandard(io.RawIOBase):
    """Stream of the decompressed bytes of a .zst file."""

    def __init__(self, file: BinaryIO):
        try:
            import zstandard
        except ImportError as error:
            file.close()
            raise InputError(
                f"a .zst file needs zstandard, which is missing: {install_command('zst')}"
            ) from error
        self._file, self._package = file, zstandard
        self._frame: Any = None
        self._input, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._input or self._file.read(_INPUT_BYTES)
            self._input = b""
            if not data:
                if self._frame is not None:
                    raise EOFError
                return 0
            if self._frame is None:
                self._frame = self._package.ZstdDecompressor().decompressobj()
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._package.ZstdError as error:
                raise _ZstandardError(error) from error
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


NUMBER_LIMIT = 2**32
"""Exclusive maximum of the number fields of `read_examples`, which fit 32 bits."""


class Line(NamedTuple):
    """JSON object from one line of a file, and the location of the line, "file:line"."""

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
    """Yield the JSON objects of a JSON Lines file and check their fields; skip blank lines.

    Args:
      path: path of the file; "-" is standard input.
      fields: names of required fields with strings.
      optional: names of optional fields with strings.
      numbers: names of optional fields with whole numbers from 0 to 2**32 - 1.
      skip: number of objects to skip at the start.
      longest: maximum bytes of a line.
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
    """Yield the lines of a stream; raise InputError for a line of more than `longest` bytes."""
    lines = iter(functools.partial(file.readline, longest + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > longest:
            raise InputError(too_long(name, number, longest))
        yield line


def too_long(name: str, number: int, longest: int) -> str:
    """Return the error message for a line, numbered from 1, with more than `longest` bytes."""
    return (
        f"{name}:{number}: the line has more than {longest} bytes; divide the line, or raise "
        "--longest-line (predict, score, embed)"
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
    """Parse the JSON object of one line, and check that its fields have the expected types."""
    try:
        record = _DECODER.decode(line.decode("utf-8").rstrip())
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start}); convert the file") from error
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # "Unterminated string starting at"
        raise InputError(f"{where}: not JSON ({what} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:  # deep nesting, or a number of 5000 digits
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
    """Parse the content of a JSON file; raise InputError if it is not valid JSON."""
    try:
        found = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start}); convert the file") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{where}: not JSON that can be read ({error})") from error
    check_surrogates(found, content, where=where)
    return found


def check_surrogates(found: Any, content: str | bytes, *, where: str) -> None:
    """Raise InputError if parsed JSON has an unpaired surrogate, which is not valid Unicode."""
    if isinstance(content, bytes):
        escaped = b"\\u" in content and b"\\ud" in content.lower()
    else:
        escaped = "\\ud" in content.lower()
    if escaped and not _is_text(found):
        raise InputError(f"{where}: an unpaired surrogate (\\ud...) is not valid text; remove it")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large for a float")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def check_number(line: Line, field: str) -> None:
    """Raise InputError unless a field, if present, is a whole number in [0, 2**32)."""
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
    """Open a JSON Lines file that is written atomically; "-" is standard output."""
    if path == "-":
        yield Writer(sys.stdout.buffer)
        return
    with contextlib.ExitStack() as stack:
        with writing(path):
            file = stack.enter_context(open_atomically(path))
        yield Writer(file, path)
        with writing(path):
            stack.close()


class Writer:
    """Writer of JSON objects, one per line, with non-ASCII characters unescaped.

    Attributes:
      done: always 0, because JSON Lines files are always written from the beginning.
    """

    done = 0

    def __init__(self, file: Any, path: str = "standard output"):
        self._file = file
        self._path = path

    def write(self, *records: Mapping[str, Any]) -> None:
        """Write JSON objects, one per line, and flush them."""
        content = encode(records)
        with writing(self._path):
            self._file.write(content)
            self._file.flush()

    def write_text(self, text: str) -> None:
        """Write text unchanged, without flushing."""
        with writing(self._path):
            self._file.write(text.encode())


LONGEST_COLUMNS = 1 << 20
"""Maximum bytes of a line of ids, numbers or tags, in files of runs, judgments and CoNLL."""


def read_lines(paths: Sequence[str], *, longest: int = LONGEST_LINE) -> Iterator[str]:
    """Yield the lines of UTF-8 files in sequence, without line ends; "-" is standard input.

    Files that end in .gz, .zst or .xz are decompressed.
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
        # Files are not opened as a test: a pipe such as <(command) can only be opened once.
        if not os.path.exists(path):
            raise InputError(f"{path}: {os.strerror(errno.ENOENT)}")
        if os.path.isdir(path):
            raise InputError(
                f"{path}: {os.strerror(errno.EISDIR)}; name the files in the directory"
            )
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
"""Maximum bytes of a file that `count_lines` reads."""


def count_lines(path: str) -> int | None:
    """Return the number of lines of a small plain file; None for any other file."""
    file = Path(path)
    if is_compressed(file) or not file.is_file() or file.stat().st_size > _COUNTED:
        return None
    with file.open("rb") as opened:
        return sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 16), b""))
