"""bm25 build and search, as commands."""

import functools
import json

import pytest

from t5x_lite.cli import main
from t5x_lite.commands import search as lexical
from t5x_lite.commands.search import bm25_build, bm25_search
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import pairs as passage_files
from t5x_lite.data.formats.pairs import read_passages
from t5x_lite.data.formats.rankings import read_run
from t5x_lite.retrieval import bm25

TEXTS = {"a": "wings flutter", "b": "a wing and a tail", "c": "tails"}


@pytest.fixture
def index(tmp_path):
    lines = [{"_id": name, "title": "On", "text": text} for name, text in TEXTS.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "queries.tsv").write_text("q1\tthe wing\na\ttail wings\nq3\tnothing\n")
    bm25_build([str(tmp_path / "corpus.jsonl")], output=str(tmp_path / "index"))
    return tmp_path


def found(directory, **options):
    path = str(directory / options.pop("output", "run.jsonl"))
    bm25_search(
        str(directory / "index"), queries=str(directory / "queries.tsv"), output=path, **options
    )
    return {one.query: [d.document for d in one.documents] for one in read_run(path)}


def test_a_run(index):
    assert found(index) == {"q1": ["a", "b"], "a": ["b", "c", "a"], "q3": []}
    assert found(index, same_ids="drop", depth=1)["a"] == ["b"]
    assert found(index, output="run.trec").keys() == {"q1", "a"}


def test_an_index_keeps_its_language(tmp_path):
    pytest.importorskip("Stemmer")
    texts, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    texts.write_text('{"_id": "a", "text": "H\u00e4user"}\n{"_id": "b", "text": "Wagen"}\n')
    queries.write_text('{"_id": "q", "text": "das Haus"}\n')
    bm25_build([str(texts)], output=str(tmp_path / "index"), analyzer="german")
    out = str(tmp_path / "run.tsv")
    bm25_search(str(tmp_path / "index"), queries=str(queries), output=out)
    [ranking] = read_run(out)
    assert [one.document for one in ranking.documents] == ["a"]


def test_a_killed_search_goes_on(index, monkeypatch):
    whole = found(index)
    monkeypatch.setattr(lexical, "_CHUNK", 1)
    ranking, calls = lexical._ranking, []

    def dying(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return ranking(*args, **options)

    monkeypatch.setattr(lexical, "_ranking", dying)
    with pytest.raises(KeyboardInterrupt):
        found(index, output="again.jsonl")
    assert found(index, output="again.jsonl") == whole
    assert len(calls) == 4


def test_what_is_wrong_is_one_line(index, capsys):
    assert main(f"bm25 build --input {index}/corpus.jsonl --output {index}/index".split()) == 2
    assert "already exists" in capsys.readouterr().err
    command = f"bm25 search --index {index}/no --queries {index}/queries.tsv --output {index}/r"
    assert main(command.split()) == 2
    assert "no BM25 index" in capsys.readouterr().err
    (index / "empty").write_text("")
    with pytest.raises(InputError, match="no query"):
        bm25_search(str(index / "index"), queries=str(index / "empty"), output=str(index / "r"))
    (index / "twice.tsv").write_text("q\tx\nq\ty\n")
    with pytest.raises(InputError, match=r"twice.tsv:2: two passages have the id 'q'"):
        bm25_search(str(index / "index"), queries=str(index / "twice.tsv"), output=str(index / "r"))


@pytest.mark.parametrize("content", ["", "\n\n", "not json\n"])
def test_a_build_that_fails_leaves_nothing(tmp_path, content):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(content)
    with pytest.raises(InputError):
        bm25_build([str(corpus)], output=str(tmp_path / "new" / "index"))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_an_interrupted_build_resumes(tmp_path, monkeypatch):
    lines = [{"_id": name, "text": text} for name, text in TEXTS.items()]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, lines)))

    def passages(path, *, most):
        for number, one in enumerate(read_passages(path)):
            if number == most:
                raise KeyboardInterrupt
            yield one

    monkeypatch.setattr(bm25, "BLOCK_POSTINGS", 2)
    for most in (0, 2):
        monkeypatch.setattr(passage_files, "read_passages", functools.partial(passages, most=most))
        with pytest.raises(KeyboardInterrupt):
            bm25_build([str(corpus)], output=str(tmp_path / "index"))
        assert (tmp_path / "index.partial").exists() == (most > 0)
        assert not (tmp_path / "index").exists()
    monkeypatch.undo()
    bm25_build([str(corpus)], output=str(tmp_path / "index"))
    assert not (tmp_path / "index.partial").exists()
