"""Modules as part of kernels, as parts of a delta, and several in one (`Union`).

Modules become part of a model's kernels, where a kernel can do what they do.

Adapters as parts of a delta: what they change of the kernels and biases beside which they stand.

A module that stands beside a dense layer says so itself, by `parts`:

    LowRankBranch.parts()        {"kernel": LowRank(a, b, scale)}

and an adapter of which each module does is no more than these parts. All others, such as
bottlenecks, stay modules: no kernel can hold them.

A union: one module of several methods, as "m = seq_bn(reduction=16) + lora(r=8)".

Its methods stand at different sites: two at one site are refused, whatever their other sites are.
(The library `adapters` refuses two methods only where both sites of a layer meet, and not at all
where a layer is left out.) Parameters are at adapters/NAME/METHOD/STACK/SITE, METHOD being the
method's class in small letters, with a number from the second of its class on.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_lite.adapters.adapter_tree import Modules as adapter_tree_Modules
from t5x_lite.adapters.adapter_tree import stacks_of
from t5x_lite.adapters.base import OF_MODEL, Adapter, AdapterModules, Modules, reader_of
from t5x_lite.adapters.delta_parts import Part
from t5x_lite.adapters.whole_arrays import ArrayAdapter
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.bind import split
from t5x_lite.nn.slots import TokenHost


def merge(model: nnx.Module) -> None:
    """Adds what stands in slots to the kernels, and empties the slots; in place.

    Raises:
      InputError: a slot holds what no kernel can: an adapter after a block, or a prefix.
    """
    if isinstance(model, TokenHost):
        for site, slot in zip(OF_MODEL, (model.prompt, model.invertible), strict=True):
            if slot is not None:
                raise InputError(f"the adapter at {site} cannot be merged into the model's kernels")
    for stack, layers in stacks_of(model).items():
        full = [site for site in layers.block_sites() if getattr(layers, site) is not None]
        full += [site for site, host in layers.key_sites().items() if host.prefix is not None]
        if full:
            raise InputError(
                f"the adapter at {stack}/{full[0]} cannot be merged into the model's kernels"
            )
        dense_sites = layers.dense_sites()
        for site, dense in dense_sites.items():
            if dense.slot is not None:
                bias = dense.effective_bias()
                if bias is not None and not dense.has_bias:
                    raise InputError(
                        f"the adapter at {stack}/{site} cannot be merged: the model has no bias"
                    )
                dense.kernel[...] = dense.effective_kernel()
                if bias is not None:
                    dense.bias[...] = bias
                dense.slot = None
        for site, host in layers.hidden_sites().items():
            if host.slot is not None:
                reader = dense_sites[reader_of(site)]
                reader.kernel[...] = host.slot.of_kernel(reader.kernel[...])
                host.slot = None


@runtime_checkable
class HasParts(Protocol):
    """A module beside a dense layer that is a change of its arrays."""

    def parts(self) -> dict[str, Part]:
        """Name of the host's array, kernel or bias -> part."""
        ...


def delta_form(
    modules: AdapterModules, adapters: Sequence[Adapter], model: nnx.Module
) -> tuple[dict[str, Part], tuple[Adapter, ...]]:
    """The changes that adapters make to a model.

    Args:
      modules: with their parameters.
      adapters: their configs.
      model: with `stacks()`; shapes are enough.

    Returns:
      path in the model -> part, and the adapters that stay modules.

    Raises:
      InputError: two change one array in an order that their kinds do not have; or they are
        composed by a block other than Stack.
    """
    places = {id(node): "/".join(map(str, path)) for path, node in nnx.iter_graph(model)}
    stacks, parts, rest = stacks_of(model), {}, []
    shapes = {path: tuple(x.shape) for path, x in trees.flatten(split(model)[1]).items()}
    configs = {adapter.name: adapter for adapter in adapters}
    for adapter in (configs[name] for name in modules.in_order()):
        its_modules = getattr(modules, adapter.name)
        own = _parts_of(its_modules, stacks, places)
        if own is None:
            rest.append(adapter)
            continue
        for path, part in (*its_modules.array_parts(shapes).items(), *own):
            parts[path] = parts[path].then(part) if path in parts else part
    modules.check_sum(rest)
    return parts, tuple(rest)


def _parts_of(
    modules: Modules, stacks: dict[str, Any], places: dict[int, str]
) -> list[tuple[str, Part]] | None:
    """The parts of one adapter by path; None where a module of it has none."""
    found = []
    for stack, site in modules.places:
        layers, module = stacks[stack], modules.at(stack, site)
        hosts = layers.dense_sites()
        if (
            site in layers.hidden_sites()
        ):  # what scales the hidden states scales rows of their reader
            hosts = {site: hosts[f"{site.removesuffix('hidden')}out"]}
        if site not in hosts or not isinstance(module, HasParts):
            return None
        dense = hosts[site]
        for name, part in module.parts().items():
            if name != "bias" or dense.has_bias:
                found.append((f"{places[id(dense)]}/{name}", part))
            elif part.additive:
                return None
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Union(Adapter):
    """Several methods under one name.

    Attributes:
      sites: of all methods, which have their own.
      members: their configs; all have the union's name.
    """

    name: str = "union"
    sites: tuple[str, ...] = (".*",)
    members: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.members) < 2:
            raise InputError("a union has two methods or more")
        if any(isinstance(member, Union) for member in self.members):
            raise InputError("a union has methods, and no unions")
        for member in self.members:
            if isinstance(member, ArrayAdapter):
                raise InputError(
                    f"{type(member).__name__.lower()} changes whole arrays of the model, and is "
                    "in no union: make a module of its own of it"
                )
        named = tuple(dataclasses.replace(member, name=self.name) for member in self.members)
        object.__setattr__(self, "members", named)

    @property
    def unpackable(self) -> str:
        """Why a method cannot have packed rows."""
        return next((why for member in self.members if (why := member.unpackable)), "")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """What the methods train."""
        paths = tuple(paths)
        meant = [each for member in self.members for each in member.trains(paths)]
        return tuple(dict.fromkeys(meant))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> adapter_tree_Modules:
        """Makes the modules of all methods.

        Raises:
          InputError: two stand at one site.
        """
        return UnionModules(
            self.name,
            [type(member).__name__.lower() for member in self.members],
            [member.build(model, rngs=rngs) for member in self.members],
        )


class UnionModules(adapter_tree_Modules):
    """The modules of several methods.

    Args:
      name: of the union.
      methods: the methods' names.
      members: their modules.

    Raises:
      InputError: two stand at one site.
    """

    def __init__(self, name: str, methods: Sequence[str], members: Sequence[adapter_tree_Modules]):
        super().__init__()
        times: Counter[str] = Counter()
        names, taken = [], {}
        for method, modules in zip(methods, members, strict=True):
            times[method] += 1
            names.append(f"{method}_{times[method]}" if times[method] > 1 else method)
            setattr(self, names[-1], modules)
            for place in modules.claims():
                if place in taken:
                    raise InputError(
                        f"the union {name} has {taken[place]} and {names[-1]} at {place}: give "
                        "them other sites, or make two modules and Stack them"
                    )
                taken[place] = names[-1]
        self.methods = tuple(names)
        self.places = tuple(place for modules in members for place in modules.places)

    def _members(self) -> list[adapter_tree_Modules]:
        return [getattr(self, method) for method in self.methods]

    def complete(self) -> None:
        """Puts into each module what is not stored with it; in place."""
        for modules in self._members():
            modules.complete()

    def claims(self) -> tuple[str, ...]:
        """The places of all."""
        return tuple(place for modules in self._members() for place in modules.claims())

    def copied(self) -> tuple[str, ...]:
        """Paths of the model's arrays in whose place one of them has others."""
        return tuple(path for modules in self._members() for path in modules.copied())

    def read(self, model: Mapping[str, Any], *, key: Key | None = None) -> dict[str, Any]:
        """The arrays that stand in place of some of the model's, by path.

        Args:
          model: its arrays by path.
          key: of what is drawn in training.
        """
        made: dict[str, Any] = {}
        for number, modules in enumerate(self._members()):
            own = None if key is None else jax.random.fold_in(key, number)
            made |= modules.read({**model, **made}, key=own)
        return made

    def penalty(self) -> Array | None:
        """The sum of the methods' penalties."""
        each = [x for modules in self._members() if (x := modules.penalty()) is not None]
        return sum(each, jnp.float32(0)) if each else None

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        """Changes of the model's arrays that are made in no slot, by the arrays' paths.

        Args:
          shapes: path -> the shape of the model's array.
        """
        made: dict[str, Part] = {}
        for modules in self._members():
            made |= modules.array_parts(shapes)
        return made

    def num_unused(self) -> int:
        """Numbers that nothing reads."""
        return sum(modules.num_unused() for modules in self._members())

    def at(self, stack: str, site: str) -> Any:
        """The module of a place."""
        for modules in self._members():
            if (stack, site) in modules.places:
                return modules.at(stack, site)
        raise KeyError((stack, site))
