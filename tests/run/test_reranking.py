"""rerank: a permutation of the first depth, a run that was killed, and what is missing."""

import json

import pytest

from t5x_lite.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.pairs import CrossEncoder
from t5x_lite.records.run_files import Ranking, ranked, read_run, write_run
from t5x_lite.run import reranking
from tests.encoder_checkpoint import write_ranker

DOCUMENTS = {str(i): text for i, text in enumerate(["a b", "c", "d e f", "g", "h a", "b c d"])}
QUERIES = {"q1": "a b", "q2": "c d", "q3": "e"}


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
    reranking.rerank(str(checkpoint), input=str(directory / "run.trec"), output=path, **options)
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
def test_a_command_that_was_killed_goes_on(checkpoint, directory, monkeypatch):
    whole = run(checkpoint, directory)
    monkeypatch.setattr(reranking, "_AT_A_TIME", 1)
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
        ({"beir": None}, "whose texts\\? give --beir DIR, or --queries FILE and --passages FILE"),
        ({"queries": "x"}, "whose texts"),
    ],
)
def test_wrong_options(checkpoint, directory, options, message):
    with pytest.raises(InputError, match=message):
        run(checkpoint, directory, **options)


def test_what_the_files_lack_is_named(checkpoint, directory):
    (directory / "corpus.jsonl").write_text(json.dumps({"_id": "0", "text": "a"}))
    with pytest.raises(
        InputError, match=r"run.trec names the document '1', which .* 5 are missing"
    ):
        run(checkpoint, directory)
    (directory / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "a"}))
    with pytest.raises(InputError, match="names the query 'q2'"):
        run(checkpoint, directory)
    (directory / "run.trec").write_text("")
    with pytest.raises(InputError, match="no ranking"):
        run(checkpoint, directory)
