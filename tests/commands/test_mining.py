"""mine, from a run and from a checkpoint, of pairs and of a BEIR directory, killed; refresh."""

import json
import types
from pathlib import Path

import numpy as np
import pytest

from t5x_lite.cli import main
from t5x_lite.commands.answers import embed
from t5x_lite.commands.pairs import mine, refresh
from t5x_lite.commands.search import search
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import locked
from t5x_lite.core.jobs import ResumableArray
from t5x_lite.core.options import OptionError
from t5x_lite.data.config import Data
from t5x_lite.data.formats import pairs
from t5x_lite.data.formats.rankings import Ranking, ranked, read_run, write_run
from t5x_lite.retrieval import mining
from t5x_lite.retrieval.mining import PairEncoder, QueryEncoder, Rules
from tests.encoder_checkpoint import write_checkpoint

CORPUS = {"1": "a b", "2": "c", "3": "A, b!", "4": "d e f", "5": "g", "6": "h a", "7": "b c d"}
QUERIES = {"q1": "a c", "q2": "c", "q3": "e"}
QRELS = [("q1", "1", 1), ("q1", "5", 1), ("q1", "4", 0), ("q2", "7", 1), ("q3", "4", 1)]
TOP = Rules(first=0, last=7, negatives=3, take="top")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    return str(write_checkpoint(tmp_path_factory.mktemp("encoder"), "bert"))


@pytest.fixture
def beir(tmp_path):
    directory = tmp_path / "beir"
    (directory / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", CORPUS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (directory / f"{name}.jsonl").write_text("\n".join(lines))
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in QRELS)]
    (directory / "qrels" / "train.tsv").write_text("\n".join(rows))
    return directory


@pytest.fixture
def run(tmp_path):
    order = {"q1": "3154267", "q2": "2741", "q3": ""}
    path = str(tmp_path / "run.jsonl")
    write_run(
        path,
        [
            Ranking(query, ranked([(name, 9.0 - i) for i, name in enumerate(names)]))
            for query, names in order.items()
        ],
    )
    return path


def mined(output, source, **options):
    mine(str(source), output=str(output), **options)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return lines, json.loads(output.with_name(f"{output.name}.settings.json").read_text())


def test_a_run_of_a_directory(beir, run, tmp_path):
    lines, settings = mined(tmp_path / "m.jsonl", beir, rankings=run, rules=TOP)
    assert lines[0] == {
        "id": "q1",
        "query": "a c",
        "pos": ["a b", "g"],
        "neg": ["d e f", "c", "h a"],  # neither 3, which has the words of 1, nor 1, nor 5
        "pos_ids": ["1", "5"],
        "neg_ids": ["4", "2", "6"],
        "pos_scores": [8.0, 7.0],
        "neg_scores": [6.0, 5.0, 4.0],
    }
    assert lines[1]["neg_ids"] == ["4", "1"]  # 2 has the query's words, 7 answers
    assert lines[2]["neg"] == []
    assert lines[2]["pos_scores"] == [None]
    assert settings["report"] == {
        "queries": 3,
        "negatives": 5,
        "filled": 0,
        "queries_with_too_few": 2,
        "queries_with_none": 1,
        "dropped": {"answer": 3, "not taken": 1, "words of an answer": 1, "words of the query": 1},
    }
    assert settings["rules"]["take"] == "top"
    assert sorted(path.name for path in tmp_path.glob("m.*")) == [
        "m.jsonl",
        "m.jsonl.settings.json",
    ]
    for line in lines:
        pairs.checked(line, "m.jsonl:1")


def test_margins_and_random_ones(beir, run, tmp_path):
    rules = Rules(first=0, last=7, negatives=3, take="top", margin=2.0, fill="random")
    lines, settings = mined(tmp_path / "m.jsonl", str(beir), rankings=run, rules=rules)
    assert lines[0]["neg_ids"][:3] == ["2", "6", "7"]  # the lowest answer has 7.0
    assert settings["report"]["filled"] == 3 + 3 - 1
    assert lines[1]["neg_ids"][0] == "1"
    assert None in lines[1]["neg_scores"]
    again, _ = mined(tmp_path / "n.jsonl", beir, rankings=run, rules=rules)
    assert again == lines


def test_a_file_of_pairs_is_its_own_pool(tmp_path, run, caplog):
    source = tmp_path / "pairs.jsonl"
    records = [
        {"id": "q1", "query": "a c", "pos": ["x"], "pos_ids": ["1"], "prompt": "p: ", "type": "t"},
        {"id": 2, "query": "A C?", "pos": ["y"], "pos_ids": [5]},
        {"id": "q3", "query": "z", "pos": ["w"], "pos_ids": ["4"], "neg": ["v"], "neg_ids": ["2"]},
    ]
    source.write_text("\n".join(map(json.dumps, records)))
    write_run(run, [Ranking("q1", ranked([("5", 3.0), ("4", 2.0), ("2", 1.0)]))])
    lines, _ = mined(tmp_path / "m.jsonl", source, rankings=run, rules=TOP)
    assert lines[0]["neg_ids"] == ["4", "2"]  # 5 answers the same query in the next line
    assert (lines[0]["prompt"], lines[0]["type"]) == ("p: ", "t")
    assert lines[2]["neg"] == []  # what was there is replaced
    assert "1 queries of --input had negatives, which the mined negatives replace" in caplog.text


@pytest.mark.slow
def test_a_checkpoint_is_as_its_search(beir, checkpoint, tmp_path):
    how = {"pooling": "cls", "normalize": False, "batch_size": 2}
    source = {"checkpoint": checkpoint, "encoder": PairEncoder(**how)}
    lines, _ = mined(tmp_path / "m.jsonl", beir, rules=TOP, **source)
    vectors = str(tmp_path / "c.npy")
    embed(checkpoint, input=str(beir / "corpus.jsonl"), output=vectors, **how)
    run = str(tmp_path / "r.trec")
    search(
        [vectors],
        ids=[str(beir / "corpus.jsonl")],
        queries=str(beir / "queries.jsonl"),
        encoder=QueryEncoder(checkpoint, **how),
        output=run,
    )
    by_run, _ = mined(tmp_path / "n.jsonl", beir, rankings=run, rules=TOP)
    by_vectors, _ = mined(tmp_path / "o.jsonl", beir, vectors=[vectors], rules=TOP, **source)
    for one, other, third in zip(lines, by_run, by_vectors, strict=True):
        assert one["neg"] == other["neg"] == third["neg"]
        for scores in ("pos_scores", "neg_scores"):
            np.testing.assert_allclose(one[scores], other[scores], rtol=1e-5)
    assert {one.query for one in read_run(run)} == {*QUERIES}


@pytest.mark.slow
def test_answers_that_the_passages_lack_are_scored(beir, checkpoint, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"query": "a", "pos": ["k"]}))
    lines, _ = mined(
        tmp_path / "m.jsonl",
        tmp_path / "pairs.jsonl",
        passages=[str(beir / "corpus.jsonl")],
        checkpoint=checkpoint,
        encoder=PairEncoder(pooling="cls", batch_size=2),
        rules=TOP,
    )
    assert len(lines[0]["neg"]) == 3
    assert len(lines[0]["pos_scores"]) == 1
    assert "neg_ids" not in lines[0]  # the answer has no id


@pytest.mark.slow
def test_a_command_that_was_killed_goes_on(beir, checkpoint, tmp_path, monkeypatch):
    encoder = PairEncoder(pooling="cls", batch_size=2)
    source = {"checkpoint": checkpoint, "rules": TOP, "encoder": encoder}
    whole, _ = mined(tmp_path / "m.jsonl", beir, **source)
    monkeypatch.setattr(mining, "_CHUNK_BATCHES", 1)
    write = ResumableArray.write

    def killed(array, rows, **options):
        write(array, rows, **options)
        if array.done == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResumableArray, "write", killed)
    output = tmp_path / "n.jsonl"
    with pytest.raises(KeyboardInterrupt):
        mined(output, beir, **source)
    assert not output.exists()
    assert (tmp_path / "n.jsonl.partial" / "passages.npy").exists()
    other = {**source, "encoder": PairEncoder(pooling="mean", batch_size=2)}
    with (
        locked(tmp_path / "n.jsonl.partial", output="n.jsonl"),
        pytest.raises(InputError, match=r"n.jsonl: another process is writing this output"),
    ):
        mined(output, beir, **source)
    with pytest.raises(
        InputError, match=r"contains the vectors of another command \(other source\)"
    ):
        mined(output, beir, **other)
    monkeypatch.setattr(ResumableArray, "write", write)
    again, _ = mined(output, beir, **source)
    assert [one["neg"] for one in again] == [one["neg"] for one in whole]
    assert not (tmp_path / "n.jsonl.partial").exists()


@pytest.mark.parametrize(
    ("rankings", "message"),
    [
        ([("q9", "1")], "has the query 'q9', but --input does not contain"),
        ([("q1", "9")], "has the document '9', but the passages do not contain"),
        ([], "no ranking"),
    ],
)
def test_a_run_that_does_not_fit(beir, run, tmp_path, rankings, message):
    write_run(run, [Ranking(query, ranked([(name, 1.0)])) for query, name in rankings])
    with pytest.raises(InputError, match=message):
        mine(str(beir), output=str(tmp_path / "m.jsonl"), rankings=run)
    assert not (tmp_path / "m.jsonl").exists()


def test_what_does_not_fit(beir, checkpoint, tmp_path):
    output = str(tmp_path / "m.jsonl")
    (tmp_path / "run.tsv").write_text("q1\t2\t1\n")
    rankings = str(tmp_path / "run.tsv")
    with pytest.raises(InputError, match="has no scores"):
        mine(str(beir), output=output, rankings=rankings, rules=Rules(margin=0.1))
    with pytest.raises(
        InputError, match="no relevance judgments for --split test; give --split train"
    ):
        mine(str(beir), output=output, rankings=rankings, split="test")
    np.save(tmp_path / "v.npy", np.zeros((3, 12), np.float32))
    vectors, encoder = [str(tmp_path / "v.npy")], PairEncoder(pooling="cls")
    with pytest.raises(InputError, match="3 vectors, but there are 7 passages"):
        mine(str(beir), output=output, checkpoint=checkpoint, vectors=vectors, encoder=encoder)
    with pytest.raises(InputError, match="--output must be a file"):
        mine(str(beir), output="-", rankings=rankings)


LONG = "the quick brown fox jumps over the lazy dog"
OTHER = "a passage of quite different words about the sea"


@pytest.mark.parametrize(
    ("answer", "is_known"),
    [
        ({"pos": [LONG]}, True),
        ({"pos": [f"Title {LONG}"]}, True),
        ({"pos": [LONG.upper() + "!"], "pos_ids": ["elsewhere"]}, True),
        ({"pos": ["quick brown fox jumps over the lazy"]}, False),
        ({"pos": [f"Before it. {LONG}. Behind it."]}, False),
        ({"pos": ["in other words"], "pos_ids": ["d1"]}, True),
    ],
    ids=["untitled", "titled", "case", "contained", "part", "id"],
)
@pytest.mark.parametrize("title", ["Title", ""])
def test_an_answer_is_no_negative_in_any_form(tmp_path, answer, is_known, title, caplog):
    corpus = [
        {"_id": "d0", "text": OTHER},
        {"_id": "d1", "title": title, "text": LONG},
        {"_id": "d2", "title": "Another title", "text": LONG},
    ]
    if "pos_ids" in answer and answer["pos_ids"] == ["d1"]:
        corpus[2]["text"] = "in other words"
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"id": "q", "query": "who", **answer}))
    write_run(
        str(tmp_path / "run.trec"), [Ranking("q", ranked([("d1", 3.0), ("d2", 2.0), ("d0", 1.0)]))]
    )
    [line], settings = mined(
        tmp_path / "m.jsonl",
        str(tmp_path / "pairs.jsonl"),
        passages=[str(tmp_path / "corpus.jsonl")],
        rankings=str(tmp_path / "run.trec"),
        rules=TOP,
    )
    assert line["neg"] == [OTHER]
    assert sum(settings["report"]["dropped"].values()) == 2
    is_known = is_known and (bool(title) or not answer["pos"][0].startswith("Title"))
    if title or is_known:
        assert ("1 of 1 positives (100.0 %) are not in" in caplog.text) == (
            not is_known and "pos_ids" not in answer
        )
    if is_known and "pos_ids" not in answer:
        assert (line["pos_ids"], line["neg_ids"]) == ([line["pos_ids"][0]], ["d0"])


def test_judged_answers_that_the_corpus_lacks_are_known_by_the_passages(
    beir, run, tmp_path, caplog
):
    # 5 is judged for q1 and 7 for q2: the corpus lacks both, and the passages have 5 alone.
    kept = {key: text for key, text in CORPUS.items() if key not in "57"}
    lines = [json.dumps({"_id": key, "text": text}) for key, text in kept.items()]
    (beir / "corpus.jsonl").write_text("\n".join(lines))
    more = {"5": "g", **{key: text for key, text in kept.items() if key != "1"}}
    lines = [json.dumps({"_id": key, "title": "t", "text": text}) for key, text in more.items()]
    (tmp_path / "more.jsonl").write_text("\n".join(lines))
    order = [("5", 3.0), ("4", 2.0), ("2", 1.0)]
    write_run(run, [Ranking("q1", ranked(order))])
    lines, settings = mined(
        tmp_path / "m.jsonl",
        str(beir),
        passages=[str(tmp_path / "more.jsonl")],
        rankings=run,
        rules=TOP,
    )
    assert [line["id"] for line in lines] == ["q1", "q3"]  # q2 has no answer with a text
    assert (lines[0]["pos"], lines[0]["pos_ids"]) == (["a b", "t g"], ["1", "5"])
    assert lines[0]["neg_ids"] == ["4", "2"]
    assert settings["report"]["dropped"] == {"answer": 1}
    assert "passage files contain: 1 of 4" in caplog.text


@pytest.mark.parametrize("rescore", [False, True])
def test_a_teachers_scores_stay_unless_told_otherwise(tmp_path, run, rescore):
    records = [
        {"id": "q1", "query": "a", "pos": ["x"], "pos_ids": ["1"], "pos_scores": [-3.5]}
        | {"neg": ["y", "z"], "neg_ids": ["5", "4"], "neg_scores": [-4.5, -5.5]},
        {"id": "q3", "query": "z", "pos": ["w"], "pos_ids": ["2"]},
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    order = [("1", 4.0), ("5", 3.0), ("2", 2.0)]
    write_run(run, [Ranking("q1", ranked(order)), Ranking("q3", ranked(order))])
    lines, _ = mined(
        tmp_path / "m.jsonl",
        str(tmp_path / "pairs.jsonl"),
        rankings=run,
        rules=TOP,
        rescore=rescore,
    )
    assert lines[0]["neg"] == ["y", "w"]
    expected = ([4.0], [3.0, 2.0]) if rescore else ([-3.5], [-4.5, None])
    assert (lines[0]["pos_scores"], lines[0]["neg_scores"]) == expected
    assert (lines[1]["pos_scores"], lines[1]["neg_scores"]) == ([2.0], [4.0, 3.0])


def test_the_directory_of_the_output_is_made(beir, run, tmp_path):
    lines, _ = mined(tmp_path / "new" / "mined" / "train.jsonl", beir, rankings=run, rules=TOP)
    assert lines[0]["neg_ids"] == ["4", "2", "6"]
    write_run(run, [Ranking("unknown", ranked([("1", 1.0)]))])
    with pytest.raises(InputError, match="does not contain this query"):
        mine(str(beir), output=str(tmp_path / "wrong" / "train.jsonl"), rankings=run)
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(InputError, match=r"train\.jsonl: cannot be written"):
        mine(str(beir), output=f"{run}/train.jsonl", rankings=run)


def test_rules_are_options(beir, run, tmp_path):
    line = f"mine --input {beir} --output {tmp_path}/m.jsonl --rankings {run} --first 0 --last 7"
    assert main([*line.split(), "--negatives", "2", "--take", "top", "--margin", "2"]) == 0
    settings = json.loads((tmp_path / "m.jsonl.settings.json").read_text())
    assert settings["rules"] == {
        "first": 0,
        "last": 7,
        "negatives": 2,
        "take": "top",
        "margin": 2.0,
        "relative_margin": None,
        "min_score": None,
        "max_score": None,
        "fill": "none",
        "seed": 0,
    }
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines[0]["neg_ids"] == ["2", "6"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "exactly one of --checkpoint DIR and --rankings FILE"),
        ("--checkpoint w --rankings r", "exactly one of --checkpoint DIR and --rankings FILE"),
        ("--rankings r --vectors v", "--vectors needs --checkpoint"),
    ],
)
def test_wrong_options(options, message, capsys):
    assert main(f"mine --input i --output o {options}".split()) == 2
    assert message in capsys.readouterr().err


def test_a_refresh_without_files_or_a_period(tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="--passages needs at least one file"):
        refresh(str(tmp_path), passages=[])
    run = types.SimpleNamespace(data=Data(cache="c", vocabulary=""))
    monkeypatch.setattr("t5x_lite.config.load", lambda path: run if Path(path).name else None)
    with pytest.raises(InputError, match=r"does not set data\.refresh\.period"):
        refresh(str(tmp_path), passages=["c.jsonl"])
