"""What an adapter is: a frozen config that builds modules for the slots of a model.

    adapter = Lora(rank=8)
    modules = adapter.build(model, rngs=rngs)       # modules["encoder"]["attention"]["query"]
    attach(model, {"lora": modules})                # the model's slots hold them now

Their parameters are at adapters/NAME/STACK/SITE, so at adapters/lora/encoder/attention/query/a, and
those of the model stay where they are. `t5x_lite.nn.slots` has the names of the sites.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flax import nnx

from t5x_lite import trees
from t5x_lite.deltas.parts import Part
from t5x_lite.errors import InputError
from t5x_lite.nn.bind import stacked
from t5x_lite.nn.dense import Dense
from t5x_lite.options import did_you_mean
from t5x_lite.trees import covers
from t5x_lite.types import Params

ADAPTERS = "adapters/"
"""Beginning of the paths of all adapters' parameters."""


@dataclasses.dataclass(frozen=True)
class Site:
    """A place of a stack's layers.

    Attributes:
      stack: name of the stack.
      name: name of the site.
      dense: the dense layer there; the one that reads what is hidden; or of a site after a block
        the layer's first one.
      first: number of the stack's first layer; a decoder's come after the encoder's.
    """

    stack: str
    name: str
    dense: Dense
    first: int

    @property
    def num_layers(self) -> int:
        """Layers of the stack."""
        return self.dense.kernel.shape[0]

    @property
    def d_model(self) -> int:
        """Size of what a block's first layer reads."""
        return self.dense.kernel.shape[-2]


Factory = Callable[[Site, nnx.Rngs], nnx.Module]
"""A site, and the random streams -> one layer's module."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapter:
    """Base of the adapters' configs.

    Attributes:
      name: of its parameters, below adapters/; lower-case letters, digits and "_".
      sites: where it stands: names of sites, or regular expressions that match them, in all stacks.
    """

    name: str
    sites: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                "the name of an adapter is lower-case letters, digits and _, a letter first: got "
                f"{self.name!r}"
            )
        if hasattr(AdapterModules, self.name):
            raise InputError(f"no adapter may be called {self.name!r}: give it another name")
        check_patterns("sites", self.sites)
        if not self.sites:
            raise InputError(f"adapter {self.name!r} stands nowhere: give it sites")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Patterns of what trains where it is used: its own parameters, and perhaps some others.

        Args:
          paths: those of all stored parameters, of the model's too.
        """
        return (f"{ADAPTERS}{self.name}",)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "Modules":
        """Makes the modules for a model.

        Args:
          model: with `stacks()`; shapes are enough.
          rngs: the stream "params" is used.

        Raises:
          InputError: the model has no such sites.
        """
        raise TypeError(f"{type(self).__name__} does not define build")

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """The parameters, by path, whose branch is this one's times a number.

        Raises:
          InputError: the method has no such parameters.
        """
        raise InputError(f"the module {self.name} cannot be multiplied by {factor}")

    def joined(
        self, params: Mapping[str, Any], other: "Adapter", others: Mapping[str, Any]
    ) -> "tuple[Adapter, dict[str, Any]]":
        """The module, and its parameters by path, whose branch is the sum of two.

        Raises:
          InputError: the method has no such module.
        """
        raise InputError(f"the modules {self.name} and {other.name} cannot be added")

    def at_sites(
        self,
        model: nnx.Module,
        *,
        dense: Factory | None = None,
        hidden: Factory | None = None,
        block: Factory | None = None,
        sites: Sequence[str] | None = None,
        where: Callable[[Site], bool] = lambda site: True,
        rngs: nnx.Rngs,
    ) -> dict[str, dict[str, nnx.Module]]:
        """A module for each site, stacked as the layers are: stack -> site -> module.

        Args:
          model: as for `build`.
          dense: makes one layer's module for a dense layer. Without a factory no site of its kind
            is meant.
          hidden: makes it for what the last layer of a block reads.
          block: makes it for the place after a block.
          sites: patterns in place of the config's own.
          where: whether a site that the patterns mean gets a module.
          rngs: the stream "params" is used.

        Raises:
          InputError: a pattern means no site of these kinds.
        """
        patterns = self.sites if sites is None else tuple(sites)
        found: dict[str, dict[str, nnx.Module]] = {}
        there: dict[str, None] = {}
        for site, module in _sites(model, dense=dense, hidden=hidden, block=block):
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
                    f"adapter {self.name!r}: no site is called {pattern!r}"
                    f"{did_you_mean(pattern, there)}; the sites are {', '.join(there)}"
                )
        return found


def _sites(
    model: Any, *, dense: Factory | None, hidden: Factory | None, block: Factory | None
) -> Iterator[tuple[Site, Factory]]:
    """The sites of the kinds that have a factory, with it."""
    before = 0
    for stack, layers in stacks_of(model).items():
        there: dict[str, Dense] = layers.dense_sites()
        first = next(iter(there.values()))
        for factory, hosts in (
            (dense, there),
            (hidden, {site: there[_reader(site)] for site in layers.hidden_sites()}),
            (block, dict.fromkeys(layers.block_sites(), first)),
        ):
            if factory is not None:
                for name, host in hosts.items():
                    yield Site(stack, name, host, before), factory
        before += first.kernel.shape[0]


def _reader(site: str) -> str:
    """Name of the dense layer that reads what is hidden at a site."""
    return f"{site.removesuffix('hidden')}out"


class Modules(nnx.Module):
    """Modules by stack and site: an attribute for each part of the path.

    Args:
      found: stack -> site, as "attention/query" -> module.
    """

    def __init__(self, found: Mapping[str, Mapping[str, nnx.Module]] | None = None):
        self.places = tuple(
            (stack, site) for stack, sites in (found or {}).items() for site in sites
        )
        for stack, site in self.places:
            *above, last = (stack, *site.split("/"))
            node: Any = self
            for part in above:
                if getattr(node, part, None) is None:
                    setattr(node, part, Modules())
                node = getattr(node, part)
            setattr(node, last, (found or {})[stack][site])

    def complete(self) -> None:
        """Puts into each module what is not stored with it: shared arrays, masks; in place."""

    def claims(self) -> tuple[str, ...]:
        """Its places, as "encoder/attention/query"; no other adapter may stand at one of them."""
        return tuple(f"{stack}/{site}" for stack, site in self.places)

    def copied(self) -> tuple[str, ...]:
        """Paths of the model's arrays in whose place it has others; `read` makes them."""
        return ()

    def read(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays that stand in place of some of the model's, by path.

        Args:
          model: its arrays by path, in the dtype in which they are stored.
        """
        return {}

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        """Changes of the model's arrays that are made in no slot, by the arrays' paths.

        Args:
          shapes: path -> the shape of the model's array.
        """
        return {}

    def num_unused(self) -> int:
        """Numbers among the parameters that nothing reads: they fill up a stack's arrays."""
        return 0

    def at(self, stack: str, site: str) -> Any:
        """The module of a place."""
        node: Any = self
        for part in (stack, *site.split("/")):
            node = getattr(node, part)
        return node


class AdapterModules(nnx.Module):
    """The modules of some adapters, by name.

    Args:
      adapters: their configs.
      model: that they are for.
      rngs: the stream "params" is used.
    """

    def __init__(self, adapters: Sequence[Adapter], model: nnx.Module, *, rngs: nnx.Rngs):
        self._names = tuple(by_name(adapters))
        for adapter in adapters:
            setattr(self, adapter.name, adapter.build(model, rngs=rngs))

    def attach(self, model: nnx.Module) -> None:
        """Puts the modules into the slots of the model; in place.

        Raises:
          InputError: two stand at one site.
        """
        self.check()
        stacks = stacks_of(model)
        for name in self._names:
            modules: Modules = getattr(self, name)
            modules.complete()
            for stack, site in modules.places:
                layers = stacks[stack]
                hosts = {**layers.dense_sites(), **layers.hidden_sites()}
                host, slot = (hosts[site], "slot") if site in hosts else (layers, site)
                setattr(host, slot, modules.at(stack, site))

    def check(self) -> None:
        """Refuses, by an InputError, two modules at one site."""
        taken: set[str] = set()
        for name in self._names:
            for place in getattr(self, name).claims():
                if place in taken:
                    raise InputError(
                        f"adapter {name!r} would stand at {place}, where another one is: "
                        "leave one out of --adapters.use, or give them other sites"
                    )
                taken.add(place)

    def copied(self) -> tuple[str, ...]:
        """Paths of the model's arrays in whose place adapters have others."""
        return tuple(path for name in self._names for path in getattr(self, name).copied())

    def read(self, model: Params) -> Params:
        """A model's parameters with the arrays that adapters have in place of its own.

        Args:
          model: nested; arrays in the dtype in which they are stored.
        """
        if not self.copied():
            return model
        flat = trees.flatten(model)
        for name in self._names:
            flat |= getattr(self, name).read(flat)
        return trees.unflatten(flat)

    def num_unused(self, name: str) -> int:
        """Numbers of an adapter that nothing reads, in layers that are narrower or left out."""
        return getattr(self, name).num_unused()


def merge(model: nnx.Module) -> None:
    """Adds what stands in slots to the kernels, and empties the slots; in place.

    Raises:
      InputError: a slot holds what no kernel can: an adapter after a block.
    """
    for stack, layers in stacks_of(model).items():
        for site in layers.block_sites():
            if getattr(layers, site) is not None:
                raise InputError(
                    f"the adapter at {stack}/{site} cannot be merged into the model's kernels"
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
                reader = dense_sites[_reader(site)]
                reader.kernel[...] = host.slot.of_kernel(reader.kernel[...])
                host.slot = None


def by_name(adapters: Iterable[Adapter]) -> dict[str, Adapter]:
    """Adapters by their names.

    Raises:
      InputError: two have one name.
    """
    found: dict[str, Adapter] = {}
    for adapter in adapters:
        if adapter.name in found:
            raise InputError(f"two adapters are called {adapter.name}: give one another name")
        found[adapter.name] = adapter
    return found


def check_patterns(field: str, patterns: Iterable[str]) -> None:
    """Refuses, by an InputError that names the field, what is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InputError(f"{field}: {pattern!r} is no regular expression ({error})") from error


def stacks_of(model: Any) -> dict[str, Any]:
    """A model's stacked layers by name.

    Raises:
      InputError: it has none with slots.
    """
    if not hasattr(model, "stacks"):
        raise InputError(f"a {type(model).__name__} has no layers with slots for adapters")
    return model.stacks()
