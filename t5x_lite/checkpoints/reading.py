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
import os
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from t5x_lite import remote, trees
from t5x_lite.checkpoints import items, manifest, orbax_params
from t5x_lite.checkpoints.base import BASE_FILE, Base
from t5x_lite.checkpoints.init import InitRules, part_of
from t5x_lite.errors import InputError
from t5x_lite.remote import AnyPath
from t5x_lite.trees import LazyArray

DIRECTORY = manifest.DIRECTORY
CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.json"
VOCABULARY_DIRECTORY = "vocabulary"

_logger = logging.getLogger(__name__)


def find_step(checkpoint: str | Path | epath.Path, *, step: int | None = None) -> AnyPath:
    """The step directory that `--checkpoint DIR` means; what is in it is not yet looked at.

    Args:
      checkpoint: a work directory, its checkpoints/ or one step directory.
      step: of a work directory; None is the newest.

    Raises:
      InputError: there is no such directory, no checkpoint in it, or not that step.
    """
    directory = remote.open_path(checkpoint)
    if not directory.is_dir():
        raise InputError(f"checkpoint {checkpoint}: no such directory")
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
    """The files of a step directory: config, vocabulary, data position; they are verified.

    Raises:
      InputError: one is damaged, or the config is missing.
    """
    manifest.verify(step_directory, "files")
    files = items.read_files(step_directory / "files")
    if CONFIG_FILE not in files:
        raise InputError(f"checkpoint {step_directory}: files/{CONFIG_FILE} is missing")
    return files


def restore_params(
    step_directory: AnyPath, abstract: Any, *, rules: InitRules | None = None
) -> dict[str, Any]:
    """The parameters of a step directory, onto given shapes, dtypes and shardings.

    They are verified first; a damaged optimizer/ does not matter here.

    Args:
      step_directory: as `find_step` gives.
      abstract: nested dict of jax.ShapeDtypeStruct (with shardings, or on the default device).
      rules: which saved weights are used, and for what; None is all of them, by their own names.

    Returns:
      Nested dict of arrays; what the rules leave fresh is not in it.

    Raises:
      InputError: they are damaged, or parameters are missing, unexpected, or of another shape; they
        are listed.
    """
    manifest.verify(step_directory, "params")
    wanted = trees.flatten(abstract)
    saved = _saved_leaves(step_directory)
    sources = sources_of(step_directory, saved, wanted, rules or InitRules())
    found = _restore_leaves(
        step_directory, {theirs: wanted[ours] for ours, theirs in sources.items()}
    )
    return _in_place({ours: found[theirs] for ours, theirs in sources.items()}, abstract)


def restore_base(base: Base, step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays that a step leaves to its base, which is verified and compared.

    Args:
      base: what the step says of it.
      step_directory: the step.
      wanted: our path -> jax.ShapeDtypeStruct, as for `restore_params`.

    Raises:
      InputError: the base is not there, damaged, or another one.
    """
    where = find_base(base, step_directory)
    manifest.verify(where, "params")
    theirs = {base.arrays[path].path: leaf for path, leaf in wanted.items()}
    there = _saved_leaves(where)
    for path in theirs:
        if path not in there:
            raise _lacks(where, step_directory, path)
    got = _restore_leaves(where, theirs)
    found = {path: got[base.arrays[path].path] for path in wanted}
    base.check(found, where=where, step_directory=step_directory)
    return found


def find_base(base: Base, step_directory: AnyPath) -> AnyPath:
    """The step directory of a base.

    Raises:
      InputError: it is nowhere.
    """
    for candidate in base.candidates(step_directory):
        if candidate.is_dir():
            found = find_step(candidate)
            if os.path.realpath(found) == os.path.realpath(step_directory):
                raise InputError(f"checkpoint {step_directory} is its own base: {candidate}")
            return found
    raise base.missing(step_directory)


def lazy_params(step_directory: Path) -> dict[str, LazyArray]:
    """The parameters of a verified step and of its base by path, each read when it is asked for.

    Raises:
      InputError: they are unreadable, or the base is damaged, not there or another one.
    """
    found = orbax_params.lazy_params(step_directory / "params")
    base = base_of(step_directory)
    if base is None:
        return found
    where = Path(find_base(base, step_directory))
    manifest.verify(where, "params")
    theirs = lazy_params(where)

    def read(path: str, leaf: LazyArray) -> np.ndarray:
        array = leaf.read()
        base.check({path: array}, where=where, step_directory=step_directory)
        return array

    for path, there in base.arrays.items():
        if there.path not in theirs:
            raise _lacks(where, step_directory, there.path)
        leaf = theirs[there.path]
        reader = functools.partial(read, path, leaf)
        found[path] = LazyArray(leaf.shape, leaf.dtype, reader)
    return found


def base_of(step_directory: AnyPath) -> Base | None:
    """The base that a step names; None of a step that holds everything.

    Raises:
      InputError: what it says is damaged.
    """
    path = step_directory / "files" / BASE_FILE
    if not path.exists():
        return None
    manifest.verify(step_directory, "files")
    return Base.read({BASE_FILE: path.read_bytes()}, where=step_directory)


def _saved_leaves(step_directory: AnyPath) -> dict[str, Any]:
    """Path -> something with a shape, of a step's arrays and of those that it leaves to a base."""
    with _readable(step_directory):
        found = items.saved_leaves(step_directory / "params")
    base = base_of(step_directory)
    if base is not None:
        where = find_base(base, step_directory)
        there = _saved_leaves(where)
        for path, leaf in base.arrays.items():
            if leaf.path not in there:
                raise _lacks(where, step_directory, leaf.path)
            found[path] = there[leaf.path]
    return found


def _restore_leaves(step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Some arrays by path, of a step and of its base."""
    base = base_of(step_directory)
    below = {} if base is None else {p: leaf for p, leaf in wanted.items() if p in base.arrays}
    own = {path: leaf for path, leaf in wanted.items() if path not in below}
    found = {}
    if own or not below:
        with _readable(step_directory):
            found = items.restore_leaves(step_directory / "params", own)
    if base is not None and below:
        found |= restore_base(base, step_directory, below)
    return found


def _lacks(base: AnyPath, step_directory: AnyPath, path: str) -> InputError:
    return InputError(f"checkpoint {base} is not the base of {step_directory}: it lacks {path}")


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
    """our path -> their path, of the same shape.

    Args:
      where: the checkpoint, for messages.
      saved: path -> something with a shape, of the checkpoint.
      wanted: the same of ours.
      rules: which saved weights are used, and for what.
      optional: paths of ours that may be missing.

    Raises:
      InputError: parameters are missing, unexpected, or of another shape.
    """
    try:
        sources = rules.sources(saved, wanted, optional=optional)
    except InputError as error:
        raise InputError(f"checkpoint {where} does not fit the model: {error}") from error
    for ours, theirs in sources.items():
        if tuple(saved[theirs].shape) != tuple(wanted[ours].shape):
            part = part_of(ours)
            anew = rules.by_part and part != "model"
            remedy = f"; --init.fresh {part} begins it anew" * anew
            raise InputError(
                f"checkpoint {where} does not fit the model: {theirs} has shape "
                f"{tuple(saved[theirs].shape)} there and {tuple(wanted[ours].shape)} here{remedy}"
            )
    return sources
