"""The manifest of a step directory: the size and the SHA-256 of each of its files.

    work/run/checkpoints/200/manifest.json

    {"version": 1, "process": 0, "processes": 1, "step": 200,
     "files": {"params/_METADATA": {"size": 1423, "sha256": "9f86d0..."}, ...},
     "sha256": "60303a..."}        # of the manifest itself, without this field

It is written when everything else is there and on the disk, and appears whole: a step directory
without one is no checkpoint. Of several processes, each writes a manifest of the files that it
wrote itself (manifest.process_1.json, ...), and all of them must be there. A file that the
manifests do not name is not looked at. A directory named checkpoints/30 whose manifest says step 20
is damaged: it was copied or renamed. Elsewhere, and under a name that is no number, a step may be
called what its owner likes. Imported weights have no step, nor have manifests of before.

Where a signal ends the run, files that are not hashed yet have their sizes alone, and the manifest
says "hurried". In a bucket nothing is hashed and no byte is read: what the store says of all the
objects goes into one manifest, which the first process writes, and is compared later on.

    "hurried": true, "files": {"params/d/9ec6": {"size": 4096}}
    "files": {"params/d/9ec6": {"size": 4096, "crc32c": "yZRlqg=="}}      # Google Cloud Storage

`write` also makes a checkpoint of a directory that was saved before there were manifests:

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
"""Where a work directory has its steps; there, a name of digits is the step's number."""

_VERSION = 1
_BLOCK_BYTES = 1 << 20
_THREADS = 4
_OF_A_PROCESS = re.compile(r"(?:.*\.)?process_(\d+)")
_MANIFESTS = re.compile(r"manifest(\.process_\d+)?\.json|\.manifest\..*")
"""Manifests, and those that another process is about to give their names."""


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
    """Writes the manifest of the files that one process wrote; all of them must be complete.

    In a bucket the first process writes that of all files, and the others write none. On a disk,
    hashing takes one core, about 1.5 GB/s where the processor has SHA instructions, and leaves the
    interpreter to other threads. The files, their directories and the manifest are on the disk when
    this returns: a machine that loses its power afterwards keeps the checkpoint.
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
    """Adds a file of the first process to a manifest, which has appeared since or was replaced."""
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
    """Writes a manifest once some of its files are on the disk, and waits until it is as well."""
    _sync(directory, names)
    # No line break at the end: what is cut there is not JSON any more.
    text = json.dumps({**content, "sha256": _own_digest(content)}, indent=1)
    remote.write_whole(directory / _file_name(content["process"]), text.encode())
    _sync(directory, [])


def _sync(directory: AnyPath, names: Iterable[str]) -> None:
    """Waits until files and the directories that name them are on the disk; a no-op in a bucket."""
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
    """The step that a manifest says; None where it says none, or cannot be read."""
    try:
        return _read(step_directory, 0).get("step")
    except (OSError, ValueError):
        return None


def is_hurried(step_directory: AnyPath) -> bool:
    """Whether a signal came before all files of a step were hashed; False of a damaged manifest."""
    try:
        first = _read(step_directory, 0)
        others = (_read(step_directory, process) for process in range(1, first["processes"]))
        return any(manifest.get("hurried") for manifest in (first, *others))
    except (OSError, ValueError):
        return False


def is_complete(step_directory: AnyPath) -> bool:
    """Whether the manifests of all processes are there; what they say is not looked at."""
    try:
        processes = _read(step_directory, 0)["processes"]
    except FileNotFoundError:
        return False
    except ValueError:
        return True  # one was written; `find_damage` says what is wrong with it
    return all(is_written(step_directory, process) for process in range(1, processes))


def is_written(step_directory: AnyPath, process: int) -> bool:
    """Whether the manifest of one process is there."""
    path = step_directory / _file_name(process)
    return ask_if_remote(path, path.exists)


def find_damage(
    step_directory: str | os.PathLike[str],
    *,
    parts: Iterable[str] | None = None,
    process: int = 0,
    processes: int = 1,
) -> str | None:
    """Compares the files of a step with its manifests.

    In a bucket the first process compares what the store says of its objects, and no byte is read.
    Files of which the manifest has a SHA-256, because the step was copied from a disk, are read.
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
    # The large files go around, so that every process reads about as much.
    share = sorted(names, key=lambda name: (-files[name]["size"], name))[process::processes]

    def check(name: str) -> str | None:
        return _difference(directory / name, name, files[name])

    with ThreadPoolExecutor(_THREADS) as threads:
        found = [damage for damage in threads.map(check, sorted(share)) if damage is not None]
    return found[0] if found else None


def verify(step_directory: str | os.PathLike[str], *parts: str) -> None:
    """Refuses a damaged step."""
    directory = remote.open_path(step_directory)
    if not is_complete(directory):
        raise InputError(
            f"checkpoint {step_directory} has no {MANIFEST_FILE}: its saving was interrupted, or "
            "a version without manifests wrote it; use another checkpoint"
        )
    damage = find_damage(directory, parts=parts or None)
    if damage is not None:
        raise InputError(f"checkpoint {step_directory} is damaged ({damage}); use another one")


def digest(step_directory: str | os.PathLike[str]) -> str:
    """Return the SHA-256 (hex) of a checkpoint's first manifest, which has one of each file."""
    directory = remote.open_path(step_directory)
    try:
        return _own_digest(_read(directory, 0))
    except (OSError, ValueError) as error:
        raise InputError(
            f"checkpoint {step_directory} is damaged ({error}); use another one"
        ) from error


def _file_name(process: int) -> str:
    return f"manifest.process_{process}.json" if process else MANIFEST_FILE


def _writer(name: str, processes: int) -> int:
    """Which process wrote a file: Orbax and data positions say so in a part of the path."""
    for part in name.split("/"):
        match = _OF_A_PROCESS.fullmatch(part)
        if match and int(match.group(1)) < processes:
            return int(match.group(1))
    return 0


def _own_digest(content: Mapping[str, Any]) -> str:
    """Of a manifest's content, however it is spaced."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _describe(path: AnyPath, hurried: Callable[[], bool] = _never) -> dict[str, Any]:
    """Size and SHA-256 of a file; its size alone where there comes to be no time."""
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
    """The first difference between the objects of a bucket and a manifest, by the store's word."""

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
    return f"{name} has {size} bytes and should have {saved['size']}"


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
    except PermissionError:  # nothing is wrong with the file
        raise
    except OSError as error:
        return f"{name} cannot be read: {error.strerror or error}"
    if found["sha256"] != saved["sha256"]:
        return f"{name}: its SHA-256 differs"
    return None


def _all_files(directory: AnyPath) -> dict[str, Any]:
    """Return the files that the manifests of a step name together."""
    first = _read(directory, 0)
    files = dict(first["files"])
    for process in range(1, first["processes"]):
        files.update(_read(directory, process)["files"])
    return files


def _another_step(directory: AnyPath) -> str | None:
    """The damage of a step directory whose name is another step than its manifest says, or None."""
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
    """Raises whatever a manifest of another form leads to."""
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
