"""Weights & Biases as a tracker; extra `wandb`.

Who logs in, and where to, is wandb's own: `wandb login`, WANDB_API_KEY, WANDB_MODE=offline. A run
that resumes goes on in the same run there. A step that is repeated after a restart is logged again:
charts are drawn over the metric "step", since wandb drops records of earlier steps.
"""

from collections.abc import Mapping
from typing import Any

from t5x_lite.train.tracking import Outcome, TrackedRun


class WandB:
    """A run of Weights & Biases.

    Args:
      run: that is tracked.
    """

    def __init__(self, run: TrackedRun):
        import wandb  # pyright: ignore[reportMissingImports]

        self._run: Any = wandb.init(
            project=run.project or None,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=run.directory,
            config=dict(run.config),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.id: str | None = self._run.id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends a record."""
        self._run.log({"step": step, **metrics})

    def close(self, outcome: Outcome) -> None:
        """Ends the run; one that was interrupted may be resumed."""
        self._run.finish(exit_code=1 if outcome == "failed" else 0)
