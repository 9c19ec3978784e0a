"""The inverted index: its postings, a build in blocks, and one that was killed."""

import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.retrieval import bm25
from t5x_lite.retrieval.bm25 import BM25, InvertedIndex, build

TEXTS = [("d0", "a b a"), ("d1", "b c"), ("d2", ""), ("d3", "a c c d"), ("d4", "é b")]


def made(tmp_path, texts=TEXTS, name="index"):
    build(str(tmp_path / name), texts, analyzer="whitespace", identity={"input": "x"})
    return InvertedIndex.open(tmp_path / name)


def content(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_postings(tmp_path):
    index = made(tmp_path)
    found = {
        t: tuple(x.tolist() for x in index.postings(t)) for t in ("a", "b", "c", "é", "no", "")
    }
    assert found == {
        "a": ([0, 3], [2, 1]),
        "b": ([0, 1, 4], [1, 1, 1]),
        "c": ([1, 3], [1, 2]),
        "é": ([4], [1]),
        "no": ([], []),
        "": ([], []),
    }
    assert index.lengths.tolist() == [3, 2, 0, 4, 2]
    assert list(index.ids) == ["d0", "d1", "d2", "d3", "d4"]
    assert index.settings["total_length"] == 11
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


@pytest.mark.parametrize("postings", [1, 3, 100])
def test_blocks_change_nothing(tmp_path, monkeypatch, postings):
    made(tmp_path, name="whole")
    monkeypatch.setattr(bm25, "BLOCK_POSTINGS", postings)
    made(tmp_path, name="parts")
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_two_builds_of_one_index_at_a_time(tmp_path):
    def texts():
        yield from TEXTS
        with pytest.raises(InputError, match="index: another process is writing this output"):
            made(tmp_path)

    made(tmp_path, texts())
    made(tmp_path, name="whole")
    assert content(tmp_path / "index") == content(tmp_path / "whole")


@pytest.mark.parametrize("killed", range(5))
def test_a_killed_build_goes_on(tmp_path, monkeypatch, killed):
    made(tmp_path, name="whole")
    monkeypatch.setattr(bm25, "BLOCK_POSTINGS", 2)

    def dying():
        yield from TEXTS[:killed]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, dying(), "again")
    assert not (tmp_path / "again").exists()
    assert (tmp_path / "again.partial").exists() == (killed > 0)
    if killed:
        with pytest.raises(InputError, match=r"another command \(other analyzer\)"):
            build(str(tmp_path / "again"), TEXTS, analyzer="english", identity={"input": "x"})
    made(tmp_path, name="again")
    assert content(tmp_path / "again") == content(tmp_path / "whole")


def test_documents_without_a_term(tmp_path):
    index = made(tmp_path, [("a", " "), ("b", "")])
    assert index.settings["postings"] == 0
    assert len(index.postings("x")[0]) == 0


def test_what_is_refused(tmp_path):
    with pytest.raises(InputError, match="no document"):
        made(tmp_path, [])
    with pytest.raises(InputError, match="the id 'd0' comes twice"):
        made(tmp_path, [*TEXTS, ("d0", "x")], "twice")
    made(tmp_path, name="whole")
    with pytest.raises(InputError, match="already exists"):
        made(tmp_path, name="whole")
    with pytest.raises(InputError, match="no BM25 index"):
        InvertedIndex.open(tmp_path / "no")
    np.save(tmp_path / "whole" / "lengths.npy", np.zeros(2, np.int32))
    with pytest.raises(InputError, match=r"damaged \(documents"):
        InvertedIndex.open(tmp_path / "whole")
    (tmp_path / "whole" / "ends.npy").unlink()
    with pytest.raises(InputError, match=r"ends.npy: No such file"):
        InvertedIndex.open(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("index.json", None, "no BM25 index"),
        ("index.json", b"{", "not JSON"),
        ("index.json", b"[]", "must be a JSON object"),
        ("index.json", b"{}", "damaged"),
        (
            "index.json",
            b'"version": 0',
            r"has an unsupported format version \(version 0 instead of 1\)",
        ),
        ("ids.ends.npy", None, "No such file"),
        ("lengths.npy", b"cut", "not an array of NumPy"),
        ("terms.bytes.npy", np.full(5, 0xFF, np.uint8), "damaged"),
        ("documents.npy", np.full(9, 9, np.int32), "damaged"),
    ],
)
def test_an_error_names_the_command_that_builds_an_index(tmp_path, name, content, error):
    made(tmp_path)
    path = tmp_path / "index" / name
    if content is None:
        path.unlink()
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    elif content.startswith(b'"version"'):
        path.write_bytes(path.read_bytes().replace(b'"version": 1', content))
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"{error}.*t5x-lite bm25 build") as caught:
        BM25(InvertedIndex.open(tmp_path / "index")).search("a b", depth=5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "1"),
        ("analyzer", "klingon"),
        ("analyzer", 4),
        ("documents", 4),
        ("documents", None),
        ("terms", -1),
        ("postings", 1e9),
        ("total_length", 1 << 70),
    ],
)
def test_the_fields_of_a_record_are_checked(tmp_path, field, value):
    made(tmp_path)
    path = tmp_path / "index" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(InputError):
        InvertedIndex.open(tmp_path / "index")


@pytest.mark.parametrize("name", ["sorted", "ends", "documents", "frequencies", "lengths"])
@pytest.mark.parametrize("change", ["type", "axes", "numbers"])
def test_arrays_are_checked_when_an_index_is_opened_or_asked(tmp_path, name, change):
    made(tmp_path)
    path = tmp_path / "index" / f"{name}.npy"
    values = np.load(path)
    damaged = {"type": values.astype(np.float64), "axes": values[:, None], "numbers": values - 9}
    np.save(path, damaged[change])
    if (name, change) == ("frequencies", "numbers"):
        return  # wrong, and harmless: a checksum of the next format finds it
    with pytest.raises(InputError, match=r"damaged|must be an array"):
        InvertedIndex.open(tmp_path / "index").postings("a")
