"""Patterns: mask and bias in one form."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn import masks
from t5x_lite.nn.attention_pattern import EVERYTHING, Pattern, RelativeBias, RelativeTable

RELATIVE = RelativeBias(2, rngs=nnx.Rngs(0))
PLACES = jnp.arange(3)


def test_beside_an_array_the_bias_is_an_array():
    pattern = Pattern(masks.causal(3), positions=(PLACES, PLACES))
    biased = pattern.biased(RELATIVE, bidirectional=True)
    np.testing.assert_array_equal(biased.bias, RELATIVE(PLACES, PLACES, bidirectional=True))
    assert biased.mask is pattern.mask
    all_keys = Pattern(positions=(PLACES, PLACES)).biased(RELATIVE, bidirectional=False)
    np.testing.assert_array_equal(all_keys.bias, RELATIVE(PLACES, PLACES, bidirectional=False))


def test_beside_a_visibility_the_bias_is_a_table():
    biased = Pattern(masks.of_decoder()).biased(RELATIVE, bidirectional=False)
    assert isinstance(biased.bias, RelativeTable)
    assert not biased.bias.bidirectional


def test_a_bias_beside_an_array_needs_positions():
    with pytest.raises(ValueError, match="the positions of queries and keys are None"):
        EVERYTHING.biased(RELATIVE, bidirectional=True)


def test_an_array_beside_a_structure_is_refused():
    table = RELATIVE.reading(bidirectional=True)
    for mask, bias in ((masks.causal(3), table), (None, table)):
        with pytest.raises(ValueError, match="mask and bias must both be arrays"):
            Pattern(mask, bias)
    with pytest.raises(ValueError, match="got Visibility and ArrayImpl"):
        Pattern(masks.of_decoder(), jnp.zeros((1, 2, 3, 3)))
