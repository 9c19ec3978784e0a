import numpy as np
import pytest

from t5x_lite.adapters.delta_parts import Dense, LowRank, factored, is_kernel

RNG = np.random.default_rng(0)
A, B = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 7, 4), (3, 4, 5)))


@pytest.mark.parametrize("part", [LowRank(A, B, 0.5), Dense(0.5 * A @ B)])
def test_the_nearest_product(part):
    dense = 0.5 * A @ B
    u, s, v = np.linalg.svd(dense, full_matrices=False)
    for rank in (1, 2, 4, 9):
        found = factored(part, rank)
        assert found.rank == min(rank, 4 if isinstance(part, LowRank) else 5)
        best = (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]
        np.testing.assert_allclose(found.dense(), best, atol=1e-5)
    # Both factors have the roots of the singular values.
    norms = (
        np.linalg.norm(factored(part, 2).a, axis=-2),
        np.linalg.norm(factored(part, 2).b, axis=-1),
    )
    np.testing.assert_allclose(norms[0], np.sqrt(s[..., :2]), rtol=1e-5)
    np.testing.assert_allclose(norms[1], np.sqrt(s[..., :2]), rtol=1e-5)


def test_what_is_a_kernel():
    assert is_kernel("model/embedding/token", (9, 4))
    assert is_kernel("model/encoder/layers/mlp/wi/kernel", (2, 3, 4))
    assert not is_kernel("model/encoder/layers/norm/scale", (2, 3))
    assert not is_kernel("model/encoder/layers/mlp/wi/bias", (2, 3))
