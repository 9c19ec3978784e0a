import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.decoding.sampling import (
    Decoding,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    request_keys,
    sample_keys,
    warped,
)

P = [0.05, 0.4, 0.15, 0.3, 0.1]
LOGITS = jnp.log(jnp.array([P]))


def kept(logits):
    return jnp.nonzero(logits[0] > -jnp.inf)[0].tolist()


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (9, [0, 1, 2, 3, 4])]
)
def test_top_k(k, expected):
    assert kept(keep_top_k(LOGITS, k)) == expected


def test_top_k_keeps_equals_of_the_last():
    assert kept(keep_top_k(jnp.array([[1.0, 3.0, 2.0, 2.0]]), 2)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (1e-9, [1]),  # the likeliest always
        (0.39, [1]),
        (0.41, [1, 3]),  # 0.4 is not enough
        (0.69, [1, 3]),
        (0.71, [1, 2, 3]),
        (0.94, [1, 2, 3, 4]),
        (0.96, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p(p, expected):
    assert kept(keep_top_p(LOGITS, p)) == expected
    # Only differences of logits count; negative and positive ones are in one order.
    assert kept(keep_top_p(LOGITS + 2.0, p)) == expected


def test_top_p_of_what_top_k_left():
    # 0.4 and 0.3 are 0.571 and 0.429 of what is left.
    decoding = Decoding(temperature=1.0, top_k=2, top_p=0.57)
    assert kept(warped(LOGITS, decoding)) == [1]
    decoding = Decoding(temperature=1.0, top_k=2, top_p=0.58)
    assert kept(warped(LOGITS, decoding)) == [1, 3]


@pytest.mark.parametrize(
    ("p", "expected"), [(0.76, [1]), (0.74, [1, 3]), (0.3, [1, 2, 3]), (0.2, [1, 2, 3, 4])]
)
def test_min_p(p, expected):
    # Relative to 0.4: 0.125, 1, 0.375, 0.75, 0.25.
    assert kept(keep_min_p(LOGITS, p)) == expected


def test_the_temperature_comes_first():
    np.testing.assert_allclose(warped(LOGITS, Decoding(temperature=0.5)), 2 * LOGITS)
    # Squared and normalised, the two likeliest have 0.877 of the probability.
    assert kept(warped(LOGITS, Decoding(temperature=0.5, top_p=0.85))) == [1, 3]


@pytest.mark.parametrize("size", [5, 300])
def test_tokens_are_drawn_with_their_probabilities(size):
    # 300 tokens are three blocks, the last of them not whole.
    probabilities = np.zeros(size, np.float32)
    probabilities[[0, 1, size // 2, size - 1]] = [0.1, 0.4, 0.2, 0.3]
    keys = request_keys(0, jnp.arange(20_000, dtype=jnp.uint32))
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(probabilities)), (20_000, size))
    tokens = np.asarray(jax.jit(draw)(keys, logits, jnp.int32(0)))
    found = np.bincount(tokens, minlength=size) / 20_000
    assert set(np.flatnonzero(found)) == set(np.flatnonzero(probabilities))
    np.testing.assert_allclose(found, probabilities, atol=0.015)


def test_every_step_draws_anew():
    keys = request_keys(0, jnp.zeros(1, jnp.uint32))
    logits = jnp.zeros((1, 1000))
    assert len({int(draw(keys, logits, jnp.int32(i))[0]) for i in range(8)}) > 6


def test_keys_are_of_the_request_and_the_sample():
    keys = request_keys(3, jnp.array([4, 9], jnp.uint32))
    alone = request_keys(3, jnp.array([9], jnp.uint32))
    rows = jax.random.key_data(sample_keys(keys, 3))
    assert len({tuple(row) for row in rows.tolist()}) == 6
    assert (rows[3:] == jax.random.key_data(sample_keys(alone, 3))).all()
    assert (rows[3:4] == jax.random.key_data(sample_keys(alone, 1))).all()
    assert (jax.random.key_data(request_keys(4, jnp.array([9], jnp.uint32))) != rows[3]).any()


def test_each_request_may_have_its_own_seed():
    largest = 2**32 - 1
    seeds, numbers = (jnp.array(x, jnp.uint32) for x in ([3, 0, largest], [9, 0, 0]))
    rows = jax.random.key_data(request_keys(seeds, numbers))
    for row, seed in enumerate((3, 0, largest)):
        alone = jax.random.key_data(request_keys(seed, numbers[row : row + 1]))
        assert (rows[row : row + 1] == alone).all()
    assert len({tuple(row) for row in rows.tolist()}) == 3
