"""What states of slots share: rows of a batch, and the module that each of them has."""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from t5x_lite.adapters.composition import Block
from t5x_lite.adapters.weighted import weighted_sum
from t5x_lite.errors import InputError
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.sorted_tokens import in_blocks, over_blocks
from t5x_lite.types import Array


@runtime_checkable
class Alike(Protocol):
    """A module whose arrays may be gathered for each row with those of others of its kind."""

    def kind(self) -> Hashable:
        """Equal for modules of one kind; None of a module that must run by itself."""
        ...


class RowStates:
    """What states of slots share: rows, and which child each of them has."""

    ids: Array | None

    @property
    def num_rows(self) -> int:
        """Rows of the batch, or of the part of it."""
        raise NotImplementedError

    def check_ids(self, block: Block) -> None:
        """Refuses, by an InputError, rows without numbers, or another number of rows."""
        if self.ids is None:
            raise InputError(
                f"{block} needs the feature adapter_ids in the batch: the number of each row's "
                "child"
            )
        if self.ids.shape[0] != self.num_rows:
            raise InputError(
                f"{block}: adapter_ids are of {self.ids.shape[0]} rows, and a layer has "
                f"{self.num_rows}"
            )

    def is_task(self, number: int, ndim: int) -> Array:
        """Which rows have a child, for arrays of `ndim` axes."""
        assert self.ids is not None
        return (self.ids == number).reshape(-1, *(1,) * (ndim - 1))


def check_numbers(block: Block, ids: Array) -> None:
    """Refuses, by an InputError, numbers of rows that are of no child; not while it is traced."""
    if isinstance(ids, Tracer):
        return
    wrong = next((k for k in np.ravel(np.asarray(ids)) if not 0 <= k < len(block.children)), None)
    if wrong is not None:
        last = len(block.children) - 1
        raise InputError(f"{block} has children 0 to {last}, and adapter_ids have {wrong}")


@dataclasses.dataclass(frozen=True)
class HiddenState(RowStates):
    """What the last layer of a block reads, [B, ..., I]."""

    hidden: Array
    ids: Array | None

    @property
    def num_rows(self) -> int:
        """B."""
        return self.hidden.shape[0]

    def after(self, module: Any, name: str) -> "HiddenState":
        """After one module."""
        return dataclasses.replace(self, hidden=module(self.hidden))

    def where(self, kept: Array, other: "HiddenState") -> "HiddenState":
        """The other state where it is kept."""
        return dataclasses.replace(self, hidden=jnp.where(kept, other.hidden, self.hidden))

    def mean(self, states: Sequence["HiddenState"], weights: Sequence[float]) -> "HiddenState":
        """The weighted sum."""
        return dataclasses.replace(self, hidden=weighted_sum([s.hidden for s in states], weights))

    def parts(self, sizes: Sequence[int]) -> list["HiddenState"]:
        """Contiguous rows."""
        ids = self.ids
        return [
            HiddenState(self.hidden[rows], None if ids is None else ids[rows])
            for rows in slices(sizes)
        ]

    def joined(self, states: Sequence["HiddenState"]) -> "HiddenState":
        """The rows of all."""
        return dataclasses.replace(self, hidden=jnp.concatenate([s.hidden for s in states]))

    def chosen(self, states: Sequence["HiddenState"]) -> "HiddenState":
        """Each row of the state of its number."""
        return dataclasses.replace(self, hidden=chosen_rows(self, [s.hidden for s in states]))

    def gathered(self, modules: Sequence[Any], name: str) -> "HiddenState":
        """Each row after the module of its number."""
        hidden = by_row(modules, self.ids, lambda module, row: module(row), self.hidden)
        return dataclasses.replace(self, hidden=hidden)


def kind_of(module: Any) -> Hashable:
    """The kind of a module whose arrays may be gathered; None of another one."""
    return module.kind() if isinstance(module, Alike) else None


def on_one_device() -> bool:
    """Whether the program is of one device, so that tokens of all rows are in one place."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or mesh.size == 1


def slices(sizes: Sequence[int]) -> list[slice]:
    """Contiguous parts of these sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def wide_bias(bias: Array | None, y: Array) -> Array:
    """A bias for each row of y: [B, 1, ..., O]."""
    shape = (y.shape[0], *(1,) * (y.ndim - 2), y.shape[-1])
    return jnp.broadcast_to(0.0 if bias is None else bias, shape)


def chosen_rows(state: RowStates, arrays: Sequence[Array]) -> Array:
    """Each row of the array of its number; zeros where no child has it."""
    made = jnp.zeros_like(arrays[0])
    for number, array in enumerate(arrays):
        made = jnp.where(state.is_task(number, array.ndim), array, made)
    return made


def by_row(
    modules: Sequence[Any], ids: Array | None, call: Callable[[Any, Any], Array], rows: Any
) -> Array:
    """A function of a row and its module for all rows, the modules' arrays gathered by number."""
    graphdef, _ = nnx.split(modules[0])
    each = [nnx.to_pure_dict(nnx.split(module)[1]) for module in modules]
    assert ids is not None
    of_rows = jax.tree.map(lambda *leaves: jnp.stack(leaves)[ids], *each)

    def one(params: Any, row: Any) -> Array:
        return call(nnx.merge(graphdef, params), row)

    return jax.vmap(one)(of_rows, rows)


def by_token(
    modules: Sequence[Any], chosen: Array, call: Callable[[Any, Any], Array], tokens: Any
) -> Array:
    """A function of tokens and their module for all tokens: each runs through its own alone.

    Args:
      modules: of one kind.
      chosen: [B, T], the number of each token's module.
      call: (module, tokens [S, ...]) -> [S, O].
      tokens: [B, T, ...], or a tree of such.

    Returns:
      [B, T, O].
    """
    graphdef, _ = nnx.split(modules[0])
    each = [nnx.to_pure_dict(nnx.split(module)[1]) for module in modules]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tokens)
    blocks = in_blocks(chosen.reshape(-1), len(modules))

    def block(rows: Any, number: Array) -> Array:
        return call(nnx.merge(graphdef, jax.tree.map(lambda x: x[number], stacked)), rows)

    made = over_blocks(blocks, jax.tree.map(blocks.taken, flat), block)
    return blocks.put_back(made).reshape(*chosen.shape, made.shape[-1])


def rows_of(mask: Any, rows: slice) -> Any:
    """A mask's rows; of what it is made of, those of its arrays."""
    if isinstance(mask, Visibility):
        arrays = ("keys", "queries", "both_ways", "hidden", "picked")
        cut = {name: getattr(mask, name) for name in arrays}
        cut = {name: array[rows] for name, array in cut.items() if array is not None}
        return dataclasses.replace(mask, **cut)
    return mask if mask is None or mask.shape[0] == 1 else mask[rows]
