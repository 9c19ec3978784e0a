"""PyTorch's zip archives, read without PyTorch and without trusting them.

An archive holds a pickle and the bytes of each storage, uncompressed. Unpickling runs whatever the
file names, so the unpickler here admits what a dict of tensors is made of and nothing else:
`torch._utils._rebuild_tensor_v2`, the types of storages, and OrderedDict. What it makes of them is
tuples of numbers, which become views of the file afterwards.

Source: torch/serialization.py, torch/_utils.py.
"""

import collections
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from t5x_lite.errors import InputError

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


class _Unpickler(pickle.Unpickler):
    """Admits tensors and nothing else."""

    def __init__(self, file: Any, *, where: Path):
        super().__init__(file)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            # Made anew: what a file does to this function, it does to its own.
            return lambda storage, offset, shape, strides, *_: _View(
                storage, offset, tuple(shape), tuple(strides)
            )
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise InputError(
            f"{self._where}: its pickle asks for {module}.{name}, and only tensors are admitted; "
            "do not load this file elsewhere unless you trust it"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, size = pid
        if kind != "storage" or not isinstance(key, str) or dtype not in _STORAGES.values():
            raise ValueError(f"unknown storage {key!r}")
        return _Storage(key, dtype, size)


def is_archive(path: Path) -> bool:
    """Whether a file begins like the zip archives that PyTorch writes since 1.6."""
    with open(path, "rb") as file:
        return file.read(len(_ZIP)) == _ZIP


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """Views of the tensors of a pytorch_model.bin.

    Raises:
      InputError: the file is of PyTorch's old format, damaged or truncated, or its pickle holds
        anything else than a dict of tensors.
    """
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
                order = archive.read(f"{prefix}byteorder")
                if order != b"little":
                    raise ValueError(f"its byte order is {order!r}")
            with archive.open(names[0]) as pickled:
                contents = _Unpickler(pickled, where=path).load()
            return _views(path, archive, prefix, contents)
    except InputError:
        raise
    # An unpickler raises whatever its input leads it to.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"{path}: damaged, or not a dict of tensors ({reason})") from error


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
        if not isinstance(name, str) or not isinstance(view, _View):
            raise ValueError(f"{name!r} is no tensor")
        storage = _Storage(*view.storage)
        if storage not in storages:
            info = archive.getinfo(f"{prefix}data/{storage.key}")
            storages[storage] = _elements(data, info, storage)
        arrays[name] = _strided(storages[storage], view)
    return arrays


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
    numbers = (view.offset, *view.shape, *view.strides)
    if len(view.shape) != len(view.strides) or not all(
        isinstance(number, int) and number >= 0 for number in numbers
    ):
        raise ValueError(f"no tensor has offset, shape and strides {numbers}")
    last = view.offset + sum(
        (size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True)
    )
    if math.prod(view.shape) and last >= elements.size:
        raise ValueError(f"a tensor {view.shape} reaches beyond its storage")
    return np.lib.stride_tricks.as_strided(
        elements[view.offset :],
        view.shape,
        [stride * elements.itemsize for stride in view.strides],
        writeable=False,
    )
