"""Class weights and label smoothing against torch.nn.functional.cross_entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.objectives.task_heads import loss_of_classes

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")


@pytest.mark.parametrize("weights", [(), (0.5, 2.0, 0.0, 1.25)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_loss_and_its_gradient_are_those_of_torch(weights, smoothing):
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((32, 4)).astype(np.float32)
    labels = rng.integers(-1, 4, 32)
    given = torch.tensor(logits, requires_grad=True)
    theirs = torch.nn.functional.cross_entropy(
        given,
        torch.tensor(labels),
        weight=torch.tensor(weights) if weights else None,
        label_smoothing=smoothing,
        ignore_index=-1,
    )
    theirs.backward()

    def loss(logits):
        options = {"class_weights": weights, "label_smoothing": smoothing}
        return loss_of_classes(logits, jnp.asarray(labels + 1), **options).value()

    ours, gradient = jax.value_and_grad(loss)(jnp.asarray(logits))
    np.testing.assert_allclose(ours, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, given.grad.numpy(), atol=1e-6)
