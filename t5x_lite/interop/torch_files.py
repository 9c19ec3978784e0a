"""Reading and writing of PyTorch's zip archives, without PyTorch and without running their code.

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
"""

import math
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from t5x_lite.core.errors import InputError

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
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Storage(NamedTuple):
    """Location of a tensor's elements: a member of the archive, its dtype and its length."""

    key: str
    dtype: str
    size: int


class _View(NamedTuple):
    """Tensor of a PyTorch archive, described as a strided view of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _unpickled(content: bytes, *, where: Path, functions: Mapping[str, Any] = _FUNCTIONS) -> Any:
    """Return the object of a pickle that contains only dicts, lists, tensors and numbers."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        name = operation.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
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
    raise ValueError("the pickle has no end")


def _build(operation: str, stack: list[Any]) -> None:
    """Apply a pickle opcode that combines values on the stack."""
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
        raise ValueError(f"the opcode {operation} does not occur in a dict of tensors")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _popped(stack: list[Any]) -> list[Any]:
    """Pop the values above the last MARK of the pickle's stack."""
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
    """Return True if a file begins like the zip archives that PyTorch writes since 1.6."""
    with open(path, "rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Return views of the tensors in a PyTorch archive, such as pytorch_model.bin, by name."""
    return read_archive(path, _views)


def read_tree(path: Path, *, longest_pickle: int) -> Any:
    """Return the contents of a PyTorch archive: dicts and lists of tensors, sizes and integers."""

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
    """Return the object pickled in a PyTorch archive; `resolve` turns tensors into arrays."""
    if not is_archive(path):
        raise InputError(
            f"{path}: not a zip archive, because PyTorch before 1.6 wrote it or the download is "
            "truncated; load it with PyTorch and save it as safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(names) != 1:
                raise ValueError(f"expected one data.pkl, found {len(names)}")
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
    """Read a small file of the archive, which must be uncompressed."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    if info.file_size > longest:
        raise ValueError(f"{name} has {info.file_size} bytes, but the limit is {longest}")
    return archive.read(info)


def _views(
    path: Path, archive: zipfile.ZipFile, prefix: str, contents: Any
) -> dict[str, np.ndarray]:
    if not isinstance(contents, dict):
        raise ValueError(f"expected a dict, found a {type(contents).__name__}")
    data = np.memmap(path, np.uint8, mode="r")
    storages: dict[_Storage, np.ndarray] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, view in contents.items():
        if not isinstance(view, _View):
            raise ValueError(f"{name!r} is not a tensor")
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
    """Return the elements of a storage as a view of the archive's bytes."""
    dtype = np.dtype(ml_dtypes.bfloat16 if storage.dtype == "bfloat16" else storage.dtype)
    header = data[info.header_offset :][:_LOCAL_HEADER].tobytes()
    name_length, extra_length = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    begin = info.header_offset + _LOCAL_HEADER + name_length + extra_length
    end = begin + storage.size * dtype.itemsize
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != end - begin:
        raise ValueError(f"the storage {storage.key} is compressed or has the wrong size")
    if end > data.size:
        raise ValueError(f"the file ends within the storage {storage.key}")
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
    """Write a pickled value and the storages of its tensors as a PyTorch archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled + b".")
        archive.writestr("archive/byteorder", b"little")
        for key, content in enumerate(storages):
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", b"3\n")


def tensor(array: np.ndarray, storages: list[bytes], *, keep_dtype: bool = False) -> bytes:
    """Return the pickled bytes of a tensor, and append its elements to `storages`."""
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
    """Return the pickled bytes of a dict from strings to values that are already pickled."""
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
