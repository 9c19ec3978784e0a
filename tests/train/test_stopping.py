"""Signals are remembered, and processes agree on the step after which they stop."""

import os
import signal

import jax
import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.train.stopping import StopSignals


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig())


def test_a_signal_is_remembered_and_the_handlers_are_put_back(mesh):
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        assert stop.requested(mesh) is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        assert stop.requested(mesh) == stop.requested(mesh, wait=True) == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_second_interrupt_does_not_wait(mesh):
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested(mesh) == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_several_processes_look_at_the_answer_two_steps_later(mesh, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    stop = StopSignals(clock=lambda: 0.0)  # calls that are a second apart would be waited for
    assert [stop.requested(mesh) for _ in range(3)] == [None, None, None]
    stop.received = 15
    assert [stop.requested(mesh) for _ in range(4)] == [None, None, 15, 15]
    other = StopSignals()
    assert other.requested(mesh, wait=True) is None
    other.received = 2
    assert other.requested(mesh, wait=True) == 2


class Steps:
    """Calls of `after_step`, so many seconds apart; `asked` has the numbers of those that asked."""

    def __init__(self, mesh, monkeypatch, *, seconds):
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        self.stop = StopSignals(clock=lambda: self.now)
        self.asked, self.calls, self.now = [], 0, 0.0
        self._mesh, self._seconds = mesh, seconds
        ask = self.stop._ask

        def recorded(*args, **kwargs):
            self.asked.append(self.calls)
            ask(*args, **kwargs)

        monkeypatch.setattr(self.stop, "_ask", recorded)

    def take(self, number, *, waited=0.0):
        """What the calls gave; `waited` is the share of the time that devices were waited for."""
        found = []
        for _ in range(number):
            self.calls += 1
            self.now += self._seconds
            found.append(self.stop.after_step(self._mesh, None, waited=waited * self.now))
        return found


def test_several_processes_ask_every_eight_steps(mesh, monkeypatch):
    steps = Steps(mesh, monkeypatch, seconds=0.1)
    steps.take(10)
    first = steps.asked[-1]  # at first each step, until their length is known
    assert steps.asked == list(range(1, first + 1))
    assert first <= 6
    steps.take(40)
    assert steps.asked[first:] == [first + 8 * k for k in range(1, (50 - first) // 8 + 1)]


@pytest.mark.parametrize("seconds", [0.01, 0.1, 0.5, 0.7, 0.99, 1.5, 2.5, 4.0, 6.0])
def test_a_signal_is_known_within_the_notice(seconds, mesh, monkeypatch):
    for wait in range(9):  # steps after those by which the length is known
        with monkeypatch.context() as patch:
            steps = Steps(mesh, patch, seconds=seconds)
            assert set(steps.take(20 + wait)) == {None}
            steps.stop.received = 15
            found = steps.take(10)
            late = found.index(15) + 1
            assert late <= 10
            assert late * seconds <= max(8.0, seconds)  # of 30 seconds, with the step in progress


def test_a_step_between_an_evaluation_and_another_is_asked_about_soon(mesh, monkeypatch):
    steps = Steps(mesh, monkeypatch, seconds=0.1)
    steps.take(20)
    for _ in range(3):  # batches of ten seconds
        steps.now += 10.0
        assert steps.stop.requested(mesh) is None
    steps.stop.received = 15
    steps.now += 10.0
    assert steps.stop.requested(mesh) == 15  # slow ones are waited for


def test_a_notice_asks_all_processes_to_save_once(mesh, monkeypatch):
    steps = Steps(mesh, monkeypatch, seconds=1.5)
    steps.take(10)
    assert not steps.stop.save_asked()
    for _ in range(2):
        steps.stop.notices += 1
        assert steps.take(5) == [None] * 5
        assert steps.stop.save_asked()
        assert not steps.stop.save_asked()


def test_the_slowest_host_is_told_by_its_own_work(mesh, monkeypatch):
    steps = Steps(mesh, monkeypatch, seconds=0.5)
    assert steps.stop.slowest_host() == {}
    steps.take(40, waited=0.75)
    found = steps.stop.slowest_host()
    assert found["slowest_host"] == 0
    assert found["slowest_host_seconds"] == pytest.approx(0.125, rel=1e-3)
    assert steps.stop.slowest_host() == {}


def test_one_process_asks_nobody(mesh):
    stop = StopSignals()
    assert stop.after_step(mesh, None) is None
    stop.notices, stop.received = 1, 15
    assert stop.after_step(mesh, None) == 15
    assert stop.save_asked()
    assert stop.slowest_host() == {}
