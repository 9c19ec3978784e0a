"""Static shapes of batches: one, or a few by the length of the rows.

    Data(..., inputs_length=8192, batch_size=4, batches=Bucketed({512: 64, 2048: 12, 8192: 4}))

A row of 300 tokens that is padded to 8192 costs as much as a full one. With `Bucketed` it goes to a
batch of 64 rows of 512 tokens. Each shape is a compiled program of its own, so that there should be
few.

Examples come in the order that they have with one shape. Each waits in the bucket of its length,
and a bucket that is full is the next batch. With two rows of 4 and one of 8 tokens a batch:

    lengths of the examples    3   7   4   2   8   1
    batches                    [7]  [3 4]  [8]  [2 1]

So the order of batches follows from the order of examples alone. No example is dropped: those that
wait when the data end go into batches of the next epoch. BGE-M3 is trained with batches by length
(Chen et al. 2024, "Efficient Batching"); in its code the last batch of a group has a shape of its
own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_lite.errors import InputError


@dataclass(frozen=True)
class Batches:
    """How rows are divided into batches: `Fixed()` or `Bucketed(...)`."""

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """The static shapes, (tokens of a row, rows), shortest first; () where there is one."""
        return ()

    def identity(self) -> dict[str, Any]:
        """What must be equal for a saved position in the data to fit, as JSON."""
        return {}


@dataclass(frozen=True)
class Fixed(Batches):
    """All batches have data.batch_size rows of the same length."""


@dataclass(frozen=True, init=False)
class Bucketed(Batches):
    """Rows are grouped by their length; each group has a length and a number of rows of its own.

    A row's length is that of its longest text, of `Groups` the longest passage. It goes to the
    shortest length that holds it. The longest length and its rows must be data.inputs_length
    (data.targets_length with `Groups`, whose queries all have data.inputs_length) and
    data.batch_size: texts are cut to it, and what is measured besides the loss has that shape.

    Attributes:
      shapes: (tokens of a row, rows of the global batch), shortest first.
    """

    shapes: tuple[tuple[int, int], ...]

    def __init__(self, shapes: Mapping[int, int] | Iterable[tuple[int, int]]):
        """Takes {tokens of a row: rows of the global batch}, or pairs of them.

        Raises:
          InputError: there is none, one is below 1, or the lengths do not grow.
        """
        pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
        object.__setattr__(self, "shapes", tuple((length, rows) for length, rows in pairs))
        if not self.shapes:
            raise InputError("data.batches.shapes needs a length and its rows, such as 512 64")
        for length, rows in self.shapes:
            if type(length) is not int or type(rows) is not int or length < 1 or rows < 1:
                raise InputError(
                    "data.batches.shapes: a length and its rows must be whole numbers of at least "
                    f"1, got {length} and {rows}"
                )
        lengths = [length for length, _ in self.shapes]
        if lengths != sorted(set(lengths)):
            raise InputError(
                "data.batches.shapes: each length must be above the one before it, got "
                f"{', '.join(map(str, lengths))}"
            )

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """See `Batches.buckets`."""
        return self.shapes

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        return {"batches": [list(shape) for shape in self.shapes]}


@dataclass(frozen=True, init=False)
class Scheduled(Bucketed):
    """As `Bucketed`, in an order that is worked out for each epoch, of caches alone.

    A batch has examples of one length and of one cache, so that each set of pairs has its own
    in-batch negatives. The order of batches is a function of (seed, epoch); it needs no queue, and
    what does not fill a batch is not seen in that epoch (`data.cache.scheduled`). A row of `Groups`
    goes by the longest of its query and of all passages that it may draw.

    Attributes:
      small: where fewer examples of a cache have a length, they go with the next longer ones.
      drop: where fewer are left, they are never seen.
    """

    small: int
    drop: int

    def __init__(
        self,
        shapes: Mapping[int, int] | Iterable[tuple[int, int]],
        small: int = 0,
        drop: int = 0,
    ):
        """Takes {tokens of a row: rows of the global batch}, or pairs of them.

        Raises:
          InputError: as `Bucketed`; or long rows are more than short ones, or a number is negative.
        """
        super().__init__(shapes)
        object.__setattr__(self, "small", small)
        object.__setattr__(self, "drop", drop)
        rows = [rows for _, rows in self.shapes]
        if rows != sorted(rows, reverse=True):
            raise InputError(
                "data.batches.shapes: of longer rows there may not be more in a batch, got "
                f"{', '.join(map(str, rows))}"
            )
        if min(small, drop) < 0:
            raise InputError(
                f"data.batches.small and drop must not be negative, got {small} and {drop}"
            )

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        return {**super().identity(), "schedule": [self.small, self.drop]}


def bucket_of(
    lengths: Int[np.ndarray, " n"], buckets: tuple[tuple[int, int], ...]
) -> Int[np.ndarray, " n"]:
    """The bucket of each row: the first whose length holds it, else the last.

    Args:
      lengths: tokens of each row.
      buckets: see `Batches.buckets`.
    """
    edges = np.array([length for length, _ in buckets])
    return np.minimum(np.searchsorted(edges, lengths), len(edges) - 1)
