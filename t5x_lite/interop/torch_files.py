"""PyTorch's zip archives, read and written without PyTorch.

PyTorch's zip archives, read without PyTorch and without trusting them.

An archive holds a pickle and the bytes of each storage, uncompressed. A pickle is a program, and
Python's unpickler runs whatever it names. `_unpickled` here knows the few operations that a dict of
tensors is made of and nothing else: `torch._utils._rebuild_tensor_v2`, the types of storages, and
OrderedDict. Tensors become tuples of numbers, which become views of the file afterwards. What is
made stays small: the pickle has a limit, and no tensor has more elements than its storage. A tree
that is no flat dict, such as that of `interop.sft`, may hold sizes and whole numbers of NumPy, too.

Source: torch/serialization.py, torch/_utils.py, pickletools.py.

PyTorch's zip archives, written without PyTorch: what torch.load and `torch_files` read.

    write_torch(Path("pytorch_adapter.bin"), {"down.weight": array})

A pickle of protocol 2, as torch.save writes it, of texts, numbers, dicts and tensors. The
functions give the bytes of one value each; tensors put their elements into a list of storages.
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
"""Bytes; T5 XXL's has 100 kB."""
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
    "_codecs encode": _ENCODE,  # how pickles of protocol 2 hold bytes
}
_VALUES = (
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINSTRING", "SHORT_BINSTRING",
)  # fmt: skip
"""Operations whose argument is the value."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Storage(NamedTuple):
    """Where a tensor's elements are: a member of the archive, of a dtype, and how many."""

    key: str
    dtype: str
    size: int


class _View(NamedTuple):
    """A tensor: elements of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _unpickled(content: bytes, *, where: Path, functions: Mapping[str, Any] = _FUNCTIONS) -> Any:
    """What a pickle makes, if that is a tree of dicts with strings as keys, tensors and numbers."""
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
            _require(index < len(content), "its memo is larger than the pickle")
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
    raise ValueError("its pickle has no end")


def _build(operation: str, stack: list[Any]) -> None:
    """Does what puts together the values on the stack."""
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
        _require(isinstance(stack[-1], dict), "items of what is no dict")
        stack[-1].update(zip(keys, values, strict=True))
    elif operation in ("APPEND", "APPENDS"):
        values = [stack.pop()] if operation == "APPEND" else _popped(stack)
        _require(isinstance(stack[-1], list), "entries of what is no list")
        stack[-1].extend(values)
    elif operation == "BINPERSID":
        stack.append(_storage(stack.pop()))
    elif operation == "REDUCE":
        arguments = stack.pop()
        stack.append(_called(stack.pop(), arguments))
    elif operation == "BUILD":  # the attribute _metadata of a state_dict(), which is not needed
        state = stack.pop()
        if stack[-1] is _INT64:
            _require(isinstance(state, tuple) and state[1] == "<", "a number is not little-endian")
            return
        _require(isinstance(stack[-1], dict), "attributes of what is no dict")
    else:
        raise ValueError(f"the operation {operation} is no part of a dict of tensors")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _popped(stack: list[Any]) -> list[Any]:
    """The values above the last mark."""
    values = []
    while (value := stack.pop()) is not _MARK:
        values.append(value)
    return values[::-1]


def _function(name: str, functions: Mapping[str, Any], *, where: Path) -> Any:
    if name not in functions:
        raise InputError(
            f"{where}: its pickle asks for {name.replace(' ', '.')}, and only tensors are "
            "admitted; do not load this file elsewhere unless you trust it"
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
    """What the functions give."""
    if function is _ORDERED_DICT and arguments == ():
        return {}
    if function is _SIZE:
        [sizes] = arguments
        _require(all(type(n) is int and 0 <= n < 1 << 31 for n in sizes), "no size of a tensor")
        return tuple(sizes)
    if function is _DTYPE:
        _require(arguments[0] == "i8", "a number of NumPy that is no int64")
        return _INT64
    if function is _ENCODE:
        text, encoding = arguments
        _require(encoding == "latin1" and len(text) <= _INT64_BYTES, "bytes that are no number")
        return text.encode("latin1")
    if function is _SCALAR:
        dtype, content = arguments
        _require(dtype is _INT64 and isinstance(content, bytes), "no number of NumPy")
        _require(len(content) == _INT64_BYTES, "no number of NumPy")
        return int.from_bytes(content, "little", signed=True)
    _require(function is _REBUILD_TENSOR, "a call of what is no function")
    storage, offset, shape, strides = arguments[:4]
    _require(isinstance(storage, _Storage), "a tensor without a storage")
    numbers = (offset, *shape, *strides)
    whole = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
    _require(len(shape) <= _MOST_AXES, "too many axes")
    _require(whole and len(shape) == len(strides), "no tensor has such offset, shape and strides")
    return _View(storage, offset, tuple(shape), tuple(strides))


def is_archive(path: Path) -> bool:
    """Whether a file begins like the zip archives that PyTorch writes since 1.6."""
    with open(path, "rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Views of the tensors of a pytorch_model.bin."""
    return read_archive(path, _views)


def read_tree(path: Path, *, longest_pickle: int) -> Any:
    """What an archive holds: dicts and lists of tensors, sizes and whole numbers."""

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
    """The contents of an archive's pickle, whose tensors `resolve` finds in the archive."""
    if not is_archive(path):
        raise InputError(
            f"{path}: not a zip archive: PyTorch before 1.6 wrote such files, and a truncated "
            "download looks so too; load it with PyTorch and save it as safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(names) != 1:
                raise ValueError(f"it holds {len(names)} data.pkl")
            prefix = names[0].removesuffix("data.pkl")
            if f"{prefix}byteorder" in archive.namelist():
                order = _member(archive, f"{prefix}byteorder")
                if order != b"little":
                    raise ValueError(f"its byte order is {order[:20]!r}")
            content = _member(archive, names[0], longest=longest_pickle)
            return resolve(
                *(path, archive, prefix), _unpickled(content, where=path, functions=functions)
            )
    except InputError:
        raise
    # An unpickler raises whatever its input leads it to.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"{path}: damaged, or not a dict of tensors ({reason})") from error


def _member(archive: zipfile.ZipFile, name: str, *, longest: int = _LONGEST_PICKLE) -> bytes:
    """A small file of the archive, which PyTorch does not compress."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    if info.file_size > longest:
        raise ValueError(f"{name} has {info.file_size} bytes, and {longest} are read")
    return archive.read(info)


def _views(
    path: Path, archive: zipfile.ZipFile, prefix: str, contents: Any
) -> dict[str, np.ndarray]:
    """The tensors that the pickle named, over the archive's bytes."""
    if not isinstance(contents, dict):
        raise ValueError(f"it holds a {type(contents).__name__}")
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
    """A tensor over the archive's bytes; storages that were seen are kept."""
    storage = view.storage
    if storage not in storages:
        info = archive.getinfo(f"{prefix}data/{storage.key}")
        storages[storage] = _elements(data, info, storage)
    return _strided(storages[storage], view)


def _elements(data: np.ndarray, info: zipfile.ZipInfo, storage: _Storage) -> np.ndarray:
    """The elements of a storage, which lie in the archive as they are."""
    dtype = np.dtype(ml_dtypes.bfloat16 if storage.dtype == "bfloat16" else storage.dtype)
    header = data[info.header_offset :][:_LOCAL_HEADER].tobytes()
    name_length, extra_length = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    begin = info.header_offset + _LOCAL_HEADER + name_length + extra_length
    end = begin + storage.size * dtype.itemsize
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != end - begin:
        raise ValueError(f"the storage {storage.key} is compressed or of another size")
    if end > data.size:
        raise ValueError(f"truncated in the storage {storage.key}")
    return data[begin:end].view(dtype)


def _strided(elements: np.ndarray, view: _View) -> np.ndarray:
    last = view.offset + sum(
        (size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)
    )
    if math.prod(view.shape) and last >= elements.size:
        raise ValueError(f"a tensor {view.shape} reaches beyond its storage")
    if math.prod(view.shape) > elements.size:  # a stride of 0 makes anything of one element
        raise ValueError(f"a tensor {view.shape} has more elements than its storage")
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
"""Storage types of the dtypes that can be kept."""


def write_torch(path: Path, arrays: Mapping[str, np.ndarray], *, keep_dtype: bool = False) -> None:
    """Write a dict of tensors in float32, or with `keep_dtype` in float16 and bfloat16, too."""
    storages: list[bytes] = []
    items = [
        (name, tensor(array, storages, keep_dtype=keep_dtype)) for name, array in arrays.items()
    ]
    write_archive(path, mapping(items), storages)


def write_archive(path: Path, pickled: bytes, storages: Sequence[bytes]) -> None:
    """Writes a value and the storages of its tensors."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled + b".")
        archive.writestr("archive/byteorder", b"little")
        for key, content in enumerate(storages):
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", b"3\n")


def tensor(array: np.ndarray, storages: list[bytes], *, keep_dtype: bool = False) -> bytes:
    """Return the bytes of a tensor, and add its elements to the storages."""
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
    """A dict of texts to values."""
    return b"}(" + b"".join(text(key) + value for key, value in items) + b"u"


def text(value: str) -> bytes:
    """A string."""
    content = value.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def number(value: int) -> bytes:
    """A whole number below 2^31."""
    return b"J" + struct.pack("<i", value)


def numbers(values: Sequence[int]) -> bytes:
    """A tuple of whole numbers."""
    return b"(" + b"".join(map(number, values)) + b"t"
