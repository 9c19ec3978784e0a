"""The best checkpoint of each task of a mixture (Raffel et al. 2020, section 3.5).

Training keeps them (--checkpoints.best "validation/*/score") and shows them at its end, and writes
them into best.json of its work directory; `evaluate` with --evaluation.best_per_task True answers
each task with its own. Chosen is by what training measured, which is never a test split.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from t5x_lite.errors import InputError
from t5x_lite.evaluate.standings import benchmark_scores, best_steps, best_tasks, table
from t5x_lite.files import write_atomically
from t5x_lite.inference.best_step import Step, saved_metrics
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.modules import load_using
from t5x_lite.metrics.selection import is_test, refuse_test
from t5x_lite.train.record import evaluated_steps
from t5x_lite.types import Params

BEST_FILE = "best.json"


class SameParams:
    """Every task is answered with the same parameters.

    Attributes:
      steps: the step of each task's checkpoint, for the reports.
    """

    def __init__(self, params: Params, step: int):
        self._params = params
        self._step = step

    def __call__(self, name: str) -> Params:
        """The parameters for a task."""
        del name
        return self._params

    def step(self, name: str) -> int:
        """The step of the checkpoint for a task."""
        del name
        return self._step


class BestParams(SameParams):
    """Every task is answered with the checkpoint that was best at it; one is in memory."""

    def __init__(
        self, checkpoint: str, steps: Mapping[str, int], *, mesh: Mesh, use: str | None = None
    ):
        self._checkpoint = checkpoint
        self._use = use
        self._steps = steps
        self._mesh = mesh
        self._loaded: tuple[int, Params] | None = None

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[str],
        model: Checkpoint,
        names: Iterable[str],
        *,
        mesh: Mesh,
        step: Step,
        use: str | None = None,
    ) -> "BestParams":
        """Chooses among the checkpoints of a work directory.

        Args:
          checkpoints: one work directory.
          model: as it was loaded from there, with the config of its training.
          names: the tasks.
          mesh: where parameters go.
          step: must be None.
          use: as for `load_using`.

        Raises:
          InputError: there are several checkpoints or a step is given, or training measured none of
            them, or on a test split.
        """
        if len(checkpoints) > 1 or step is not None:
            raise InputError(
                "evaluation.best_per_task chooses the step itself: give one --checkpoint, a work "
                "directory, and no --step"
            )
        split = model.members[0].experiment.evaluation.split
        refuse_test("evaluation.best_per_task, that is", f"{split}/score")
        directory = model.members[0].directory.parent
        steps = best_steps(saved_metrics(directory), names, split=split)
        return cls(checkpoints[0], steps, mesh=mesh, use=use)

    def __call__(self, name: str) -> Params:
        """The parameters for a task, read when they are not those of the task before."""
        step = self._steps[name]
        if self._loaded is None or self._loaded[0] != step:
            self._loaded = None  # not two of them at once
            found = load_using(self._checkpoint, step=step, use=self._use, mesh=self._mesh)
            self._loaded = (step, found.params)
        return self._loaded[1]

    def step(self, name: str) -> int:
        """The step of the checkpoint for a task."""
        return self._steps[name]


def best_of_run(workdir: Path, *, until: int, split: str) -> str | None:
    """Writes best.json of a run on a mixture.

    Args:
      workdir: with metrics.jsonl.
      until: the last step that counts.
      split: by which checkpoints are chosen.

    Returns:
      The table of the tasks with their best steps; None of a run on one task, or where there was
      no evaluation, or only on a test split.
    """
    tasks = {} if is_test(split) else best_tasks(evaluated_steps(workdir, until=until), split=split)
    if not tasks:
        return None
    content: dict[str, Any] = {
        "tasks": {name: {"step": row.step, **_finite(row.metrics)} for name, row in tasks.items()},
        "benchmarks": benchmark_scores({name: row.metrics for name, row in tasks.items()}),
    }
    write_atomically(workdir / BEST_FILE, (json.dumps(content, indent=1) + "\n").encode())
    return table(tasks)


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
