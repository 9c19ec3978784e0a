"""Variants of bottlenecks: Compacter, invertible adapters, T5's layers, HyperFormer++, experts.

Variants of bottleneck adapters: Compacter, invertible adapters, T5's adapter layers.

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

Hypernetwork adapter (HyperFormer++): one network generates the bottlenecks of several tasks.

    e = LN(relu([task; layer; site] W1 + b1) W2 + b2)         task, layer, site: trained, [E] each
    Wd, bd, Wu, bu = reshape(e G_k + c_k)                     one G_k [E, ...] for all of them

The tasks share the network; each task adds only E parameters. A composition selects a task:

    h = hyper(tasks=2)
    MultiTask(Task(h, of=0), Task(h, of=1))       in training, by adapter_ids
    Task(h, of=1)                                 in inference; `ejected` makes a bottleneck of it

Source: Karimi Mahabadi et al. 2021 (arXiv:2106.04489), section 2.3. The authors also generate the
norms of adapters, which is not supported here.

Mixture-of-experts adapter: copies of the feed-forward block, routed by token.

    p_t = softmax(a_t W + b)            a_t: input of the block; W [D, E] starts as N(0, 0.02)
    y_t = sum_k w_tk FFN_{e_tk}(a_t)    the likeliest K experts; w: their p, normalized to sum 1

The experts start as the feed-forward block of the base model (sparse upcycling, Komatsuzaki et al.
2023, arXiv:2212.05055). Only their differences from this block are trained, which start as 0. With
K = 1 the weight is 1 and has the gradient of its probability (straight-through). Each token is
computed only by its own experts, and no token is dropped (`t5x_lite.nn.experts`). On a mesh, the
experts are split over the axis `tensor`. `balance` is the weight of the term of Fedus et al. 2022
(arXiv:2101.03961, section 2.2), as in `Route`. The metrics NAME_entropy and NAME_share_k describe
the router.

Experts do not apply the dropout of the block's hidden layer.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.adapter_tree import Modules, stacks_of
from t5x_lite.adapters.base import ADAPTERS, Adapter, Site
from t5x_lite.adapters.base import Modules as base_Modules
from t5x_lite.adapters.bottleneck import (
    Bottleneck,
    BottleneckBlock,
    BottleneckModules,
    double_seq_bn,
    seq_bn,
)
from t5x_lite.adapters.composition import ROUTER, told
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.sparse import norms_of
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, Rate
from t5x_lite.core.trees import Array
from t5x_lite.nn import experts
from t5x_lite.nn.dense import MLP, Activation, Dense, LayerNorm, RMSNorm, einsum, split_key
from t5x_lite.nn.experts import ExpertChanges, ExpertWeights, through_experts
from t5x_lite.nn.layers import residual
from t5x_lite.nn.slots import Around, TokenHost, bind, shapes


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
    """Modules of a Compacter adapter, with Kronecker factors that all layers share.

    Args:
      found: adapter modules by stack ("encoder" or "decoder") and layer position.
      dim: number n of Kronecker products.
      rngs: random streams; "params" is used.
    """

    def __init__(self, found: Any, *, dim: int, rngs: nnx.Rngs):
        super().__init__(found)
        rule = 1e-4 * jax.random.normal(rngs.params(), (dim, dim, dim), jnp.float32)
        self.rule = nnx.Param(rule, logical=(None, None, None))

    def complete(self) -> None:
        """Copy the shared Kronecker factors to the layers of the adapter, in place."""
        rule = self.rule[...]
        for place in self.places:
            block: CompacterBlock = self.at(*place)
            num = block.down.left.shape[0]
            for phm in (block.down, block.up):
                layers = jnp.broadcast_to(rule, (num, *rule.shape))
                phm.rule = nnx.Variable(layers, logical=("layers", None, None, None))


class CompacterBlock(BottleneckBlock):
    """Bottleneck adapter module with sums of Kronecker products as projections."""

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
                "the PHM layer of a Compacter has no shared arrays; call complete() of the "
                "adapter's modules first"
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
      sites: layer position of the adapter; always "invertible".
      reduction: the adapter's networks have hidden size E / (2 * reduction) for embedding size E.
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
      reduction: the coupling networks have hidden size E / (2 * reduction).
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
    """Configuration of T5's adapter layers: small blocks after the model's feed-forward blocks.

    Attributes:
      width: size of the adapter's hidden layer; the T5 paper uses 32, 128, 512 and 2048.
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
        """Return regular expressions for the paths of the trained parameters."""
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
        """Return the block's output after this adapter, as input of the next composed adapter.

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


_ARRAYS = ("down/kernel", "down/bias", "up/kernel", "up/bias")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyper(Bottleneck):
    """Configuration of a hypernetwork that generates bottleneck adapters for several tasks.

    Attributes:
      tasks: number of tasks.
      embedding: size E of the embeddings of tasks, layers and positions in a layer.
      hidden: size of the hypernetwork's hidden layer.
    """

    name: str = "hyper"
    tasks: Count = 2
    embedding: Count = 64
    hidden: Count = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not super()._is_plain:
            raise InputError(
                "a hypernetwork adapter must have the same width in all layers, and does not "
                "support trained scales, norms or gates"
            )

    def block(self, site: Site, rngs: nnx.Rngs) -> "HyperBlock":
        return HyperBlock(plain(self), site)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "HyperModules":
        return HyperModules(self, self._blocks(model, rngs=rngs), rngs=rngs)

    @property
    def _is_plain(self) -> bool:
        return False

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """Raise InputError, because a hypernetwork does not support scaling."""
        raise InputError(
            f"hypernetwork {self.name} cannot be multiplied by {factor}; convert the adapter of "
            "one task to a bottleneck first, with ejected()"
        )


def hyper(*, name: str = "hyper", cross: bool = False, **changes: Any) -> Hyper:
    """Return a hypernetwork config for bottlenecks after attention and feed-forward blocks."""
    like = double_seq_bn(cross=cross)
    options = {"sites": like.sites, "reads": like.reads, "activation": "gelu_new", **changes}
    return Hyper(name=name, **options)


def plain(config: Hyper) -> Bottleneck:
    """Return the config of the bottleneck adapters that a hypernetwork generates."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(Bottleneck)}
    return Bottleneck(**fields)


class HyperModules(BottleneckModules):
    """Hypernetwork, and the bottleneck modules that it generates.

    Args:
      config: config of the adapter.
      found: adapter modules by stack ("encoder" or "decoder") and layer position.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: Hyper, found: Any, *, rngs: nnx.Rngs):
        super().__init__(found)
        self.num_tasks = config.tasks
        blocks: list[HyperBlock] = [self.at(*place) for place in self.places]
        self.site_names = tuple(dict.fromkeys(block.site for block in blocks))
        size, layers = config.embedding, max((block.layers.stop for block in blocks), default=1)
        none = (None, None)
        self.task_embedding, self.layer_embedding, self.site_embedding = (
            nnx.Param(jax.random.normal(rngs.params(), (num, size), jnp.float32), logical=none)
            for num in (config.tasks, layers, max(1, len(self.site_names)))
        )
        init = jax.nn.initializers.lecun_normal()
        widths = (3 * size, config.hidden, size)
        self.inner, self.outer = (
            Dense(widths[i], widths[i + 1], axes=none, initializer=init, bias=True, rngs=rngs)
            for i in (0, 1)
        )
        self.norm = LayerNorm(size, 1e-5)
        small = jax.nn.initializers.normal(0.01)
        for name, shape in blocks[0].shapes().items() if blocks else ():
            number = 1
            for each in shape:
                number *= each
            made = Dense(size, number, axes=none, initializer=small, bias=True, rngs=rngs)
            setattr(self, name.replace("/", "_"), made)

    def complete(self) -> None:
        """Generate the bottlenecks of all tasks and store them in the modules, in place."""
        for place in self.places:
            block: HyperBlock = self.at(*place)
            block.put(self.arrays(block))

    def arrays(self, block: "HyperBlock") -> dict[str, Float[Array, "N tasks *_"]]:
        """Generate the bottlenecks at one layer position: arrays [layers, tasks, ...] by name."""
        embeddings = (self.task_embedding, self.layer_embedding, self.site_embedding)
        task, layer, site = (each[...] for each in embeddings)
        numbers = jnp.arange(block.layers.start, block.layers.stop)
        parts = (
            task[None],
            layer[numbers][:, None],
            site[self.site_names.index(block.site)][None, None],
        )
        size = task.shape[-1]
        shape = (len(block.layers), self.num_tasks, size)
        given = jnp.concatenate([jnp.broadcast_to(part, shape) for part in parts], axis=-1)
        hidden = jax.nn.relu(self.inner.product(given))
        code = self.norm(self.outer.product(hidden))
        return {
            name: getattr(self, name.replace("/", "_"))
            .product(code)
            .astype(task.dtype)
            .reshape(*shape[:2], *own)
            for name, own in block.shapes().items()
        }


class HyperBlock(nnx.Module):
    """Bottleneck modules that a hypernetwork generates for all tasks, at one layer position.

    Args:
      config: config of the bottlenecks.
      site: position of the bottlenecks in the layers.
    """

    def __init__(self, config: Bottleneck, site: Site):
        def block(rngs: nnx.Rngs) -> BottleneckBlock:
            return BottleneckBlock(config, site.d_model, rngs=rngs)

        self.site, self.layers = site.name, range(site.first, site.first + site.num_layers)
        self.graphdef, abstract, _ = shapes(block)
        self.sizes = tuple((p, tuple(x.shape)) for p, x in trees.flatten(abstract).items())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the array shapes of one layer's bottleneck by parameter path."""
        return {name: dict(self.sizes)[name] for name in _ARRAYS}

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Store the arrays of the bottlenecks, [layers, tasks, ...] by name, in this module."""
        for name, x in arrays.items():
            axes = ("layers", *(None,) * (x.ndim - 1))
            setattr(self, name.replace("/", "_"), nnx.Variable(x, logical=axes))

    def task(self, number: int) -> BottleneckBlock:
        """Return the generated bottleneck module of one task."""
        own = {name: getattr(self, name.replace("/", "_"))[...][number] for name in _ARRAYS}
        return bind(self.graphdef, trees.unflatten(own))

    def clear_unused(self) -> None:
        """Do nothing, because the bottlenecks of all layers have the same width."""

    def num_unused(self) -> int:
        return 0

    @property
    def is_here(self) -> bool:
        return True

    def reads(self, *arguments: Any) -> Float[Array, "B T D"]:
        return self.task(0).reads(*arguments)

    def skip(self, *arguments: Any) -> Float[Array, "B T D"]:
        return self.task(0).skip(*arguments)


def ejected(
    config: Hyper, modules: HyperModules, *, task: int, name: str = ""
) -> tuple[Bottleneck, dict[str, Array]]:
    """Return the bottleneck adapter that a hypernetwork generates for one task.

    Args:
      config: config of the hypernetwork.
      modules: modules of the hypernetwork.
      task: task number.
      name: name of the bottleneck adapter; "" uses the name of the hypernetwork.

    Returns:
      Config of the bottleneck adapter, and its parameters by path.
    """
    made = dataclasses.replace(plain(config), name=name or config.name)
    found: dict[str, Array] = {}
    for stack, site in modules.places:
        for path, x in modules.arrays(modules.at(stack, site)).items():
            found[f"{ADAPTERS}{made.name}/{stack}/{site}/{path}"] = x[:, task]
    return made, found


_SITE = "after_mlp"
_BLOCK = ("mlp/in", "mlp/gate", "mlp/out", "mlp/hidden")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts(Adapter):
    """Configuration of a mixture of experts made from copies of each feed-forward block.

    Attributes:
      sites: layer position of the adapter; always "after_mlp", in encoder and decoder.
      num: number E of experts.
      top: number K of experts that each token uses.
      balance: loss weight of the load-balancing term (Fedus et al. 2022); 0 disables the term.
    """

    name: str = "experts"
    sites: tuple[str, ...] = (_SITE,)
    num: int = 4
    top: int = 1
    balance: Annotated[float, AtLeast(0)] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != (_SITE,):
            raise InputError(
                f"an experts adapter must have sites=({_SITE!r},), the feed-forward block, but has "
                f"sites={self.sites}"
            )
        if self.num < 2 or not 1 <= self.top <= self.num:
            raise InputError(
                "an experts adapter must have num of at least 2 and top from 1 to num, got num "
                f"{self.num} and top {self.top}"
            )

    @property
    def router_balance(self) -> float | None:
        return self.balance

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "ExpertModules":
        """Build the routers and the experts, which start as copies of the feed-forward block."""
        stacks: dict[str, Any] = stacks_of(model)

        def layer(site: Site, rngs: nnx.Rngs) -> ExpertLayer:
            block: MLP = stacks[site.stack].hidden_sites()["mlp/hidden"]
            sites = block.dense_sites()
            _, d_model, d_ff = sites["in"].kernel.shape
            bias = sites["in"].has_bias
            return ExpertLayer(self, d_model, d_ff, gated="gate" in sites, bias=bias, rngs=rngs)

        return ExpertModules(self.at_sites(model, block=layer, rngs=rngs))


class ExpertModules(Modules):
    """Routers and experts of one mixture-of-experts adapter, for all layers of a model."""

    alone = "replaces the feed-forward block"

    def claims(self) -> tuple[str, ...]:
        stacks = dict.fromkeys(stack for stack, _ in self.places)
        return (*super().claims(), *(f"{stack}/{site}" for stack in stacks for site in _BLOCK))

    def meet(self, stacks: Mapping[str, Any]) -> None:
        """Copy the base model's feed-forward arrays to the expert layers, in place."""
        for stack, site in self.places:
            layer: ExpertLayer = self.at(stack, site)
            block: MLP = stacks[stack].hidden_sites()["mlp/hidden"]
            layer.activation = block.activation
            layer.base = nnx.Dict(_arrays_of(block))


def _arrays_of(block: MLP) -> dict[str, nnx.Variable]:
    """Return the arrays of a feed-forward block, with an axis of size 1 for the experts."""
    sites = block.dense_sites()
    names = {"wi": "in", "wo": "out", "gate": "gate"}
    found = {ours: sites[site].kernel[...] for ours, site in names.items() if site in sites}
    if sites["in"].has_bias:
        found |= {"bi": sites["in"].bias[...], "bo": sites["out"].bias[...]}
    axes = ("layers", None, None, None)
    return {name: nnx.Variable(x[:, None], logical=axes[: x.ndim + 1]) for name, x in found.items()}


class ExpertLayer(nnx.Module):
    """Router and experts of one layer, which replace the layer's feed-forward block.

    Args:
      config: config of the adapter.
      d_model: hidden size D.
      d_ff: feed-forward size F.
      gated: True if the replaced feed-forward block has a gate.
      bias: True if the replaced feed-forward block has biases.
      rngs: random streams; "params" is used.
    """

    base: nnx.Dict | None = None  # the block's arrays, from `ExpertModules.meet`
    activation: Activation = "relu"

    def __init__(
        self,
        config: Experts,
        d_model: int,
        d_ff: int,
        *,
        gated: bool,
        bias: bool,
        rngs: nnx.Rngs,
    ):
        self.config = config
        init = jax.nn.initializers.normal(0.02)
        axes = ("embed", None)
        self.router = Dense(d_model, config.num, axes=axes, initializer=init, bias=True, rngs=rngs)
        self.changes = ExpertChanges(config.num, d_model, d_ff, gated=gated, bias=bias)

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        if self.base is None:
            raise ValueError(
                "the expert layer has no base arrays; attach the adapter to a model first"
            )
        read = around.source
        logits = self.router.product(read)
        share = jax.nn.softmax(logits, axis=-1)
        if experts.is_collected():
            said = told(share, around.mask, length=x.shape[1])
            experts.add(f"{ROUTER}{self.config.name}", said)
        likeliest, chosen = jax.lax.top_k(share, self.config.top)
        if self.config.top == 1:
            weights = 1.0 + likeliest - jax.lax.stop_gradient(likeliest)
        else:
            weights = likeliest / jnp.sum(likeliest, axis=-1, keepdims=True)
        base = ExpertWeights(**{name: each[...] for name, each in self.base.items()})
        made = through_experts(
            read, chosen, weights, self.changes.of(base), activation=self.activation
        )
        total = x + made.astype(f.dtype)
        return total if norm is None else norm(total)
