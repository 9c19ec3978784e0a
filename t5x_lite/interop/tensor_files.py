"""Files of tensors: safetensors, PyTorch's archives, Flax's msgpack; PyTorch is not needed.

Reading and writing of PyTorch's zip archives, without PyTorch and without running their code.

    write_torch(Path("pytorch_adapter.bin"), {"down.weight": array})
    read_torch(Path("pytorch_adapter.bin"))["down.weight"]

Reading: an archive contains a pickle and the uncompressed bytes of each storage. A pickle is a
program, and Python's unpickler calls every function that the pickle names. `_unpickled` runs only
the few operations that build a dict of tensors: `torch._utils._rebuild_tensor_v2`, the storage
types, and OrderedDict. A tensor becomes a tuple of numbers, and later a view of the file. Memory is
bounded: the pickle has a maximum length, and no tensor has more elements than its storage.
`read_tree` also allows nested dicts and lists, sizes and NumPy integers.

Writing: the pickle has protocol 2, as torch.save writes it, and contains strings, numbers, dicts
and tensors. Each function returns the pickled bytes of one value; `tensor` also appends its
elements to a list of storages.

Source: torch/serialization.py, torch/_utils.py, pickletools.py.

Tensor files, read as memory maps: safetensors, PyTorch archives and Flax msgpack.

    tensors = read_tensors(Path("t5-v1_1-small"))
    tensors.arrays["shared.weight"].shape         -> (32128, 512); no weights have been read yet

A Hugging Face directory may contain several formats. `read_tensors` reads the first of safetensors,
PyTorch's zip archives and Flax's msgpack, each as one file or as shards with an index. Files of
PyTorch before 1.6 are not supported, and skipped if another format exists. All formats are
converted to PyTorch's names and shapes: Flax's kernels are transposed.

A safetensors file is eight bytes of length (little endian), a JSON header {name: {"dtype", "shape",
"data_offsets"}} and the tensors. Source: huggingface.co/docs/safetensors.

Flax's msgpack files are read as views of the file; flax.serialization would copy every array. A
file is a tree of maps with arrays as leaves. An array is an extension of type 1 that contains the
msgpack of (shape, dtype's name, bytes). Arrays above a gigabyte are split into chunks:
{"__msgpack_chunked_array__": True, "shape": {"0": ...}, "chunks": {"0": ...}}. Sources: msgpack's
spec.md; flax/serialization.py.
"""

import dataclasses
import json
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import plain_json
from t5x_lite.core.trees import LazyArray as trees_LazyArray
from t5x_lite.interop.rules import LazyArray

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_ZIP = b"PK\x03\x04"
_LOCAL_HEADER = 30
_LONGEST_PICKLE = 2 << 20
"""Maximum length of a pickle in bytes; T5 XXL has 100 kB."""
_MOST_AXES = 32
_INT64_BYTES = 8
_MARK, _ORDERED_DICT, _REBUILD_TENSOR = object(), object(), object()
_SIZE, _SCALAR, _DTYPE, _ENCODE = object(), object(), object(), object()
_INT64 = object()
_FUNCTIONS = {
    "collections OrderedDict": _ORDERED_DICT,
    "torch._utils _rebuild_tensor_v2": _REBUILD_TENSOR,
} | {f"torch {name}": dtype for name, dtype in _STORAGES.items()}
_TREE_FUNCTIONS = _FUNCTIONS | {
    "torch Size": _SIZE,
    "numpy.core.multiarray scalar": _SCALAR,
    "numpy._core.multiarray scalar": _SCALAR,
    "numpy dtype": _DTYPE,
    "_codecs encode": _ENCODE,  # pickles of protocol 2 store bytes in this way
}
_VALUES = (
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINSTRING", "SHORT_BINSTRING",
)  # fmt: skip
"""Pickle opcodes that push their argument onto the stack."""
_OPCODE_CONSTANTS = {
    "NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK,
}  # fmt: skip
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Storage(NamedTuple):
    key: str
    dtype: str
    size: int


class _View(NamedTuple):
    """Tensor of a PyTorch archive: dtype, shape, strides and location of the elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _unpickled(content: bytes, *, where: Path, functions: Mapping[str, Any] = _FUNCTIONS) -> Any:
    """Return the object of a pickle; allow only dicts, lists, tensors and numbers."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        name = operation.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _OPCODE_CONSTANTS:
            stack.append(_OPCODE_CONSTANTS[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            index = len(memo) if name == "MEMOIZE" else argument
            _require(index < len(content), "the memo is larger than the pickle")
            memo[index] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            place: Any = argument
            stack.append(memo[place])
        elif name == "GLOBAL":
            stack.append(_function(str(argument), functions, where=where))
        elif name == "STACK_GLOBAL":
            function = stack.pop()
            stack.append(_function(f"{stack.pop():s} {function:s}", functions, where=where))
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            _build(name, stack)
    raise ValueError("the pickle is incomplete, because it has no STOP opcode")


def _build(operation: str, stack: list[Any]) -> None:
    if operation == "TUPLE":
        stack.append(tuple(_popped(stack)))
    elif operation in _SHORT_TUPLES:
        size = _SHORT_TUPLES[operation]
        _require(len(stack) >= size, "an empty stack")
        stack[-size:] = [tuple(stack[-size:])]
    elif operation in ("SETITEM", "SETITEMS"):
        items = [stack.pop(), stack.pop()][::-1] if operation == "SETITEM" else _popped(stack)
        keys, values = items[::2], items[1::2]
        _require(all(isinstance(key, str) for key in keys), "a key is not a string")
        _require(isinstance(stack[-1], dict), "items of an object that is not a dict")
        stack[-1].update(zip(keys, values, strict=True))
    elif operation in ("APPEND", "APPENDS"):
        values = [stack.pop()] if operation == "APPEND" else _popped(stack)
        _require(isinstance(stack[-1], list), "entries of an object that is not a list")
        stack[-1].extend(values)
    elif operation == "BINPERSID":
        stack.append(_storage(stack.pop()))
    elif operation == "REDUCE":
        arguments = stack.pop()
        stack.append(_called(stack.pop(), arguments))
    elif (
        operation == "BUILD"
    ):  # sets the attribute _metadata of a state_dict(), which is not needed
        state = stack.pop()
        if stack[-1] is _INT64:
            _require(isinstance(state, tuple) and state[1] == "<", "a number is not little-endian")
            return
        _require(isinstance(stack[-1], dict), "attributes of an object that is not a dict")
    else:
        raise ValueError(f"the pickle opcode {operation} is not allowed in a dict of tensors")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _popped(stack: list[Any]) -> list[Any]:
    values = []
    while (value := stack.pop()) is not _MARK:
        values.append(value)
    return values[::-1]


def _function(name: str, functions: Mapping[str, Any], *, where: Path) -> Any:
    if name not in functions:
        raise InputError(
            f"{where}: the pickle calls {name.replace(' ', '.')}, but only tensors are allowed; "
            "do not load this file elsewhere unless you trust it"
        )
    return functions[name]


def _storage(pid: Any) -> _Storage:
    kind, dtype, key, _, size = pid
    _require(
        kind == "storage"
        and isinstance(key, str)
        and dtype in _STORAGES.values()
        and type(size) is int,
        "an unknown storage",
    )
    return _Storage(key, dtype, size)


def _called(function: Any, arguments: Any) -> Any:
    if function is _ORDERED_DICT and arguments == ():
        return {}
    if function is _SIZE:
        [sizes] = arguments
        _require(all(type(n) is int and 0 <= n < 1 << 31 for n in sizes), "not a tensor size")
        return tuple(sizes)
    if function is _DTYPE:
        _require(arguments[0] == "i8", "a NumPy number that is not int64")
        return _INT64
    if function is _ENCODE:
        text, encoding = arguments
        _require(encoding == "latin1" and len(text) <= _INT64_BYTES, "bytes that are not a number")
        return text.encode("latin1")
    if function is _SCALAR:
        dtype, content = arguments
        _require(dtype is _INT64 and isinstance(content, bytes), "not a NumPy number")
        _require(len(content) == _INT64_BYTES, "not a NumPy number")
        return int.from_bytes(content, "little", signed=True)
    _require(function is _REBUILD_TENSOR, "a call of an object that is not a function")
    storage, offset, shape, strides = arguments[:4]
    _require(isinstance(storage, _Storage), "a tensor without a storage")
    numbers = (offset, *shape, *strides)
    whole = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
    _require(len(shape) <= _MOST_AXES, "too many axes")
    _require(whole and len(shape) == len(strides), "invalid offset, shape or strides of a tensor")
    return _View(storage, offset, tuple(shape), tuple(strides))


def is_archive(path: Path) -> bool:
    """Return True if a file is a zip archive, the format of PyTorch since 1.6."""
    with open(path, "rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Return views of the tensors in a PyTorch archive, such as pytorch_model.bin, by name."""
    return read_archive(path, _views)


def read_tree(path: Path, *, longest_pickle: int) -> Any:
    """Return the contents of a PyTorch archive, such as nested dicts of tensors."""

    def resolved(path: Path, archive: zipfile.ZipFile, prefix: str, contents: Any) -> Any:
        data = np.memmap(path, np.uint8, mode="r")
        storages: dict[_Storage, np.ndarray] = {}

        def of(node: Any) -> Any:
            if isinstance(node, dict):
                return {key: of(value) for key, value in node.items()}
            if not isinstance(node, _View):
                return node
            return _tensor(node, archive, prefix, data, storages)

        return of(contents)

    return read_archive(path, resolved, functions=_TREE_FUNCTIONS, longest_pickle=longest_pickle)


def read_archive(
    path: Path,
    resolve: Callable[[Path, zipfile.ZipFile, str, Any], Any],
    *,
    functions: Mapping[str, Any] = _FUNCTIONS,
    longest_pickle: int = _LONGEST_PICKLE,
) -> Any:
    """Return the unpickled object of a PyTorch archive."""
    if not is_archive(path):
        raise InputError(
            f"{path}: not a zip archive, because PyTorch before 1.6 wrote it or the download is "
            "truncated; load it with PyTorch and save it as safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(names) != 1:
                raise ValueError(f"expected one data.pkl in the zip archive, found {len(names)}")
            prefix = names[0].removesuffix("data.pkl")
            if f"{prefix}byteorder" in archive.namelist():
                order = _member(archive, f"{prefix}byteorder")
                if order != b"little":
                    raise ValueError(f"the byte order is {order[:20]!r}, but must be little-endian")
            content = _member(archive, names[0], longest=longest_pickle)
            return resolve(
                *(path, archive, prefix), _unpickled(content, where=path, functions=functions)
            )
    except InputError:
        raise
    # An unpickler can raise any exception on a damaged pickle.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(
            f"{path}: the file is damaged, or not a dict of tensors ({reason})"
        ) from error


def _member(archive: zipfile.ZipFile, name: str, *, longest: int = _LONGEST_PICKLE) -> bytes:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    if info.file_size > longest:
        raise ValueError(
            f"the zip member {name} has {info.file_size} bytes, but the limit is {longest}"
        )
    return archive.read(info)


def _views(
    path: Path, archive: zipfile.ZipFile, prefix: str, contents: Any
) -> dict[str, np.ndarray]:
    if not isinstance(contents, dict):
        raise ValueError(f"it must hold a dict of tensors, found a {type(contents).__name__}")
    data = np.memmap(path, np.uint8, mode="r")
    storages: dict[_Storage, np.ndarray] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, view in contents.items():
        if not isinstance(view, _View):
            raise ValueError(f"the value of {name!r} is not a tensor")
        arrays[name] = _tensor(view, archive, prefix, data, storages)
    return arrays


def _tensor(
    view: _View,
    archive: zipfile.ZipFile,
    prefix: str,
    data: np.ndarray,
    storages: dict[_Storage, np.ndarray],
) -> np.ndarray:
    storage = view.storage
    if storage not in storages:
        info = archive.getinfo(f"{prefix}data/{storage.key}")
        storages[storage] = _elements(data, info, storage)
    return _strided(storages[storage], view)


def _elements(data: np.ndarray, info: zipfile.ZipInfo, storage: _Storage) -> np.ndarray:
    dtype = np.dtype(ml_dtypes.bfloat16 if storage.dtype == "bfloat16" else storage.dtype)
    header = data[info.header_offset :][:_LOCAL_HEADER].tobytes()
    name_length, extra_length = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    begin = info.header_offset + _LOCAL_HEADER + name_length + extra_length
    end = begin + storage.size * dtype.itemsize
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != end - begin:
        raise ValueError(f"the tensor storage {storage.key} is compressed or has the wrong size")
    if end > data.size:
        raise ValueError(f"the file ends within the tensor storage {storage.key}")
    return data[begin:end].view(dtype)


def _strided(elements: np.ndarray, view: _View) -> np.ndarray:
    last = view.offset + sum(
        (size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)
    )
    if math.prod(view.shape) and last >= elements.size:
        raise ValueError(f"a tensor of shape {view.shape} reaches beyond its storage")
    if math.prod(view.shape) > elements.size:  # a stride of 0 could repeat one element without end
        raise ValueError(f"a tensor of shape {view.shape} has more elements than its storage")
    return np.lib.stride_tricks.as_strided(
        elements[view.offset :],
        view.shape,
        [stride * elements.itemsize for stride in view.strides],
        writeable=False,
    )


_STORAGE_NAMES = {
    np.dtype(np.float32): "FloatStorage",
    np.dtype(np.float16): "HalfStorage",
    np.dtype(ml_dtypes.bfloat16): "BFloat16Storage",
}
"""PyTorch storage types by dtype, for dtypes that can be written."""


def write_torch(path: Path, arrays: Mapping[str, np.ndarray], *, keep_dtype: bool = False) -> None:
    """Write a dict of tensors as a PyTorch archive, in float32.

    With `keep_dtype`, float16 and bfloat16 are kept.
    """
    storages: list[bytes] = []
    items = [
        (name, tensor(array, storages, keep_dtype=keep_dtype)) for name, array in arrays.items()
    ]
    write_archive(path, mapping(items), storages)


def write_archive(path: Path, pickled: bytes, storages: Sequence[bytes]) -> None:
    """Write a pickled object and its tensors as a PyTorch archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled + b".")
        archive.writestr("archive/byteorder", b"little")
        for key, content in enumerate(storages):
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", b"3\n")


def tensor(array: np.ndarray, storages: list[bytes], *, keep_dtype: bool = False) -> bytes:
    """Return the pickled bytes of a tensor."""
    dtype = array.dtype if keep_dtype and array.dtype in _STORAGE_NAMES else np.dtype(np.float32)
    array = np.ascontiguousarray(array, dtype)
    storages.append(array.tobytes())
    strides = [stride // array.itemsize for stride in array.strides]
    key = text(str(len(storages) - 1))
    storage = (
        b"(" + text("storage") + f"ctorch\n{_STORAGE_NAMES[dtype]}\n".encode() + key + text("cpu")
    )
    storage += number(array.size) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    rest = number(0) + numbers(array.shape) + numbers(strides) + b"\x89" + hooks
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"tR"


def mapping(items: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the pickled bytes of a dict of pickled values."""
    return b"}(" + b"".join(text(key) + value for key, value in items) + b"u"


def text(value: str) -> bytes:
    """Return the pickled bytes of a string."""
    content = value.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def number(value: int) -> bytes:
    """Return the pickled bytes of an integer below 2^31."""
    return b"J" + struct.pack("<i", value)


def numbers(values: Sequence[int]) -> bytes:
    """Return the pickled bytes of a tuple of integers."""
    return b"(" + b"".join(map(number, values)) + b"t"


_CHUNKED = "__msgpack_chunked_array__"
_NDARRAY = 1
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
# First byte -> size in bytes of the number that follows.
_UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BINARIES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_MOST_VALUES = 1 << 20
"""Maximum number of values (names, shapes and arrays) in a msgpack file; T5 XXL has thousands."""
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def read_msgpack(path: Path) -> dict[str, np.ndarray | LazyArray]:
    """Return views of the arrays in a flax_model.msgpack, by their keys joined with "."."""
    try:
        data = np.memmap(path, np.uint8, mode="r")
        tree = _Reader(data, 0, data.size).value()
        if not isinstance(tree, dict):
            raise ValueError(f"expected a dict of arrays, found a {type(tree).__name__}")
        return dict(_leaves(tree, ""))
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
            RecursionError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: the file is truncated, or not a tree of arrays ({reason})"
        ) from error


class _Reader:
    """Reader of msgpack data in memory; binaries and arrays are views of the data."""

    def __init__(self, data: np.ndarray, position: int, end: int):
        self._data = data
        self._position = position
        self._end = end
        self._values = 0

    def value(self) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ValueError(f"the file has more than {_MOST_VALUES} values")
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
        raise ValueError(f"expected an array, found msgpack's type 0x{code:02x}")

    def _bytes(self, length: int) -> np.ndarray:
        begin, self._position = self._position, self._position + length
        if self._position > self._end:
            raise ValueError(
                f"the file ends at byte {self._end}, but should have {self._position} bytes"
            )
        return self._data[begin : self._position]

    def _number(self, length: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._bytes(length).tobytes(), "big", signed=signed)

    def _map(self, length: int) -> dict[str, Any]:
        items = [(self.value(), self.value()) for _ in range(length)]
        if not all(isinstance(key, str) for key, _ in items):
            raise ValueError("a key of a dict is not a string")
        return dict(items)

    def _extension(self, length: int) -> np.ndarray:
        kind = self._number(1)
        if kind != _NDARRAY:
            raise ValueError(f"expected an array, found a msgpack extension of type {kind}")
        begin = self._position
        self._bytes(length)
        shape, name, buffer = _Reader(self._data, begin, self._position).value()
        if not _is_shape(shape) or not isinstance(buffer, np.ndarray):
            raise ValueError("an array has no shape or no data")
        name = name.tobytes().decode() if isinstance(name, np.ndarray) else name
        if name not in (*_DTYPES, "bfloat16"):
            raise ValueError(f"an array has the unsupported dtype {name!r}")
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
            raise ValueError(f"{name} must be an array, got a {type(value).__name__}")


def _joined(chunked: dict[str, Any]) -> LazyArray:
    """Return a lazy array that joins the chunks of an array."""
    shape = [chunked["shape"][str(i)] for i in range(len(chunked["shape"]))]
    chunks = [chunked["chunks"][str(i)].reshape(-1) for i in range(len(chunked["chunks"]))]
    dtypes = {chunk.dtype for chunk in chunks}
    whole = _is_shape(shape) and sum(chunk.size for chunk in chunks) == math.prod(shape)
    if not whole or len(dtypes) != 1:
        raise ValueError(f"the chunks of an array do not add up to its shape {tuple(shape)}")
    [dtype] = dtypes
    return LazyArray(tuple(shape), dtype, lambda: np.concatenate(chunks).reshape(shape))


def _is_shape(shape: Any) -> bool:
    few = isinstance(shape, list) and len(shape) <= _MOST_AXES
    return few and all(type(size) is int and 0 <= size < 1 << 63 for size in shape)


SAFETENSORS = "model.safetensors"
DTYPES: Mapping[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_METADATA = "__metadata__"
_LONGEST_HEADER = 100_000_000
"""Maximum header length in bytes, as in the safetensors library."""
_SHARD_BYTES = 5 * 10**9

Arrays = Mapping[str, np.ndarray | trees_LazyArray]


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Tensors of a Hugging Face directory, as views of its files.

    Attributes:
      where: the file, or the index of the shards.
      arrays: views of the tensors, with PyTorch's names and shapes.
    """

    where: Path
    arrays: Arrays


def read_tensors(directory: Path) -> Tensors:
    """Read the tensors of a Hugging Face directory as views of its files."""
    formats: Sequence[tuple[str, Callable[[Path], Arrays]]] = (
        (SAFETENSORS, read_safetensors),
        ("pytorch_model.bin", read_torch),
        ("flax_model.msgpack", _read_flax),
    )
    legacy: Path | None = None
    for name, read in formats:
        path, index = directory / name, directory / f"{name}.index.json"
        if path.is_file() and read is read_torch and not is_archive(path):
            legacy = path
        elif path.is_file():
            return Tensors(path, read(path))
        elif index.is_file():
            return Tensors(index, _read_shards(index, read))
    if legacy is not None:
        return Tensors(legacy, read_torch(legacy))  # raises an error with the remedy
    names = ", ".join(name for name, _ in formats)
    raise InputError(
        f"{directory}: contains no weights in a supported format; the supported files are {names}"
    )


def _read_shards(index: Path, read: Callable[[Path], Arrays]) -> Arrays:
    try:
        files = plain_json(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(files.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f'{index}: not an index of shards, because it has no "weight_map"'
        ) from error
    arrays: dict[str, np.ndarray | trees_LazyArray] = {}
    beside = {path.name for path in index.parent.iterdir() if path.is_file()}
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise InputError(f"{index}: {shard!r} is not the name of a file in its directory")
        if shard not in beside:
            raise InputError(f"{index}: the shard {shard} is missing")
        found = read(index.parent / shard)
        if twice := sorted(arrays.keys() & found.keys()):
            raise InputError(
                f"{index}: the tensor {twice[0]} is in {shard} and in an earlier shard"
            )
        arrays.update(found)
    return arrays


def _read_flax(path: Path) -> Arrays:
    """Read the tensors of a flax_model.msgpack under PyTorch's names."""
    arrays: dict[str, np.ndarray | trees_LazyArray] = {}
    for name, array in read_msgpack(path).items():
        head, _, last = name.rpartition(".")
        if last not in ("kernel", "embedding"):
            arrays[name] = array
        else:
            arrays[f"{head}.weight"] = _transposed(array) if last == "kernel" else array
    return arrays


def _transposed(array: np.ndarray | trees_LazyArray) -> np.ndarray | trees_LazyArray:
    if isinstance(array, trees_LazyArray):
        return trees_LazyArray(array.shape[::-1], array.dtype, lambda: array.read().T)
    return array.T


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return views of a safetensors file's tensors, by name."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        if size < 8 or start > size:
            raise InputError(
                f"{path}: the file is truncated; it has {size} bytes, but its header ends later"
            )
        if start > _LONGEST_HEADER:
            raise InputError(
                f"{path}: not a safetensors file, because the size of its header would be "
                f"{start - 8} bytes"
            )
        try:
            header = plain_json(file.read(start - 8))
            if not isinstance(header, dict):
                raise ValueError(f"the header must be an object, got a {type(header).__name__}")
            entries = {name: header[name] for name in header if name != _METADATA}
            found = {name: _entry(entry) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path}: not a safetensors file ({_reason(error)})") from error
    data = np.memmap(path, np.uint8, mode="r")
    arrays: dict[str, np.ndarray] = {}
    for name, (dtype, shape, begin, end) in found.items():
        if start + end > size:
            raise InputError(
                f"{path}: the file is truncated; {name} ends at byte {start + end}, but the "
                f"file has {size} bytes"
            )
        try:
            arrays[name] = data[start + begin : start + end].view(dtype).reshape(shape)
        except (ValueError, OverflowError) as error:  # more axes or elements than NumPy allows
            raise InputError(
                f"{path}: not a safetensors file ({name}: {_reason(error)})"
            ) from error
    return arrays


def _entry(entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"dtype {entry['dtype']} is not supported")
    dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    if not whole or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"shape {shape} does not match the data offsets {begin} to {end}")
    return dtype, shape, begin, end


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def write_safetensors(path: Path, arrays: Mapping[str, trees_LazyArray]) -> None:
    """Write a safetensors file, with one tensor in memory at a time.

    An existing file is replaced at the end, so `arrays` may be views of it.
    """
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    end = 0
    for name, array in arrays.items():
        offsets = [end, end + array.nbytes]
        header[name] = {
            "dtype": codes[array.dtype],
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        end = offsets[1]
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    unfinished = path.with_name(path.name + ".unfinished")
    with open(unfinished, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays.values():
            values = np.ascontiguousarray(array.read(), array.dtype)
            file.write(values.reshape(-1).view(np.uint8).data)
    unfinished.replace(path)


def write_tensors(
    directory: Path, arrays: Mapping[str, trees_LazyArray], *, shard_bytes: int = _SHARD_BYTES
) -> None:
    """Write the weights of a model as model.safetensors, or as several files with an index."""
    shards: list[dict[str, trees_LazyArray]] = [{}]
    for name, array in arrays.items():
        used = sum(other.nbytes for other in shards[-1].values())
        if used and used + array.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = array
    if len(shards) == 1:
        write_safetensors(directory / SAFETENSORS, shards[0])
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(directory / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(array.nbytes for array in arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / f"{SAFETENSORS}.index.json").write_text(json.dumps(index, indent=2) + "\n")
