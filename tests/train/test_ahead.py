import numpy as np
import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.train.loop import Ahead


class Batches:
    """Batches of one number each; the position and the epoch are what was handed out."""

    def __init__(self):
        self.handed_out = 0

    @property
    def epoch(self):
        return self.handed_out / 10

    def __next__(self):
        self.handed_out += 1
        return {"encoder_input_tokens": np.full((8, 2), self.handed_out, np.int32)}

    def state(self):
        return b"%d" % self.handed_out


@pytest.fixture
def ahead():
    return Ahead(Batches(), make_mesh(MeshConfig()))


def number(taken):
    rows, batch = taken
    np.testing.assert_array_equal(batch["encoder_input_tokens"], rows["encoder_input_tokens"])
    return int(rows["encoder_input_tokens"][0, 0])


def test_batches_come_in_order_drawn_ahead_or_not(ahead):
    assert number(ahead.take()) == 1
    ahead.draw()
    ahead.draw()  # one, and no more
    assert number(ahead.take()) == 2
    assert number(ahead.take()) == 3


def test_the_position_is_that_of_the_batches_taken(ahead):
    assert number(ahead.take()) == 1
    assert (ahead.state(), ahead.epoch) == (b"1", 0.1)
    ahead.draw()
    assert ahead.epoch == 0.1
    with pytest.raises(RuntimeError, match="data position of the last batch is not available"):
        ahead.state()
    ahead.take()
    assert (ahead.state(), ahead.epoch) == (b"2", 0.2)


def test_batches_need_not_tell_an_epoch():
    class Plain:
        def __next__(self):
            return {}

        def state(self):
            return b""

    ahead = Ahead(Plain(), make_mesh(MeshConfig()))
    ahead.draw()
    assert ahead.epoch is None
