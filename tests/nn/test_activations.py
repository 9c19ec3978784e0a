import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn.activations import activate


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gelu", 0.8413447),
        ("gelu_new", 0.841192),
        ("relu", 1.0),
        ("tanh", 0.7615942),
        ("swish", 0.7310586),
    ],
)
def test_activations_of_one(name, expected):
    np.testing.assert_allclose(activate(jnp.ones(()), name), expected, rtol=1e-6)
