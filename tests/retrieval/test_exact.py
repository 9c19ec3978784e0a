"""Files of vectors, searched exactly: as sorting does it, and on after a kill."""

import subprocess
import sys

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import Share
from t5x_lite.data.formats.rankings import Ranked
from t5x_lite.data.formats.vectors import VectorShards
from t5x_lite.retrieval import exact
from t5x_lite.retrieval.exact import block_rows, rankings_of, search_shards
from t5x_lite.retrieval.fusion import fuse

RNG = np.random.default_rng(0)
VECTORS = RNG.integers(-2, 3, (2500, 4)).astype(np.float32)
QUERIES = RNG.integers(-2, 3, (3, 4)).astype(np.float32)


@pytest.fixture
def shards(tmp_path):
    paths = [str(tmp_path / f"{i}.npy") for i in range(2)]
    np.save(paths[0], VECTORS[:1700])
    np.save(paths[1], VECTORS[1700:])
    return VectorShards.open(paths)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(exact, "_BLOCK_BYTES", 1024)


def test_equal_to_sorting_and_ties_in_the_corpus_order(shards, small_blocks):
    best = search_shards(shards, QUERIES, depth=50)
    expected = np.argsort(-(QUERIES @ VECTORS.T), axis=1, kind="stable")[:, :50]
    np.testing.assert_array_equal(best.rows, expected)
    first = next(rankings_of(best, ["q", "r", "s"], shards.name))
    assert first.query == "q"
    number = int(expected[0, 0])
    assert first.documents[0] == Ranked(str(number), float(QUERIES[0] @ VECTORS[number]), 1)


def test_parts_are_together_a_search_of_all(shards, small_blocks):
    """2,500 vectors in blocks of 1,024, by three hosts, with one's own document passed over."""
    names = ["1", None, "2300"]
    asked = {"depth": 9, "names": names}
    whole = rankings_of(search_shards(shards, QUERIES, **asked), ["q", "r", "s"], shards.name)
    runs = []
    for number in (1, 2, 3):
        best = search_shards(shards, QUERIES, part=Share(number, 3), **asked)
        rankings = rankings_of(best, ["q", "r", "s"], shards.name)
        runs.append(dict(rankings))
        rows = [int(one.document) for one in runs[-1]["q"]]
        assert 1024 * (number - 1) <= min(rows)
        assert max(rows) < 1024 * number
    assert list(fuse(runs, method="merge", k=9)) == list(whole)
    with pytest.raises(
        InputError,
        match="requires 4 blocks of 1024 vectors, but 2500 vectors make only 3 blocks",
    ):
        search_shards(shards, QUERIES, depth=9, part=Share(4, 4))


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_a_killed_search_goes_on(shards, small_blocks, tmp_path, monkeypatch, kills):
    whole = search_shards(shards, QUERIES, depth=9)
    monkeypatch.setattr(exact, "SAVE_SECONDS", 0.0)
    state, add, seen = str(tmp_path / "state.npz"), exact._add, []

    def dying(search, block, names):
        seen.append(block.first)
        if len(seen) == kills + 1:
            raise KeyboardInterrupt
        add(search, block, names)

    monkeypatch.setattr(exact, "_add", dying)
    with pytest.raises(KeyboardInterrupt):
        search_shards(shards, QUERIES, depth=9, state=state, identity={"a": 1})
    if kills:
        with pytest.raises(InputError, match=r"another command \(other a, b\)"):
            search_shards(shards, QUERIES, depth=9, state=state, identity={"a": 2, "b": 1})
    again = search_shards(shards, QUERIES, depth=9, state=state, identity={"a": 1})
    assert seen == [*range(0, 1024 * kills + 1, 1024), *range(1024 * kills, 2500, 1024)]
    np.testing.assert_array_equal(again.rows, whole.rows)
    np.testing.assert_array_equal(again.scores, whole.scores)


def test_a_querys_own_document_is_passed_over(shards):
    names = [str(int(np.argmax(QUERIES[0] @ VECTORS.T))), None, "no document"]
    best = search_shards(shards, QUERIES, depth=2500, names=names)
    assert int(names[0]) not in best.rows[0]
    assert (best.rows[0] == -1).sum() == 1
    assert (best.rows[1:] == -1).sum() == 0


def test_what_does_not_fit_is_refused(shards, tmp_path):
    with pytest.raises(InputError, match="have 3 dimensions, but corpus vectors have 4"):
        search_shards(shards, QUERIES[:, :3], depth=1)
    np.save(tmp_path / "bad.npy", np.full((2, 4), np.nan, np.float32))
    with pytest.raises(InputError, match="starts at number 0: the vector of a document is NaN"):
        search_shards(VectorShards.open([str(tmp_path / "bad.npy")]), QUERIES, depth=1)
    (tmp_path / "state").write_text("text")
    with pytest.raises(InputError, match="not the saved state of a search"):
        search_shards(shards, QUERIES, depth=1, state=str(tmp_path / "state"))


def test_sizes_of_blocks():
    assert block_rows(768, queries=1) == 21504
    assert block_rows(64, queries=1000) == 32768
    assert block_rows(100_000, queries=1) == 1024


PROGRAM = """
import sys, threading, time
import numpy as np
from t5x_lite.data.formats.vectors import VectorShards
from t5x_lite.retrieval.exact import search_shards
def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
most = [0]
def watch():
    while True:
        most[0] = max(most[0], anonymous()); time.sleep(.005)
threading.Thread(target=watch, daemon=True).start()
shards = VectorShards.open(sys.argv[1:])
queries = np.random.default_rng(1).standard_normal((64, shards.size), np.float32)
search_shards(shards, queries, depth=100)
print(most[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """The bench script searches 20 GiB; here 2 and 8 times 96 MiB take the same."""
    path = str(tmp_path / "a.npy")
    np.save(path, np.random.default_rng(0).standard_normal((96 << 10, 256), np.float32))

    def kib(*paths):
        command = [sys.executable, "-c", PROGRAM, *paths]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    few, many = kib(*[path] * 2), kib(*[path] * 8)
    assert many < few + (96 << 10)
    assert many < 2 << 20
