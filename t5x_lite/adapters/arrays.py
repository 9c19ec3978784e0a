"""The arrays of a model, as adapters that change whole arrays see them."""

import dataclasses
import math

from flax import nnx

from t5x_lite import trees
from t5x_lite.nn.bind import split

_LAYERS = "layers"

Rows = tuple[int, ...] | None
"""Numbers of the layers within their stack; None of an array that is no stack."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array of the model.

    Attributes:
      shape: its shape.
      axes: its logical axes.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]

    @property
    def size(self) -> int:
        """Its number of entries."""
        return math.prod(self.shape)

    @property
    def rows(self) -> tuple[int, tuple[int, ...]]:
        """Its number of layers, 1 of an array that is not stacked, and the shape of one."""
        return (self.shape[0], self.shape[1:]) if self.is_stacked else (1, self.shape)

    @property
    def is_stacked(self) -> bool:
        """Whether its first axis is that of layers."""
        return self.axes[:1] == (_LAYERS,)

    @property
    def all_rows(self) -> Rows:
        """All of its layers."""
        return tuple(range(self.shape[0])) if self.is_stacked else None


def arrays_of(model: nnx.Module) -> dict[str, Leaf]:
    """The model's arrays by path.

    Args:
      model: shapes are enough.
    """
    _, params, axes = split(model)
    names = trees.flatten(axes)
    return {
        path: Leaf(tuple(leaf.shape), names[path]) for path, leaf in trees.flatten(params).items()
    }


def table_of(model: nnx.Module) -> tuple[str, Leaf] | None:
    """Path and array of the table of token embeddings; None of a model that has none."""
    tables = {p: leaf for p, leaf in arrays_of(model).items() if leaf.axes == ("vocab", "embed")}
    return next(iter(tables.items()), None)
