"""Adapters: frozen configs that build the modules for a model's slots.

    adapter = Lora(rank=8)
    modules = adapter.build(model, rngs=rngs)       # modules["encoder"]["attention"]["query"]
    attach(model, {"lora": modules})                # puts the modules into the model's slots

Adapter parameters are stored at adapters/NAME/STACK/SITE, for example
adapters/lora/encoder/attention/query/a. The paths of the model's own parameters do not change.
`t5x_lite.nn.slots` lists the site names.

A method consists of a subclass of `Adapter` and the `nnx.Module` that it puts into each slot. An
entry in `adapters.grammar.METHODS` gives the method its name in `adapters.add`, checkpoints and
deltas. Merging and deltas call `of_kernel` and `parts` of the module in a slot; a subclass that
computes another branch overrides these, too.
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
from t5x_lite.core import patterns as regular
from t5x_lite.core import trees
from t5x_lite.core.devices import LARGEST
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import check_bounds, did_you_mean
from t5x_lite.core.trees import Array, Batch, Key, Params, covers
from t5x_lite.layouts.base import ADAPTER_IDS
from t5x_lite.nn.bind import stacked
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import OutputHost, PositionHost, TokenHost

ADAPTERS = "adapters/"
"""Prefix of the paths of all adapter parameters."""

OF_MODEL = ("prompt", "invertible")
"""Sites of the model itself, outside of its layers."""


@dataclasses.dataclass(frozen=True)
class Site:
    """A position in the layers of a stack that can hold an adapter module.

    Attributes:
      stack: name of the stack.
      name: name of the site.
      dense: dense layer of the site; for a hidden site the layer that reads the hidden state, and
        for a site after a block the first dense layer of the stack.
      first: number of the stack's first layer; decoder layers are numbered after encoder layers.
      heads: number of attention heads at a site of keys and values, where `dense` is the key
        projection; None at other sites.
    """

    stack: str
    name: str
    dense: Dense
    first: int
    heads: int | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers in the stack."""
        return self.dense.kernel.shape[0]

    @property
    def d_model(self) -> int:
        """Input size of the dense layer."""
        return self.dense.kernel.shape[-2]


Factory = Callable[[Site, nnx.Rngs], nnx.Module]
"""Function (site, random streams) -> module of one layer."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapter:
    """Base of the adapters' configs.

    Attributes:
      name: name of the parameters below adapters/; lower-case letters, digits and "_".
      sites: names of the sites that get a module, or regular expressions that match site names;
        they apply to all stacks.
    """

    name: str
    sites: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                "the name of an adapter is lower-case letters, digits and _, a letter first: got "
                f"{shown(self.name)}"
            )
        if hasattr(AdapterModules, self.name):
            raise InputError(f"the adapter name {self.name!r} is reserved; choose another name")
        for field in dataclasses.fields(self):
            _check_number(field.name, getattr(self, field.name))
        check_bounds(self)
        check_patterns("sites", self.sites)
        if not self.sites:
            raise InputError(f"adapter {self.name!r} has no sites: give at least one")

    @property
    def unpackable(self) -> str:
        """Reason why each row must hold a single text; "" if rows may be packed."""
        return ""

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return patterns of the parameters to train: the adapter's own, and perhaps others.

        Args:
          paths: paths of all stored parameters, including the model's.
        """
        return (f"{ADAPTERS}{self.name}",)

    @property
    def router_balance(self) -> float | None:
        """Loss weight of the term that balances the adapter's own router; None without a router."""
        return None

    def scheduled(self, step: Array) -> dict[str, Array]:
        """Return parameters that are functions of the step, by path; they are not trained.

        Args:
          step: int32 scalar, steps taken.
        """
        return {}

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the adapter's modules for a model.

        Args:
          model: a model with `stacks()`; its arrays may be shapes only.
          rngs: random streams; "params" is used.

        Raises:
          InputError: if the model does not have the sites.
        """
        raise TypeError(f"{type(self).__name__} does not define build")

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """Return parameters, by path, that multiply the adapter's branch by a number.

        Raises:
          InputError: if the method does not support this.
        """
        raise InputError(f"the module {self.name} cannot be multiplied by {factor}")

    def joined(
        self, params: Mapping[str, Any], other: "Adapter", others: Mapping[str, Any]
    ) -> "tuple[Adapter, dict[str, Any]]":
        """Return an adapter and its parameters, by path, that compute the sum of two branches.

        Raises:
          InputError: if the method does not support this.
        """
        raise InputError(f"the modules {self.name} and {other.name} cannot be added")

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
        """Build a module for each site, stacked over the layers: stack -> site -> module.

        Args:
          model: as for `build`.
          dense: factory of one layer's module at a dense layer. Kinds of sites without a factory
            are skipped.
          hidden: factory for the input of a block's last layer.
          block: factory for the position after a block.
          key: factory for the keys and values of an attention.
          sites: patterns to use instead of the config's own.
          where: predicate that selects among the sites that the patterns match.
          rngs: random streams; "params" is used.

        Raises:
          InputError: if a pattern matches no site of these kinds.
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
                    f"adapter {shown(self.name)}: no site is called {shown(pattern)}"
                    f"{did_you_mean(pattern, there)}; the sites are {', '.join(there)}"
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
    """Yield each site of the kinds that have a factory, together with its factory."""
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
    """Return the name of the dense layer that reads the hidden state of a site."""
    return f"{site.removesuffix('hidden')}out"


class AdapterModules(nnx.Module):
    """Modules of several adapters by name, and the trained layers of their composition.

    Args:
      adapters: configs of the adapters.
      model: model that the modules are built for.
      use: composition trees, which must not share a site; () uses each adapter by itself.
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
        """Put the modules into the slots of the model, in place.

        Raises:
          InputError: if two modules claim the same site.
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

    def attach_output(self, model: nnx.Module, head: Any) -> None:
        """Put the inverse of the model's invertible adapter into the head, in place."""
        if isinstance(model, TokenHost) and isinstance(head, OutputHost):
            head.inverse = model.invertible

    def _slot(self, tree: str | Block, stack: str, site: str, layers: range) -> nnx.Module:
        """Return the module of a site, or the tree that composes the modules of the site."""
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
        """Put the child index of each row of a batch into the slots, in place.

        Args:
          model: model with modules in its slots.
          ids: `adapter_ids` of the B rows; if None, nothing changes.
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
        """Return the batch as the model reads it, and put its `adapter_ids` into the slots.

        Args:
          models: the model and its towers, with modules in their slots.
          batch: features of the rows; Parallel repeats them, child after child.
          keep_ids: True if the loss reads `adapter_ids`, too. Under Parallel, a row of child i
            keeps its id only if the id is i; all other ids become -1, for no task.
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
        """Number of copies of a batch, child after child, that Parallel makes; 1 without it."""
        return parallel_of(self._use)

    def penalties(self) -> dict[str, tuple[Array, float]]:
        """Return the loss terms that adapters add in training: name -> (value, scale)."""
        each = {name: modules.penalty() for name, modules in self._modules().items()}
        found = {f"{name}_penalty": (x, 1.0) for name, x in each.items() if x is not None}
        if hasattr(self, "fusion"):  # |I - Wv|^2
            found["fusion_penalty"] = (self.fusion.penalty(), REGULARISATION)
        return found

    def check(self) -> None:
        """Raise InputError if two trees share a site, or a block has a module it cannot compose."""
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
                raise InputError(f"{path_of(above, node)} {why}: name it outside of blocks")
        taken: set[str] = set()
        for tree in self._use:
            own: set[str] = set()
            for name in names_of((tree,)):
                for place in getattr(self, name).claims():
                    if place in taken:
                        raise InputError(
                            f"adapter {name!r} and another one both use the site {place}: remove "
                            "one from --adapters.use, compose them, as Stack(a, b), or give "
                            "them other sites"
                        )
                    own.add(place)
            taken |= own

    def check_sum(self, rest: Sequence[Adapter]) -> None:
        """Raise InputError if the composition is not a sequence of changes of the model's arrays.

        Args:
          rest: adapters that no kernel can absorb.
        """
        blocks = [node for node in self._nodes() if isinstance(node, Block)]
        other = next((block for block in blocks if rest or not isinstance(block, Stack)), None)
        if other is not None:
            raise InputError(
                f"{other} cannot be folded into a model's arrays: it uses a block other than "
                "Stack, or an adapter that no kernel can absorb; name adapters by --adapters.use"
            )

    def _places(self) -> dict[str, tuple[tuple[str, str], ...]]:
        return {name: modules.places for name, modules in self._modules().items()}

    def _modules(self) -> dict[str, Modules]:
        return {name: getattr(self, name) for name in self._names}

    def copied(self) -> tuple[str, ...]:
        """Return the paths of the model's arrays that adapters replace."""
        return tuple(path for modules in self._modules().values() for path in modules.copied())

    def read(self, model: Params, *, key: Key | None = None) -> Params:
        """Return a model's parameters, with the arrays of adapters that replace some of them.

        Args:
          model: nested parameters; arrays in their stored dtype.
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
        """Return the names, with adapters that mask arrays after adapters that add to them."""
        return sorted(self._names, key=lambda name: getattr(self, name).masks_arrays)

    def num_unused(self, name: str) -> int:
        """Return the number of an adapter's values that narrower or skipped layers do not use."""
        return getattr(self, name).num_unused()


def at_step(adapters: Sequence[Adapter]) -> Callable[[Array], dict[str, Array]] | None:
    """Return a function: steps taken -> scheduled parameters by path; None without adapters."""
    if not adapters:
        return None
    return lambda step: {path: x for one in adapters for path, x in one.scheduled(step).items()}


def by_name(adapters: Iterable[Adapter]) -> dict[str, Adapter]:
    """Return adapters by name.

    Raises:
      InputError: if two have the same name.
    """
    found: dict[str, Adapter] = {}
    for adapter in adapters:
        if adapter.name in found:
            raise InputError(f"two adapters are called {adapter.name}: give one another name")
        found[adapter.name] = adapter
    return found


_SMALLEST = 1e-38
"""Values other than 0 must be larger than this, and smaller than its inverse, to fit float32."""


def _check_number(field: str, value: object) -> None:
    """Raise InputError for a number, or one in a tuple, that neither int32 nor float32 holds."""
    if isinstance(value, tuple):
        for each in value:
            _check_number(field, each)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise InputError(f"{field} must be at most {LARGEST:,}, got {shown(value)}")
    elif isinstance(value, float) and 0 < abs(value) <= _SMALLEST:
        raise InputError(f"{field} must be 0 or above {_SMALLEST:g}, got {value}")
    elif isinstance(value, float) and math.isfinite(value) and abs(value) >= 1 / _SMALLEST:
        raise InputError(f"{field} must be below {1 / _SMALLEST:g}, got {value}")


def check_patterns(field: str, patterns: Iterable[str]) -> None:
    """Raise InputError, with the name of the field, for an invalid regular expression."""
    for pattern in patterns:
        regular.check(field, pattern)
