"""Negatives of searches: the same batches however fast the searches are, and after a kill."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import Ended, ending
from t5x_lite.data import scheduled, stream
from t5x_lite.data.batches import train_batches
from t5x_lite.data.cache import refreshes
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import Bucketed, Data, Refresh
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests.tiny_checkpoint import flip

CLS, SEP, QUERIES, TOP, STEPS = 3, 4, 5, 4, 11
NAMES = ("query", "positives", "negatives")
RECIPE = Recipe(
    stored=NAMES,
    outputs=dict.fromkeys(NAMES, False),
    eos="none",
    eos_id=1,
    lengths={"query": 4, "positives": 4, "negatives": 4},
    fixed={"positives": "each", "negatives_top": 200},
)


def text(*letters):
    return np.array([CLS, *letters, SEP], np.int32)


@pytest.fixture
def data(tmp_path, small_cache):
    """5 queries; passage 30 + k answers query 20 + k, and 40 + k is its own negative."""
    examples = [[text(20 + k), text(30 + k), text(40 + k)] for k in range(QUERIES)]
    small_cache(tmp_path / "cache", {"train": examples}, RECIPE)
    refreshes.Passages.write(tmp_path / "r", [text(60 + number) for number in range(40)])
    return Data(
        cache=str(tmp_path / "cache"),
        vocabulary=str(tmp_path / "cache" / "vocabulary"),
        layout=layouts.Groups(negatives=2),
        batch_size=2,
        inputs_length=4,
        targets_length=4,
        pack=False,
        refresh=Refresh(period=2, lag=1, top=TOP, directory=str(tmp_path / "r")),
    )


@pytest.fixture
def vocabulary(data, monkeypatch):
    monkeypatch.setattr(refreshes, "POLL_SECONDS", 0.01)
    loaded = load_vocabulary(data.vocabulary)
    # Bytes have no [CLS]; the rows are made above.
    monkeypatch.setattr("t5x_lite.data.batches.tokens_for", lambda *_: None)
    return loaded


def search(data, step):
    """What the checkpoint of a step finds: other passages at each step."""
    numbers = [[(step * 7 + k * 3 + i) % 40 for i in range(TOP)] for k in range(QUERIES)]
    refreshes.write(data.refresh.directory, step, np.array(numbers), settings={})


def run(data, vocabulary, *, delay, kill=None, saved=None, searches=range(2, STEPS, 2)):
    """Passages of the batches from a position on, while a thread searches; the positions, too."""
    reached = [0]

    def refresher():
        for step in searches:
            while reached[0] < step:  # no checkpoint before that step is done
                time.sleep(0.002)
            time.sleep(delay)
            if not refreshes.is_whole(data.refresh.directory, step):
                search(data, step)

    batches = train_batches(data, vocabulary, seed=1)
    first = 0
    if saved is not None:
        first, state = saved
        batches.restore(state)
    reached[0] = first
    thread = threading.Thread(target=refresher, daemon=True)
    thread.start()
    found = []
    for number in range(first, STEPS):
        found.append(next(batches)["passage_tokens"])
        reached[0] = number + 1
        if kill == number + 1:
            break
    state = len(found) + first, batches.state()
    batches.close()
    reached[0] = 10**6
    thread.join()
    return found, state


@pytest.mark.parametrize("lag", [0, 1])
def test_killed_at_five_points_with_slow_and_fast_searches(data, vocabulary, lag, tmp_path):
    data = dataclasses.replace(data, refresh=dataclasses.replace(data.refresh, lag=lag))
    whole, _ = run(data, vocabulary, delay=0.0)
    for k, batch in enumerate(whole):
        step = data.refresh.searched_by(k)
        others = {*batch[:, 1:, 1].ravel().tolist()}
        if not step:
            assert others <= {0, *range(40, 45)}
        else:
            assert min(others) >= 60
    for place, (kill, delay) in enumerate([(1, 0.05), (2, 0.0), (5, 0.05), (6, 0.0), (9, 0.05)]):
        directory = tmp_path / f"r{place}"
        refreshes.Passages.write(directory, [text(60 + number) for number in range(40)])
        refresh = dataclasses.replace(data.refresh, directory=str(directory))
        again = dataclasses.replace(data, refresh=refresh)
        before, saved = run(again, vocabulary, delay=delay, kill=kill)
        assert saved[0] == kill
        after, _ = run(again, vocabulary, delay=0.05 - delay, saved=saved)
        np.testing.assert_array_equal(before + after, whole)


LENGTHS = {3: 3, 4: 2}
"""Rows of a batch by the tokens of their longest passage."""


def long_and_short(directory):
    """40 passages, of which every third has a token more."""
    rows = [text(60 + n, *([59] if n % 3 == 0 else [])) for n in range(40)]
    refreshes.Passages.write(directory, rows)


@pytest.mark.parametrize("lag", [0, 1])
def test_by_length_killed_at_five_points(data, vocabulary, lag, tmp_path, monkeypatch):
    """Lengths change with each search; batches are those of a run that was not killed."""
    for module in (scheduled, stream):
        monkeypatch.setattr(module, "WINDOW", 8)
    long_and_short(tmp_path / "long")
    refresh = dataclasses.replace(data.refresh, lag=lag, directory=str(tmp_path / "long"))
    data = dataclasses.replace(data, refresh=refresh, batches=Bucketed(LENGTHS))
    whole, _ = run(data, vocabulary, delay=0.0)
    assert {batch.shape for batch in whole} == {(3, 3, 3), (2, 3, 4)}
    for k, batch in enumerate(whole):
        rows = [[passage for passage in row if passage.any()] for row in batch]
        longest = [max(np.count_nonzero(passage) for passage in row) for row in rows]
        assert longest == [batch.shape[2]] * len(batch)  # none is cut, none has a row too long
        assert (batch[:, 1:, 1].min() >= 60) == (data.refresh.searched_by(k) > 0)
    answers = np.concatenate([batch[:, 0, 1] for batch in whole])
    counts = np.bincount(answers - 30, minlength=QUERIES)
    assert counts.max() - counts.min() <= 2  # an epoch has each query once, but for those that wait
    for kill in (1, 4, 5, 6, 9):
        directory = tmp_path / f"k{kill}"
        long_and_short(directory)
        again = dataclasses.replace(
            data, refresh=dataclasses.replace(refresh, directory=str(directory))
        )
        before, saved = run(again, vocabulary, delay=0.0, kill=kill)
        after, _ = run(again, vocabulary, delay=0.0, saved=saved)
        assert len(before + after) == len(whole)
        for batch, expected in zip(before + after, whole, strict=True):
            np.testing.assert_array_equal(batch, expected)


def test_a_signal_ends_the_wait(data, vocabulary):
    """In the thread that makes batches ahead, too, which closing waits for."""
    batches = train_batches(data, vocabulary, seed=1)
    for _ in range(4):
        next(batches)
    threading.Timer(0.05, ending.set).start()
    try:
        with pytest.raises(Ended, match=r"the run ended while it waited for .*/2"):
            next(batches)
        batches.close()
    finally:
        ending.clear()


def test_a_search_that_was_used_and_is_missing_is_an_error(data, vocabulary):
    _, saved = run(data, vocabulary, delay=0.0, kill=5)
    where = refreshes.Path(data.refresh.directory) / "2" / "refresh.json"
    content = where.read_text()
    where.unlink()
    batches = train_batches(data, vocabulary, seed=1)
    batches.restore(saved[1])
    with pytest.raises(InputError, match="the search results of step 2 are missing or damaged"):
        next(batches)
    where.write_text(content)
    refreshes.write(data.refresh.directory, 2, np.zeros((QUERIES, TOP), np.int32), settings={})
    batches.restore(saved[1])
    with pytest.raises(InputError, match="have changed since this run used them"):
        next(batches)
    batches.close()


def test_searches_of_another_cache_and_damaged_ones(data):
    search(data, 2)
    with pytest.raises(InputError, match="are for 5 examples, but the cache has 6"):
        refreshes.read(data.refresh.directory, 2, num_examples=6)
    path = refreshes.Path(data.refresh.directory) / "2" / "negatives.npy"
    flip(path)
    with pytest.raises(InputError, match="does not fit its checksum"):
        refreshes.read(data.refresh.directory, 2, num_examples=5)


def test_passages(tmp_path):
    refreshes.Passages.write(tmp_path, [text(5), text(6, 7), text()])
    passages = refreshes.Passages.open(tmp_path)
    assert len(passages) == 3
    assert passages.joined([1, 0]).tolist() == [3, 6, 7, 4, 3, 5, 4]
    assert passages.joined([]).tolist() == []
    with pytest.raises(InputError, match="missing or damaged"):
        refreshes.Passages.open(tmp_path / "other")


def test_another_rule_is_another_position(data, vocabulary):
    _, (_, state) = run(data, vocabulary, delay=0.0, kill=1)
    other = dataclasses.replace(data, refresh=dataclasses.replace(data.refresh, lag=2))
    batches = train_batches(other, vocabulary, seed=1)
    with pytest.raises(InputError, match=r"refresh \[2, 1, 4\] \(now \[2, 2, 4\]\)"):
        batches.restore(state)
    batches.close()
