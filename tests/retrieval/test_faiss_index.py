"""faiss behind the extra: exact where it is exact, better with more work, and what is refused."""

import builtins
import json
import os

import numpy as np
import pytest

from t5x_lite.commands.search import recall
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.vectors import VectorShards
from t5x_lite.retrieval import faiss_index
from t5x_lite.retrieval.exact import search_shards
from t5x_lite.retrieval.faiss_index import FaissIndex, Settings, build, library, usual_kind
from tests.full_disk import full_disk

pytest.importorskip("faiss")
RNG = np.random.default_rng(0)
CENTRES = RNG.standard_normal((40, 16)).astype(np.float32)
VECTORS = CENTRES[RNG.integers(0, 40, 3000)] + 0.4 * RNG.standard_normal((3000, 16))
VECTORS = (VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)).astype(np.float32)
QUERIES = VECTORS[:50] + 0.05 * RNG.standard_normal((50, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("vectors")
    np.save(directory / "a.npy", VECTORS[:2000])
    np.save(directory / "b.npy", VECTORS[2000:])
    corpus = directory / "corpus.txt"
    corpus.write_text("x\n" * 3000)
    paths = [str(directory / name) for name in ("a.npy", "b.npy")]
    return VectorShards.open(paths, ids=[str(corpus)])


@pytest.fixture(scope="module")
def exact(shards):
    return search_shards(shards, QUERIES, depth=10)


def made(tmp_path, shards, kind, **settings):
    build(str(tmp_path / "index"), shards, kind, settings=Settings(**settings))
    return FaissIndex.open(str(tmp_path / "index"))


def test_flat_is_exact(tmp_path, shards, exact):
    index = made(tmp_path, shards, "Flat")
    found = index.search(QUERIES, depth=10)
    np.testing.assert_array_equal(found.rows, exact.rows)
    np.testing.assert_allclose(found.scores, exact.scores, atol=1e-5)
    assert index.name(7) == "7"
    assert len(index) == 3000


def test_a_directory_whose_name_is_not_utf_8(tmp_path, shards):
    """As all names are whose letters are not ASCII, where the locale is C."""
    odd = tmp_path / os.fsdecode(b"\xe4")
    odd.mkdir()
    assert len(made(odd, shards, "Flat")) == 3000


def test_ties_stand_in_the_order_of_the_documents(tmp_path):
    np.save(tmp_path / "a.npy", np.tile(np.eye(4, dtype=np.float32)[[1, 0, 0, 2]], (5, 1)))
    shards = VectorShards.open([str(tmp_path / "a.npy")])
    queries = np.float32([[1, 0, 0, 0], [0.5, 0.5, 0, 0]])
    found = made(tmp_path, shards, "Flat").search(queries, depth=20)
    np.testing.assert_array_equal(found.rows, search_shards(shards, queries, depth=20).rows)


@pytest.mark.parametrize(
    ("kind", "option", "values", "least"),
    [
        ("IVF32,Flat", "nprobe", (1, 4, 32), 1.0),
        ("HNSW16,Flat", "ef_search", (10, 32, 128), 0.95),
        ("IVF16,PQ8", "nprobe", (1, 4, 16), 0.3),
    ],
)
def test_more_work_finds_more(tmp_path, shards, exact, kind, option, values, least):
    index = made(tmp_path, shards, kind)
    recalls = [recall(index.search(QUERIES, depth=10, **{option: v}), exact) for v in values]
    assert recalls[-1] >= least
    if "PQ" not in kind:  # what codes lose, no list gives back
        assert recalls == sorted(recalls)


def test_the_seed_decides(tmp_path, shards):
    for name in ("one", "two"):
        build(str(tmp_path / name), shards, "IVF16,PQ8", settings=Settings(train_vectors=1000))
    assert (tmp_path / "one" / "index.faiss").read_bytes() == (
        tmp_path / "two" / "index.faiss"
    ).read_bytes()
    assert json.loads((tmp_path / "one" / "index.json").read_text())["kind"] == "IVF16,PQ8"


def test_fewer_documents_than_are_asked_for(tmp_path, shards):
    found = made(tmp_path, shards, "Flat").search(QUERIES[:1], depth=9999)
    assert found.rows.shape == (1, 3000)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("Tree", "unknown index type 'Tree'"),
        ("IVF16,PQ7", "the number of PQ bytes must divide"),
        ("IVF4000,Flat", "needs at least 4000 vectors, but the corpus has 3000"),
    ],
)
def test_a_kind_that_is_none(tmp_path, shards, kind, message):
    with pytest.raises(InputError, match=message):
        made(tmp_path, shards, kind)
    assert not (tmp_path / "index").exists()


def test_what_is_refused(tmp_path, shards):
    index = made(tmp_path, shards, "Flat")
    with pytest.raises(InputError, match="have 3 dimensions, but index vectors have 16"):
        index.search(QUERIES[:, :3], depth=1)
    with pytest.raises(InputError, match="already exists"):
        made(tmp_path, shards, "Flat")
    with pytest.raises(InputError, match="build one with t5x-lite index build"):
        FaissIndex.open(str(tmp_path / "no"))
    (tmp_path / "index" / "index.faiss").write_bytes(b"x")
    with pytest.raises(InputError, match="damaged"):
        FaissIndex.open(str(tmp_path / "index"))


def test_without_the_package(monkeypatch):
    imported = builtins.__import__
    monkeypatch.setattr("importlib.import_module", lambda name: imported("no_such_package"))
    with pytest.raises(InputError, match="faiss-cpu"):
        library()


def test_two_builds_of_one_index_at_a_time(tmp_path, shards, monkeypatch):
    fill = faiss_index._fill

    def second(index, shards):
        monkeypatch.setattr(faiss_index, "_fill", fill)
        with pytest.raises(InputError, match="x: another process is writing this output"):
            build(str(tmp_path / "x"), shards, "Flat")
        fill(index, shards)

    monkeypatch.setattr(faiss_index, "_fill", second)
    build(str(tmp_path / "x"), shards, "Flat")
    assert FaissIndex.open(str(tmp_path / "x")).settings["seconds"] < 60
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_full_disk_is_told_in_the_words_of_the_system(tmp_path, shards):
    with (
        full_disk(1000),
        pytest.raises(InputError, match=r"x cannot be written \(File too large\)$"),
    ):
        build(str(tmp_path / "x"), shards, "Flat")
    assert not list(tmp_path.iterdir())


def test_the_usual_kind():
    assert usual_kind(1_000_000) == "IVF4000,Flat"


KINDS = ("Flat", "IVF8,Flat", "IVF8,PQ4", "PQ4", "HNSW8,Flat", "SQ8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["index.faiss", "ids.bytes.npy", "ids.ends.npy"])
def test_a_flipped_bit_is_refused_and_not_a_changed_result(tmp_path, shards, kind, name):
    made(tmp_path, shards, kind)
    file = tmp_path / "index" / name
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"{name} is damaged \(its SHA-256 differs"):
        FaissIndex.open(str(tmp_path / "index"))


def record_of(tmp_path):
    return json.loads((tmp_path / "index" / "index.json").read_text())


def write_record(tmp_path, record):
    (tmp_path / "index" / "index.json").write_text(json.dumps(record))


def test_an_index_without_checksums_opens(tmp_path, shards, exact):
    made(tmp_path, shards, "Flat")
    record = record_of(tmp_path)
    assert sorted(record.pop("sha256")) == ["ids.bytes.npy", "ids.ends.npy", "index.faiss"]
    write_record(tmp_path, record)
    found = FaissIndex.open(str(tmp_path / "index")).search(QUERIES, depth=10)
    np.testing.assert_array_equal(found.rows, exact.rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("version", None),
        ("documents", "3000"),
        ("documents", -1),
        ("documents", True),
        ("documents", 2999),
        ("size", 17),
        ("ids", 1),
        ("kind", ["Flat"]),
        ("kind", "Flat,Flat"),
        ("kind", "PQ4"),
        ("seconds", "long"),
        ("sha256", []),
        ("sha256", {"../../a": "b"}),
    ],
)
def test_the_fields_of_a_record_are_checked(tmp_path, shards, field, value):
    made(tmp_path, shards, "Flat")
    write_record(tmp_path, {**record_of(tmp_path), field: value})
    with pytest.raises(InputError, match=r"build it again|build the index again|has '"):
        FaissIndex.open(str(tmp_path / "index"))


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 5000, b"\xff", b" " * (1 << 21)])
def test_a_record_that_is_none(tmp_path, shards, content):
    made(tmp_path, shards, "Flat")
    (tmp_path / "index" / "index.json").write_bytes(content)
    with pytest.raises(InputError, match=r"index\.json: (not JSON|must be a JSON object)"):
        FaissIndex.open(str(tmp_path / "index"))


@pytest.mark.parametrize(
    "changed", [[("neighbors", -1, 1 << 20)], [("entry_point", None, 1 << 20)], [("levels", 0, 99)]]
)
def test_a_graph_that_leads_outside_is_refused(tmp_path, shards, changed):
    """A file of a stranger has checksums that fit."""
    faiss = library()
    made(tmp_path, shards, "HNSW8,Flat")
    file = tmp_path / "index" / "index.faiss"
    index = faiss.read_index(str(file))
    for name, place, value in changed:
        if place is None:
            setattr(index.hnsw, name, value)
        else:
            vector = getattr(index.hnsw, name)
            faiss.rev_swig_ptr(vector.data(), vector.size())[place] = value
    faiss.write_index(index, str(file))
    record = record_of(tmp_path)
    del record["sha256"]
    write_record(tmp_path, record)
    with pytest.raises(InputError, match=r"index\.faiss is damaged"):
        FaissIndex.open(str(tmp_path / "index"))
