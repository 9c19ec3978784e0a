import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn.bind import bind, shapes
from t5x_lite.nn.heads import (
    ClassificationHead,
    DebertaRtdHead,
    ElectraRtdHead,
    MaskedLMHead,
    SpanHead,
)

KEY = jax.random.key(3, impl="unsafe_rbg")


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def filled(build):
    """A head with random parameters, and these in float64."""
    graphdef, abstract, _ = shapes(build)
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), abstract
    )
    return bind(graphdef, params), jax.tree.map(lambda p: np.asarray(p, np.float64), params)


def dense(x, params):
    return x @ params["kernel"] + params["bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def norm(x, params, epsilon):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_masked_language_model(batch):
    head, params = filled(lambda rngs: MaskedLMHead(6, 4, 9, norm_epsilon=1e-5, rngs=rngs))
    hidden, table = normal(*batch, 6), normal(9, 4, seed=2)
    x = norm(gelu(dense(np.asarray(hidden, np.float64), params["dense"])), params["norm"], 1e-5)
    expected = x @ np.asarray(table, np.float64).T + params["bias"]
    np.testing.assert_allclose(head(hidden, table), expected, rtol=1e-5, atol=1e-5)
    low = head(hidden.astype(jnp.bfloat16), table.astype(jnp.bfloat16))
    assert low.dtype == jnp.float32


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


def test_classes_come_from_the_first_token():
    head, params = filled(lambda rngs: ClassificationHead(6, 3, dropout_rate=0.5, rngs=rngs))
    hidden = normal(2, 4, 6)
    x = np.tanh(dense(np.asarray(hidden[:, 0], np.float64), params["dense"]))
    np.testing.assert_allclose(head(hidden), dense(x, params["out"]), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(head(hidden), head(hidden.at[:, 1:].set(0.0)))
    assert not np.allclose(head(hidden, key=KEY), head(hidden))


def test_spans():
    head, params = filled(lambda rngs: SpanHead(6, rngs=rngs))
    hidden = normal(2, 4, 6)
    start, end = head(hidden)
    expected = dense(np.asarray(hidden, np.float64), params["out"])
    np.testing.assert_allclose(start, expected[..., 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(end, expected[..., 1], rtol=1e-5, atol=1e-5)
