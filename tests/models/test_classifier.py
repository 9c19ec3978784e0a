import jax
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import ClassificationHead, Classifier
from tests.models.modules import MODEL, dense, filled, normal

KEY = jax.random.key(3, impl="unsafe_rbg")


@pytest.mark.slow
def test_classes_come_from_the_first_token():
    head, params = filled(lambda rngs: ClassificationHead(6, 3, dropout_rate=0.5, rngs=rngs))
    hidden = normal(2, 4, 6)
    x = np.tanh(dense(np.asarray(hidden[:, 0], np.float64), params["dense"]))
    np.testing.assert_allclose(head(hidden), dense(x, params["out"]), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(head(hidden), head(hidden.at[:, 1:].set(0.0)))
    assert not np.allclose(head(hidden, key=KEY), head(hidden))


@pytest.mark.parametrize(
    ("kind", "rate", "before"),
    [("bert", None, 0.0), ("roberta", None, 0.2), ("electra", 0.1, 0.1), ("deberta", 0.1, 0.0)],
)
def test_the_kind(kind, rate, before):
    config = Classifier(num_classes=3, kind=kind, dropout_rate=rate)
    head, params = filled(lambda rngs: config.build(MODEL, rngs=rngs))
    assert head.activation == config.activation
    assert config.activation == ("tanh" if kind in ("bert", "roberta") else "gelu")
    assert (head.dropout_rate, head.input_dropout_rate) == (0.2 if rate is None else rate, before)
    assert params["out"]["kernel"].shape == (6, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_classes": 0}, "num_classes must be at least 1: got 0"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\): got 1.0"),
        ({"labels": ("a",)}, "labels must have 2 entries"),
        ({"name": "a/b"}, "a head name must be lower-case letters"),
    ],
)
def test_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        Classifier(**fields)
