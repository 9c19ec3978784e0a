import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn import pallas_kernels as blocks
from t5x_lite.nn.attention_pattern import relative_position_bucket
from t5x_lite.nn.pallas_kernels import Layout

BASE = Layout(
    num_queries=2000, num_keys=2000, num_heads=12, d_kv=64, query_block=256, key_block=256,
    causal=False, skips=False, buckets=32, bidirectional=True, max_distance=128,
)  # fmt: skip
DECODER = dataclasses.replace(BASE, causal=True, skips=True, bidirectional=False)


@pytest.mark.parametrize(
    ("heads", "d_kv", "group", "lanes"),
    [(12, 64, 2, 128), (32, 128, 1, 128), (3, 64, 3, 192), (4, 16, 4, 64), (16, 16, 8, 128)],
)
def test_heads_fill_the_lanes_or_are_all(heads, d_kv, group, lanes):
    layout = dataclasses.replace(BASE, num_heads=heads, d_kv=d_kv)
    assert (layout.group, layout.lanes) == (group, lanes)


def test_blocks_and_what_they_cover():
    layout = dataclasses.replace(BASE, num_queries=300, num_keys=100)
    assert (layout.blocks, layout.padded) == ((2, 1), (512, 256))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (BASE, (-2, 2)),  # blocks two diagonals away are more than 128 away
        (DECODER, (-2, 0)),
        (dataclasses.replace(DECODER, skips=False), (-2, 1)),  # one bucket for all to the right
        (dataclasses.replace(BASE, num_queries=512, num_keys=512), (-1, 1)),
        (dataclasses.replace(BASE, query_block=128, key_block=128), (-2, 2)),
        (dataclasses.replace(BASE, query_block=32, key_block=32), (-4, 4)),  # the last begins at 91
        (dataclasses.replace(BASE, buckets=None), (0, 0)),
    ],
)
def test_diagonals(layout, expected):
    assert layout.diagonals == expected
    assert layout.num_diagonals == expected[1] - expected[0] + 1


@pytest.mark.parametrize("bidirectional", [True, False])
def test_by_bucket(bidirectional):
    relative = jnp.arange(-200, 201)[None]
    layout = dataclasses.replace(BASE, bidirectional=bidirectional)
    expected = relative_position_bucket(relative, bidirectional=bidirectional)
    np.testing.assert_array_equal(blocks.by_bucket(layout, relative, jnp.int32), expected)


def test_only_some_lanes():
    x = jnp.arange(8.0).reshape(2, 4)
    np.testing.assert_array_equal(blocks.only(x, slice(2, 4)), [[0, 0, 2, 3], [0, 0, 6, 7]])
    assert blocks.only(x, slice(0, 4)) is x


def test_causal_blocks_that_are_passed_over_cost_nothing():
    whole = blocks.forward_cost(BASE, batch=1, itemsize=2)
    half = blocks.forward_cost(DECODER, batch=1, itemsize=2)
    assert half.flops * 64 == whole.flops * 36  # 8 * 9 / 2 of 8 * 8


def test_what_the_compiler_is_told():
    cost = blocks.backward_cost(BASE, batch=2, itemsize=2)
    told = blocks.estimate(cost)
    assert (told.flops, told.bytes_accessed) == (cost.flops, cost.bytes)
    limit = blocks.compiler_params(cost).vmem_limit_bytes
    assert limit is not None
    assert limit >= cost.vmem
