import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.nn.pallas_kernels import Layout, forward_kernel

LAYOUT = Layout(
    num_queries=8, num_keys=12, num_heads=2, d_kv=4, query_block=8, key_block=8,
    causal=False, skips=False, buckets=None, bidirectional=False, max_distance=0,
)  # fmt: skip


def test_output_and_statistics_of_keys_that_do_not_fill_their_last_block():
    random = np.random.default_rng(0)
    query, key, value = (
        random.normal(size=(1, length, 8)).astype(np.float32) for length in (8, 16, 16)
    )
    given = {"query": query, "key": key, "value": value}
    kernel = jax.jit(lambda given: forward_kernel(LAYOUT, given, interpret=True))
    out, statistics = kernel(jax.tree.map(jnp.asarray, given))
    heads = [x.reshape(-1, 2, 4) for x in (query, key[:, :12], value[:, :12])]
    logits = np.einsum("thk,shk->hts", *heads[:2])
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    scale = 1 / weights.sum(-1)
    expected = np.einsum("hts,shk->thk", weights * scale[..., None], heads[2])
    np.testing.assert_allclose(out[0], expected.reshape(8, 8), rtol=1e-5, atol=1e-5)
    assert statistics.shape == (1, 1, 4, 8)
    np.testing.assert_allclose(statistics[0, 0, :2], logits.max(-1), rtol=1e-5)
    np.testing.assert_allclose(statistics[0, 0, 2:], scale, rtol=1e-5)
