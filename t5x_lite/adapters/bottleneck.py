"""Bottleneck adapters: a narrow feed-forward block after the blocks of a layer.

    b(a) = g dropout(s (act(a Wd + bd) Wu + bu))
    out  = norm(b(a) + r + x)                f: output of the block after dropout, x: its input

| | a | r | sites |
|---|---|---|---|
| seq_bn (Pfeiffer et al. 2020, arXiv:2005.00052) | norm(f + x) | f | after_mlp |
| double_seq_bn (Houlsby et al. 2019, arXiv:1902.00751) | f | f | after_attention, after_mlp |
| par_bn (He et al. 2021, arXiv:2110.04366) | x | f | after_mlp |

A pre-norm layer (T5) has no norm around the sum. Names and defaults follow the library `adapters`.
`t5x_lite.adapters.composition` defines the gate g.
"""

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.adapters.base import ADAPTERS, Adapter, Modules, Site
from t5x_lite.adapters.composition import Gate, check_stacks, gates_of, make_gate
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Rate
from t5x_lite.core.trees import Array
from t5x_lite.nn.dense import Activation, Dense, LayerNorm, activate, dropout
from t5x_lite.nn.slots import Around

Reads = Literal["sum", "output", "input", "normed"]
Residual = Literal["pre", "post_add", "post_ln"]
Init = Literal["bert", "mam", "houlsby"]
NormAfter = Literal["none", "branch", "sum"]
Scale = Literal["learned", "channel"]

CROSS = "after_cross_attention"

WIDEST = 64
"""Maximum width of a block, as a multiple of d_model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bottleneck(Adapter):
    """Configuration of bottleneck adapters, small feed-forward blocks after the model's blocks.

    For a block of the model with input x and output f, the result is norm(b(a) + r + x). The
    adapter is b(a) = g dropout(s (act(a Wd + bd) Wu + bu)); the attributes explain a, r, s and g.

    Attributes:
      reduction: d_model divided by the bottleneck width; the width is at least 1.
      reductions: pairs (layer, reduction) for layers with another reduction. Layers count from 0,
        decoder layers after encoder layers.
      leave_out: layers without the adapter.
      reads: adapter input a: "sum" is norm(f + x), "output" is f, "input" is x, and "normed" is the
        block's normalized input, such as T5's norm(x).
      residual: residual r: "pre" is f, "post_add" is f + x, "post_ln" is a.
      activation: activation function between the two dense layers.
      scale: factor s: a number, or trained from 1: "learned" is one number, "channel" one number
        per channel.
      init: initializer: "bert" is N(0, 0.02^2), so the adapter does not start as the identity;
        "mam" sets the second layer to 0; "houlsby" is N(0, 0.01^2), truncated at two standard
        deviations.
      dropout_rate: dropout rate of the adapter's output.
      ln_before: True to apply a layer norm to a.
      ln_after: layer norm after the adapter: "none", "branch" for b(a), or "sum" for b(a) + r.
      original_ln_after: True to add x and apply the layer's norm; if False, the result is b(a) + r.
      gate: gate g: "none", or the mean over "real_tokens" (no padding) or over "all_tokens" (as in
        the library `adapters`, only for encoders).
    """

    name: str = "bottleneck"
    sites: tuple[str, ...] = ("after_mlp",)
    reduction: float = 16.0
    reductions: tuple[tuple[int, float], ...] = ()
    leave_out: tuple[int, ...] = ()
    reads: Reads = "sum"
    residual: Residual = "pre"
    activation: Activation = "relu"
    scale: float | Scale = 1.0
    init: Init = "bert"
    dropout_rate: Rate = 0.0
    ln_before: bool = False
    ln_after: NormAfter = "none"
    original_ln_after: bool = True
    gate: Gate = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        for reduction in (self.reduction, *(value for _, value in self.reductions)):
            if reduction <= 0:
                raise InputError(
                    f"adapter {self.name!r}: reduction must be above 0, got {reduction}"
                )
            if not math.isfinite(reduction):
                raise InputError(
                    f"adapter {self.name!r}: reduction must be finite, got {reduction}"
                )
            if reduction < 1 / WIDEST:
                raise InputError(
                    f"adapter {self.name!r}: reduction must be at least 1/{WIDEST} (a bottleneck "
                    f"{WIDEST} times as wide as d_model), got {reduction}"
                )
        if isinstance(self.scale, float | int) and (
            not math.isfinite(self.scale) or not self.scale
        ):
            raise InputError(
                f"adapter {self.name!r}: scale must be finite and not 0, got {self.scale}"
            )
        if isinstance(self.scale, str) and self.scale not in get_args(Scale):
            raise InputError(
                f"adapter {self.name!r}: scale must be a number or one of {get_args(Scale)}, got "
                f"{self.scale!r}"
            )

    def width(self, d_model: int, layer: int) -> int:
        """Return the bottleneck width in a layer, or 0 if the layer has no adapter."""
        if layer in self.leave_out:
            return 0
        return max(1, int(d_model // dict(self.reductions).get(layer, self.reduction)))

    def widths(self, site: Site) -> tuple[int, ...]:
        """Return the bottleneck width for each layer of the encoder or the decoder."""
        layers = range(site.first, site.first + site.num_layers)
        return tuple(self.width(site.d_model, layer) for layer in layers)

    def block(self, site: Site, rngs: nnx.Rngs) -> "BottleneckBlock":
        """Build the adapter module of one layer, padded to the largest width of all layers."""
        return BottleneckBlock(self, site.d_model, widths=self.widths(site), rngs=rngs)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the adapter modules of a model.

        Raises:
          InputError: if a configured layer does not exist, or `gate` is "all_tokens" and a
            decoder gets adapters.
        """
        return BottleneckModules(self._blocks(model, rngs=rngs))

    def _blocks(self, model: Any, *, rngs: nnx.Rngs) -> dict[str, dict[str, nnx.Module]]:
        stacks = model.stacks() if hasattr(model, "stacks") else {}
        num = sum(next(iter(s.dense_sites().values())).kernel.shape[0] for s in stacks.values())
        self._check_layers(num)
        found = self.at_sites(model, block=self.block, rngs=rngs)
        check_stacks(self.gate, found)
        for blocks in found.values():
            for block in blocks.values():
                block.clear_unused()  # pyright: ignore[reportAttributeAccessIssue]
        return found

    def _check_layers(self, num: int) -> None:
        layers = (*self.leave_out, *(layer for layer, _ in self.reductions))
        wrong = [layer for layer in layers if not 0 <= layer < num]
        if num and wrong:
            raise InputError(
                f"adapter {self.name!r} names layer {wrong[0]}, but the model's layers are 0 to "
                f"{num - 1}"
            )

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """Return the parameters with the second dense layer multiplied by a factor.

        Raises:
          InputError: if a layer norm follows the second dense layer.
        """
        if self.ln_after != "none":
            raise InputError(
                f"adapter {self.name} cannot be multiplied by {factor}: a layer norm (ln_after) "
                "follows its output"
            )
        number = np.float32(factor)
        linear = ("up/kernel", "up/right", "up/bias")
        return {path: number * x if path.endswith(linear) else x for path, x in params.items()}

    def joined(
        self, params: Mapping[str, Any], other: Adapter, others: Mapping[str, Any]
    ) -> tuple[Adapter, dict[str, Any]]:
        """Merge two bottleneck adapters into one adapter that computes the sum of their outputs.

        Raises:
          InputError: if the adapters differ in layer positions, or in other options than name,
            width, scale and init.
        """
        alike = (
            self._is_plain
            and isinstance(other, Bottleneck)
            and other
            == dataclasses.replace(
                self,
                name=other.name,
                sites=other.sites,
                reduction=other.reduction,
                scale=other.scale,
                init=other.init,
            )
            and other._is_plain
        )
        ours, theirs = (_by_place(p, one.name) for p, one in ((params, self), (others, other)))
        if not alike or ours.keys() != theirs.keys():
            raise InputError(
                f"bottleneck adapters {self.name} and {other.name} cannot be added: they must "
                "have the same sites, and may differ only in name, width, scale and init; widths "
                "per layer, trained scales, norms and gates are not supported"
            )
        assert isinstance(other, Bottleneck)
        made: dict[str, Any] = {}
        for place in ours:
            first, second = params[ours[place]], others[theirs[place]]
            first, second = np.asarray(first), np.asarray(second)
            if "/up/" in place:
                first, second = np.float32(self.scale) * first, np.float32(other.scale) * second
            axis = -2 if place.endswith("up/kernel") else -1
            is_sum = place.endswith("up/bias")
            made[ours[place]] = first + second if is_sum else np.concatenate([first, second], axis)
        kernel = next(x for path, x in made.items() if path.endswith("up/kernel"))
        width, d_model = kernel.shape[-2:]
        return dataclasses.replace(self, reduction=d_model / (width + 0.5), scale=1.0), made

    @property
    def _is_plain(self) -> bool:
        same_width = not (self.reductions or self.leave_out)
        bare = (self.ln_before, self.ln_after, self.gate) == (False, "none", "none")
        return same_width and bare and not isinstance(self.scale, str)


def _by_place(params: Mapping[str, Any], name: str) -> dict[str, str]:
    return {path.removeprefix(f"{ADAPTERS}{name}/"): path for path in params}


def seq_bn(*, name: str = "bottleneck", cross: bool = False, **changes: Any) -> Bottleneck:
    """Return the config of a bottleneck adapter after each feed-forward block."""
    return Bottleneck(name=name, **_sites(("after_mlp",), cross, changes))


def double_seq_bn(*, name: str = "bottleneck", cross: bool = False, **changes: Any) -> Bottleneck:
    """Return the config of a bottleneck adapter after each attention and feed-forward block."""
    options = {"reads": "output", "activation": "swish", **changes}
    return Bottleneck(name=name, **_sites(("after_attention", "after_mlp"), cross, options))


def par_bn(*, name: str = "bottleneck", cross: bool = False, **changes: Any) -> Bottleneck:
    """Return the config of a bottleneck adapter parallel to each feed-forward block."""
    options = {"reads": "input", "reduction": 2.0, "scale": 4.0, "init": "mam", **changes}
    return Bottleneck(name=name, **_sites(("after_mlp",), cross, options))


def _sites(sites: tuple[str, ...], cross: bool, changes: dict[str, Any]) -> dict[str, Any]:
    return {"sites": (*sites, CROSS) if cross else sites, **changes}


class BottleneckModules(Modules):
    """Modules of a bottleneck adapter in all layers of a model."""

    def complete(self) -> None:
        for place in self.places:
            block: BottleneckBlock = self.at(*place)
            block.mask = block.make_mask()

    def num_unused(self) -> int:
        return sum(self.at(*place).num_unused() for place in self.places)


class BottleneckBlock(nnx.Module):
    """Module of a bottleneck adapter after a block, for one layer or stacked over layers.

    Args:
      config: config of the adapter.
      d_model: hidden size of the model.
      widths: bottleneck width in each layer of the encoder or decoder; arrays have the maximum
        width.
      rngs: random streams; "params" is used.
    """

    mask: nnx.Variable | None = None  # [R], 0 for the columns that a narrower layer lacks

    def __init__(
        self, config: Bottleneck, d_model: int, *, widths: tuple[int, ...] = (), rngs: nnx.Rngs
    ):
        self.config = config
        self.widths = widths or (config.width(d_model, 0),)
        width = max(1, *self.widths)
        self.down = self.projection(d_model, width, ("embed", None), rngs=rngs)
        self.up = self.projection(width, d_model, (None, "embed"), last=True, rngs=rngs)
        if isinstance(config.scale, str):
            size, axis = (d_model, "embed") if config.scale == "channel" else (1, None)
            self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=(axis,))
        if config.ln_before:
            self.norm_before = LayerNorm(d_model, 1e-5)
        if config.ln_after != "none":
            self.norm_after = LayerNorm(d_model, 1e-5)
        if config.gate != "none":
            self.gate = make_gate(d_model, "embed", rngs=rngs)

    def projection(
        self,
        features_in: int,
        features_out: int,
        axes: tuple[str | None, str | None],
        *,
        last: bool = False,
        rngs: nnx.Rngs,
    ) -> Any:
        """Build a dense layer of the bottleneck; `last` is True for the output projection."""
        init: Any = jax.nn.initializers.normal(0.02)
        if self.config.init == "houlsby":
            init = jax.nn.initializers.truncated_normal(0.01)
        elif self.config.init == "mam":
            init = jax.nn.initializers.zeros if last else _kaiming_uniform
        sizes = (features_in, features_out)
        return Dense(*sizes, axes=axes, initializer=init, bias=True, rngs=rngs)

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """Return the residual sum of block and adapter, normalized by `norm` if given."""
        config = self.config
        close = norm or (lambda y: y)
        # Unless the adapter normalizes the sum itself, add the branch to the layer's own sum.
        if config.residual == "pre" and config.ln_after != "sum" and config.original_ln_after:
            total = x + f
            added = self.branch(self.reads(f, x, norm, around), around)
            after = self.norm_after(added) if config.ln_after == "branch" else added
            out = close(total + after)
        else:
            after = self._state(f, x, norm, around)
            out = close(after + x) if config.original_ln_after else after
        return self._where_it_is(out, close(x + f))

    def after(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """Return the block's output after this adapter, as input of the next composed adapter.

        Args:
          h: block output, possibly changed by other adapters.
          x: input of the block.
          norm: layer norm of a post-norm block, or None.
          around: attention mask and dropout key.

        Raises:
          InputError: if the adapter replaces the layer's norm.
        """
        if not self.config.original_ln_after:
            raise InputError("original_ln_after=False is not supported in compositions of adapters")
        return self._where_it_is(self._state(h, x, norm, around), h)

    def contribution(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """Return the adapter's output before the residual sum, for AdapterFusion."""
        config = self.config
        if config.ln_after == "sum":
            return self.after(h, x, norm, around) - h
        added = self.branch(self.reads(h, x, norm, around), around)
        added = self.norm_after(added) if config.ln_after == "branch" else added
        return self._where_it_is(added, jnp.zeros_like(added))

    def kind(self) -> Hashable:
        if self.config.gate != "none":
            return None
        return (type(self), dataclasses.replace(self.config, name="module"), self.widths)

    def reads(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        read = {"output": h, "input": x, "normed": around.source}.get(self.config.reads)
        return (norm(x + h) if norm else x + h) if read is None else read

    def skip(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """Return the residual that is added to the adapter's output."""
        residual = self.config.residual
        if residual == "post_ln":
            return self.reads(h, x, norm, around)
        return h if residual == "pre" else x + h

    def _state(self, h: Array, x: Array, norm: Any, around: Around) -> Float[Array, "B T D"]:
        config, read = self.config, self.reads(h, x, norm, around)
        added, skip = self.branch(read, around), self.skip(h, x, norm, around)
        after = added + skip if config.ln_after == "sum" else added
        after = self.norm_after(after) if config.ln_after != "none" else after
        return after if config.ln_after == "sum" else after + skip

    @property
    def is_here(self) -> Bool[Array, ""] | bool:
        """True if the layer has this adapter."""
        return True if self.mask is None or all(self.widths) else self.mask[...][0] > 0

    def _where_it_is(self, state: Array, other: Array) -> Float[Array, "B T D"]:
        is_here = self.is_here
        return state if is_here is True else jnp.where(is_here, state, other)

    def branch(self, read: Float[Array, "B T D"], around: Around) -> Float[Array, "B T D"]:
        """Return the adapter's output before the residual sum."""
        config, dtype = self.config, read.dtype
        inputs = self.norm_before(read) if config.ln_before else read
        hidden = activate(self.down.product(inputs), config.activation).astype(dtype)
        if self.mask is not None:
            hidden = hidden * self.mask[...].astype(dtype)
        added = self.up.product(hidden)
        scale = config.scale
        added = added * (self.scale[...].astype(jnp.float32) if isinstance(scale, str) else scale)
        added = dropout(added.astype(dtype), config.dropout_rate, key=around.key)
        if config.gate == "none":
            return added
        return added * gates_of(self.gate, read, around.mask, config.gate).astype(dtype)

    def make_mask(self) -> nnx.Variable | None:
        """Return a 0/1 mask of the used bottleneck columns of each layer, or None."""
        width = max(1, *self.widths)
        if all(each == width for each in self.widths):
            return None
        rows = jnp.arange(width) < jnp.asarray(self.widths)[:, None]
        return nnx.Variable(rows.astype(jnp.float32), logical=("layers", None))

    def clear_unused(self) -> None:
        """Set the padding columns of layers with a smaller width to 0, in place."""
        mask = self.make_mask()
        if mask is not None:
            self.down.kernel[...] = self.down.kernel[...] * mask[...][:, None, :]
            self.up.kernel[...] = self.up.kernel[...] * mask[...][:, :, None]

    def num_unused(self) -> int:
        """Return the number of padding values in arrays of layers with a smaller bottleneck."""
        width, d_model = max(1, *self.widths), self.up.kernel.shape[-1]
        state = nnx.state(self, nnx.Param)
        each = sum(leaf.size for leaf in jax.tree.leaves(state)) // len(self.widths)
        return sum(each if own == 0 else (width - own) * (2 * d_model + 1) for own in self.widths)


def _kaiming_uniform(key: Any, shape: Any, dtype: Any) -> Array:
    return jax.random.uniform(key, shape, dtype, -(shape[0] ** -0.5), shape[0] ** -0.5)
