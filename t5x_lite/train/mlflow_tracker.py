"""MLflow as a tracker; extra `mlflow`.

The server is MLflow's own setting, MLFLOW_TRACKING_URI. A run that resumes goes on in the same run
there. Parameters are the config's options and values; MLflow refuses to change one, so that a
resumed run leaves them as they were.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from t5x_lite.train.tracking import Outcome, TrackedRun, flat

_BATCH = 100
"""Parameters of one request at most."""
_LONGEST = 500
"""Characters of a parameter's value that every version of MLflow takes."""
_NOT_ALLOWED = re.compile(r"[^\w\-./ :]")
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow:
    """A run of MLflow.

    Args:
      run: that is tracked.
    """

    def __init__(self, run: TrackedRun):
        import mlflow  # pyright: ignore[reportMissingImports]

        self._mlflow: Any = mlflow
        if run.project:
            mlflow.set_experiment(run.project)
        started: Any = mlflow.start_run(run_id=run.id, run_name=None if run.id else run.name)
        self.id: str | None = started.info.run_id
        if run.id is None:
            params = {name: str(value)[:_LONGEST] for name, value in flat(run.config).items()}
            names = list(params)
            for i in range(0, len(names), _BATCH):
                mlflow.log_params({name: params[name] for name in names[i : i + _BATCH]})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends a record; MLflow takes no "@" in a name, and finite numbers alone."""
        finite = {
            _NOT_ALLOWED.sub("_", name): value
            for name, value in metrics.items()
            if math.isfinite(value)
        }
        if finite:
            self._mlflow.log_metrics(finite, step=step)

    def close(self, outcome: Outcome) -> None:
        """Ends the run."""
        self._mlflow.end_run(_STATUS[outcome])
