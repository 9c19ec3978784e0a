"""Modules by the sites at which they stand, and what composes those of one site."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from t5x_lite.adapters.composition import (
    Block,
    Drop,
    Fuse,
    Route,
    Split,
    Stack,
    Task,
    Trained,
    names_of,
    path_of,
    walk,
)
from t5x_lite.adapters.routing import RouterLayer
from t5x_lite.adapters.slot_trees import (
    BlockTree,
    DenseTree,
    FusionLayer,
    HiddenTree,
    InvertibleTree,
    KeyTree,
    SlotTree,
)
from t5x_lite.deltas.parts import Part
from t5x_lite.errors import InputError
from t5x_lite.nn.bind import stacked
from t5x_lite.nn.dense import Dense
from t5x_lite.types import Array, Key

Places = Mapping[str, tuple[tuple[str, str], ...]]
"""Name of a module -> (stack, site) of its places."""

_BLOCK = "after_"
_PREFIX = "/prefix"
_INVERTIBLE = "invertible"


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

    num_tasks: int = 0
    """Of a hypernetwork, how many tasks it has."""

    num_before: int = 0
    """Positions before a row's first token that it takes."""

    masks_arrays: bool = False
    """Whether it masks what other modules have made of the model's arrays."""

    alone: str = ""
    """Why no block may have it; "" where blocks may."""

    def complete(self) -> None:
        """Puts into each module what is not stored with it: shared arrays, masks; in place."""

    def meet(self, stacks: Mapping[str, Any]) -> None:
        """Puts into each module what it has of its host; in place.

        Args:
          stacks: the model's stacked layers by name.
        """

    def claims(self) -> tuple[str, ...]:
        """Its places, as "encoder/attention/query"; no other adapter may stand at one of them."""
        return tuple(f"{stack}/{site}" for stack, site in self.places)

    def copied(self) -> tuple[str, ...]:
        """Paths of the model's arrays in whose place it has others; `read` makes them."""
        return ()

    def read(self, model: Mapping[str, Any], *, key: Key | None = None) -> dict[str, Any]:
        """The arrays that stand in place of some of the model's, by path.

        Args:
          model: its arrays by path, in the dtype in which they are stored.
          key: of what is drawn in training; None of what is not trained.
        """
        return {}

    def penalty(self) -> Array | None:
        """What is added to the loss in training; None adds nothing."""
        return None

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


class BlockLayers(nnx.Module):
    """The layers of blocks that train, at adapters/PART/NAME/STACK/SITE.

    Args:
      blocks: of one part, by the names of their parameters.
      places: of the modules.
      stacks: the model's stacked layers by name.
      rngs: the stream "params" is used.

    Raises:
      InputError: a block may not be called so.
    """

    def __init__(
        self,
        blocks: Mapping[str, Trained],
        places: Places,
        stacks: Mapping[str, Any],
        *,
        rngs: nnx.Rngs,
    ):
        self.titles = tuple(blocks)
        for title, block in blocks.items():
            if hasattr(BlockLayers, title) or title == "titles" or not title.isidentifier():
                raise InputError(f"no {block.part} may be called {title!r}: give it another name=")
            made: dict[str, dict[str, nnx.Module]] = {}
            for stack, site in places_of(block, places):
                there = stacks[stack].dense_sites()
                host: Dense = there.get(site) or next(iter(there.values()))
                made.setdefault(stack, {})[site] = stacked(
                    functools.partial(_layer_of, block, host), rngs, num=host.kernel.shape[0]
                )
            setattr(self, title, Modules(made))

    def at(self, title: str, stack: str, site: str) -> Any:
        """The layers of a block at a place."""
        return getattr(self, title).at(stack, site)

    def stands_at(self, title: str, stack: str, site: str) -> bool:
        """Whether a block has layers there."""
        return (stack, site) in getattr(self, title).places

    def penalty(self) -> Array:
        """|I - Wv|^2 of all layers of fusions."""
        layers = [
            modules.at(*place)
            for modules in (getattr(self, title) for title in self.titles)
            for place in modules.places
        ]
        total: Array = jnp.float32(0)
        for layer in layers:
            total = total + layer.penalty()
        return total


def _layer_of(block: Trained, host: Dense, rngs: nnx.Rngs) -> FusionLayer | RouterLayer:
    """One layer of a block, which reads what a dense layer does."""
    features = host.kernel.shape[-2]
    if isinstance(block, Fuse):
        return FusionLayer(features, static=block.static, rngs=rngs)
    assert isinstance(block, Route)
    return RouterLayer(block, features, axis=host.axes[0], rngs=rngs)


def places_of(tree: str | Block, places: Places) -> list[tuple[str, str]]:
    """The places at which one of a tree's modules stands."""
    return list(dict.fromkeys(place for name in names_of((tree,)) for place in places[name]))


def stacks_of(model: Any) -> dict[str, Any]:
    """A model's stacked layers by name.

    Raises:
      InputError: it has none with slots.
    """
    if not hasattr(model, "stacks"):
        raise InputError(f"a {type(model).__name__} has no layers with slots for adapters")
    return model.stacks()


def layers_of(stacks: Mapping[str, Any]) -> dict[str, range]:
    """The numbers of each stack's layers, counted over all of them: a decoder's come last.

    Args:
      stacks: a model's stacked layers by name.
    """
    found: dict[str, range] = {}
    before = 0
    for name, layers in stacks.items():
        num = next(iter(layers.dense_sites().values())).kernel.shape[0]
        found[name] = range(before, before + num)
        before += num
    return found


def check_layers(use: Sequence[str | Block], layers: Mapping[str, range]) -> None:
    """Refuses, by an InputError, a Drop that names a layer which the model does not have."""
    num = sum(map(len, layers.values()))
    for node, _ in (pair for tree in use for pair in walk(tree)):
        if isinstance(node, Drop) and max(node.layers) >= num:
            raise InputError(f"{node}: the model's layers are 0 to {num - 1}")


def tree_class(site: str) -> type[SlotTree]:
    """What composes modules at a site."""
    if site.startswith(_BLOCK):
        return BlockTree
    if site.endswith(_PREFIX):
        return KeyTree
    if site == _INVERTIBLE:
        return InvertibleTree
    return HiddenTree if site.endswith("/hidden") else DenseTree


def check_tasks(use: Sequence[str | Block], modules: Mapping[str, Modules]) -> None:
    """Refuses, by an InputError, a hypernetwork outside of a Task, and a task that it has not.

    Args:
      use: trees.
      modules: of the trees, by name.
    """
    for node, above in (pair for tree in use for pair in walk(tree)):
        if isinstance(node, str):
            num = modules[node].num_tasks
            if num and not (above and isinstance(above[-1], Task)):
                raise InputError(
                    f"{path_of(above, node)} is a hypernetwork of {num} tasks: name one of them, "
                    f"as Task({node}, of=0), in adapters.use"
                )
        elif isinstance(node, Task):
            num = modules[str(node.children[0])].num_tasks
            if node.of >= num:
                has = f"has tasks 0 to {num - 1}" if num else "is no hypernetwork"
                raise InputError(f"{node}: {node.children[0]} {has}")


def check_places(use: Sequence[str | Block], places: Places, kinds: Mapping[str, str]) -> None:
    """Refuses, by an InputError that says where in the tree, modules that a block cannot have.

    Args:
      use: trees.
      places: of the modules.
      kinds: name of a module -> name of its method.
    """
    prompt = next((n for n in names_of(use) if ("encoder", "prompt") in places[n]), None)
    for node, above in (pair for tree in use for pair in walk(tree)):
        if isinstance(node, Split) and prompt is not None:
            raise InputError(
                f"{node} counts the tokens of a row, and the prompt {prompt!r} stands before them: "
                "leave one of them out"
            )
        if not isinstance(node, str):
            continue
        where = path_of(above, f"{kinds[node].lower()} {node!r}")
        if above and not places[node]:
            raise InputError(f"{where} stands at no site, so no block composes it: name it alone")
        special = next((p for p in places[node] if p[1].endswith((_PREFIX, _INVERTIBLE))), None)
        for block in above:
            kind = type(block).__name__
            if special is not None and not isinstance(block, Stack):
                raise InputError(
                    f"{where} stands at {'/'.join(special)}, where {kind} has nothing to compose: "
                    "name it outside of blocks or in a Stack, which takes all of them"
                )
            if any(site == "prompt" for _, site in places[node]):
                raise InputError(f"{where} stands before the tokens: name it outside of blocks")
            hidden = next((p for p in places[node] if p[1].endswith("/hidden")), None)
            if isinstance(block, Route) and hidden is not None:
                raise InputError(
                    f"{where} stands at {'/'.join(hidden)}, and Route composes modules after "
                    "blocks and beside dense layers"
                )
            if not isinstance(block, Fuse | Split):
                continue
            other = next((p for p in places[node] if not p[1].startswith(_BLOCK)), None)
            if other is not None:
                raise InputError(
                    f"{where} stands at {'/'.join(other)}, and {kind} composes modules after "
                    "blocks alone"
                )
            if isinstance(block, Split) and any(stack == "decoder" for stack, _ in places[node]):
                raise InputError(
                    f"{where} stands in a decoder, which writes its row token by token: Split is "
                    "for modules of an encoder"
                )
