"""Early stopping: training ends when a metric has not improved for several evaluations.

    patience = Patience(EarlyStopping(metric="validation/loss", patience=2))
    for loss in (3.0, 2.0, 2.5, 2.25):
        patience.add({"validation/loss": loss})
    patience.exhausted          # True: two evaluations without improvement

Nothing of it is in a checkpoint: the evaluations so far are in the run's record, metrics.jsonl, and
a run that is resumed goes through them again. So it ends where an uninterrupted one does.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from t5x_lite.errors import InputError
from t5x_lite.metrics.selection import Mode, mode_of, refuse_test


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When training ends before its last step.

    Attributes:
      metric: a metric of the evaluation, such as "validation/loss"; None never ends early, and one
        of a test split is refused.
      mode: whether the highest or the lowest value is best, max or min; None goes by the metric's
        name: of losses, cross entropies, perplexities and errors the lowest, else the highest.
      patience: evaluations in a row without improvement that end training.
      min_delta: a change of no more than this is no improvement.
    """

    metric: str | None = None
    mode: Mode | None = None
    patience: int = 3
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in (None, "max", "min"):
            raise InputError(f"stop_early.mode must be max, min or None, got {self.mode!r}")
        if self.patience < 1:
            raise InputError(f"stop_early.patience must be at least 1, got {self.patience}")
        refuse_test("stop_early.metric", self.metric)
        if not 0 <= self.min_delta < math.inf:
            raise InputError(f"stop_early.min_delta must not be negative, got {self.min_delta}")


class Patience:
    """Counts evaluations in a row that brought no improvement."""

    def __init__(self, config: EarlyStopping, history: Iterable[Mapping[str, float]] = ()) -> None:
        """Starts from the evaluations that the run has behind it, in their order.

        Those without the metric are passed over: the run may have measured something else then.
        """
        self._config = config
        self._sign = 1 if mode_of(config.metric or "", config.mode) == "min" else -1
        self._best = math.inf
        self._waited = 0
        for metrics in history:
            if config.metric in metrics:
                self.add(metrics)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an evaluation; what is not finite is no improvement.

        Raises:
          InputError: the metric is not among them.
        """
        name = self._config.metric
        if name is None:
            return
        if name not in metrics:
            raise InputError(
                f"stop_early.metric {name!r} is not a metric of the evaluation: it gives "
                f"{', '.join(metrics) or 'none'}"
            )
        value = self._sign * metrics[name]
        if math.isfinite(value) and value < self._best - self._config.min_delta:
            self._best = value
            self._waited = 0
        else:
            self._waited += 1

    @property
    def exhausted(self) -> bool:
        """Whether training is to end."""
        return self._waited >= self._config.patience

    def __str__(self) -> str:
        """Why training ends, as a message says it."""
        name, best = self._config.metric, self._sign * self._best
        return f"{name} has not improved for {self._waited} evaluations (best {best:.4f})"
