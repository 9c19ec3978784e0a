"""SaveClock with a clock that stands until it is set, alone and as one of two processes."""

import jax
import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.train import stopping
from t5x_lite.train.stopping import SaveClock


class Clock:
    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig())


def test_due_when_the_minutes_have_passed_since_the_last_save(mesh):
    clock = Clock()
    saves = SaveClock(2.0, clock=clock)
    assert not saves.due(1, mesh)
    clock.seconds += 119.9
    assert not saves.due(2, mesh)
    clock.seconds += 0.1
    assert saves.due(3, mesh)
    saves.restart()
    assert not saves.due(4, mesh)
    clock.seconds += 120
    assert saves.due(5, mesh)


def test_without_minutes_it_is_never_due(mesh):
    clock = Clock()
    saves = SaveClock(None, clock=clock)
    clock.seconds += 1e9
    assert not saves.due(1, mesh)


def test_of_several_processes_all_go_by_the_first_some_steps_later(mesh, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    clock = Clock()
    saves = SaveClock(1.0, clock=clock)
    clock.seconds += 60
    # Asked after step 8, answered after step 16, and nothing is asked between them.
    due = [step for step in range(1, 31) if saves.due(step, mesh)]
    assert due == [16, 24]
    saves.restart()
    assert not any(saves.due(step, mesh) for step in range(31, 60))
    # The answer to a question of before a save says nothing of the time since.
    clock.seconds += 60
    assert not saves.due(64, mesh)
    saves.restart()
    assert not saves.due(72, mesh)


def test_the_clocks_of_other_processes_do_not_count(mesh, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda *args: 1)
    saves = SaveClock(1.0, clock=(clock := Clock()))
    clock.seconds += 1e6
    assert not any(saves.due(step, mesh) for step in range(1, 40))


def test_nothing_is_asked_between_the_eighth_steps(mesh, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    asked = []
    ask = SaveClock._ask
    monkeypatch.setattr(SaveClock, "_ask", lambda self, m: asked.append(1) or ask(self, m))
    saves = SaveClock(1.0)
    for step in range(1, 81):
        saves.due(step, mesh)
    assert len(asked) == 80 // stopping._EVERY
