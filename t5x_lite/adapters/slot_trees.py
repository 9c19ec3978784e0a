"""What stands in a slot where modules are composed: a tree, and the modules that it names there.

    BlockTree     in place of the residual tail of a block
    DenseTree     at a dense layer
    HiddenTree    at what the last layer of a block reads
    KeyTree       at the keys and values of an attention
    InvertibleTree    after the embeddings

A module alone stands in its slot itself. `ids` are put in with the batch: the number of each row's
child, once for each layer, so that a scan slices them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.composition import Block, Drop, walk
from t5x_lite.adapters.evaluation import BlockState, DenseState, Evaluation
from t5x_lite.adapters.kernel_state import KernelState
from t5x_lite.adapters.row_states import HiddenState
from t5x_lite.errors import InputError
from t5x_lite.nn.attention import Prefix
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import Around, GatedKeySlot, is_per_row
from t5x_lite.types import Array

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
