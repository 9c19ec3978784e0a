"""Reading of checkpoints: parameters, optimizer, data position, config and vocabulary.

    workdir/checkpoints/200/
      params/        {"model": ..., "objective": ...}, float32; Orbax
      optimizer/     the step and the optimizer's state; Orbax
      files/         config.json, vocabulary/, metrics.json, base.json (`checkpoints.base`), and the
                     position in the data: data/position, or data/process_0, data/process_1, ...
      manifest.json  the step; size and SHA-256 of every file above; see `checkpoints.manifest`

A checkpoint directory is self-contained and may be moved or copied. The exception is a run that
freezes parameters from `init`: its checkpoints need their base. A checkpoint is written in the
background while training continues. Orbax renames the complete directory to its final name, and
then the files are hashed. A directory without a manifest is not a checkpoint; a file 200.incomplete
marks a directory that is being written. Imported weights are a checkpoint directory without
optimizer/, in the dtype of the source.

This module finds checkpoints, and compares their files with the manifest before it reads them.
`checkpoints.saving` saves checkpoints and resumes from them.
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
"""Name of the file that marks a checkpoint as a delta (stored changes of a base model)."""
METRICS_FILE = "metrics.json"
VOCABULARY_DIRECTORY = "vocabulary"

_logger = logging.getLogger(__name__)


def find_step(checkpoint: str | Path | epath.Path, *, step: int | None = None) -> AnyPath:
    """Return the checkpoint directory of `--checkpoint DIR`, by default of the newest step.

    DIR is a work directory, its checkpoints/ or one checkpoint directory. Its contents are not
    checked.
    """
    directory = remote.open_path(checkpoint)
    if not directory.is_dir():
        remedy = _hub_remedy(str(checkpoint))
        raise InputError(f"checkpoint {checkpoint}: no such directory{remedy}")
    if (directory / "params").is_dir():
        if step is not None and directory.name != str(step):
            raise InputError(
                f"checkpoint {checkpoint} is a single checkpoint directory, but not of step {step}"
            )
        return directory
    parent = directory / DIRECTORY if (directory / DIRECTORY).is_dir() else directory
    steps = saved_steps(parent)
    if not steps and step_directories(parent):
        manifest.verify(parent / str(step_directories(parent)[-1]))  # raises the reason
    if not steps:
        raise InputError(f"checkpoint {checkpoint}: {_remedy(directory, checkpoint)}")
    if step is not None and step not in steps:
        raise InputError(f"checkpoint {checkpoint} has no step {step}; its steps are {steps}")
    newest = step_directories(parent)[-1]
    if step is None and newest != steps[-1]:
        _logger.warning(
            "checkpoint %s has no manifest; using step %d instead",
            parent / str(newest),
            steps[-1],
        )
    return parent / str(steps[-1] if step is None else step)


_HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")


def _hub_remedy(name: str) -> str:
    """Return a hint to import a model if its name may be from the Hugging Face Hub, else ""."""
    owner, _, model = name.partition("/")
    if not _HUB_NAME.fullmatch(name) or (model and os.path.exists(owner)):
        return ""
    place = f"work/{model or owner}"
    command = f"t5x-lite import hf {name} {place}"
    return f"; for a model of the Hugging Face Hub, run `{command}` and pass {place} instead"


def _remedy(directory: AnyPath, name: object) -> str:
    """Return an error text for a directory without a checkpoint, with a hint for other formats."""
    try:
        config = json.loads((directory / CONFIG_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        config = None
    if isinstance(config, dict) and "model_type" in config:
        return (
            "a Hugging Face model, not a checkpoint of t5x_lite; run `t5x-lite import hf "
            f"{name} DST` and pass DST instead"
        )
    names = [directory.name, *(path.name for path in directory.iterdir())]
    if any(re.fullmatch(r"checkpoint_\d+", found) for found in names):
        return (
            f"a T5X checkpoint, not a checkpoint of t5x_lite; run `t5x-lite import t5x {name} "
            "DST --vocabulary FILE` and pass DST instead"
        )
    return (
        "holds no checkpoint; give a work directory of `t5x-lite train`, or one of its "
        "checkpoint directories"
    )


def saved_steps(directory: AnyPath) -> list[int]:
    """Return the sorted steps of complete checkpoints in a directory checkpoints/."""
    return [
        step for step in step_directories(directory) if manifest.is_complete(directory / str(step))
    ]


def step_directories(directory: AnyPath) -> list[int]:
    """Return the sorted steps of all checkpoints in a directory, including incomplete ones."""
    if not directory.is_dir():
        return []
    numbered = (path for path in directory.iterdir() if re.fullmatch(r"[0-9]+", path.name))
    return sorted(int(path.name) for path in numbered if path.is_dir())


def step_files(step_directory: AnyPath) -> dict[str, bytes]:
    """Read and verify the small files of a checkpoint: config, vocabulary and data position."""
    manifest.verify(step_directory, "files")
    files = items.read_files(step_directory / "files")
    if CONFIG_FILE not in files and DELTA_FILE in files:
        raise InputError(
            f"checkpoint {step_directory} is a delta, which changes another checkpoint; run "
            f"`t5x-lite merge {step_directory} DST` and pass DST instead"
        )
    if CONFIG_FILE not in files:
        raise InputError(f"checkpoint {step_directory}: files/{CONFIG_FILE} is missing")
    return files


def restore_params(
    step_directory: AnyPath, abstract: Any, *, rules: InitRules | None = None
) -> dict[str, Any]:
    """Restore the parameters of a checkpoint onto given shapes, dtypes and shardings.

    Only params/ is verified, so a damaged optimizer/ raises no error.
    """
    manifest.verify(step_directory, "params")
    wanted = trees.flatten(abstract)
    saved = _Saved(step_directory)
    sources = sources_of(step_directory, saved.leaves, wanted, rules or InitRules())
    found = saved.restore({theirs: wanted[ours] for ours, theirs in sources.items()})
    own, taken = {}, set()
    for ours, theirs in sources.items():  # copy shared arrays, because a step donates them
        own[ours] = jnp.copy(found[theirs]) if theirs in taken else found[theirs]
        taken.add(theirs)
    return _in_place(own, abstract)


def saved_arrays(step_directory: AnyPath) -> dict[str, Any]:
    """Return shapes and dtypes of a checkpoint's own arrays by path, without its base's arrays."""
    manifest.verify(step_directory, "params")
    with _readable(step_directory):
        return items.saved_leaves(step_directory / "params")


def restore_arrays(step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Restore selected arrays that a checkpoint itself stores, such as an adapter's arrays."""
    saved = saved_arrays(step_directory)
    sources_of(step_directory, {p: saved[p] for p in wanted if p in saved}, wanted, InitRules())
    with _readable(step_directory):
        return items.restore_leaves(step_directory / "params", wanted)


def restore_base(base: Base, step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Restore arrays that a checkpoint takes from its base checkpoint, and check their digests."""
    there = _found(base, step_directory)
    with base_at(None):  # a base of the base is at its recorded path
        theirs = there.restore({base.arrays[path].path: leaf for path, leaf in wanted.items()})
    found, taken = {}, set()
    for path in wanted:  # copy shared arrays, because a step donates them
        source = base.arrays[path].path
        found[path] = jnp.copy(theirs[source]) if source in taken else theirs[source]
        taken.add(source)
    _check(base, found, there.directory, step_directory)
    return found


def lazy_params(step_directory: Path) -> dict[str, LazyArray]:
    """Return all parameters of a checkpoint, including its base, by path as lazy arrays.

    Each array is read when it is needed. Arrays of the base are float32, the dtype in training.
    """
    found = items.lazy_params(step_directory / "params")
    base = base_of(step_directory)
    if base is None:
        return found
    where = Path(_found(base, step_directory).directory)
    with base_at(None):  # a base of the base is at its recorded path
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
    """Return the verified directory of a checkpoint's base, or None if it has no base."""
    base = base_of(step_directory)
    return None if base is None else _found(base, step_directory).directory


def base_of(step_directory: AnyPath) -> Base | None:
    """Read the record of a checkpoint's base; return None if the checkpoint contains all arrays."""
    path = step_directory / "files" / BASE_FILE
    if not path.exists():
        return None
    manifest.verify(step_directory, "files")
    return Base.read({BASE_FILE: path.read_bytes()}, where=step_directory)


class _Saved:
    """Arrays of a checkpoint, including arrays of its base.

    Attributes:
      directory: checkpoint directory.
      leaves: metadata of each array, with its shape, by path.
    """

    def __init__(self, step_directory: AnyPath):
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
    """Return the first possible base checkpoint that is complete and has correct checksums.

    Only the smallest array is compared with its recorded digest here.
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
    """Raise InputError if a possible base lacks an array, or if its smallest array differs."""
    for leaf in base.arrays.values():
        if leaf.path not in there.leaves:
            raise InputError(
                f"checkpoint {there.directory} is not the base of {step_directory}, because it "
                f"lacks the array {leaf.path}"
            )
    sizes = {path: math.prod(there.leaves[a.path].shape) for path, a in base.arrays.items()}
    path = min(sizes, key=lambda path: (sizes[path], path))
    theirs = base.arrays[path].path
    shape = tuple(there.leaves[theirs].shape)
    [array] = there.restore({theirs: jax.ShapeDtypeStruct(shape, np.float32)}).values()
    _check(base, {path: array}, there.directory, step_directory)


def _check(base: Base, found: Mapping[str, Any], where: AnyPath, step_directory: AnyPath) -> None:
    other = base.other(found)
    if other is not None:
        raise InputError(
            f"checkpoint {where} is not the base of {step_directory}, because the values of "
            f"{other} differ; use the base {base.checkpoint}"
        )


@contextlib.contextmanager
def _readable(step_directory: AnyPath) -> Iterator[None]:
    """Convert Orbax's exceptions into InputErrors that name the checkpoint."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"checkpoint {step_directory}: unreadable ({reason})") from error


def _in_place(flat: Mapping[str, Any], like: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
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
    """Return the checkpoint path that initializes each model path; raise if shapes differ."""
    try:
        sources = rules.sources(saved, wanted, optional=optional)
    except InputError as error:
        raise InputError(f"checkpoint {where} does not fit the model: {error}") from error
    for ours, theirs in sorted(sources.items(), key=lambda pair: part_of(pair[0]) != "model"):
        if tuple(saved[theirs].shape) != tuple(wanted[ours].shape):
            part = part_of(ours)
            remedy = (
                f"; pass --init.fresh {part} to initialize it randomly" if rules.by_part else ""
            )
            if rules.by_part and part == "model":
                remedy = "; pass --model init to use the checkpoint's model family and sizes"
            raise InputError(
                f"checkpoint {where} does not fit the model: {theirs} has shape "
                f"{tuple(saved[theirs].shape)} in the checkpoint, but "
                f"{tuple(wanted[ours].shape)} in the model{remedy}"
            )
    return sources
