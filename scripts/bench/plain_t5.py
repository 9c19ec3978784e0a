"""A T5 1.1 train step in plain JAX, as a side of scripts/bench/train_step.py.

What one writes in an afternoon, and a yardstick for what a library costs: functions of a dictionary
of weights under transformers' names, a Python loop over the layers, einsum attention with a float32
softmax, the loss over all logits at once, optax's Adafactor. In bfloat16 the operands of products
are rounded and their results are float32, forward and backward. No packing, no dropout.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Weights = Mapping[str, jax.Array]

EPSILON = 1e-6
BUCKETS, MAX_DISTANCE = 32, 128


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def product(subscripts: str, dtype: Any, a: jax.Array, b: jax.Array) -> jax.Array:
    """An einsum of rounded operands with a float32 result, and two such in its gradient."""
    return jnp.einsum(
        subscripts, a.astype(dtype), b.astype(dtype), preferred_element_type=jnp.float32
    )


def _forward(subscripts: str, dtype: Any, a: jax.Array, b: jax.Array) -> tuple[jax.Array, Any]:
    return product(subscripts, dtype, a, b), (a, b)


def _backward(subscripts: str, dtype: Any, kept: Any, grad: jax.Array) -> tuple[Any, Any]:
    inputs, output = subscripts.split("->")
    first, second = inputs.split(",")
    a, b = kept
    to_a = product(f"{output},{second}->{first}", dtype, grad, b)
    to_b = product(f"{output},{first}->{second}", dtype, grad, a)
    return to_a.astype(a.dtype), to_b.astype(b.dtype)


product.defvjp(_forward, _backward)


def buckets(queries: int, keys: int, *, bidirectional: bool) -> np.ndarray:
    """T5's bucket of each pair of positions (Raffel et al. 2020, section 2.1)."""
    distance = np.arange(queries)[:, None] - np.arange(keys)[None]
    count, offset = BUCKETS, np.zeros_like(distance)
    if bidirectional:
        count //= 2
        offset = np.where(distance < 0, count, 0)
        distance = np.abs(distance)
    distance = np.maximum(distance, 0)
    exact = count // 2
    far = np.log(np.maximum(distance, 1) / exact) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + (far * (count - exact)).astype(np.int32), count - 1)
    return offset + np.where(distance < exact, distance, far)


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMSNorm."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON) * scale


class PlainT5:
    """The loss of a batch, as a function of the weights."""

    def __init__(self, *, heads: int, layers: int, dtype: Any):
        self.heads, self.layers = heads, layers
        self.dtype = dtype

    def dense(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """A product with a kernel of [outputs, inputs]."""
        return product("bsi,oi->bso", self.dtype, x, kernel)

    def attention(
        self, weights: Weights, name: str, x: jax.Array, keys: jax.Array, bias: Any
    ) -> jax.Array:
        """Attention of x to keys, unscaled."""
        split = lambda y: y.reshape(*y.shape[:2], self.heads, -1)  # noqa: E731
        q = split(self.dense(x, weights[f"{name}.q.weight"]))
        k = split(self.dense(keys, weights[f"{name}.k.weight"]))
        v = split(self.dense(keys, weights[f"{name}.v.weight"]))
        logits = product("bqhd,bkhd->bhqk", self.dtype, q, k) + bias
        read = product("bhqk,bkhd->bhqd", self.dtype, jax.nn.softmax(logits), v)
        read = read.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
        return self.dense(read, weights[f"{name}.o.weight"])

    def block(self, weights: Weights, name: str, x: jax.Array, bias: Any, encoded: Any) -> Any:
        """One layer; `encoded` is None in the encoder."""
        normed = norm(x, weights[f"{name}.layer.0.layer_norm.weight"])
        x += self.attention(weights, f"{name}.layer.0.SelfAttention", normed, normed, bias)
        last = 1
        if encoded is not None:
            normed = norm(x, weights[f"{name}.layer.1.layer_norm.weight"])
            x += self.attention(weights, f"{name}.layer.1.EncDecAttention", normed, encoded, 0.0)
            last = 2
        normed = norm(x, weights[f"{name}.layer.{last}.layer_norm.weight"])
        gated = f"{name}.layer.{last}.DenseReluDense"
        hidden = jax.nn.gelu(self.dense(normed, weights[f"{gated}.wi_0.weight"]))
        hidden *= self.dense(normed, weights[f"{gated}.wi_1.weight"])
        return x + self.dense(hidden, weights[f"{gated}.wo.weight"])

    def stack(self, weights: Weights, name: str, tokens: jax.Array, encoded: Any) -> jax.Array:
        """The encoder or the decoder."""
        x = weights["shared.weight"][tokens]
        length, causal = tokens.shape[1], encoded is not None
        table = weights[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = table[buckets(length, length, bidirectional=not causal)].transpose(2, 0, 1)[None]
        if causal:
            bias = jnp.where(np.tril(np.ones((length, length), bool)), bias, -1e10)
        for layer in range(self.layers):
            x = self.block(weights, f"{name}.block.{layer}", x, bias, encoded)
        return norm(x, weights[f"{name}.final_layer_norm.weight"])

    def loss(self, weights: Weights, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """The mean cross-entropy of the targets."""
        encoded = self.stack(weights, "encoder", inputs, None)
        shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
        decoded = self.stack(weights, "decoder", shifted, encoded)
        logits = self.dense(decoded, weights["lm_head.weight"])
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def plain_step(
    weights: Mapping[str, np.ndarray], *, heads: int, layers: int, dtype: str, rate: float
) -> Callable[[dict[str, np.ndarray]], float]:
    """A function of a batch {"inputs", "targets"} that trains on it and gives its loss.

    Args:
      weights: under transformers' names.
      heads: attention heads.
      layers: of the encoder, and of the decoder.
      dtype: of the products' operands.
      rate: the constant learning rate.
    """
    model = PlainT5(heads=heads, layers=layers, dtype=jnp.dtype(dtype))
    optimizer = optax.adafactor(rate, min_dim_size_to_factor=1)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Weights, state: Any, inputs: jax.Array, targets: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(model.loss)(params, inputs, targets)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = {name: jnp.array(array) for name, array in weights.items()}
    kept = [params, optimizer.init(params)]

    def run(batch: dict[str, np.ndarray]) -> float:
        kept[0], kept[1], loss = step(*kept, batch["inputs"], batch["targets"])
        return float(loss)

    return run
