"""Retrieval by several heads, held in memory."""

import json

import numpy as np
import pytest

from t5x_lite.config.evaluation import Retrieval, Ways
from t5x_lite.core.errors import InputError
from t5x_lite.evaluate.retrieval import Chunk, HeadCorpus, rank_all, retrieval_evaluator
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.text_encoder import Several
from t5x_lite.objectives.m3 import m3

WAYS = ("dense", "lexical", "multi_vector", "dense_lexical", "all")


def known(rows):
    """A text [a, b] has the vector [a, b], the term a with the weight b, and the rows [a], [b]."""
    return Several(
        np.array(rows, np.float32),
        [{int(a): float(b)} for a, b in rows],
        [np.array([[a], [b]], np.float32) for a, b in rows],
    )


def chunk(names, *rows):
    return Chunk(list(names), [np.array(row, np.int32) for row in rows])


def test_rankings_by_each_head_and_by_all():
    corpus = HeadCorpus(known, [chunk("xy", (1, 2), (2, 0)), chunk("z", (1, 5))])
    ways = Ways(names=WAYS, weights=(1.0, 1.0, 1.0), pair_weights=(0.0, 1.0))
    found = rank_all(corpus, known([(1, 1), (2, 3)]), ways, num=2)
    # Of the query (1, 1), by hand: x, y, z have 1 + 2, 2 + 0, 1 + 5 as products of vectors, the
    # weights 1 * 2, none, 1 * 5 of the common term, and the largest products 2, 2, 5.
    assert found["dense"][0] == [("z", 6.0), ("x", 3.0), ("y", 2.0)]
    assert found["lexical"][0][:2] == [("z", 5.0), ("x", 2.0)]
    assert found["multi_vector"][0] == [("z", 5.0), ("x", 2.0), ("y", 2.0)]
    assert found["all"][0] == [("z", 16.0), ("x", 7.0), ("y", 4.0)]
    assert [name for name, _ in found["dense_lexical"][0]] == ["z", "x", "y"]
    # Of (2, 3): the term 2 is that of y alone, whose weight is 0.
    assert [name for name, _ in found["dense"][1]] == ["z", "x", "y"]
    assert {name: len(each) for name, each in found.items()} == dict.fromkeys(WAYS, 2)


def test_heads_that_are_not_asked_are_not_there():
    def dense(rows):
        return Several(np.array(rows, np.float32), None, None)

    corpus = HeadCorpus(dense, [chunk("x", (1, 2))])
    assert [corpus.has(head) for head in WAYS[:3]] == [True, False, False]
    with pytest.raises(InputError, match="no output of the head 'lexical'"):
        rank_all(corpus, Several(None, None, None), Ways(names=("lexical",)), num=0)


def test_a_checkpoint_is_measured_by_each_way(tmp_path, compile_once):
    from t5x_lite.layouts import Groups
    from tests.encoder_checkpoint import write_ranker

    pytest.importorskip("pytrec_eval")
    objective = m3(specials=(0, 1, 2, 3), vector_size=4)
    checkpoint = write_ranker(tmp_path, objective=objective, layout=Groups(), targets_length=12)
    encoder = Checkpoint.load([str(checkpoint)]).encoder()
    directory = tmp_path / "beir"
    (directory / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", ["a b", "c d", "e", "a"]), ("queries", ["a", "e f"])):
        lines = [json.dumps({"_id": f"{name[0]}{i}", "text": t}) for i, t in enumerate(texts)]
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tc3\t1\nq1\tc2\t1\n")
    made = {}
    for ways in ((), ("dense", "all")):
        evaluator = retrieval_evaluator(
            encoder.loaded.experiment,
            encoder.loaded.learner,
            encoder.loaded.vocabulary,
            Retrieval(directory=str(directory), ways=ways),
            split="test",
            batch_size=2,
        )
        metrics = evaluator.run(encoder.params)
        assert list(metrics) == evaluator.names()
        made |= metrics
        runs = evaluator.runs
    assert made["dense/ndcg_at_10"] == made["ndcg_at_10"]
    assert made["all/recall_at_100"] == 1.0
    assert set(runs) == {"dense", "all"}
    with pytest.raises(InputError, match=r"ways must be among dense, lexical, .* got 'best'"):
        Retrieval(ways=("best",))
