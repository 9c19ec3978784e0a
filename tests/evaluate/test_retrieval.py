"""Retrieval on a small BEIR directory, with a model whose vectors are known."""

import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.config.evaluation import Retrieval
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.encoder_tokens import text_rows
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate import retrieval
from t5x_lite.evaluate.retrieval import Found, RetrievalEvaluator, trec_lines
from tests import tokenizer_files

pytest.importorskip("pytrec_eval")

DOCUMENTS = [
    {"_id": "d1", "title": "the", "text": "dog"},
    {"_id": "d2", "text": "run"},
    {"_id": "d3", "text": "dog dog"},
    {"_id": "q1", "text": "dog run"},
]
QUERIES = [
    {"_id": "q1", "text": "dog run"},
    {"_id": "q2", "text": "the"},
    {"_id": "q3", "text": ""},
]
JUDGEMENTS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td1\t1\nq2\td2\t1\n"


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "qrels").mkdir()
    for name, records in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (tmp_path / "qrels" / "test.tsv").write_text(JUDGEMENTS)
    return tmp_path


class Counts:
    """States that are one-hot: the mean of a text's states is how often it has which token."""

    def encode(self, tokens, *, segment_ids):
        del segment_ids
        return jnp.eye(80)[tokens] * (tokens[..., None] > 4)


@pytest.fixture
def evaluator(directory):
    path = directory / "vocabulary"
    path.mkdir()
    rows = text_rows(load_vocabulary(tokenizer_files.write_wordpiece(path)), begins=True)

    def make(split="test", max_length=16, **settings):
        return RetrievalEvaluator(
            lambda _: Counts(),
            rows,
            Retrieval(directory=str(directory), **settings),
            split=split,
            batch_size=2,
            max_length=max_length,
        )

    return make


def names(evaluator):
    return {q: [one.document for one in best] for q, best in evaluator.runs[""].items()}


def test_rankings_and_their_metrics(evaluator):
    made = evaluator(same_ids="keep")
    metrics = made.run({})
    # cosines with "dog run": the dog 1/2, run and dog dog 1/sqrt(2), dog run 1.
    assert names(made) == {"q1": ["q1", "d2", "d3", "d1"], "q2": ["d1", "d2", "d3", "q1"]}
    assert [one.score for one in made.runs[""]["q1"]] == pytest.approx([1, 0.5**0.5, 0.5**0.5, 0.5])
    first, second = 1 / np.log2(5), 1.0
    assert metrics == {
        "ndcg_at_10": pytest.approx((first + second) / 2),
        "mrr_at_10": pytest.approx((1 / 4 + 1) / 2),
        "recall_at_100": 1.0,
    }
    assert list(metrics) == made.names()
    assert made.per_query[""]["q1"]["mrr_at_10"] == pytest.approx(1 / 4)
    assert made.run({}) == metrics


def test_chunks_change_nothing(evaluator, monkeypatch):
    expected = evaluator()
    metrics = expected.run({})
    monkeypatch.setattr(retrieval, "CHUNK_BATCHES", 1)
    made = evaluator()
    assert made.run({}) == metrics
    assert names(made) == names(expected)


def test_dot_products_prefixes_and_what_has_the_querys_id(evaluator, caplog):
    with caplog.at_level(logging.WARNING):
        made = evaluator(normalize=False, query_prefix="dog dog ", same_ids="drop")
    assert caplog.messages == []
    made.run({})
    # dog dog dog run: dog dog 3/5, the dog 3/10, run 1/5, over the tokens of documents.
    assert names(made)["q1"] == ["d3", "d1", "d2"]


def test_queries_that_are_documents_are_told(evaluator, caplog):
    with caplog.at_level(logging.WARNING):
        evaluator(same_ids="keep")
    [message] = caplog.messages
    assert "1 queries are also documents" in message
    assert "and find themselves" in message


def test_queries_that_are_documents_do_not_find_themselves(evaluator, directory, caplog):
    with caplog.at_level(logging.INFO):
        made = evaluator()
    [message] = caplog.messages
    assert "1 queries are also documents" in message
    assert "excluding each from its own ranking" in message
    made.run({})
    assert names(made) == {"q1": ["d2", "d3", "d1"], "q2": ["d1", "d2", "d3", "q1"]}
    # An id that is the same by accident costs no document.
    with open(directory / "corpus.jsonl", "a") as file:
        file.write(json.dumps({"_id": "q2", "title": "the", "text": "the dog"}) + "\n")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        made = evaluator()
    assert "1 queries share their id with a document of different text" in caplog.messages[1]
    made.run({})
    assert names(made)["q2"][0] == "q2"
    assert "q2" in names(made)["q1"]
    assert "q1" not in names(made)["q1"]


def test_judged_documents_that_are_missing_count_as_not_found(evaluator, directory, caplog):
    (directory / "qrels" / "test.tsv").write_text(JUDGEMENTS + "q2\tgone\t1\nq3\tgone\t1\n")
    with caplog.at_level(logging.WARNING):
        made = evaluator(same_ids="drop")
    [message] = caplog.messages
    assert message.endswith("lacks 1 judged documents; counting them as not found")
    made.run({})
    recall = {query: found["recall_at_100"] for query, found in made.per_query[""].items()}
    assert recall == {"q1": 1.0, "q2": pytest.approx(2 / 3), "q3": 0.0}


def test_texts_that_are_cut_are_told(evaluator, caplog):
    with caplog.at_level(logging.INFO):
        evaluator(query_length=3, document_length=3).run({})
    assert [m.partition(" (")[0] for m in caplog.messages[1:]] == [
        "truncated 1 texts of kind query to 3 tokens",
        "truncated 3 texts of kind document to 3 tokens",
    ]


def test_rankings_for_trec_eval():
    lines = list(trec_lines({"q": [Found("a", 0.5), Found("b", 0.25)]}))
    assert lines == ["q Q0 a 1 0.5 t5x_lite\n", "q Q0 b 2 0.25 t5x_lite\n"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"split": "validation"},
            r"judgments for the splits test, but none for split 'validation'; set --ev",
        ),
        (
            {"query_length": 17},
            r"retrieval\.query_length must be above 2 .* at most 16 .* 17",
        ),
        ({"document_length": 2}, r"retrieval\.document_length must be above 2"),
    ],
)
def test_wrong_settings(evaluator, changes, message):
    with pytest.raises(InputError, match=message):
        evaluator(**changes)


def test_a_directory_of_another_kind(evaluator, directory):
    (directory / "qrels" / "test.tsv").unlink()
    with pytest.raises(
        InputError, match=r"evaluation\.retrieval\.directory .* is not a BEIR director"
    ):
        evaluator()


def test_a_document_that_comes_twice_is_found_at_the_latest_in_a_ranking(evaluator, directory):
    with open(directory / "corpus.jsonl", "a") as file:
        file.write(json.dumps(DOCUMENTS[2]) + "\n")
    made = evaluator()
    with pytest.raises(InputError, match=r"corpus\.jsonl has the id 'd3' more than once"):
        made.run({})
