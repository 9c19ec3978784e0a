import numpy as np
import pytest

from t5x_lite.core.errors import InputError


@pytest.fixture(scope="module")
def numbers():
    """Makes batches of two numbers, shuffled: {"x": [3, 0]}, ..."""
    from t5x_lite.data.elements import tf
    from t5x_lite.data.live.pipeline import Batches

    def make(*, seed=0, task="numbers"):
        dataset = tf.data.Dataset.range(20).shuffle(5, seed=seed).repeat()
        dataset = dataset.map(lambda number: {"x": number}).batch(2).prefetch(1)
        return Batches(dataset, identity={"seed": seed, "task": task})

    return make


def take(batches, count):
    return [next(batches)["x"].tolist() for _ in range(count)]


def test_batches_are_arrays(numbers):
    batch = next(numbers())
    assert isinstance(batch["x"], np.ndarray)
    assert batch["x"].shape == (2,)


@pytest.mark.parametrize("handed_out", [0, 1, 9, 10, 23])
def test_a_restored_position_goes_on_with_the_next_batch(numbers, handed_out):
    batches = numbers()
    take(batches, handed_out)
    state = batches.state()
    expected = take(batches, 12)
    batches.restore(state)
    assert take(batches, 12) == expected
    other = numbers()
    take(other, 2)
    other.restore(state)
    assert take(other, 12) == expected


def test_a_damaged_position_is_refused(numbers):
    batches = numbers()
    state = batches.state()
    flipped = state[:200] + bytes([state[200] ^ 1]) + state[201:]
    for damaged in (b"", b"something else", state[:-1], state[:30], flipped):
        with pytest.raises(InputError, match="damaged: restore an older checkpoint"):
            batches.restore(damaged)
    assert take(batches, 1) == take(numbers(), 1)


def test_the_position_of_other_data_is_refused(numbers):
    state = numbers().state()
    with pytest.raises(InputError) as caught:
        numbers(seed=1, task="letters").restore(state)
    assert str(caught.value) == (
        "the saved data position is of other data: seed 0 (now 1), task 'numbers' (now 'letters')"
    )


def test_an_input_error_of_the_data_is_raised_as_it_is():
    from t5x_lite.data.elements import tf
    from t5x_lite.data.live.pipeline import Batches
    from t5x_lite.data.tasks import stages

    def check(example):
        if example["x"] == 7:
            raise InputError("numbers.txt:8: seven")
        return example

    numbers = tf.data.Dataset.range(20).map(lambda number: {"x": number})
    checked = stages.map_numpy(numbers, check, {"x": tf.TensorSpec([], tf.int64)})
    batches = Batches(checked.batch(2).prefetch(1), identity={})
    assert take(batches, 3) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(InputError) as caught:
        next(batches)
    assert str(caught.value) == "numbers.txt:8: seven"
