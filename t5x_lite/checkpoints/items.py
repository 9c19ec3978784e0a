"""Reading and writing of the items of a checkpoint directory: Orbax arrays and plain files.

Each item has its own Orbax handler, so params/ can be read separately. Arrays are restored onto the
reader's devices, independent of the number of processes that wrote them.

`write_params` and `lazy_params` handle one array at a time, so import and export never hold a
complete model in memory: each LazyArray is computed, written and freed before the next one.
`checkpoints.saving` saves arrays that are already in memory.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5x_lite.checkpoints import manifest
from t5x_lite.core import renames, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import naming
from t5x_lite.core.object_store import ask_if_remote
from t5x_lite.core.remote import AnyPath, absolute, files_below
from t5x_lite.core.trees import LazyArray

_CHUNK_BYTES = 1 << 27
"""Size in bytes of a stored chunk, the unit of compression; a read decompresses whole chunks."""


class _OneAtATime(ocp.type_handlers.NumpyHandler):
    """Orbax handler that saves memory: it computes and writes lazy arrays one after another."""

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for value, info, arg in zip(values, infos, args, strict=True):
            for commit in await super().serialize([value.read()], [info], [arg]):
                commit.result()
        return []


def write_params(directory: Path, arrays: Mapping[str, LazyArray]) -> None:
    """Write parameters one at a time, in the format that `checkpoints.restore_params` reads."""
    # jax.Array is registered because Orbax warns about a registry without it.
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
    """Write a checkpoint directory with files/, params/ and the manifest."""
    for name, content in files.items():
        path = directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_params(directory / "params", arrays)
    manifest.write(directory)


def lazy_params(directory: Path) -> dict[str, LazyArray]:
    """Return the parameters in params/ by path as lazy arrays; each is read when it is needed."""
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
    """Raise ValueError if the compression chunks of a stored array are larger than the array."""
    chunk = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
    shape = getattr(leaf, "shape", None) or ()
    if math.prod(chunk) > max(1, math.prod(shape)):
        raise ValueError(
            f"{path} has shape {tuple(shape)}, but larger chunks of shape {tuple(chunk)}"
        )


def _unreadable(directory: Path, error: Exception) -> InputError:
    return InputError(f"{directory}: unreadable ({textwrap.shorten(str(error), 200)})")


TIMEOUT_SECONDS = 1200
"""Seconds that the processes of a save wait for each other before it fails; Orbax's default."""

_ORBAX_MARK = "commit_success.txt"


@dataclasses.dataclass
class FilesSave(ocp.args.CheckpointArgs):
    """Orbax save arguments: contents of a checkpoint's small files, by relative path.

    Attributes:
      item: files that process 0 writes.
      own: files that this process writes; no other process has these names.
    """

    item: Mapping[str, bytes]
    own: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


class FilesHandler(ocp.CheckpointHandler):
    """Orbax handler for the small files of a checkpoint, which are saved unchanged."""

    def save(self, directory: epath.Path, args: FilesSave) -> None:
        first = jax.process_index() == 0
        for name, content in {**(args.item if first else {}), **args.own}.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def restore(self, directory: epath.Path, args: Any = None) -> dict[str, bytes]:
        del args
        return read_files(directory)


ocp.args.register_with_handler(FilesHandler, for_save=True, for_restore=True)(FilesSave)


def checkpointer(timeout: int = TIMEOUT_SECONDS) -> ocp.AsyncCheckpointer:
    """Return a checkpointer that writes params, optimizer and files in the background.

    A checkpoint directory gets its final name when all processes have finished writing.
    """
    return ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(
            params=ocp.StandardCheckpointHandler(),
            optimizer=ocp.StandardCheckpointHandler(),
            files=FilesHandler(),
        ),
        async_options=ocp.AsyncOptions(timeout_secs=timeout),
    )


def read_files(directory: AnyPath) -> dict[str, bytes]:
    """Read all files below a directory, except Orbax's files; {} if the directory is missing."""
    if not directory.is_dir():
        return {}
    files = {}
    for name in files_below(directory):
        if not name.endswith(_ORBAX_MARK) and not name.split("/")[-1].startswith("_"):
            with naming(directory / name):
                files[name] = ask_if_remote(directory / name, (directory / name).read_bytes)
    return files


def saved_leaves(directory: AnyPath) -> dict[str, Any]:
    """Return the shape and dtype of each array in a directory such as params/, by path."""
    handler = ocp.PyTreeCheckpointHandler()
    try:
        metadata: Any = handler.metadata(absolute(directory))
        leaves = trees.flatten(metadata.tree)
        for path, leaf in leaves.items():
            check_chunks(path, leaf)
        today = renames.current_paths(leaves)
        return {today[path]: leaf for path, leaf in leaves.items()}
    finally:
        handler.close()


def restore_item(directory: AnyPath, abstract: Any) -> Any:
    """Restore the arrays of a directory such as params/ onto given shapes, dtypes and shardings."""
    # A Checkpointer would warn that params/ lacks the metadata of a complete step.
    handler = ocp.StandardCheckpointHandler()
    try:
        with _ignoring_late_reads():
            paths = _saved_paths(handler, directory)
            if any(today != path for today, path in paths.items()):
                wanted = trees.flatten(abstract)
                if difference := trees.difference(wanted, paths):
                    raise ValueError(difference)
                return _replaced(abstract, restore_leaves(directory, wanted), None)
            wanted = jax.tree.map(_on_device, abstract)
            return handler.restore(absolute(directory), args=ocp.args.StandardRestore(wanted))
    finally:
        handler.close()


def _saved_paths(handler: Any, directory: AnyPath) -> dict[str, str]:
    paths = trees.flatten(handler.metadata(absolute(directory)).tree)
    return {today: path for path, today in renames.current_paths(paths).items()}


def restore_leaves(directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Restore selected arrays of a directory such as params/, without reading the other arrays."""
    handler = ocp.PyTreeCheckpointHandler()
    try:
        with _ignoring_late_reads():
            paths = _saved_paths(handler, directory)
            placed = {paths[path]: _on_device(leaf) for path, leaf in wanted.items()}
            metadata: Any = handler.metadata(absolute(directory))
            restored: Any = handler.restore(
                absolute(directory),
                args=ocp.args.PyTreeRestore(
                    item=_replaced(metadata.tree, placed, ocp.PLACEHOLDER),
                    restore_args=_replaced(
                        metadata.tree,
                        {path: _restore_args(leaf) for path, leaf in placed.items()},
                        ocp.RestoreArgs(),
                    ),
                ),
            )
    finally:
        handler.close()
    flat = trees.flatten(restored)
    return {path: flat[paths[path]] for path in wanted}


def _replaced(
    tree: Mapping[str, Any], leaves: Mapping[str, Any], other: Any, prefix: str = ""
) -> dict[str, Any]:
    """Return a nested dict with replaced values; keep empty dicts, which Orbax compares."""
    return {
        key: _replaced(value, leaves, other, f"{prefix}{key}/")
        if isinstance(value, Mapping)
        else leaves.get(prefix + key, other)
        for key, value in tree.items()
    }


def _restore_args(leaf: Any) -> ocp.ArrayRestoreArgs:
    return ocp.ArrayRestoreArgs(
        sharding=leaf.sharding, global_shape=tuple(leaf.shape), dtype=leaf.dtype
    )


def _on_device(leaf: Any) -> Any:
    if leaf.sharding is not None:
        return leaf
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


@contextlib.contextmanager
def quiet_saving() -> Iterator[None]:
    """Suppress the errors that Orbax's threads print to standard error about a failed save.

    The caller that waits for the save gets the error. Later writes may fail until the end of the
    process, so the filter for their errors is never removed.
    """
    logger = logging.getLogger("absl")
    logger.addFilter(_is_not_orbax)
    if not isinstance(sys.unraisablehook, _Unraisable):
        sys.unraisablehook = _Unraisable(sys.unraisablehook)
    try:
        yield
    finally:
        logger.removeFilter(_is_not_orbax)


def _is_not_orbax(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


@contextlib.contextmanager
def _ignoring_late_reads() -> Iterator[None]:
    """Suppress "Event loop is closed" errors, which parallel reads print after one has failed."""
    report = sys.unraisablehook
    sys.unraisablehook = _Unraisable(report)
    yield
    sys.unraisablehook = report  # kept after an error, because other reads may still be running


class _Unraisable:
    """Hook for unraisable exceptions that ignores "Event loop is closed"."""

    def __init__(self, report: Callable[[Any], object]):
        self._report = report

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._report(unraisable)
