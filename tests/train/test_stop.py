"""Signals are remembered, and processes agree on the step after which they stop."""

import os
import signal

import jax
import pytest

from t5x_lite.sharding import MeshConfig, make_mesh
from t5x_lite.train.stop import StopSignals


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
    stop = StopSignals()
    assert [stop.requested(mesh) for _ in range(3)] == [None, None, None]
    stop.received = 15
    assert [stop.requested(mesh) for _ in range(4)] == [None, None, 15, 15]
    other = StopSignals()
    assert other.requested(mesh, wait=True) is None
    other.received = 2
    assert other.requested(mesh, wait=True) == 2
