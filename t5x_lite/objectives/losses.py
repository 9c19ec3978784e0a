"""Token losses, as sums: the train step divides by global weights, once.

Cross-entropy with z-loss and label smoothing follows t5x losses.py:26-193:

    loss = -sum_v q_v log p_v - constant + z_loss * log(Z)^2

with q the smoothed targets (1 - s on the target, s / (V - 1) elsewhere), and the constant the
entropy of q, so that a perfect prediction has loss 0. `t5x_lite.objectives.chunked` is the same
without all logits at once.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from t5x_lite.types import Array

_NEVER = -1e9
"""The score of what is not there; finite, so that a softmax over nothing is no NaN."""


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Cross-entropy of each position, in float32.

    Args:
      logits: unnormalised scores.
      targets: class of each position.
      z_loss: coefficient of log(Z)^2, which keeps the logits from drifting; T5 1.1 uses 1e-4.
      label_smoothing: s, the probability given to the other classes together.

    Returns:
      The loss of each position, z-loss included; and the z-loss alone.
    """
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    if label_smoothing:
        confidence, low = smoothed(label_smoothing, logits.shape[-1])
        rest = jnp.sum(logits, axis=-1) - target_logit
        entropy = smoothed_entropy(label_smoothing, logits.shape[-1])
        loss = log_z - confidence * target_logit - low * rest - entropy
    else:
        loss = log_z - target_logit
    penalty = z_loss * jnp.square(log_z)
    return loss + penalty, penalty


def correct(
    scores: Float[Array, "*batch V"], target_scores: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """How far each target is the best of its row: 1, 0, or 1 / n if n scores are the largest.

    Equal scores decide nothing: a model that gives all of V classes one score has 1 / V, which is
    what a random choice has.

    Args:
      scores: of all classes or candidates; what is none must be below the others.
      target_scores: of the target, which is one of them.
    """
    # A maximum and a count: argmax is a slow pass over [B, T, V], and it takes the first of ties.
    best = jnp.max(scores, axis=-1)
    tied = jnp.sum(scores == best[..., None], axis=-1)
    return jnp.where(target_scores >= best, 1.0 / jnp.maximum(tied, 1), 0.0).astype(jnp.float32)


def smoothed(label_smoothing: float, classes: int) -> tuple[float, float]:
    """The smoothed targets: the probability of the target, and that of each other class."""
    return 1.0 - label_smoothing, label_smoothing / max(classes - 1, 1)


def smoothed_entropy(label_smoothing: float, classes: int) -> float:
    """The entropy of the smoothed targets; 0 without smoothing."""
    if not label_smoothing:
        return 0.0
    confidence, low = smoothed(label_smoothing, classes)
    return -(confidence * math.log(confidence) + (classes - 1) * low * math.log(low + 1e-20))


def soft_cross_entropy(
    logits: Float[Array, "B G"], teacher: Float[Array, "B G"], *, where: Bool[Array, "B G"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """-sum t log softmax(logits) with t the softmax of a teacher's scores, and how many rows count.

    It differs from the divergence of Kullback and Leibler by the teacher's entropy, which has no
    gradient. Both softmaxes are over what is there and has a teacher's score; a row without any
    counts 0.

    Args:
      logits: of what is compared.
      teacher: scores of the same; NaN where there is none.
      where: what is there.
    """
    known = where & ~jnp.isnan(teacher)
    logs = jax.nn.log_softmax(jnp.where(known, logits.astype(jnp.float32), _NEVER), axis=1)
    losses = -jnp.sum(jnp.where(known, soft_targets(teacher, where=where) * logs, 0.0), axis=1)
    return jnp.sum(losses), jnp.sum(jnp.any(known, axis=1).astype(jnp.float32))


def soft_targets(teacher: Float[Array, "B G"], *, where: Bool[Array, "B G"]) -> Float[Array, "B G"]:
    """The softmax of a teacher's scores over what is there and has one; 0 elsewhere.

    Args:
      teacher: scores, NaN where there is none.
      where: what is there.
    """
    known = where & ~jnp.isnan(teacher)
    scores = jnp.where(known, jnp.nan_to_num(teacher), _NEVER)
    return jnp.where(known, jax.nn.softmax(scores, axis=1), 0.0)
