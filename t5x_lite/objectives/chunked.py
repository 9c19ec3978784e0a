"""Cross-entropy from hidden states, some positions at a time: no array [B, T, V] at all.

    losses = token_losses(model.hidden(...), model.output(), targets, chunk=32)

What `losses.cross_entropy` computes from logits. A chunk takes `chunk` positions of every row, and
they are spread over the row: positions j, j + n, j + 2n, ... for n chunks. So each device works on
its own rows, and on its own part of the length, in each chunk. The backward pass computes a chunk's
logits again, which makes the output layer's FLOPs a third more, and adds the kernel's gradient up
in float32.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from t5x_lite.models.base import Output
from t5x_lite.nn.products import einsum
from t5x_lite.objectives.losses import correct, smoothed, smoothed_entropy
from t5x_lite.sharding import constrain
from t5x_lite.types import Array


class TokenLosses(NamedTuple):
    """Of each position, in float32.

    Attributes:
      loss: cross-entropy, z-loss included.
      z_loss: the z-loss alone.
      correct: 1 where no other logit is above the target's, else 0; without gradient.
    """

    loss: Array
    z_loss: Array
    correct: Array


class _Rules(NamedTuple):
    axes: tuple[str, str]
    divisor: float
    z_loss: float
    label_smoothing: float

    @property
    def kernel(self) -> str:
        """The kernel's indices in einsum strings."""
        return "".join({"vocab": "V", "embed": "D"}[name] for name in self.axes)


def token_losses(
    hidden: Float[Array, "B T D"],
    output: Output,
    targets: Int[Array, "B T"],
    *,
    chunk: int,
    bias: Float[Array, " V"] | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> TokenLosses:
    """Cross-entropy of each position.

    Args:
      hidden: the output layer's input.
      output: the output layer.
      targets: token of each position.
      chunk: positions of a row at a time, at most; T need not be a multiple of it.
      bias: added to the logits, after the divisor.
      z_loss: as in `losses.cross_entropy`, like label_smoothing.
      label_smoothing: the probability given to the other tokens together.

    Returns:
      Arrays [B, T].

    Raises:
      ValueError: chunk is less than 1.
    """
    if chunk < 1:
        raise ValueError(f"a chunk needs at least one position: got {chunk}")
    batch, length = targets.shape
    num_chunks = -(-length // chunk)
    width = -(-length // num_chunks)

    def chunks(x: Array) -> Array:
        """[B, T, ...] to [num_chunks, B, width, ...]."""
        missing = num_chunks * width - length
        x = jnp.pad(x, ((0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, width, num_chunks, *x.shape[2:]), 2, 0)

    def whole(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 2).reshape(batch, num_chunks * width)[:, :length]

    rules = _Rules(output.axes, output.divisor, z_loss, label_smoothing)
    parts: Any = _losses(rules, chunks(hidden), output.kernel, bias, chunks(targets))
    return TokenLosses(*map(whole, parts))


def _logits(rules: _Rules, hidden: Array, kernel: Array, bias: Array | None) -> Array:
    hidden = constrain(hidden, "batch", "length", "activation_embed")
    logits = einsum(f"BTD,{rules.kernel}->BTV", hidden.astype(kernel.dtype), kernel)
    if rules.divisor != 1.0:
        logits = logits / rules.divisor
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    return constrain(logits, "batch", "length", "vocab")


def _is_target(targets: Array, logits: Array) -> Array:
    """[B, T, V], never stored. A gather along a vocabulary that is split would move the logits."""
    classes = jax.lax.broadcasted_iota(targets.dtype, logits.shape, logits.ndim - 1)
    return classes == targets[..., None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses(
    rules: _Rules, hidden: Array, kernel: Array, bias: Array | None, targets: Array
) -> TokenLosses:
    return _forward(rules, hidden, kernel, bias, targets)[0]


def _forward(
    rules: _Rules, hidden: Array, kernel: Array, bias: Array | None, targets: Array
) -> tuple[TokenLosses, tuple]:
    def chunk(_: None, slices: tuple[Array, Array]) -> tuple[None, tuple[TokenLosses, Array]]:
        hidden, targets = slices
        logits = _logits(rules, hidden, kernel, bias)
        largest = jnp.max(logits, axis=-1)
        log_z = largest + jnp.log(jnp.sum(jnp.exp(logits - largest[..., None]), axis=-1))
        target_logit = jnp.sum(jnp.where(_is_target(targets, logits), logits, 0.0), axis=-1)
        loss = log_z - target_logit
        if rules.label_smoothing:
            confidence, low = smoothed(rules.label_smoothing, logits.shape[-1])
            rest = jnp.sum(logits, axis=-1) - target_logit
            entropy = smoothed_entropy(rules.label_smoothing, logits.shape[-1])
            loss = log_z - confidence * target_logit - low * rest - entropy
        penalty = rules.z_loss * jnp.square(log_z)
        return None, (TokenLosses(loss + penalty, penalty, correct(logits, target_logit)), log_z)

    _, (losses, log_z) = jax.lax.scan(chunk, None, (hidden, targets))
    return losses, (hidden, kernel, bias, targets, log_z)


def _backward(
    rules: _Rules, saved: tuple, cotangents: TokenLosses
) -> tuple[Array, Array, Array | None, None]:
    hidden, kernel, bias, targets, log_z = saved

    def chunk(
        sums: tuple[Array, Array | None], slices: tuple
    ) -> tuple[tuple[Array, Array | None], Array]:
        grad_kernel, grad_bias = sums
        hidden, targets, log_z, grad_loss, grad_z_loss = slices
        logits = _logits(rules, hidden, kernel, bias)
        confidence, low = smoothed(rules.label_smoothing, logits.shape[-1])
        of_log_z = grad_loss + 2.0 * rules.z_loss * log_z * (grad_loss + grad_z_loss)
        wanted = jnp.where(_is_target(targets, logits), confidence, low)
        grad = of_log_z[..., None] * jnp.exp(logits - log_z[..., None])
        grad = grad - grad_loss[..., None] * wanted
        if grad_bias is not None:
            grad_bias = grad_bias + jnp.sum(grad, axis=(0, 1))
        grad = grad / rules.divisor
        grad = constrain(grad.astype(kernel.dtype), "batch", "length", "vocab")
        here = hidden.astype(kernel.dtype)
        grad_hidden = einsum(f"BTV,{rules.kernel}->BTD", grad, kernel)
        grad_hidden = constrain(grad_hidden, "batch", "length", "activation_embed")
        grad_kernel = grad_kernel + einsum(f"BTD,BTV->{rules.kernel}", here, grad)
        sums = (constrain(grad_kernel, *rules.axes), grad_bias)
        return sums, grad_hidden.astype(hidden.dtype)

    zeros = jnp.zeros(kernel.shape, jnp.float32)
    no_bias = None if bias is None else jnp.zeros(bias.shape, jnp.float32)
    slices = (hidden, targets, log_z, cotangents.loss, cotangents.z_loss)
    (grad_kernel, grad_bias), grad_hidden = jax.lax.scan(chunk, (zeros, no_bias), slices)
    if bias is not None and grad_bias is not None:
        grad_bias = grad_bias.astype(bias.dtype)
    return grad_hidden, grad_kernel.astype(kernel.dtype), grad_bias, None


_losses.defvjp(_forward, _backward)
