"""What a config's train step works on: the features of a row, and its floating-point operations."""

from collections.abc import Callable, Mapping

import numpy as np

from t5x_lite.config import Experiment
from t5x_lite.data.config import (
    ADAPTER_IDS,
    OWN_NEGATIVES,
    Data,
    lengths_of,
    own_negative_caches,
    shapes_of,
)


def empty_row(data: Data, *, num_tasks: int = 0) -> dict[str, np.ndarray]:
    """A batch of one row of padding: its features, [1, ...], have a row's shapes and dtypes.

    Args:
      data: of the rows.
      num_tasks: of the objective; rows have the number of one where it is above 0.
    """
    none = np.zeros(0, np.int64)
    made = data.layout.lay_out([], none, num_rows=1, lengths=lengths_of(data), pack=data.pack)
    numbers = {ADAPTER_IDS: data.adapter_of or num_tasks, OWN_NEGATIVES: own_negative_caches(data)}
    return {**made, **{name: np.zeros(1, np.int32) for name, those in numbers.items() if those}}


def batch_row(experiment: Experiment) -> dict[str, np.ndarray]:
    """Return `empty_row` of the longest rows of a run."""
    longest = max(shapes_of(experiment.data), key=lambda data: data.inputs_length)
    return empty_row(longest, num_tasks=experiment.objective.num_tasks)


def row_shapes(data: Data, *, num_tasks: int = 0) -> dict[str, tuple[int, ...]]:
    """The features of a row, as of `empty_row`, with their shapes; no data is read."""
    row = empty_row(data, num_tasks=num_tasks)
    return {name: value.shape[1:] for name, value in row.items()}


def row_lengths(data: Data) -> dict[str, int]:
    """The features of a row, with their lengths in tokens: of several texts, that of each."""
    return {name: shape[-1] for name, shape in row_shapes(data).items() if shape}


def step_flops(experiment: Experiment) -> int | None:
    """FLOPs of a train step over all devices, of the longest rows where there are several shapes.

    They are those of three forward passes; None: they are not counted.
    """
    row = experiment.objective.forward_flops(experiment.model, row_shapes(experiment.data))
    return None if row is None else 3 * experiment.data.batch_size * row


def batch_flops(experiment: Experiment) -> Callable[[Mapping[str, np.ndarray]], int | None]:
    """A function that gives the FLOPs of a train step on some rows, from their shapes."""

    def flops(batch: Mapping[str, np.ndarray]) -> int | None:
        rows = {name: value.shape[1:] for name, value in batch.items()}
        row = experiment.objective.forward_flops(experiment.model, rows)
        return None if row is None else 3 * len(next(iter(batch.values()))) * row

    return flops
