import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.nn.layers import residual

X, Y = jnp.ones((1, 2, 3)), jnp.full((1, 2, 3), 4.0)


def test_pre_norm_and_post_norm():
    np.testing.assert_array_equal(residual(X, Y, rate=0.5), np.full((1, 2, 3), 5.0))
    found = residual(X, Y, norm=lambda x: x / 10)
    np.testing.assert_array_equal(found, np.full((1, 2, 3), 0.5, np.float32))


def test_a_mask_over_the_length_is_one_for_all_positions():
    x, y = jnp.zeros((1, 40, 8)), jnp.ones((1, 40, 8))
    key = jax.random.key(0)
    shared = np.asarray(residual(x, y, rate=0.5, key=key, over_length=True))
    own = np.asarray(residual(x, y, rate=0.5, key=key))
    assert {*np.unique(shared)} == {*np.unique(own)} == {0.0, 2.0}
    assert (shared == shared[:, :1]).all()
    assert not (own == own[:, :1]).all()
