import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Schedule
from t5x_lite.data.sources import Held, Source
from t5x_lite.data.stream import WINDOW, Position, Stream
from t5x_lite.layouts import LM


@pytest.fixture
def stream(tmp_path, small_cache, recipes, pairs):
    """One over two caches, of 30 and 50 examples, at rates 3 to 1."""
    sources = []
    for name, count, rate in (("a", 30, Fraction(3, 4)), ("b", 50, Fraction(1, 4))):
        directory = tmp_path / name
        if not directory.exists():
            small_cache(directory, {"train": pairs(count, seed=count)}, recipes.supervised)
        cache = Cache(directory)
        sources.append(Source.of_cache(cache, "train", rate=rate))

    def make(*, shuffle=True, repeat=True, pack=True, only=None):
        data = Data(
            cache="a", vocabulary="", inputs_length=24, targets_length=12, pack=pack
        )  # fmt: skip
        chosen = sources
        if only is not None:
            chosen = [dataclasses.replace(sources[only], rate=Fraction(1))]
        return Stream(data, chosen, seed=5, shuffle=shuffle, repeat=repeat)

    return make


def test_a_window_has_the_examples_of_the_schedule(stream):
    window = stream().window(3)
    assert window.number == 3
    assert len(window.sources) == WINDOW
    assert (window.sources == 0).mean() == 0.75
    numbers = window.epochs * 30 + window.indices
    first = numbers[window.sources == 0]
    assert sorted(set(window.epochs[window.sources == 0])) == sorted({*(first // 30)})
    assert window.num_rows == window.rows.max() + 1 < WINDOW


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=4))
def test_one_pass_ends_before_a_source_begins_anew(drawn):
    total = sum(weight for weight, _ in drawn)
    recipe = Recipe(stored=("targets",), outputs={"targets": True}, eos="after_trim", eos_id=1)
    sources = [
        Source(
            name=f"task {k}",
            recipe=recipe,
            split=Held(("targets",), [[np.array([7])]] * size),
            rate=Fraction(weight, total),
            size=size,
        )
        for k, (weight, size) in enumerate(drawn)
    ]
    data = Data(task="a:b", vocabulary="", layout=LM(), pack=False)
    window = Stream(data, sources, seed=0, shuffle=False, repeat=False).window(0)
    schedule = Schedule([source.rate for source in sources])
    sizes, end = [size for _, size in drawn], len(window.sources)
    assert all(np.array(schedule.counts(end)) <= sizes)
    assert any(np.array(schedule.counts(end + 1)) > sizes)


def test_in_every_epoch_each_example_comes_once(stream):
    window = stream(only=0).window(0)
    for epoch in range(3):
        assert sorted(window.indices[window.epochs == epoch]) == list(range(30))
    orders = [window.indices[window.epochs == epoch].tolist() for epoch in range(2)]
    assert orders[0] != orders[1]
    plain = stream(only=0, shuffle=False).window(0)
    assert plain.indices[:60].tolist() == [*range(30), *range(30)]


def test_rows_follow_one_another_over_windows(stream):
    made = stream()
    size = made.window(0).num_rows
    spans = made.spans(Position(0, size - 2), 5)
    assert [(span.window.number, span.start, span.end) for span in spans] == [
        (0, size - 2, size),
        (1, 0, 3),
    ]
    assert spans[0].after == Position(1, 0)
    assert spans[1].after == Position(1, 3)


def test_any_part_of_a_batch_can_be_made_by_itself(stream):
    made = stream()
    spans = made.spans(Position(0, made.window(0).num_rows - 3), 8)
    whole = made.batch(spans, first=0, num_rows=8)
    for first, count in ((0, 2), (2, 3), (5, 3)):
        part = made.batch(spans, first=first, num_rows=count)
        for name, value in part.items():
            np.testing.assert_array_equal(value, whole[name][first : first + count])
    assert (whole["encoder_segment_ids"].max(1) >= 1).all()


def test_without_packing_each_example_has_a_row(stream):
    made = stream(pack=False)
    assert made.window(0).rows.tolist() == list(range(WINDOW))


def test_one_pass_ends_before_a_cache_begins_anew(stream):
    made = stream(shuffle=False, repeat=False)
    window = made.window(0)
    assert (window.epochs == 0).all()
    assert (window.sources == 0).sum() == 30
    spans = made.spans(Position(0, window.num_rows - 1), 4)
    batch = made.batch(spans, first=0, num_rows=4)
    assert (batch["decoder_loss_weights"].sum(1) > 0).tolist() == [True, False, False, False]
    assert made.spans(spans[-1].after, 4) == []


def test_epochs_are_counted_for_each_cache(stream):
    made = stream()
    assert made.epochs(Position()) == [0, 0]
    assert made.epochs(Position(2)) == [2 * WINDOW * 0.75 / 30, 2 * WINDOW * 0.25 / 50]
    middle = made.epochs(Position(2, made.window(2).num_rows // 2))
    assert made.epochs(Position(2))[0] < middle[0] < made.epochs(Position(3))[0]


def test_what_was_read_again_before_a_position_is_known(stream):
    """To the row, where the count of epochs is an estimate within a window."""
    made = stream(only=0, pack=False, shuffle=False)
    repeated = [made.repeated(place) for place in (Position(), Position(0, 30), Position(0, 31))]
    assert repeated == [set(), set(), {0}]
    assert made.epochs(Position(0, 30)) == [1.0]
    assert stream().repeated(Position(1)) == {0, 1}


def test_two_caches_have_random_numbers_of_their_own(stream):
    made = stream()
    window = made.window(0)
    first, second = (window.indices[(window.sources == k) & (window.epochs == 0)] for k in (0, 1))
    assert first[:12].tolist() != [i for i in second if i < 30][:12]
