"""Scores of pairs by the heads of a BGE-M3."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.commands.ranking import score_pairs
from t5x_lite.core.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.pairs import HEADS
from t5x_lite.layouts import Groups
from t5x_lite.objectives.m3 import m3
from tests.encoder_checkpoint import write_ranker

PAIRS = [("a b", "b c b"), ("a b", "d"), ("e", "e")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    objective = m3(specials=(0, 1, 2, 3), vector_size=4)
    place = tmp_path_factory.mktemp("m3")
    return str(write_ranker(place, objective=objective, layout=Groups(), targets_length=12))


def scorer_of(checkpoint, **options):
    return Checkpoint.load([checkpoint]).pair_scorer(**options)


def test_a_score_is_the_weighted_mean_of_the_heads(checkpoint):
    whole = scorer_of(checkpoint, heads=HEADS, weights=(1.0, 0.3, 0.7), batch_size=2)
    whole.encoder.params["heads"]["lexical"]["out"]["bias"] = jnp.full(1, 5.0)  # terms have weights
    rows = whole.encoder.rows([text for pair in PAIRS for text in pair]).rows
    found = whole.embedder.several(whole.encoder.params, rows)
    expected = []
    for q, p in ((0, 1), (2, 3), (4, 5)):
        dense = np.sum(found.dense[q] * found.dense[p])
        common = set(found.terms[q]) & set(found.terms[p])
        lexical = sum(found.terms[q][term] * found.terms[p][term] for term in common)
        late = np.mean(np.max(found.vectors[q] @ found.vectors[p].T, axis=1))
        expected.append((dense + 0.3 * lexical + 0.7 * late) / 2)
    np.testing.assert_allclose(whole.scores(PAIRS), expected, rtol=1e-5)
    assert len(set(found.terms[0]) & set(found.terms[1])) == 1
    short = scorer_of(checkpoint, heads=["dense"], query_length=3)
    assert short.scores([("a b", "c")]) == short.scores([("a", "c")])


def test_a_file_of_pairs(checkpoint, tmp_path):
    record = {"query": "a b", "pos": ["b c b"], "neg": ["d"]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    files = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out.jsonl")}
    score_pairs(checkpoint, **files, heads=["dense", "lexical"], weights=(1.0, 0.0, 1.0))
    found = json.loads((tmp_path / "out.jsonl").read_text())
    dense = scorer_of(checkpoint, heads=["dense"]).scores(PAIRS[:2])
    scored = [*found["pos_scores"], *found["neg_scores"]]
    np.testing.assert_allclose(scored, dense, rtol=1e-5)


def test_heads_and_weights_that_make_no_score(checkpoint):
    with pytest.raises(
        InputError, match="heads must be some of dense, lexical, multi_vector, got 's'"
    ):
        scorer_of(checkpoint, heads=["s"])
    with pytest.raises(InputError, match="must be at least 0, and one of them above 0"):
        scorer_of(checkpoint, heads=["dense"], weights=(0.0, 1.0, 1.0))
