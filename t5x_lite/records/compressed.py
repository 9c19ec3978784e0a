"""Text files that may be compressed: plain, gzip's .gz, Zstandard's .zst, and .xz.

    with open_text("prose.txt.gz") as file:     # bytes, as of open(path, "rb")
        for line in file: ...
    plain_name("c4-train.00000-of-01024.json.gz")     # "c4-train.00000-of-01024.json"

A file may hold several members or frames one after another. One that was cut off, or is damaged,
is an error that names it, and never a shorter text. Paths may be of buckets.
"""

import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from t5x_lite.buckets.paths import open_stream
from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.files import LONGEST_LINE
from t5x_lite.remote import is_remote

COMPRESSED = (".gz", ".zst", ".xz")
_INPUT_BYTES = 1 << 12
"""Of a .zst file at a time: a few bytes of it may stand for 128 KiB."""


def is_compressed(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name says that it is compressed."""
    return os.fspath(path).endswith(COMPRESSED)


def plain_name(path: str | os.PathLike[str]) -> str:
    """The path without the ending of a compressed file."""
    text = os.fspath(path)
    ending = next((each for each in COMPRESSED if text.endswith(each)), "")
    return text.removesuffix(ending)


def open_text(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens a file whose bytes are those of the text.

    Raises:
      OSError: it cannot be read.
      InputError: while it is read, it turns out to be cut off or damaged, or a package is missing.
    """
    return _named(path, decompressed(path))


LARGEST_WHOLE = 512 << 20
"""Maximum bytes of a file that is taken apart in memory at once."""
_EXPANSION = 200
"""Times its own size that a compressed file of more than 64 MiB of text may come to."""


def read_whole(path: str | os.PathLike[str], *, most: int = LARGEST_WHOLE) -> bytes:
    """Read the text of a file that is taken apart in memory at once.

    Raises:
      OSError: it cannot be read.
      InputError: it is damaged, has more bytes than `most`, or is compressed and expands to more
        than 200 times its size.
    """
    allowed = most
    if is_compressed(path) and not is_remote(path):
        allowed = min(most, max(LONGEST_LINE, _EXPANSION * os.stat(path).st_size))
    with open_text(path) as file:
        content = file.read(allowed + 1)
    if len(content) > allowed:
        raise InputError(
            f"{path}: has more than {allowed:,} bytes of text, which is read at once; divide it"
            + (", or decompress it first if its size is right" if allowed < most else "")
        )
    return content


@contextlib.contextmanager
def _named(path: str | os.PathLike[str], file: BinaryIO) -> Iterator[BinaryIO]:
    with file, naming_damage(path):
        yield file


def decompressed(path: str | os.PathLike[str]) -> BinaryIO:
    """The same file without the naming of errors; read it within `naming_damage`."""
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
    """Raises InputError, with the file, where compressed bytes cannot be read."""
    try:
        yield
    except EOFError as error:
        raise InputError(f"{path}: the file was cut off: copy or download it again") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, _ZstandardError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: damaged, or not compressed as its name says ({reason})"
        ) from error


def _opened(path: str | os.PathLike[str]) -> Any:
    if not is_remote(path):
        return open(path, "rb")
    return open_stream(os.fspath(path))


class _Gzip(gzip.GzipFile):
    """The bytes of a .gz file, which is closed with it: GzipFile leaves open what it was given."""

    def close(self) -> None:
        file: Any = self.fileobj
        super().close()
        if file is not None:
            file.close()


class _Xz(io.RawIOBase):
    """The bytes of an .xz file, which is closed with it.

    A header may ask for a dictionary of 4 GiB; LZMAFile would give it that memory.
    """

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
    """What the package zstandard raises; it may not be installed."""


class _Zstandard(io.RawIOBase):
    """The bytes of a .zst file, whose end is seen to be the end of a frame."""

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
