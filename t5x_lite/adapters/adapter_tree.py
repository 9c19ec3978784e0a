"""Adapter modules at each adapter site of a model, and compositions of adapters at one site.

A site is a named position in a model's layers, such as "mlp/out", with an attribute (slot) for an
adapter. The slot holds the module of a single adapter, or a tree of composed adapters:

    BlockTree         instead of the residual sum of a block
    DenseTree         at a dense layer
    HiddenTree        at the input of a block's last layer
    KeyTree           at the keys and values of an attention
    InvertibleTree    after the embeddings

`SlotTree.see` stores in `ids` which adapter each row of the batch uses, once for each layer, so
that a scan over the layers can slice them.
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
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import Around, DropoutSlot, GatedKeySlot, is_per_row, stacked

REGULARISATION = 0.01
"""Loss weight of the term |I - Wv|^2, summed over all AdapterFusion layers."""


class Named(nnx.Module):
    """Flax container of modules by name."""

    def __init__(self, modules: Mapping[str, nnx.Module]):
        self.names = tuple(modules)
        for name, module in modules.items():
            setattr(self, f"_{name}", module)

    def all(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}") for name in self.names}


class SlotTree(nnx.Module):
    """Base class of modules that compose several adapters at one position in the layers.

    Args:
      tree: composition of the adapters, such as Stack(a, b).
      leaves: composed adapter modules by adapter name.
      own: routers and AdapterFusion layers of the composition, by `Trained.key`.
      layers: numbers of the layers; decoder layers are numbered after encoder layers.
    """

    ids: nnx.Variable | None = None  # [B], from `see`
    layer: nnx.Variable | None = None  # number of the layer, if the tree has a Drop

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
        """True if the adapters in use differ between rows or tokens of the batch."""
        return self._has_rows or any(map(is_per_row, self.leaves.all().values()))

    @property
    def _has_rows(self) -> bool:
        blocks = [node for node, _ in walk(self.tree) if isinstance(node, Block)]
        return any(block.of_rows or block.by_content for block in blocks)

    def see(self, ids: Array) -> None:
        """Store the index of the adapter that each batch row uses."""
        num = jax.tree.leaves(nnx.state(self.leaves))[0].shape[0]
        layers = jnp.broadcast_to(ids, (num, *ids.shape))
        self.ids = nnx.Variable(layers, logical=("layers", None))

    def _run(self, state: Any) -> Any:
        layer = None if self.layer is None else self.layer[...]
        return Evaluation(self.leaves.all(), self.own.all(), layer).run(self.tree, state)

    def _ids(self) -> Array | None:
        return None if self.ids is None else self.ids[...]


class BlockTree(SlotTree):
    """Module that composes adapters after an attention or feed-forward block of a layer."""

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        total = x + self._run(BlockState(f, x, norm, around, self._ids())).h
        return total if norm is None else norm(total)


class DenseTree(SlotTree):
    """Module that composes adapters at a dense layer, and adds the layer's bias."""

    dropout_key: nnx.Variable | None = None  # from `slots.with_dropout`

    @property
    def dropout_rate(self) -> float:
        """Largest dropout rate of the composed adapters."""
        leaves = self.leaves.all().values()
        return max(
            (leaf.dropout_rate for leaf in leaves if isinstance(leaf, DropoutSlot)), default=0
        )

    def with_bias(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
        bias: Float[Array, " O"] | None,
        seen: Any,
    ) -> Float[Array, "*batch O"]:
        """Return the dense layer's output with all adapters and the bias, in float32.

        Raises:
          InputError: if batch rows use different adapters, but x has no batch axis.
        """
        if x.ndim < 3 and self._has_rows:
            raise InputError(
                f"composition {self.tree} uses different adapters for different rows of a batch, "
                "but DeBERTa projects relative positions once for all rows; use other sites, such "
                "as attention/value"
            )
        key = None if self.dropout_key is None else self.dropout_key[...]
        state = self._run(DenseState(x, y, kernel, bias, self._ids(), seen, key))
        return state.y if state.bias is None else state.y + state.bias.astype(jnp.float32)

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        return self.with_bias(x, y, kernel, None, None)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        return self._run(KernelState(kernel, None, has_bias=False)).kernel

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        return self._run(KernelState(None, bias, has_bias=True)).bias


class HiddenTree(SlotTree):
    """Module that composes adapters at the input of a block's last dense layer."""

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        return self._run(HiddenState(hidden, self._ids())).hidden

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the kernel of the block's last dense layer with all adapters merged into it.

        Raises:
          InputError: if the rows of a batch use different adapters.
        """
        return self._run(KernelState(kernel, None, has_bias=False)).kernel


class KeyTree(SlotTree):
    """Module that concatenates the attention keys and values of several prefix adapters."""

    def __call__(self) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
        return _one_after_the_other([leaf() for leaf in self.leaves.all().values()])

    def gated(self, x: Float[Array, "B T D"], seen: Any) -> Prefix:
        """Return the keys and values of all prefix adapters, concatenated."""
        leaves = self.leaves.all().values()
        if not any(isinstance(leaf, GatedKeySlot) for leaf in leaves):
            return self()
        pairs = [
            leaf.gated(x, seen) if isinstance(leaf, GatedKeySlot) else leaf() for leaf in leaves
        ]
        rows = [
            tuple(jnp.broadcast_to(y, (x.shape[0], *y.shape[-3:])) for y in pair) for pair in pairs
        ]
        return _one_after_the_other(rows)


def _one_after_the_other(pairs: Sequence[tuple[Array, ...]]) -> Prefix:
    keys, values = (jnp.concatenate(each, axis=-3) for each in zip(*pairs, strict=True))
    return keys, values


class InvertibleTree(SlotTree):
    """Module that applies several invertible adapters one after the other."""

    def __call__(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        for leaf in self.leaves.all().values():
            x = leaf(x)
        return x

    def inverse(self, y: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """Apply the inverses of all adapters, last adapter first."""
        for leaf in reversed(self.leaves.all().values()):
            y = leaf.inverse(y)
        return y


class FusionLayer(nnx.Module):
    """AdapterFusion layer: attention of a query q over adapter outputs u_i, sum_i p_i Wv u_i.

    p_i is the softmax over i of (Wq q + bq) . (Wk u_i + bk) / T. Scores have no factor 1 / sqrt(d),
    and the temperature T is constant. (The library `adapters` decreases T at each call, also in
    evaluation.)

    Args:
      d_model: hidden size of the model.
      static: True to omit the value projection Wv.
      rngs: random streams; "params" is used.

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
        """Return the attention-weighted sum of the adapter outputs, in the dtype of the query.

        Args:
          query: input of the last adapter that the Fuse block combines.
          contributions: output of each adapter, [B, T, D].
          is_here: for each adapter, True if it exists in this layer; other adapters get weight 0.
            () means that all adapters exist.
          temperature: softmax temperature T.
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
        if self.static:
            return jnp.float32(0)
        kernel = self.value.kernel[...].astype(jnp.float32)
        return jnp.sum(jnp.square(jnp.eye(kernel.shape[-1]) - kernel))


def _almost_one(key: Any, shape: Any, dtype: Any) -> Array:
    """Initialize the value projection Wv: 1 on the diagonal and 1e-6 elsewhere."""
    del key
    return jnp.eye(shape[0], dtype=dtype) + 1e-6 * (1.0 - jnp.eye(shape[0], dtype=dtype))


Places = Mapping[str, tuple[tuple[str, str], ...]]
"""Adapter name -> the (stack, site) pairs at which the adapter has a module."""

_BLOCK = "after_"
_PREFIX = "/prefix"
_INVERTIBLE = "invertible"


class Modules(nnx.Module):
    """Modules of one adapter, as nested attributes such as `encoder.attention.query`.

    Args:
      found: adapter modules by stack ("encoder" or "decoder") and layer position, such as
        "attention/query".
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
    """Number of tasks of a hypernetwork; 0 for other adapters."""

    num_before: int = 0
    """Number of virtual tokens that the adapter inserts before a row's first token."""

    masks_arrays: bool = False
    """True if the adapter masks arrays of the model; masks are applied after other adapters."""

    alone: str = ""
    """Reason why the adapter cannot be composed with others; "" if it can."""

    def complete(self) -> None:
        """Compute arrays that checkpoints do not store, such as masks, in place."""

    def meet(self, stacks: Mapping[str, Any]) -> None:
        """Copy arrays of the model's layers to the adapter modules that need them, in place."""

    def start(self, stacks: Mapping[str, Any]) -> None:
        """Set new parameters that depend on the base model, such as PiSSA's factors, in place."""

    def claims(self) -> tuple[str, ...]:
        """Return the layer positions that no other adapter may use, such as "encoder/mlp/out"."""
        return tuple(f"{stack}/{site}" for stack, site in self.places)

    def copied(self) -> tuple[str, ...]:
        """Return the paths of the model arrays that this adapter replaces."""
        return ()

    def read(self, model: Mapping[str, Any], *, key: Key | None = None) -> dict[str, Any]:
        """Return the model arrays that this adapter replaces, with their new values, by path.

        Args:
          model: arrays of the model by path, in their stored dtype.
          key: random key of a training step; None outside of training.
        """
        return {}

    def penalty(self) -> Array | None:
        """Return this adapter's regularization loss, or None if it has none."""
        return None

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        """Return this adapter's changes of complete model arrays, by path.

        Args:
          shapes: path -> shape of the model's array.
        """
        return {}

    def num_unused(self) -> int:
        """Return the number of padding values in the adapter's arrays."""
        return 0

    def at(self, stack: str, site: str) -> Any:
        """Return the adapter module at a layer position, such as ("encoder", "attention/query")."""
        node: Any = self
        for part in (stack, *site.split("/")):
            node = getattr(node, part)
        return node


class BlockLayers(nnx.Module):
    """AdapterFusion layers and router layers that combine several adapters of a model.

    Args:
      blocks: configs of AdapterFusion (`Fuse`) and routers (`Route`), by name.
      places: layer positions of the adapters, such as "mlp/out", by adapter name.
      stacks: layers of the model by stack ("encoder" or "decoder").
      rngs: random streams; "params" is used.

    Raises:
      InputError: if a name is reserved or not an identifier.
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
                raise InputError(
                    f"the name {title!r} is reserved and not allowed for a {block.part}; set "
                    "another name="
                )
            made: dict[str, dict[str, nnx.Module]] = {}
            for stack, site in places_of(block, places):
                there = stacks[stack].dense_sites()
                host: Dense = there.get(site) or next(iter(there.values()))
                made.setdefault(stack, {})[site] = stacked(
                    functools.partial(_layer_of, block, host), rngs, num=host.kernel.shape[0]
                )
            setattr(self, title, Modules(made))

    def at(self, title: str, stack: str, site: str) -> Any:
        """Return the AdapterFusion or router layer at a layer position."""
        return getattr(self, title).at(stack, site)

    def stands_at(self, title: str, stack: str, site: str) -> bool:
        return (stack, site) in getattr(self, title).places

    def penalty(self) -> Array:
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
    features = host.kernel.shape[-2]
    if isinstance(block, Fuse):
        return FusionLayer(features, static=block.static, rngs=rngs)
    assert isinstance(block, Route)
    return RouterLayer(block, features, axis=host.axes[0], rngs=rngs)


def places_of(tree: str | Block, places: Places) -> list[tuple[str, str]]:
    """Return the layer positions of composed adapters, such as ("encoder", "mlp/out")."""
    return list(dict.fromkeys(place for name in names_of((tree,)) for place in places[name]))


def stacks_of(model: Any) -> dict[str, Any]:
    """Return the encoder and decoder layers of a model by name.

    Raises:
      InputError: if the model has no layers that support adapters.
    """
    if not hasattr(model, "stacks"):
        raise InputError(f"a model of class {type(model).__name__} does not support adapters")
    return model.stacks()


def layers_of(stacks: Mapping[str, Any]) -> dict[str, range]:
    """Return the range of layer numbers of each stack; decoder layers follow encoder layers."""
    found: dict[str, range] = {}
    before = 0
    for name, layers in stacks.items():
        num = next(iter(layers.dense_sites().values())).kernel.shape[0]
        found[name] = range(before, before + num)
        before += num
    return found


def check_layers(use: Sequence[str | Block], layers: Mapping[str, range]) -> None:
    """Raise InputError if a composition skips an adapter in a layer that the model lacks."""
    num = sum(map(len, layers.values()))
    for node, _ in (pair for tree in use for pair in walk(tree)):
        if isinstance(node, Drop) and max(node.layers) >= num:
            raise InputError(
                f"block {node} names a layer that does not exist; the model's layers are 0 to "
                f"{num - 1}"
            )


def tree_class(site: str) -> type[SlotTree]:
    """Return the class that composes adapters at a layer position, such as "mlp/out"."""
    if site.startswith(_BLOCK):
        return BlockTree
    if site.endswith(_PREFIX):
        return KeyTree
    if site == _INVERTIBLE:
        return InvertibleTree
    return HiddenTree if site.endswith("/hidden") else DenseTree


def check_tasks(use: Sequence[str | Block], modules: Mapping[str, Modules]) -> None:
    """Raise InputError if a hypernetwork is used without a valid task number.

    Args:
      use: compositions of adapters.
      modules: modules of the adapters in the compositions, by name.
    """
    for node, above in (pair for tree in use for pair in walk(tree)):
        if isinstance(node, str):
            num = modules[node].num_tasks
            if num and not (above and isinstance(above[-1], Task)):
                raise InputError(
                    f"adapter {path_of(above, node)} is a hypernetwork of {num} tasks; select a "
                    f"task in adapters.use, such as Task({node}, of=0)"
                )
        elif isinstance(node, Task):
            num = modules[str(node.children[0])].num_tasks
            if node.of >= num:
                has = f"has tasks 0 to {num - 1}" if num else "is not a hypernetwork"
                raise InputError(f"{node}: {node.children[0]} {has}")


def check_places(use: Sequence[str | Block], places: Places, kinds: Mapping[str, str]) -> None:
    """Raise InputError if a composition cannot combine one of its adapters.

    Args:
      use: compositions of adapters.
      places: layer positions of the adapters, such as "mlp/out", by adapter name.
      kinds: method of each adapter, such as "lora", by adapter name.
    """
    prompt = next((n for n in names_of(use) if ("encoder", "prompt") in places[n]), None)
    for node, above in (pair for tree in use for pair in walk(tree)):
        if isinstance(node, Split) and prompt is not None:
            raise InputError(
                f"block {node} splits the tokens of a row by position, but the prompt adapter "
                f"{prompt!r} inserts positions before the tokens; use either the block or the "
                "prompt"
            )
        if not isinstance(node, str):
            continue
        where = path_of(above, f"{kinds[node].lower()} {node!r}")
        if above and not places[node]:
            raise InputError(
                f"adapter {where} is at no layer position (site) of the model, so a block cannot "
                "compose it; use the adapter outside of blocks"
            )
        special = next((p for p in places[node] if p[1].endswith((_PREFIX, _INVERTIBLE))), None)
        for block in above:
            kind = type(block).__name__
            if special is not None and not isinstance(block, Stack):
                raise InputError(
                    f"adapter {where} uses the site {'/'.join(special)}, which the block {kind} "
                    "does not support; use the adapter outside of blocks or in a Stack"
                )
            if any(site == "prompt" for _, site in places[node]):
                raise InputError(
                    f"adapter {where} inserts a prompt before the tokens, which blocks cannot "
                    "compose; use the adapter outside of blocks"
                )
            hidden = next((p for p in places[node] if p[1].endswith("/hidden")), None)
            if isinstance(block, Route) and hidden is not None:
                raise InputError(
                    f"adapter {where} uses the site {'/'.join(hidden)}, but a Route block supports "
                    "adapters only after attention and feed-forward blocks, and at dense layers"
                )
            if not isinstance(block, Fuse | Split):
                continue
            other = next((p for p in places[node] if not p[1].startswith(_BLOCK)), None)
            if other is not None:
                raise InputError(
                    f"adapter {where} uses the site {'/'.join(other)}, but the block {kind} "
                    "supports adapters only after attention and feed-forward blocks"
                )
            if isinstance(block, Split) and any(stack == "decoder" for stack, _ in places[node]):
                raise InputError(
                    f"adapter {where} is in a decoder, but a Split block supports only adapters of "
                    "an encoder, because a decoder generates token by token"
                )
