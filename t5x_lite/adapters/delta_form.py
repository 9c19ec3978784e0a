"""Adapters as parts of a delta: what they change of the kernels and biases beside which they stand.

A module that stands beside a dense layer says so itself, by `parts`:

    LowRankBranch.parts()        {"kernel": LowRank(a, b, scale)}

and an adapter of which each module does is no more than these parts. All others, such as
bottlenecks, stay modules: no kernel can hold them.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from flax import nnx

from t5x_lite import trees
from t5x_lite.adapters.base import Adapter, AdapterModules, Modules
from t5x_lite.adapters.places import stacks_of
from t5x_lite.deltas.parts import Part
from t5x_lite.nn.bind import split


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
