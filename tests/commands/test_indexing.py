"""index build, search and bench, as commands."""

import json

import numpy as np
import pytest

from t5x_lite.commands.search import index_bench, index_build, index_search, search
from t5x_lite.data.formats.rankings import read_run
from t5x_lite.data.formats.vectors import steps_of, vector_writer

pytest.importorskip("faiss")


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((600, 8), dtype=np.float32)
    np.save(tmp_path / "corpus.npy", vectors)
    np.save(tmp_path / "queries.npy", vectors[:20])
    return tmp_path


def found(path):
    return {one.query: [ranked.document for ranked in one.documents] for one in read_run(path)}


def test_build_and_search(files):
    corpus, queries = str(files / "corpus.npy"), str(files / "queries.npy")
    index_build([corpus], output=str(files / "flat"), kind="Flat")
    runs = {}
    for same_ids in ("keep", "drop"):
        options = {"queries": queries, "depth": 5, "same_ids": same_ids}
        index_search(str(files / "flat"), output=str(files / "a.trec"), **options)
        search([corpus], output=str(files / "b.trec"), **options)
        runs[same_ids] = found(str(files / "a.trec"))
        assert runs[same_ids] == found(str(files / "b.trec"))
    assert runs["keep"]["3"] != runs["drop"]["3"]
    index_build([corpus], output=str(files / "usual"))
    assert json.loads((files / "usual" / "index.json").read_text())["kind"] == "IVF98,Flat"


def test_an_index_of_int8_vectors_has_their_codes(files):
    """SQ8 ranks as `search`: its scores are higher by half a step of each dimension."""
    vectors = np.load(files / "corpus.npy")
    with vector_writer(str(files / "int8.npy"), precision="int8") as file:
        file.write([str(i) for i in range(600)], vectors)
    corpus, queries = [str(files / "int8.npy")], str(files / "queries.npy")
    index_build(corpus, output=str(files / "sq8"), kind="SQ8")
    options = {"queries": queries, "depth": 20}
    index_search(str(files / "sq8"), output=str(files / "a.trec"), **options)
    search(corpus, output=str(files / "b.trec"), **options)
    assert found(str(files / "a.trec")) == found(str(files / "b.trec"))
    _, steps = steps_of(np.load(files / "int8.npy.ranges"))
    runs = [list(read_run(str(files / f"{name}.trec"))) for name in "ab"]
    for query, ours, theirs in zip(np.load(queries), *runs, strict=True):
        half = float(query @ steps) / 2
        for one, other in zip(ours.documents, theirs.documents, strict=True):
            assert one.score - other.score == pytest.approx(half, abs=1e-5)
    index_build(corpus, output=str(files / "ivf"), kind="IVF4,SQ8")
    index_search(str(files / "ivf"), output=str(files / "c.trec"), nprobe=4, **options)
    same = [set(x) & set(y) for x, y in zip(
        found(str(files / "c.trec")).values(), found(str(files / "b.trec")).values(), strict=True
    )]  # fmt: skip
    assert sum(map(len, same)) >= 380


def test_bench(files, capsys):
    corpus, queries = str(files / "corpus.npy"), str(files / "queries.npy")
    for name, kind in (("ivf", "IVF8,Flat"), ("hnsw", "HNSW8,Flat"), ("flat", "Flat")):
        index_build([corpus], output=str(files / name), kind=kind)
    indexes = [str(files / name) for name in ("ivf", "hnsw", "flat")]
    lines = index_bench(
        indexes, [corpus], queries=queries, nprobe=[1, 8], ef_search=[16, 64],
        output=str(files / "bench.jsonl"),
    )  # fmt: skip
    assert [line["index"] for line in lines] == [
        "exact", "IVF8,Flat", "IVF8,Flat", "HNSW8,Flat", "HNSW8,Flat", "Flat",
    ]  # fmt: skip
    assert lines[1]["recall"] < lines[2]["recall"] == lines[-1]["recall"] == 1.0
    assert (files / "bench.jsonl").read_text() == capsys.readouterr().out
    assert all(line["queries_per_second"] > 0 for line in lines)
