"""search: exact, by files of vectors or with a checkpoint, and what is refused."""

import json

import numpy as np
import pytest

from t5x_lite.commands.answers import embed
from t5x_lite.commands.search import search
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.rankings import read_run
from t5x_lite.data.formats.vectors import vector_writer
from t5x_lite.retrieval.mining import QueryEncoder
from tests.encoder_checkpoint import write_checkpoint

DOCUMENTS = np.array([[1, 2], [3, 0], [1, 2], [0, 5], [2, 1]], np.float32)
QUERIES = np.array([[1, 0], [0, 1]], np.float32)


def texts(path, names, words=None):
    words = words or names
    records = [{"_id": n, "title": "", "text": w} for n, w in zip(names, words, strict=True)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "corpus.npy", DOCUMENTS)
    np.save(tmp_path / "queries.npy", QUERIES)
    return {
        "vectors": [str(tmp_path / "corpus.npy")],
        "ids": [texts(tmp_path / "corpus.jsonl", "abcde")],
        "queries": str(tmp_path / "queries.npy"),
        "query_ids": [texts(tmp_path / "queries.jsonl", "ba")],
    }


def found(path):
    return {one.query: [(d, s) for d, s, _ in one.documents] for one in read_run(str(path))}


def run(files, output, **options):
    options = {**files, **options}
    search(options.pop("vectors"), output=str(output), **options)
    return found(output)


def test_a_run_of_vectors(files, tmp_path):
    assert run(files, tmp_path / "run.trec", depth=3) == {
        "b": [("b", 3.0), ("e", 2.0), ("a", 1.0)],
        "a": [("d", 5.0), ("a", 2.0), ("c", 2.0)],
    }
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run.trec"]
    dropped = run(files, tmp_path / "run.jsonl", same_ids="drop")
    assert [name for name, _ in dropped["b"]] == ["e", "a", "c", "d"]
    assert [name for name, _ in dropped["a"]] == ["d", "c", "e", "b"]
    plain = run({**files, "ids": [], "query_ids": []}, tmp_path / "plain.trec", depth=1)
    assert plain == {"0": [("1", 3.0)], "1": [("3", 5.0)]}


def test_a_search_of_signs_with_rescoring(tmp_path):
    """Three vectors of equal signs: full vectors put them in order; the fourth is not found."""
    full = np.ones((4, 8), np.float32)
    full[1] *= 3
    full[2] *= 2
    full[3, :4] *= -9
    with vector_writer(str(tmp_path / "signs.npy"), precision="binary") as file:
        file.write(list("abcd"), full)
    np.save(tmp_path / "full.npy", full)
    np.save(tmp_path / "queries.npy", np.ones((1, 8), np.float32))
    signs, both = [str(tmp_path / "signs.npy")], [str(tmp_path / "full.npy")]
    assert np.load(signs[0]).tolist() == [[255], [255], [255], [15]]
    options = {"queries": str(tmp_path / "queries.npy"), "depth": 2}
    search(signs, output=str(tmp_path / "a.trec"), **options)
    assert found(tmp_path / "a.trec") == {"0": [("0", 8.0), ("1", 8.0)]}
    search(signs, output=str(tmp_path / "b.trec"), rescore=both, rescore_factor=2, **options)
    assert found(tmp_path / "b.trec") == {"0": [("1", 24.0), ("2", 16.0)]}
    np.save(tmp_path / "short.npy", full[:2])
    with pytest.raises(InputError, match="--rescore has 2 vectors, but the corpus has more"):
        search(
            signs, output=str(tmp_path / "c.trec"), rescore=[str(tmp_path / "short.npy")], **options
        )


def test_a_search_of_int8_by_float_queries(tmp_path):
    """Two vectors in the same steps of 0.1 have the same score, until full vectors rank them."""
    full = np.array([[0, 25.5], [25.5, 0], [1.02, 3.01], [1.08, 3.04]], np.float32)
    with vector_writer(str(tmp_path / "int8.npy"), precision="int8") as file:
        file.write(list("abcd"), full)
    np.save(tmp_path / "full.npy", full)
    np.save(tmp_path / "queries.npy", np.array([[10, 1]], np.float32))
    options = {"queries": str(tmp_path / "queries.npy"), "depth": 3}
    int8, both = [str(tmp_path / "int8.npy")], [str(tmp_path / "full.npy")]
    search(int8, output=str(tmp_path / "a.trec"), **options)
    ((one, two, three),) = found(tmp_path / "a.trec").values()
    assert [name for name, _ in (one, two, three)] == ["1", "0", "2"]
    assert [score for _, score in (one, two, three)] == pytest.approx([255, 25.5, 13], rel=1e-6)
    search(int8, output=str(tmp_path / "b.trec"), rescore=both, **options)
    assert [name for name, _ in found(tmp_path / "b.trec")["0"]] == ["1", "0", "3"]
    assert found(tmp_path / "b.trec")["0"][2][1] == pytest.approx(13.84, rel=1e-6)


@pytest.mark.slow
def test_queries_of_a_checkpoint_are_as_their_vectors(tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    corpus = texts(tmp_path / "c.jsonl", ["1", "2", "3"], ["a b c", "c", "b c a a"])
    queries = texts(tmp_path / "q.jsonl", ["x", "y"], ["a b", "c c"])
    for source, output in ((corpus, "c.npy"), (queries, "q.npy")):
        embed(checkpoint, input=source, output=str(tmp_path / output), batch_size=2, pooling="cls")
    vectors = {"vectors": [str(tmp_path / "c.npy")], "ids": [corpus]}
    by_file = run(
        {**vectors, "queries": str(tmp_path / "q.npy"), "query_ids": [queries]}, tmp_path / "a.trec"
    )
    encoder = QueryEncoder(checkpoint, pooling="cls", batch_size=2)
    by_model = run({**vectors, "queries": queries, "encoder": encoder}, tmp_path / "b.trec")
    assert by_file.keys() == by_model.keys() == {"x", "y"}
    for query, documents in by_file.items():
        assert [d for d, _ in documents] == [d for d, _ in by_model[query]]
        np.testing.assert_allclose([s for _, s in documents], [s for _, s in by_model[query]], 1e-5)


def test_what_does_not_fit(files, tmp_path):
    with pytest.raises(InputError, match=r"5 ids, but .* 2 vectors"):
        run({**files, "query_ids": files["ids"]}, tmp_path / "run")
    twice = [texts(tmp_path / "twice.jsonl", "aa")]
    with pytest.raises(InputError, match="the id 'a' comes twice"):
        run({**files, "query_ids": twice}, tmp_path / "run")
    np.save(tmp_path / "none.npy", np.zeros((0, 2), np.float32))
    with pytest.raises(InputError, match="no query"):
        run({**files, "queries": str(tmp_path / "none.npy"), "query_ids": []}, tmp_path / "run")
    with pytest.raises(InputError, match="one word"):
        run(files, tmp_path / "run", tag="a b")
    (tmp_path / "run.partial.npz").write_bytes(b"x")
    with pytest.raises(InputError, match="not the saved state of a search"):
        run(files, tmp_path / "run")
