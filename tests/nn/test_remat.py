import contextlib
import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

from t5x_lite.core.errors import InputError
from t5x_lite.nn import masks
from t5x_lite.nn.fused_attention import blocked_attention
from t5x_lite.nn.pallas_attention import pallas_attention
from t5x_lite.nn.stack import POLICIES, check_remat, more_remat, rematerialise

KERNELS = jnp.ones((2, 3, 5)), jnp.ones((5, 3))


def layer(x, kernels):
    """[2, 4, 3] to itself: products with weights, and one over the batch."""
    hidden = jnp.sin(x @ kernels[0][0])
    back = jnp.sin(hidden @ kernels[1])
    return jnp.sin(jnp.einsum("btd,bsd->bts", back, x) @ x)


def saved(name):
    """Shapes of what is kept besides the arguments."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_saved_residuals(rematerialise(layer, name), jnp.ones((2, 4, 3)), KERNELS)
    lines = [line for line in text.getvalue().splitlines() if "from the argument" not in line]
    return sorted(line.split(" ")[0] for line in lines)


def test_what_each_policy_keeps():
    assert saved("full") == []
    # Products with weights.
    assert saved("dots_no_batch") == ["f32[2,4,3]", "f32[2,4,5]"]
    # And those of one half of the batch's arrays with the other.
    assert set(saved("dots")) == {"f32[2,4,3]", "f32[2,4,4]", "f32[2,4,5]"}
    assert len(saved("none")) > len(saved("dots"))


@pytest.mark.parametrize("kernel", [True, False])
def test_attention_in_blocks_runs_again_only_under_full(kernel):
    visible = dataclasses.replace(
        masks.of_encoder(jnp.ones((2, 16), int)), block_size=8, kernel=kernel
    )
    attend = pallas_attention if kernel else blocked_attention

    def layer(x):
        heads = jnp.sin(x).reshape(2, 16, 2, 4)
        return jnp.sin(attend(heads, heads, heads, visible=visible).reshape(x.shape))

    def times(name):
        gradient = jax.grad(lambda x: jnp.sum(rematerialise(layer, name)(x)))
        return str(jax.make_jaxpr(gradient)(jnp.ones((2, 16, 8)))).count(" while[")

    assert times("full") == 2 * times("none")
    assert {times(name) for name in ("attention", "products", "dots_no_batch")} == {times("none")}


def test_policies_that_store_less():
    assert more_remat("none", attention="plain") == ("dots_no_batch", "products", "full")
    assert more_remat("none", attention="pallas") == (
        "dots_no_batch",
        "products",
        "attention",
        "full",
    )
    assert more_remat("dots_no_batch", attention="blocked") == ("products", "attention", "full")
    assert more_remat("full", attention="pallas") == ()


def test_no_policy_is_the_function_itself():
    assert rematerialise(layer, "none") is layer


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_gradients_stay(name):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32))

    def gradients(function):
        return jax.jit(jax.grad(lambda x, k: jnp.sum(function(x, k)), argnums=(0, 1)))(x, KERNELS)

    got = gradients(rematerialise(layer, name))
    for ours, expected in zip(*map(jax.tree.leaves, (got, gradients(layer))), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_straight_line_code_is_kept_from_merging():
    def traced(in_loop):
        function = rematerialise(layer, "full", in_loop=in_loop)
        return str(jax.make_jaxpr(jax.grad(lambda x: jnp.sum(function(x, KERNELS))))(
            jnp.ones((2, 4, 3))
        ))  # fmt: skip

    assert "prevent_cse=False" in traced(in_loop=True)
    assert "prevent_cse=True" in traced(in_loop=False)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError) as raised:
        check_remat("dot")
    assert str(raised.value) == (
        "model.remat must be one of none, full, attention, products, dots, dots_no_batch: got "
        "'dot'; did you mean dots?"
    )
    with pytest.raises(InputError, match=r"got 'half'$"):
        rematerialise(layer, "half")
