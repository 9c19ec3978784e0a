import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.models.heads import DebertaRtdHead, ElectraRtdHead, Rtd
from tests.models.modules import MODEL, dense, filled, gelu, norm, normal


def test_detection_of_electra():
    head, params = filled(lambda rngs: ElectraRtdHead(6, rngs=rngs))
    hidden = normal(2, 3, 6)
    x = gelu(dense(np.asarray(hidden, np.float64), params["dense"]))
    expected = dense(x, params["out"])[..., 0]
    np.testing.assert_allclose(head(hidden), expected, rtol=1e-5, atol=1e-5)


def detection_of_deberta(hidden, first, params):
    x = norm(np.asarray(hidden + first, np.float64), params["norm"], 1e-7)
    return dense(gelu(dense(x, params["dense"])), params["out"])[..., 0]


def test_detection_of_deberta():
    head, params = filled(lambda rngs: DebertaRtdHead(6, rngs=rngs))
    hidden = normal(2, 3, 6)
    expected = detection_of_deberta(hidden, hidden[:, :1], params)
    np.testing.assert_allclose(head(hidden), expected, rtol=1e-5, atol=1e-5)


def test_detection_of_deberta_in_packed_documents():
    head, params = filled(lambda rngs: DebertaRtdHead(6, rngs=rngs))
    hidden, positions = normal(1, 5, 6), jnp.array([[0, 1, 0, 1, 2]])
    found = head(hidden, positions=positions)
    for start, end in ((0, 2), (2, 5)):
        part = hidden[:, start:end]
        expected = detection_of_deberta(part, part[:, :1], params)
        np.testing.assert_allclose(found[:, start:end], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "expected"), [("electra", ElectraRtdHead), ("deberta", DebertaRtdHead)]
)
def test_the_kind(kind, expected):
    model = MODEL.replace(activation="relu")
    head, params = filled(lambda rngs: Rtd(kind=kind).build(model, rngs=rngs))
    assert isinstance(head, expected)
    assert head.activation == "relu"
    assert params["out"]["kernel"].shape == (6, 1)
