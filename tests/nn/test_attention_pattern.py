import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn.attention_pattern import (
    Operands,
    attend,
    attend_in_blocks,
    by_distance,
    masked_weighting,
)
from t5x_lite.nn.dense import WeightDropout
from t5x_lite.nn.masks import segments


def test_by_distance_moves_rows():
    x = jnp.asarray([[-2, -1, 0, 1, 2]] * 3) + 10.0 * jnp.arange(3)[:, None]
    assert by_distance(x).tolist() == [[0, 1, 2], [9, 10, 11], [18, 19, 20]]
    assert by_distance(jnp.ones((2, 4, 1, 1))).shape == (2, 4, 1, 1)


def test_rows_that_see_nothing_are_zero_and_so_are_their_gradients():
    logits = jnp.asarray([[[[1e30, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 5.0, 1.0]]]])
    value = jnp.asarray([[[[1.0]], [[2.0]], [[4.0]]]])
    mask = jnp.asarray([[[[0, 1, 1], [0, 0, 0], [1, 0, 0]]]]) > 0
    out = masked_weighting(logits, value, mask)
    second = 1 / (1 + math.exp(1.0))
    np.testing.assert_allclose(out.ravel(), [2 * second + 4 * (1 - second), 0, 1], rtol=1e-6)
    grads = jax.grad(lambda *x: masked_weighting(*x, mask).sum(), argnums=(0, 1))(logits, value)
    slope = 2 * second * (1 - second)
    np.testing.assert_allclose(
        grads[0][0, 0], [[0, -slope, slope], [0, 0, 0], [0, 0, 0]], atol=1e-6
    )
    np.testing.assert_allclose(grads[1].ravel(), [1, second, 1 - second], rtol=1e-6)


def test_gradients_of_the_weighting():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(2, 2, 3, 4)), jnp.float32)
    value = jnp.asarray(rng.normal(size=(2, 4, 2, 3)), jnp.float32)
    mask = jnp.asarray(rng.random((2, 1, 3, 4)) < 0.7).at[..., 0].set(True)

    def plain(logits, value):
        weights = jax.nn.softmax(jnp.where(mask, logits, -1e10), axis=-1)
        return jnp.sum(jnp.sin(jnp.einsum("BHTS,BSHK->BTHK", weights, value)))

    def ours(logits, value):
        return jnp.sum(jnp.sin(masked_weighting(logits, value, mask)))

    for ours_grad, grad in zip(
        jax.grad(ours, argnums=(0, 1))(logits, value),
        jax.grad(plain, argnums=(0, 1))(logits, value),
        strict=True,
    ):
        np.testing.assert_allclose(ours_grad, grad, rtol=1e-4, atol=1e-6)


def test_by_distance_of_fewer_rows_than_columns():
    x = jnp.arange(5.0)[None] + 10.0 * jnp.arange(2)[:, None]
    assert by_distance(x).tolist() == [[1, 2, 3, 4], [10, 11, 12, 13]]
    assert by_distance(jnp.arange(8.0).reshape(4, 2).repeat(2, axis=1)[:, :4]).shape == (4, 1)


IDS = jnp.asarray([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]])


def operands(*, terms=2):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    rows = [normal(13, 3, 4) for _ in range(terms)]
    return Operands(normal(2, 7, 3, 4), normal(2, 7, 3, 4), normal(2, 7, 3, 4), *rows[:2])


def with_gradients(attention):
    """The output, and the gradients of a function of it."""

    @jax.jit
    def run(given):
        return attention(given), jax.grad(lambda x: jnp.sum(jnp.sin(attention(x))))(given)

    return jax.tree.leaves(run(operands()))


def test_logits_of_a_pair():
    given = operands()
    only_self = jnp.eye(7, dtype=bool)[None, None]
    np.testing.assert_allclose(attend(given, only_self), given.value, rtol=1e-6)
    query, key, value, position_key, position_query = (np.asarray(x)[..., 0, :] for x in given[:5])
    logits = np.empty((7, 7))
    for q in range(7):
        for k in range(7):
            logits[q, k] = (
                query[0, q] @ key[0, k]
                + query[0, q] @ position_key[k - q + 6]
                + key[0, k] @ position_query[q - k + 6]
            )
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ value[0]
    found = attend(given, jnp.ones((1, 1, 1, 7), bool))
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("block", [3, 7, 100])
def test_blocks_give_what_all_queries_give(block):
    plain = with_gradients(lambda x: attend(x, segments(IDS, IDS)))
    blocked = with_gradients(lambda x: attend_in_blocks(x, IDS, block=block))
    for one, other in zip(blocked, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_blocks_without_a_term():
    given = operands()._replace(position_query=None)
    np.testing.assert_allclose(
        attend_in_blocks(given, IDS, block=3), attend(given, segments(IDS, IDS)), atol=1e-5
    )


def test_dropout_in_blocks_has_the_gradients_of_its_draws():
    draws = WeightDropout(jax.random.key(1), 0.3)
    kept = jnp.concatenate([draws.kept((2, 3, 3, 7), i) for i in range(3)], axis=2)[:, :, :7]
    mask = segments(IDS, IDS)

    def whole(given):
        logits = -1e10 * ~mask + _logits_of(given)
        weights = jnp.where(mask, jax.nn.softmax(logits, axis=-1), 0.0) * kept
        return jnp.einsum("BHTS,BSHK->BTHK", weights, given.value)

    def _logits_of(given):
        content = jnp.einsum("BTHK,BSHK->BHTS", given.query, given.key)
        by_key = by_distance(jnp.einsum("BTHK,WHK->BHTW", given.query, given.position_key))
        by_query = by_distance(jnp.einsum("BSHK,WHK->BHSW", given.key, given.position_query))
        return content + by_key + by_query.swapaxes(2, 3)

    blocked = with_gradients(lambda x: attend_in_blocks(x, IDS, block=3, draws=draws))
    for one, other in zip(blocked, with_gradients(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_nothing_of_length_times_length_is_kept():
    def temporaries(length):
        ids = jnp.ones((1, length), jnp.int32)
        shapes = Operands(
            *[jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)] * 3,
            *[jax.ShapeDtypeStruct((2 * length - 1, 2, 8), jnp.float32)] * 2,
        )
        run = jax.jit(jax.grad(lambda x: jnp.sum(attend_in_blocks(x, ids, block=64) ** 2)))
        return run.lower(shapes).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(2048) < 2.5 * temporaries(1024)


def test_a_block_needs_a_query():
    with pytest.raises(ValueError, match="at least one query per block, but block is 0"):
        attend_in_blocks(operands(), IDS, block=0)
