import jax
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import Token
from tests.models.modules import MODEL, dense, filled, normal


def test_classes_of_each_token():
    head, params = filled(lambda rngs: Token(num_classes=4).build(MODEL, rngs=rngs))
    hidden = normal(2, 3, 6)
    expected = dense(np.asarray(hidden, np.float64), params["out"])
    np.testing.assert_allclose(head(hidden), expected, rtol=1e-5, atol=1e-5)
    dropped = head(hidden, key=jax.random.key(0))
    assert np.any(np.abs(np.asarray(dropped) - expected) > 1e-3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2: got 1"),
        ({"labels": ("O",)}, "labels must have 2 entries"),
        ({"dropout_rate": -0.1}, "dropout_rate must be in"),
    ],
)
def test_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        Token(**fields)
