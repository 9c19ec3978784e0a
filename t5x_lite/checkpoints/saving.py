"""Checkpoints while a run goes on: saving in the background, resuming, and which ones stay.

    with Checkpoints("work/run", keep=3) as checkpoints:
        step, rejected = checkpoints.resume_point()
        if step is not None:
            params, optimizer = checkpoints.restore(step, params=..., optimizer=...)
        checkpoints.set_aside(rejected)
        checkpoints.save(200, params=params, optimizer=optimizer, files={"config.json": b"..."})

A save goes through these states, and a process may be killed in any of them:

    200.incomplete               a mark: what follows is not whole
    200.orbax-checkpoint-tmp/    Orbax writes
    200/                         Orbax is done, the files are hashed
    200/manifest.json            it is a checkpoint; then the mark goes

`resume_point` finds the newest step that is whole. A newer one without a manifest, but with its
mark, was never finished: it is deleted. One that is damaged, or has lost its manifest, stays under
the name 200.damaged, so that step 200 can be saved again.

In a bucket nothing is renamed: Orbax writes into 200/ from the start, and the manifest alone says
that it is whole. Where a signal ends the run there is no time to hash: the manifest then has sizes.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from t5x_lite.checkpoints import items, manifest
from t5x_lite.checkpoints.reading import DIRECTORY, METRICS_FILE, saved_steps, step_directories
from t5x_lite.core import remote
from t5x_lite.core.errors import InputError, system_reason
from t5x_lite.core.object_store import ask_if_remote
from t5x_lite.core.sharding import first_told
from t5x_lite.core.trees import Params
from t5x_lite.metrics.benchmarks import Mode, best_step, matching, mode_of

_TEMPORARY = re.compile(r"\d+\.orbax-checkpoint-tmp.*")
_INCOMPLETE = re.compile(r"(\d+)\.incomplete")
_AGAIN_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Rejected:
    """A step directory that training does not go on from.

    Attributes:
      step: its number.
      reason: what is wrong with it.
      unfinished: whether its saving was interrupted, so that it never was a checkpoint.
    """

    step: int
    reason: str
    unfinished: bool


class Checkpoints:
    """The checkpoints of one work directory; a context manager that waits for the last save.

    All processes of a run make the same calls; they share the directory.
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
        """Nothing is read or written yet."""
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
        """The newest step that has a manifest; None where there is none."""
        steps = saved_steps(self._directory)
        return steps[-1] if steps else None

    def directory(self, step: int) -> epath.Path:
        """The directory of a step."""
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
        """Starts to save a step; returns as soon as the arrays are copied.

        The save before it is waited for, its manifest included.
        """
        if metrics is not None and self._best is not None and not matching(self._best, metrics):
            raise InputError(
                f"checkpoints.best {self._best!r} is not a metric of the evaluation: it gives "
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
        """Adds its evaluation to a step that was saved before that was made, and chooses anew.

        A process that is killed meanwhile leaves the step as it was.
        """
        if jax.process_index():
            return
        directory, name = self._directory / str(step), f"files/{METRICS_FILE}"
        remote.write_whole(directory / name, _metrics_file(metrics))
        manifest.add(directory, name)
        self._metrics.pop(step, None)
        self._prune()

    def _finish(self, step: int) -> None:
        """In the background: waits for Orbax, writes the manifest, removes what is not kept."""
        self._checkpointer.wait_until_finished()
        directory = self._directory / str(step)
        process, processes = jax.process_index(), jax.process_count()
        manifest.write(
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
        """Waits for the manifests of other processes."""
        until = time.monotonic() + self._timeout
        while others := [other for other in others if not manifest.is_written(directory, other)]:
            if time.monotonic() > until:
                more = f" and {len(others) - 4} more" if len(others) > 4 else ""
                raise TimeoutError(
                    f"step {directory.name} has no manifest of the processes "
                    f"{', '.join(map(str, others[:4]))}{more}"
                )
            time.sleep(_AGAIN_SECONDS)

    def _mark(self, step: int) -> epath.Path:
        """The file that is there while a step is written or deleted."""
        return self._directory / f"{step}.incomplete"

    def _prune(self) -> None:
        """Deletes what is neither among the newest nor the best; the manifest goes first."""
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
                if not os.path.islink(path):  # what a link leads to is not ours to change
                    (path / manifest.MANIFEST_FILE).unlink()
                remote.remove_tree(path)
                self._mark(step).unlink()

    def _best_names(self, step: int) -> list[str]:
        """The metrics of a step for each of which the best step is kept."""
        return [] if self._best is None else matching(self._best, self._measured(step))

    def _measured(self, step: int) -> Mapping[str, float]:
        """The evaluation of a step; empty where there was none."""
        if step not in self._metrics:
            path = self._directory / str(step) / "files" / METRICS_FILE
            try:
                self._metrics[step] = json.loads(ask_if_remote(path, path.read_bytes))
            except (OSError, ValueError):
                self._metrics[step] = {}
        return self._metrics[step]

    def _clean(self) -> None:
        """Removes what an interrupted process left of steps that were never finished."""
        if self._cleaned:
            return
        self._cleaned = True
        # A bucket has no directory before there is something in it.
        for path in list(self._directory.iterdir()) if self._directory.is_dir() else []:
            marked = _INCOMPLETE.fullmatch(path.name)
            if marked:
                step = self._directory / marked.group(1)
                if not manifest.is_complete(step):
                    remote.remove_tree(step)
                path.unlink()
            elif _TEMPORARY.fullmatch(path.name):
                remote.remove_tree(path)

    def resume_point(
        self, *, foreign: Callable[[Mapping[str, bytes]], str] | None = None
    ) -> tuple[int | None, list[Rejected]]:
        """Finds the newest step that is whole; nothing is changed."""
        rejected = []
        # A save that was killed early has left no directory of this name, but its mark.
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
                f"no checkpoint in {self._directory} is whole: {', '.join(damaged[:3])}{more}; put "
                "a copy back, or use another --workdir"
            )
        return None, rejected

    def set_aside(self, rejected: Sequence[Rejected]) -> list[str]:
        """Makes room for steps that will be saved again, as `resume_point` listed them.

        A damaged step directory 200 is kept under the name 200.damaged, or 200.damaged-2 and so on;
        one that was never finished is deleted.
        """
        told, moves = [], []
        for found in rejected:
            path = self._directory / str(found.step)
            if found.unfinished:
                told.append(f"checkpoint {path} was never finished ({found.reason}) and is deleted")
                moves.append((path, None))
                continue
            name = f"{found.step}.damaged"
            taken = [p.name for p in self._directory.iterdir() if p.name.startswith(name)]
            kept = f"{name}-{len(taken) + 1}" if taken else name
            told.append(f"checkpoint {path} is damaged ({found.reason}) and is now {kept}")
            moves.append((path, self._directory / kept))
        if rejected:
            first_told("")  # all processes have looked, before the first changes anything
            if jax.process_index() == 0:
                for path, kept in moves:
                    remote.remove_tree(path) if kept is None else path.rename(kept)
            first_told("")  # the first has done it, before another one saves
        return told

    def restore(self, step: int, *, params: Any, optimizer: Any) -> tuple[Any, Any]:
        """Restores arrays onto the shapes, dtypes and shardings of the given abstract trees."""
        self._check(step)
        try:
            return (
                items.restore_item(self._directory / str(step) / "params", params),
                items.restore_item(self._directory / str(step) / "optimizer", optimizer),
            )
        except Exception as error:  # whatever Orbax and its array store find
            raise self.damaged(step, _reason(error)) from error

    def files(self, step: int) -> dict[str, bytes]:
        """The files of a step."""
        self._check(step)
        return items.read_files(self._directory / str(step) / "files")

    def is_hurried(self, step: int) -> bool:
        """Whether a signal came while a step was saved, so that files of it have no checksum."""
        return manifest.is_hurried(self._directory / str(step))

    def damaged(self, step: int, reason: str) -> InputError:
        """The error that says which directory cannot be restored."""
        return InputError(
            f"checkpoint {self._directory / str(step)} cannot be restored "
            f"({textwrap.shorten(reason, 200)}); move it away to resume from an earlier one"
        )

    def _check(self, step: int) -> None:
        reason = self._damage(step)
        if reason:
            raise self.damaged(step, reason)

    def _damage(self, step: int) -> str:
        """What is wrong with a step, found by all processes together; "" where nothing is."""
        if step in self._good:
            return ""
        directory = self._directory / str(step)
        process, processes = jax.process_index(), jax.process_count()
        damage = manifest.find_damage(directory, process=process, processes=processes) or ""
        if not damage:
            parts = [
                part for part in ("params", "optimizer", "files") if (directory / part).is_dir()
            ]
            damage = "" if len(parts) == 3 else "a part of it is missing"
        damage = first_told(damage)
        if not damage and manifest.saved_step(directory) is None:
            damage = first_told(self._another_step(step))
        if not damage:
            self._good.add(step)
        return damage

    def _another_step(self, step: int) -> str:
        """As `_damage`, by the optimizer's count: a manifest of before does not say its step."""
        number = {"step": jax.ShapeDtypeStruct((), np.int32)}
        try:
            saved = items.restore_leaves(self._directory / str(step) / "optimizer", number)["step"]
        except Exception:  # whatever Orbax finds: `restore` says it
            return ""
        return "" if int(saved) == step else f"it holds step {int(saved)}: it was copied or renamed"

    def _marked(self) -> list[int]:
        """The steps that have the mark of being written or deleted."""
        if not self._directory.is_dir():
            return []
        found = (_INCOMPLETE.fullmatch(path.name) for path in self._directory.iterdir())
        return [int(mark.group(1)) for mark in found if mark]

    def _is_unfinished(self, step: int) -> bool:
        return self._mark(step).exists() and not manifest.is_complete(self._directory / str(step))

    def wait(self) -> None:
        """Waits until the save in progress is whole, its manifest included."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            saving.result()
        except Exception as error:  # whatever Orbax, its array store and the disk find
            reason = _reason(error)
            if isinstance(error, TimeoutError) and system_reason(error) is None:
                reason = (
                    f"not all processes were done after {self._timeout} s: {reason}; check that "
                    "all processes share the work directory, or set a longer --checkpoints.timeout "
                    "for a slow store"
                )
            raise RuntimeError(
                f"the last checkpoint in {self._directory} could not be saved ({reason}); those "
                "before it are whole"
            ) from error

    def close(self) -> None:
        """Waits and closes."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._checkpointer.close()
            self._quiet.close()


def _metrics_file(metrics: Mapping[str, float]) -> bytes:
    return json.dumps({name: float(value) for name, value in metrics.items()}).encode()


def _reason(error: Exception) -> str:
    """An error's text in at most 300 characters, the system's own words first."""
    text, system = str(error), system_reason(error)
    if system is None or system in text[:80]:
        return textwrap.shorten(text, 300)
    return textwrap.shorten(f"{system}: {text}", 300)
