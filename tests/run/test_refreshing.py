"""refresh: which steps are searched for, what answers a query, and what a checkpoint finds."""

import types
from pathlib import Path

import numpy as np
import pytest

from t5x_lite.checkpoints import reading
from t5x_lite.data.cache import refreshes
from t5x_lite.data.config import Data
from t5x_lite.data.refresh import Refresh
from t5x_lite.errors import InputError
from t5x_lite.run import refreshing
from t5x_lite.run.text_encoder import TextEncoder
from tests.encoder_checkpoint import write_checkpoint

PASSAGES = ["a b", "c", "d e f", "g", "h a", "b c d", "a b"]
EXAMPLES = [("a", "a b"), ("c d", "c"), ("a", "g"), ("g", "h a")]
"""Queries and what answers them."""


def test_the_steps_that_are_needed(tmp_path):
    rule = Refresh(period=2, lag=1, directory=str(tmp_path))
    assert refreshing.needed_steps(rule, 9) == [2, 4, 6]
    assert refreshing.needed_steps(rule, 4) == []


@pytest.mark.slow
def test_a_search_has_the_nearest_passages_without_the_answers(tmp_path, compile_once, monkeypatch):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    encoder = TextEncoder.load(checkpoint, pooling="mean")
    texts = [*PASSAGES, *(query for query, _ in EXAMPLES)]
    rows = dict(zip(texts, encoder.rows(texts).rows, strict=True))
    refreshes.Passages.write(tmp_path / "r", [rows[text] for text in PASSAGES])
    pool = refreshes.Passages.open(tmp_path / "r")
    queries = refreshing._Queries(
        [{"query": rows[q], "positives": rows[p]} for q, p in EXAMPLES], pool
    )
    # "a" has two examples; "g" is a passage, too.
    assert queries.answers == [{0, 3, 6}, {1}, {3, 4}]
    assert queries.of_examples.tolist() == [0, 1, 0, 2]
    monkeypatch.setattr(TextEncoder, "load", lambda *_, **__: encoder)
    monkeypatch.setattr(refreshing, "_CHUNK_BATCHES", 1)
    rule = Refresh(period=2, lag=1, top=5, directory=str(tmp_path / "r"))
    found = refreshing._search(rule, "w", 2, pool, queries, batch_size=2)
    embed = encoder.embedder(batch_size=2)
    scores = embed.run(encoder.params, [rows[q] for q, _ in EXAMPLES]) @ (
        embed.run(encoder.params, [rows[text] for text in PASSAGES]).T
    )
    for row, (numbers, query) in enumerate(zip(found, queries.of_examples, strict=True)):
        order = np.argsort(-scores[row], kind="stable").tolist()
        expected = [k for k in order if k not in queries.answers[query]][:5]
        assert numbers.tolist() == [*expected, *[-1] * (5 - len(expected))]
    assert not (tmp_path / "r" / "2.partial").exists()


def test_a_checkpoint_that_is_gone(monkeypatch):
    monkeypatch.setattr(reading, "saved_steps", lambda path: [4, 6])
    with pytest.raises(InputError, match="the checkpoint of step 2 is gone"):
        refreshing._wait("w", 2, once=False)
    assert refreshing._wait("w", 4, once=False)
    assert not refreshing._wait("w", 8, once=True)


def test_a_checkpoint_that_comes(monkeypatch):
    there = iter([[], [2], [2, 4]])
    monkeypatch.setattr(reading, "saved_steps", lambda path: next(there))
    monkeypatch.setattr(refreshing, "POLL_SECONDS", 0.0)
    assert refreshing._wait("w", 4, once=False)


def test_a_config_without_a_refresh(tmp_path, monkeypatch):
    run = types.SimpleNamespace(data=Data(cache="c", vocabulary=""))
    monkeypatch.setattr(refreshing, "load", lambda path: run if Path(path).name else None)
    with pytest.raises(InputError, match=r"has no data\.refresh\.period"):
        refreshing.refresh(str(tmp_path), passages=["c.jsonl"])
