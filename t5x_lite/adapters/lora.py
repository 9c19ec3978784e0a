"""LoRA and (IA)^3: adapters that add low-rank products, or multiply activations by factors.

LoRA adds a low-rank product to the product of a dense layer (Hu et al. 2021, arXiv:2106.09685).

    y = x W + b + s (x A) B         s = alpha / rank, or with rank_stabilised alpha / sqrt(rank)

A [in, rank] starts uniform in +-1 / sqrt(in) (kaiming_uniform with a = sqrt 5, as in the paper's
code and in PEFT), and B [rank, out] as 0, so nothing changes at first. The kernel W + s A B gives
the same result without the branch.

The site "embedding" is the token embedding, E + s A B with A [V, rank] and B [rank, D]. A starts as
0 and B as N(0, 1), as in the paper's code and in PEFT. A model with a tied output layer also reads
the sum there. Only "embedding" itself in `sites` selects it; no regular expression does.

DoRA (Liu et al. 2024, arXiv:2402.09353) trains the norm of each column apart from its direction:

    y = x (m (W + s A B) / |W + s A B|) + b         |.| a column's norm over `in`, without gradient

m starts as |W|. It is stored as m - |W| (`magnitude`, 0 at first), so it fits the base of any
checkpoint; its gradient is the gradient of m. The bias is not scaled, as in PEFT.

Dropout (PEFT's lora_dropout) zeroes elements of the input of A in training: s (drop(x) A) B. The
mask is sampled for each element, from the random key of the layer. With DoRA, the rescaling also
reads this input, as in PEFT: y = x W + b + (c - 1) drop(x) W + c s (drop(x) A) B, where c is
m / |W + s A B|. Merged weights and other commands than `train` have no dropout.

A gate (`t5x_lite.adapters.composition`) weights the branch by the tokens of a row, as in UniPELT:
y = x W + b + g s (x A) B. No kernel gives the same result. (In the library `adapters`, s has no
effect with a gate.)

(IA)^3: scales of keys, values and the feed-forward layer (Liu et al. 2022, arXiv:2205.05638).

    k = l_k (x W + b)      v = l_v (x W + b)      all l start as 1, so nothing changes at first

| place | feed-forward block | source |
|---|---|---|
| after | wo(l_ff act(wi x)) | the paper's, and PEFT's feedforward_modules |
| before | wo(act(l_ff (wi x + b))) | the library `adapters` |

Both are equal if the scaled product is the linear half of a gated layer (T5 1.1), or if l_ff > 0
and the activation is relu.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter, Modules, Site
from t5x_lite.adapters.composition import Gate, check_stacks, gates_of, make_gate
from t5x_lite.adapters.delta_parts import Dora, LowRank, Part, Scale
from t5x_lite.adapters.whole_arrays import Leaf, table_of
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Rate
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.dense import Dense, dropout, einsum

EMBEDDING = "embedding"
"""Name in `Lora.sites` for the token embedding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora(Adapter):
    """Configuration of LoRA adapters: trained low-rank products added to dense layers.

    Attributes:
      rank: rank of the low-rank products.
      alpha: numerator of the scale alpha / rank.
      rank_stabilised: True to use the scale alpha / sqrt(rank) (Kalajdzievski 2023,
        arXiv:2312.03732).
      dropout: dropout rate of the input of A, in training only.
      dora: True to train the norm of each kernel column separately from its direction (DoRA).
      gate: gate of the LoRA output: "none", "real_tokens", or "all_tokens" (as in the library
        `adapters`, only for encoders).
    """

    name: str = "lora"
    sites: tuple[str, ...] = ("(cross_)?attention/(query|value)",)
    rank: Count = 8
    alpha: float = 8.0
    rank_stabilised: bool = False
    dropout: Rate = 0.0
    dora: bool = False
    gate: Gate = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.alpha) or not self.alpha:
            raise InputError(f"alpha must be finite and not 0, got {self.alpha}")
        for other, name in ((self.dora, "dora"), (EMBEDDING in self.sites, f"site {EMBEDDING!r}")):
            if self.gate != "none" and other:
                raise InputError(f"LoRA with a gate does not support {name}; use only one of them")
        if self.dora and EMBEDDING in self.sites:
            raise InputError(
                f"LoRA with dora does not support the site {EMBEDDING!r}; use only one of them"
            )
        if self.dropout and EMBEDDING in self.sites:
            raise InputError(
                f"LoRA with dropout does not support the site {EMBEDDING!r}, whose change is "
                "merged into the token embedding; use only one of them"
            )

    @property
    def scale(self) -> float:
        """Scale s of the low-rank product."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        module: Any = DirectedBranch if self.dora else LowRankBranch
        options: dict[str, Any] = {"rank": self.rank, "scale": self.scale, "rate": self.dropout}
        if self.gate != "none":
            module, options["gate"] = GatedBranch, self.gate

        def branch(site: Site, rngs: nnx.Rngs) -> Factors:
            return module(site.dense, **options, rngs=rngs)

        layers = tuple(site for site in self.sites if site != EMBEDDING)
        found = self.at_sites(model, dense=branch, sites=layers, rngs=rngs) if layers else {}
        check_stacks(self.gate, found)
        if EMBEDDING not in self.sites:
            return Modules(found)
        table = table_of(model)
        if table is None:
            raise InputError(f"adapter {self.name!r}: the model has no token embedding")
        return TableModules(found, *table, rank=self.rank, scale=self.scale, rngs=rngs)


class Factors(nnx.Module):
    """Base class of LoRA modules: low-rank factors A and B of a dense layer; B starts as 0.

    Args:
      host: dense layer that the product is added to.
      rank: rank of the product A B.
      scale: scale s of the product.
      rate: dropout rate of the input of A.
      rngs: random streams; "params" is used.
    """

    dropout_key: nnx.Variable | None = None  # from `slots.with_dropout`

    def __init__(self, host: Dense, *, rank: int, scale: float, rate: float = 0.0, rngs: nnx.Rngs):
        features_in, features_out = host.kernel.shape[-2:]
        axes = host.axes
        bound = features_in**-0.5
        a = jax.random.uniform(rngs.params(), (features_in, rank), jnp.float32, -bound, bound)
        self.a = nnx.Param(a, logical=(axes[0], None))
        self.b = nnx.Param(jnp.zeros((rank, features_out), jnp.float32), logical=(None, axes[1]))
        self.scale = scale
        self.dropout_rate = rate

    def dropped(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """Return the input of A: x with dropout if the module has a random key."""
        if self.dropout_key is None:
            return x
        # DeBERTa projects tokens and relative positions by one layer, with a mask for each.
        key = jax.random.fold_in(self.dropout_key[...], x.ndim)
        return dropout(x, self.dropout_rate, key=key)

    def branch(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """Return the low-rank product s (x A) B in float32."""
        a, b = self.a[...], self.b[...]
        batch = "ABCE"[: x.ndim - 1]
        low = einsum(f"{batch}I,IR->{batch}R", x.astype(a.dtype), a).astype(a.dtype)
        return self.scale * einsum(f"{batch}R,RO->{batch}O", low, b)


class LowRankBranch(Factors):
    """LoRA module: adds s (x A) B to the output of a dense layer."""

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """Return y plus the low-rank product s (x A) B, in float32."""
        return y + self.branch(self.dropped(x))

    def kind(self) -> Hashable:
        return (type(self), self.scale, self.dropout_rate, self.a.shape, self.b.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the merged kernel W + s A B, in the dtype of W."""
        return self._moved(kernel).astype(kernel.dtype)

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        return bias

    def _moved(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        both = jnp.matmul(
            self.a[...], self.b[...], preferred_element_type=jnp.float32, precision="highest"
        )
        return kernel.astype(jnp.float32) + self.scale * both

    def parts(self) -> dict[str, Part]:
        return {"kernel": LowRank(self.a[...], self.b[...], self.scale)}


class GatedBranch(Factors):
    """LoRA module with a gate g: adds g s (x A) B to the output of a dense layer.

    Args:
      host: dense layer that the product is added to.
      rank: rank of the product A B.
      scale: scale s of the product.
      gate: kind of the gate g.
      rate: dropout rate of the input of A.
      rngs: random streams; "params" is used.
    """

    per_row = True

    def __init__(
        self,
        host: Dense,
        *,
        rank: int,
        scale: float,
        gate: Gate,
        rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        super().__init__(host, rank=rank, scale=scale, rate=rate, rngs=rngs)
        self.kind_of_gate: Gate = gate
        self.gate = make_gate(host.kernel.shape[-2], host.axes[0], rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        return self.gated(x, y, kernel, None)

    def gated(
        self,
        x: Float[Array, "*B T I"],
        y: Float[Array, "*B T O"],
        kernel: Float[Array, "I O"],
        seen: Any,
    ) -> Float[Array, "*B T O"]:
        """Return y plus the gated low-rank product g s (x A) B, in float32.

        Raises:
          InputError: if the gate is "all_tokens", but x has no batch axis (DeBERTa's relative
            positions).
        """
        del kernel
        if x.ndim < 3:
            if self.kind_of_gate == "all_tokens":
                raise InputError(
                    "gate 'all_tokens' is not supported at layers that also project DeBERTa's "
                    "relative positions; set gate to 'real_tokens', or use other sites, such as "
                    "attention/value"
                )
            seen = None
        gates = gates_of(self.gate, x, seen, self.kind_of_gate)
        return y + gates * self.branch(self.dropped(x))

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        raise InputError(
            "a LoRA adapter with a gate cannot be merged, because each row would need its own "
            "kernel"
        )

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        return bias


class DirectedBranch(LowRankBranch):
    """DoRA module: returns m / |W + s A B| (y + s (x A) B) for a dense layer's output y."""

    def __init__(self, host: Dense, *, rank: int, scale: float, rate: float = 0.0, rngs: nnx.Rngs):
        super().__init__(host, rank=rank, scale=scale, rate=rate, rngs=rngs)
        start = jnp.zeros(host.kernel.shape[-1:], jnp.float32)
        self.magnitude = nnx.Param(start, logical=host.axes[1:])

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """Return y + s (x A) B, rescaled to the column norms m, in float32."""
        sizes = self._sizes(kernel)
        if self.dropout_key is None:
            return sizes * super().__call__(x, y, kernel)
        x = self.dropped(x).astype(kernel.dtype)
        batch = "ABCE"[: x.ndim - 1]
        own = einsum(f"{batch}I,IO->{batch}O", x, kernel)
        return y + (sizes - 1.0) * own + sizes * self.branch(x)

    def kind(self) -> Hashable:
        return None

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the merged kernel m (W + s A B) / |W + s A B|, in the dtype of W."""
        return (self._sizes(kernel)[..., None, :] * self._moved(kernel)).astype(kernel.dtype)

    def parts(self) -> dict[str, Part]:
        size = self.magnitude[...]
        return {"kernel": Dora(self.a[...], self.b[...], size, self.scale, relative=True)}

    def _sizes(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers O"]:
        """Return the factor m / |W + s A B| of each column in float32; only m has a gradient.

        The factor is computed as 1 + (m - |W + s A B|) / |W + s A B|, which is exactly 1 before
        training.
        """
        kernel = jax.lax.stop_gradient(kernel)
        plain = _column_norms(kernel.astype(jnp.float32))
        moved = _column_norms(jax.lax.stop_gradient(self._moved(kernel)))
        size = plain + self.magnitude[...].astype(jnp.float32)
        return 1.0 + (size - moved) / jnp.where(moved == 0.0, 1.0, moved)


def _column_norms(kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers O"]:
    return jnp.sqrt(jnp.sum(jnp.square(kernel), axis=-2))


class TableBranch(nnx.Module):
    """LoRA factors A and B for the token embedding; A starts as 0.

    Args:
      table: shape and axes of the token embedding [V, D].
      rank: rank of the product A B.
      rngs: random streams; "params" is used.
    """

    def __init__(self, table: Leaf, *, rank: int, rngs: nnx.Rngs):
        (rows, columns), axes = table.shape, table.axes
        start = jax.random.normal(rngs.params(), (rank, columns), jnp.float32)
        self.a = nnx.Param(jnp.zeros((rows, rank), jnp.float32), logical=(axes[0], None))
        self.b = nnx.Param(start, logical=(None, axes[1]))


class TableModules(Modules):
    """LoRA modules of a model, including a low-rank change of the token embedding.

    Args:
      found: LoRA modules by stack ("encoder" or "decoder") and layer position.
      path: path of the token embedding in the model.
      table: shape and axes of the token embedding.
      rank: rank of the product A B.
      scale: scale s of the product.
      rngs: random streams; "params" is used.
    """

    def __init__(
        self,
        found: Mapping[str, Mapping[str, nnx.Module]],
        path: str,
        table: Leaf,
        *,
        rank: int,
        scale: float,
        rngs: nnx.Rngs,
    ):
        super().__init__(found)
        self.path, self.scale = path, scale
        self.embedding = TableBranch(table, rank=rank, rngs=rngs)

    def claims(self) -> tuple[str, ...]:
        return (*super().claims(), f"model/{self.path}")

    def copied(self) -> tuple[str, ...]:
        return (self.path,)

    def read(self, model: Mapping[str, Any], *, key: Key | None = None) -> dict[str, Any]:
        """Return the token embedding plus its low-rank change, by path, in float32."""
        del key
        a, b = (array.astype(jnp.float32) for array in self._factors())
        both = jnp.matmul(a, b, preferred_element_type=jnp.float32, precision="highest")
        return {self.path: model[self.path].astype(jnp.float32) + self.scale * both}

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        return {self.path: LowRank(*self._factors(), self.scale)}

    def _factors(self) -> tuple[Array, Array]:
        return self.embedding.a[...], self.embedding.b[...]


Place = Literal["after", "before"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ia3(Adapter):
    """Configuration of (IA)^3 adapters: trained factors for activations.

    Attributes:
      sites: names of dense layers with a scaled output.
      place: position of the factors in the feed-forward block: "after" or "before" the activation.
      feed_forward: True to scale the feed-forward block.
      attention_out: True to also scale the input of each attention's output layer, as PEFT does for
        BERT.
    """

    name: str = "ia3"
    sites: tuple[str, ...] = ("(cross_)?attention/(key|value)",)
    place: Place = "after"
    feed_forward: bool = True
    attention_out: bool = False

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        outputs, inner = list(self.sites), []
        if self.feed_forward and self.place == "before":
            outputs.append("mlp/in")
        if self.feed_forward and self.place == "after":
            inner.append("mlp/hidden")
        if self.attention_out:
            inner.append("(cross_)?attention/hidden")

        def output(site: Site, rngs: nnx.Rngs) -> OutputScale:
            return OutputScale(site.dense.kernel.shape[-1], site.dense.axes[1])

        def hidden(site: Site, rngs: nnx.Rngs) -> HiddenScale:
            return HiddenScale(site.dense.kernel.shape[-2], site.dense.axes[0])

        found = self.at_sites(model, dense=output, sites=outputs, rngs=rngs)
        for stack, sites in self.at_sites(model, hidden=hidden, sites=inner, rngs=rngs).items():
            found.setdefault(stack, {}).update(sites)
        return Modules(found)


class OutputScale(nnx.Module):
    """(IA)^3 module that multiplies the output of a dense layer by trained factors l.

    Args:
      size: size of the layer's output.
      axis: logical name of the output's axis.
    """

    def __init__(self, size: int, axis: str | None):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=(axis,))

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        return y * self.scale[...].astype(jnp.float32)

    def kind(self) -> Hashable:
        return (type(self), self.scale.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the kernel with its columns multiplied by the factors l, in its dtype."""
        scale = self.scale[...].astype(jnp.float32)
        return (kernel.astype(jnp.float32) * scale[..., None, :]).astype(kernel.dtype)

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        """Return the bias multiplied by the factors l, in its dtype."""
        if bias is None:
            return None
        return (bias.astype(jnp.float32) * self.scale[...].astype(jnp.float32)).astype(bias.dtype)

    def parts(self) -> dict[str, Part]:
        return {"kernel": Scale(self.scale[...]), "bias": Scale(self.scale[...])}


class HiddenScale(nnx.Module):
    """(IA)^3 module that multiplies the input of a block's last dense layer by trained factors l.

    Args:
      size: size of the hidden states.
      axis: logical name of the last axis of the hidden states.
    """

    def __init__(self, size: int, axis: str | None):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=(axis,))

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        return hidden * self.scale[...].astype(hidden.dtype)

    def kind(self) -> Hashable:
        return (type(self), self.scale.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the kernel with its rows multiplied by the factors l, in its dtype."""
        scale = self.scale[...].astype(jnp.float32)
        return (kernel.astype(jnp.float32) * scale[..., :, None]).astype(kernel.dtype)

    def parts(self) -> dict[str, Part]:
        return {"kernel": Scale(self.scale[...], -2)}
