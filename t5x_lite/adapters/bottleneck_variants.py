"""Variants of bottleneck adapters: Compacter, invertible adapters, T5's adapter layers.

Compacter: kernels are sums of Kronecker products (Karimi Mahabadi et al. 2021, arXiv:2106.04647).

    kernel [in, out] = sum_i kron(A_i, L_i R_i)          i < n

A_i [n, n] is one array of the adapter, shared by all layers, sites and both projections. Each
projection has its own L_i [in / n, k] and R_i [k, out / n]. With x as [n, in / n] the product is

    y[j] = sum_i sum_h A_i[h, j] (x[h] L_i) R_i          without materializing the kernel

`compacter` has the sites of double_seq_bn, `compacter_plus_plus` the sites of seq_bn. The
activation is the authors' gelu_new. The library `adapters` uses the exact gelu, and samples L and R
from a normal distribution although its config says glorot-uniform.

Invertible adapters after the embeddings (Pfeiffer et al. 2020, MAD-X, arXiv:2005.00052).

    y1 = x1 + F(x2)      y2 = x2 + G(y1)          x1, x2: the halves of a token's embedding
    x2 = y2 - G(y1)      x1 = y1 - F(x2)          the inverse, exact

F and G are two dense layers with a relu between them. They adapt the embeddings to a language
without another table: the encoder reads y, and the head of a masked language model applies the
inverse to the vectors that it multiplies with the token embedding. In BERT the adapter follows norm
and dropout, before a projection to d_model; in T5 it changes only the encoder's input.
`seq_bn_inv` is an adapter for a language: train it as a masked language model, then freeze it below
a task's adapter, as `Stack(language, task)`.

The library `adapters` has a second kind, GLOW, which splits the sequence instead of the features.
Of composed adapters it inverts only the first; here all inverses of a Stack are applied.

T5's adapter layers: another feed-forward block after each one (Raffel et al. 2020, 3.5.1).

    x + dropout(wo(dropout(relu(wi(norm(x))))))          after each feed-forward block

It is initialized like the model's layers, so it does not start as the identity. The paper trains
the adapters and all layer norms. Its code (mesh_tensorflow's task_adapter.gin) trains only the
adapters, with their norms.
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
    """Configuration of Compacter adapters: bottlenecks with kernels from Kronecker products.

    A kernel is sum_i kron(A_i, L_i R_i) for i < n; the options of `Bottleneck` apply as well.

    Attributes:
      phm_dim: number n of Kronecker products, and size of each matrix A_i.
      phm_rank: rank k of the factors L_i R_i.
    """

    name: str = "compacter"
    reduction: float = 32.0
    activation: Activation = "gelu_new"
    phm_dim: Count = 4
    phm_rank: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reductions or self.leave_out:
            raise InputError("a Compacter supports neither reductions per layer nor leave_out")

    def block(self, site: Site, rngs: nnx.Rngs) -> "CompacterBlock":
        return CompacterBlock(self, site.d_model, rngs=rngs)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "CompacterModules":
        """Build the adapter modules and their shared Kronecker factors."""
        return CompacterModules(self._blocks(model, rngs=rngs), dim=self.phm_dim, rngs=rngs)

    @property
    def _is_plain(self) -> bool:
        return False


def compacter(*, name: str = "compacter", cross: bool = False, **changes: Any) -> Compacter:
    """Return the config of a Compacter after each attention and feed-forward block."""
    return _of(double_seq_bn(cross=cross), name, {"reads": "output", **changes})


def compacter_plus_plus(
    *, name: str = "compacter", cross: bool = False, **changes: Any
) -> Compacter:
    """Return the config of a Compacter after each feed-forward block only."""
    return _of(seq_bn(cross=cross), name, changes)


def _of(like: Bottleneck, name: str, changes: dict[str, Any]) -> Compacter:
    return Compacter(name=name, **{"sites": like.sites, **changes})


class CompacterModules(BottleneckModules):
    """Modules of a Compacter adapter, with shared Kronecker factors at adapters/NAME/rule.

    Args:
      found: stack ("encoder" or "decoder") -> site -> adapter module.
      dim: number n of Kronecker products.
      rngs: random streams; "params" is used.
    """

    def __init__(self, found: Any, *, dim: int, rngs: nnx.Rngs):
        super().__init__(found)
        rule = 1e-4 * jax.random.normal(rngs.params(), (dim, dim, dim), jnp.float32)
        self.rule = nnx.Param(rule, logical=(None, None, None))

    def complete(self) -> None:
        """Copy the shared Kronecker factors into the projections of every layer, in place."""
        rule = self.rule[...]
        for place in self.places:
            block: CompacterBlock = self.at(*place)
            num = block.down.left.shape[0]
            for phm in (block.down, block.up):
                layers = jnp.broadcast_to(rule, (num, *rule.shape))
                phm.rule = nnx.Variable(layers, logical=("layers", None, None, None))


class CompacterBlock(BottleneckBlock):
    """Bottleneck adapter module with sums of Kronecker products (`PHM`) as projections."""

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
        dim, rank = self.config.phm_dim, self.config.phm_rank
        return PHM(features_in, features_out, dim=dim, rank=rank, rngs=rngs)

    def clear_unused(self) -> None:
        """Do nothing, because all layers of a Compacter have the same width."""

    def num_unused(self) -> int:
        return 0


class PHM(nnx.Module):
    """Dense layer with a kernel from Kronecker products (PHM, Zhang et al. 2021, arXiv:2102.08597).

    Args:
      features_in: size of the input's last axis.
      features_out: size of the output's last axis.
      dim: number n of Kronecker products.
      rank: rank k of the factors.
      rngs: random streams; "params" is used.

    Raises:
      InputError: if n does not divide the sizes.
    """

    rule: nnx.Variable | None = None  # A [n, n, n], from `CompacterModules.complete`

    def __init__(self, features_in: int, features_out: int, *, dim: int, rank: int, rngs: nnx.Rngs):
        if features_in % dim or features_out % dim:
            raise InputError(
                f"phm_dim {dim} must divide d_model and the bottleneck width of a Compacter, "
                f"which are {max(features_in, features_out)} and {min(features_in, features_out)}"
            )
        init = jax.nn.initializers.glorot_uniform(batch_axis=(0,))
        left, right = (dim, features_in // dim, rank), (dim, rank, features_out // dim)
        axes = (None, None, None)
        self.left = nnx.Param(init(rngs.params(), left, jnp.float32), logical=axes)
        self.right = nnx.Param(init(rngs.params(), right, jnp.float32), logical=axes)
        self.bias = nnx.Param(jnp.zeros((features_out,), jnp.float32), logical=(None,))

    def product(self, x: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        """Return x times the kernel, plus the bias, in float32, without forming the kernel."""
        left, right, rule = self.left[...], self.right[...], self.rule
        if rule is None:
            raise ValueError(
                "the PHM layer has no shared arrays A; call complete() of the adapter's modules "
                "first"
            )
        dtype = left.dtype
        parts = x.astype(dtype).reshape(*x.shape[:-1], left.shape[0], -1)
        low = einsum("BTHP,NPK->BTHNK", parts, left).astype(dtype)
        mixed = einsum("BTHNK,NHJ->BTJNK", low, rule[...].astype(dtype)).astype(dtype)
        out = einsum("BTJNK,NKQ->BTJQ", mixed, right)
        return out.reshape(*x.shape[:-1], -1) + self.bias[...].astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Invertible(Adapter):
    """Configuration of an invertible adapter (NICE) after an encoder's embeddings, as in MAD-X.

    Attributes:
      sites: always "invertible".
      reduction: half the embedding size divided by the width of the coupling networks.
    """

    name: str = "inv"
    sites: tuple[str, ...] = ("invertible",)
    reduction: Count = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != ("invertible",):
            raise InputError(
                f"an invertible adapter supports only the site 'invertible', got {self.sites}"
            )

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the invertible adapter module of the encoder.

        Raises:
          InputError: if the model has no encoder, or its embeddings are too small.
        """
        if not isinstance(model, TokenHost):
            raise InputError(
                "an invertible adapter needs a model with an encoder, but a "
                f"{type(model).__name__} does not have one"
            )
        columns = model.token_table().shape[1]
        if columns // 2 // self.reduction < 1:
            raise InputError(
                f"inv(reduction={self.reduction}) needs an embedding size of at least "
                f"{2 * self.reduction}, got {columns}"
            )
        nice = Nice(columns, reduction=self.reduction, rngs=rngs)
        return Modules({"encoder": {"invertible": nice}})


class Nice(nnx.Module):
    """Invertible adapter module (NICE): two coupling networks on the halves of an embedding.

    Args:
      size: embedding size E.
      reduction: half the embedding size divided by the width of the coupling networks.
      rngs: random streams; "params" is used.
    """

    def __init__(self, size: int, *, reduction: int, rngs: nnx.Rngs):
        self.first = size // 2
        rest = size - self.first
        self.f = Coupling(rest, rest // reduction, self.first, rngs=rngs)
        self.g = Coupling(self.first, self.first // reduction, rest, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """Return the adapted embeddings, in the dtype of x."""
        x1, x2 = self._halves(x)
        y1 = x1 + self.f(x2)
        return jnp.concatenate([y1, x2 + self.g(y1)], axis=-1).astype(x.dtype)

    def inverse(self, y: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """Return the original embeddings from adapted embeddings, in the dtype of y."""
        y1, y2 = self._halves(y)
        x2 = y2 - self.g(y1)
        return jnp.concatenate([y1 - self.f(x2), x2], axis=-1).astype(y.dtype)

    def kind(self) -> Hashable:
        return (type(self), self.first)

    def _halves(self, x: Array) -> tuple[Array, Array]:
        x = x.astype(jnp.float32)
        return x[..., : self.first], x[..., self.first :]


class Coupling(nnx.Module):
    """Coupling network: two dense layers with a relu between them; kernels start as N(0, 0.02^2).

    Args:
      size: input size.
      width: size of the hidden layer.
      out: output size.
      rngs: random streams; "params" is used.
    """

    def __init__(self, size: int, width: int, out: int, *, rngs: nnx.Rngs):
        def dense(features_in: int, features_out: int) -> Dense:
            init = jax.nn.initializers.normal(0.02)
            sizes = (features_in, features_out)
            return Dense(*sizes, axes=(None, None), initializer=init, bias=True, rngs=rngs)

        self.down, self.up = dense(size, width), dense(width, out)

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        dtype = self.down.kernel.dtype
        return self.up.product(jax.nn.relu(self.down.product(x.astype(dtype))).astype(dtype))


def seq_bn_inv(*, name: str = "seq_bn_inv", reduction: float = 16.0, **changes: Any) -> Union:
    """Return the config of a MAD-X language adapter: `seq_bn` plus an invertible adapter."""
    bottleneck = seq_bn(name=name, reduction=reduction, **changes)
    return Union(name=name, members=(bottleneck, Invertible(name=name)))


Norms = Literal["all", "own"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Adapter(Adapter):
    """Configuration of T5's adapter layers: a second feed-forward block after each one.

    Attributes:
      width: size of the adapter's hidden layer; the paper uses 32, 128, 512 and 2048.
      norms: layer norms to train: "all" norms of the model, or only the adapter's "own".
      zero: True to initialize the second dense layer with 0, so that the model starts unchanged.
      dropout_rate: dropout rate of the adapter's hidden layer and of its output.
    """

    name: str = "t5_adapter"
    sites: tuple[str, ...] = ("after_mlp",)
    width: Count = 128
    norms: Norms = "all"
    zero: bool = False
    dropout_rate: Rate = 0.1

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return regular expressions for trained paths; norms="all" includes the model's norms."""
        paths = tuple(paths)
        return (*super().trains(paths), *(norms_of(paths) if self.norms == "all" else ()))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> base_Modules:
        def block(site: Site, rngs: nnx.Rngs) -> T5AdapterBlock:
            return T5AdapterBlock(self, site.d_model, rngs=rngs)

        return base_Modules(self.at_sites(model, block=block, rngs=rngs))


def t5_adapter(
    *, d: int, norms: Norms = "all", zero: bool = False, name: str = "t5_adapter"
) -> T5Adapter:
    """Return the config of T5's adapter layers with hidden size d."""
    return T5Adapter(name=name, width=d, norms=norms, zero=zero)


class T5AdapterBlock(nnx.Module):
    """Module of T5's adapter layer: a normalized feed-forward block with a residual.

    Args:
      config: config of the adapter.
      d_model: hidden size of the model.
      rngs: random streams; "params" is used.
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
        """Return the block's output after the adapter, for composed adapters.

        Raises:
          InputError: if the layer has a norm after the block, as BERT's layers do.
        """
        if norm is not None:
            raise InputError(
                "t5_adapter cannot be composed in a post-norm model, because it follows the "
                "layer's norm; use it outside of blocks"
            )
        return self(h, x, None, around) - x

    @property
    def is_here(self) -> bool:
        return True

    def contribution(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        return self.after(h, x, norm, around) - h

    def reads(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        return x + h

    def skip(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        return h
