"""Merging of adapters into kernels, conversion of adapters to deltas, and unions of methods.

`merge` adds adapters to a model's kernels, if changed kernels can replace them.

`delta_form` converts adapters to delta parts, which are changes of kernels and biases. The method
`parts` of an adapter module returns its changes of a dense layer:

    LowRankBranch.parts()        {"kernel": LowRank(a, b, scale)}

An adapter is converted if all its modules have `parts`. Other adapters, such as bottlenecks, are
kept as adapters, because no kernel can absorb them.

`Union` joins several methods in one adapter, such as "m = seq_bn(reduction=16) + lora(r=8)". Two
methods must not share a site (a position in the layers). (The library `adapters` rejects two
methods only if they share both sites of a layer, and never in layers that are skipped.) Parameters
are at adapters/NAME/METHOD/STACK/SITE. METHOD is the lower-case name of the method's class; the
second and later methods of a class get a number.
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
    """Merge all adapters of a model into its kernels and biases, in place.

    Raises:
      InputError: if an adapter cannot be merged into kernels, such as a bottleneck or a prefix.
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
                        f"the adapter at {stack}/{site} adds a bias and cannot be merged, because "
                        "this layer of the model has no bias"
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
    """Protocol of adapter modules that change the kernel or bias of one dense layer."""

    def parts(self) -> dict[str, Part]:
        """Return the changes of the dense layer, as "kernel" or "bias" -> delta part."""
        ...


def delta_form(
    modules: AdapterModules, adapters: Sequence[Adapter], model: nnx.Module
) -> tuple[dict[str, Part], tuple[Adapter, ...]]:
    """Convert adapters to changes of the model's kernels and biases, where this is possible.

    Args:
      modules: adapter modules with their parameters.
      adapters: configs of the adapters.
      model: model with a method `stacks`; its arrays may be jax.ShapeDtypeStructs.

    Returns:
      Changes (delta parts) by path in the model, and the configs of the adapters that cannot be
      converted.

    Raises:
      InputError: if two adapters change one array in an unsupported order, or are composed by other
        means than Stack.
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
    """Return the array changes of one adapter by path; None if it cannot be converted."""
    found = []
    for stack, site in modules.places:
        layers, module = stacks[stack], modules.at(stack, site)
        hosts = layers.dense_sites()
        if (
            site in layers.hidden_sites()
        ):  # a scale of the hidden states scales rows of the layer that reads them
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
    """Configuration of several adapter methods under one name, such as bottleneck plus LoRA.

    Attributes:
      sites: unused; each method has its own layer positions.
      members: configs of the methods, all with the name of the union.
    """

    name: str = "union"
    sites: tuple[str, ...] = (".*",)
    members: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.members) < 2:
            raise InputError("a union needs at least two methods")
        if any(isinstance(member, Union) for member in self.members):
            raise InputError("a union must not contain another union")
        for member in self.members:
            if isinstance(member, ArrayAdapter):
                raise InputError(
                    f"method {type(member).__name__.lower()} changes whole arrays of the model "
                    "and cannot be part of a union; use it as a separate adapter"
                )
        named = tuple(dataclasses.replace(member, name=self.name) for member in self.members)
        object.__setattr__(self, "members", named)

    @property
    def unpackable(self) -> str:
        return next((why for member in self.members if (why := member.unpackable)), "")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        paths = tuple(paths)
        meant = [each for member in self.members for each in member.trains(paths)]
        return tuple(dict.fromkeys(meant))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> adapter_tree_Modules:
        """Build the modules of all methods.

        Raises:
          InputError: if two methods share a site.
        """
        return UnionModules(
            self.name,
            [type(member).__name__.lower() for member in self.members],
            [member.build(model, rngs=rngs) for member in self.members],
        )


class UnionModules(adapter_tree_Modules):
    """Adapter modules of a union of several methods.

    Args:
      name: name of the union.
      methods: names of the methods.
      members: modules of the methods.

    Raises:
      InputError: if two methods share a site.
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
                        f"union {name} has both {taken[place]} and {names[-1]} at the site "
                        f"{place}; set different sites, or use two adapters in a Stack"
                    )
                taken[place] = names[-1]
        self.methods = tuple(names)
        self.places = tuple(place for modules in members for place in modules.places)

    def _members(self) -> list[adapter_tree_Modules]:
        return [getattr(self, method) for method in self.methods]

    def complete(self) -> None:
        for modules in self._members():
            modules.complete()

    def claims(self) -> tuple[str, ...]:
        return tuple(place for modules in self._members() for place in modules.claims())

    def copied(self) -> tuple[str, ...]:
        return tuple(path for modules in self._members() for path in modules.copied())

    def read(self, model: Mapping[str, Any], *, key: Key | None = None) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for number, modules in enumerate(self._members()):
            own = None if key is None else jax.random.fold_in(key, number)
            made |= modules.read({**model, **made}, key=own)
        return made

    def penalty(self) -> Array | None:
        each = [x for modules in self._members() if (x := modules.penalty()) is not None]
        return sum(each, jnp.float32(0)) if each else None

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        made: dict[str, Part] = {}
        for modules in self._members():
            made |= modules.array_parts(shapes)
        return made

    def num_unused(self) -> int:
        return sum(modules.num_unused() for modules in self._members())

    def at(self, stack: str, site: str) -> Any:
        for modules in self._members():
            if (stack, site) in modules.places:
                return modules.at(stack, site)
        raise KeyError((stack, site))
