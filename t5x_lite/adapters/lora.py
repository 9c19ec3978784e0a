"""LoRA and (IA)^3: adapters that add low-rank products, or multiply activations by factors.

LoRA adds a low-rank product to the product of a dense layer (Hu et al. 2021, arXiv:2106.09685).

    y = x W + b + s (x A) B         s = alpha / rank, or with rank_stabilised alpha / sqrt(rank)

A [in, rank] starts uniform in +-1 / sqrt(in) (kaiming_uniform with a = sqrt 5, as in the paper's
code and in PEFT), and B [rank, out] as 0, so nothing changes at first. The kernel W + s A B gives
the same result without the branch.

`rank_pattern` and `alpha_pattern` set rank and alpha of some layers, by the ends of paths such as
encoder/0/attention/query (STACK/LAYER/SITE, layers counted from 0 in each stack):

    lora(r=4, rank_pattern={"encoder/.*": 8, "1/attention/value": 2}, alpha_pattern={"mlp/in": 16})

The arrays of a site have the largest rank of its layers. The columns of A and rows of B that a
layer lacks are 0, and stay 0 because their gradients are.

The site "embedding" is the token embedding, E + s A B with A [V, rank] and B [rank, D]. A starts as
0 and B as N(0, 1), as in the paper's code and in PEFT. A model with a tied output layer also reads
the sum there. Only "embedding" itself in `sites` selects it; no regular expression does.

DoRA (Liu et al. 2024, arXiv:2402.09353) trains the norm of each column apart from its direction:

    y = x (m (W + s A B) / |W + s A B|) + b         |.| a column's norm over `in`, without gradient

m starts as |W|. It is stored as m - |W| (`magnitude`, 0 at first), so it fits the base of any
checkpoint; its gradient is the gradient of m. The bias is not scaled, as in PEFT.

PiSSA (Meng et al. 2024, arXiv:2404.02948), `init="pissa"`, trains the largest singular values of W:

    y = x (W - s A0 B0) + b + s (x A) B         A and B start as A0 and B0

W = U S V gives A0 = U_r sqrt(S_r / s) and B0 = sqrt(S_r / s) V_r of the r largest singular values,
computed when a run starts. A0 and B0 are stored with the adapter and are not trained. So W stays as
it is, and adapters of other kinds can use the same base. Merged or exported, the change is the LoRA
of rank 2 r with the factors [A, A0] and [B, -B0], as PEFT converts it.

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
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import ADAPTERS, Adapter, Modules, Site, check_patterns
from t5x_lite.adapters.composition import Gate, check_stacks, gates_of, make_gate
from t5x_lite.adapters.delta_parts import Dora, LowRank, Part, Scale
from t5x_lite.adapters.whole_arrays import Leaf, table_of
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Rate
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.dense import Dense, dropout, einsum

EMBEDDING = "embedding"
"""Name in `Lora.sites` for the token embedding."""


Start = Literal["zero", "pissa"]
"""Initial factors of LoRA: B = 0, or the largest singular values of the kernel."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora(Adapter):
    """Configuration of LoRA adapters: trained low-rank products added to dense layers.

    Attributes:
      rank: rank of the low-rank products.
      alpha: numerator of the scale alpha / rank.
      rank_pattern: ranks of some layers, as pairs (regular expression, rank). An expression must
        match the path STACK/LAYER/SITE, or its end after a "/"; the first match counts.
      alpha_pattern: values of alpha for some layers, as in `rank_pattern`.
      rank_stabilised: True to use the scale alpha / sqrt(rank) (Kalajdzievski 2023,
        arXiv:2312.03732).
      init: initial factors: "zero" starts with B = 0, "pissa" with the kernel's largest singular
        values (PiSSA); neither changes the model's initial outputs.
      dropout: dropout rate of the input of A, in training only.
      dora: True to train the norm of each kernel column separately from its direction (DoRA).
      gate: gate of the LoRA output: "none", or the mean over "real_tokens" (no padding) or over
        "all_tokens" (as in the library `adapters`, only for encoders).
    """

    name: str = "lora"
    sites: tuple[str, ...] = ("(cross_)?attention/(query|value)",)
    rank: Count = 8
    alpha: float = 8.0
    rank_pattern: tuple[tuple[str, int], ...] = ()
    alpha_pattern: tuple[tuple[str, float], ...] = ()
    rank_stabilised: bool = False
    init: Start = "zero"
    dropout: Rate = 0.0
    dora: bool = False
    gate: Gate = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        for alpha in (self.alpha, *(alpha for _, alpha in self.alpha_pattern)):
            if not math.isfinite(alpha) or not alpha:
                raise InputError(
                    f"adapter {self.name!r}: alpha must be finite and not 0, got {alpha}"
                )
        for pattern, rank in self.rank_pattern:
            if rank < 1:
                raise InputError(
                    f"adapter {self.name!r}: the rank of rank_pattern {pattern!r} must be at least "
                    f"1: got {rank}"
                )
        for field in ("rank_pattern", "alpha_pattern"):
            check_patterns(field, [pattern for pattern, _ in getattr(self, field)])
        for other, name in ((self.dora, "dora"), (EMBEDDING in self.sites, f"site {EMBEDDING!r}")):
            if self.gate != "none" and other:
                raise InputError(f"LoRA with a gate does not support {name}; use only one of them")
        if self.dora and EMBEDDING in self.sites:
            raise InputError(
                f"LoRA with dora does not support the site {EMBEDDING!r}; use only one of them"
            )
        if self.dropout and EMBEDDING in self.sites:
            raise InputError(
                f"LoRA with dropout does not support the site {EMBEDDING!r}, because its change "
                "is merged into the token embedding; use only one of them"
            )
        if self.init == "pissa":
            for other, name in (
                (self.dora, "dora"),
                (self.gate != "none", "a gate"),
                (EMBEDDING in self.sites, f"the site {EMBEDDING!r}"),
                (any(x < 0 for x in (self.alpha, *dict(self.alpha_pattern).values())), "alpha < 0"),
            ):
                if other:
                    raise InputError(
                        f"LoRA with init='pissa' does not support {name}; use only one of them"
                    )

    @property
    def has_frozen(self) -> bool:
        return self.init == "pissa"

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        if self.init == "pissa":
            return (f"{ADAPTERS}{self.name}/.*/[ab]",)
        return super().trains(paths)

    @property
    def scale(self) -> float:
        """Scale s of the low-rank product, computed from the fields `alpha` and `rank`."""
        return self._scale(self.alpha, self.rank)

    def _scale(self, alpha: float, rank: int) -> float:
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)

    def rank_at(self, path: str) -> int:
        """Return the rank at a path STACK/LAYER/SITE, such as "encoder/0/attention/query"."""
        return next((rank for end, rank in self.rank_pattern if _ends(end, path)), self.rank)

    def alpha_at(self, path: str) -> float:
        """Return alpha at a path STACK/LAYER/SITE, such as "encoder/0/attention/query"."""
        return next((alpha for end, alpha in self.alpha_pattern if _ends(end, path)), self.alpha)

    def scale_at(self, path: str) -> float:
        """Return the scale s at a path STACK/LAYER/SITE, such as "encoder/0/attention/query"."""
        return self._scale(self.alpha_at(path), self.rank_at(path))

    def plain(self, arrays: Mapping[str, Any]) -> "tuple[Lora, dict[str, Any]]":
        """Convert PiSSA to an equal LoRA of twice the rank; return its config and arrays by path.

        Args:
          arrays: float32 arrays of this adapter; paths may have any prefix.
        """
        if self.init == "zero":
            return self, dict(arrays)
        made = {path: x for path, x in arrays.items() if not path.endswith(("start_a", "start_b"))}
        for path, start in arrays.items():
            stem, _, leaf = path.rpartition("/")
            if leaf == "start_a":
                made[f"{stem}/a"] = _paired(made[f"{stem}/a"], start, axis=-1)
            elif leaf == "start_b":
                made[f"{stem}/b"] = _paired(made[f"{stem}/b"], -start, axis=-2)
        factor = math.sqrt(2.0) if self.rank_stabilised else 2.0
        twice = dataclasses.replace(
            self,
            init="zero",
            rank=2 * self.rank,
            alpha=factor * self.alpha,
            rank_pattern=tuple((end, 2 * rank) for end, rank in self.rank_pattern),
            alpha_pattern=tuple((end, factor * alpha) for end, alpha in self.alpha_pattern),
        )
        return twice, made

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        module: Any = DirectedBranch if self.dora else LowRankBranch
        if self.init == "pissa":
            module = PissaBranch
        options: dict[str, Any] = {"rate": self.dropout}
        if self.gate != "none":
            module, options["gate"] = GatedBranch, self.gate

        def branch(site: Site, rngs: nnx.Rngs) -> Factors:
            paths = layer_paths(site.stack, site.name, site.num_layers)
            rank, scale = max(map(self.rank_at, paths)), self.scale_at(paths[0])
            if self.init == "pissa" and rank > (most := min(site.dense.kernel.shape[-2:])):
                raise InputError(
                    f"adapter {self.name!r}: init='pissa' needs a rank of at most {most}, the "
                    f"number of singular values of the kernel of {site.name}, got {rank}"
                )
            return module(site.dense, rank=rank, scale=scale, **options, rngs=rngs)

        layers = tuple(site for site in self.sites if site != EMBEDDING)
        found = self.at_sites(model, dense=branch, sites=layers, rngs=rngs) if layers else {}
        check_stacks(self.gate, found)
        self._set_layers(found)
        if EMBEDDING not in self.sites:
            return LoraModules(found)
        table = table_of(model)
        if table is None:
            raise InputError(f"adapter {self.name!r}: the model has no token embedding")
        rank, scale = self.rank_at(EMBEDDING), self.scale_at(EMBEDDING)
        return TableModules(found, *table, rank=rank, scale=scale, rngs=rngs)

    def _set_layers(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Set rank and scale of each layer; raise InputError if a pattern matches no layer."""
        known = [EMBEDDING] if EMBEDDING in self.sites else []
        for stack, sites in found.items():
            for site, module in sites.items():
                paths = layer_paths(stack, site, module.a.shape[0])
                module.set_layers(map(self.rank_at, paths), map(self.scale_at, paths))
                known += paths
        for field in ("rank_pattern", "alpha_pattern"):
            for pattern, _ in getattr(self, field):
                if not any(_ends(pattern, path) for path in known):
                    raise InputError(
                        f"adapter {self.name!r}: {pattern!r} in {field} matches no layer of its "
                        f"sites, such as {known[0]}"
                    )


def layer_paths(stack: str, site: str, num_layers: int) -> list[str]:
    """Return the path STACK/LAYER/SITE of each layer of a stack, for `Lora.rank_pattern`."""
    return [f"{stack}/{layer}/{site}" for layer in range(num_layers)]


def _paired(first: Any, second: Any, *, axis: int) -> Any:
    """Interleave two low-rank factors along an axis."""
    both = np.stack([first, second], axis=axis)
    shape = list(first.shape)
    shape[axis] *= 2
    return both.reshape(shape)


def _ends(pattern: str, path: str) -> bool:
    return trees.fullmatch(f"(?:.*/)?(?:{pattern})", path)


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
    layer_scale: nnx.Variable | None = None  # from `complete`, if the layers differ
    ranks: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()

    def __init__(self, host: Dense, *, rank: int, scale: float, rate: float = 0.0, rngs: nnx.Rngs):
        features_in, features_out = host.kernel.shape[-2:]
        axes = host.axes
        bound = features_in**-0.5
        a = jax.random.uniform(rngs.params(), (features_in, rank), jnp.float32, -bound, bound)
        self.a = nnx.Param(a, logical=(axes[0], None))
        self.b = nnx.Param(jnp.zeros((rank, features_out), jnp.float32), logical=(None, axes[1]))
        self.scale = scale
        self.dropout_rate = rate

    def set_layers(self, ranks: Iterable[int], scales: Iterable[float]) -> None:
        """Set rank and scale s of each layer of a stack, in place."""
        self.ranks, self.scales = tuple(ranks), tuple(scales)
        if self.num_unused():
            kept = np.arange(max(self.ranks)) < np.asarray(self.ranks)[:, None]
            self.a[...] = self.a[...] * kept[:, None]
        if len({*self.scales}) == 1:
            self.scales = ()

    def num_unused(self) -> int:
        """Return the number of padding values in the trained A and B."""
        size = self.a.shape[-2] + self.b.shape[-1]
        return size * sum(max(self.ranks) - rank for rank in self.ranks)

    def complete(self) -> None:
        """Store the scales of the layers as an array in this module, if they differ."""
        if self.scales:
            self.layer_scale = nnx.Variable(jnp.asarray(self.scales), logical=("layers",))

    @property
    def factor(self) -> Any:
        """Scale s: a number for all layers, or an array with a number for each layer."""
        return self.scale if self.layer_scale is None else self.layer_scale[...]

    def factors(self) -> tuple[Any, Any]:
        """Return A and B such that `scale` A B is the change of each layer's kernel."""
        return self._scaled(self.a[...], self.b[...])

    def _scaled(self, a: Any, b: Any) -> tuple[Any, Any]:
        if self.scales:
            b = b * (np.asarray(self.scales, np.float32) / self.scale)[:, None, None]
        return a, b

    def dropped(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """Return the input of A: x with dropout if the module has a random key."""
        if self.dropout_key is None:
            return x
        # DeBERTa projects tokens and relative positions by one layer, with a mask for each.
        key = jax.random.fold_in(self.dropout_key[...], x.ndim)
        return dropout(x, self.dropout_rate, key=key)

    def branch(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """Return the low-rank product s (x A) B in float32."""
        return self._product(x, self.a[...], self.b[...])

    def _product(self, x: Array, a: Array, b: Array) -> Array:
        batch = "ABCE"[: x.ndim - 1]
        low = einsum(f"{batch}I,IR->{batch}R", x.astype(a.dtype), a).astype(a.dtype)
        return self.factor * einsum(f"{batch}R,RO->{batch}O", low, b)


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
        scales = self.scales or self.scale
        return (type(self), scales, self.dropout_rate, self.a.shape, self.b.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the merged kernel W + s A B, in the dtype of W."""
        return self._moved(kernel).astype(kernel.dtype)

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        return bias

    def _moved(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        both = self._change()
        scale = jnp.asarray(self.factor, jnp.float32)[..., None, None]
        return kernel.astype(jnp.float32) + scale * both

    def _change(self) -> Float[Array, "*layers I O"]:
        return _matmul(self.a[...], self.b[...])

    def parts(self) -> dict[str, Part]:
        return {"kernel": LowRank(*self.factors(), self.scale)}


def _matmul(a: Any, b: Any) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32, precision="highest")


class PissaBranch(LowRankBranch):
    """PiSSA module: adds s (x A B - x A0 B0) to a dense layer; A0, B0 are the initial A, B."""

    def __init__(self, host: Dense, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(host, rngs=rngs, **options)
        axes = host.axes
        self.start_a = nnx.Param(jnp.zeros_like(self.a[...]), logical=(axes[0], None))
        self.start_b = nnx.Param(jnp.zeros_like(self.b[...]), logical=(None, axes[1]))

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """Return y + s (x A) B - s (x A0) B0 in float32; A0 and B0 are the initial A and B."""
        start = self._product(x, self.start_a[...], self.start_b[...])
        return y + (self.branch(self.dropped(x)) - start)

    def start(self, kernel: Float[Array, "N I O"]) -> None:
        """Set A, B and their initial values A0, B0 from each kernel's SVD, if A0 is still 0."""
        rank = self.a.shape[-1]
        u, values, v = jnp.linalg.svd(kernel.astype(jnp.float32), full_matrices=False)
        kept = np.arange(rank) < np.asarray(self.ranks)[:, None]
        scale = np.asarray(self.scales or (self.scale,), np.float32)[:, None]
        root = jnp.where(kept, jnp.sqrt(values[:, :rank] / scale), 0.0)
        a, b = u[..., :rank] * root[:, None], root[..., None] * v[:, :rank]
        is_set = jnp.any(self.start_a[...])
        for param, new in ((self.a, a), (self.b, b), (self.start_a, a), (self.start_b, b)):
            param[...] = jnp.where(is_set, param[...], new)

    def _change(self) -> Float[Array, "*layers I O"]:
        start = _matmul(self.start_a[...], self.start_b[...])
        return _matmul(self.a[...], self.b[...]) - start

    def factors(self) -> tuple[Any, Any]:
        a, b = self._scaled(self.a[...], self.b[...])
        start_a, start_b = self._scaled(self.start_a[...], self.start_b[...])
        return jnp.concatenate([a, start_a], -1), jnp.concatenate([b, -start_b], -2)


class GatedBranch(Factors):
    """LoRA module with a gate g: adds g s (x A) B to the output of a dense layer.

    Args:
      host: dense layer that the product is added to.
      rank: rank of the product A B.
      scale: scale s of the product.
      gate: tokens over which g is averaged: "real_tokens" (no padding) or "all_tokens".
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
          InputError: if the gate is "all_tokens" and x has no batch axis, like DeBERTa's relative
            position embeddings.
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
    """DoRA module: returns m / |W + s A B| (y + s (x A) B) for layer output y, column norms m."""

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
        return {"kernel": Dora(*self.factors(), size, self.scale, relative=True)}

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


class LoraModules(Modules):
    """LoRA modules of a model; the layers of a stack may have different ranks and scales."""

    def complete(self) -> None:
        for place in self.places:
            self.at(*place).complete()

    def start(self, stacks: Mapping[str, Any]) -> None:
        for stack, site in self.places:
            module = self.at(stack, site)
            if isinstance(module, PissaBranch):
                module.start(stacks[stack].dense_sites()[site].kernel[...])

    def num_unused(self) -> int:
        return sum(self.at(*place).num_unused() for place in self.places)


class TableModules(LoraModules):
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
        return {self.path: model[self.path].astype(jnp.float32) + self.scale * _matmul(a, b)}

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        return {self.path: LowRank(*self._factors(), self.scale)}

    def _factors(self) -> tuple[Array, Array]:
        return self.embedding.a[...], self.embedding.b[...]


Place = Literal["after", "before"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ia3(Adapter):
    """Configuration of (IA)^3 adapters: trained factors for activations.

    Attributes:
      sites: names of dense layers with scaled outputs, or regular expressions for such names.
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
        """Return the kernel with columns multiplied by the trained factors, in its own dtype."""
        scale = self.scale[...].astype(jnp.float32)
        return (kernel.astype(jnp.float32) * scale[..., None, :]).astype(kernel.dtype)

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        """Return the bias multiplied by the trained factors, in its own dtype."""
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
        """Return the kernel with rows multiplied by the trained factors, in its own dtype."""
        scale = self.scale[...].astype(jnp.float32)
        return (kernel.astype(jnp.float32) * scale[..., :, None]).astype(kernel.dtype)

    def parts(self) -> dict[str, Part]:
        return {"kernel": Scale(self.scale[...], -2)}
