"""Adapters: frozen configs that build small trained modules and put them into a model's layers.

    adapter = Lora(rank=8)
    modules = adapter.build(model, rngs=rngs)       # modules["encoder"]["attention"]["query"]
    attach(model, {"lora": modules})                # puts the modules into the model's layers

Adapter parameters are stored at adapters/NAME/STACK/SITE, for example
adapters/lora/encoder/attention/query/a. The paths of the model's own parameters do not change. A
site is a named position in the layers of a model; `t5x_lite.nn.slots` lists the names.

An adapter method consists of a subclass of `Adapter` and the `nnx.Module` that it builds for each
site. An entry in `adapters.grammar.METHODS` gives the method its name in `adapters.add`,
checkpoints and deltas. Merging and deltas call `of_kernel` and `parts` of this module; a subclass
with another computation must override both.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_lite.adapters.adapter_tree import (
    REGULARISATION,
    BlockLayers,
    Modules,
    SlotTree,
    check_layers,
    check_places,
    check_tasks,
    layers_of,
    places_of,
    stacks_of,
    tree_class,
)
from t5x_lite.adapters.composition import (
    Block,
    MultiTask,
    Stack,
    check_nesting,
    names_of,
    parallel_of,
    path_of,
    trained_of,
    walk,
)
from t5x_lite.adapters.evaluation import check_numbers
from t5x_lite.core import trees
from t5x_lite.core import trees as regular
from t5x_lite.core.devices import LARGEST
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import check_bounds, did_you_mean
from t5x_lite.core.trees import Array, Batch, Key, Params, covers
from t5x_lite.layouts.base import ADAPTER_IDS
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import OutputHost, PositionHost, TokenHost, stacked

ADAPTERS = "adapters/"
"""Prefix of the paths of all adapter parameters."""

OF_MODEL = ("prompt", "invertible")
"""Adapter sites outside of the layers: before and after an encoder's embeddings."""


@dataclasses.dataclass(frozen=True)
class Site:
    """Position in the layers of an encoder or decoder that can hold an adapter module.

    Attributes:
      stack: "encoder" or "decoder".
      name: name of the position, such as "attention/query" or "after_mlp".
      dense: dense layer of the model, stacked over layers, with the adapter's input size.
      first: number of the first layer of `stack`; decoder layers are numbered after encoder layers.
      heads: number of attention heads at a position for prefixes; None at other positions.
    """

    stack: str
    name: str
    dense: Dense
    first: int
    heads: int | None = None

    @property
    def num_layers(self) -> int:
        return self.dense.kernel.shape[0]

    @property
    def d_model(self) -> int:
        return self.dense.kernel.shape[-2]


Factory = Callable[[Site, nnx.Rngs], nnx.Module]
"""Function (adapter site, random streams) -> adapter module of one layer."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapter:
    """Base class of the adapter configs, such as `Lora`.

    Attributes:
      name: name of the adapter; its parameters are at adapters/NAME. Lower-case letters, digits and
        "_".
      sites: names of the layer positions that get an adapter module, such as "mlp/out", or regular
        expressions for such names; they apply to encoder and decoder.
    """

    name: str
    sites: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"adapter name {shown(self.name)} is invalid; use lower-case letters, digits and "
                "_, beginning with a letter"
            )
        if hasattr(AdapterModules, self.name):
            raise InputError(f"the adapter name {self.name!r} is reserved; choose another name")
        for field in dataclasses.fields(self):
            _check_number(field.name, getattr(self, field.name))
        check_bounds(self)
        check_patterns("sites", self.sites)
        if not self.sites:
            raise InputError(f"adapter {self.name!r}: option sites is empty; set at least one site")

    @property
    def unpackable(self) -> str:
        """Reason why packed rows are not supported; "" if they are supported."""
        return ""

    @property
    def has_frozen(self) -> bool:
        """True if some parameters of the adapter are not trained."""
        return False

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return regular expressions for the parameter paths that this adapter trains.

        Args:
          paths: paths of all stored parameters, including the paths of the model's parameters.
        """
        return (f"{ADAPTERS}{self.name}",)

    @property
    def router_balance(self) -> float | None:
        """Loss weight of load balancing for the adapter's router; None without a router."""
        return None

    def scheduled(self, step: Array) -> dict[str, Array]:
        """Return the values of untrained parameters that follow a schedule, by path.

        Args:
          step: int32 scalar, number of completed training steps.
        """
        return {}

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the adapter's modules for all layers of a model.

        Args:
          model: model with a method `stacks`; its arrays may be jax.ShapeDtypeStructs.
          rngs: Flax random streams; "params" is used.

        Raises:
          InputError: if the model lacks a layer position of `sites`.
        """
        raise TypeError(f"class {type(self).__name__} does not define the method build")

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """Multiply the adapter's output by a factor, and return the new parameters by path.

        Raises:
          InputError: if the adapter method does not support scaling.
        """
        raise InputError(
            f"adapter {self.name} cannot be multiplied by {factor}: its method does not support "
            "scaling"
        )

    def joined(
        self, params: Mapping[str, Any], other: "Adapter", others: Mapping[str, Any]
    ) -> "tuple[Adapter, dict[str, Any]]":
        """Add two adapters, and return the config and parameters of the sum.

        Raises:
          InputError: if the adapter method does not support addition.
        """
        raise InputError(
            f"adapters {self.name} and {other.name} cannot be added: their method does not "
            "support addition"
        )

    def at_sites(
        self,
        model: nnx.Module,
        *,
        dense: Factory | None = None,
        hidden: Factory | None = None,
        block: Factory | None = None,
        key: Factory | None = None,
        sites: Sequence[str] | None = None,
        where: Callable[[Site], bool] = lambda site: True,
        rngs: nnx.Rngs,
    ) -> dict[str, dict[str, nnx.Module]]:
        """Build the adapter modules of all layers of a model.

        Args:
          model: model with a method `stacks`.
          dense: function (site, rngs) -> module at a dense layer; None builds no such modules.
          hidden: like `dense`, for modules at the input of a block's last dense layer.
          block: like `dense`, for modules at the output of an attention or feed-forward block.
          key: like `dense`, for modules at the keys and values of an attention layer.
          sites: names of layer positions, or regular expressions; None uses the adapter's `sites`.
          where: function that returns False for each layer position to skip.
          rngs: random streams; "params" is used.

        Raises:
          InputError: if an entry of `sites` matches no layer position.
        """
        patterns = self.sites if sites is None else tuple(sites)
        found: dict[str, dict[str, nnx.Module]] = {}
        there: dict[str, None] = {}
        for site, module in _sites(model, dense=dense, hidden=hidden, block=block, key=key):
            there[site.name] = None
            if any(covers(pattern, site.name) for pattern in patterns) and where(site):
                found.setdefault(site.stack, {})[site.name] = stacked(
                    lambda rngs, site=site, module=module: module(site, rngs),
                    rngs,
                    num=site.num_layers,
                )
        for pattern in patterns:
            if not any(covers(pattern, site) for site in there):
                raise InputError(
                    f"adapter {shown(self.name)}: the model has no adapter site "
                    f"{shown(pattern)}{did_you_mean(pattern, there)}; the adapter sites are "
                    f"{', '.join(there)}"
                )
        return found


def _sites(
    model: Any,
    *,
    dense: Factory | None,
    hidden: Factory | None,
    block: Factory | None,
    key: Factory | None,
) -> Iterator[tuple[Site, Factory]]:
    stacks = stacks_of(model)
    numbers = layers_of(stacks)
    for stack, layers in stacks.items():
        there: dict[str, Dense] = layers.dense_sites()
        first, before = next(iter(there.values())), numbers[stack].start
        for factory, hosts in (
            (dense, there),
            (hidden, {site: there[reader_of(site)] for site in layers.hidden_sites()}),
            (block, dict.fromkeys(layers.block_sites(), first)),
        ):
            if factory is not None:
                for name, host in hosts.items():
                    yield Site(stack, name, host, before), factory
        if key is not None:
            for name, attention in layers.key_sites().items():
                host = there[f"{name.removesuffix('prefix')}key"]
                yield Site(stack, name, host, before, attention.num_heads), key


def reader_of(site: str) -> str:
    """Return the dense layer that reads a hidden state, such as "mlp/out" for "mlp/hidden"."""
    return f"{site.removesuffix('hidden')}out"


class AdapterModules(nnx.Module):
    """Modules of several adapters by name, and the trained layers of their composition.

    Args:
      adapters: configs of the adapters.
      model: model that the modules are built for.
      use: compositions of adapters, such as Stack(a, b); two compositions must not use the same
        layer position. () uses each adapter without composition.
      rngs: random streams; "params" is used.
    """

    fusion: BlockLayers  # set if the composition has a Fuse

    def __init__(
        self,
        adapters: Sequence[Adapter],
        model: nnx.Module,
        *,
        use: Sequence[str | Block] = (),
        rngs: nnx.Rngs,
    ):
        self._kinds = tuple((name, type(one).__name__) for name, one in by_name(adapters).items())
        self._names = tuple(name for name, _ in self._kinds)
        self._use = tuple(use) or self._names
        for adapter in adapters:
            setattr(self, adapter.name, adapter.build(model, rngs=rngs))
        for part, blocks in trained_of(self._use).items():
            check_places(self._use, self._places(), dict(self._kinds))
            setattr(self, part, BlockLayers(blocks, self._places(), stacks_of(model), rngs=rngs))

    def attach(self, model: nnx.Module) -> None:
        """Put the adapter modules into the layers of the model, in place.

        Raises:
          InputError: if two adapters use the same position in the layers.
        """
        self.check()
        stacks, places = stacks_of(model), self._places()
        layers = layers_of(stacks)
        check_layers(self._use, layers)
        for modules in self._modules().values():
            modules.complete()
            modules.meet(stacks)
            if modules.num_before and isinstance(model, PositionHost):
                model.num_before = modules.num_before
        for tree in self._use:
            for stack, site in places_of(tree, places):
                host_layers = stacks[stack]
                hosts = {**host_layers.dense_sites(), **host_layers.hidden_sites()}
                host, slot = (hosts[site], "slot") if site in hosts else (host_layers, site)
                if site in host_layers.key_sites():
                    host, slot = host_layers.key_sites()[site], "prefix"
                if site in OF_MODEL:
                    host, slot = model, site
                setattr(host, slot, self._slot(tree, stack, site, layers[stack]))

    def set_starts(self, model: nnx.Module) -> None:
        """Set new parameters that depend on the base model's weights, in place."""
        for modules in self._modules().values():
            modules.start(stacks_of(model))

    def attach_output(self, model: nnx.Module, head: Any) -> None:
        """Connect the model's invertible adapter to the output head, in place."""
        if isinstance(model, TokenHost) and isinstance(head, OutputHost):
            head.inverse = model.invertible

    def _slot(self, tree: str | Block, stack: str, site: str, layers: range) -> nnx.Module:
        if isinstance(tree, str):
            return getattr(self, tree).at(stack, site)
        names = [n for n in names_of((tree,)) if (stack, site) in getattr(self, n).places]
        leaves = {name: getattr(self, name).at(stack, site) for name in names}
        own = {
            block.key: getattr(self, part).at(title, stack, site)
            for part, blocks in trained_of((tree,)).items()
            for title, block in blocks.items()
            if getattr(self, part).stands_at(title, stack, site)
        }
        return tree_class(site)(tree, leaves, own, layers=layers)

    def see(self, model: nnx.Module, ids: Array | None) -> None:
        """Store the index of each batch row's adapter in the model's adapter modules.

        Args:
          model: model with attached adapter modules.
          ids: batch feature `adapter_ids`, the index of the composed adapter for each row; if
            None, nothing changes.
        """
        blocks = [node for node in self._nodes() if isinstance(node, MultiTask)]
        if ids is None or not blocks:
            return
        for block in blocks:
            check_numbers(block, ids)
        for layers in stacks_of(model).values():
            hosts = (*layers.dense_sites().values(), *layers.hidden_sites().values())
            slots = [host.slot for host in hosts]
            slots += [getattr(layers, site) for site in layers.block_sites()]
            for slot in slots:
                if isinstance(slot, SlotTree):
                    slot.see(jnp.reshape(ids, (-1,)))

    def of_batch(
        self, models: Sequence[nnx.Module], batch: Batch, *, keep_ids: bool = False
    ) -> Batch:
        """Store the batch's `adapter_ids` in the adapter modules, and return the other features.

        Args:
          models: models with attached adapter modules.
          batch: batch features; a Parallel composition repeats the rows once for each adapter.
          keep_ids: True to keep `adapter_ids` in the returned batch, for the loss.
        """
        if self.repeats > 1:
            batch = {name: jnp.concatenate([x] * self.repeats) for name, x in batch.items()}
        ids = batch.get(ADAPTER_IDS)
        for model in models:
            self.see(model, ids)
        seen = {name: x for name, x in batch.items() if name != ADAPTER_IDS}
        if not keep_ids or ids is None:
            return seen
        if self.repeats > 1:
            flat = jnp.reshape(ids, (-1,))
            child = jnp.repeat(jnp.arange(self.repeats), len(flat) // self.repeats)
            ids = jnp.where(flat == child, flat, -1)
        return {**seen, ADAPTER_IDS: ids}

    def _nodes(self) -> list[str | Block]:
        return [node for tree in self._use for node, _ in walk(tree)]

    @property
    def repeats(self) -> int:
        """Number of copies of the batch that a Parallel composition makes; 1 without Parallel."""
        return parallel_of(self._use)

    def penalties(self) -> dict[str, tuple[Array, float]]:
        """Return each adapter's regularization loss with its weight in the total loss, by name."""
        each = {name: modules.penalty() for name, modules in self._modules().items()}
        found = {f"{name}_penalty": (x, 1.0) for name, x in each.items() if x is not None}
        if hasattr(self, "fusion"):  # |I - Wv|^2
            found["fusion_penalty"] = (self.fusion.penalty(), REGULARISATION)
        return found

    def check(self) -> None:
        """Raise InputError if adapters use the same layer positions or cannot be composed."""
        check_nesting(self._use)
        check_tasks(self._use, self._modules())
        check_places(self._use, self._places(), dict(self._kinds))
        for node, above in (pair for tree in self._use for pair in walk(tree)):
            if not isinstance(node, str) or not above:
                continue
            why = getattr(self, node).alone
            if getattr(self, node).copied():
                why = "replaces arrays of the model, which no block can compose"
            if why:
                raise InputError(f"adapter {path_of(above, node)} {why}; use it outside of blocks")
        taken: set[str] = set()
        for tree in self._use:
            own: set[str] = set()
            for name in names_of((tree,)):
                for place in getattr(self, name).claims():
                    if place in taken:
                        raise InputError(
                            f"adapter {name!r} and another adapter both use the site {place}; "
                            "remove one of them from --adapters.use, compose them as Stack(a, b), "
                            "or set different sites"
                        )
                    own.add(place)
            taken |= own

    def check_sum(self, rest: Sequence[Adapter]) -> None:
        """Raise InputError if the adapters cannot be merged into the model's arrays."""
        blocks = [node for node in self._nodes() if isinstance(node, Block)]
        other = next((block for block in blocks if rest or not isinstance(block, Stack)), None)
        if other is not None:
            raise InputError(
                f"composition {other} cannot be merged into the model's arrays, because it has a "
                "block other than Stack or an adapter that cannot be merged; select other adapters "
                "with --adapters.use"
            )

    def _places(self) -> dict[str, tuple[tuple[str, str], ...]]:
        return {name: modules.places for name, modules in self._modules().items()}

    def _modules(self) -> dict[str, Modules]:
        return {name: getattr(self, name) for name in self._names}

    def copied(self) -> tuple[str, ...]:
        """Return the paths of the model arrays that adapters replace."""
        return tuple(path for modules in self._modules().values() for path in modules.copied())

    def read(self, model: Params, *, key: Key | None = None) -> Params:
        """Return the model's parameters, with some arrays replaced by adapters.

        Args:
          model: nested model parameters in their stored dtype.
          key: random key of a training step; None outside of training.
        """
        if not self.copied():
            return model
        flat = trees.flatten(model)
        for name in self.in_order():
            number = self._names.index(name)
            own = None if key is None else jax.random.fold_in(key, number)
            flat |= getattr(self, name).read(flat, key=own)
        return trees.unflatten(flat)

    def in_order(self) -> list[str]:
        """Return the adapter names in order of application; adapters that mask arrays are last."""
        return sorted(self._names, key=lambda name: getattr(self, name).masks_arrays)

    def num_unused(self, name: str) -> int:
        """Return the number of padding values in the arrays of an adapter."""
        return getattr(self, name).num_unused()


def at_step(adapters: Sequence[Adapter]) -> Callable[[Array], dict[str, Array]] | None:
    """Return a function that computes the scheduled parameters of all adapters at a step."""
    if not adapters:
        return None
    return lambda step: {path: x for one in adapters for path, x in one.scheduled(step).items()}


def by_name(adapters: Iterable[Adapter]) -> dict[str, Adapter]:
    found: dict[str, Adapter] = {}
    for adapter in adapters:
        if adapter.name in found:
            raise InputError(f"two adapters are called {adapter.name}; rename one of them")
        found[adapter.name] = adapter
    return found


_SMALLEST = 1e-38
"""Minimum magnitude of nonzero numbers in float32; the maximum is its inverse."""


def _check_number(field: str, value: object) -> None:
    if isinstance(value, tuple):
        for each in value:
            _check_number(field, each)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise InputError(f"option {field} must be at most {LARGEST:,}, got {shown(value)}")
    elif isinstance(value, float) and 0 < abs(value) <= _SMALLEST:
        raise InputError(
            f"option {field} must be 0, or above {_SMALLEST:g} in magnitude, got {value}"
        )
    elif isinstance(value, float) and math.isfinite(value) and abs(value) >= 1 / _SMALLEST:
        raise InputError(
            f"option {field} must be below {1 / _SMALLEST:g} in magnitude, got {value}"
        )


def check_patterns(field: str, patterns: Iterable[str]) -> None:
    """Raise InputError with the field's name if a pattern is an invalid regular expression."""
    for pattern in patterns:
        regular.check(field, pattern)
