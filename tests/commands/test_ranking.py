"""rerank: a permutation of the first depth, a run that was killed, and what is missing.

score-pairs: scores beside the passages, which distillation reads.
"""

import json

import pytest

from t5x_lite.commands import ranking
from t5x_lite.commands.ranking import rerank, score_pairs
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import pairs
from t5x_lite.data.formats.rankings import Ranking, ranked, read_run, write_run
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.pairs import CrossEncoder
from tests.encoder_checkpoint import write_ranker

DOCUMENTS = {str(i): text for i, text in enumerate(["a b", "c", "d e f", "g", "h a", "b c d"])}
QUERIES = {"q1": "a b", "q2": "c d", "q3": "e"}
RECORDS = [
    {"query": "a b", "pos": ["c"], "neg": ["d e", "f"], "id": 7},
    {"query": "c", "pos": ["a", "b"], "pos_scores": [0, 0]},
    {"query": "b", "prompt": "a ", "pos": ["c"], "neg": ["d e", "f", "g"]},
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    return write_ranker(tmp_path_factory.mktemp("ranker"))


@pytest.fixture
def directory(tmp_path):
    for name, texts in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    rankings = [
        Ranking(query, ranked([(name, 9.0 - i) for i, name in enumerate(order)]))
        for query, order in (("q1", "012345"), ("q2", "543"), ("q3", "1"))
    ]
    write_run(str(tmp_path / "run.trec"), rankings)
    return tmp_path


def run(checkpoint, directory, output="out.trec", **options):
    options = {"beir": str(directory), "depth": 4, "batch_size": 2, **options}
    path = str(directory / output)
    rerank(str(checkpoint), input=str(directory / "run.trec"), output=path, **options)
    return {
        one.query: [(each.document, each.score) for each in one.documents] for one in read_run(path)
    }


@pytest.mark.slow
def test_the_first_depth_is_in_the_order_of_the_scores(checkpoint, directory):
    found = run(checkpoint, directory)
    scorer = Checkpoint.load([str(checkpoint)]).pair_scorer()
    for query, names in (("q1", "0123"), ("q2", "543"), ("q3", "1")):
        scores = scorer.scores([(QUERIES[query], DOCUMENTS[name]) for name in names]).tolist()
        expected = sorted(zip(names, scores, strict=True), key=lambda pair: -pair[1])
        assert [name for name, _ in found[query][: len(names)]] == [name for name, _ in expected]
        assert [score for _, score in found[query][: len(names)]] == pytest.approx(
            [score for _, score in expected], rel=1e-5, abs=1e-6
        )
    assert [name for name, _ in found["q1"][4:]] == ["4", "5"]
    scores = [score for _, score in found["q1"]]
    assert scores == sorted(scores, reverse=True)


def test_texts_of_files_and_probabilities(checkpoint, directory):
    (directory / "passages.tsv").write_text(
        "".join(f"{name}\t{text}\n" for name, text in DOCUMENTS.items())
    )
    raw = run(checkpoint, directory, depth=6)
    files = {"passages": str(directory / "passages.tsv"), "beir": None, "depth": 6}
    files["queries"] = str(directory / "queries.jsonl")
    found = run(checkpoint, directory, "other.jsonl", sigmoid=True, **files)
    for query, documents in raw.items():
        assert [name for name, _ in found[query]] == [name for name, _ in documents]
        assert all(0 < score < 1 for _, score in found[query])


@pytest.mark.slow
def test_rerank_that_was_killed_goes_on(checkpoint, directory, monkeypatch):
    whole = run(checkpoint, directory)
    monkeypatch.setattr(ranking, "_RERANKED_AT_A_TIME", 1)
    scored, scores = [], CrossEncoder.scores

    def killed(self, pairs):
        if len(scored) == 2:
            raise KeyboardInterrupt
        scored.append(pairs)
        return scores(self, pairs)

    monkeypatch.setattr(CrossEncoder, "scores", killed)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint, directory, "again.trec")
    assert not (directory / "again.trec").exists()
    scored.clear()
    assert run(checkpoint, directory, "again.trec").keys() == whole.keys()
    assert len(scored) == 1  # the third query alone
    assert (directory / "again.trec").read_text().split()[2::6] == (
        directory / "out.trec"
    ).read_text().split()[2::6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"beir": None},
            "pass either --beir DIR, or both --queries FILE and --passages FILE",
        ),
        ({"queries": "x"}, "requires the texts of queries and passages"),
    ],
)
def test_wrong_options(checkpoint, directory, options, message):
    with pytest.raises(InputError, match=message):
        run(checkpoint, directory, **options)


def test_what_the_files_lack_is_named(checkpoint, directory):
    (directory / "corpus.jsonl").write_text(json.dumps({"_id": "0", "text": "a"}))
    with pytest.raises(
        InputError, match=r"run.trec has the document '1', but .* 5 documents are missing"
    ):
        run(checkpoint, directory)
    (directory / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "a"}))
    with pytest.raises(InputError, match="has the query 'q2'"):
        run(checkpoint, directory)
    (directory / "run.trec").write_text("")
    with pytest.raises(InputError, match="no ranking"):
        run(checkpoint, directory)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, RECORDS)))
    return path


def scored(checkpoint, source, output="out.jsonl", **options):
    path = source.with_name(output)
    options = {"batch_size": 4, **options}
    score_pairs(str(checkpoint), input=str(source), output=str(path), **options)
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
def test_score_pairs_that_was_killed_goes_on(checkpoint, source, monkeypatch):
    monkeypatch.setattr(ranking, "_SCORED_AT_A_TIME", 1)
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
