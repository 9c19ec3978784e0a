"""Compact tables of strings: the concatenated bytes of the strings, and the end of each string.

    table = StringTable.of(["d7", "d12"])
    table[1], len(table)                # "d12", 2
    table.save("index/ids")             # index/ids.bytes.npy, index/ids.ends.npy
    StringTable.open("index/ids")       # memory-mapped, not read

A million ids of MS MARCO take 15 MB, instead of 60 MB as Python strings.
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
    """Compact list of strings in two arrays, accessed by index.

    Args:
      content: concatenated UTF-8 bytes of the strings, uint8.
      ends: end offset of each string in `content`, int64.
      where: path of the file or index with the strings, for messages.
    """

    def __init__(self, content: np.ndarray, ends: np.ndarray, where: str = "a table of strings"):
        self._content, self._ends, self._where = content, ends, where

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringTable":
        """Build a table from an iterable of strings."""
        content, ends = bytearray(), array.array("q")
        for string in strings:
            content += string.encode()
            ends.append(len(content))
        return cls(np.frombuffer(bytes(content), np.uint8), np.asarray(ends, np.int64))

    @classmethod
    def open(cls, path: str | Path) -> "StringTable":
        """Open a table that `save` wrote; the bytes of the strings are memory-mapped, not read."""
        content_file, ends_file = _files(path)
        content = open_array(content_file, dtypes=(np.uint8,), dims=1)
        ends = open_array(ends_file, dtypes=(np.int64,), dims=1)
        check_ends(ends, len(content), where=ends_file)
        return cls(content, ends, str(path))

    def save(self, path: str | Path) -> None:
        """Write the table to two files, PATH.bytes.npy and PATH.ends.npy."""
        for file, values in zip(_files(path), (self._content, self._ends), strict=True):
            save_array(file, values)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the two arrays of the table by name: "bytes" and "ends"."""
        return {"bytes": self._content, "ends": self._ends}

    def check_distinct(self, where: str) -> None:
        """Raise InputError if a string occurs twice in the table."""
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
        """Return the strings with indices from `first` to `end`, excluding `end`."""
        return [self[number] for number in range(first, min(end, len(self)))]


def open_array(
    path: str | Path, *, dtypes: Sequence[Any] | None = None, dims: int | None = None
) -> np.ndarray:
    """Check the header and size of a .npy file, and map the array into memory."""
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
    except (ValueError, OverflowError, MemoryError, TypeError) as error:  # invalid sizes
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not an array of NumPy, or cut off: make it again") from error


def create_array(path: str | Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """Create a .npy file and map it into memory for writing.

    Disk space for the array is reserved at once, because writing to a map on a full disk would end
    the process by SIGBUS.
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
    """Return the shape of a .npy file, True if its order is Fortran's, and its dtype."""
    try:
        shape, in_columns, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if all(type(size) is int and size >= 0 for size in shape):
            return shape, in_columns, dtype
    except OSError:
        raise
    except Exception as error:  # parsing the header, a Python literal, may raise anything
        raise InputError(f"{path}: not an array of NumPy, or cut off: make it again") from error
    raise InputError(f"{path}: not an array of NumPy (its shape is {str(shape)[:60]})")


def check_ends(ends: np.ndarray, size: int, *, where: str | Path) -> None:
    """Raise InputError unless the end offsets are ascending and the last one equals `size`."""
    rises = not len(ends) or (int(ends[0]) >= 0 and bool((ends[1:] >= ends[:-1]).all()))
    if not rises or (int(ends[-1]) if len(ends) else 0) != size:
        raise InputError(
            f"{where}: damaged (the end offsets do not match {size} entries); build it again"
        )


def save_array(path: str | Path, values: np.ndarray) -> None:
    """Write an array as a .npy file, atomically."""
    with open_atomically(path) as file:
        np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)


_LARGEST_RECORD = 1 << 20
"""Maximum size of an index.json, in bytes."""


def read_record(
    path: Path, fields: Mapping[str, type], *, kind: str = "index", made_by: str
) -> dict[str, Any]:
    """Read the index.json of an index, and check the types of its fields."""
    remedy = f"build the index again with t5x-lite {made_by}"
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_RECORD + 1)
    except OSError as error:
        raise InputError(
            f"{path.parent} has no {kind} ({reason(error)}); build one with t5x-lite {made_by}"
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
