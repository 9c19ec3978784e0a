"""What Orbax writes into a step directory and reads from it.

What Orbax writes into a step directory and reads from it: arrays, and small files as they are.

Orbax's handlers are used one by one, so that a directory params/ can be read where it stands, and
each array is placed on the devices of who reads it, whatever the number of processes that wrote it.

Parameters in Orbax's format, written and read one array at a time.

`t5x_lite.checkpoints.reading` saves what is in memory anyway. Import and export do not need the
whole model there: a LazyArray is made, written and forgotten before the next one.
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
    """Writes parameters as `checkpoints.restore_params` reads them."""
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
    """Write a step directory: files/, params/ and the manifest."""
    for name, content in files.items():
        path = directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_params(directory / "params", arrays)
    manifest.write(directory)


def lazy_params(directory: Path) -> dict[str, LazyArray]:
    """The parameters in a directory by today's paths, each read when it is asked for."""
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
    """Refuses an array whose chunks are larger than itself: one is allocated before it is read."""
    chunk = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
    shape = getattr(leaf, "shape", None) or ()
    if math.prod(chunk) > max(1, math.prod(shape)):
        raise ValueError(f"{path} has shape {tuple(shape)}, and chunks of {tuple(chunk)}")


def _unreadable(directory: Path, error: Exception) -> InputError:
    return InputError(f"{directory}: unreadable ({textwrap.shorten(str(error), 200)})")


TIMEOUT_SECONDS = 1200
"""How long the processes wait for each other in a save; Orbax's default as well."""

_ORBAX_MARK = "commit_success.txt"


@dataclasses.dataclass
class FilesSave(ocp.args.CheckpointArgs):
    """Files to save: relative path -> content.

    Attributes:
      item: written by the first process.
      own: written by this process; no other process has these names.
    """

    item: Mapping[str, bytes]
    own: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


class FilesHandler(ocp.CheckpointHandler):
    """Saves small files as they are, so that a person can read a step directory."""

    def save(self, directory: epath.Path, args: FilesSave) -> None:
        """Writes the files; parents are made."""
        first = jax.process_index() == 0
        for name, content in {**(args.item if first else {}), **args.own}.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def restore(self, directory: epath.Path, args: Any = None) -> dict[str, bytes]:
        """Reads all files below the directory."""
        del args
        return read_files(directory)


ocp.args.register_with_handler(FilesHandler, for_save=True, for_restore=True)(FilesSave)


def checkpointer(timeout: int = TIMEOUT_SECONDS) -> ocp.AsyncCheckpointer:
    """Writes a step directory's params, optimizer and files in the background.

    A step directory has its name when it is whole, and all processes know of it then.
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
    """All files below a directory but Orbax's own, by relative path; none where it is missing."""
    if not directory.is_dir():
        return {}
    files = {}
    for name in files_below(directory):
        if not name.endswith(_ORBAX_MARK) and not name.split("/")[-1].startswith("_"):
            with naming(directory / name):
                files[name] = ask_if_remote(directory / name, (directory / name).read_bytes)
    return files


def saved_leaves(directory: AnyPath) -> dict[str, Any]:
    """The arrays of an item: today's path -> Orbax's metadata, with shape and dtype."""
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
    """An item, such as params/, onto shapes, dtypes and shardings."""
    # Not a Checkpointer, which warns that params/ by itself has no metadata of a whole step.
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
    """Today's path of each array of an item -> the path that it was saved with."""
    paths = trees.flatten(handler.metadata(absolute(directory)).tree)
    return {today: path for path, today in renames.current_paths(paths).items()}


def restore_leaves(directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Some arrays of an item by path; the others are not read."""
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
    """A tree with other leaves, by path; empty dicts stay, because Orbax compares structures."""
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
    """Keeps off standard error what Orbax's threads tell of a save that fails, each by itself.

    Whoever waits for the save is given the error. What other writes find after the first has failed
    may come as late as the end of the process, so that is held back for good.
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
    """After one read has failed, keeps off standard error that the others find no event loop."""
    report = sys.unraisablehook
    sys.unraisablehook = _Unraisable(report)
    yield
    sys.unraisablehook = report  # not after an error: the other reads may still end


class _Unraisable:
    """Reports errors that nobody can catch, but not that a closed event loop was called."""

    def __init__(self, report: Callable[[Any], object]):
        self._report = report

    def __call__(self, unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            self._report(unraisable)
