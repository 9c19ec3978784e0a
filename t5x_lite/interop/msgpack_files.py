"""Flax's msgpack files as views of the file, where flax.serialization would copy every array.

A file is a tree of maps whose leaves are arrays: an extension of type 1, itself the msgpack of
(shape, dtype's name, bytes). Arrays above a gigabyte are cut: {"__msgpack_chunked_array__": True,
"shape": {"0": ...}, "chunks": {"0": ...}}. Sources: msgpack's spec.md; flax/serialization.py.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.interop.rules import LazyArray

_CHUNKED = "__msgpack_chunked_array__"
_NDARRAY = 1
_MOST_AXES = 32
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
# First byte -> bytes of the number that follows.
_UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BINARIES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_MOST_VALUES = 1 << 20
"""Names, shapes and arrays of a file; T5 XXL's has some thousands."""
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def read_msgpack(path: Path) -> dict[str, np.ndarray | LazyArray]:
    """Views of the arrays of a flax_model.msgpack, by their keys joined with ".".

    Raises:
      InputError: the file is truncated, or no tree of arrays.
    """
    try:
        data = np.memmap(path, np.uint8, mode="r")
        tree = _Reader(data, 0, data.size).value()
        if not isinstance(tree, dict):
            raise ValueError(f"it holds a {type(tree).__name__}")
        return dict(_leaves(tree, ""))
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
            RecursionError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: truncated, or not a tree of arrays ({reason})") from error


class _Reader:
    """Reads msgpack from memory; binaries and arrays are views of it."""

    def __init__(self, data: np.ndarray, position: int, end: int):
        self._data = data
        self._position = position
        self._end = end
        self._values = 0

    def value(self) -> Any:
        """The next value."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ValueError(f"it holds more than {_MOST_VALUES} values")
        code = self._number(1)
        if code <= 0x7F or code >= 0xE0:
            return code if code <= 0x7F else code - 0x100
        if code <= 0x8F:
            return self._map(code & 0x0F)
        if code <= 0x9F:
            return [self.value() for _ in range(code & 0x0F)]
        if code <= 0xBF:
            return bytes(self._bytes(code & 0x1F)).decode()
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _UNSIGNED:
            return self._number(_UNSIGNED[code])
        if code in _SIGNED:
            return self._number(_SIGNED[code], signed=True)
        if code in _STRINGS:
            return bytes(self._bytes(self._number(_STRINGS[code]))).decode()
        if code in _BINARIES:
            return self._bytes(self._number(_BINARIES[code]))
        if code in _ARRAYS:
            return [self.value() for _ in range(self._number(_ARRAYS[code]))]
        if code in _MAPS:
            return self._map(self._number(_MAPS[code]))
        if code in _EXTENSIONS:
            return self._extension(self._number(_EXTENSIONS[code]))
        if code in _FIXED_EXTENSIONS:
            return self._extension(_FIXED_EXTENSIONS[code])
        raise ValueError(f"no array, but msgpack's type 0x{code:02x}")

    def _bytes(self, length: int) -> np.ndarray:
        begin, self._position = self._position, self._position + length
        if self._position > self._end:
            raise ValueError(f"it ends at byte {self._end} of {self._position}")
        return self._data[begin : self._position]

    def _number(self, length: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._bytes(length).tobytes(), "big", signed=signed)

    def _map(self, length: int) -> dict[str, Any]:
        items = [(self.value(), self.value()) for _ in range(length)]
        if not all(isinstance(key, str) for key, _ in items):
            raise ValueError("a key is not a string")
        return dict(items)

    def _extension(self, length: int) -> np.ndarray:
        kind = self._number(1)
        if kind != _NDARRAY:
            raise ValueError(f"no array, but an extension of type {kind}")
        begin = self._position
        self._bytes(length)
        shape, name, buffer = _Reader(self._data, begin, self._position).value()
        if not _is_shape(shape) or not isinstance(buffer, np.ndarray):
            raise ValueError("an array without a shape or without bytes")
        name = name.tobytes().decode() if isinstance(name, np.ndarray) else name
        if name not in (*_DTYPES, "bfloat16"):
            raise ValueError(f"an array of dtype {name!r}")
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        return buffer.view(dtype).reshape(shape)


def _leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, np.ndarray | LazyArray]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and _CHUNKED in value:
            yield name, _joined(value)
        elif isinstance(value, dict):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, np.ndarray):
            yield name, value
        else:
            raise ValueError(f"{name} is a {type(value).__name__}")


def _joined(chunked: dict[str, Any]) -> LazyArray:
    """An array that was cut, put together when it is read."""
    shape = [chunked["shape"][str(i)] for i in range(len(chunked["shape"]))]
    chunks = [chunked["chunks"][str(i)].reshape(-1) for i in range(len(chunked["chunks"]))]
    dtypes = {chunk.dtype for chunk in chunks}
    whole = _is_shape(shape) and sum(chunk.size for chunk in chunks) == math.prod(shape)
    if not whole or len(dtypes) != 1:
        raise ValueError(f"the chunks of an array {tuple(shape)} do not make it up")
    [dtype] = dtypes
    return LazyArray(tuple(shape), dtype, lambda: np.concatenate(chunks).reshape(shape))


def _is_shape(shape: Any) -> bool:
    """Whether a value can be the shape of an array."""
    few = isinstance(shape, list) and len(shape) <= _MOST_AXES
    return few and all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
