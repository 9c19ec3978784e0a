"""Kinds of bottleneck: Compacter, invertible adapters, T5's adapter layers.

Compacter: bottlenecks of Kronecker products (Karimi Mahabadi et al. 2021, arXiv:2106.04647).

    kernel [in, out] = sum_i kron(A_i, L_i R_i)          i < n

A_i [n, n] is one array of the adapter, for all layers, sites and both projections; L_i [in / n, k]
and R_i [k, out / n] are each projection's own. With x as [n, in / n] the product is

    y[j] = sum_i sum_h A_i[h, j] (x[h] L_i) R_i          and no kernel is made

compacter is double_seq_bn's, compacter_plus_plus seq_bn's. The activation is the authors' gelu_new;
the library `adapters` has the exact gelu, and draws L and R from a normal distribution though its
config says glorot-uniform.

Invertible adapters after the embeddings (Pfeiffer et al. 2020, MAD-X, arXiv:2005.00052).

    y1 = x1 + F(x2)      y2 = x2 + G(y1)          x1, x2: the halves of an embedded token
    x2 = y2 - G(y1)      x1 = y1 - F(x2)          the inverse, exact

F and G are two dense layers with a relu between. A language gets an embedding of its own without a
table: the encoder reads y, and the head of a masked language model applies the inverse to what it
multiplies with the table of tokens. After norm and dropout in BERT, before a projection to d_model;
in T5 the encoder's input alone. `seq_bn_inv` is a module of a language: trained as a masked
language model, then frozen below one of a task, as `Stack(language, task)`.

The library `adapters` has a second kind, GLOW, which divides the sequence in place of the features,
and of composed modules it inverts the first alone; here the inverses of a Stack follow one another.

T5's adapter layers: a feed-forward block of its own after each one (Raffel et al. 2020, 3.5.1).

    x + dropout(wo(dropout(relu(wi(norm(x))))))          after each feed-forward block

It begins as the model's layers do, and so not as the identity. The paper trains the adapters and
all layer norms; its code (mesh_tensorflow's task_adapter.gin) the adapters alone, with their norms.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.adapter_tree import Modules
from t5x_lite.adapters.base import Adapter, Site
from t5x_lite.adapters.base import Modules as base_Modules
from t5x_lite.adapters.bottleneck import (
    Bottleneck,
    BottleneckBlock,
    BottleneckModules,
    double_seq_bn,
    seq_bn,
)
from t5x_lite.adapters.merging import Union
from t5x_lite.adapters.sparse import norms_of
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Rate
from t5x_lite.core.trees import Array
from t5x_lite.nn.dense import MLP, Activation, Dense, einsum
from t5x_lite.nn.dropout import RMSNorm, split_key
from t5x_lite.nn.layers import residual
from t5x_lite.nn.slots import Around, TokenHost


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compacter(Bottleneck):
    """Bottlenecks whose kernels are sums of Kronecker products; and as `Bottleneck`.

    Attributes:
      phm_dim: n.
      phm_rank: k.
    """

    name: str = "compacter"
    reduction: float = 32.0
    activation: Activation = "gelu_new"
    phm_dim: Count = 4
    phm_rank: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reductions or self.leave_out:
            raise InputError("a compacter has one reduction for all layers and leaves none out")

    def block(self, site: Site, rngs: nnx.Rngs) -> "CompacterBlock":
        """One layer's block."""
        return CompacterBlock(self, site.d_model, rngs=rngs)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "CompacterModules":
        """Makes the blocks, and A."""
        return CompacterModules(self._blocks(model, rngs=rngs), dim=self.phm_dim, rngs=rngs)

    @property
    def _is_plain(self) -> bool:
        """Whether its parameters are two dense layers: they are factors."""
        return False


def compacter(*, name: str = "compacter", cross: bool = False, **changes: Any) -> Compacter:
    """After attention and feed-forward block, on their outputs."""
    return _of(double_seq_bn(cross=cross), name, {"reads": "output", **changes})


def compacter_plus_plus(
    *, name: str = "compacter", cross: bool = False, **changes: Any
) -> Compacter:
    """After the feed-forward block, on the normed sum."""
    return _of(seq_bn(cross=cross), name, changes)


def _of(like: Bottleneck, name: str, changes: dict[str, Any]) -> Compacter:
    return Compacter(name=name, **{"sites": like.sites, **changes})


class CompacterModules(BottleneckModules):
    """The blocks, and A at adapters/NAME/rule.

    Args:
      found: as of `Modules`.
      dim: n.
      rngs: the stream "params" is used.
    """

    def __init__(self, found: Any, *, dim: int, rngs: nnx.Rngs):
        super().__init__(found)
        rule = 1e-4 * jax.random.normal(rngs.params(), (dim, dim, dim), jnp.float32)
        self.rule = nnx.Param(rule, logical=(None, None, None))

    def complete(self) -> None:
        """Puts A into the blocks, once for each layer; in place."""
        rule = self.rule[...]
        for place in self.places:
            block: CompacterBlock = self.at(*place)
            num = block.down.left.shape[0]
            for phm in (block.down, block.up):
                layers = jnp.broadcast_to(rule, (num, *rule.shape))
                phm.rule = nnx.Variable(layers, logical=("layers", None, None, None))


class CompacterBlock(BottleneckBlock):
    """A bottleneck whose projections are `PHM`s."""

    config: Compacter

    def projection(
        self,
        features_in: int,
        features_out: int,
        axes: tuple[str | None, str | None],
        *,
        last: bool = False,
        rngs: nnx.Rngs,
    ) -> "PHM":
        """A sum of Kronecker products."""
        dim, rank = self.config.phm_dim, self.config.phm_rank
        return PHM(features_in, features_out, dim=dim, rank=rank, rngs=rngs)

    def clear_unused(self) -> None:
        """Nothing is unused."""

    def num_unused(self) -> int:
        """Nothing is unused."""
        return 0


class PHM(nnx.Module):
    """A parametrised hypercomplex multiplication (Zhang et al. 2021, arXiv:2102.08597), and a bias.

    Args:
      features_in: size of the input's last axis.
      features_out: size of the output's.
      dim: n.
      rank: k.
      rngs: the stream "params" is used.

    Raises:
      InputError: n does not divide the sizes.
    """

    rule: nnx.Variable | None = None  # A [n, n, n], from `CompacterModules.complete`

    def __init__(self, features_in: int, features_out: int, *, dim: int, rank: int, rngs: nnx.Rngs):
        if features_in % dim or features_out % dim:
            raise InputError(
                f"phm_dim {dim} must divide d_model and the width of a compacter: got "
                f"{max(features_in, features_out)} and {min(features_in, features_out)}"
            )
        init = jax.nn.initializers.glorot_uniform(batch_axis=(0,))
        left, right = (dim, features_in // dim, rank), (dim, rank, features_out // dim)
        axes = (None, None, None)
        self.left = nnx.Param(init(rngs.params(), left, jnp.float32), logical=axes)
        self.right = nnx.Param(init(rngs.params(), right, jnp.float32), logical=axes)
        self.bias = nnx.Param(jnp.zeros((features_out,), jnp.float32), logical=(None,))

    def product(self, x: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        """The result in float32."""
        left, right, rule = self.left[...], self.right[...], self.rule
        if rule is None:
            raise ValueError("a PHM needs the adapter's rule: complete the modules first")
        dtype = left.dtype
        parts = x.astype(dtype).reshape(*x.shape[:-1], left.shape[0], -1)
        low = einsum("BTHP,NPK->BTHNK", parts, left).astype(dtype)
        mixed = einsum("BTHNK,NHJ->BTJNK", low, rule[...].astype(dtype)).astype(dtype)
        out = einsum("BTJNK,NKQ->BTJQ", mixed, right)
        return out.reshape(*x.shape[:-1], -1) + self.bias[...].astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Invertible(Adapter):
    """NICE after the embeddings of an encoder; its inverse before a tied output.

    Attributes:
      sites: "invertible".
      reduction: F and G are as wide as a half divided by this.
    """

    name: str = "inv"
    sites: tuple[str, ...] = ("invertible",)
    reduction: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != ("invertible",):
            raise InputError(f"the site of an invertible adapter is 'invertible': got {self.sites}")

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the two networks.

        Raises:
          InputError: the model has no encoder, or its embeddings are too small.
        """
        if not isinstance(model, TokenHost):
            raise InputError(f"a {type(model).__name__} has no encoder whose embeddings it changes")
        columns = model.token_table().shape[1]
        if columns // 2 // self.reduction < 1:
            raise InputError(
                f"embeddings of {columns} have no halves that a reduction of {self.reduction} "
                "leaves anything of"
            )
        nice = Nice(columns, reduction=self.reduction, rngs=rngs)
        return Modules({"encoder": {"invertible": nice}})


class Nice(nnx.Module):
    """An `InvertibleSlot`.

    Args:
      size: E of what it changes.
      reduction: F and G are as wide as a half divided by this.
      rngs: the stream "params" is used.
    """

    def __init__(self, size: int, *, reduction: int, rngs: nnx.Rngs):
        self.first = size // 2
        rest = size - self.first
        self.f = Coupling(rest, rest // reduction, self.first, rngs=rngs)
        self.g = Coupling(self.first, self.first // reduction, rest, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """y, in the dtype of x."""
        x1, x2 = self._halves(x)
        y1 = x1 + self.f(x2)
        return jnp.concatenate([y1, x2 + self.g(y1)], axis=-1).astype(x.dtype)

    def inverse(self, y: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """The x that gives y, in the dtype of y."""
        y1, y2 = self._halves(y)
        x2 = y2 - self.g(y1)
        return jnp.concatenate([y1 - self.f(x2), x2], axis=-1).astype(y.dtype)

    def kind(self) -> Hashable:
        """Equal for modules of one size."""
        return (type(self), self.first)

    def _halves(self, x: Array) -> tuple[Array, Array]:
        x = x.astype(jnp.float32)
        return x[..., : self.first], x[..., self.first :]


class Coupling(nnx.Module):
    """Two dense layers with a relu between; kernels N(0, 0.02), biases 0 at first.

    Args:
      size: numbers of the input.
      width: numbers between the layers.
      out: numbers of the output.
      rngs: the stream "params" is used.
    """

    def __init__(self, size: int, width: int, out: int, *, rngs: nnx.Rngs):
        def dense(features_in: int, features_out: int) -> Dense:
            init = jax.nn.initializers.normal(0.02)
            sizes = (features_in, features_out)
            return Dense(*sizes, axes=(None, None), initializer=init, bias=True, rngs=rngs)

        self.down, self.up = dense(size, width), dense(width, out)

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """The result in float32."""
        dtype = self.down.kernel.dtype
        return self.up.product(jax.nn.relu(self.down.product(x.astype(dtype))).astype(dtype))


def seq_bn_inv(*, name: str = "seq_bn_inv", reduction: float = 16.0, **changes: Any) -> Union:
    """A module of a language: `seq_bn`, and an invertible adapter."""
    bottleneck = seq_bn(name=name, reduction=reduction, **changes)
    return Union(name=name, members=(bottleneck, Invertible(name=name)))


Norms = Literal["all", "own"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Adapter(Adapter):
    """A feed-forward block after each one of the model.

    Attributes:
      width: size of its hidden layer; the paper has 32, 128, 512 and 2048.
      norms: which norms train: "all" of the model, or the adapter's "own".
      zero: whether the second layer begins as 0, so that nothing changes at the start.
      dropout_rate: dropout rate of the hidden layer and of the result.
    """

    name: str = "t5_adapter"
    sites: tuple[str, ...] = ("after_mlp",)
    width: Count = 128
    norms: Norms = "all"
    zero: bool = False
    dropout_rate: Rate = 0.1

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The adapter, and by the paper all norms."""
        paths = tuple(paths)
        return (*super().trains(paths), *(norms_of(paths) if self.norms == "all" else ()))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> base_Modules:
        """Makes the blocks."""

        def block(site: Site, rngs: nnx.Rngs) -> T5AdapterBlock:
            return T5AdapterBlock(self, site.d_model, rngs=rngs)

        return base_Modules(self.at_sites(model, block=block, rngs=rngs))


def t5_adapter(
    *, d: int, norms: Norms = "all", zero: bool = False, name: str = "t5_adapter"
) -> T5Adapter:
    """T5's adapter layers of width d."""
    return T5Adapter(name=name, width=d, norms=norms, zero=zero)


class T5AdapterBlock(nnx.Module):
    """A `BlockSlot`.

    Args:
      config: config of the adapter.
      d_model: size of the states.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: T5Adapter, d_model: int, *, rngs: nnx.Rngs):
        self.norm = RMSNorm(d_model)
        self.mlp = MLP(d_model, config.width, dropout_rate=config.dropout_rate, rngs=rngs)
        if config.zero:
            kernel = self.mlp.wo.kernel
            kernel[...] = jnp.zeros_like(kernel[...])
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The block's result and what the adapter adds to it."""
        x = residual(x, f, norm=norm)
        keys: Any = split_key(around.key, 2)
        y = self.mlp(self.norm(x), key=keys[0])
        return residual(x, y, rate=self.dropout_rate, key=keys[1], over_length=True)

    def after(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The state after it: what the block leaves is state + x.

        Args:
          h: the state before it: f, or what other modules have made of it.
          x: as of the call, like norm and around.
          norm: of a post-norm block, which is refused.
          around: the rest.

        Raises:
          InputError: a norm would follow the adapter.
        """
        if norm is not None:
            raise InputError(
                "t5_adapter stands behind the norm of a post-norm layer, so no block has a place "
                "for it there: use it alone"
            )
        return self(h, x, None, around) - x

    @property
    def is_here(self) -> bool:
        """It is in all layers."""
        return True

    def contribution(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """What it adds to the state; the arguments are those of `after`."""
        return self.after(h, x, norm, around) - h

    def reads(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The sum that it reads; the arguments are those of `after`."""
        return x + h

    def skip(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The state; the arguments are those of `after`."""
        return h
