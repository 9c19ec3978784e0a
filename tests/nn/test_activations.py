import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

from t5x_lite.nn import dense
from t5x_lite.nn.dense import activate, activated, gated


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


def test_on_a_tpu_gelu_has_no_two_branches_and_the_same_values(monkeypatch):
    x = jnp.linspace(-12, 12, 1001)
    values, slopes = activate(x, "gelu"), jax.vmap(jax.grad(lambda x: activate(x, "gelu")))(x)
    monkeypatch.setattr(dense, "traced_kind", lambda: "TPU v5 lite")
    assert "select_n" not in str(jax.make_jaxpr(lambda x: activate(x, "gelu"))(x))
    np.testing.assert_allclose(activate(x, "gelu"), values, rtol=0, atol=1e-6)
    gelu = jax.vmap(jax.grad(lambda x: activate(x, "gelu")))
    np.testing.assert_allclose(gelu(x), slopes, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kind", ["gated", "not gated"])
def test_where_bytes_cost_more_the_activation_is_computed_again(monkeypatch, capsys, kind, dtype):
    """The same numbers, and nothing but what went in is kept for the backward pass."""
    first, second, g = (
        jnp.asarray(np.random.default_rng(i).normal(size=(3, 5)), dtype) for i in range(3)
    )

    def hidden(first, second):
        if kind == "gated":
            return gated(first, second, "gelu_new")
        return activated(first, "gelu", dtype=dtype) + second

    out, pullback = jax.vjp(hidden, first, second)
    monkeypatch.setattr(dense, "traced_kind", lambda: "NVIDIA H200")
    again, pullback_again = jax.vjp(hidden, first, second)
    np.testing.assert_array_equal(again, out)
    for got, wanted in zip(pullback_again(g), pullback(g), strict=True):
        tolerance = 1e-6 if dtype == jnp.float32 else 1e-2
        np.testing.assert_allclose(
            got.astype(jnp.float32), wanted.astype(jnp.float32), rtol=tolerance, atol=tolerance
        )
    print_saved_residuals(hidden, first, second)
    kept = capsys.readouterr().out.splitlines()
    assert all("argument" in line for line in kept), kept
