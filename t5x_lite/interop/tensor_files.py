"""Files of tensors in a Hugging Face directory, as views of the files in memory maps.

    tensors = read_tensors(Path("t5-v1_1-small"))
    tensors.arrays["shared.weight"].shape         -> (32128, 512); nothing was read yet

Of the formats that transformers writes, the first that is there is taken: safetensors, PyTorch's
zip archives, flax's msgpack; each as one file or as shards with an index. What PyTorch wrote before
1.6 is not read, and passed over where the weights are there in another format. Names and shapes
are PyTorch's in all of them: Flax's kernels are given transposed.

A safetensors file is eight bytes of length (little endian), a JSON header {name: {"dtype", "shape",
"data_offsets"}} and the tensors. Source: huggingface.co/docs/safetensors.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.files import plain_json
from t5x_lite.interop.msgpack_files import read_msgpack
from t5x_lite.interop.torch_files import is_archive, read_torch
from t5x_lite.trees import LazyArray

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
"""Bytes, as in the safetensors library."""
_SHARD_BYTES = 5 * 10**9

Arrays = Mapping[str, np.ndarray | LazyArray]


@dataclasses.dataclass(frozen=True)
class Tensors:
    """What a directory's files hold.

    Attributes:
      where: the file, or the index of the shards.
      arrays: views by name, under PyTorch's names and with its shapes.
    """

    where: Path
    arrays: Arrays


def read_tensors(directory: Path) -> Tensors:
    """The tensors of a Hugging Face directory.

    Raises:
      InputError: there is no file in a format that is read, one is missing, damaged or truncated.
    """
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
        return Tensors(legacy, read_torch(legacy))  # which says what to do
    names = ", ".join(name for name, _ in formats)
    raise InputError(f"{directory}: holds no weights that are read here: none of {names}")


def _read_shards(index: Path, read: Callable[[Path], Arrays]) -> Arrays:
    """The tensors of the files that an index names."""
    try:
        files = plain_json(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(files.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f'{index}: not an index of shards: no "weight_map"') from error
    arrays: dict[str, np.ndarray | LazyArray] = {}
    beside = {path.name for path in index.parent.iterdir() if path.is_file()}
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise InputError(f"{index}: {shard!r} is not the name of a file beside it")
        if shard not in beside:
            raise InputError(f"{index}: the shard {shard} is missing")
        found = read(index.parent / shard)
        if twice := sorted(arrays.keys() & found.keys()):
            raise InputError(f"{index}: {twice[0]} is in {shard} and in a shard before it")
        arrays.update(found)
    return arrays


def _read_flax(path: Path) -> Arrays:
    """Flax's tensors under PyTorch's names."""
    arrays: dict[str, np.ndarray | LazyArray] = {}
    for name, array in read_msgpack(path).items():
        head, _, last = name.rpartition(".")
        if last not in ("kernel", "embedding"):
            arrays[name] = array
        else:
            arrays[f"{head}.weight"] = _transposed(array) if last == "kernel" else array
    return arrays


def _transposed(array: np.ndarray | LazyArray) -> np.ndarray | LazyArray:
    if isinstance(array, LazyArray):
        return LazyArray(array.shape[::-1], array.dtype, lambda: array.read().T)
    return array.T


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Views of a safetensors file's tensors.

    Raises:
      InputError: the file is truncated, or no safetensors file.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        if size < 8 or start > size:
            raise InputError(f"{path}: truncated: it has {size} bytes, and its header ends later")
        if start > _LONGEST_HEADER:
            raise InputError(f"{path}: not a safetensors file (its header has {start - 8} bytes)")
        try:
            header = plain_json(file.read(start - 8))
            if not isinstance(header, dict):
                raise ValueError(f"its header is a {type(header).__name__}")
            entries = {name: header[name] for name in header if name != _METADATA}
            found = {name: _entry(entry) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path}: not a safetensors file ({_reason(error)})") from error
    data = np.memmap(path, np.uint8, mode="r")
    arrays: dict[str, np.ndarray] = {}
    for name, (dtype, shape, begin, end) in found.items():
        if start + end > size:
            raise InputError(
                f"{path}: truncated: {name} ends at byte {start + end}, and the file at {size}"
            )
        try:
            arrays[name] = data[start + begin : start + end].view(dtype).reshape(shape)
        except (ValueError, OverflowError) as error:  # more axes, or longer, than NumPy's
            raise InputError(
                f"{path}: not a safetensors file ({name}: {_reason(error)})"
            ) from error
    return arrays


def _entry(entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """dtype, shape, begin and end of one tensor."""
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"dtype {entry['dtype']} is not read")
    dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
    if not whole or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"shape {shape} does not take bytes {begin} to {end}")
    return dtype, shape, begin, end


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def write_safetensors(path: Path, arrays: Mapping[str, LazyArray]) -> None:
    """Writes a safetensors file, one tensor in memory at a time.

    The file has its name once it is whole. So `arrays` may be views of the file that it replaces.

    Args:
      path: the file.
      arrays: by name, made in this order.
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
    directory: Path, arrays: Mapping[str, LazyArray], *, shard_bytes: int = _SHARD_BYTES
) -> None:
    """Writes model.safetensors, or shards and their index where it would be too large.

    Args:
      directory: where.
      arrays: by name, made in this order.
      shard_bytes: of one file at most, a single larger tensor excepted.
    """
    shards: list[dict[str, LazyArray]] = [{}]
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
