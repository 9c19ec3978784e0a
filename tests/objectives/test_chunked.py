import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from t5x_lite.models.base import Output
from t5x_lite.objectives.likelihood import cross_entropy, token_losses
from tests.nn.tiny_layers import normal

B, T, D, V = 2, 7, 4, 11
TIED, UNTIED = ("vocab", "embed"), ("embed", "vocab")


HIDDEN, KERNEL = normal(B, T, D), normal(V, D, seed=1)
TARGETS = jnp.asarray(np.random.default_rng(2).integers(V, size=(B, T)))
WEIGHTS, OTHER_WEIGHTS = normal(B, T, seed=3), normal(B, T, seed=4)


def from_logits(hidden, output, targets, **options):
    """Loss, z-loss and whether the target is the likeliest."""
    kernel = output.kernel if output.axes == TIED else output.kernel.T
    logits = hidden.astype(kernel.dtype) @ kernel.T.astype(kernel.dtype)
    logits = logits.astype(jnp.float32) / output.divisor
    correct = jnp.argmax(logits, axis=-1) == targets
    return *cross_entropy(logits, targets, **options), correct.astype(jnp.float32)


@pytest.mark.parametrize(
    ("axes", "chunk", "smoothing"),
    [(TIED, 1, 0.0), (TIED, 3, 0.1), (UNTIED, 3, 0.0), (UNTIED, 7, 0.1), (TIED, 50, 0.0)],
)
def test_losses_and_gradients_are_those_of_the_logits(axes, chunk, smoothing):
    options = {"z_loss": 0.01, "label_smoothing": smoothing}
    kernel, divisor = (KERNEL, 2.0) if axes == TIED else (KERNEL.T, 1.0)

    @jax.jit
    def both(hidden, kernel):
        def run(losses, **more):
            def value(hidden, kernel):
                output = Output(kernel, axes, divisor)
                parts = losses(hidden, output, TARGETS, **options, **more)
                # The z-loss alone is a metric, and has a gradient all the same.
                return jnp.sum(parts[0] * WEIGHTS + parts[1] * OTHER_WEIGHTS), parts

            return jax.grad(value, argnums=(0, 1), has_aux=True)(hidden, kernel)

        return run(token_losses, chunk=chunk), run(from_logits)

    got, expected = both(HIDDEN, kernel)
    assert got[1].correct.shape == (B, T)
    for ours, wanted in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


def test_gradients_equal_finite_differences():
    @jax.jit
    def function(hidden, kernel):
        output = Output(kernel, TIED, 2.0)
        parts = token_losses(hidden, output, TARGETS, chunk=3, z_loss=0.1, label_smoothing=0.1)
        return parts.loss, parts.z_loss

    check_grads(function, (HIDDEN, KERNEL), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_a_bias_is_added_to_the_logits():
    bias = normal(V, seed=5)

    @jax.jit
    def both(hidden, kernel, bias):
        def chunked(hidden, kernel, bias):
            output = Output(kernel, TIED, 2.0)
            parts = token_losses(hidden, output, TARGETS, chunk=3, bias=bias, z_loss=0.1)
            return jnp.sum(parts.loss * WEIGHTS)

        def plain(hidden, kernel, bias):
            loss, _ = cross_entropy(hidden @ kernel.T / 2.0 + bias, TARGETS, z_loss=0.1)
            return jnp.sum(loss * WEIGHTS)

        run = [jax.value_and_grad(loss, (0, 1, 2)) for loss in (chunked, plain)]
        return [function(hidden, kernel, bias) for function in run]

    got, expected = both(HIDDEN, KERNEL, bias)
    for ours, wanted in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


def test_large_logits_neither_overflow_nor_cancel():
    kernel = jnp.array([[1e4], [0.0], [-1e4]])
    hidden, targets = jnp.ones((1, 2, 1)), jnp.array([[0, 2]])
    losses = token_losses(hidden, Output(kernel, TIED, 1.0), targets, chunk=1)
    assert losses.loss.tolist() == [[0.0, 2e4]]
    assert losses.correct.tolist() == [[1.0, 0.0]]


def test_a_tie_is_a_third_right():
    losses = token_losses(
        jnp.ones((1, 1, 1)), Output(jnp.ones((3, 1)), TIED, 1.0), jnp.array([[1]]), chunk=1
    )
    np.testing.assert_allclose(losses.correct, [[1 / 3]], rtol=1e-6)


def test_the_kernels_gradient_is_added_up_in_float32():
    """512 chunks that each give it 1: bfloat16 stops at 256."""
    hidden = jnp.ones((1, 512, 1), jnp.bfloat16)
    targets = jnp.zeros((1, 512), jnp.int32)

    def value(kernel):
        return jnp.sum(token_losses(hidden, Output(kernel, TIED, 1.0), targets, chunk=1).loss)

    gradient = jax.jit(jax.grad(value))(jnp.array([[0.0], [0.0]], jnp.bfloat16))
    assert gradient.dtype == jnp.bfloat16
    assert gradient.astype(jnp.float32).tolist() == [[-256.0], [256.0]]


def test_there_are_never_all_logits():
    targets = jnp.zeros((2, 64), jnp.int32)

    def value(hidden, kernel, *, chunk):
        return jnp.sum(token_losses(hidden, Output(kernel, TIED, 1.0), targets, chunk=chunk).loss)

    def largest(chunk):
        """Elements of the largest array of the compiled program."""
        gradient = jax.grad(lambda hidden, kernel: value(hidden, kernel, chunk=chunk), (0, 1))
        lowered = jax.jit(gradient).lower(normal(2, 64, 4), normal(128, 4))
        shapes = re.findall(r"\bf32\[([\d,]+)\]", lowered.compile().as_text())
        return max(np.prod([int(size) for size in shape.split(",")]) for shape in shapes)

    assert largest(8) == 2 * 8 * 128
    assert largest(64) == 2 * 64 * 128


def test_a_chunk_without_positions():
    with pytest.raises(ValueError, match="chunk must be at least 1 position, but is 0"):
        token_losses(HIDDEN, Output(KERNEL, TIED, 1.0), TARGETS, chunk=0)
