"""Batches of one length and one cache, the same on 1, 2 and 4 hosts and after any step."""

import collections
import dataclasses
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.batches import train_batches
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.making import longest_of
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import Bucketed, Data
from t5x_lite.data.config import Scheduled as Shapes
from t5x_lite.data.scheduled import Scheduled
from t5x_lite.data.sources import Source
from t5x_lite.data.stream import Position, Stream
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests.tiny_checkpoint import flip

RECIPE = Recipe(stored=("inputs",), outputs={"inputs": True}, eos="after_trim", eos_id=1)


@pytest.fixture
def scheduled(tmp_path, small_cache):
    """A function: lengths of the examples of each cache, EOS included -> Scheduled."""

    def make(*caches, shapes, rates=(1,), shuffle=True, natural=True, **options):
        sources, first = [], 3
        for number, (lengths, rate) in enumerate(zip(caches, rates, strict=True)):
            directory = tmp_path / str(number)
            if not directory.exists():
                examples = [[np.full(size - 1, first + i)] for i, size in enumerate(lengths)]
                small_cache(directory, {"train": examples}, RECIPE)
            first += len(lengths)
            cache = Cache(directory)
            sources.append(Source.of_cache(cache, "train", rate=Fraction(rate)))
        longest = max(shapes)
        data = Data(
            cache="c",
            vocabulary="",
            layout=layouts.Encoder(),
            batches=Shapes(shapes, **options),
            batch_size=shapes[longest],
            inputs_length=longest,
            pack=False,
            shuffle=shuffle,
        )
        stream = Stream(data, sources, seed=7, shuffle=shuffle, repeat=True)
        return Scheduled(stream, data, seed=7, natural=natural)

    return make


def take(batches, count, position=None, **part):
    """Batches and the positions behind them."""
    position, found = position or Position(), []
    for _ in range(count):
        found.append(batches.make(position, **{"part": 0, "parts": 1, **part}))
        position = found[-1].position
    return found


def firsts(found):
    """The examples of batches by their first tokens, which are 3, 4 and so on."""
    return [made.batch["encoder_input_tokens"][:, 0].tolist() for made in found]


def test_without_a_shuffle_groups_come_one_after_the_other(scheduled):
    batches = scheduled(
        [3, 7, 4, 2, 8, 2], [2, 9], shapes={4: 2, 8: 1}, rates=(0.5, 0.5), shuffle=False
    )
    found = take(batches, 6)
    assert firsts(found) == [[3, 5], [6, 8], [4], [7], [10], [3, 5]]
    assert [made.position for made in found[3:]] == [Position(0, 4), Position(1, 0), Position(1, 1)]
    assert [sorted(made.repeated) for made in found] == [[], [], [], [], [], [0]]
    assert [batches.epochs(made.position) for made in found[:5:4]] == [[0.2, 0.2], [1.0, 1.0]]
    assert batches.repeated(Position(1, 0)) == set()
    assert batches.repeated(Position(2, 0)) == {0, 1}


def test_every_epoch_has_each_whole_batch_once(scheduled):
    sizes = [2, 3, 4, 5, 6, 7, 8, 3, 2] * 5  # 25 of at most 4 tokens, 20 of at most 8
    batches = scheduled(sizes, shapes={4: 4, 8: 3})
    orders = []
    for epoch in range(3):
        found = take(batches, 6 + 6, Position(epoch, 0))
        assert found[-1].position == Position(epoch + 1, 0)
        shown = firsts(found)
        assert sorted(map(len, shown)) == [3] * 6 + [4] * 6
        tokens = [token for batch in shown for token in batch]
        assert len({*tokens}) == len(tokens) == 42
        for made, batch in zip(found, shown, strict=True):
            lengths = (made.batch["encoder_segment_ids"] > 0).sum(1)
            assert made.batch["encoder_input_tokens"].shape[1] == (4 if len(batch) == 4 else 8)
            assert (lengths > 4).all() == (len(batch) == 3)
        orders.append(shown)
    assert orders[0] != orders[1] != orders[2]
    seen = {token for epoch in orders for batch in epoch for token in batch}
    assert seen == {*range(3, 48)}  # what is left over differs from epoch to epoch


def test_hosts_and_runs_that_go_on_have_the_same_batches(scheduled):
    sizes = [2, 3, 4, 5, 6, 7, 8, 3, 2] * 3
    whole = take(scheduled(sizes, shapes={4: 8, 8: 4}), 12)
    for parts in (2, 4):
        hosts = [
            take(scheduled(sizes, shapes={4: 8, 8: 4}), 12, part=k, parts=parts)
            for k in range(parts)
        ]
        for step, expected in enumerate(whole):
            assert {host[step].position for host in hosts} == {expected.position}
            for name, value in expected.batch.items():
                rows = [host[step].batch[name] for host in hosts]
                assert len({each.shape for each in rows}) == 1
                np.testing.assert_array_equal(np.concatenate(rows), value)
    for step in range(11):
        again = take(scheduled(sizes, shapes={4: 8, 8: 4}), 11 - step, whole[step].position)
        assert firsts(again) == firsts(whole[step + 1 :])


def test_a_batch_is_of_one_cache(scheduled):
    batches = scheduled([3] * 10, [4] * 6, shapes={8: 2}, rates=(0.5, 0.5))
    for shown in firsts(take(batches, 16)):
        assert len({token < 13 for token in shown}) == 1


def test_rates_say_how_often_a_cache_comes(scheduled):
    batches = scheduled([3] * 12, [4] * 4, shapes={8: 2}, rates=(0.5, 0.5), natural=False)
    counts = collections.Counter(
        shown[0] < 15
        for shown in firsts(take(batches, 24))  # three epochs of 4 + 4
    )
    assert counts == {True: 12, False: 12}
    small = [shown for shown in firsts(take(batches, 24)) if shown[0] >= 15]
    for start in range(0, 12, 4):  # an epoch has two passes over the small one
        two = [token for batch in small[start : start + 4] for token in batch]
        assert sorted(two) == [15, 15, 16, 16, 17, 17, 18, 18]
    assert batches.epochs(Position(1, 0)) == pytest.approx([2 / 3, 2.0])


def test_small_groups_are_merged_or_dropped_and_told(scheduled, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    batches = scheduled([2, 3, 6, 7, 8, 12], shapes={4: 4, 8: 2, 12: 2}, small=3, drop=2)
    assert [(group.bucket, len(group.members)) for group in batches.groups] == [(1, 5)]
    assert "adding the 2 examples of at most 4 tokens to batches" in caplog.text
    assert "skipping the 1 examples of at most 12 tokens" in caplog.text
    lines = batches.report()
    assert lines[0].endswith("5 examples of at most 8 tokens, 2 batches of 2 rows an epoch")
    # 26 tokens in 5 rows of 8, or of 12.
    assert lines[1].startswith("padding of the longest texts: 35.0% of the tokens, and 56.7% in")


def test_what_fills_no_batch_is_refused(scheduled):
    with pytest.raises(InputError, match=r"no row length in data\.batches has enough examples"):
        scheduled([2, 3, 6], shapes={4: 4, 8: 4})


def test_lengths_of_an_epoch_make_no_schedule(tmp_path, small_cache):
    options = {"noise_density": 0.15, "mean_noise_span_length": 3.0, "sentinel_start": 399}
    noisy = Recipe(
        stored=("tokens",),
        outputs={"inputs": True, "targets": True},
        eos="after_trim",
        eos_id=1,
        corruption="span_corruption",
        options=options,
    )
    small_cache(tmp_path / "c", {"train": [[np.arange(3, 9)]]}, noisy)
    cache = Cache(tmp_path / "c")
    source = Source.of_cache(cache, "train", rate=Fraction(1))
    data = Data(cache="c", vocabulary="", pack=False)
    stream = Stream(data, [source], seed=0, shuffle=True, repeat=True)
    with pytest.raises(InputError, match="is corrupted differently in each epoch"):
        stream.longest_of_all(0)


NAMES = ("query", "positives", "negatives")


@pytest.fixture
def pairs(tmp_path, small_cache, monkeypatch):
    """A cache of pairs and its config: passages of 5, 12, 8 and 4 tokens, a query of 9."""

    def texts(*sizes):
        rows = [np.array([3, *[9] * (n - 2), 4], np.int32) for n in sizes]
        return np.concatenate([np.zeros(0, np.int32), *rows])

    rows = [(3, 5, []), (3, 4, [12]), (3, 8, [5]), (9, 4, []), (3, 4, [6, 8])]
    examples = [[texts(q), texts(p), texts(*n)] for q, p, n in rows]
    recipe = Recipe(
        stored=NAMES,
        outputs=dict.fromkeys(NAMES, False),
        eos="none",
        eos_id=1,
        lengths={"query": 9, "positives": 12, "negatives": 12},
        fixed={"positives": "each", "negatives_top": 200},
    )
    layout = layouts.Groups(negatives=1)
    small_cache(tmp_path / "cache", {"train": examples}, recipe, longest=longest_of(recipe, layout))
    # Bytes have no [CLS]; the rows are made above.
    monkeypatch.setattr("t5x_lite.data.batches.tokens_for", lambda *_: None)
    data = Data(
        cache=str(tmp_path / "cache"),
        vocabulary=str(tmp_path / "cache" / "vocabulary"),
        layout=layout,
        batches=Shapes({8: 1, 12: 1}),
        batch_size=1,
        inputs_length=9,
        targets_length=12,
        pack=False,
    )
    return data, load_vocabulary(data.vocabulary)


def test_groups_go_by_their_longest_text_which_the_cache_holds(pairs):
    data, vocabulary = pairs
    longest = Cache(data.cache).split("train").longest()
    assert longest is not None
    assert longest.tolist() == [5, 12, 8, 4, 8]
    Cache(data.cache).verify()
    batches = train_batches(data, vocabulary, seed=0)
    found = [next(batches) for _ in range(5)]
    batches.close()
    shapes = collections.Counter(batch["passage_tokens"].shape for batch in found)
    assert shapes == {(1, 2, 8): 3, (1, 2, 12): 2}  # the query of 9 tokens goes with 12


def test_a_cache_without_lengths_is_read_through(pairs, monkeypatch):
    data, vocabulary = pairs
    batches = train_batches(data, vocabulary, seed=0)
    state, expected = batches.state(), [next(batches) for _ in range(12)]
    middle = batches.state()
    batches.close()
    monkeypatch.setattr("t5x_lite.data.cache.files.Split.longest", lambda self: None)
    again = train_batches(data, vocabulary, seed=0)
    again.restore(state)
    for batch in expected:
        for name, value in next(again).items():
            np.testing.assert_array_equal(value, batch[name])
    assert again.state() == middle
    again.close()
    other = dataclasses.replace(data, batches=Shapes({8: 1, 12: 1}, small=1))
    merged = train_batches(other, vocabulary, seed=0)
    with pytest.raises(InputError, match="schedule"):
        merged.restore(state)
    merged.close()


def test_a_damaged_file_of_lengths(pairs):
    data, _ = pairs
    path = Path(data.cache) / "train.longest"
    flip(path)
    with pytest.raises(InputError, match=r"train\.longest does not fit its checksum"):
        Cache(data.cache).split("train").longest()


def test_an_epoch_has_the_whole_batches_of_each_group(tmp_path, small_cache, monkeypatch):
    from t5x_lite.data import batches as data_batches

    lengths = [4] * 10 + [8] * 7
    examples = [[np.full(size - 1, 3 + i)] for i, size in enumerate(lengths)]
    directory = small_cache(tmp_path / "cache", {"train": examples}, RECIPE)
    vocabulary = load_vocabulary("bytes")
    data = Data(
        cache=str(directory), vocabulary="bytes", layout=layouts.Encoder(), pack=False,
        batches=Shapes({4: 4, 8: 2}), batch_size=2, inputs_length=8,
    )  # fmt: skip
    # An encoder's tokens are those of a vocabulary with [CLS]; the rows are laid out by none here.
    monkeypatch.setattr("t5x_lite.data.batches.tokens_for", lambda *_: None)
    epoch = data_batches.epoch_of(data, vocabulary, seed=0)
    assert epoch == data_batches.Epoch(17, 2.0 + 3.0)  # 10 // 4 and 7 // 2
    bucketed = dataclasses.replace(data, batches=Bucketed({4: 4, 8: 2}))
    assert data_batches.epoch_of(bucketed, vocabulary, seed=0).batches == pytest.approx(6, abs=0.02)
