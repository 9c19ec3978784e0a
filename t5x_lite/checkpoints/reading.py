"""Checkpoints: parameters, optimizer, data position, config and vocabulary, with checksums.

    workdir/checkpoints/200/
      params/        {"model": ..., "objective": ...}, float32; Orbax
      optimizer/     the step and the optimizer's state; Orbax
      files/         config.json, vocabulary/, metrics.json, base.json (`checkpoints.base`), and the
                     position in the data: data/position, or data/process_0, data/process_1, ...
      manifest.json  the step; size and SHA-256 of every file above; see `checkpoint_manifest`

A step directory is self-contained and may be moved or copied, but that one of a run that freezes
what `init` gave it leaves this to its base. It is written in the background while
training goes on: Orbax gives the directory its name when it is whole, then the files are hashed.
Until the manifest is there it is no checkpoint, and 200.incomplete beside it says that it is being
written. Imported weights are a step directory without optimizer/, their dtype that of the source.

Here is how a step is found and read; what is read is first compared with the manifest. How training
saves and resumes is in `checkpoint_saving`.
"""

import contextlib
import functools
import json
import logging
import math
import os
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from t5x_lite.checkpoints import items, manifest
from t5x_lite.checkpoints.base import BASE_FILE, Base, base_at
from t5x_lite.checkpoints.init import InitRules, part_of
from t5x_lite.core import remote, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.trees import LazyArray

DIRECTORY = manifest.DIRECTORY
CONFIG_FILE = "config.json"
DELTA_FILE = "delta.json"
"""The file of a step directory that holds a delta; see `inference.delta_files`."""
METRICS_FILE = "metrics.json"
VOCABULARY_DIRECTORY = "vocabulary"

_logger = logging.getLogger(__name__)


def find_step(checkpoint: str | Path | epath.Path, *, step: int | None = None) -> AnyPath:
    """The step directory that `--checkpoint DIR` means; what is in it is not yet looked at."""
    directory = remote.open_path(checkpoint)
    if not directory.is_dir():
        remedy = _hub_remedy(str(checkpoint))
        raise InputError(f"checkpoint {checkpoint}: no such directory{remedy}")
    if (directory / "params").is_dir():
        if step is not None and directory.name != str(step):
            raise InputError(f"checkpoint {checkpoint} is one step directory, and not step {step}")
        return directory
    parent = directory / DIRECTORY if (directory / DIRECTORY).is_dir() else directory
    steps = saved_steps(parent)
    if not steps and step_directories(parent):
        manifest.verify(parent / str(step_directories(parent)[-1]))  # says why it is none
    if not steps:
        raise InputError(f"checkpoint {checkpoint}: {_remedy(directory, checkpoint)}")
    if step is not None and step not in steps:
        raise InputError(f"checkpoint {checkpoint} has no step {step}: it has {steps}")
    newest = step_directories(parent)[-1]
    if step is None and newest != steps[-1]:
        _logger.warning(
            "checkpoint %s has no manifest, and step %d is used in its place",
            parent / str(newest),
            steps[-1],
        )
    return parent / str(steps[-1] if step is None else step)


_HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")


def _hub_remedy(name: str) -> str:
    """Return the rest of an error for a name that a model of the Hugging Face Hub may have."""
    owner, _, model = name.partition("/")
    if not _HUB_NAME.fullmatch(name) or (model and os.path.exists(owner)):
        return ""
    place = f"work/{model or owner}"
    command = f"t5x-lite import hf {name} {place}"
    return f"; if it is a model of the Hub, run `{command}` and give {place}"


def _remedy(directory: AnyPath, name: object) -> str:
    """What to do about a directory that holds no checkpoint: perhaps it is another library's."""
    try:
        config = json.loads((directory / CONFIG_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        config = None
    if isinstance(config, dict) and "model_type" in config:
        return f"a model of Hugging Face; run `t5x-lite import hf {name} DST` and give DST"
    names = [directory.name, *(path.name for path in directory.iterdir())]
    if any(re.fullmatch(r"checkpoint_\d+", found) for found in names):
        return (
            f"a checkpoint of T5X; run `t5x-lite import t5x {name} DST --vocabulary FILE` and give "
            "DST"
        )
    return (
        "holds no checkpoint; give a work directory of `t5x-lite train`, or one of its step "
        "directories"
    )


def saved_steps(directory: AnyPath) -> list[int]:
    """The steps that a directory checkpoints/ holds, sorted: those that have a manifest."""
    return [
        step for step in step_directories(directory) if manifest.is_complete(directory / str(step))
    ]


def step_directories(directory: AnyPath) -> list[int]:
    """The numbers of all step directories, sorted, whether or not they are checkpoints."""
    if not directory.is_dir():
        return []
    numbered = (path for path in directory.iterdir() if re.fullmatch(r"[0-9]+", path.name))
    return sorted(int(path.name) for path in numbered if path.is_dir())


def step_files(step_directory: AnyPath) -> dict[str, bytes]:
    """The files of a step directory: config, vocabulary, data position; they are verified."""
    manifest.verify(step_directory, "files")
    files = items.read_files(step_directory / "files")
    if CONFIG_FILE not in files and DELTA_FILE in files:
        raise InputError(
            f"checkpoint {step_directory} is a delta, a change of a base: make a checkpoint of "
            f"both by `t5x-lite merge {step_directory} DST`, and give DST"
        )
    if CONFIG_FILE not in files:
        raise InputError(f"checkpoint {step_directory}: files/{CONFIG_FILE} is missing")
    return files


def restore_params(
    step_directory: AnyPath, abstract: Any, *, rules: InitRules | None = None
) -> dict[str, Any]:
    """The parameters of a step directory, onto given shapes, dtypes and shardings.

    They are verified first; a damaged optimizer/ does not matter here.
    """
    manifest.verify(step_directory, "params")
    wanted = trees.flatten(abstract)
    saved = _Saved(step_directory)
    sources = sources_of(step_directory, saved.leaves, wanted, rules or InitRules())
    found = saved.restore({theirs: wanted[ours] for ours, theirs in sources.items()})
    own, taken = {}, set()
    for ours, theirs in sources.items():  # no two paths share one array: a step donates them
        own[ours] = jnp.copy(found[theirs]) if theirs in taken else found[theirs]
        taken.add(theirs)
    return _in_place(own, abstract)


def saved_arrays(step_directory: AnyPath) -> dict[str, Any]:
    """The arrays that a step itself holds: path -> shape and dtype; no array is read."""
    manifest.verify(step_directory, "params")
    with _readable(step_directory):
        return items.saved_leaves(step_directory / "params")


def restore_arrays(step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Some arrays that a step itself holds, such as those of a module; its base is not needed."""
    saved = saved_arrays(step_directory)
    sources_of(step_directory, {p: saved[p] for p in wanted if p in saved}, wanted, InitRules())
    with _readable(step_directory):
        return items.restore_leaves(step_directory / "params", wanted)


def restore_base(base: Base, step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays that a step leaves to its base, which is verified and compared."""
    there = _found(base, step_directory)
    with base_at(None):  # a base of the base is where that was
        theirs = there.restore({base.arrays[path].path: leaf for path, leaf in wanted.items()})
    found, taken = {}, set()
    for path in wanted:  # no two paths share one array: a step donates them
        source = base.arrays[path].path
        found[path] = jnp.copy(theirs[source]) if source in taken else theirs[source]
        taken.add(source)
    _check(base, found, there.directory, step_directory)
    return found


def lazy_params(step_directory: Path) -> dict[str, LazyArray]:
    """The parameters of a verified step and of its base by path, each read when it is asked for.

    Those of a base are float32, which they were trained with.
    """
    found = items.lazy_params(step_directory / "params")
    base = base_of(step_directory)
    if base is None:
        return found
    where = Path(_found(base, step_directory).directory)
    with base_at(None):  # a base of the base is where that was
        theirs = lazy_params(where)

    def read(path: str, leaf: LazyArray) -> np.ndarray:
        array = leaf.read().astype(np.float32)
        _check(base, {path: array}, where, step_directory)
        return array

    for path, there in base.arrays.items():
        leaf = theirs[there.path]
        reader = functools.partial(read, path, leaf)
        found[path] = LazyArray(leaf.shape, np.dtype(np.float32), reader)
    return found


def base_directory(step_directory: AnyPath) -> AnyPath | None:
    """Where the base of a step is, verified; None of a step that holds everything."""
    base = base_of(step_directory)
    return None if base is None else _found(base, step_directory).directory


def base_of(step_directory: AnyPath) -> Base | None:
    """The base that a step names; None of a step that holds everything."""
    path = step_directory / "files" / BASE_FILE
    if not path.exists():
        return None
    manifest.verify(step_directory, "files")
    return Base.read({BASE_FILE: path.read_bytes()}, where=step_directory)


class _Saved:
    """The arrays of a step, and those that it leaves to its base.

    Attributes:
      directory: of the step.
      leaves: path -> something with a shape.
    """

    def __init__(self, step_directory: AnyPath):
        """Reads what there is, and no array."""
        self.directory = step_directory
        with _readable(step_directory):
            self.leaves = items.saved_leaves(step_directory / "params")
        self._base = base_of(step_directory)
        if self._base is not None:
            there = _found(self._base, step_directory)
            self.leaves |= {
                path: there.leaves[leaf.path] for path, leaf in self._base.arrays.items()
            }

    def restore(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Some arrays by path; see `restore_params`."""
        base, below = self._base, {}
        if base is not None:
            below = {path: leaf for path, leaf in wanted.items() if path in base.arrays}
        own = {path: leaf for path, leaf in wanted.items() if path not in below}
        found = {}
        if own or not below:
            with _readable(self.directory):
                found = items.restore_leaves(self.directory / "params", own)
        if base is not None and below:
            found |= restore_base(base, self.directory, below)
        return found


def _found(base: Base, step_directory: AnyPath) -> _Saved:
    """The base, the first of the candidates that has its arrays, verified.

    Of all its arrays the smallest is compared here.
    """
    wrong = None
    for candidate in base.candidates(step_directory):
        if not ((candidate / "params").is_dir() or (candidate / DIRECTORY).is_dir()):
            continue
        try:
            where = find_step(candidate)
            if os.path.realpath(where) == os.path.realpath(step_directory):
                raise InputError(f"checkpoint {step_directory} is its own base: {candidate}")
            with base_at(None):
                there = _Saved(where)
                _check_first(base, there, step_directory)
            manifest.verify(where, "params")
            return there
        except InputError as error:
            wrong = wrong or error
    raise wrong or base.missing(step_directory)


def _check_first(base: Base, there: _Saved, step_directory: AnyPath) -> None:
    """Refuses what lacks an array of a base, or has another one for the smallest."""
    for leaf in base.arrays.values():
        if leaf.path not in there.leaves:
            raise InputError(
                f"checkpoint {there.directory} is not the base of {step_directory}: it lacks "
                f"{leaf.path}"
            )
    sizes = {path: math.prod(there.leaves[a.path].shape) for path, a in base.arrays.items()}
    path = min(sizes, key=lambda path: (sizes[path], path))
    theirs = base.arrays[path].path
    shape = tuple(there.leaves[theirs].shape)
    [array] = there.restore({theirs: jax.ShapeDtypeStruct(shape, np.float32)}).values()
    _check(base, {path: array}, there.directory, step_directory)


def _check(base: Base, found: Mapping[str, Any], where: AnyPath, step_directory: AnyPath) -> None:
    """Refuses arrays that are not those of a base."""
    other = base.other(found)
    if other is not None:
        raise InputError(
            f"checkpoint {where} is not the base of {step_directory}: {other} has other numbers "
            f"there; the base was {base.checkpoint}"
        )


@contextlib.contextmanager
def _readable(step_directory: AnyPath) -> Iterator[None]:
    """Says of what Orbax finds wrong which checkpoint it is."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"checkpoint {step_directory}: unreadable ({reason})") from error


def _in_place(flat: Mapping[str, Any], like: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by path in the structure of a tree, with its empty dicts; others are left out."""
    tree: dict[str, Any] = {}
    for key, value in like.items():
        if isinstance(value, Mapping):
            tree[key] = _in_place(flat, value, f"{prefix}{key}/")
        elif prefix + key in flat:
            tree[key] = flat[prefix + key]
    return tree


def sources_of(
    where: AnyPath,
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
    rules: InitRules,
    *,
    optional: Collection[str] = (),
) -> dict[str, str]:
    """our path -> their path, of the same shape."""
    try:
        sources = rules.sources(saved, wanted, optional=optional)
    except InputError as error:
        raise InputError(f"checkpoint {where} does not fit the model: {error}") from error
    for ours, theirs in sorted(sources.items(), key=lambda pair: part_of(pair[0]) != "model"):
        if tuple(saved[theirs].shape) != tuple(wanted[ours].shape):
            part = part_of(ours)
            remedy = f"; --init.fresh {part} begins it anew" if rules.by_part else ""
            if rules.by_part and part == "model":
                remedy = "; --model init takes family and sizes from the checkpoint"
            raise InputError(
                f"checkpoint {where} does not fit the model: {theirs} has shape "
                f"{tuple(saved[theirs].shape)} there and {tuple(wanted[ours].shape)} here{remedy}"
            )
    return sources
