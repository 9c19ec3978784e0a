"""Files of t5x checkpoints: names and shapes at once, arrays one by one when they are asked for.

A step is a directory checkpoint_N in one of three layouts (t5x checkpoints.py):

    checkpoint                        t5x's own: an index in flax's msgpack, whose leaves are arrays
    target.encoder.layers_0.../       or TensorStore specs of the zarr folders beside it
    state/checkpoint                  Orbax until 2024: the same, but a leaf that lies in a folder
    state/target.encoder.../          is the string "PLACEHOLDER://target.encoder..."
    state/_METADATA, ...              Orbax since then, read by Orbax

The parameters are the tree `target` of the index. What else there is (the optimizer's state, the
position in the data) is not read. A directory may be gs://bucket/path in the first two layouts.
"""

import contextlib
import dataclasses
import functools
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from orbax.checkpoint import msgpack_utils

from t5x_lite.checkpoints.orbax_params import check_chunks
from t5x_lite.errors import InputError

INDEX = "checkpoint"
_METADATA = "_METADATA"
_OCDBT = "manifest.ocdbt"
_PLACEHOLDER = "PLACEHOLDER://"
_STATE = "state"
_MOST_COMPRESSED = {None: 1, "gzip": 1100, "zlib": 1100}
"""How many times larger than its files an array can be, by what compressed it."""
_MOST_COMPRESSED_BY_OTHERS = 50_000
_TENSORFLOW = b"model_checkpoint_path"
# "optimizer" is t5x's; "_optimizer" and "params" are its train states saved as they are.
_TARGETS = (("optimizer", "target"), ("_optimizer", "target"), ("target",), ("params",))


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """One array of a checkpoint that has not been read.

    Attributes:
      shape: its shape there.
      dtype: of what `read` gives.
      read: reads all of it; raises InputError where its files are damaged. Its argument is the axis
        that shall be the outermost one in memory, as `numpy.moveaxis` will want it, or None; who
        cannot do so for free does not.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[int | None], np.ndarray]


def find_checkpoint(source: str | Path, *, step: int | None = None) -> str:
    """The directory checkpoint_N that is meant.

    Args:
      source: that directory, its file `checkpoint`, or the model's directory above it, whose newest
        step is taken; or gs://bucket/.../checkpoint_N.
      step: which of the model's directory.

    Raises:
      InputError: there is no such directory, or not that step.
    """
    text = str(source).rstrip("/")
    if text.startswith("gs://"):
        return text if step is None else f"{text}/checkpoint_{step}"
    directory = Path(source)
    if directory.name == INDEX and directory.is_file():
        directory = directory.parent
    if not directory.is_dir():
        raise InputError(f"t5x checkpoint {source}: no such directory")
    names = (re.fullmatch(r"checkpoint_(\d+)", path.name) for path in directory.iterdir())
    steps = sorted(int(match[1]) for match in names if match)
    if step is not None and step not in steps and directory.name != f"checkpoint_{step}":
        raise InputError(f"t5x checkpoint {source} has no step {step}: it has {steps}")
    if not steps:
        return str(directory)
    return str(directory / f"checkpoint_{steps[-1] if step is None else step}")


def read_target(directory: str) -> dict[str, StoredTensor]:
    """The parameters of a step by path, such as "encoder/layers_0/mlp/wo/kernel".

    Args:
      directory: as `find_checkpoint` gives.

    Raises:
      InputError: no layout is recognised, its index is damaged or holds no parameters, or an
        array's folder is missing or unreadable.
    """
    for folder in (directory, f"{directory}/{_STATE}"):
        store = _open_store(folder)
        index = _content(store, INDEX, folder)
        # Orbax's database of all arrays in one is not the folders that the index speaks of.
        if index is not None and _content(store, _OCDBT, folder) is None:
            return _indexed(folder, index)
        if _content(store, _METADATA, folder) is not None:
            return _orbax(folder)
    raise InputError(
        f"t5x checkpoint {directory}: holds no file {INDEX!r}, nor {_STATE}/{INDEX} or "
        f"{_STATE}/{_METADATA}; give a directory checkpoint_N that t5x wrote, or the one above it"
    )


def _kvstore(directory: str) -> dict[str, Any]:
    """TensorStore's spec of a directory."""
    bucket = re.fullmatch(r"gs://([^/]+)/?(.*)", directory)
    if bucket:
        return {"driver": "gcs", "bucket": bucket[1], "path": f"{bucket[2]}/"}
    return {"driver": "file", "path": f"{Path(directory).absolute()}/"}


def _open_store(directory: str) -> ts.KvStore:
    with _reading(directory):
        return ts.KvStore.open(_kvstore(directory)).result()


def _content(store: ts.KvStore, name: str, where: str) -> bytes | None:
    """A file's content; None where there is no such file."""
    with _reading(f"{where}/{name}"):
        found = store.read(name).result()
    return found.value if found.state == "value" else None


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    """Makes an InputError that says where of whatever fails inside."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = textwrap.shorten(str(error).partition(" [tensorstore_spec")[0], 200)
        raise InputError(f"t5x checkpoint {where}: unreadable ({reason})") from error


def _target(where: str, contents: Any) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The tree of parameters in the tree of an index, and the keys that lead to it."""
    for keys in _TARGETS:
        found = contents
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping) and found:
            return keys, found
    raise InputError(f"t5x checkpoint {where}: holds no parameters, which are its tree 'target'")


# t5x's own layout, and Orbax's old one


def _indexed(directory: str, index: bytes) -> dict[str, StoredTensor]:
    where = f"{directory}/{INDEX}"
    if index.startswith(_TENSORFLOW):
        raise InputError(
            f"t5x checkpoint {where}: is a TensorFlow checkpoint of Mesh TensorFlow; convert it "
            "with t5x's convert_tf_checkpoint first, or import the Hugging Face release"
        )
    with _reading(where):
        contents = msgpack_utils.msgpack_restore(index)
    if isinstance(contents, Mapping) and contents.get("version") == 1:
        raise InputError(f"t5x checkpoint {where}: is of version 1; t5x reads 2 and later")
    leaves = dict(_leaves(_target(where, contents)[1]))
    # All are opened together: each waits for a small file, from a bucket perhaps.
    opened = {}
    for path, leaf in leaves.items():
        if not isinstance(leaf, np.ndarray):
            with _reading(f"{where}: {path}"):
                opened[path] = ts.open(_zarr_spec(where, path, leaf, directory), open=True)
    tensors = {}
    for path, leaf in leaves.items():
        if isinstance(leaf, np.ndarray):
            tensors[path] = StoredTensor(leaf.shape, leaf.dtype, functools.partial(_given, leaf))
            continue
        with _reading(f"{directory}: {path}"):
            stored = opened[path].result()
            dtype = np.dtype(stored.dtype.numpy_dtype)
            _check_stored(stored, dtype)
        # Version 2 wrote the bits of bfloat16 as integers.
        dtype = np.dtype(jnp.bfloat16) if dtype == np.uint16 else dtype
        read = functools.partial(_read_zarr, f"{directory}: {path}", stored, dtype)
        tensors[path] = StoredTensor(tuple(stored.shape), dtype, read)
    return tensors


def _check_stored(stored: ts.TensorStore, dtype: np.dtype) -> None:
    """Refuses a shape for which the array's files are too small: it would be allocated first.

    Raises:
      ValueError: naming both sizes.
    """
    spec: Any = stored.spec().to_json()
    metadata = spec.get("metadata", {})
    compressor = (metadata.get("compressor") or {}).get("id")
    if "codecs" in metadata:  # zarr3 has several, one in another
        compressor = "codecs"
    chunk = [length or 1 for length in stored.chunk_layout.read_chunk.shape or ()]
    size = max(math.prod(stored.shape), math.prod(chunk)) * dtype.itemsize
    store: Any = stored.kvstore
    folder = store.spec().to_json()
    files = _bytes_below(folder["path"]) if folder["driver"] == "file" else None
    _check_size(size, files, _MOST_COMPRESSED.get(compressor, _MOST_COMPRESSED_BY_OTHERS))


def _check_size(size: int, files: int | None, most: int) -> None:
    """Refuses an array of so many bytes that its files, if they are of this machine, cannot hold.

    Raises:
      ValueError: naming both sizes.
    """
    if files is not None and size > files * most:
        raise ValueError(f"its shape makes {size} bytes, and its files have {files}")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise ValueError(f"its shape makes {size} bytes, and this machine's memory has {memory}")


def _bytes_below(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())


def _given(array: np.ndarray, outermost: int | None) -> np.ndarray:
    del outermost
    return array


def _read_zarr(
    where: str, stored: ts.TensorStore, dtype: np.dtype, outermost: int | None
) -> np.ndarray:
    axis = outermost or 0
    with _reading(where):
        # A scanned kernel of XXL is 4 GB: it is put in order while it is read, not copied after.
        moved = stored[ts.d[axis].transpose[0]] if stored.rank else stored
        array = moved.read().result().view(dtype)
    return np.moveaxis(array, 0, axis) if stored.rank else array


def _is_spec(leaf: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(leaf, Mapping) and {"driver", "kvstore"} <= leaf.keys()


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and leaves: arrays, specs and placeholders. Nothing at all (None) is no leaf."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not _is_spec(value):
            yield from _leaves(value, f"{path}/")
        elif isinstance(value, np.generic | int | float) and not isinstance(value, bool):
            yield path, np.asarray(value)
        elif value is not None:
            yield path, value


def _zarr_spec(where: str, path: str, leaf: Any, directory: str) -> dict[str, Any]:
    """What opens the folder that a leaf names, which lies beside the index wherever that is."""
    if _is_spec(leaf):
        # TensorStore before 0.1.14 wrote the path beside the kvstore.
        store = leaf["kvstore"] if isinstance(leaf["kvstore"], Mapping) else {}
        driver, folder = leaf["driver"], store.get("path", leaf.get("path", ""))
    elif isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
        driver, folder = "zarr", leaf.removeprefix(_PLACEHOLDER)
    else:
        raise InputError(f"t5x checkpoint {where}: {path} is neither an array nor a place of one")
    name = str(folder).rstrip("/").rpartition("/")[2]
    if driver not in ("zarr", "zarr3") or name in ("", ".", ".."):
        raise InputError(
            f"t5x checkpoint {where}: {path} is not a zarr folder: {driver} {folder!r}"
        )
    store = _kvstore(directory)
    return {
        "driver": driver,
        "kvstore": {**store, "path": f"{store['path']}{name}/"},
        # A chunk that is not there would be read as zeros; t5x writes those of zeros as well.
        "fill_missing_data_reads": False,
    }


# Orbax


def _orbax(directory: str) -> dict[str, StoredTensor]:
    handler = ocp.PyTreeCheckpointHandler()
    path = epath.Path(directory)
    path = path if directory.startswith("gs://") else path.absolute()
    with _reading(directory):
        contents = handler.metadata(path).tree
    keys, tree = _target(directory, contents)
    tensors = dict(_orbax_tensors(handler, path, tree, keys))
    # Of a database of all arrays, no one knows which bytes are whose.
    files = None if directory.startswith("gs://") else _bytes_below(directory)
    for name, tensor in tensors.items():
        with _reading(f"{directory}: {name}"):
            size = math.prod(tensor.shape) * tensor.dtype.itemsize
            _check_size(size, files, _MOST_COMPRESSED_BY_OTHERS)
    return tensors


def _orbax_tensors(
    handler: ocp.PyTreeCheckpointHandler,
    directory: Any,
    tree: Mapping[str, Any],
    root: tuple[str, ...],
    keys: tuple[str, ...] = (),
) -> Iterator[tuple[str, StoredTensor]]:
    for key, value in tree.items():
        below = (*keys, str(key))
        if isinstance(value, Mapping):
            yield from _orbax_tensors(handler, directory, value, root, below)
        elif getattr(value, "shape", None) is not None:
            with _reading(str(directory)):
                check_chunks("/".join(below), value)
            read = functools.partial(_read_orbax, handler, directory, (*root, *below))
            dtype = np.dtype(value.dtype)
            yield "/".join(below), StoredTensor(tuple(value.shape), dtype, read)


def _read_orbax(
    handler: ocp.PyTreeCheckpointHandler,
    directory: Any,
    keys: Sequence[str],
    outermost: int | None,
) -> np.ndarray:
    del outermost
    item: Any = 0
    restore: Any = ocp.RestoreArgs(restore_type=np.ndarray)
    for key in reversed(keys):
        item, restore = {key: item}, {key: restore}
    with _reading(f"{directory}: {'/'.join(keys)}"):
        args = ocp.args.PyTreeRestore(item=item, restore_args=restore, partial_restore=True)
        array: Any = handler.restore(directory, args=args)
        for key in keys:
            array = array[key]
        return np.asarray(array)
