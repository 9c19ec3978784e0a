"""Saving of checkpoints during training, in the background; resuming, and retention.

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
        """Set up the checkpointer without reading or writing files; see `config.Checkpoints`."""
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
        """Start to save a checkpoint in the background; return when the arrays are copied.

        The previous save and its manifest are completed first.
        """
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
        """Add the metrics of a later evaluation to a saved step, and update the best checkpoint.

        If the process is killed meanwhile, the checkpoint stays unchanged.
        """
        if jax.process_index():
            return
        directory, name = self._directory / str(step), f"files/{METRICS_FILE}"
        remote.write_whole(directory / name, _metrics_file(metrics))
        manifest.add(directory, name)
        self._metrics.pop(step, None)
        self._prune()

    def _finish(self, step: int) -> None:
        """Wait for Orbax, write the manifest and delete old checkpoints; runs in the background."""
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
        until = time.monotonic() + self._timeout
        while others := [other for other in others if not manifest.is_written(directory, other)]:
            if time.monotonic() > until:
                more = f" and {len(others) - 4} more" if len(others) > 4 else ""
                raise TimeoutError(
                    f"step {directory.name} has no manifests of the processes "
                    f"{', '.join(map(str, others[:4]))}{more}"
                )
            time.sleep(_AGAIN_SECONDS)

    def _mark(self, step: int) -> epath.Path:
        """Return the marker file that exists while a step is written or deleted."""
        return self._directory / f"{step}.incomplete"

    def _prune(self) -> None:
        """Delete checkpoints that are neither among the newest nor the best, manifests first."""
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
                    (path / manifest.MANIFEST_FILE).unlink()
                remote.remove_tree(path)
                self._mark(step).unlink()

    def _best_names(self, step: int) -> list[str]:
        """Return the names of a step's metrics that match the pattern `best`."""
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
                if not manifest.is_complete(step):
                    remote.remove_tree(step)
                path.unlink()
            elif _TEMPORARY.fullmatch(path.name):
                remote.remove_tree(path)

    def resume_point(
        self, *, foreign: Callable[[Mapping[str, bytes]], str] | None = None
    ) -> tuple[int | None, list[Rejected]]:
        """Return the newest complete step, and newer checkpoints that are damaged or unfinished.

        `foreign` returns a reason to reject a checkpoint by its files, or "". Nothing changes on
        disk.
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
        """Rename or delete rejected checkpoints, so that their steps can be saved again.

        A damaged checkpoint directory 200 is renamed to 200.damaged, or 200.damaged-2 and so on. An
        unfinished directory is deleted. Return one log message for each checkpoint.
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
        """Restore parameters and optimizer of a step onto given shapes, dtypes and shardings."""
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
        """Return True if a signal interrupted the save, so that some files have no checksum."""
        return manifest.is_hurried(self._directory / str(step))

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
        """Return a description of a checkpoint's damage, the same in all processes, or ""."""
        if step in self._good:
            return ""
        directory = self._directory / str(step)
        process, processes = jax.process_index(), jax.process_count()
        damage = manifest.find_damage(directory, process=process, processes=processes) or ""
        if not damage:
            parts = [
                part for part in ("params", "optimizer", "files") if (directory / part).is_dir()
            ]
            damage = "" if len(parts) == 3 else "params/, optimizer/ or files/ is missing"
        damage = first_told(damage)
        if not damage and manifest.saved_step(directory) is None:
            damage = first_told(self._another_step(step))
        if not damage:
            self._good.add(step)
        return damage

    def _another_step(self, step: int) -> str:
        """Return an error text if the optimizer's step differs from the directory's name, or ""."""
        number = {"step": jax.ShapeDtypeStruct((), np.int32)}
        try:
            saved = items.restore_leaves(self._directory / str(step) / "optimizer", number)["step"]
        except Exception:  # Orbax can raise any exception; `restore` will report it
            return ""
        return "" if int(saved) == step else f"it holds step {int(saved)}: it was copied or renamed"

    def _marked(self) -> list[int]:
        """Return the steps with a marker file, which exists during a save or deletion."""
        if not self._directory.is_dir():
            return []
        found = (_INCOMPLETE.fullmatch(path.name) for path in self._directory.iterdir())
        return [int(mark.group(1)) for mark in found if mark]

    def _is_unfinished(self, step: int) -> bool:
        return self._mark(step).exists() and not manifest.is_complete(self._directory / str(step))

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
        """Wait for the last save and close the checkpointer."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._checkpointer.close()
            self._quiet.close()


def _metrics_file(metrics: Mapping[str, float]) -> bytes:
    return json.dumps({name: float(value) for name, value in metrics.items()}).encode()


def _reason(error: Exception) -> str:
    """Return an error's text in up to 300 characters, with the system's message first."""
    text, system = str(error), system_reason(error)
    if system is None or system in text[:80]:
        return textwrap.shorten(text, 300)
    return textwrap.shorten(f"{system}: {text}", 300)
