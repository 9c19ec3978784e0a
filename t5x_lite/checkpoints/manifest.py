"""Manifest of a checkpoint directory: size and SHA-256 of each file.

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
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from t5x_lite.core import remote
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import sync_to_disk
from t5x_lite.core.object_store import ask_if_remote
from t5x_lite.core.remote import AnyPath

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
    """Write the manifest of the files that one process wrote; all files must be complete.

    In a bucket, process 0 writes the manifest of all files, and the other processes write none. On
    a disk, hashing uses one core, at about 1.5 GB/s with SHA instructions, and releases the GIL. It
    ends early if `hurried` returns True. The files, their directories and the manifest are flushed
    to disk before the function returns, so they survive a loss of power.
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
    """Add a new or replaced file of process 0 to an existing manifest."""
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
    """Flush the named files to disk, then write the manifest and flush it."""
    _sync(directory, names)
    # No newline at the end, so any truncation makes the JSON invalid.
    text = json.dumps({**content, "sha256": _own_digest(content)}, indent=1)
    remote.write_whole(directory / _file_name(content["process"]), text.encode())
    _sync(directory, [])


def _sync(directory: AnyPath, names: Iterable[str]) -> None:
    """Flush files and their directories to disk; do nothing in a bucket."""
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
    """Return True if a signal ended the save before all files were hashed."""
    try:
        first = _read(step_directory, 0)
        others = (_read(step_directory, process) for process in range(1, first["processes"]))
        return any(manifest.get("hurried") for manifest in (first, *others))
    except (OSError, ValueError):
        return False


def is_complete(step_directory: AnyPath) -> bool:
    """Return True if the manifests of all processes exist; their contents are not checked."""
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

    In a bucket, process 0 compares sizes and checksums from the store's metadata. It reads a file
    only if the manifest has a SHA-256 of it, as for files copied from a disk. `parts` limits the
    check to folders such as "params".
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
    """Return the SHA-256 (hex) of a checkpoint's first manifest, which identifies all files."""
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
    """Return the index of the process that wrote a file, derived from the file's path."""
    for part in name.split("/"):
        match = _OF_A_PROCESS.fullmatch(part)
        if match and int(match.group(1)) < processes:
            return int(match.group(1))
    return 0


def _own_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content, independent of whitespace."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _describe(path: AnyPath, hurried: Callable[[], bool] = _never) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file; only the size if `hurried` becomes true."""
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
    """Compare a manifest with a bucket's metadata; return the first difference, or None."""

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
    """Return an error text if the directory's name differs from its manifest's step, or None."""
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
        raise ValueError(f"{name}: not a manifest of version {_VERSION} ({error})") from error
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
