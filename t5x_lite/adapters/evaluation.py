"""Evaluation of composed adapters at one layer position (site) of a model.

An interpreter applies the modules of a composition to a state, which depends on the position:

    after a block     the state is h, at first the block's output f; the layer returns norm(h + x)
    a dense layer     the product, and the bias that is still to be added
    a hidden site     the hidden states

An adapter computes its input from the state, and a composition block passes states to its children.
So a Stack has the same result inside of another block as by itself. (In the library `adapters` a
block computes norm(h + x) by its first child, and a Stack inside of it does so again.) The
interpreter runs while a program is traced, not inside of the program.

`KernelState` is the state of a kernel or a bias, for merging and for fused decoding.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Float

from t5x_lite.adapters.composition import (
    Average,
    BatchSplit,
    Block,
    Drop,
    Fuse,
    MultiTask,
    Parallel,
    Route,
    Split,
    Stack,
    Task,
    walk,
)
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.dense import split_key
from t5x_lite.nn.experts import in_blocks, over_blocks
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import Around, GatedSlot, with_dropout


def weighted_sum(arrays: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return sum w_i x_i, computed in float32 and cast to the dtype of x."""
    total = sum(w * x.astype(jnp.float32) for x, w in zip(arrays, weights, strict=True))
    return jnp.asarray(total).astype(arrays[0].dtype)


def weighted_sum_of_some(biases: Sequence[Array | None], weights: Sequence[float]) -> Array | None:
    """Return the weighted sum of biases, where None counts as 0; None if all biases are None."""
    known = [(bias, w) for bias, w in zip(biases, weights, strict=True) if bias is not None]
    return weighted_sum(*zip(*known, strict=True)) if known else None


def with_changes(array: Array, others: Sequence[Array], weights: Float[Array, "#B #T K"]) -> Array:
    """Return x + sum_k w_k (x_k - x), computed in float32 and cast to the dtype of x.

    Args:
      array: x [B, T, O].
      others: arrays x_k, each [B, T, O].
      weights: weights w, [B, T, K].
    """
    own = array.astype(jnp.float32)
    total = own
    for number, other in enumerate(others):
        total = total + weights[..., number, None] * (other.astype(jnp.float32) - own)
    return total.astype(array.dtype)


@runtime_checkable
class Alike(Protocol):
    """Protocol of adapter modules that can run with different arrays for each batch row."""

    def kind(self) -> Hashable:
        """Return a key that modules with equal structure share; None if they cannot run by row."""
        ...


class RowStates:
    """Base class of activations at a layer position, with the index of each row's adapter."""

    ids: Array | None

    @property
    def num_rows(self) -> int:
        """Number of batch rows."""
        raise NotImplementedError

    def check_ids(self, block: Block) -> None:
        """Raise InputError unless `adapter_ids` have one entry for each batch row."""
        if self.ids is None:
            raise InputError(
                f"block {block} requires the batch feature adapter_ids, the child index of each row"
            )
        if self.ids.shape[0] != self.num_rows:
            raise InputError(
                f"block {block}: adapter_ids have {self.ids.shape[0]} rows, but the batch has "
                f"{self.num_rows}"
            )

    def is_task(self, number: int, ndim: int) -> Array:
        """Return a mask of the rows that use adapter `number`, broadcastable to `ndim` axes."""
        assert self.ids is not None
        return (self.ids == number).reshape(-1, *(1,) * (ndim - 1))


def check_numbers(block: Block, ids: Array) -> None:
    """Raise InputError if `adapter_ids` are out of range; traced arrays are not checked."""
    if isinstance(ids, Tracer):
        return
    wrong = next((k for k in np.ravel(np.asarray(ids)) if not 0 <= k < len(block.children)), None)
    if wrong is not None:
        last = len(block.children) - 1
        raise InputError(f"block {block} has children 0 to {last}, but adapter_ids contain {wrong}")


@dataclasses.dataclass(frozen=True)
class HiddenState(RowStates):
    """Input of the last dense layer of a block while several adapters change it in turn."""

    hidden: Array
    ids: Array | None

    @property
    def num_rows(self) -> int:
        return self.hidden.shape[0]

    def after(self, module: Any, name: str) -> "HiddenState":
        return dataclasses.replace(self, hidden=module(self.hidden))

    def where(self, kept: Array, other: "HiddenState") -> "HiddenState":
        return dataclasses.replace(self, hidden=jnp.where(kept, other.hidden, self.hidden))

    def mean(self, states: Sequence["HiddenState"], weights: Sequence[float]) -> "HiddenState":
        return dataclasses.replace(self, hidden=weighted_sum([s.hidden for s in states], weights))

    def parts(self, sizes: Sequence[int]) -> list["HiddenState"]:
        ids = self.ids
        return [
            HiddenState(self.hidden[rows], None if ids is None else ids[rows])
            for rows in slices(sizes)
        ]

    def joined(self, states: Sequence["HiddenState"]) -> "HiddenState":
        return dataclasses.replace(self, hidden=jnp.concatenate([s.hidden for s in states]))

    def chosen(self, states: Sequence["HiddenState"]) -> "HiddenState":
        return dataclasses.replace(self, hidden=chosen_rows(self, [s.hidden for s in states]))

    def gathered(self, modules: Sequence[Any], name: str) -> "HiddenState":
        hidden = by_row(modules, self.ids, lambda module, row: module(row), self.hidden)
        return dataclasses.replace(self, hidden=hidden)


def kind_of(module: Any) -> Hashable:
    return module.kind() if isinstance(module, Alike) else None


def on_one_device() -> bool:
    """Return True if the program runs on a single device."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or mesh.size == 1


def slices(sizes: Sequence[int]) -> list[slice]:
    """Return contiguous slices with the given sizes, starting at 0."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def wide_bias(bias: Array | None, y: Array) -> Array:
    """Broadcast a bias to one bias per row of y, with shape [B, 1, ..., O]."""
    shape = (y.shape[0], *(1,) * (y.ndim - 2), y.shape[-1])
    return jnp.broadcast_to(0.0 if bias is None else bias, shape)


def chosen_rows(state: RowStates, arrays: Sequence[Array]) -> Array:
    """Select for each row the array of the row's adapter, or zeros for an unknown adapter index."""
    made = jnp.zeros_like(arrays[0])
    for number, array in enumerate(arrays):
        made = jnp.where(state.is_task(number, array.ndim), array, made)
    return made


def by_row(
    modules: Sequence[Any], ids: Array | None, call: Callable[[Any, Any], Array], rows: Any
) -> Array:
    """Apply to each batch row the adapter module with the index in `ids`."""
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
    """Apply to each token only the adapter module that is selected for the token.

    Args:
      modules: adapter modules that differ only in their arrays.
      chosen: module index of each token, [B, T].
      call: function (module, tokens [S, ...]) -> [S, O] that applies a module.
      tokens: inputs of the modules, [B, T, ...], or a pytree of such arrays.

    Returns:
      Outputs of the modules, [B, T, O].
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
    """Return an attention mask for a range of batch rows."""
    if isinstance(mask, Visibility):
        arrays = ("keys", "queries", "both_ways", "hidden", "picked")
        cut = {name: getattr(mask, name) for name in arrays}
        cut = {name: array[rows] for name, array in cut.items() if array is not None}
        return dataclasses.replace(mask, **cut)
    return mask if mask is None or mask.shape[0] == 1 else mask[rows]


Tree = Any  # str | Block | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Interpreter that applies a composition of adapters to the activations of one layer.

    Attributes:
      leaves: composed adapter modules by name.
      own: routers and AdapterFusion layers of the composition, by `Trained.key`.
      layer: number of the layer; decoder layers are numbered after encoder layers.
    """

    leaves: Mapping[str, Any]
    own: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer: Array | None = None

    def run(self, tree: Tree, state: Any) -> Any:
        """Return the activations after applying a composition of adapters.

        Raises:
          InputError: if sizes in the composition do not fit the batch, or the layer position does
            not support a composition block.
        """
        if tree is None or (isinstance(tree, str) and tree not in self.leaves):
            return state
        if isinstance(tree, str | Task):
            module = self._module(tree)
            return state if module is None else state.after(module, str(tree))
        if isinstance(tree, Stack):
            for child in tree.children:
                state = self.run(child, state)
            return state
        if isinstance(tree, Drop):
            return state.where(self._keeps(tree), self.run(tree.children[0], state))
        if isinstance(tree, Average):
            return state.mean([self.run(child, state) for child in tree.children], tree.shares)
        if isinstance(tree, BatchSplit | Parallel):
            parts = state.parts(tree.rows(state.num_rows))
            return state.joined(self._each(tree, parts))
        if isinstance(tree, Split):
            return state.side_by_side(self._each(tree, state.columns(tree.sizes(state.length))))
        if isinstance(tree, MultiTask):
            return self._of_tasks(tree, state)
        if isinstance(tree, Route):
            return self._routed(tree, state)
        assert isinstance(tree, Fuse)
        return self._fused(tree, state)

    def _each(self, block: Block, parts: Sequence[Any]) -> list[Any]:
        return [self.run(child, part) for child, part in zip(block.children, parts, strict=True)]

    def _module(self, tree: Tree) -> Any:
        if isinstance(tree, Task):
            found = self.leaves.get(str(tree.children[0]))
            return None if found is None else found.task(tree.of)
        return self.leaves.get(tree) if isinstance(tree, str) else None

    def _of_tasks(self, block: MultiTask, state: Any) -> Any:
        state.check_ids(block)
        modules = [self._module(child) for child in block.children]
        groups: dict[Hashable, list[int]] = {}
        for number, (child, module) in enumerate(zip(block.children, modules, strict=True)):
            absent = module is None and not isinstance(child, Block)
            kind = "absent" if absent else kind_of(module)
            groups.setdefault(number if kind is None else kind, []).append(number)
        group_of, place_of = (np.zeros(len(modules), np.int32) for _ in range(2))
        for group, numbers in enumerate(groups.values()):
            group_of[numbers], place_of[numbers] = group, np.arange(len(numbers))

        def after(kind: Hashable, numbers: Sequence[int]) -> Any:
            if kind == "absent" or len(numbers) == 1:
                return self.run(block.children[numbers[0]], state)
            ids = state.ids if len(groups) == 1 else jnp.asarray(place_of)[state.ids]
            some = dataclasses.replace(state, ids=ids)
            return some.gathered([modules[number] for number in numbers], str(block))

        found = [after(kind, numbers) for kind, numbers in groups.items()]
        if len(found) == 1:
            return found[0]
        groups_of_rows = dataclasses.replace(state, ids=jnp.asarray(group_of)[state.ids])
        return dataclasses.replace(groups_of_rows.chosen(found), ids=state.ids)

    def _routed(self, block: Route, state: Any) -> Any:
        weights = self.own[block.key](block, *state.read())
        modules = [self._module(child) for child in block.children]
        kinds = {kind_of(module) for module in modules}
        is_alike = len(kinds) == 1 and None not in kinds
        one_a_row = weights.shape[1] == 1
        if block.kind != "hard" or not is_alike or not (one_a_row or state.can_sort):
            return state.plus([self.run(child, state) for child in block.children], weights)
        chosen = jnp.argmax(weights, axis=-1)
        if one_a_row:
            of_rows = dataclasses.replace(state, ids=chosen[:, 0]).gathered(modules, str(block))
            made = dataclasses.replace(of_rows, ids=state.ids)
        else:
            made = state.sorted(modules, chosen)
        return state.plus([made], jnp.take_along_axis(weights, chosen[..., None], axis=-1))

    def _fused(self, block: Fuse, state: Any) -> Any:
        found = [(child, self._is_here(child)) for child in block.children]
        here = [(child, is_here) for child, is_here in found if is_here is not False]
        contributions = []
        for child, _ in here:
            if isinstance(child, str):
                contributions.append(state.contribution(self.leaves[child], child))
            else:
                contributions.append(self.run(child, state).h - state.h)
        query, skip = self._read_by_last(here, state)
        mixed = self.own[block.key](
            query,
            contributions,
            is_here=[is_here for _, is_here in here],
            temperature=block.temperature,
        )
        fused = dataclasses.replace(state, h=mixed + skip)
        some = functools.reduce(operator.or_, (is_here for _, is_here in here))
        return fused if some is True else state.where(some, fused)

    def _read_by_last(self, here: Sequence[tuple[Tree, Any]], state: Any) -> tuple[Array, Array]:
        query: Any = None
        skip: Any = None
        for child, is_here in here:
            own, left = state.read_by(self._last_leaf(child))
            left = left if isinstance(child, str) else state.h
            if query is None or is_here is True:
                query, skip = own, left
            else:
                query, skip = jnp.where(is_here, own, query), jnp.where(is_here, left, skip)
        return query, skip

    def _is_here(self, tree: Tree) -> Any:
        if tree is None:
            return False
        if isinstance(tree, str | Task):
            module = self._module(tree)
            return False if module is None else module.is_here
        some = functools.reduce(operator.or_, map(self._is_here, tree.children))
        return some & self._keeps(tree) if isinstance(tree, Drop) else some

    def _keeps(self, block: Drop) -> Array:
        return jnp.all(jnp.asarray(self.layer)[..., None] != jnp.asarray(block.layers), axis=-1)

    def _last_leaf(self, tree: Tree) -> Any:
        names = [node for node, _ in walk(tree) if isinstance(node, str) and node in self.leaves]
        return self.leaves[names[-1]]


@dataclasses.dataclass(frozen=True)
class BlockState(RowStates):
    """Output [B, T, D] of an attention or feed-forward block while several adapters change it."""

    h: Array
    x: Array
    norm: Callable[[Array], Array] | None
    around: Around
    ids: Array | None

    @property
    def num_rows(self) -> int:
        return self.h.shape[0]

    @property
    def length(self) -> int:
        return self.h.shape[1]

    def _around(self, name: str) -> Around:
        key = self.around.key
        if key is None:
            return self.around
        number = sum(ord(letter) * 31**i for i, letter in enumerate(name)) % 2**31
        return dataclasses.replace(self.around, key=jax.random.fold_in(key, number))

    def after(self, module: Any, name: str) -> "BlockState":
        around = self._around(name)
        return dataclasses.replace(self, h=module.after(self.h, self.x, self.norm, around))

    def contribution(self, module: Any, name: str) -> Array:
        return module.contribution(self.h, self.x, self.norm, self._around(name))

    def read_by(self, module: Any) -> tuple[Array, Array]:
        """Return the input of an adapter module, and the residual added to the module's output."""
        arguments = (self.h, self.x, self.norm, self.around)
        return module.reads(*arguments), module.skip(*arguments)

    def where(self, kept: Array, other: "BlockState") -> "BlockState":
        return dataclasses.replace(self, h=jnp.where(kept, other.h, self.h))

    def mean(self, states: Sequence["BlockState"], weights: Sequence[float]) -> "BlockState":
        return dataclasses.replace(self, h=weighted_sum([s.h for s in states], weights))

    def read(self) -> tuple[Array, Any]:
        """Return the router's input (hidden states before the block) and the attention mask."""
        return self.around.source, self.around.mask

    def plus(self, states: Sequence["BlockState"], weights: Array) -> "BlockState":
        return dataclasses.replace(self, h=with_changes(self.h, [s.h for s in states], weights))

    def parts(self, sizes: Sequence[int]) -> list["BlockState"]:
        made = []
        for rows in slices(sizes):
            around = dataclasses.replace(
                self.around, source=self.around.source[rows], mask=rows_of(self.around.mask, rows)
            )
            ids = None if self.ids is None else self.ids[rows]
            made.append(BlockState(self.h[rows], self.x[rows], self.norm, around, ids))
        return made

    def joined(self, states: Sequence["BlockState"]) -> "BlockState":
        return dataclasses.replace(self, h=jnp.concatenate([state.h for state in states]))

    def columns(self, sizes: Sequence[int]) -> list["BlockState"]:
        """Split the activations into ranges of tokens; tokens attend only within their range."""
        made, mask = [], self.around.mask
        if isinstance(mask, Visibility):
            mask = mask.dense(self.length)
        for part in slices(sizes):
            seen = None
            if mask is not None:
                seen = mask[:, :, part if mask.shape[2] > 1 else slice(None), part]
            around = dataclasses.replace(self.around, source=self.around.source[:, part], mask=seen)
            made.append(BlockState(self.h[:, part], self.x[:, part], self.norm, around, self.ids))
        return made

    def side_by_side(self, states: Sequence["BlockState"]) -> "BlockState":
        return dataclasses.replace(self, h=jnp.concatenate([state.h for state in states], axis=1))

    def chosen(self, states: Sequence["BlockState"]) -> "BlockState":
        return dataclasses.replace(self, h=chosen_rows(self, [state.h for state in states]))

    def gathered(self, modules: Sequence[Any], name: str) -> "BlockState":
        key = self._around(name).key
        keys = None if key is None else jax.random.split(key, self.num_rows)

        def of_row(module: Any, row: tuple) -> Array:
            h, x, source, key = row
            around = Around(source[None], None, key)
            return module.after(h[None], x[None], self.norm, around)[0]

        rows = (self.h, self.x, self.around.source, keys)
        return dataclasses.replace(self, h=by_row(modules, self.ids, of_row, rows))

    @property
    def can_sort(self) -> bool:
        """True if tokens can be sorted by adapter: on a single device and without dropout."""
        return on_one_device() and self.around.key is None

    def sorted(self, modules: Sequence[Any], chosen: Array) -> "BlockState":
        def of_tokens(module: Any, tokens: tuple) -> Array:
            h, x, source = (each[None] for each in tokens)
            return module.after(h, x, self.norm, Around(source, None, None))[0]

        tokens = (self.h, self.x, self.around.source)
        return dataclasses.replace(self, h=by_token(modules, chosen, of_tokens, tokens))


@dataclasses.dataclass(frozen=True)
class DenseState(RowStates):
    """Output [B, ..., O] of a dense layer, without bias, while several adapters change it.

    `kernel` is the layer's kernel with the same changes, or None if batch rows have different
    kernels. `seen` is the attention mask, for gated adapters; `key` is the random key of
    dropout in training.
    """

    x: Array
    y: Array
    kernel: Array | None
    bias: Array | None
    ids: Array | None
    seen: Any = None
    key: Key | None = None

    @property
    def num_rows(self) -> int:
        return self.y.shape[0]

    def after(self, module: Any, name: str) -> "DenseState":
        module = with_dropout(module, self.key, name)
        if isinstance(module, GatedSlot):
            y = module.gated(self.x, self.y, self._kernel(), self.seen)
            return dataclasses.replace(self, y=y, kernel=None)
        if self.kernel is None and kind_of(module) is None:
            raise InputError(
                f"adapter {name!r} reads the kernel of its layer, but rows have different "
                "kernels; put the adapter first in a Stack"
            )
        y = module(self.x, self.y, self._kernel())
        after = None if self.kernel is None else module.of_kernel(self.kernel)
        bias = module.of_bias(self.bias)
        return dataclasses.replace(self, y=y, kernel=after, bias=bias)

    def _kernel(self) -> Array:
        if self.kernel is not None:
            return self.kernel
        return jnp.zeros((self.x.shape[-1], self.y.shape[-1]), self.x.dtype)

    def where(self, kept: Array, other: "DenseState") -> "DenseState":
        kernel, bias = other.kernel, other.bias
        if kernel is not None and self.kernel is not None:
            kernel = jnp.where(kept, kernel, self.kernel)
        if bias is not self.bias:
            ours, theirs = (0.0 if each is None else each for each in (self.bias, bias))
            bias = jnp.where(kept, theirs, ours)
        y = jnp.where(kept, other.y, self.y)
        return dataclasses.replace(self, y=y, kernel=kernel, bias=bias)

    def mean(self, states: Sequence["DenseState"], weights: Sequence[float]) -> "DenseState":
        kernels = [state.kernel for state in states if state.kernel is not None]
        kernel = weighted_sum(kernels, weights) if len(kernels) == len(states) else None
        return dataclasses.replace(
            self,
            y=weighted_sum([state.y for state in states], weights),
            kernel=kernel,
            bias=weighted_sum_of_some([state.bias for state in states], weights),
        )

    def read(self) -> tuple[Array, Any]:
        """Return the router's input (the input of the dense layer) and the attention mask."""
        return self.x, self.seen

    def plus(self, states: Sequence["DenseState"], weights: Array) -> "DenseState":
        bias, biases = self.bias, [state.bias for state in states]
        if not all(each is bias for each in biases):
            wide = [wide_bias(each, self.y) for each in (bias, *biases)]
            bias = with_changes(wide[0], wide[1:], weights)
        y = with_changes(self.y, [state.y for state in states], weights)
        return dataclasses.replace(self, y=y, kernel=None, bias=bias)

    def parts(self, sizes: Sequence[int]) -> list["DenseState"]:
        made = []
        keys = split_key(self.key, len(sizes))
        for rows, key in zip(slices(sizes), keys, strict=True):
            bias = self.bias
            bias = bias[rows] if bias is not None and bias.ndim > 1 else bias
            ids = None if self.ids is None else self.ids[rows]
            seen = rows_of(self.seen, rows)
            made.append(DenseState(self.x[rows], self.y[rows], self.kernel, bias, ids, seen, key))
        return made

    def joined(self, states: Sequence["DenseState"]) -> "DenseState":
        biases = [state.bias for state in states]
        if not all(bias is self.bias for bias in biases):
            wide = [wide_bias(bias, state.y) for bias, state in zip(biases, states, strict=True)]
            bias = jnp.concatenate(wide)
        else:
            bias = self.bias
        y = jnp.concatenate([state.y for state in states])
        return dataclasses.replace(self, y=y, kernel=None, bias=bias)

    def chosen(self, states: Sequence["DenseState"]) -> "DenseState":
        bias, biases = self.bias, [state.bias for state in states]
        if not all(each is bias for each in biases):
            bias = chosen_rows(self, [wide_bias(each, self.y) for each in biases])
        y = chosen_rows(self, [state.y for state in states])
        return dataclasses.replace(self, y=y, kernel=None, bias=bias)

    def gathered(self, modules: Sequence[Any], name: str) -> "DenseState":
        kernel = self._kernel()
        keys = None if self.key is None else jax.random.split(self.key, self.num_rows)

        def of_row(module: Any, row: tuple) -> Array:
            x, y, key = row
            return with_dropout(module, key, name)(x, y, kernel)

        y = by_row(modules, self.ids, of_row, (self.x, self.y, keys))
        bias = self.bias
        if any(module.of_bias(bias) is not bias for module in modules):
            rows = wide_bias(bias, self.y)
            bias = by_row(modules, self.ids, lambda module, row: module.of_bias(row), rows)
        return dataclasses.replace(self, y=y, kernel=None, bias=bias)

    @property
    def can_sort(self) -> bool:
        """True if tokens can be sorted by adapter: one device, same bias for rows, no dropout."""
        alike = self.bias is None or self.bias.ndim == 1
        return on_one_device() and self.y.ndim == 3 and alike and self.key is None

    def sorted(self, modules: Sequence[Any], chosen: Array) -> "DenseState":
        kernel, bias = self._kernel(), self.bias

        def of_tokens(module: Any, tokens: tuple) -> Array:
            x, y = tokens
            return module(x, y, kernel)

        y = by_token(modules, chosen, of_tokens, (self.x, self.y))
        changed = [module.of_bias(bias) for module in modules]
        if any(each is not bias for each in changed):
            zero = jnp.zeros(y.shape[-1:], jnp.float32)
            wide = jnp.stack([zero if each is None else zero + each for each in changed])
            y = y + (wide[chosen] - (zero if bias is None else bias))  # the state's bias is added
        return dataclasses.replace(self, y=y, kernel=None)


@dataclasses.dataclass(frozen=True)
class KernelState:
    """Kernel or bias of a dense layer while several adapters are merged into it."""

    kernel: Array | None
    bias: Array | None
    has_bias: bool

    @property
    def num_rows(self) -> int:
        """Property that always raises InputError, because a kernel has no batch rows."""
        raise InputError(
            "adapters that differ by row cannot be merged, because each row would need its own "
            "kernel"
        )

    def check_ids(self, block: Block) -> None:
        _ = self.num_rows

    def read(self) -> NoReturn:
        raise InputError(
            "a Route block cannot be merged, because each token would need its own kernel"
        )

    def after(self, module: Any, name: str) -> "KernelState":
        kernel = None if self.kernel is None else module.of_kernel(self.kernel)
        bias = module.of_bias(self.bias) if self.has_bias else None
        return KernelState(kernel, bias, self.has_bias)

    def where(self, kept: Array, other: "KernelState") -> "KernelState":
        def chosen(ours: Array | None, theirs: Array | None) -> Array | None:
            if theirs is ours or theirs is None:
                return theirs
            mask = kept.reshape(kept.shape + (1,) * (theirs.ndim - kept.ndim))
            return jnp.where(mask, theirs, 0.0 if ours is None else ours)

        kernel, bias = chosen(self.kernel, other.kernel), chosen(self.bias, other.bias)
        return KernelState(kernel, bias, self.has_bias)

    def mean(self, states: Sequence["KernelState"], weights: Sequence[float]) -> "KernelState":
        kernel = weighted_sum_of_some([state.kernel for state in states], weights)
        bias = weighted_sum_of_some([state.bias for state in states], weights)
        return KernelState(kernel, bias, self.has_bias)
