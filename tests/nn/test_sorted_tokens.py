"""Tokens in blocks of one number each: all of them, in their order, and nothing that none chose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn.experts import in_blocks, over_blocks


@pytest.mark.parametrize("total", [1, 7, 300])
def test_each_token_by_its_own_number(total):
    rng = np.random.default_rng(total)
    chosen = rng.integers(-1, 5, total)  # -1 and 4 are of none
    x = rng.standard_normal((total, 3)).astype(np.float32)
    tables = rng.standard_normal((4, 3, 2)).astype(np.float32)
    tables[3] = np.nan
    chosen[chosen == 3] = 2

    @jax.jit
    def run(x, chosen):
        blocks = in_blocks(chosen, 4)
        made = over_blocks(blocks, blocks.taken(x), lambda rows, k: rows @ jnp.asarray(tables)[k])
        return blocks.put_back(made)

    found = run(x, jnp.asarray(chosen))
    expected = np.stack(
        [row @ tables[k] if 0 <= k < 4 else np.zeros(2) for row, k in zip(x, chosen, strict=True)]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: run(x, jnp.asarray(chosen)).sum())(x)
    wanted = np.stack([tables[k].sum(-1) if 0 <= k < 4 else np.zeros(3) for k in chosen])
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)
