"""Three heads in one pass: those of the modules, and several [CLS]."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.text_encoder import Embedder
from t5x_lite.layouts import Groups
from t5x_lite.objectives.m3 import m3
from tests.encoder_checkpoint import write_ranker

CLS, SEP = 2, 3
WAYS = ("dense", "lexical", "multi_vector")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, compile_once):
    objective = m3(specials=(0, 1, 2, 3), vector_size=4)
    checkpoint = write_ranker(
        tmp_path_factory.mktemp("m3"), objective=objective, layout=Groups(), targets_length=12
    )
    encoder = Checkpoint.load([str(checkpoint)]).encoder()
    encoder.params["heads"]["lexical"]["out"]["bias"] = jnp.full(1, 5.0)  # terms have weights
    return encoder


def rows(*texts):
    return [np.array([CLS, *text, SEP], np.int32) for text in texts]


@pytest.mark.slow
def test_all_heads_in_one_pass(encoder):
    given = rows([5, 6, 5, 1], [], [7], [8, 9, 10, 11, 12])
    embedder = encoder.head_embedder(WAYS, batch_size=2)
    found = embedder.several(encoder.params, given)
    plain = encoder.embedder(batch_size=2)
    assert isinstance(plain, Embedder)
    np.testing.assert_array_equal(found.dense, plain.run(encoder.params, given))
    bound = encoder.loaded.learner.bind(encoder.params)
    for row, terms, vectors in zip(given, found.terms, found.vectors, strict=True):
        tokens, there = jnp.asarray(row[None]), jnp.ones((1, len(row)), jnp.int32)
        hidden = bound.model.encode(tokens, segment_ids=there)
        weights = np.asarray(bound.heads["lexical"](hidden))[0]
        expected = {}
        for token, weight in zip(row.tolist(), weights.tolist(), strict=True):
            if token > 3 and weight > 0:
                expected[token] = max(weight, expected.get(token, 0.0))
        assert terms == pytest.approx(expected, abs=1e-5)
        assert list(terms.values()) == sorted(terms.values(), reverse=True)
        assert vectors.shape == (len(row) - 1, 4)
        own = np.asarray(bound.heads["multi_vector"](hidden, there))[0]
        np.testing.assert_allclose(vectors, own, atol=1e-5)
    assert any(found.terms)
    empty = encoder.head_embedder(("lexical",), batch_size=2).several(encoder.params, given[:1])
    assert (empty.dense, empty.vectors) == (None, None)


@pytest.mark.slow
def test_several_cls(encoder):
    texts = ["a b c d e f g", "a b", "c d e"]
    found = encoder.rows(texts, mcls=3)
    assert found.rows[0].tolist() == [2, 5, 6, 7, 2, 8, 9, 10, 2, 11, 3]
    assert not found.longer
    embedder = encoder.head_embedder(WAYS, batch_size=2)
    several = embedder.several(encoder.params, found.rows, mcls=True)
    plain = embedder.several(encoder.params, encoder.rows(texts).rows)
    # Texts that fit the window are those without, to the last bit.
    np.testing.assert_array_equal(several.dense[1:], plain.dense[1:])
    assert several.terms[1:] == plain.terms[1:]
    # By hand: the mean of the states at the [CLS], then length 1.
    row = jnp.asarray(found.rows[0][None])
    model = encoder.loaded.learner.bind(encoder.params).model
    hidden = np.asarray(model.encode(row, segment_ids=jnp.ones_like(row)))[0]
    mean = np.mean(hidden[[0, 4, 8]], axis=0)
    np.testing.assert_allclose(several.dense[0], mean / np.linalg.norm(mean), atol=1e-5)
    assert several.vectors[0].shape == (8, 4)  # of the seven letters and [SEP]
    assert set(several.terms[0]) <= set(range(5, 12))
