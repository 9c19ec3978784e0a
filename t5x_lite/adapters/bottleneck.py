"""Bottleneck adapters: a narrow feed-forward block after the blocks of a layer.

    b(a) = s (act(a Wd + bd) Wu + bu)
    out  = norm(b(a) + f + x)                f the block's output after dropout, x its input

| | a | where |
|---|---|---|
| seq_bn (Pfeiffer et al. 2020, arXiv:2005.00052) | norm(f + x) | after_mlp |
| double_seq_bn (Houlsby et al. 2019, arXiv:1902.00751) | f | after_attention, after_mlp |
| par_bn (He et al. 2021, arXiv:2110.04366) | x | after_mlp |

A pre-norm layer (T5) has no norm around the sum. Names and defaults are those of the library
`adapters`, but that the activation of double_seq_bn is relu here, and swish there.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import ADAPTERS, Adapter, Modules
from t5x_lite.errors import InputError
from t5x_lite.nn.activations import Activation, activate
from t5x_lite.nn.dense import Dense
from t5x_lite.types import Array

Reads = Literal["sum", "output", "input"]
Init = Literal["bert", "mam"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bottleneck(Adapter):
    """A bottleneck after blocks.

    Attributes:
      reduction: d_model / reduction is the width, at least 1.
      reads: "sum" norm(f + x), "output" f, or "input" x.
      activation: between the two layers.
      scale: s.
      init: "bert", a normal distribution of 0.02: not the identity; "mam", whose second layer is 0.
    """

    name: str = "bottleneck"
    sites: tuple[str, ...] = ("after_mlp",)
    reduction: float = 16.0
    reads: Reads = "sum"
    activation: Activation = "relu"
    scale: float = 1.0
    init: Init = "bert"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reduction <= 0:
            raise InputError(f"reduction must be above 0: got {self.reduction}")
        for name, choices in (("reads", Reads), ("init", Init), ("activation", Activation)):
            if getattr(self, name) not in get_args(choices):
                raise InputError(
                    f"{name} must be one of {get_args(choices)}: got {getattr(self, name)!r}"
                )

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the blocks."""

        def block(host: Dense, rngs: nnx.Rngs) -> BottleneckBlock:
            return BottleneckBlock(self, host.kernel.shape[-2], rngs=rngs)

        return Modules(self.at_sites(model, block=block, rngs=rngs))

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """The second layer's kernel and bias times the number."""
        number = np.float32(factor)
        return {path: number * x if "/up/" in path else x for path, x in params.items()}

    def joined(
        self, params: Mapping[str, Any], other: Adapter, others: Mapping[str, Any]
    ) -> tuple[Adapter, dict[str, Any]]:
        """One block of both widths, with the scales in its second layer.

        Raises:
          InputError: they read other states, or have other activations, options or sites.
        """
        own = {"name": other.name, "sites": other.sites}
        alike = isinstance(other, Bottleneck) and other == dataclasses.replace(
            self, **own, reduction=other.reduction, scale=other.scale, init=other.init
        )
        ours, theirs = (_by_place(p, one.name) for p, one in ((params, self), (others, other)))
        if not alike or ours.keys() != theirs.keys():
            raise InputError(
                f"the bottlenecks {self.name} and {other.name} have no sum: they must stand at the "
                "same places and differ in name, width, scale and init alone"
            )
        assert isinstance(other, Bottleneck)
        made: dict[str, Any] = {}
        for place in ours:
            first, second = params[ours[place]], others[theirs[place]]
            if "/up/" in place:
                first, second = self.scale * np.asarray(first), other.scale * np.asarray(second)
            axis = -2 if place.endswith("up/kernel") else -1
            is_sum = place.endswith("up/bias")
            made[ours[place]] = first + second if is_sum else np.concatenate([first, second], axis)
        kernel = next(x for path, x in made.items() if path.endswith("up/kernel"))
        width, d_model = kernel.shape[-2:]
        return dataclasses.replace(self, reduction=d_model / (width + 0.5), scale=1.0), made


def _by_place(params: Mapping[str, Any], name: str) -> dict[str, str]:
    """STACK/SITE/down/kernel -> path, of the parameters of a module."""
    return {path.removeprefix(f"{ADAPTERS}{name}/"): path for path in params}


def seq_bn(*, name: str = "bottleneck", **changes: Any) -> Bottleneck:
    """After the feed-forward block, on the normed sum."""
    return Bottleneck(name=name, **changes)


def double_seq_bn(*, name: str = "bottleneck", **changes: Any) -> Bottleneck:
    """After attention and feed-forward block, on their outputs."""
    options = {"sites": ("after_attention", "after_mlp"), "reads": "output", **changes}
    return Bottleneck(name=name, **options)


def par_bn(*, name: str = "bottleneck", **changes: Any) -> Bottleneck:
    """Beside the feed-forward block, on its input; the identity at the start."""
    options = {"reads": "input", "reduction": 2.0, "scale": 4.0, "init": "mam", **changes}
    return Bottleneck(name=name, **options)


class BottleneckBlock(nnx.Module):
    """A `BlockSlot`.

    Args:
      config: of the adapter.
      d_model: of the states.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Bottleneck, d_model: int, *, rngs: nnx.Rngs):
        width = max(1, int(d_model // config.reduction))

        def dense(sizes: tuple[int, int], axes: tuple[str | None, str | None], init: Any) -> Dense:
            return Dense(*sizes, axes=axes, initializer=init, bias=True, rngs=rngs)

        normal = jax.nn.initializers.normal(0.02)
        down = up = normal
        if config.init == "mam":
            bound = d_model**-0.5

            def down(key: Any, shape: Any, dtype: Any) -> Array:
                return jax.random.uniform(key, shape, dtype, -bound, bound)

            up = jax.nn.initializers.zeros
        self.down = dense((d_model, width), ("embed", None), down)
        self.up = dense((width, d_model), (None, "embed"), up)
        self.reads: Reads = config.reads
        self.activation: Activation = config.activation
        self.scale = config.scale

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
    ) -> Float[Array, "B T D"]:
        """norm(b(a) + f + x), without a norm in a pre-norm layer."""
        total = x + f
        read = x if self.reads == "input" else f
        if self.reads == "sum":
            read = total if norm is None else norm(total)
        hidden = activate(self.down.product(read), self.activation).astype(x.dtype)
        added = (self.scale * self.up.product(hidden)).astype(x.dtype)
        out = total + added
        return out if norm is None else norm(out)
