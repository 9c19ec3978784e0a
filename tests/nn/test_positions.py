import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn.attention_pattern import (
    RelativeBias,
    RelativeTable,
    bucket_starts,
    relative_position_bucket,
)
from t5x_lite.nn.slots import bind, split

POSITIONS = jnp.asarray(np.arange(150))


def published_bucket(relative_position, *, bidirectional, num_buckets=32, max_distance=128):
    """The formula of transformers' modeling_t5.py, in NumPy's float32."""
    bucket = np.zeros_like(relative_position)
    if bidirectional:
        num_buckets //= 2
        bucket += (relative_position > 0) * num_buckets
        distance = np.abs(relative_position)
    else:
        distance = -np.minimum(relative_position, 0)
    exact = num_buckets // 2
    ratio = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
    spread = np.log(ratio) / np.float32(math.log(max_distance / exact))
    large = exact + (spread * np.float32(num_buckets - exact)).astype(int)
    return bucket + np.where(distance < exact, distance, np.minimum(large, num_buckets - 1))


def exact_starts(num_buckets, max_distance):
    """First distance of each one-sided bucket, by comparing integer powers.

    Bucket exact + j begins where log(n / exact) / log(max_distance / exact) * rest >= j.
    """
    exact = num_buckets // 2
    rest = num_buckets - exact
    starts = list(range(exact))
    for j in range(rest):
        n = exact
        while n**rest * exact**j < max_distance**j * exact**rest:
            n += 1
        starts.append(n)
    return tuple(starts)


def test_first_distances_of_the_published_sizes():
    assert bucket_starts(16, 128) == (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)
    assert bucket_starts(32, 128) == (
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113,
    )  # fmt: skip
    assert exact_starts(16, 128) == bucket_starts(16, 128)
    assert exact_starts(32, 128) == bucket_starts(32, 128)


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"),
    [(2, 2), (2, 9), (3, 7), (4, 20), (5, 31), (8, 64), (8, 128), (16, 64), (16, 256), (24, 500),
     (32, 17), (32, 40), (32, 256), (64, 128), (64, 1024)],
)  # fmt: skip
def test_first_distances_of_other_sizes(num_buckets, max_distance):
    assert bucket_starts(num_buckets, max_distance) == exact_starts(num_buckets, max_distance)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(0, 128), (1, 128), (32, 16), (32, 0)])
def test_sizes_that_make_no_buckets(num_buckets, max_distance):
    with pytest.raises(ValueError, match="at least 2 buckets and a max_distance above half"):
        bucket_starts(num_buckets, max_distance)


def test_bidirectional_buckets_of_a_small_matrix():
    position = np.arange(4)
    bucket = relative_position_bucket(
        jnp.asarray(position[None, :] - position[:, None]), bidirectional=True
    )
    assert bucket.tolist() == [
        [0, 17, 18, 19],
        [1, 0, 17, 18],
        [2, 1, 0, 17],
        [3, 2, 1, 0],
    ]


def test_causal_buckets_of_a_small_matrix():
    position = np.arange(4)
    bucket = relative_position_bucket(
        jnp.asarray(position[None, :] - position[:, None]), bidirectional=False
    )
    assert bucket.tolist() == [
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [2, 1, 0, 0],
        [3, 2, 1, 0],
    ]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 100), (64, 300)])
def test_buckets_equal_the_published_formula(bidirectional, num_buckets, max_distance):
    relative_position = np.arange(-4095, 4096)[None]
    sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
    function = functools.partial(relative_position_bucket, bidirectional=bidirectional, **sizes)
    bucket = jax.jit(function)(jnp.asarray(relative_position))
    assert bucket.dtype == jnp.int32
    np.testing.assert_array_equal(
        bucket, published_bucket(relative_position, bidirectional=bidirectional, **sizes)
    )


def relative_bias(*, num_heads=3):
    return RelativeBias(num_heads, rngs=nnx.Rngs(0))


def test_bias_is_the_table_at_the_bucket():
    module = relative_bias(num_heads=2)
    module.table[...] = jnp.asarray(np.arange(64, dtype=np.float32).reshape(32, 2))
    read = jax.jit(module, static_argnames="bidirectional")
    bias = read(POSITIONS[:3], POSITIONS[:3], bidirectional=True)
    assert bias.dtype == jnp.float32
    assert bias.tolist() == [
        [
            [[0, 34, 36], [2, 0, 34], [4, 2, 0]],
            [[1, 35, 37], [3, 1, 35], [5, 3, 1]],
        ]
    ]
    # A decoder reads the same table by its own buckets: to the right all is bucket 0.
    assert read(POSITIONS[:3], POSITIONS[:3], bidirectional=False)[:, 0].tolist() == [
        [[0, 0, 0], [2, 0, 0], [4, 2, 0]]
    ]


def test_bias_of_later_queries_is_a_row_of_the_whole():
    module = functools.partial(relative_bias(), bidirectional=False)
    whole = np.asarray(jax.jit(module)(POSITIONS, POSITIONS))
    row = jax.jit(module)(POSITIONS[120:121], POSITIONS)
    np.testing.assert_array_equal(row, whole[:, :, 120:121])


@pytest.mark.parametrize("bidirectional", [True, False])
def test_bias_and_its_gradient_equal_a_plain_lookup(bidirectional):
    graphdef, params, _ = split(relative_bias())
    weights = np.random.default_rng(0).normal(size=(1, 3, 150, 150)).astype(np.float32)
    distance = np.arange(150)
    bucket = published_bucket(distance[None, :] - distance[:, None], bidirectional=bidirectional)

    def ours(table):
        module = bind(graphdef, {"table": table})
        return module(POSITIONS, POSITIONS, bidirectional=bidirectional)

    def plain(table):
        return jnp.take(table, jnp.asarray(bucket), axis=0).transpose(2, 0, 1)[None]

    def value_and_gradient(function, table):
        weighted = jax.grad(lambda table: jnp.sum(function(table) * weights))
        return function(table), weighted(table)

    both = jax.jit(lambda table: [value_and_gradient(f, table) for f in (ours, plain)])
    (value, grad), (expected_value, expected_grad) = both(params["table"])
    np.testing.assert_array_equal(value, expected_value)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-5, atol=1e-5)


def test_initial_table_is_uniform_by_the_mean_of_its_fans():
    table = relative_bias(num_heads=2048).table[...]
    variance = 1 / ((32 + 2048) / 2)
    np.testing.assert_allclose(np.var(table), variance, rtol=0.02)
    assert np.max(np.abs(table)) <= math.sqrt(3 * variance)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_blocks_of_a_table_are_parts_of_the_bias(bidirectional):
    module = RelativeBias(3, num_buckets=8, max_distance=6, rngs=nnx.Rngs(0))
    graphdef, params, _ = split(module)
    queries, keys = jnp.arange(11), jnp.arange(10)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(3, 11, 10)).astype(np.float32))

    @jax.jit
    def both(params):
        def whole(params):
            return bind(graphdef, params)(queries, keys, bidirectional=bidirectional)[0]

        def in_blocks(params):
            module = bind(graphdef, params)
            table = module.reading(bidirectional=bidirectional)
            blocks = [table.block(11, start, 4) for start in (0, 4, 8)]
            return jnp.concatenate(blocks, axis=-1)[..., :10]

        def weighed(function):
            return jax.grad(lambda params: jnp.sum(function(params) * weights))(params)

        return [(f(params), weighed(f)["table"]) for f in (in_blocks, whole)]

    (got, got_gradient), (expected, expected_gradient) = both(params)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(got_gradient, expected_gradient, rtol=1e-5, atol=1e-5)


def test_a_table_is_read_in_float32():
    graphdef, params, _ = split(RelativeBias(2, rngs=nnx.Rngs(0)))
    module = bind(graphdef, {"table": params["table"].astype(jnp.bfloat16)})
    table = module.reading(bidirectional=False)
    assert isinstance(table, RelativeTable)
    assert table.table.dtype == jnp.float32
    assert (table.bidirectional, table.max_distance) == (False, 128)
