import numpy as np
import pytest

from t5x_lite.data.sources import Held, Running, Shuffled

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


def test_a_shuffle_buffer_gives_each_example_once_and_goes_on():
    def numbers(feed, count):
        found = []
        while len(found) < count:
            examples, epochs = next(feed)
            found += zip((int(one[0][0]) for one in examples), epochs.tolist(), strict=True)
        return found[:count]

    whole = numbers(Shuffled(Counting(), size=10, seed=3), 90)
    assert len({*whole}) == 90
    assert {*whole} <= {(number, number // 5) for number in range(100)}
    assert whole != sorted(whole)
    assert numbers(Shuffled(Counting(), size=10, seed=4), 90) != whole
    first = Shuffled(Counting(), size=10, seed=3)
    before = [next(first) for _ in range(7)]
    count = sum(len(examples) for examples, _ in before)
    again = Shuffled(Counting(), size=10, seed=3)
    next(again)
    again.restore(first.state())
    assert numbers(again, 60) == whole[count : count + 60]
