"""PyTorch's zip archives, written without PyTorch: what torch.load and `torch_files` read.

    write_torch(Path("pytorch_adapter.bin"), {"down.weight": array})

A pickle of protocol 2, as torch.save writes it, of texts, numbers, dicts and tensors. The
functions give the bytes of one value each; tensors put their elements into a list of storages.
"""

import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

_STORAGES = {
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
    dtype = array.dtype if keep_dtype and array.dtype in _STORAGES else np.dtype(np.float32)
    array = np.ascontiguousarray(array, dtype)
    storages.append(array.tobytes())
    strides = [stride // array.itemsize for stride in array.strides]
    key = text(str(len(storages) - 1))
    storage = b"(" + text("storage") + f"ctorch\n{_STORAGES[dtype]}\n".encode() + key + text("cpu")
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
