"""Where modules stand: by site, and the tree in each slot.

Modules by the sites at which they stand, and what composes those of one site.

What stands in a slot where modules are composed: a tree, and the modules that it names there.

    BlockTree     in place of the residual tail of a block
    DenseTree     at a dense layer
    HiddenTree    at what the last layer of a block reads
    KeyTree       at the keys and values of an attention
    InvertibleTree    after the embeddings

A module alone stands in its slot itself. `ids` are put in with the batch: the number of each row's
child, once for each layer, so that a scan slices them.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.composition import (
    Block,
    Drop,
    Fuse,
    Route,
    RouterLayer,
    Split,
    Stack,
    Task,
    Trained,
    names_of,
    path_of,
    walk,
)
from t5x_lite.adapters.delta_parts import Part
from t5x_lite.adapters.evaluation import (
    BlockState,
    DenseState,
    Evaluation,
    HiddenState,
    KernelState,
)
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.attention import Prefix
from t5x_lite.nn.bind import stacked
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import Around, GatedKeySlot, is_per_row

REGULARISATION = 0.01
"""Weight of |I - Wv|^2 of all fusions in the loss."""


class Named(nnx.Module):
    """Modules by name.

    Args:
      modules: name -> module.
    """

    def __init__(self, modules: Mapping[str, nnx.Module]):
        self.names = tuple(modules)
        for name, module in modules.items():
            setattr(self, f"_{name}", module)

    def all(self) -> dict[str, Any]:
        """The modules by name."""
        return {name: getattr(self, f"_{name}") for name in self.names}


class SlotTree(nnx.Module):
    """Base of the trees.

    Args:
      tree: a block.
      leaves: modules of the slot, one or stacked, by name.
      own: layers of its blocks that train, by `Trained.key`.
      layers: the numbers of the stack's layers, counted over all stacks; for a Drop.
    """

    ids: nnx.Variable | None = None  # [B], from `see`
    layer: nnx.Variable | None = None  # its number, where a Drop asks for it

    def __init__(
        self,
        tree: Block,
        leaves: Mapping[str, nnx.Module],
        own: Mapping[str, nnx.Module] | None = None,
        *,
        layers: range = range(0),
    ):
        self.tree = tree
        self.leaves = Named(leaves)
        self.own = Named(own or {})
        if any(isinstance(node, Drop) for node, _ in walk(tree)):
            self.layer = nnx.Variable(jnp.asarray(layers, jnp.int32), logical=("layers",))

    @property
    def per_row(self) -> bool:
        """Whether rows, or tokens, of a batch differ in what they get."""
        return self._has_rows or any(map(is_per_row, self.leaves.all().values()))

    @property
    def _has_rows(self) -> bool:
        """Whether a block gives rows or tokens different modules."""
        blocks = [node for node, _ in walk(self.tree) if isinstance(node, Block)]
        return any(block.of_rows or block.by_content for block in blocks)

    def see(self, ids: Array) -> None:
        """Puts in the number of each row's child, for each of the layers; in place."""
        num = jax.tree.leaves(nnx.state(self.leaves))[0].shape[0]
        layers = jnp.broadcast_to(ids, (num, *ids.shape))
        self.ids = nnx.Variable(layers, logical=("layers", None))

    def _run(self, state: Any) -> Any:
        layer = None if self.layer is None else self.layer[...]
        return Evaluation(self.leaves.all(), self.own.all(), layer).run(self.tree, state)

    def _ids(self) -> Array | None:
        return None if self.ids is None else self.ids[...]


class BlockTree(SlotTree):
    """A `BlockSlot`."""

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """norm(h + x), h being what the tree makes of f; without a norm in a pre-norm layer."""
        total = x + self._run(BlockState(f, x, norm, around, self._ids())).h
        return total if norm is None else norm(total)


class DenseTree(SlotTree):
    """A `DenseSlot` that adds the bias, too."""

    def with_bias(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
        bias: Float[Array, " O"] | None,
        seen: Any,
    ) -> Float[Array, "*batch O"]:
        """The layer's result, in float32.

        Raises:
          InputError: rows differ, and the layer reads what all of them share.
        """
        if x.ndim < 3 and self._has_rows:
            raise InputError(
                f"{self.tree}: distances are projected once for all rows (a DeBERTa's), so "
                "modules of rows have no place there: give them other sites, as attention/value"
            )
        state = self._run(DenseState(x, y, kernel, bias, self._ids(), seen))
        return state.y if state.bias is None else state.y + state.bias.astype(jnp.float32)

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """The result without a bias."""
        return self.with_bias(x, y, kernel, None, None)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """The kernel that gives the same without modules.

        Raises:
          InputError: rows differ.
        """
        return self._run(KernelState(kernel, None, has_bias=False)).kernel

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        """The bias that goes with it."""
        return self._run(KernelState(None, bias, has_bias=True)).bias


class HiddenTree(SlotTree):
    """A `HiddenSlot`."""

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """What the layer reads."""
        return self._run(HiddenState(hidden, self._ids())).hidden

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """The layer's kernel that gives the same without modules.

        Raises:
          InputError: rows differ.
        """
        return self._run(KernelState(kernel, None, has_bias=False)).kernel


class KeyTree(SlotTree):
    """A `KeySlot`: the keys and values of all modules, one after the other."""

    def __call__(self) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
        """Keys and values."""
        return _one_after_the_other([leaf() for leaf in self.leaves.all().values()])

    def gated(self, x: Float[Array, "B T D"], seen: Any) -> Prefix:
        """Keys and values, of each row where a module has a gate."""
        leaves = self.leaves.all().values()
        if not any(isinstance(leaf, GatedKeySlot) for leaf in leaves):
            return self()
        pairs = [
            leaf.gated(x, seen) if isinstance(leaf, GatedKeySlot) else leaf() for leaf in leaves
        ]
        rows = [tuple(jnp.broadcast_to(y, (len(x), *y.shape[-3:])) for y in pair) for pair in pairs]
        return _one_after_the_other(rows)


def _one_after_the_other(pairs: Sequence[tuple[Array, ...]]) -> Prefix:
    keys, values = (jnp.concatenate(each, axis=-3) for each in zip(*pairs, strict=True))
    return keys, values


class InvertibleTree(SlotTree):
    """An `InvertibleSlot`: the modules of a Stack in order, and their inverses in the other."""

    def __call__(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """All of them."""
        for leaf in self.leaves.all().values():
            x = leaf(x)
        return x

    def inverse(self, y: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """The inverses, the last first."""
        for leaf in reversed(self.leaves.all().values()):
            y = leaf.inverse(y)
        return y


class FusionLayer(nnx.Module):
    """Attention over contributions: sum_i p_i Wv u_i.

    p_i is the softmax over i of (Wq q + bq) . (Wk u_i + bk) / T.
    There is no 1 / sqrt(d), and T does not change by calls. (In the library `adapters` it falls at
    each of them, in evaluation, too.)

    Args:
      d_model: size of the states.
      static: whether there is no Wv.
      rngs: the stream "params" is used.

    Source: Pfeiffer et al. 2021, AdapterFusion, section 3.2.
    """

    def __init__(self, d_model: int, *, static: bool = False, rngs: nnx.Rngs):
        init = jax.nn.initializers.normal(0.02)

        def dense() -> Dense:
            axes = ("embed", None)
            return Dense(d_model, d_model, axes=axes, initializer=init, bias=True, rngs=rngs)

        self.query, self.key = dense(), dense()
        if not static:
            axes = ("embed", None)
            self.value = Dense(d_model, d_model, axes=axes, initializer=_almost_one, rngs=rngs)
        self.static = static

    def __call__(
        self,
        query: Float[Array, "B T D"],
        contributions: list[Array],
        *,
        is_here: Sequence[Array | bool] = (),
        temperature: float = 1.0,
    ) -> Float[Array, "B T D"]:
        """The weighted sum of contributions [B, T, D] each, in the dtype of the query.

        Args:
          query: what the last module reads.
          contributions: of the children.
          is_here: whether each is in this layer: one that is not has no share; () is all.
          temperature: T.
        """
        q = self.query.product(query)
        scores = [jnp.sum(q * self.key.product(u), axis=-1) for u in contributions]
        if not all(each is True for each in is_here):
            least = jnp.finfo(jnp.float32).min
            scores = [jnp.where(on, s, least) for on, s in zip(is_here, scores, strict=True)]
        weights = jax.nn.softmax(jnp.stack(scores) / temperature, axis=0)
        values = contributions if self.static else [self.value.product(u) for u in contributions]
        total = sum(w[..., None] * v for w, v in zip(weights, values, strict=True))
        return jnp.asarray(total).astype(query.dtype)

    def penalty(self) -> Float[Array, ""]:
        """|I - Wv|^2 over all layers, in float32."""
        if self.static:
            return jnp.float32(0)
        kernel = self.value.kernel[...].astype(jnp.float32)
        return jnp.sum(jnp.square(jnp.eye(kernel.shape[-1]) - kernel))


def _almost_one(key: Any, shape: Any, dtype: Any) -> Array:
    """The identity, and 1e-6 off the diagonal."""
    del key
    return jnp.eye(shape[0], dtype=dtype) + 1e-6 * (1.0 - jnp.eye(shape[0], dtype=dtype))


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
