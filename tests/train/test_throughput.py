import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.train import throughput as window_module
from t5x_lite.train.throughput import NonFiniteLoss, Window
from t5x_lite.train.track import Goodput


class Clock:
    """Seconds that a test moves on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow:
    """Batches that take two seconds each."""

    def __init__(self, clock):
        self._clock = clock

    def __next__(self):
        self._clock.now += 2.0
        return {"decoder_target_tokens": 1}


def metrics(loss):
    return {"loss": jnp.float32(loss), "gradient_norm": jnp.float32(1)}


def test_rates_wait_and_mfu():
    clock = Clock()
    window = Window(peak=12e12, clock=clock)
    batches = Slow(clock)
    for step, loss in enumerate((4.0, 3.0, 2.0), 1):
        window.next(batches)
        clock.now += 6.0
        window.add(step, metrics(loss), tokens=16, flops=3 * 10**12)
    # The first step, which compiles, and its data do not count: two steps of 8 seconds.
    assert window.flush() == {
        "loss": 2.0,
        "gradient_norm": 1.0,
        "tokens_per_second": 2.0,
        "steps_per_second": 0.125,
        "data_wait": 0.25,
        "mfu": pytest.approx(3e12 * 0.125 / 12e12),
    }


@pytest.mark.parametrize(("flops", "peak"), [(None, None), (10**12, None), (None, 1e12)])
def test_no_mfu_without_flops_and_peak(flops, peak):
    clock = Clock()
    window = Window(peak=peak, clock=clock)
    for step in (1, 2):
        clock.now += 1.0
        window.add(step, metrics(1.0), tokens=16, flops=flops)
    assert set(window.flush()) == {
        "loss", "gradient_norm", "tokens_per_second", "steps_per_second", "data_wait",
    }  # fmt: skip


def test_the_first_step_alone_has_no_rates():
    window = Window(peak=1.0, clock=Clock())
    window.add(1, metrics(1.0), tokens=16, flops=1)
    assert set(window.flush()) == {"loss", "gradient_norm"}


class Rows:
    """Batches of these numbers of rows; each takes two seconds."""

    def __init__(self, clock, *rows):
        self._clock, self._rows = clock, iter(rows)

    def __next__(self):
        self._clock.now += 2.0
        return {"encoder_input_tokens": np.zeros((next(self._rows), 3), np.int32)}


def test_a_step_with_a_batch_of_another_shape_compiles_and_is_left_out():
    clock = Clock()
    window = Window(peak=10.0, clock=clock)
    batches = Rows(clock, 4, 4, 8, 4, 8)
    for step, seconds in enumerate((50.0, 1.0, 70.0, 1.0, 3.0), 1):
        window.next(batches)
        clock.now += seconds
        window.add(step, metrics(1.0), tokens=16, flops=(0, 4, 4, 8, 4, 8)[step])
    # Steps 4 and 5 alone: 3 and 5 seconds, 4 and 8 FLOPs.
    found = window.flush()
    assert (found["steps_per_second"], found["tokens_per_second"]) == (0.25, 4.0)
    assert found["mfu"] == pytest.approx(12 / 8 / 10)


def test_an_evaluation_is_left_out():
    clock = Clock()
    window = Window(clock=clock)
    for step in (1, 2, 3):
        if step == 3:
            clock.now += 100.0
            window.restart()
        clock.now += 1.0
        window.add(step, metrics(1.0), tokens=16)
    assert window.flush()["steps_per_second"] == 1.0


def test_the_first_step_that_is_not_finite_is_named():
    window = Window()
    for step, loss in enumerate((1.0, float("inf"), float("nan")), 7):
        window.add(step, metrics(loss), tokens=16)
    with pytest.raises(NonFiniteLoss, match="the loss is inf at step 8; the last checkpoint"):
        window.check()


def test_waiting_for_a_batch_is_time_lost_where_no_step_is_in_progress(monkeypatch):
    clock = Clock()
    spent = Goodput(clock=clock)
    window = Window(spent=spent, clock=clock)
    assert not window._is_busy()
    batches = Slow(clock)
    window.next(batches)  # the first one is part of the start
    spent.to("steps")
    for step, busy in enumerate((False, True, False), 1):
        window.add(step, metrics(1.0), tokens=16)
        with monkeypatch.context() as patch:
            patch.setattr(window, "_is_busy", lambda busy=busy: busy)
            window.next(batches)
    shares = spent.shares()
    assert (shares["lost_to_start"], shares["lost_to_data"], shares["goodput"]) == (0.25, 0.5, 0.25)


def test_waiting_for_devices_is_counted(monkeypatch):
    clock = Clock()

    def wait(results):
        clock.now += 1.0

    monkeypatch.setattr(window_module.jax, "block_until_ready", wait)
    window = Window(clock=clock)
    for step in range(1, 6):
        window.add(step, metrics(1.0), tokens=16)
    # Steps 4 and 5 wait for 2 and 3, as step 3 does for 1; the first one compiles: not counted.
    assert window.waited == 3.0
