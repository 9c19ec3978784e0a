"""Likelihood of text: `Seq2Seq` and `LanguageModel`, and the cross-entropy that both use.

An objective lists the features that its model reads. Features have the names of the model's
arguments, so that incompatible models, objectives and layouts are detected by name.

`Seq2Seq` is the likelihood of the targets given the inputs (Raffel et al. 2020). Span corruption
and every fine-tuning task use this objective; only the data differ.

`LanguageModel` is language modeling with a decoder only (Raffel et al. 2020, section 3.2.1). The
targets are the text itself, or inputs followed by targets; the layout's loss weights decide if the
inputs count. The architecture, a causal or a prefix language model, is the model's choice
(`LMConfig.prefix`).

Token losses are sums: the train step divides them by global weights, once.

Cross-entropy with z-loss and label smoothing follows t5x losses.py:26-193:

    loss = -sum_v q_v log p_v - constant + z_loss * log(Z)^2

with q the smoothed targets (1 - s on the target, s / (V - 1) elsewhere), and the constant the
entropy of q, so that a perfect prediction has loss 0.

`token_losses` computes the same cross-entropy from hidden states, some positions at a time, so that
no array [B, T, V] is needed.

    losses = token_losses(model.hidden(...), model.output(), targets, chunk=32)

A chunk has `chunk` positions of every row, spread over the row: positions j, j + n, j + 2n, ... for
n chunks. In each chunk, a device therefore computes its own rows, and its own part of the length.
The backward pass recomputes a chunk's logits, which adds a third to the output layer's FLOPs, and
sums the kernel's gradient in float32.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, Rate
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Batch, Key
from t5x_lite.layouts import LM, ConcatLM, Layout, PrefixLM
from t5x_lite.models.base import ModelConfig, Output
from t5x_lite.nn.dense import einsum
from t5x_lite.objectives.base import Loss, LossModule, Objective, Term, names_of

_NEVER = -1e9
"""Score of absent entries; finite, so that a softmax over only absent entries does not give NaN."""


def cross_entropy(
    logits: Float[Array, "*batch V"],
    targets: Int[Array, "*batch"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Return the cross-entropy of each position in float32, including the z-loss.

    Args:
      logits: unnormalized scores.
      targets: class of each position.
      z_loss: coefficient of log(Z)^2, which keeps the logits from drifting; T5 1.1 uses 1e-4.
      label_smoothing: total probability of the other classes.

    Returns:
      The loss of each position, including the z-loss; and only the z-loss.
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
    """Return each target's accuracy: 1 if its score is the best, 1 / n in a tie of n, else 0.

    Ties share the credit: a model with the same score for all of V classes has accuracy 1 / V, like
    a random choice.

    Args:
      scores: scores of all classes or candidates; other entries must have lower scores.
      target_scores: scores of the targets, each one of `scores`.
    """
    # One sum over [B, T, V], infinite if a score is better: it does not wait for a maximum, which
    # saves a step's temporary memory on CPU, up to a fifth. Argmax is slow, and takes the first.
    target = target_scores[..., None]
    tied = jnp.sum(jnp.where(scores > target, jnp.inf, scores == target), axis=-1)
    return jnp.where(tied > 0, 1.0 / jnp.maximum(tied, 1.0), 0.0).astype(jnp.float32)


def smoothed(label_smoothing: float, classes: int) -> tuple[float, float]:
    """Return the probabilities of the target and of each other class under label smoothing."""
    return 1.0 - label_smoothing, label_smoothing / max(classes - 1, 1)


def smoothed_entropy(label_smoothing: float, classes: int) -> float:
    """Return the entropy of targets with label smoothing; 0 without smoothing."""
    if not label_smoothing:
        return 0.0
    confidence, low = smoothed(label_smoothing, classes)
    return -(confidence * math.log(confidence) + (classes - 1) * low * math.log(low + 1e-20))


def soft_cross_entropy(
    logits: Float[Array, "B G"], teacher: Float[Array, "B G"], *, where: Bool[Array, "B G"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the summed cross-entropy of logits with a teacher's softmax, and the number of rows.

    The loss is -sum t log softmax(logits), with t the softmax of the teacher's scores. It differs
    from the Kullback-Leibler divergence by the teacher's entropy, which has no gradient. Both
    softmaxes are over present entries with a teacher score; rows without them are not counted.

    Args:
      logits: logits of the entries.
      teacher: teacher scores of the entries; NaN for entries without a score.
      where: True for present entries.
    """
    known = where & ~jnp.isnan(teacher)
    logs = jax.nn.log_softmax(jnp.where(known, logits.astype(jnp.float32), _NEVER), axis=1)
    losses = -jnp.sum(jnp.where(known, soft_targets(teacher, where=where) * logs, 0.0), axis=1)
    return jnp.sum(losses), jnp.sum(jnp.any(known, axis=1).astype(jnp.float32))


def soft_targets(teacher: Float[Array, "B G"], *, where: Bool[Array, "B G"]) -> Float[Array, "B G"]:
    """Return the softmax of a teacher's scores over present entries with a score; 0 elsewhere.

    Args:
      teacher: teacher scores; NaN for entries without a score.
      where: True for present entries.
    """
    known = where & ~jnp.isnan(teacher)
    scores = jnp.where(known, jnp.nan_to_num(teacher), _NEVER)
    return jnp.where(known, jax.nn.softmax(scores, axis=1), 0.0)


class TokenLosses(NamedTuple):
    """Losses and accuracy of each position, in float32.

    Attributes:
      loss: cross-entropy, including the z-loss.
      z_loss: only the z-loss.
      correct: accuracy of each position, from `correct`; without gradient.
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
    """Compute the cross-entropy of each position from hidden states, in chunks of positions.

    Args:
      hidden: input of the output layer.
      output: output layer.
      targets: target token of each position.
      chunk: maximum number of positions of a row per chunk; T need not be a multiple of it.
      bias: bias of the logits, added after their division by `output.divisor`.
      z_loss: coefficient of log(Z)^2.
      label_smoothing: total probability of the other tokens.

    Returns:
      Losses and accuracy of each position, as arrays [B, T].
    """
    if chunk < 1:
        raise ValueError(f"the argument chunk must be at least 1 position, but is {chunk}")
    batch, length = targets.shape
    num_chunks = -(-length // chunk)
    width = -(-length // num_chunks)

    def chunks(x: Array) -> Array:
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
    """Return the mask [B, T, V] that is True at each position's target token."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Likelihood(Objective):
    """Base class of objectives with the cross-entropy of target tokens.

    Attributes:
      z_loss: coefficient of log(Z)^2 (t5x: 1e-4).
      label_smoothing: total probability of the other tokens.
      logits_chunk: number of positions per row for which logits are computed together; None is all
        positions, which is faster, but needs [B, T, V] float32 numbers.
      reads: names of the features that are passed to the model.
      reads_if_there: names of features that are also passed to the model if the batch has them.
    """

    z_loss: Annotated[float, AtLeast(0)] = 1e-4
    label_smoothing: Rate = 0.0
    logits_chunk: Count | None = None

    reads: ClassVar[tuple[str, ...]] = ()
    reads_if_there: ClassVar[tuple[str, ...]] = ()

    def smaller_logits(self) -> str:
        """Return the option that computes logits in chunks, or "" if it is already set."""
        return "--objective.logits-chunk 16" if self.logits_chunk is None else ""

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "LikelihoodLoss":
        del model, rngs
        return LikelihoodLoss(self)

    def check_model(self, model: nnx.Module) -> None:
        """Raise InputError if the model does not accept the objective's features."""
        taken = inspect.signature(type(model).__call__).parameters
        needed = {
            name
            for name, parameter in taken.items()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is parameter.empty
        } - {"self"}
        if needed != set(self.reads) or not set(self.reads_if_there) <= set(taken):
            raise InputError(
                f"objective {type(self).__name__} passes {_names(self.reads)} to the model, but "
                f"{type(model).__name__} needs {_names(needed)}; {REMEDY}"
            )

    def check_batch(self, batch: Iterable[str]) -> None:
        """Raise InputError if a batch lacks features, or has tokens that the model ignores."""
        missing = {*self.reads, "decoder_target_tokens", "decoder_loss_weights"} - set(batch)
        unread = {name for name in batch if name.endswith("_input_tokens")} - set(self.reads)
        if missing or unread:
            fault = f"has no {_names(missing)}" if missing else f"also has {_names(unread)}"
            raise InputError(
                f"objective {type(self).__name__} reads {_names(self.reads)}, but the batch "
                f"{fault}: data.layout must be {names_of(self.layouts)}"
            )


REMEDY = "use Seq2Seq for an encoder-decoder, and LanguageModel for a decoder-only model"


def _names(features: Iterable[str]) -> str:
    return ", ".join(sorted(features))


class LikelihoodLoss(LossModule):
    """Loss module that computes the cross-entropy of a batch's target tokens."""

    def __call__(self, model: Any, heads: Any, batch: Batch, *, key: Key | None = None) -> Loss:
        config = self.config
        config.check_batch(batch)
        given = {name: batch[name] for name in config.reads}
        given |= {name: batch[name] for name in config.reads_if_there if name in batch}
        z_loss, smoothing = config.z_loss, config.label_smoothing
        targets = batch["decoder_target_tokens"]
        if config.logits_chunk is None:
            logits = model(**given, key=key)
            losses = _of_logits(logits, targets, z_loss=z_loss, label_smoothing=smoothing)
        else:
            hidden = model.hidden(**given, key=key)
            losses = token_losses(
                hidden,
                model.output(),
                targets,
                chunk=config.logits_chunk,
                z_loss=z_loss,
                label_smoothing=smoothing,
            )
        return _sums(losses, batch["decoder_loss_weights"].astype(jnp.float32))


def _of_logits(
    logits: Float[Array, "B T V"], targets: Int[Array, "B T"], **options: float
) -> TokenLosses:
    loss, z_loss = cross_entropy(logits, targets, **options)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return TokenLosses(loss, z_loss, correct(logits, target_logits))


def _sums(losses: TokenLosses, weights: Float[Array, "B T"]) -> Loss:
    loss, z_loss, correct = losses
    weight = jnp.sum(weights)
    return Loss(
        terms={"cross_entropy": Term(jnp.sum(loss * weights), weight)},
        metrics={
            "token_accuracy": (jnp.sum(correct * weights), weight),
            "z_loss": (jnp.sum(z_loss * weights), weight),
            "cross_entropy": (jnp.sum((loss - z_loss) * weights), weight),
        },
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2Seq(Likelihood):
    """Cross-entropy of the target tokens of an encoder-decoder model."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (layouts.Seq2Seq,)
    reads: ClassVar[tuple[str, ...]] = ("encoder_input_tokens", "decoder_input_tokens")
    reads_if_there: ClassVar[tuple[str, ...]] = ("encoder_segment_ids", "decoder_segment_ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel(Likelihood):
    """Cross-entropy of the next token in a decoder-only model."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (LM, PrefixLM, ConcatLM)
    reads: ClassVar[tuple[str, ...]] = ("decoder_input_tokens",)
    reads_if_there: ClassVar[tuple[str, ...]] = ("decoder_segment_ids", "decoder_causal_attention")
