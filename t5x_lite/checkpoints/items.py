"""Contents of a checkpoint directory: Orbax arrays, plain files, and the manifest with SHA-256.

Manifest of a checkpoint directory: size and SHA-256 of each file.

    work/run/checkpoints/200/manifest.json

    {"version": 1, "process": 0, "processes": 1, "step": 200,
     "files": {"params/_METADATA": {"size": 1423, "sha256": "9f86d0..."}, ...},
     "sha256": "60303a..."}        # digest of the manifest itself, without this field

The manifest is written atomically after all other files are on disk. A directory without a manifest
is not a checkpoint. Each process of a run writes a manifest of the files that it wrote
(manifest.process_1.json, ...), and all manifests must exist. Files in no manifest are ignored. A
directory checkpoints/30 with step 20 in its manifest counts as damaged, because it was copied or
renamed. Outside of checkpoints/, and with a name that is not a number, a checkpoint may have any
name. The manifests of imported weights, and older manifests, have no step.

If a signal ends the run before all files are hashed, the manifest has "hurried", and some files
have only a size. In a bucket no file is hashed or read: process 0 writes one manifest with the
store's metadata of all objects, and later checks compare the metadata.

    "hurried": true, "files": {"params/d/9ec6": {"size": 4096}}
    "files": {"params/d/9ec6": {"size": 4096, "crc32c": "yZRlqg=="}}      # Google Cloud Storage

`write` also upgrades a directory that was saved without a manifest:

    python -c "from t5x_lite.checkpoints import manifest as m; m.write('work/run/checkpoints/200')"

Reading and writing of the items of a checkpoint directory: Orbax arrays and plain files.

Each item has its own Orbax handler, so params/ can be read separately. Arrays are restored onto the
reader's devices, independent of the number of processes that wrote them.

`write_params` and `lazy_params` handle one array at a time, so import and export never hold a
complete model in memory: each LazyArray is computed, written and freed before the next one.
`checkpoints.saving` saves arrays that are already in memory.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5x_lite.core import remote, renames, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import naming, sync_to_disk
from t5x_lite.core.object_store import ask_if_remote
from t5x_lite.core.remote import AnyPath, absolute, files_below
from t5x_lite.core.trees import LazyArray

MANIFEST_FILE = "manifest.json"
DIRECTORY = "checkpoints"
"""Folder of a work directory's checkpoints; a name of digits in it is the step number."""

_VERSION = 1
_BLOCK_BYTES = 1 << 20
_THREADS = 4
_OF_A_PROCESS = re.compile(r"(?:.*\.)?process_(\d+)")
_MANIFESTS = re.compile(r"manifest(\.process_\d+)?\.json|\.manifest\..*")
"""Pattern of the file names of manifests, and of temporary files that are renamed to manifests."""


def _never() -> bool:
    return False


def write(
    step_directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    process: int = 0,
    processes: int = 1,
    hurried: Callable[[], bool] = _never,
) -> None:
    """Write the manifest of the checkpoint files that one process wrote.

    In a bucket, process 0 writes the manifest of all files. On a disk, files are flushed
    and hashed; hashing stops if `hurried` returns True.
    """
    directory = remote.open_path(step_directory)
    number = {} if step is None else {"step": step}
    if remote.is_remote(directory):
        if not process:
            files = {
                name: _entry(stored)
                for name, stored in remote.objects_below(directory).items()
                if not _MANIFESTS.fullmatch(name)
            }
            one = {"version": _VERSION, "process": 0, "processes": 1}
            _put(directory, {**one, **number, "files": files}, [])
        return
    names = [
        name
        for name in remote.files_below(directory)
        if not _MANIFESTS.fullmatch(name) and _writer(name, processes) == process
    ]
    files = {name: _describe(directory / name, hurried) for name in names}
    content = {
        "version": _VERSION,
        "process": process,
        "processes": processes,
        **number,
        **({} if all("sha256" in saved for saved in files.values()) else {"hurried": True}),
        "files": files,
    }
    _put(directory, content, names)


def add(step_directory: str | os.PathLike[str], name: str) -> None:
    """Add one more file of a checkpoint directory to its manifest."""
    directory = remote.open_path(step_directory)
    content = _read(directory, 0)
    del content["sha256"]
    if remote.is_remote(directory):
        beside = remote.objects_below((directory / name).parent)
        entry = _entry(beside[os.path.basename(name)])
    else:
        entry = _describe(directory / name)
    content["files"] = {**content["files"], name: entry}
    _put(directory, content, [name])


def _put(directory: AnyPath, content: Mapping[str, Any], names: Iterable[str]) -> None:
    _sync(directory, names)
    # No newline at the end, so any truncation makes the JSON invalid.
    text = json.dumps({**content, "sha256": _own_digest(content)}, indent=1)
    remote.write_whole(directory / _file_name(content["process"]), text.encode())
    _sync(directory, [])


def _sync(directory: AnyPath, names: Iterable[str]) -> None:
    """Flush files and their directories to disk."""
    if remote.is_remote(directory):
        return
    top = os.path.abspath(directory)
    folders = {top, os.path.dirname(top)}
    for name in names:
        path = os.path.join(top, name)
        sync_to_disk(path)
        while (path := os.path.dirname(path)) != top:
            folders.add(path)
    for folder in sorted(folders, reverse=True):  # the deepest first
        sync_to_disk(folder)


def saved_step(step_directory: AnyPath) -> int | None:
    """Return the step recorded in a checkpoint's manifest, or None if no step can be read."""
    try:
        return _read(step_directory, 0).get("step")
    except (OSError, ValueError):
        return None


def is_hurried(step_directory: AnyPath) -> bool:
    """Return True if a signal ended the save before all files had a checksum."""
    try:
        first = _read(step_directory, 0)
        others = (_read(step_directory, process) for process in range(1, first["processes"]))
        return any(manifest.get("hurried") for manifest in (first, *others))
    except (OSError, ValueError):
        return False


def is_complete(step_directory: AnyPath) -> bool:
    """Return True if the manifests of all processes exist."""
    try:
        processes = _read(step_directory, 0)["processes"]
    except FileNotFoundError:
        return False
    except ValueError:
        return True  # a manifest exists; `find_damage` returns what is wrong with it
    return all(is_written(step_directory, process) for process in range(1, processes))


def is_written(step_directory: AnyPath, process: int) -> bool:
    """Return True if the manifest of one process exists."""
    path = step_directory / _file_name(process)
    return ask_if_remote(path, path.exists)


def find_damage(
    step_directory: str | os.PathLike[str],
    *,
    parts: Iterable[str] | None = None,
    process: int = 0,
    processes: int = 1,
) -> str | None:
    """Compare a checkpoint's files with its manifests; return the first damage, or None.

    In a bucket, process 0 compares the sizes and checksums in the bucket's metadata. `parts` limits
    the check to folders such as "params".
    """
    directory = remote.open_path(step_directory)
    try:
        files = _all_files(directory)
    except FileNotFoundError as error:
        return f"{os.path.basename(error.filename or MANIFEST_FILE)} is missing"
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        return str(error)
    moved = _another_step(directory)
    if moved is not None:
        return moved
    chosen = None if parts is None else set(parts)
    names = [name for name in files if chosen is None or name.split("/")[0] in chosen]
    if remote.is_remote(directory):
        unhashed = [name for name in names if "sha256" not in files[name]]
        if unhashed and not process:
            damage = _damage_by_metadata(directory, chosen, {n: files[n] for n in unhashed})
            if damage is not None:
                return damage
        names = [name for name in names if "sha256" in files[name]]
    # Files are assigned in order of size, so that every process reads about as much.
    share = sorted(names, key=lambda name: (-files[name]["size"], name))[process::processes]

    def check(name: str) -> str | None:
        return _difference(directory / name, name, files[name])

    with ThreadPoolExecutor(_THREADS) as threads:
        found = [damage for damage in threads.map(check, sorted(share)) if damage is not None]
    return found[0] if found else None


def verify(step_directory: str | os.PathLike[str], *parts: str) -> None:
    """Raise InputError if a checkpoint is incomplete or its files do not match the manifest."""
    directory = remote.open_path(step_directory)
    if not is_complete(directory):
        raise InputError(
            f"checkpoint {step_directory} has no {MANIFEST_FILE}, because the save was "
            "interrupted or an old version wrote it; use another checkpoint"
        )
    damage = find_damage(directory, parts=parts or None)
    if damage is not None:
        raise InputError(
            f"checkpoint {step_directory} is damaged ({damage}); use another checkpoint"
        )


def digest(step_directory: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a checkpoint's manifest, which identifies the checkpoint."""
    directory = remote.open_path(step_directory)
    try:
        return _own_digest(_read(directory, 0))
    except (OSError, ValueError) as error:
        raise InputError(
            f"checkpoint {step_directory} is damaged ({error}); use another checkpoint"
        ) from error


def _file_name(process: int) -> str:
    return f"manifest.process_{process}.json" if process else MANIFEST_FILE


def _writer(name: str, processes: int) -> int:
    for part in name.split("/"):
        match = _OF_A_PROCESS.fullmatch(part)
        if match and int(match.group(1)) < processes:
            return int(match.group(1))
    return 0


def _own_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _describe(path: AnyPath, hurried: Callable[[], bool] = _never) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file."""
    size, digest = 0, hashlib.sha256()
    if hurried():
        return {"size": remote.size_of(path)}
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            if hurried():
                return {"size": remote.size_of(path)}
    return {"size": size, "sha256": digest.hexdigest()}


def _entry(stored: remote.StoredObject) -> dict[str, Any]:
    return {"size": stored.size} | ({} if stored.crc32c is None else {"crc32c": stored.crc32c})


def _damage_by_metadata(
    directory: AnyPath, parts: set[str] | None, files: Mapping[str, Any]
) -> str | None:
    def below(path: AnyPath) -> dict[str, remote.StoredObject]:
        return ask_if_remote(path, lambda: remote.objects_below(path))

    if parts is None:
        objects = below(directory)
    else:
        objects = {
            f"{part}/{name}": stored
            for part in sorted(parts)
            for name, stored in below(directory / part).items()
        }
    for name, saved in sorted(files.items()):
        stored = objects.get(name)
        if stored is None:
            return f"{name} is missing"
        if stored.size != saved["size"]:
            return _other_size(name, stored.size, saved)
        if stored.crc32c is not None and stored.crc32c != saved.get("crc32c", stored.crc32c):
            return f"{name}: its CRC32C differs"
    return None


def _other_size(name: str, size: int, saved: Mapping[str, Any]) -> str:
    return f"{name} has {size} bytes, but should have {saved['size']}"


def _difference(path: AnyPath, name: str, saved: Mapping[str, Any]) -> str | None:
    try:
        size = ask_if_remote(path, lambda: remote.size_of(path))
        if size != saved["size"]:
            return _other_size(name, size, saved)
        if "sha256" not in saved:
            return None
        found = ask_if_remote(path, lambda: _describe(path))
    except FileNotFoundError:
        return f"{name} is missing"
    except PermissionError:  # this is not damage
        raise
    except OSError as error:
        return f"{name} cannot be read: {error.strerror or error}"
    if found["sha256"] != saved["sha256"]:
        return f"{name}: its SHA-256 differs"
    return None


def _all_files(directory: AnyPath) -> dict[str, Any]:
    first = _read(directory, 0)
    files = dict(first["files"])
    for process in range(1, first["processes"]):
        files.update(_read(directory, process)["files"])
    return files


def _another_step(directory: AnyPath) -> str | None:
    path = directory if remote.is_remote(directory) else Path(os.path.abspath(directory))
    if path.parent.name != DIRECTORY or not path.name.isdecimal():
        return None
    step = saved_step(directory)
    if step is None or step == int(path.name):
        return None
    return f"it holds step {step}: it was copied or renamed"


def _read(directory: AnyPath, process: int) -> dict[str, Any]:
    name = _file_name(process)
    content = ask_if_remote(directory / name, (directory / name).read_bytes)
    try:
        manifest = json.loads(content)
        _check_form(manifest, process)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{name}: not a checkpoint manifest of version {_VERSION} ({error})"
        ) from error
    return manifest


def _check_form(manifest: Any, process: int) -> None:
    _require(manifest["version"] == _VERSION, "another version")
    _require(manifest["process"] == process, "of another process")
    _require(type(manifest["processes"]) is int and manifest["processes"] > process, "processes")
    step = manifest.get("step")
    _require(step is None or type(step) is int, "step")
    for saved in manifest["files"].values():
        sums = (saved.get(name, "") for name in ("sha256", "crc32c"))
        _require(type(saved["size"]) is int and all(isinstance(s, str) for s in sums), "files")
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    _require(manifest["sha256"] == _own_digest(content), "its SHA-256 differs")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


_CHUNK_BYTES = 1 << 27
"""Size in bytes of a stored chunk, the unit of compression; a read decompresses whole chunks."""


class _OneAtATime(ocp.type_handlers.NumpyHandler):
    """Orbax handler that writes one array at a time to save memory."""

    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        for value, info, arg in zip(values, infos, args, strict=True):
            for commit in await super().serialize([value.read()], [info], [arg]):
                commit.result()
        return []


def write_params(directory: Path, arrays: Mapping[str, LazyArray]) -> None:
    """Write parameters one at a time in Orbax's format."""
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
    write(directory)


def lazy_params(directory: Path) -> dict[str, LazyArray]:
    """Return the parameters of a checkpoint directory by path as lazy arrays."""
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
    """Raise ValueError if the chunks of a stored array are larger than the array."""
    chunk = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
    shape = getattr(leaf, "shape", None) or ()
    if math.prod(chunk) > max(1, math.prod(shape)):
        raise ValueError(
            f"array {path} has shape {tuple(shape)}, but its stored chunks have the larger shape "
            f"{tuple(chunk)}"
        )


def _unreadable(directory: Path, error: Exception) -> InputError:
    return InputError(f"{directory}: unreadable ({textwrap.shorten(str(error), 200)})")


TIMEOUT_SECONDS = 1200
"""Seconds that the processes of a save wait for each other before it fails; Orbax's default."""

_ORBAX_MARK = "commit_success.txt"


@dataclasses.dataclass
class FilesSave(ocp.args.CheckpointArgs):
    """Orbax save arguments for the small files of a checkpoint.

    Attributes:
      item: contents of the files that process 0 writes, by path.
      own: contents of the files that only this process writes, by path.
    """

    item: Mapping[str, bytes]
    own: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


class FilesHandler(ocp.CheckpointHandler):
    """Orbax handler that saves the small files of a checkpoint unchanged."""

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
    """Return an Orbax checkpointer that saves parameters and optimizer state in the background.

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
    """Return the shape and dtype of each array in a checkpoint folder, such as params/, by path."""
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
    """Restore all arrays of a folder such as params/, with given shapes and shardings."""
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
    """Restore selected arrays of a checkpoint folder, such as params/, by path."""
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
    """Suppress the errors that Orbax's threads print about a failed save."""
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
    """Suppress the "Event loop is closed" errors of parallel reads."""
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
