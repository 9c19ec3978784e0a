import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.decoding.generate import Ensemble, average, decode
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.decoding.search import Generative

INPUTS = jnp.array([[3, 2], [5, 0]])


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.slow
def test_equal_models_are_one(hashed, num_beams):
    model = hashed()
    decoding = Decoding(max_decode_length=5, num_beams=num_beams, num_return=num_beams)
    tokens, scores = decode(model, INPUTS, decoding=decoding)
    ensemble = Ensemble([model, model])
    assert isinstance(ensemble, Generative)
    both_tokens, both_scores = decode(ensemble, INPUTS, decoding=decoding)
    assert both_tokens.tolist() == tokens.tolist()
    np.testing.assert_array_equal(both_scores, scores)


def test_logits_are_averaged(markov):
    # Geometric means over tokens 0..3: 0.04, 0.16, 0.24 and 0.21 before normalisation.
    first = markov([[0.1, 0.1, 0.6, 0.2]] * 4)
    second = markov([[0.016, 0.256, 0.096, 0.2205]] * 4)
    model = Ensemble([first, second])
    logits, cache = model.prefill(INPUTS, max_length=2)
    expected = np.log([[0.04, 0.16, 0.24, 0.21]] * 2)
    np.testing.assert_allclose(logits, expected, rtol=1e-5)
    logits, cache = model.step(jnp.array([2, 3]), cache)
    np.testing.assert_allclose(logits, expected, rtol=1e-5)
    assert cache == ((), ())
    # The second alone would say 1.
    assert decode(second, INPUTS, decoding=Decoding(max_decode_length=1))[0].tolist() == [
        [[1]],
        [[1]],
    ]
    assert decode(model, INPUTS, decoding=Decoding(max_decode_length=1))[0].tolist() == [
        [[2]],
        [[2]],
    ]


def test_an_ensemble_is_prepared_member_by_member(markov):
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Slow:
        table: Any

        def prefill(self, inputs, *, max_length, prompt=None): ...
        def step(self, tokens, cache): ...
        def repeat(self, cache, num): ...
        def select(self, cache, rows): ...

        def prepared(self):
            return markov(np.exp(self.table))

    table = jnp.log(jnp.array([[0.3, 0.7]] * 2))
    prepared = Ensemble([Slow(table), markov([[0.5, 0.5]] * 2)]).prepared()
    assert [type(model).__name__ for model in prepared.models] == ["Markov", "Markov"]
    logits, _ = prepared.prefill(INPUTS, max_length=1)
    np.testing.assert_allclose(logits[0], np.log([0.15**0.5, 0.35**0.5]), rtol=1e-5)
    leaves = jax.tree.leaves(Ensemble([Slow(table), Slow(table)]))
    assert [leaf.shape for leaf in leaves] == [(2, 2), (2, 2)]


def test_one_vocabulary():
    with pytest.raises(InputError, match=r"share a vocabulary, got vocabulary sizes \[4, 5\]"):
        average([jnp.zeros((1, 4)), jnp.zeros((1, 5))])
    with pytest.raises(InputError, match="at least one"):
        Ensemble([])
