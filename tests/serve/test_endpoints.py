"""What requests become, and what batches answer: the same as `t5x_lite.load` does."""

import dataclasses

import jax
import numpy as np
import pytest

import t5x_lite
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.serve.batching import Refused
from t5x_lite.serve.endpoints import ENDPOINTS, Asked, Embed, Predict, Rerank, Score
from tests import t5_checkpoint
from tests.encoder_checkpoint import write_checkpoint, write_ranker

DECODING = Decoding(max_decode_length=4)
TEXTS = ["the a", "a", "", " ".join(["the"] * 40)]


@pytest.fixture(scope="module")
def t5(tmp_path_factory, tiny_vocabulary):
    return str(t5_checkpoint.write_checkpoint(tmp_path_factory.mktemp("t5"), tiny_vocabulary))


@pytest.fixture(scope="module")
def model(t5, compile_once):
    del compile_once
    return Checkpoint.load([t5], inputs_length=32)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def ranker(tmp_path_factory, compile_once):
    del compile_once
    return str(write_ranker(tmp_path_factory.mktemp("ranker")))


def answers(endpoint, record, *, size=4):
    """The results of a request, its rows of each shape in one batch."""
    rows = endpoint.rows(record)
    outcomes = [None] * len(rows)
    for lengths in {row.lengths for row in rows}:
        places = [place for place, row in enumerate(rows) if row.lengths == lengths]
        found = endpoint.answer([rows[i].payload for i in places], size=size, lengths=lengths)
        for place, outcome in zip(places, found, strict=True):
            outcomes[place] = outcome
    return endpoint.results(record, outcomes)


@pytest.mark.slow
def test_predictions_are_those_of_python(model, t5):
    endpoint = Predict(model, Asked(decoding=DECODING, max_rows=4))
    results = answers(endpoint, {"inputs": TEXTS})
    expected = t5x_lite.load(t5, inputs_length=32).predict(TEXTS, max_decode_length=4)
    assert [one["prediction"] for one in results] == [best.text for best, *_ in expected]
    np.testing.assert_allclose(
        [one["score"] for one in results], [best.score for best, *_ in expected], rtol=1e-5
    )
    assert [one.get("cut") for one in results] == [None, None, None, True]


@pytest.mark.slow
def test_several_predictions_and_seeds(model):
    decoding = dataclasses.replace(DECODING, temperature=1.0, num_return=2)
    endpoint = Predict(model, Asked(decoding=decoding))
    first, again = (answers(endpoint, {"inputs": ["the", "the"], "seed": 7}) for _ in range(2))
    assert first == again
    assert first[0] == first[1]
    [one] = answers(endpoint, {"inputs": "the"})
    assert len(one["predictions"]) == 2
    assert one["predictions"][0] == {"text": one["prediction"], "score": one["score"]}


@pytest.mark.slow
def test_log_likelihoods_are_those_of_python(model, t5):
    endpoint = Score(model, Asked(targets_length=8, max_rows=8))
    targets = ["a", "the", "", "the a"]
    results = answers(endpoint, {"inputs": TEXTS, "targets": targets})
    python = t5x_lite.load(t5, inputs_length=32)
    expected = python.score(list(zip(TEXTS, targets, strict=True)))
    np.testing.assert_allclose([one["log_likelihood"] for one in results], expected, rtol=1e-5)
    assert [one["num_tokens"] for one in results] == [2, 2, 1, 3]
    ranked = answers(endpoint, {"inputs": TEXTS[:2], "candidates": ["a", "the a"]})
    rankings = python.rank(TEXTS[:2], ["a", "the a"])
    assert [one["prediction"] for one in ranked] == [one.prediction for one in rankings]
    np.testing.assert_allclose(
        [one["scores"] for one in ranked], [one.scores for one in rankings], rtol=1e-5
    )


@pytest.mark.slow
def test_vectors_are_those_of_python(bert):
    model = Checkpoint.load([bert], inputs_length=8)
    endpoint = Embed(model, Asked(pooling="cls", normalize=True))
    texts = ["a b c", "d", "a b c d e f g h i j"]
    results = answers(endpoint, {"texts": texts})
    expected = t5x_lite.load(bert, inputs_length=8).encode(texts, pooling="cls", normalize=True)
    np.testing.assert_allclose([one["vector"] for one in results], expected, rtol=1e-5, atol=1e-6)
    assert [one.get("cut") for one in results] == [None, None, True]
    [prefixed] = answers(endpoint, {"texts": "b c", "prefix": "a "})
    np.testing.assert_allclose(prefixed["vector"], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_ranks_are_those_of_the_cross_encoder(ranker):
    endpoint = Rerank(Checkpoint.load([ranker]), Asked(max_rows=4))
    passages = ["c", "h i j k l m n o p", "d e", ""]
    results = answers(endpoint, {"query": "a b", "passages": passages})
    expected = (
        Checkpoint.load([ranker]).pair_scorer().scores([("a b", passage) for passage in passages])
    )
    np.testing.assert_allclose([one["score"] for one in results], expected, rtol=1e-5, atol=1e-6)
    best_first = sorted(range(4), key=lambda place: -expected[place])
    assert sorted(range(4), key=lambda place: results[place]["rank"]) == best_first
    assert sorted(one["rank"] for one in results) == [1, 2, 3, 4]
    assert [one.get("cut") for one in results] == [None, True, None, None]
    [long_query] = answers(endpoint, {"query": "a b c d e f", "passages": "c"})
    assert long_query["cut"] is True


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"passages": "a"}, 'must have "query"'),
        ({"query": "", "passages": "a"}, 'must have "query"'),
        ({"query": ["a"], "passages": "a"}, '"query" must be a string, got a list'),
        ({"query": "a"}, 'must have "passages"'),
        ({"query": "a", "passages": []}, "at least one text"),
        ({"query": "a", "passages": ["a"] * 9}, "may have at most 8 texts, got 9"),
        ({"query": "a", "passages": ["a", "b " * 20]}, "Text 1 is longer than 12 tokens"),
    ],
)
def test_requests_to_rerank_that_are_refused(ranker, record, sentence):
    asked = Asked(max_rows=8, long_inputs="refuse")
    with pytest.raises(Refused, match=sentence):
        Rerank(Checkpoint.load([ranker]), asked).rows(record)


def test_only_one_cross_encoder_ranks(ranker, bert):
    with pytest.raises(
        t5x_lite.core.errors.InputError, match="has no head 'classifier' with one class"
    ):
        Rerank(Checkpoint.load([bert]), Asked())
    with pytest.raises(t5x_lite.core.errors.InputError, match="rerank takes one checkpoint"):
        Rerank(Checkpoint.load([ranker, ranker]), Asked())


@pytest.mark.parametrize(
    ("name", "record", "sentence"),
    [
        ("score", {"inputs": "a"}, 'either "targets" or "candidates"'),
        ("score", {"inputs": "a", "targets": "a", "candidates": ["a"]}, 'either "targets" or'),
        ("score", {"inputs": ["a", "b"], "targets": "a"}, "2 inputs, but 1 targets"),
        (
            "score",
            {"inputs": ["a"] * 3, "candidates": ["a"] * 3},
            "may have at most 8 texts, got 9",
        ),
        ("score", {"inputs": "a", "targets": "the " * 20}, "Target 0 is longer than 8 tokens"),
        ("predict", {"inputs": ["a", "the " * 40]}, "Text 1 is longer than 32 tokens"),
        ("predict", {"inputs": "a", "seed": "7"}, "a whole number"),
    ],
)
def test_requests_that_are_refused(model, name, record, sentence):
    asked = Asked(decoding=DECODING, targets_length=8, max_rows=8, long_inputs="refuse")
    with pytest.raises(Refused, match=sentence):
        ENDPOINTS[name](model, asked).rows(record)


def test_a_prompt_that_is_not_there(bert):
    endpoint = Embed(Checkpoint.load([bert]), Asked(pooling="mean"))
    with pytest.raises(Refused, match="has no prompt 'query'") as caught:
        endpoint.rows({"texts": "a", "prompt": "query"})
    assert caught.value.status == 400


def test_an_encoder_writes_no_text(bert):
    with pytest.raises(t5x_lite.core.errors.InputError, match="use embed"):
        Predict(Checkpoint.load([bert]), Asked())


def test_a_result_that_is_not_finite_is_an_error_of_its_own_row(model, monkeypatch):
    endpoint = Score(model, Asked(targets_length=8))
    scorer = endpoint._scorers.get(4)
    monkeypatch.setattr(scorer, "run", lambda *_, **__: [float("nan"), -1.0])
    rows = endpoint.rows({"inputs": ["a", "the"], "targets": ["a", "a"]})
    bad, good = endpoint.answer([row.payload for row in rows], size=4, lengths=rows[0].lengths)
    assert (bad.status, "NaN or infinite" in str(bad)) == (500, True)
    assert good == {"log_likelihood": -1.0, "num_tokens": 2}


@pytest.mark.slow
def test_no_program_is_compiled_after_the_shapes(model, bert, ranker):
    """Every length of texts, number of rows and seed meets a program that the warm-up made."""
    encoder = Checkpoint.load([bert])
    asked = Asked(decoding=DECODING, targets_length=20, max_rows=8, pooling="mean")
    endpoints = {
        "predict": (Predict(model, asked), lambda text: {"inputs": text, "seed": len(text)}),
        "score": (Score(model, asked), lambda text: {"inputs": text, "targets": text[:30]}),
        "embed": (Embed(encoder, asked), lambda text: {"texts": text}),
        "rerank": (
            Rerank(Checkpoint.load([ranker]), asked),
            lambda text: {"query": "a b", "passages": text},
        ),
    }
    sizes = (1, 2)
    for endpoint, _ in endpoints.values():
        for shape in endpoint.shapes:
            for size in sizes:
                endpoint.answer([endpoint.warm_row(shape)], size=size, lengths=shape)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    try:
        for endpoint, record in endpoints.values():
            for length in (0, 1, 5, 14, 15, 16, 17, 30, 200):
                for number, size in ((1, 1), (1, 2), (2, 2)):
                    rows = endpoint.rows(record("a " * length)) * number
                    payloads = [row.payload for row in rows]
                    endpoint.answer(payloads, size=size, lengths=rows[0].lengths)
    finally:
        jax.monitoring.clear_event_listeners()
    assert compiled == []


def test_static_lengths_hold_the_longest():
    assert Asked().static_lengths(128) == (32, 128)
    assert Asked(lengths=(16, 64, 256)).static_lengths(100) == (16, 64, 128)
    assert Asked(lengths=(256,)).static_lengths(100) == (128,)
