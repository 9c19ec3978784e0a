"""The next batch on the devices while a step is in progress.

    ahead = Ahead(batches, mesh)
    for step in ...:
        rows, batch = ahead.take()
        state, metrics = train_step(state, batch)
        if not save_after(step):
            ahead.draw()        # the devices go on to it at once, whatever the host waits for

A position in the data is that after the last batch that was drawn. To keep it at each step would
cost what a shuffle buffer holds, so that nothing is drawn before a step that is saved has been.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh

from t5x_lite.sharding import put_batch
from t5x_lite.types import Batch


@runtime_checkable
class Batches(Protocol):
    """Training batches whose position can be saved.

    They may have the attribute `epoch`, which is logged where it is not None: how often the data
    were read, up to the last batch that was handed out; a fraction, or whole epochs.
    """

    def __next__(self) -> Mapping[str, np.ndarray]: ...

    def state(self) -> bytes:
        """The position after the last batch handed out."""
        ...


class Ahead:
    """Batches, at most one more of them than was taken."""

    def __init__(
        self,
        batches: Batches,
        mesh: Mesh,
        *,
        draw: Callable[[Batches], Mapping[str, np.ndarray]] = next,
    ) -> None:
        """Draws nothing yet.

        Args:
          batches: are drawn from.
          mesh: where they go.
          draw: gives the next of them.
        """
        self._batches = batches
        self._mesh = mesh
        self._draw = draw
        self._drawn: tuple[Mapping[str, np.ndarray], Batch] | None = None
        self._epoch: float | None = None

    def draw(self) -> None:
        """Draws the batch of the next `take`, if that was not done, and begins to copy it."""
        if self._drawn is None:
            self._epoch = self._read_epoch()
            rows = self._draw(self._batches)
            self._drawn = rows, put_batch(rows, self._mesh)

    def take(self) -> tuple[Mapping[str, np.ndarray], Batch]:
        """The next batch: this process's rows of it, and the whole on the devices."""
        self.draw()
        assert self._drawn is not None
        drawn, self._drawn = self._drawn, None
        return drawn

    @property
    def epoch(self) -> float | None:
        """That of the batches, up to the last one taken; None where they do not tell it."""
        return self._read_epoch() if self._drawn is None else self._epoch

    def state(self) -> bytes:
        """The position after the last batch taken.

        Raises:
          RuntimeError: a batch more was drawn.
        """
        if self._drawn is not None:
            raise RuntimeError("the position of a batch that was drawn ahead is not that of a step")
        return self._batches.state()

    def _read_epoch(self) -> float | None:
        epoch = getattr(self._batches, "epoch", None)
        return None if epoch is None else float(epoch)
