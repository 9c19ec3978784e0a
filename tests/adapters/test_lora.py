import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.lora import Lora, LowRankBranch
from t5x_lite.errors import InputError
from t5x_lite.nn.dense import Dense
from t5x_lite.trees import count_parameters, flatten
from tests.adapters.hosts import learner


def test_the_branch_by_hand():
    dense = Dense(2, 3, axes=("embed", "mlp"), bias=True, rngs=nnx.Rngs(0))
    branch = LowRankBranch(dense, rank=1, scale=0.5, rngs=nnx.Rngs(0))
    assert np.all(np.abs(branch.a[...]) <= 2**-0.5)
    assert not np.any(branch.b[...])
    dense.kernel[...] = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    branch.a[...] = jnp.array([[1.0], [2.0]])
    branch.b[...] = jnp.array([[1.0, 0.0, 4.0]])
    x = jnp.array([[1.0, 1.0]])
    dense.slot = branch
    # x A = 3, times B = [3, 0, 12], halved.
    np.testing.assert_allclose(dense(x), [[2.5, 1.0, 6.0]])
    np.testing.assert_allclose(
        dense.effective_kernel(), [[1.5, 0.0, 2.0], [1.0, 1.0, 4.0]]
    )  # fmt: skip
    half = dense(x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16


def test_scale_and_size():
    assert Lora(rank=4, alpha=8.0).scale == 2.0
    assert Lora(rank=4, alpha=8.0, rank_stabilised=True).scale == 4.0
    made, _ = learner("bert", Lora(rank=2))
    paths = set(flatten(made.shapes["adapters"]))
    assert paths == {
        f"lora/encoder/attention/{name}/{part}" for name in ("query", "value") for part in "ab"
    }
    # Two layers, two sites, A and B of 8 x 2.
    assert count_parameters(made.shapes["adapters"]) == 2 * 2 * 2 * 16
    made, _ = learner("t5", Lora(rank=2))
    assert "lora/decoder/cross_attention/value/b" in flatten(made.shapes["adapters"])
    with pytest.raises(InputError, match="rank must be at least 1: got 0"):
        Lora(rank=0)
