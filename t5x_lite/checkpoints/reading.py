"""Checkpoints: parameters, optimizer, data position, config and vocabulary, with checksums.

    workdir/checkpoints/200/
      params/        {"model": ..., "objective": ...}, float32; Orbax
      optimizer/     the step and the optimizer's state; Orbax
      files/         config.json, vocabulary/, metrics.json, and the position in the data:
                     data/position, or data/process_0, data/process_1, ...
      manifest.json  the step; size and SHA-256 of every file above; see `checkpoint_manifest`

A step directory is self-contained and may be moved or copied. It is written in the background while
training goes on: Orbax gives the directory its name when it is whole, then the files are hashed.
Until the manifest is there it is no checkpoint, and 200.incomplete beside it says that it is being
written. Imported weights are a step directory without optimizer/, their dtype that of the source.

Here is how a step is found and read; what is read is first compared with the manifest. How training
saves and resumes is in `checkpoint_saving`.
"""

import json
import logging
import re
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from t5x_lite import remote, trees
from t5x_lite.checkpoints import items, manifest
from t5x_lite.checkpoints.init import InitRules, part_of
from t5x_lite.errors import InputError
from t5x_lite.remote import AnyPath

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
    directory = step_directory / "params"
    wanted = trees.flatten(abstract)
    try:
        saved = items.saved_leaves(directory)
        sources = sources_of(step_directory, saved, wanted, rules or InitRules())
        found = items.restore_leaves(
            directory, {theirs: wanted[ours] for ours, theirs in sources.items()}
        )
    except InputError:
        raise
    except Exception as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"checkpoint {step_directory}: unreadable ({reason})") from error
    return _in_place({ours: found[theirs] for ours, theirs in sources.items()}, abstract)


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
