import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import Span, SpanHead
from tests.models.modules import dense, filled, normal


def test_spans():
    head, params = filled(lambda rngs: SpanHead(6, rngs=rngs))
    hidden = normal(2, 4, 6)
    start, end = head(hidden)
    expected = dense(np.asarray(hidden, np.float64), params["out"])
    np.testing.assert_allclose(start, expected[..., 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(end, expected[..., 1], rtol=1e-5, atol=1e-5)


def test_the_longest_answer():
    assert Span().longest == 30
    with pytest.raises(InputError, match="longest must be at least 1: got 0"):
        Span(longest=0)
