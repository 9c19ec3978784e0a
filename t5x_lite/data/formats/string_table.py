"""Many strings in little memory: their bytes one after another, and where each ends.

    table = StringTable.of(["d7", "d12"])
    table[1], len(table)                # "d12", 2
    table.save("index/ids")             # index/ids.bytes.npy, index/ids.ends.npy
    StringTable.open("index/ids")       # mapped, not read

A million ids of MS MARCO take 15 MB in place of the 60 MB of Python's strings.
"""

import array
import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import open_atomically, reason


class StringTable:
    """Strings by number.

    Args:
      content: uint8, their bytes in UTF-8.
      ends: int64, the place behind the last byte of each.
      where: the file or index that holds them, for messages.
    """

    def __init__(self, content: np.ndarray, ends: np.ndarray, where: str = "a table of strings"):
        self._content, self._ends, self._where = content, ends, where

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringTable":
        """The table of some strings, which are read once."""
        content, ends = bytearray(), array.array("q")
        for string in strings:
            content += string.encode()
            ends.append(len(content))
        return cls(np.frombuffer(bytes(content), np.uint8), np.asarray(ends, np.int64))

    @classmethod
    def open(cls, path: str | Path) -> "StringTable":
        """Open what `save` wrote. Only the ends are read; the bytes are mapped."""
        content_file, ends_file = _files(path)
        content = open_array(content_file, dtypes=(np.uint8,), dims=1)
        ends = open_array(ends_file, dtypes=(np.int64,), dims=1)
        check_ends(ends, len(content), where=ends_file)
        return cls(content, ends, str(path))

    def save(self, path: str | Path) -> None:
        """Writes two files, PATH.bytes.npy and PATH.ends.npy."""
        for file, values in zip(_files(path), (self._content, self._ends), strict=True):
            save_array(file, values)

    def arrays(self) -> dict[str, np.ndarray]:
        """What the table is made of, by name: bytes and ends."""
        return {"bytes": self._content, "ends": self._ends}

    def check_distinct(self, where: str) -> None:
        """Refuses a string that comes twice; hashes are compared first."""
        hashes = np.fromiter((hash(name) for name in self), np.int64, len(self))
        values, counts = np.unique(hashes, return_counts=True)
        if (counts == 1).all():
            return
        seen: set[str] = set()
        for number in np.flatnonzero(np.isin(hashes, values[counts > 1])):
            name = self[int(number)]
            if name in seen:
                raise InputError(f"{where}: the id {name!r} comes twice")
            seen.add(name)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        start = int(self._ends[number - 1]) if number else 0
        content = self._content[start : int(self._ends[number])].tobytes()
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._where}: damaged (string {number} is not UTF-8); build it again"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def part(self, first: int, end: int) -> list[str]:
        """The strings from one number to before another."""
        return [self[number] for number in range(first, min(end, len(self)))]


def open_array(
    path: str | Path, *, dtypes: Sequence[Any] | None = None, dims: int | None = None
) -> np.ndarray:
    """Map a .npy file, whose header is checked before memory is asked for."""
    try:
        with open(path, "rb") as file:
            shape, in_columns, dtype = _read_header(file, path)
            start, size = file.tell(), file.seek(0, os.SEEK_END)
        what = f"{dtype} {list(shape)}"
        wrong = dtypes is not None and dtype not in [np.dtype(one) for one in dtypes]
        if wrong or dims not in (None, len(shape)):
            names = " or ".join(np.dtype(one).name for one in dtypes or ()) or "any type"
            raise InputError(
                f"{path}: must be an array of {names} with {dims} axes, got {what[:80]}; make it "
                "again"
            )
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > size - start:
            raise InputError(
                f"{path}: not an array of NumPy, or cut off ({what[:80]} in {size} bytes); make it "
                "again"
            )
        if math.prod(shape) * dtype.itemsize < size - start:
            raise InputError(
                f"{path}: not an array of NumPy, or damaged ({what[:80]} in {size} bytes, more "
                "than it needs); make it again"
            )
        order = "F" if in_columns else "C"
        if not math.prod(shape) or not dtype.itemsize:  # nothing to map
            return np.zeros(shape, dtype, order)
        # As a plain array: each element that is read from a memmap makes another memmap.
        return np.asarray(np.memmap(path, dtype, "r", start, shape, order))
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from error
    except (ValueError, OverflowError, MemoryError, TypeError) as error:  # of sizes
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not an array of NumPy, or cut off: make it again") from error


def create_array(path: str | Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """Create a .npy file and map it, to be filled in place.

    All its bytes are reserved at once. Writing to a map on a full disk would end the process by
    SIGBUS.
    """
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with open(path, "rb+") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, file.seek(0, os.SEEK_END))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                error.filename = os.fspath(path)
                raise
        except AttributeError:  # not on this system
            pass
    return array


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _read_header(file: BinaryIO, path: str | Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type of a .npy file."""
    try:
        shape, in_columns, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if all(type(size) is int and size >= 0 for size in shape):
            return shape, in_columns, dtype
    except OSError:
        raise
    except Exception as error:  # the header is a literal of Python, with all that it may raise
        raise InputError(f"{path}: not an array of NumPy, or cut off: make it again") from error
    raise InputError(f"{path}: not an array of NumPy (its shape is {str(shape)[:60]})")


def check_ends(ends: np.ndarray, size: int, *, where: str | Path) -> None:
    """Raise InputError unless ends rise from 0 on and the last one is the size."""
    rises = not len(ends) or (int(ends[0]) >= 0 and bool((ends[1:] >= ends[:-1]).all()))
    if not rises or (int(ends[-1]) if len(ends) else 0) != size:
        raise InputError(f"{where}: damaged (its ends do not fit {size} entries); build it again")


def save_array(path: str | Path, values: np.ndarray) -> None:
    """Writes an array as a .npy file, which is there whole or not at all."""
    with open_atomically(path) as file:
        np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)


_LARGEST_RECORD = 1 << 20
"""Bytes of an index.json at most."""


def read_record(
    path: Path, fields: Mapping[str, type], *, kind: str = "index", made_by: str
) -> dict[str, Any]:
    """Read the index.json of an index and check its fields."""
    remedy = f"build the index again with t5x-lite {made_by}"
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_RECORD + 1)
    except OSError as error:
        raise InputError(
            f"{path.parent}: no {kind} ({reason(error)}): t5x-lite {made_by} makes one"
        ) from error
    try:
        record = json.loads(content) if len(content) <= _LARGEST_RECORD else None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON; {remedy}") from error
    if not isinstance(record, dict):
        raise InputError(
            f"{path}: must be a JSON object of at most {_LARGEST_RECORD} bytes; {remedy}"
        )
    for name, expected in fields.items():
        value: Any = record.get(name)
        right = type(value) is expected or (expected is float and type(value) is int)
        if not right or (expected is int and not 0 <= value < 1 << 62):
            what = f'"{name}" must be {_KINDS[expected]}, got {str(value)[:40]}'
            raise InputError(f"{path}: damaged ({what}); {remedy}")
    return record


_KINDS = {int: "a whole number from 0", str: "a string", bool: "true or false", float: "a number"}


def _files(path: str | Path) -> tuple[Path, Path]:
    name = Path(path)
    return tuple(name.with_name(f"{name.name}.{part}.npy") for part in ("bytes", "ends"))  # pyright: ignore
