"""Checkpoints: reading and checking them, saving in the background, resuming, and retention.

Reading of checkpoints: parameters, optimizer, data position, config and vocabulary.

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

Saving of checkpoints during training, in the background; resuming, and retention.

    with Checkpoints("work/run", keep=3) as checkpoints:
        step, rejected = checkpoints.resume_point()
        if step is not None:
            params, optimizer = checkpoints.restore(step, params=..., optimizer=...)
        checkpoints.set_aside(rejected)
        checkpoints.save(200, params=params, optimizer=optimizer, files={"config.json": b"..."})

A save passes through these states, and a process may be killed in any of them:

    200.incomplete               a mark: the checkpoint is not complete
    200.orbax-checkpoint-tmp/    Orbax writes
    200/                         Orbax has finished, the files are hashed
    200/manifest.json            it is a checkpoint; then the mark is removed

`resume_point` finds the newest complete checkpoint. A newer directory with a mark and without a
manifest is unfinished and is deleted. A directory that is damaged or has lost its manifest is
renamed to 200.damaged, so that step 200 can be saved again.

In a bucket nothing is renamed: Orbax writes into 200/ from the start, and the manifest marks the
directory as complete. If a signal ends the run, files are not hashed, and the manifest has only
sizes.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import re
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.init import BASE_FILE, Base, InitRules, base_at, part_of
from t5x_lite.core import remote, trees
from t5x_lite.core.errors import InputError, system_reason
from t5x_lite.core.object_store import ask_if_remote
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.sharding import first_told
from t5x_lite.core.trees import LazyArray, Params
from t5x_lite.metrics.benchmarks import Mode, best_step, matching, mode_of

_logger = logging.getLogger(__name__)


DIRECTORY = items.DIRECTORY
CONFIG_FILE = "config.json"
DELTA_FILE = "delta.json"
"""Name of the file that marks a checkpoint as a delta (stored changes of a base model)."""
METRICS_FILE = "metrics.json"
VOCABULARY_DIRECTORY = "vocabulary"


def find_step(checkpoint: str | Path | epath.Path, *, step: int | None = None) -> AnyPath:
    """Return the directory of one checkpoint in `--checkpoint DIR`, by default the newest.

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
        items.verify(parent / str(step_directories(parent)[-1]))  # raises the reason
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
    """Return a hint that a name may be a model of the Hugging Face Hub, or ""."""
    owner, _, model = name.partition("/")
    if not _HUB_NAME.fullmatch(name) or (model and os.path.exists(owner)):
        return ""
    place = f"work/{model or owner}"
    command = f"t5x-lite import hf {name} {place}"
    return f"; for a model of the Hugging Face Hub, run `{command}` and pass {place} instead"


def _remedy(directory: AnyPath, name: object) -> str:
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
        step for step in step_directories(directory) if items.is_complete(directory / str(step))
    ]


def step_directories(directory: AnyPath) -> list[int]:
    """Return the sorted steps of all checkpoints in a directory, including incomplete ones."""
    if not directory.is_dir():
        return []
    numbered = (path for path in directory.iterdir() if re.fullmatch(r"[0-9]+", path.name))
    return sorted(int(path.name) for path in numbered if path.is_dir())


def step_files(step_directory: AnyPath) -> dict[str, bytes]:
    """Read the small files of a checkpoint, such as its config and vocabulary."""
    items.verify(step_directory, "files")
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
    """Restore the parameters of a checkpoint with given shapes, dtypes and shardings.

    Only params/ is verified, so a damaged optimizer/ raises no error.
    """
    items.verify(step_directory, "params")
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
    """Return shapes and dtypes of a checkpoint's arrays, without its base checkpoint's arrays."""
    items.verify(step_directory, "params")
    with _readable(step_directory):
        return items.saved_leaves(step_directory / "params")


def restore_arrays(step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Restore selected arrays of a checkpoint, such as an adapter's arrays."""
    saved = saved_arrays(step_directory)
    sources_of(step_directory, {p: saved[p] for p in wanted if p in saved}, wanted, InitRules())
    with _readable(step_directory):
        return items.restore_leaves(step_directory / "params", wanted)


def restore_base(base: Base, step_directory: AnyPath, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Restore selected arrays from the base of a checkpoint, and check their digests."""
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
    """Return all parameters of a checkpoint and its base checkpoint by path as lazy arrays.

    Arrays of the base checkpoint are converted to float32.
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
    """Verify the base checkpoint of a checkpoint and return its directory, or None without one."""
    base = base_of(step_directory)
    return None if base is None else _found(base, step_directory).directory


def base_of(step_directory: AnyPath) -> Base | None:
    """Return a checkpoint's reference to its base checkpoint, or None."""
    path = step_directory / "files" / BASE_FILE
    if not path.exists():
        return None
    items.verify(step_directory, "files")
    return Base.read({BASE_FILE: path.read_bytes()}, where=step_directory)


class _Saved:
    """Arrays of a checkpoint and its base checkpoint.

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
    """Find and verify the base checkpoint of a checkpoint."""
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
            items.verify(where, "params")
            return there
        except InputError as error:
            wrong = wrong or error
    raise wrong or base.missing(step_directory)


def _check_first(base: Base, there: _Saved, step_directory: AnyPath) -> None:
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
    """Map each parameter path of the model to the checkpoint path that initializes it."""
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


_TEMPORARY = re.compile(r"\d+\.orbax-checkpoint-tmp.*")
_INCOMPLETE = re.compile(r"(\d+)\.incomplete")
_AGAIN_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Rejected:
    """Damaged or unfinished checkpoint directory, from which training does not resume.

    Attributes:
      step: step number.
      reason: description of the damage.
      unfinished: True if the save was interrupted before the checkpoint was complete.
    """

    step: int
    reason: str
    unfinished: bool


class Checkpoints:
    """Manager of the checkpoints of one work directory: saves, restores and deletes them.

    It is a context manager that waits for the last save. All processes of a run share the directory
    and make the same calls.
    """

    def __init__(
        self,
        workdir: str | Path | epath.Path,
        *,
        keep: int = 3,
        best: str | None = None,
        best_mode: Mode | None = None,
        timeout: int = items.TIMEOUT_SECONDS,
        hurried: Callable[[], bool] = lambda: False,
    ):
        self._timeout = timeout
        self._hurried = hurried
        self._ending = threading.Event()
        self._directory = remote.absolute(workdir) / DIRECTORY
        self._keep = keep
        self._best = best
        self._best_mode: Mode | None = best_mode
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._good: set[int] = set()
        self._cleaned = False
        self._quiet = contextlib.ExitStack()
        self._quiet.enter_context(items.quiet_saving())
        self._checkpointer = items.checkpointer(timeout)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="manifest")
        self._saving: Future[None] | None = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def latest(self) -> int | None:
        """Return the newest step with a complete checkpoint, or None."""
        steps = saved_steps(self._directory)
        return steps[-1] if steps else None

    def directory(self, step: int) -> epath.Path:
        """Return the checkpoint directory of a step."""
        return self._directory / str(step)

    def save(
        self,
        step: int,
        *,
        params: Params,
        optimizer: Any,
        files: Mapping[str, bytes],
        own_files: Mapping[str, bytes] | None = None,
        metrics: Mapping[str, float] | None = None,
        hurried: bool = False,
    ) -> None:
        """Start to save a checkpoint in the background; return as soon as the arrays are copied."""
        if metrics is not None and self._best is not None and not matching(self._best, metrics):
            raise InputError(
                f"checkpoints.best is {self._best!r}, but the evaluation has the metrics "
                f"{sorted(metrics)}"
            )
        if hurried:
            self._ending.set()
        self.wait()
        if jax.process_index() == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._clean()
            self._mark(step).write_bytes(b"")
        content = dict(files)
        if metrics is not None:
            content[METRICS_FILE] = _metrics_file(metrics)
        self._checkpointer.save(
            self._directory / str(step),
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params),
                optimizer=ocp.args.StandardSave(optimizer),
                files=items.FilesSave(content, own_files or {}),
            ),
        )
        self._saving = self._thread.submit(self._finish, step)

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics to a saved checkpoint, and update the best checkpoint."""
        if jax.process_index():
            return
        directory, name = self._directory / str(step), f"files/{METRICS_FILE}"
        remote.write_whole(directory / name, _metrics_file(metrics))
        items.add(directory, name)
        self._metrics.pop(step, None)
        self._prune()

    def _finish(self, step: int) -> None:
        self._checkpointer.wait_until_finished()
        directory = self._directory / str(step)
        process, processes = jax.process_index(), jax.process_count()
        items.write(
            directory,
            step=step,
            process=process,
            processes=processes,
            hurried=lambda: self._ending.is_set() or self._hurried(),
        )
        if process:
            return
        if not remote.is_remote(directory):
            self._wait_for_others(directory, list(range(1, processes)))
        self._mark(step).unlink(missing_ok=True)
        self._prune()

    def _wait_for_others(self, directory: epath.Path, others: list[int]) -> None:
        until = time.monotonic() + self._timeout
        while others := [other for other in others if not items.is_written(directory, other)]:
            if time.monotonic() > until:
                more = f" and {len(others) - 4} more" if len(others) > 4 else ""
                raise TimeoutError(
                    f"checkpoint of step {directory.name} lacks the manifests of the processes "
                    f"{', '.join(map(str, others[:4]))}{more}"
                )
            time.sleep(_AGAIN_SECONDS)

    def _mark(self, step: int) -> epath.Path:
        return self._directory / f"{step}.incomplete"

    def _prune(self) -> None:
        """Delete all checkpoints except the newest and the best."""
        steps = saved_steps(self._directory)
        stay = set(steps[-self._keep :])
        names = {name for step in steps for name in self._best_names(step)}
        for name in names:
            values = {step: self._measured(step).get(name, math.nan) for step in steps}
            best = best_step(values, mode=mode_of(name, self._best_mode))
            stay |= set() if best is None else {best}
        for step in steps:
            if step not in stay:
                path = self._directory / str(step)
                self._mark(step).write_bytes(b"")
                if not os.path.islink(path):  # the target of a link is not ours to change
                    (path / items.MANIFEST_FILE).unlink()
                remote.remove_tree(path)
                self._mark(step).unlink()

    def _best_names(self, step: int) -> list[str]:
        return [] if self._best is None else matching(self._best, self._measured(step))

    def _measured(self, step: int) -> Mapping[str, float]:
        if step not in self._metrics:
            path = self._directory / str(step) / "files" / METRICS_FILE
            try:
                self._metrics[step] = json.loads(ask_if_remote(path, path.read_bytes))
            except (OSError, ValueError):
                self._metrics[step] = {}
        return self._metrics[step]

    def _clean(self) -> None:
        """Delete the unfinished checkpoints of an interrupted process."""
        if self._cleaned:
            return
        self._cleaned = True
        # A directory in a bucket exists only if it contains something.
        for path in list(self._directory.iterdir()) if self._directory.is_dir() else []:
            marked = _INCOMPLETE.fullmatch(path.name)
            if marked:
                step = self._directory / marked.group(1)
                if not items.is_complete(step):
                    remote.remove_tree(step)
                path.unlink()
            elif _TEMPORARY.fullmatch(path.name):
                remote.remove_tree(path)

    def resume_point(
        self, *, foreign: Callable[[Mapping[str, bytes]], str] | None = None
    ) -> tuple[int | None, list[Rejected]]:
        """Return the newest complete checkpoint's step, and the damaged checkpoints after it.

        `foreign` is a function: checkpoint files -> reason to reject the checkpoint, or "".
        """
        rejected = []
        # A save that was killed early has left only its mark, and no directory.
        for step in sorted({*step_directories(self._directory), *self._marked()}, reverse=True):
            reason = self._damage(step)
            if not reason and foreign is not None:
                reason = foreign(items.read_files(self._directory / str(step) / "files"))
            if not reason:
                return step, rejected
            rejected.append(Rejected(step, reason, self._is_unfinished(step)))
        damaged = [f"{r.step} ({r.reason})" for r in rejected if not r.unfinished]
        if damaged:
            more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
            raise InputError(
                f"no checkpoint in {self._directory} is complete: {', '.join(damaged[:3])}{more}; "
                "restore a copy, or use another --workdir"
            )
        return None, rejected

    def set_aside(self, rejected: Sequence[Rejected]) -> list[str]:
        """Rename damaged checkpoints and delete unfinished checkpoints; return log messages.

        A damaged checkpoint directory 200 is renamed to 200.damaged, or 200.damaged-2 and so on.
        """
        told, moves = [], []
        for found in rejected:
            path = self._directory / str(found.step)
            if found.unfinished:
                told.append(f"checkpoint {path} is unfinished ({found.reason}) and is deleted")
                moves.append((path, None))
                continue
            name = f"{found.step}.damaged"
            taken = [p.name for p in self._directory.iterdir() if p.name.startswith(name)]
            kept = f"{name}-{len(taken) + 1}" if taken else name
            told.append(f"checkpoint {path} is damaged ({found.reason}) and is now {kept}")
            moves.append((path, self._directory / kept))
        if rejected:
            first_told("")  # all processes have read the directory before the first one changes it
            if jax.process_index() == 0:
                for path, kept in moves:
                    remote.remove_tree(path) if kept is None else path.rename(kept)
            first_told("")  # the first process has finished before another one saves
        return told

    def restore(self, step: int, *, params: Any, optimizer: Any) -> tuple[Any, Any]:
        """Restore the parameters and the optimizer state of a step."""
        self._check(step)
        try:
            return (
                items.restore_item(self._directory / str(step) / "params", params),
                items.restore_item(self._directory / str(step) / "optimizer", optimizer),
            )
        except Exception as error:  # Orbax and its array store can raise any exception
            raise self.damaged(step, _reason(error)) from error

    def files(self, step: int) -> dict[str, bytes]:
        """Read the small files of a step, by relative path."""
        self._check(step)
        return items.read_files(self._directory / str(step) / "files")

    def is_hurried(self, step: int) -> bool:
        """Return True if a signal ended the save before all files had a checksum."""
        return items.is_hurried(self._directory / str(step))

    def damaged(self, step: int, reason: str) -> InputError:
        """Return the InputError for a checkpoint that cannot be restored."""
        return InputError(
            f"checkpoint {self._directory / str(step)} cannot be restored "
            f"({textwrap.shorten(reason, 200)}); move it away to resume from an earlier "
            "checkpoint"
        )

    def _check(self, step: int) -> None:
        reason = self._damage(step)
        if reason:
            raise self.damaged(step, reason)

    def _damage(self, step: int) -> str:
        if step in self._good:
            return ""
        directory = self._directory / str(step)
        process, processes = jax.process_index(), jax.process_count()
        damage = items.find_damage(directory, process=process, processes=processes) or ""
        if not damage:
            parts = [
                part for part in ("params", "optimizer", "files") if (directory / part).is_dir()
            ]
            damage = "" if len(parts) == 3 else "params/, optimizer/ or files/ is missing"
        damage = first_told(damage)
        if not damage and items.saved_step(directory) is None:
            damage = first_told(self._another_step(step))
        if not damage:
            self._good.add(step)
        return damage

    def _another_step(self, step: int) -> str:
        number = {"step": jax.ShapeDtypeStruct((), np.int32)}
        try:
            saved = items.restore_leaves(self._directory / str(step) / "optimizer", number)["step"]
        except Exception:  # Orbax can raise any exception; `restore` will report it
            return ""
        return "" if int(saved) == step else f"it holds step {int(saved)}: it was copied or renamed"

    def _marked(self) -> list[int]:
        if not self._directory.is_dir():
            return []
        found = (_INCOMPLETE.fullmatch(path.name) for path in self._directory.iterdir())
        return [int(mark.group(1)) for mark in found if mark]

    def _is_unfinished(self, step: int) -> bool:
        return self._mark(step).exists() and not items.is_complete(self._directory / str(step))

    def wait(self) -> None:
        """Wait until the current save is complete; raise RuntimeError if it failed."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            saving.result()
        except Exception as error:  # Orbax, its array store and the disk can raise any exception
            reason = _reason(error)
            if isinstance(error, TimeoutError) and system_reason(error) is None:
                reason = (
                    f"not all processes finished after {self._timeout} s: {reason}; check that "
                    "all processes share the work directory, or set a longer "
                    "--checkpoints.timeout for a slow store"
                )
            raise RuntimeError(
                f"the last checkpoint in {self._directory} could not be saved ({reason}); "
                "earlier checkpoints are complete"
            ) from error

    def close(self) -> None:
        """Wait for the last save, and release the resources of the checkpointer."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._checkpointer.close()
            self._quiet.close()


def _metrics_file(metrics: Mapping[str, float]) -> bytes:
    return json.dumps({name: float(value) for name, value in metrics.items()}).encode()


def _reason(error: Exception) -> str:
    """Return an error's text, shortened to 300 characters."""
    text, system = str(error), system_reason(error)
    if system is None or system in text[:80]:
        return textwrap.shorten(text, 300)
    return textwrap.shorten(f"{system}: {text}", 300)
