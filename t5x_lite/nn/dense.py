"""Dense layers, embeddings, feed-forward blocks and their activations.

Every product takes its operands in the compute dtype (the dtype of the parameters) and accumulates
in float32. In bfloat16 this uses the matrix units (AMX on CPU, the MXU, tensor cores). The backward
products do the same. The transpose of a plain `jnp.einsum` would multiply a float32 cotangent with
a bfloat16 operand.

On NVIDIA GPUs, memory traffic limits a step: a float32 result that is rounded afterwards is written
and read in twice the bytes. There the matrix product itself returns the rounded result.

wo(relu(wi x))                  T5 (Raffel et al. 2020, section 2.1)
wo(gelu(wi_0 x) * wi_1 x)       T5 1.1: gated, the tanh approximation (Shazeer 2020, GLU variants)
wo(silu(wi_0 x) * wi_1 x)       UL2: gated, x sigmoid(x)
wo(gelu(wi x + b) + b)          BERT: biases, exact gelu in float32 (Devlin et al. 2019)

The hidden layer is the largest array of a feed-forward block. If memory traffic costs more than
operations (`saves_bytes`), the backward pass recomputes the activation from its input instead of
storing a second array of that size.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.accelerators import is_nvidia
from t5x_lite.core.sharding import constrain, traced_kind
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.dropout import dropout
from t5x_lite.nn.slots import DenseSlot, GatedSlot, HiddenSlot, WholeSlot, is_per_row


def saves_bytes() -> bool:
    """Return True if memory traffic limits the traced program's devices (NVIDIA GPUs)."""
    return is_nvidia(traced_kind())


def einsum(spec: str, a: Array, b: Array) -> Array:
    """Compute the einsum of two operands of one dtype, accumulated and returned in float32.

    Args:
      spec: subscripts as for `jnp.einsum`; every index of one operand occurs in the other operand
        or in the result.
      a: first operand.
      b: second operand, of the same dtype.

    Returns:
      The product in float32. In the backward pass, cotangents are rounded to the dtype of the
        operands before the products, and gradients after them.
    """
    return _einsum(spec, a, b)


def rounded_einsum(spec: str, a: Array, b: Array) -> Array:
    """Compute `einsum` and round the result once to the dtype of the operands."""
    return _rounded_einsum(spec, a, b)


def _product(spec: str, a: Array, b: Array) -> Array:
    return _ordered_einsum(spec, a, b, dtype=jnp.float32)


def _rounded_product(spec: str, a: Array, b: Array) -> Array:
    if saves_bytes():
        return _ordered_einsum(spec, a, b, dtype=a.dtype)
    return _product(spec, a, b).astype(a.dtype)


def _ordered_einsum(spec: str, a: Array, b: Array, *, dtype: Any) -> Array:
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    # The operand with the first index of the result comes first. XLA's CPU backend rejects a
    # product that is transposed afterwards for bfloat16 operands (jax 0.10).
    if _own_index(right, left, out) < _own_index(left, right, out):
        spec, a, b = f"{right},{left}->{out}", b, a
    return jnp.einsum(spec, a, b, preferred_element_type=dtype)


def _own_index(operand: str, other: str, out: str) -> int:
    return min((out.index(i) for i in operand if i in out and i not in other), default=len(out))


def _forward(spec: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(spec, a, b), (a, b)


def _rounded_forward(spec: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rounded_product(spec, a, b), (a, b)


def _backward(spec: str, operands: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, b = operands
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    g = g.astype(a.dtype)
    return (
        _rounded_einsum(f"{out},{right}->{left}", g, b),
        _rounded_einsum(f"{left},{out}->{right}", a, g).astype(b.dtype),
    )


_einsum = jax.custom_vjp(_product, nondiff_argnums=(0,))
_einsum.defvjp(_forward, _backward)
_rounded_einsum = jax.custom_vjp(_rounded_product, nondiff_argnums=(0,))
_rounded_einsum.defvjp(_rounded_forward, _backward)


Initializer = Callable[..., Any]

FAN_IN_NORMAL: Initializer = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")
FAN_IN_TRUNCATED: Initializer = jax.nn.initializers.variance_scaling(
    1.0, "fan_in", "truncated_normal"
)


def truncated_normal(stddev: float) -> Initializer:
    """Return an initializer: a normal distribution, truncated at two standard deviations.

    Source: google-research/bert modeling.py, create_initializer.
    """
    return jax.nn.initializers.truncated_normal(stddev)


class Dense(nnx.Module):
    """Dense layer with an optional bias and an optional adapter (attribute `slot`).

    Args:
      features_in: size of the last axis of the input.
      features_out: size of the last axis of the output.
      axes: logical names of the kernel's two axes; the bias has the second name.
      initializer: initializer of the kernel [features_in, features_out]; a bias starts at 0.
      bias: True if the layer has a bias.
      rngs: random streams; "params" is used.
    """

    slot: DenseSlot | None = None  # an adapter's branch

    def __init__(
        self,
        features_in: int,
        features_out: int,
        *,
        axes: tuple[str | None, str | None],
        initializer: Initializer = FAN_IN_NORMAL,
        bias: bool = False,
        rngs: nnx.Rngs,
    ):
        kernel = initializer(rngs.params(), (features_in, features_out), jnp.float32)
        self.kernel = nnx.Param(kernel, logical=axes)
        self.has_bias = bias
        if bias:
            self.bias = nnx.Param(jnp.zeros((features_out,), jnp.float32), logical=axes[1:])

    @property
    def axes(self) -> tuple[str | None, str | None]:
        """Logical names of the two kernel axes, without the axis of stacked layers."""
        *_, first, second = self.kernel.get_metadata()["logical"]
        return first, second

    def __call__(self, x: Float[Array, "*batch I"], seen: Any = None) -> Float[Array, "*batch O"]:
        """Apply the layer and return the result in the dtype of x; see `product`.

        If memory traffic costs more than operations, the product is rounded before the bias is
        added.
        """
        kernel = self.kernel[...]
        if self.slot is not None or x.dtype != kernel.dtype or not saves_bytes():
            return self.product(x, seen).astype(x.dtype)
        batch = "ABCE"[: x.ndim - 1]
        product = rounded_einsum(f"{batch}I,IO->{batch}O", x, kernel)
        return product + self.bias[...].astype(x.dtype) if self.has_bias else product

    def product(self, x: Float[Array, "*batch I"], seen: Any = None) -> Float[Array, "*batch O"]:
        """Apply the layer and return the result in float32, for logits and activations.

        Args:
          x: input of the layer.
          seen: mask of the positions that each position attends to, for gated adapters, as in
            `slots.Around.mask`.
        """
        batch = "ABCE"[: x.ndim - 1]
        kernel = self.kernel[...]
        product = einsum(f"{batch}I,IO->{batch}O", x.astype(kernel.dtype), kernel)
        bias = self.bias[...] if self.has_bias else None
        return _after_slot(self.slot, x, product, kernel, bias, seen)

    def effective_kernel(self) -> Float[Array, "*layers I O"]:
        """Return the kernel with the adapter's change, for fused decoding and merging."""
        kernel = self.kernel[...]
        return kernel if self.slot is None else self.slot.of_kernel(kernel)

    def effective_bias(self) -> Float[Array, "*layers O"] | None:
        """Return the bias with the adapter's change, or None without a bias."""
        bias = self.bias[...] if self.has_bias else None
        return bias if self.slot is None else self.slot.of_bias(bias)


def _after_slot(
    slot: DenseSlot | None, x: Array, product: Array, kernel: Array, bias: Array | None, seen: Any
) -> Array:
    """Return the product as an adapter in the slot changes it, plus the bias, in float32."""
    if isinstance(slot, WholeSlot):
        return slot.with_bias(x, product, kernel, bias, seen)
    if isinstance(slot, GatedSlot):
        product = slot.gated(x, product, kernel, seen)
    elif slot is not None:
        product = slot(x, product, kernel)
    bias = bias if slot is None else slot.of_bias(bias)
    return product if bias is None else product + bias.astype(jnp.float32)


class FusedDense(nnx.Module):
    """Dense layers with a common input, fused into one matrix product for decoding.

    The transposed kernels are stacked and are the left operand of the product. On CPU this takes 5
    to 25 % less time for the rows of a step, and a third less for three narrow layers in one
    product.

    An adapter that treats rows differently has no kernel: it stays in its slot, `slot_N` of the
    N-th layer or `before` of their input, and changes the product of the base's kernel.

    Args:
      kernels: transposed kernel [O, I] of each layer, all with the same I.
      axes: logical names of the axes of the transposed kernels.
      biases: bias [O] of each layer, or None.
    """

    before: HiddenSlot | None = None

    def __init__(
        self,
        kernels: Sequence[Float[Array, "_ I"]],
        *,
        axes: tuple[str, str],
        biases: Sequence[Float[Array, " _"] | None] = (),
    ):
        joined = kernels[0] if len(kernels) == 1 else jnp.concatenate(kernels)
        self.kernel = nnx.Param(joined, logical=axes)
        self.has_bias = any(bias is not None for bias in biases)
        if self.has_bias:
            whole = [
                jnp.zeros(kernel.shape[:1], kernel.dtype) if bias is None else bias
                for bias, kernel in zip(biases, kernels, strict=True)
            ]
            self.bias = nnx.Param(jnp.concatenate(whole), logical=axes[:1])
        self.ends = tuple(accumulate(kernel.shape[0] for kernel in kernels))

    @classmethod
    def of(
        cls, layers: Sequence[Dense], *, axes: tuple[str, str], slot: HiddenSlot | None = None
    ) -> "FusedDense":
        """Fuse dense layers, including their adapters, into one layer.

        Args:
          layers: dense layers with a common input.
          axes: logical names of the axes of the transposed kernels.
          slot: adapter that changes the common input, or None.
        """
        by_row = [is_per_row(layer.slot) for layer in layers]
        kernels = [
            layer.kernel[...] if rows else layer.effective_kernel()
            for layer, rows in zip(layers, by_row, strict=True)
        ]
        if slot is not None and not is_per_row(slot):
            kernels = [slot.of_kernel(kernel) for kernel in kernels]
        biases = [
            None if rows else layer.effective_bias()
            for layer, rows in zip(layers, by_row, strict=True)
        ]
        fused = cls([kernel.T for kernel in kernels], axes=axes, biases=biases)
        fused.before = slot if is_per_row(slot) else None
        for number, layer in enumerate(layers):
            if by_row[number]:
                setattr(fused, f"slot_{number}", layer.slot)
        return fused

    def __call__(self, x: Float[Array, "*batch I"]) -> list[Float[Array, "*batch _"]]:
        """Return the result of each fused layer, in the dtype of x."""
        return [product.astype(x.dtype) for product in self.products(x)]

    def products(self, x: Float[Array, "*batch I"]) -> list[Float[Array, "*batch _"]]:
        """Return the result of each fused layer in float32, for logits."""
        kernel = self.kernel[...]
        x = x if self.before is None else self.before(x)
        rows = x.astype(kernel.dtype).reshape(-1, x.shape[-1])
        # Without the barrier XLA turns the product round, to spare itself the transposition.
        joined = jax.lax.optimization_barrier(einsum("OI,RI->OR", kernel, rows))
        if self.has_bias:
            joined = joined + self.bias[...].astype(jnp.float32)[:, None]
        parts = jnp.split(joined, self.ends[:-1])
        found = [part.T.reshape(*x.shape[:-1], part.shape[0]) for part in parts]
        for number, product in enumerate(found):
            slot = getattr(self, f"slot_{number}", None)
            if slot is not None:
                own = kernel[self.ends[number] - product.shape[-1] : self.ends[number]].T
                found[number] = _after_slot(slot, x, product, own, None, None)
        return found


@jax.custom_vjp
def lookup(table: Float[Array, "V D"], tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Look up rows of an embedding table; the gradient is summed in float32 and rounded once.

    In bfloat16, a sum of cotangents of a frequent token stops growing at 256 times the addend.
    """
    return jnp.take(table, tokens, axis=0)


def _lookup_forward(table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return lookup(table, tokens), (table, tokens)


def _lookup_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, None]:
    table, tokens = saved
    total = jnp.zeros(table.shape, jnp.float32).at[tokens].add(g.astype(jnp.float32))
    return total.astype(table.dtype), None


lookup.defvjp(_lookup_forward, _lookup_backward)


class Embedding(nnx.Module):
    """Token embedding, initialized from N(0, 1) as in T5 (t5x network.py).

    Args:
      vocab_size: number of rows.
      d_model: number of columns.
      rngs: random streams; "params" is used.
    """

    def __init__(self, vocab_size: int, d_model: int, *, rngs: nnx.Rngs):
        table = jax.random.normal(rngs.params(), (vocab_size, d_model), jnp.float32)
        self.table = nnx.Param(table, logical=("vocab", "embed"))

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Look up token embeddings by gather, with the results of t5x's one-hot product."""
        return lookup(self.table[...], tokens)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Compute logits x E^T / sqrt(d_model) in float32, with tied embeddings as in T5 1.0."""
        table = self.table[...]
        return einsum("BTD,VD->BTV", x.astype(table.dtype), table) / jnp.sqrt(
            jnp.float32(x.shape[-1])
        )


Activation = Literal["gelu", "relu", "gelu_new", "tanh", "swish"]
"""Activation function: gelu is exact, gelu_new its tanh approximation, swish is x sigmoid(x)."""


def activate(x: Array, activation: Activation) -> Array:
    """Apply the activation of the given name, elementwise."""
    if activation == "gelu":
        return jax.nn.gelu(x, approximate=False)
    if activation == "gelu_new":
        return jax.nn.gelu(x, approximate=True)
    if activation == "relu":
        return jax.nn.relu(x)
    if activation == "tanh":
        return jnp.tanh(x)
    if activation == "swish":
        return jax.nn.swish(x)
    raise ValueError(f"activation must be one of {get_args(Activation)}: got {activation!r}")


def activated(x: Array, activation: Activation, *, dtype: Any) -> Array:
    """Apply an activation in float32 and round the result to `dtype`."""

    def rounded(x: Array) -> Array:
        return activate(x.astype(jnp.float32), activation).astype(dtype)

    return _computed_again(rounded, x) if saves_bytes() else rounded(x)


def gated(first: Array, second: Array, activation: Activation) -> Array:
    """Return activation(first) * second, the hidden layer of a gated feed-forward block."""

    def product(first: Array, second: Array) -> Array:
        return activate(first, activation) * second

    return _computed_again(product, first, second) if saves_bytes() else product(first, second)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _computed_again(function: Callable[..., Array], *arguments: Array) -> Array:
    return function(*arguments)


def _keep_arguments(function: Callable[..., Array], *arguments: Array) -> tuple[Array, Any]:
    return function(*arguments), arguments


def _differentiate_again(function: Callable[..., Array], arguments: Any, g: Array) -> Any:
    # A barrier is needed: the compiler would find the two computations equal and keep the first.
    return jax.vjp(function, *jax.lax.optimization_barrier(arguments))[1](g)


_computed_again.defvjp(_keep_arguments, _differentiate_again)


FeedForward = Literal["relu", "gelu", "silu", "gated-relu", "gated-gelu", "gated-silu"]
"""Feed-forward block of T5, with the names of Hugging Face's feed_forward_proj."""
FEED_FORWARDS: dict[FeedForward, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "silu": ("swish", False),
    "gated-relu": ("relu", True),
    "gated-gelu": ("gelu_new", True),
    "gated-silu": ("swish", True),
}
"""Activation of each feed-forward block, and True if the block is gated."""


class MLP(nnx.Module):
    """Feed-forward block: two dense layers with an activation, and optionally a gate.

    Args:
      d_model: size of the input and output.
      d_ff: size of the hidden layer.
      activation: activation of the hidden layer, in float32; relu is the same in any dtype.
      gated: True to multiply the activation with a second product of the input, in the dtype of x.
      bias: True if the dense layers have biases.
      initializer: initializer of the kernels.
      dropout_rate: dropout rate of the hidden layer; one mask is shared over the length.
      rngs: random streams; "params" is used.
    """

    slot: HiddenSlot | None = None  # an adapter's scale of the hidden layer
    joint: FusedDense | None = None  # after `join`, instead of the layers of the input
    joint_out: FusedDense | None = None  # and of the output

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = False,
        initializer: Initializer = FAN_IN_TRUNCATED,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        def dense(features_in: int, features_out: int, *axes: str) -> Dense:
            return Dense(
                features_in,
                features_out,
                axes=(axes[0], axes[1]),
                initializer=initializer,
                bias=bias,
                rngs=rngs,
            )

        self.activation: Activation = activation
        self.gated = gated
        if gated:
            self.wi_0 = dense(d_model, d_ff, "embed", "mlp")
            self.wi_1 = dense(d_model, d_ff, "embed", "mlp")
        else:
            self.wi = dense(d_model, d_ff, "embed", "mlp")
        self.wo = dense(d_ff, d_model, "mlp", "embed")
        self.dropout_rate = dropout_rate

    def dense_sites(self) -> dict[str, Dense]:
        """Return the dense layers by adapter site: "in", "out", and "gate" if gated."""
        gated = {"in": self.wi_1, "gate": self.wi_0} if self.gated else {"in": self.wi}
        return {**gated, "out": self.wo}

    def join(self) -> None:
        """Fuse the input layer and the gate into one matrix product for decoding, in place."""
        if self.wo.has_bias:
            raise ValueError("a feed-forward block with biases cannot be fused for decoding")
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        layers = [getattr(self, name) for name in names]
        self.joint = FusedDense.of(layers, axes=("mlp", "embed"))
        self.joint_out = FusedDense.of([self.wo], axes=("embed", "mlp"), slot=self.slot)
        for name in (*names, "wo"):
            delattr(self, name)

    def _hidden(self, x: Float[Array, "B T D"], seen: Any) -> Float[Array, "B T F"]:
        if self.gated:
            if self.joint is None:
                first, second = self.wi_0(x, seen), self.wi_1(x, seen)
            else:
                first, second = self.joint(x)
            return gated(first, second, self.activation)
        if self.joint is not None:
            return activate(self.joint.products(x)[0], self.activation).astype(x.dtype)
        if self.activation == "relu":  # in float32 its backward pass would keep twice the bytes
            return jax.nn.relu(self.wi(x, seen))
        first = self.wi(x, seen) if saves_bytes() else self.wi.product(x, seen)
        return activated(first, self.activation, dtype=x.dtype)

    def __call__(
        self, x: Float[Array, "B T D"], *, key: Key | None = None, seen: Any = None
    ) -> Float[Array, "B T D"]:
        """Apply the block; `key` enables dropout, and `seen` is a mask for gated adapters."""
        hidden = constrain(self._hidden(x, seen), "batch", "length", "mlp")
        if self.slot is not None and self.joint_out is None:
            hidden = self.slot(hidden)
        hidden = dropout(hidden, self.dropout_rate, key=key, broadcast_axes=(-2,))
        out = self.wo(hidden, seen) if self.joint_out is None else self.joint_out(hidden)[0]
        return constrain(out, "batch", "length", "activation_embed")
