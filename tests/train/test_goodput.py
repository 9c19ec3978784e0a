import pytest

from t5x_lite.train.track import Goodput


class Clock:
    """Seconds that a test moves on."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def spend(spent, clock, cause, seconds):
    with spent.on(cause):
        clock.now += seconds


def test_every_second_has_one_cause():
    clock = Clock()
    spent = Goodput(clock=clock)
    assert spent.shares() == {}
    clock.now += 10.0
    spend(spent, clock, "compile", 30.0)
    spent.to("steps")
    assert spent.is_stepping
    clock.now += 40.0
    spent.charge("data", 5.0)
    with spent.on("checkpoint"):
        assert not spent.is_stepping
        clock.now += 15.0
        spend(spent, clock, "evaluation", 5.0)
    assert spent.is_stepping
    shares = spent.shares()
    assert shares == {
        "goodput": 0.35,
        "lost_to_start": 0.1,
        "lost_to_compile": 0.3,
        "lost_to_data": 0.05,
        "lost_to_evaluation": 0.05,
        "lost_to_checkpoint": 0.15,
        "run_seconds": 100.0,
    }
    assert spent.paused() == 60.0  # but for steps and data
    clock.now += 100.0
    assert spent.shares()["goodput"] == 0.675


def lines(*steps):
    """A record of logged steps: ten seconds of start, then two a step."""
    return [
        {
            "step": step,
            "goodput": 2 * step / (2 * step + 10),
            "lost_to_start": 10 / (2 * step + 10),
            "run_seconds": 2 * step + 10.0,
        }
        for step in steps
    ]


@pytest.mark.parametrize(
    ("record", "step", "good", "lost"),
    [
        ([], 0, 0.0, 0.0),
        ([{"step": 10, "loss": 1.0}], 10, 0.0, 0.0),  # of an earlier version
        (lines(10, 20, 30), 30, 60.0, 0.0),
        (lines(10, 20, 30), 20, 40.0, 20.0),
        (lines(10, 20, 30), 25, 50.0, 10.0),  # no line is of that step
        (lines(10, 20, 30), 0, 0.0, 60.0),  # begun anew
        (lines(10, 20, 30), 40, 60.0, 0.0),  # killed between its save and the next line
    ],
)
def test_a_resumed_run_counts_the_steps_that_were_not_saved_as_lost(record, step, good, lost):
    clock = Clock()
    spent = Goodput(clock=clock)
    clock.now += 10.0
    spent.go_on([{"step": 5, "validation/loss": 2.0}, *record], step=step)
    shares = spent.shares()
    whole = shares["run_seconds"]
    start = 10.0 if good + lost == 0 else 20.0
    assert whole == good + lost + start
    assert shares["goodput"] == pytest.approx(good / whole, abs=1e-5)
    assert shares.get("lost_to_restart", 0.0) == pytest.approx(lost / whole, abs=1e-5)
    assert shares["lost_to_start"] == pytest.approx(start / whole, abs=1e-5)


def test_of_two_restarts_the_sums_of_the_last_process_count():
    first = lines(10, 20)
    clock = Clock()
    second = Goodput(clock=clock)
    second.go_on(first, step=10)
    second.to("steps")
    clock.now += 10.0
    written = [*first, {"step": 15, **second.shares()}]
    third = Goodput(clock=clock)
    third.go_on(written, step=15)
    shares = third.shares()
    # 20 + 10 seconds of steps that count, 20 of others, 10 of the start.
    assert shares["run_seconds"] == 60.0
    assert shares["goodput"] == pytest.approx(0.5, abs=1e-5)
    assert shares["lost_to_restart"] == pytest.approx(1 / 3, abs=1e-5)
