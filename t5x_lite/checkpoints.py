"""Checkpoints over Orbax: parameters, optimizer, data position, config and vocabulary.

    workdir/checkpoints/200/
      params/      {"model": ..., "objective": ...}, float32
      optimizer/   the step and the optimizer's state
      files/       config.json, vocabulary/sentencepiece.model, data/process_0: the data position

A step directory is self-contained and may be moved or copied. Orbax writes it under a temporary
name and renames it when it is whole, in the background while training goes on. Imported weights are
a step directory without optimizer/, their dtype that of the source.
"""

import contextlib
import dataclasses
import functools
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from t5x_lite import trees
from t5x_lite.types import InputError, Params

DIRECTORY = "checkpoints"
CONFIG_FILE = "config.json"
VOCABULARY_DIRECTORY = "vocabulary"
_ORBAX_MARK = "commit_success.txt"


@dataclasses.dataclass
class FilesSave(ocp.args.CheckpointArgs):
    """Files to save: relative path -> content."""

    item: Mapping[str, bytes]


@dataclasses.dataclass
class FilesRestore(ocp.args.CheckpointArgs):
    """Asks for all files of a step."""

    item: Any = None


class FilesHandler(ocp.CheckpointHandler):
    """Saves and restores small files as they are, so that a person can read a step directory."""

    def save(self, directory: epath.Path, args: FilesSave) -> None:
        """Writes the files; parents are made."""
        for name, content in args.item.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def restore(self, directory: epath.Path, args: FilesRestore | None = None) -> dict[str, bytes]:
        """Reads all files below the directory."""
        del args
        return _read_files(directory)


ocp.args.register_with_handler(FilesHandler, for_save=True)(FilesSave)
ocp.args.register_with_handler(FilesHandler, for_restore=True)(FilesRestore)


def _read_files(directory: Any) -> dict[str, bytes]:
    root = Path(directory)
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != _ORBAX_MARK and not path.name.startswith("_")
    }


def _rank(metrics: Mapping[str, float], *, best: str, mode: str) -> float:
    """What a step is worth: a step that was not measured, or is not a number, is the worst."""
    value = metrics.get(best, math.nan)
    if math.isnan(value):
        return -math.inf
    return value if mode == "max" else -value


class Checkpoints:
    """The checkpoints of one work directory; a context manager that waits for the last save."""

    def __init__(
        self,
        workdir: str | Path,
        *,
        keep: int = 3,
        best: str | None = None,
        best_mode: str = "max",
    ):
        """Opens the directory, which need not exist yet.

        Args:
          workdir: the run's directory; checkpoints go below it.
          keep: how many of the newest to keep.
          best: a metric by which one more is kept; None keeps no best one.
          best_mode: "max" or "min".
        """
        managers = ocp.checkpoint_managers
        policies: list[Any] = [managers.LatestN(keep)]
        rank = None
        if best is not None:
            rank = functools.partial(_rank, best=best, mode=best_mode)
            policies.append(
                managers.BestN(get_metric_fn=rank, n=1, keep_checkpoints_without_metrics=False)
            )
        self._best = best
        self._manager = ocp.CheckpointManager(
            epath.Path(workdir).absolute() / DIRECTORY,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=managers.AnyPreservationPolicy(policies),
                # Only with a best_fn are metrics written, so that they outlive the process.
                best_fn=rank,
                cleanup_tmp_directories=True,
            ),
            item_handlers={
                "params": ocp.StandardCheckpointHandler(),
                "optimizer": ocp.StandardCheckpointHandler(),
                "files": FilesHandler(),
            },
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def latest(self) -> int | None:
        """The newest step that is whole; None where there is none."""
        return self._manager.latest_step()

    def save(
        self,
        step: int,
        *,
        params: Params,
        optimizer: Any,
        files: Mapping[str, bytes],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts to save a step; returns as soon as the arrays are copied.

        Args:
          step: steps taken.
          params: nested dict of arrays.
          optimizer: any tree of arrays.
          files: relative path -> content.
          metrics: the evaluation of this step, by which the best one is chosen.

        Raises:
          InputError: `best` names a metric that the evaluation does not give.
        """
        if metrics is not None and self._best is not None and self._best not in metrics:
            raise InputError(
                f"checkpoints.best {self._best!r} is not a metric of the evaluation: it gives "
                f"{sorted(metrics)}"
            )
        # Orbax warns of a step without metrics, but not of one with none of them.
        chosen = {self._best: float(metrics[self._best])} if metrics and self._best else {}
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params),
                optimizer=ocp.args.StandardSave(optimizer),
                files=FilesSave(files),
            ),
            metrics=chosen if self._best else None,
            force=True,
        )

    def restore(self, step: int, *, params: Any, optimizer: Any) -> tuple[Any, Any]:
        """Restores arrays onto the shapes, dtypes and shardings of the given abstract trees.

        Raises:
          InputError: the step is damaged.
        """
        args = ocp.args.Composite(
            params=ocp.args.StandardRestore(params),
            optimizer=ocp.args.StandardRestore(optimizer),
        )
        restored = self._restore(step, args)
        return restored["params"], restored["optimizer"]

    def files(self, step: int) -> dict[str, bytes]:
        """The files of a step.

        Raises:
          InputError: the step is damaged.
        """
        return self._restore(step, ocp.args.Composite(files=FilesRestore()))["files"]

    def _restore(self, step: int, args: ocp.args.Composite) -> Any:
        try:
            with _ignoring_late_reads():
                return self._manager.restore(step, args=args)
        except Exception as error:  # whatever Orbax and its array store find
            raise self.damaged(step, str(error)) from error

    def damaged(self, step: int, reason: str) -> InputError:
        """The error that says which directory cannot be restored, and what to do."""
        directory = Path(self._manager.directory) / str(step)
        earlier = [saved for saved in saved_steps(directory.parent) if saved < step]
        then = f"goes on from step {earlier[-1]}" if earlier else "begins anew"
        return InputError(
            f"checkpoint {directory} cannot be restored ({textwrap.shorten(reason, 200)}); if it "
            f"is damaged, delete that directory: training then {then}"
        )

    def wait(self) -> None:
        """Waits until the save in progress is whole."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits and closes."""
        self._manager.close()


def find_step(checkpoint: str | Path, *, step: int | None = None) -> Path:
    """The step directory that `--checkpoint DIR` means.

    Args:
      checkpoint: a work directory, its checkpoints/ or one step directory.
      step: of a work directory; None is the newest.

    Raises:
      InputError: there is no such directory, no checkpoint in it, or not that step.
    """
    directory = Path(checkpoint)
    if not directory.is_dir():
        raise InputError(f"checkpoint {checkpoint}: no such directory")
    if (directory / "params").is_dir():
        if step is not None and directory.name != str(step):
            raise InputError(f"checkpoint {checkpoint} is one step directory, and not step {step}")
        return directory
    parent = directory / DIRECTORY if (directory / DIRECTORY).is_dir() else directory
    steps = saved_steps(parent)
    if not steps:
        raise InputError(
            f"checkpoint {checkpoint}: holds no checkpoint; give a work directory of `t5x-lite "
            "train`, or one of its step directories"
        )
    if step is not None and step not in steps:
        raise InputError(f"checkpoint {checkpoint} has no step {step}: it has {steps}")
    return parent / str(steps[-1] if step is None else step)


def saved_steps(directory: Path) -> list[int]:
    """The steps that a directory checkpoints/ holds, sorted; none where there is no directory."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if re.fullmatch(r"\d+", path.name))


def step_files(step_directory: Path) -> dict[str, bytes]:
    """The files of a step directory: config, vocabulary, data position.

    Raises:
      InputError: the config is missing.
    """
    files = _read_files(step_directory / "files")
    if CONFIG_FILE not in files:
        raise InputError(f"checkpoint {step_directory}: files/{CONFIG_FILE} is missing")
    return files


def restore_params(step_directory: Path, abstract: Any) -> Any:
    """The parameters of a step directory, onto given shapes, dtypes and shardings.

    Args:
      step_directory: as `find_step` gives.
      abstract: nested dict of jax.ShapeDtypeStruct (with shardings, or on the default device).

    Raises:
      InputError: parameters are missing, unexpected, or of another shape; they are listed.
    """
    directory = epath.Path(step_directory.absolute()) / "params"
    # Not a Checkpointer, which warns that params/ by itself has no metadata of a whole step.
    handler = ocp.StandardCheckpointHandler()
    try:
        with _ignoring_late_reads():
            saved: Any = handler.metadata(directory)
            _check_paths(step_directory, trees.flatten(saved.tree), trees.flatten(abstract))
            wanted = jax.tree.map(_on_device, abstract)
            return handler.restore(directory, args=ocp.args.StandardRestore(wanted))
    except InputError:
        raise
    except Exception as error:
        reason = textwrap.shorten(str(error), 200)
        raise InputError(f"checkpoint {step_directory}: unreadable ({reason})") from error
    finally:
        handler.close()


@contextlib.contextmanager
def _ignoring_late_reads() -> Iterator[None]:
    """After one read has failed, keeps off standard error that the others find no event loop."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = report_others
    yield
    sys.unraisablehook = report  # not after an error: the other reads may still end


def _on_device(leaf: Any) -> Any:
    if leaf.sharding is not None:
        return leaf
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _check_paths(where: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    difference = trees.difference(wanted, saved)
    if difference:
        raise InputError(f"checkpoint {where} does not fit the model: {difference}")
    for path, leaf in saved.items():
        if tuple(leaf.shape) != tuple(wanted[path].shape):
            raise InputError(
                f"checkpoint {where} does not fit the model: {path} has shape "
                f"{tuple(leaf.shape)} there and {tuple(wanted[path].shape)} here"
            )
