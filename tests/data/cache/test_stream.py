import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from t5x_lite.data.cache.files import Cache
from t5x_lite.data.config import Data
from t5x_lite.data.stream import WINDOW, Held, Position, Running, Source, Stream


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


EXAMPLES = [[[5, 6], [7]], [[8], []], [[], [9, 10, 11]]]


def arrays(examples):
    return [[np.array(part, np.int64) for part in parts] for parts in examples]


def test_examples_in_memory_can_be_read_in_any_order():
    held = Held(("inputs", "targets"), arrays(EXAMPLES))
    assert held.size == 3
    assert held.counts(np.array([2, 0])).tolist() == [[0, 3], [2, 1]]
    found = held.read(np.array([2, 1, 0]))
    assert [[part.tolist() for part in one.values()] for one in found] == EXAMPLES[::-1]
    assert found[0]["targets"].dtype == np.int32
    assert held.digest == Held(("inputs", "targets"), arrays(EXAMPLES)).digest
    others = [[[5], [6, 7]], *EXAMPLES[1:]]  # the same tokens, divided otherwise
    assert held.digest != Held(("inputs", "targets"), arrays(others)).digest


class Counting:
    """A feed of the numbers from 0, three at a time; a pass has five of them."""

    def __init__(self, *, end=None, told=True):
        self.place, self._end, self._told = 0, end, told

    def __next__(self):
        if self.place == self._end:
            raise StopIteration
        numbers = list(range(self.place, self.place + 3))
        self.place += 3
        epochs = np.array([number // 5 for number in numbers])
        return [[np.array([number])] for number in numbers], epochs if self._told else None

    def state(self):
        return str(self.place).encode()

    def restore(self, state):
        self.place = int(state)

    def close(self):
        self.place = self._end


def read(running, *numbers):
    return [int(example["x"][0]) for example in running.read(np.array(numbers))]


def test_what_is_read_from_the_front_is_kept_until_it_is_forgotten():
    running = Running(Counting(), ("x",))
    assert running.epochs(np.array([0, 4, 5, 11])).tolist() == [0, 0, 1, 2]
    assert read(running, 11, 0, 7) == [11, 0, 7]
    assert running.counts(np.array([3, 4])).tolist() == [[1], [1]]
    assert [running.epochs_before(count) for count in (0, 5, 6, 12)] == [0, 0, 1, 2]
    running.forget(9, but={4})
    assert read(running, 4, 9) == [4, 9]
    with pytest.raises(KeyError):
        running.read(np.array([8]))
    assert running.epochs_before(9) == 1


def test_a_place_is_saved_with_what_was_read_ahead():
    running = Running(Counting(), ("x",))
    running.epochs(np.array([20]))
    running.forget(7, but={2})
    state = running.state()
    again = Running(Counting(), ("x",))
    again.restore(state)
    assert read(again, 2, 7, 20) == [2, 7, 20]
    assert [again.epochs_before(count) for count in (7, 21)] == [1, 4]
    assert again.epochs(np.array([25])).tolist() == [5]
    assert read(again, 25) == [25]


def test_the_end_and_passes_that_are_not_told():
    running = Running(Counting(end=6, told=False), ("x",))
    assert running.available(4) == 4
    assert running.available(100) == 6
    assert np.isnan(running.epochs_before(6))
    assert running.epochs(np.array([5])).tolist() == [0]
