"""score-pairs: scores beside the passages, which distillation reads."""

import json

import pytest

from t5x_lite.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.pairs import CrossEncoder
from t5x_lite.records import pairs
from t5x_lite.run import pair_scoring
from tests.encoder_checkpoint import write_ranker

RECORDS = [
    {"query": "a b", "pos": ["c"], "neg": ["d e", "f"], "id": 7},
    {"query": "c", "pos": ["a", "b"], "pos_scores": [0, 0]},
    {"query": "b", "prompt": "a ", "pos": ["c"], "neg": ["d e", "f", "g"]},
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    return write_ranker(tmp_path_factory.mktemp("ranker"))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, RECORDS)))
    return path


def scored(checkpoint, source, output="out.jsonl", **options):
    path = source.with_name(output)
    options = {"batch_size": 4, **options}
    pair_scoring.score_pairs(str(checkpoint), input=str(source), output=str(path), **options)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_scores_stand_beside_the_passages(checkpoint, source):
    found = scored(checkpoint, source, negatives_top=2)
    scorer = Checkpoint.load([str(checkpoint)]).pair_scorer()
    for record, before in zip(found, RECORDS, strict=True):
        kept = {name for name in before if not name.endswith("_scores")}
        assert {name: record[name] for name in kept} == {name: before[name] for name in kept}
        query = before.get("prompt", "") + before["query"]
        for name, texts in (("pos_scores", before["pos"]), ("neg_scores", before.get("neg", []))):
            shown = texts[:2]
            expected = scorer.scores([(query, text) for text in shown]).tolist() if shown else []
            assert record[name][: len(shown)] == pytest.approx(expected, rel=1e-5, abs=1e-6)
            assert record[name][2:] == [None] * (len(texts) - len(shown))
        assert pairs.from_json(pairs.checked(record, "f:1")).positive_scores == record["pos_scores"]
    # The same query under its prompt and without it.
    assert found[0]["pos_scores"] == pytest.approx(found[2]["pos_scores"], rel=1e-5)


@pytest.mark.slow
def test_a_command_that_was_killed_goes_on(checkpoint, source, monkeypatch):
    monkeypatch.setattr(pair_scoring, "_AT_A_TIME", 1)
    whole = scored(checkpoint, source)
    calls, scores = [], CrossEncoder.scores

    def killed(self, some):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(some)
        return scores(self, some)

    monkeypatch.setattr(CrossEncoder, "scores", killed)
    with pytest.raises(KeyboardInterrupt):
        scored(checkpoint, source, "again.jsonl")
    monkeypatch.setattr(CrossEncoder, "scores", scores)
    again = scored(checkpoint, source, "again.jsonl")
    assert [one["query"] for one in again] == [one["query"] for one in whole]
    assert again[0] == whole[0]


def test_wrong_lines_are_named(checkpoint, source):
    source.write_text(json.dumps({"query": "a", "pos": []}))
    with pytest.raises(InputError, match=r'in\.jsonl:1: "pos" must have a passage'):
        scored(checkpoint, source)
    source.write_text("")
    with pytest.raises(InputError, match="no query"):
        scored(checkpoint, source)
