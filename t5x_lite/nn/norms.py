"""Normalisation layers."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.nn.reductions import scale_features
from t5x_lite.types import Array


class RMSNorm(nnx.Module):
    """Root-mean-square norm without mean or bias (Zhang and Sennrich 2019), as T5 uses it.

    The statistic and the division are in float32; the result is rounded to the dtype of x BEFORE
    it is multiplied by the scale, as in t5x layers.py.

    Args:
      d_model: size of the last axis.
      epsilon: added to the mean square.
    """

    def __init__(self, d_model: int, *, epsilon: float = 1e-6):
        self.scale = nnx.Param(jnp.ones((d_model,), jnp.float32), logical=("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        """Normalises the last axis."""
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(jax.lax.square(x32), axis=-1, keepdims=True)
        normed = x32 * jax.lax.rsqrt(mean_square + self.epsilon)
        return scale_features(normed.astype(x.dtype), self.scale[...].astype(x.dtype))


class LayerNorm(nnx.Module):
    """Layer normalisation (Ba et al. 2016): statistics, scale and bias in float32, rounded last.

    Args:
      size: of the last axis.
      epsilon: added to the variance.
    """

    def __init__(self, size: int, epsilon: float = 1e-12):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=("embed",))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), logical=("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        """Normalises the last axis."""
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jax.lax.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.epsilon)
        scale, bias = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        return (normed * scale + bias).astype(x.dtype)
