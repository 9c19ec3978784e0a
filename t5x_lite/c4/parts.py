"""Work files: records in groups, compressed in blocks, with a table of the blocks at the end.

    with PartWriter(path) as part:
        part.add(3, ("http://...", "text"))
        part.extra = {"pages": 1}
    Part(path).records(3)

Records are msgpack. A part is there whole or not at all. A writer holds at most `flush_bytes` of
records, however many it gets, and a reader one block.
"""

import contextlib
import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.files import open_atomically

_MAGIC = b"t5xC4p01"
_TAIL = struct.Struct("<Q8s")
_LEVEL = 1
FLUSH_BYTES = 1 << 25
_BLOCK_BYTES = 1 << 20

Group = int | str


@functools.cache
def _zstandard():
    try:
        import zstandard
    except ImportError as error:
        raise InputError(
            f"C4's work files need zstandard, which is missing: {install_command('c4')}"
        ) from error
    return zstandard


def check_installed() -> None:
    """Says, by an InputError, that the package is missing, before the work and not after it."""
    _zstandard()


class PartWriter(contextlib.AbstractContextManager["PartWriter"]):
    """Writes a part; it takes its name when the `with` block ends well.

    Attributes:
      extra: anything of dicts, lists, text and numbers, to be found in `Part.extra`.
    """

    def __init__(self, path: Path, *, flush_bytes: int = FLUSH_BYTES):
        self.extra: Any = None
        self._flush_bytes = flush_bytes
        self._blocks: list[tuple[Group, int, int]] = []
        self._waiting: dict[Group, bytearray] = {}
        self._held = self._offset = 0
        self._packer = msgpack.Packer(unicode_errors="surrogatepass")
        self._compress = _zstandard().ZstdCompressor(level=_LEVEL).compress
        self._opened = open_atomically(path)

    def __enter__(self) -> "PartWriter":
        self._file = self._opened.__enter__()
        return self

    def add(self, group: Group, record: tuple[Any, ...]) -> None:
        """Adds a record at the end of its group."""
        packed = self._packer.pack(record)
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = bytearray()
        waiting += packed
        self._held += len(packed)
        if len(waiting) >= _BLOCK_BYTES:
            self._held -= len(waiting)
            self._write(group, self._waiting.pop(group))
        elif self._held >= self._flush_bytes:
            self._flush()

    def _flush(self) -> None:
        for group, waiting in self._waiting.items():
            self._write(group, waiting)
        self._waiting.clear()
        self._held = 0

    def _write(self, group: Group, content: bytearray) -> None:
        block = self._compress(content)
        self._file.write(block)
        self._blocks.append((group, self._offset, len(block)))
        self._offset += len(block)

    def __exit__(self, *error: Any) -> bool | None:
        if error[0] is not None:
            return self._opened.__exit__(*error)
        try:
            self._flush()
            footer = self._compress(self._packer.pack((self._blocks, self.extra)))
            self._file.write(footer)
            self._file.write(_TAIL.pack(len(footer), _MAGIC))
        except BaseException as failed:
            if not self._opened.__exit__(type(failed), failed, failed.__traceback__):
                raise
        return self._opened.__exit__(None, None, None)


class Part:
    """Reads a part.

    Attributes:
      extra: what its writer was given.
    """

    def __init__(self, path: Path):
        """Reads the table of blocks.

        Raises:
          InputError: the file is damaged.
        """
        self._path = path
        self._decompress = _zstandard().ZstdDecompressor().decompress
        try:
            with path.open("rb") as file:
                end = file.seek(-_TAIL.size, os.SEEK_END)
                size, magic = _TAIL.unpack(file.read())
                if magic != _MAGIC:
                    raise ValueError("no table at its end")
                file.seek(end - size)
                blocks, self.extra = msgpack.unpackb(
                    self._decompress(file.read(size)),
                    strict_map_key=False,
                    unicode_errors="surrogatepass",
                )
        except (OSError, ValueError, struct.error, _zstandard().ZstdError) as error:
            raise InputError(
                f"{path} is damaged ({error}): remove its directory, and start again"
            ) from error
        self._blocks: dict[Group, list[tuple[int, int]]] = {}
        for group, offset, length in blocks:
            self._blocks.setdefault(group, []).append((offset, length))

    @property
    def groups(self) -> list[Group]:
        """The groups that have records."""
        return list(self._blocks)

    def records(self, group: Group) -> Iterator[list[Any]]:
        """The records of a group, as they were added."""
        blocks = self._blocks.get(group)
        if not blocks:
            return
        with self._path.open("rb") as file:
            for offset, length in blocks:
                file.seek(offset)
                unpacker = msgpack.Unpacker(max_buffer_size=0, unicode_errors="surrogatepass")
                unpacker.feed(self._decompress(file.read(length)))
                yield from unpacker
