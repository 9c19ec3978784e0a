import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck import (
    Bottleneck,
    BottleneckBlock,
    double_seq_bn,
    par_bn,
    seq_bn,
)
from t5x_lite.errors import InputError
from t5x_lite.trees import count_parameters
from tests.adapters.hosts import learner

F = jnp.array([[[1.0, -2.0]]])
X = jnp.array([[[3.0, 4.0]]])


@pytest.mark.parametrize(
    ("config", "with_norm", "read"),
    [
        (seq_bn(), False, lambda norm: F + X),
        (seq_bn(), True, lambda norm: norm(F + X)),
        (double_seq_bn(), True, lambda norm: F),
        (par_bn(), False, lambda norm: X),
        (par_bn(), True, lambda norm: X),
    ],
)
def test_by_hand(config, with_norm, read):
    norm = (lambda y: y / 10.0) if with_norm else None
    block = BottleneckBlock(config, 2, rngs=nnx.Rngs(0))
    block.down.kernel[...] = jnp.array([[1.0], [0.5]])
    block.down.bias[...] = jnp.array([0.25])
    block.up.kernel[...] = jnp.array([[2.0, -1.0]])
    block.up.bias[...] = jnp.array([0.5, 0.0])
    hidden = jax.nn.relu(read(norm) @ block.down.kernel[...] + block.down.bias[...])
    added = config.scale * (hidden @ block.up.kernel[...] + block.up.bias[...])
    expected = F + X + added
    np.testing.assert_allclose(
        block(F, X, norm), expected if norm is None else norm(expected), rtol=1e-6
    )


def test_sizes_and_beginnings():
    # Of BERT-base as in the library `adapters`: 12 layers of 2 * 768 * 48 + 48 + 768.
    block = BottleneckBlock(seq_bn(), 768, rngs=nnx.Rngs(0))
    assert 12 * (block.down.kernel.size + block.up.kernel.size + 48 + 768) == 894_528
    assert float(jnp.std(block.up.kernel[...])) == pytest.approx(0.02, rel=0.1)
    mam = BottleneckBlock(par_bn(), 768, rngs=nnx.Rngs(0))
    assert mam.down.kernel.shape == (768, 384)
    assert not np.any(mam.up.kernel[...])
    assert np.all(np.abs(mam.down.kernel[...]) <= 768**-0.5)
    made, _ = learner("t5", double_seq_bn(reduction=4.0))
    # Encoder and decoder, two layers each, after attention and after the feed-forward block.
    assert count_parameters(made.shapes["adapters"]) == 2 * 2 * 2 * (2 * 8 * 2 + 2 + 8)


def test_what_is_wrong():
    with pytest.raises(InputError, match="reduction must be above 0: got 0"):
        Bottleneck(reduction=0.0)
