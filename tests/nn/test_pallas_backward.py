import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.nn.attention_pattern import relative_position_bucket
from t5x_lite.nn.pallas_kernels import Layout, backward_kernel, forward_kernel

LAYOUT = Layout(
    num_queries=24, num_keys=24, num_heads=1, d_kv=4, query_block=8, key_block=8,
    causal=False, skips=False, buckets=4, bidirectional=False, max_distance=3,
)  # fmt: skip


def test_the_table_s_gradient_of_diagonals_that_share_a_bias():
    # Three blocks in a row, and the buckets end at distance 3: the corner lies with its neighbour.
    assert LAYOUT.diagonals == (-2, 1)
    random = np.random.default_rng(0)
    query, key, value, g = (
        jnp.asarray(random.normal(size=(2, 24, 4)), jnp.float32) for _ in range(4)
    )
    table = jnp.asarray(random.normal(size=(4, 1)), jnp.float32)
    given = {"query": query, "key": key, "value": value, "table": table}

    @jax.jit
    def gradient(given, g):
        out, statistics = forward_kernel(LAYOUT, given, interpret=True)
        inner = jnp.sum(out * g, axis=-1)[:, None, None]
        statistics = jnp.concatenate([statistics, inner], axis=2)
        return backward_kernel(LAYOUT, {**given, "cotangent": g}, statistics, interpret=True)[
            "table"
        ]

    def plain(table):
        position = jnp.arange(24)
        bucket = relative_position_bucket(
            position[None] - position[:, None], bidirectional=False, num_buckets=4, max_distance=3
        )
        logits = jnp.einsum("btk,bsk->bts", query, key) + table[:, 0][bucket]
        return jnp.sum(g * jnp.einsum("bts,bsk->btk", jax.nn.softmax(logits), value))

    expected = jax.jit(jax.grad(plain))(table)
    np.testing.assert_allclose(gradient(given, g), expected, rtol=1e-5, atol=1e-5)
    assert dataclasses.replace(LAYOUT, buckets=None).diagonals == (0, 0)
