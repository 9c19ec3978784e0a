"""Parameters in Orbax's format, written and read one array at a time.

`t5x_lite.checkpoints.reading` saves what is in memory anyway. Import and export do not need the
whole model there: a LazyArray is made, written and forgotten before the next one.
"""

import functools
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5x_lite import renames, trees
from t5x_lite.checkpoints import manifest
from t5x_lite.errors import InputError
from t5x_lite.remote import absolute
from t5x_lite.trees import LazyArray

_CHUNK_BYTES = 1 << 27
"""What is compressed at a time, and decompressed by who reads a part of an array."""


class _OneAtATime(ocp.type_handlers.NumpyHandler):
    """Writes lazy arrays, each made after the one before it is on disk."""

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        """Writes all and returns nothing to wait for."""
        for value, info, arg in zip(values, infos, args, strict=True):
            for commit in await super().serialize([value.read()], [info], [arg]):
                commit.result()
        return []


def write_params(directory: Path, arrays: Mapping[str, LazyArray]) -> None:
    """Writes parameters as `checkpoints.restore_params` reads them.

    Args:
      directory: the new params/ of a step directory.
      arrays: by path.
    """
    # jax.Array is registered as well because Orbax warns of a registry without it.
    registry = ocp.type_handlers.create_type_handler_registry(
        (LazyArray, _OneAtATime(deepcopy_host_arrays=False)),
        (jax.Array, ocp.type_handlers.ArrayHandler()),
    )
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    target = epath.Path(directory.absolute())
    target.mkdir()
    params = trees.unflatten(arrays)
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), params)
    try:
        handler.save(target, args=ocp.args.PyTreeSave(params, save_args=save_args))
        handler.finalize(target)
    finally:
        handler.close()


def write_step(
    directory: Path, files: Mapping[str, bytes], arrays: Mapping[str, LazyArray]
) -> None:
    """Write a step directory: files/, params/ and the manifest.

    Args:
      directory: is there, and empty.
      files: by name below files/.
      arrays: by path.
    """
    for name, content in files.items():
        path = directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_params(directory / "params", arrays)
    manifest.write(directory)


def lazy_params(directory: Path) -> dict[str, LazyArray]:
    """The parameters in a directory by today's paths, each read when it is asked for.

    Args:
      directory: the params/ of a step directory.

    Raises:
      InputError: they are unreadable.
    """
    handler = ocp.PyTreeCheckpointHandler()
    where = absolute(directory)

    def read(path: str) -> np.ndarray:
        item = {other: 0 if other == path else ocp.PLACEHOLDER for other in saved}
        restore_args = {other: ocp.RestoreArgs(restore_type=np.ndarray) for other in saved}
        try:
            restored: Any = handler.restore(
                where,
                args=ocp.args.PyTreeRestore(
                    item=trees.unflatten(item), restore_args=trees.unflatten(restore_args)
                ),
            )
        except Exception as error:
            raise _unreadable(directory, error) from error
        return trees.flatten(restored)[path]

    try:
        metadata: Any = handler.metadata(where)
        saved = trees.flatten(metadata.tree)
        for path, leaf in saved.items():
            check_chunks(path, leaf)
        described = {
            path: (tuple(leaf.shape), np.dtype(leaf.dtype)) for path, leaf in saved.items()
        }
    except Exception as error:
        raise _unreadable(directory, error) from error
    today = renames.current_paths(saved)
    return {
        today[path]: LazyArray(*of, functools.partial(read, path)) for path, of in described.items()
    }


def check_chunks(path: str, leaf: Any) -> None:
    """Refuses an array whose chunks are larger than itself: one is allocated before it is read.

    Args:
      path: the array's path in the model.
      leaf: Orbax's metadata of it.

    Raises:
      ValueError: naming both shapes.
    """
    chunk = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
    shape = getattr(leaf, "shape", None) or ()
    if math.prod(chunk) > max(1, math.prod(shape)):
        raise ValueError(f"{path} has shape {tuple(shape)}, and chunks of {tuple(chunk)}")


def _unreadable(directory: Path, error: Exception) -> InputError:
    return InputError(f"{directory}: unreadable ({textwrap.shorten(str(error), 200)})")
