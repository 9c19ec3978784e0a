import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from t5x_lite.nn import masks
from t5x_lite.nn.attention import dot_product_attention, softmax_attention
from t5x_lite.nn.attention_pattern import Pattern, RelativeBias, RelativeTable
from t5x_lite.nn.dense import WeightDropout, kept_keys
from t5x_lite.nn.fused_attention import blocked_attention

B, H, K = 2, 3, 4
BUCKETS, MAX_DISTANCE = 8, 6

# Row 1 of the targets ends with padding, and segment 2 of row 0 has no inputs.
TARGET_SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2, 3, 3, 3], [1, 1, 1, 1, 2, 2, 0, 0, 0]])
INPUT_SEGMENTS = jnp.array([[1, 1, 1, 1, 3, 3, 3], [1, 1, 2, 2, 2, 2, 0]])
PREFIX = jnp.array([[1, 1, 0, 1, 1, 0, 1, 0, 0], [1, 1, 1, 0, 1, 0, 0, 0, 0]])
TOKENS = jnp.array([[5, 6, 7, 8, 9, 5, 0], [0, 0, 0, 0, 0, 0, 0]])  # row 1 sees nothing

CASES = {
    "encoder": (masks.of_encoder(TOKENS), True),
    "encoder, packed": (masks.of_encoder(INPUT_SEGMENTS, INPUT_SEGMENTS), True),
    "decoder": (masks.of_decoder(), False),
    "decoder, packed": (masks.of_decoder(TARGET_SEGMENTS), False),
    "prefix": (masks.of_decoder(TARGET_SEGMENTS, prefix=PREFIX), False),
    "across": (masks.across(TOKENS), None),
    "across, packed": (masks.across(TOKENS, INPUT_SEGMENTS, TARGET_SEGMENTS), None),
}


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def operands(case, *, dtype=jnp.float32):
    """Query, key, value and table of a case, and a cotangent."""
    visible, direction = CASES[case]
    num_queries = 9 if visible.causal or visible.queries is TARGET_SEGMENTS else 7
    num_keys = 9 if visible.causal else 7
    query, cotangent = (normal(B, num_queries, H, K, seed=s, dtype=dtype) for s in (0, 4))
    key, value = (normal(B, num_keys, H, K, seed=s, dtype=dtype) for s in (1, 2))
    return query, key, value, None if direction is None else normal(BUCKETS, H, seed=3), cotangent


def in_blocks(visible, size):
    return masks.Visibility(**{**visible.__dict__, "block_size": size})


def blocked(case, query, key, value, table, *, size):
    visible, direction = CASES[case]
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)
    return blocked_attention(query, key, value, visible=in_blocks(visible, size), bias=bias)


def plain(case, query, key, value, table):
    visible, direction = CASES[case]
    bias = None
    if direction is not None:
        module = RelativeBias(H, num_buckets=BUCKETS, max_distance=MAX_DISTANCE, rngs=nnx.Rngs(0))
        module.table[...] = table
        bias = module(jnp.arange(query.shape[1]), jnp.arange(key.shape[1]), bidirectional=direction)
    return softmax_attention(query, key, value, bias, visible.dense(query.shape[1]))


@functools.partial(jax.jit, static_argnums=(0, 1))
def both(case, size, query, key, value, table, g):
    """Output and gradients of both, as two tuples."""

    def run(function):
        out, pullback = jax.vjp(functools.partial(function, case), query, key, value, table)
        return out, *pullback(g)

    return run(functools.partial(blocked, size=size)), run(plain)


@pytest.mark.parametrize("case", CASES)
def test_it_is_plain_attention_in_output_and_gradients(case):
    # 3 divides 9 and not 7; what a query sees may be in any of the blocks, or in none.
    ours, expected = both(case, 3, *operands(case))
    for got, wanted in zip(ours, expected, strict=True):
        if wanted is not None:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_any_size_of_block(size):
    ours, expected = both("prefix", size, *operands("prefix"))
    for got, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_every_gradient_is_there():
    gradients = both("decoder, packed", 3, *operands("decoder, packed"))[0][1:]
    assert all(np.any(gradient) for gradient in gradients)


def test_gradients_equal_finite_differences():
    function = jax.jit(functools.partial(blocked, "decoder, packed", size=4))
    inputs = operands("decoder, packed")[:4]
    check_grads(function, inputs, order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_a_query_that_sees_nothing_attends_to_all_keys_equally():
    query, key, value, table, _ = operands("encoder")
    got = blocked("encoder", query, key, value, table, size=3)
    expected = np.broadcast_to(np.mean(value[1], axis=0), (7, H, K))
    np.testing.assert_allclose(got[1], expected, rtol=1e-5, atol=1e-6)


def test_large_logits_do_not_overflow():
    query, key, value, table, g = operands("decoder")
    ours, _ = both("decoder", 3, query * 1e4, key, value, table, g)
    assert all(np.all(np.isfinite(array)) for array in ours)


def test_bfloat16_is_as_near_to_float32_as_plain_attention_is():
    low = operands("decoder, packed", dtype=jnp.bfloat16)
    full = [x.astype(jnp.float32) for x in low]
    ours, plainly = both("decoder, packed", 3, *low)
    assert [x.dtype for x in ours] == [jnp.bfloat16] * 4 + [jnp.float32]
    exact, _ = both("decoder, packed", 3, *full)
    for got, other, wanted in zip(ours, plainly, exact, strict=True):
        error, of_plain = (np.max(np.abs(x.astype(np.float32) - wanted)) for x in (got, other))
        assert error < 1.5 * of_plain
        assert of_plain < 0.03 * np.max(np.abs(wanted))


def test_dropout_drops_what_plain_attention_drops():
    visible, _ = CASES["across, packed"]
    query, key, value, _, _ = operands("across, packed")

    @jax.jit
    def outputs(query, key, value):
        return [
            dot_product_attention(
                query,
                key,
                value,
                pattern=Pattern(mask),
                dropout_rate=0.5,
                dropout_key=jax.random.key(1, impl="unsafe_rbg"),
            )
            for mask in (in_blocks(visible, 3), visible.dense(9), None)
        ]

    got, expected, other = outputs(query, key, value)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert np.any(np.abs(got - other) > 0.1)


@pytest.mark.slow
def test_dropout_of_each_query_and_key_draws_in_blocks():
    visible, _ = CASES["across, packed"]
    query, key, value, _, g = operands("across, packed")
    draws = WeightDropout(jax.random.key(1), 0.25)

    @functools.partial(jax.jit, static_argnums=0)
    def run(size, query, key, value):
        def attend(query, key, value):
            return dot_product_attention(
                query,
                key,
                value,
                pattern=Pattern(in_blocks(visible, size)),
                dropout_rate=0.25,
                dropout_key=draws.key,
                share_dropout=False,
            )

        out, pullback = jax.vjp(attend, query, key, value)
        return out, *pullback(g)

    def drawn(query, key, value):
        logits = jnp.einsum("bthk,bshk->bhts", query, key)
        weights = jax.nn.softmax(jnp.where(visible.dense(9), logits, masks.MASKED), axis=-1)
        kept = kept_keys(draws.rate, draws.streams(B, H, 9), 0, 7)
        return jnp.einsum("bhts,bshk->bthk", weights * kept * draws.scale, value)

    out, pullback = jax.vjp(drawn, query, key, value)
    for size in (3, 7):  # blocks do not change what is drawn
        for one, other in zip(run(size, query, key, value), (out, *pullback(g)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_block_without_keys():
    query, key, value, table, _ = operands("decoder")
    with pytest.raises(ValueError, match="block_size is 0, but must be at least 1 key"):
        blocked("decoder", query, key, value, table, size=0)


def largest_array(function, *inputs):
    """Elements of the largest array of the compiled program."""
    text = jax.jit(function).lower(*inputs).compile().as_text()
    shapes = re.findall(r"\b(?:pred|bf16|[fsu]\d+)\[([\d,]+)\]", text)
    assert len(shapes) > 50
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


@pytest.mark.parametrize("remat", [False, True], ids=["", "dots"])
def test_the_compiled_program_holds_no_array_of_t_times_s_elements(remat):
    length, size = 256, 16
    segments = jnp.ones((1, length), jnp.int32)
    visible = masks.of_decoder(segments)

    def loss(attend):
        def value(query, key, value, table):
            bias = RelativeTable(table=table, bidirectional=False, max_distance=32)
            return jnp.sum(jnp.sin(attend(query, key, value, bias)))

        if remat:
            value = jax.checkpoint(value, policy=jax.checkpoint_policies.checkpoint_dots)
        return jax.grad(value, argnums=(0, 1, 2, 3))

    def ours(query, key, value, bias):
        return blocked_attention(query, key, value, visible=in_blocks(visible, size), bias=bias)

    def dense(query, key, value, bias):
        bias = bias.block(length, 0, length)[None]
        return softmax_attention(query, key, value, bias, visible.dense(length))

    inputs = (*(normal(1, length, 1, 2, seed=seed) for seed in range(3)), normal(16, 1))
    # What each query and each key of a block make, and one element more for each key.
    assert largest_array(loss(ours), *inputs) <= (length + size) * size
    assert largest_array(loss(dense), *inputs) >= length * length
