"""The first documents or tokens of a cache."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.files import Cache, Index
from t5x_lite.data.config import Data
from t5x_lite.data.sources import Source, truncated


@pytest.fixture(scope="module")
def spans(tmp_path_factory, small_cache, recipes, chunks):
    """A cache of 50 chunks for span corruption: examples 0 to 49 begin with ids 10 to 59."""
    examples = [
        [np.concatenate([[10 + i], tokens[1:]])]
        for i, (tokens,) in enumerate(chunks(50, length=34))
    ]
    return small_cache(tmp_path_factory.mktemp("first") / "c", {"train": examples}, recipes.spans)


def source_of(directory):
    cache = Cache(directory)
    return Source.of_cache(cache, "train", rate=Fraction(1))


def data(cache, **settings):
    fixed = {"batch_size": 4, "inputs_length": 32, "targets_length": 16, "vocabulary": "bytes"}
    return Data(cache=str(cache), **fixed | settings)


def firsts(batches, count):
    """The first token of each row that begins with a chunk's own; a sentinel may stand there."""
    rows = itertools.chain.from_iterable(
        next(batches)["encoder_input_tokens"] for _ in range(count)
    )
    return [int(row[0]) for row in rows]


def test_so_many_tokens_are_those_of_the_first_examples(spans):
    source = source_of(spans)
    totals = source.split.counts(np.arange(50)).sum(1).cumsum()
    for number, expected in (
        (int(totals[19]), 20),
        (int(totals[19]) + 1, 20),
        (int(totals[20]) - 1, 20),
        (int(totals[20]), 21),
        (int(totals[0]), 1),
    ):
        (left,) = truncated(data(spans, first_tokens=number), [source])
        assert (left.size, left.size) == (expected, expected)
    assert truncated(data(spans), [source]) == [source]
    with pytest.raises(
        InputError,
        match="first_tokens 1 is less than the number of tokens of the first example of cache",
    ):
        truncated(data(spans, first_tokens=1), [source])


def test_tokens_are_counted_in_parts(spans, monkeypatch):
    from t5x_lite.data.cache import files

    source = source_of(spans)
    total = int(source.split.counts(np.arange(33)).sum())
    monkeypatch.setattr(files, "_COUNTED_AT_A_TIME", 10)
    assert source.split.first_with(total) == 33
    assert source.split.first_with(1 << 40) == 50


def test_fewer_than_that_is_told(spans, caplog):
    source = source_of(spans)
    total = source.cache.index.splits["train"].tokens
    truncated(data(spans, first_tokens=total + 33), [source])
    assert caplog.messages == []
    truncated(data(spans, first_tokens=total + 34), [source])
    assert caplog.messages == [
        f"data.first_tokens is {total + 34}, but the cache has only {total} tokens"
    ]


def test_each_epoch_has_each_of_the_first_once_and_cuts_it_anew(spans, byte_vocabulary):
    number = int(source_of(spans).split.counts(np.arange(8)).sum())
    first = data(spans, first_tokens=number, pack=False)
    batches = data_batches.train_batches(first, byte_vocabulary, seed=0)
    epochs = [[next(batches) for _ in range(2)] for _ in range(4)]
    assert batches.epoch == 4.0
    orders, corrupted = [], []
    for epoch in epochs:
        rows = [row for batch in epoch for row in batch["encoder_input_tokens"].tolist()]
        found = [row[0] for row in rows]
        assert sorted(found) == [10, 11, 12, 13, 14, 15, 16, 17]  # masks begin with text
        orders.append(found)
        corrupted.append({row[0]: row for row in rows})
    assert len({tuple(order) for order in orders}) == 4
    assert len({tuple(epoch[10]) for epoch in corrupted}) > 1
    ordered = dataclasses.replace(first, shuffle=False)
    batches = data_batches.train_batches(ordered, byte_vocabulary, seed=0)
    assert firsts(batches, 4) == [*range(10, 18), *range(10, 18)]


def test_a_position_goes_on_in_any_number_of_processes(spans, byte_vocabulary):
    first = data(spans, first_tokens=400)

    def make(index=0, count=1):
        return data_batches.train_batches(
            first, byte_vocabulary, seed=1, process_index=index, process_count=count
        )

    whole, halves = make(), [make(i, 2) for i in range(2)]
    for _ in range(5):
        batch, parts = next(whole), [next(half) for half in halves]
        for name, value in batch.items():
            np.testing.assert_array_equal(value, np.concatenate([part[name] for part in parts]))
    again = make()
    again.restore(halves[1].state())
    expected, got = next(whole), next(again)
    for name, value in expected.items():
        np.testing.assert_array_equal(value, got[name])
    other = data_batches.train_batches(
        dataclasses.replace(first, first_tokens=401), byte_vocabulary, seed=1
    )
    with pytest.raises(InputError, match=r"first_tokens 400 \(now 401\)"):
        other.restore(whole.state())
    every = data_batches.train_batches(data(spans), byte_vocabulary, seed=1)
    assert "first_tokens" not in every._identity
    with pytest.raises(InputError, match=r"first_tokens 400 \(now None\)"):
        every.restore(whole.state())


def test_documents_are_examples_where_each_is_one(
    tmp_path, spans, small_cache, recipes, pairs, caplog
):
    supervised = source_of(
        small_cache(tmp_path / "pairs", {"train": pairs(20)}, recipes.supervised)
    )
    (left,) = truncated(data(tmp_path / "pairs", first_documents=7), [supervised])
    assert left.size == 7
    truncated(data(tmp_path / "pairs", first_documents=21), [supervised])
    assert caplog.messages == ["data.first_documents is 21, but the cache has only 20 documents"]
    with pytest.raises(InputError, match="does not record the first 7"):
        truncated(data(spans, first_documents=7), [source_of(spans)])


def test_a_cache_of_so_many_documents_is_whole(spans):
    source = source_of(spans)
    index = dataclasses.replace(source.cache.index, documents=7)
    assert Index.from_json(index.to_json()) == index
    assert b"documents" not in source.cache.index.to_json()
    source.cache.index = index
    (left,) = truncated(data(spans, first_documents=7), [source])
    assert left.size == 50
    with pytest.raises(InputError, match="does not record the first"):
        truncated(data(spans, first_documents=6), [source])


def test_several_caches_are_refused(spans):
    two = dataclasses.replace(data(spans, first_tokens=90), cache=("a=1", "b=1"))
    with pytest.raises(
        InputError, match=r"first_tokens limits one task to its first examples, but"
    ):
        truncated(two, [source_of(spans)] * 2)
