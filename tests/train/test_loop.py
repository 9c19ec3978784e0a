"""fit with fakes: what happens when, what is saved with what, and how a run is stopped."""

import itertools
import os
import signal
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.config.evaluation import Capture, EarlyStopping, Patience, Profile
from t5x_lite.core.accelerators import Chip
from t5x_lite.core.errors import Interrupted
from t5x_lite.core.sharding import Ended, MeshConfig, ending, make_mesh
from t5x_lite.train import loop
from t5x_lite.train.loop import Periods, count_tokens, fit
from t5x_lite.train.step import TrainState
from t5x_lite.train.stopping import SaveClock, StopSignals, Watchdog
from t5x_lite.train.throughput import NonFiniteLoss
from t5x_lite.train.track import FIELDS, Goodput, Tracker
from tests.waiting import PATIENCE

BATCH = {
    "encoder_input_tokens": np.array([[5, 6, 0], [7, 0, 0]], np.int32),
    "decoder_target_tokens": np.array([[8, 1], [0, 0]], np.int32),
    "decoder_loss_weights": np.array([[1, 1], [0, 0]], np.int32),
}


class Batches:
    """The same batch again and again; the position is the number of those handed out."""

    def __init__(self, start):
        self.handed_out = start

    def __next__(self):
        self.handed_out += 1
        return BATCH

    def state(self):
        return b"%d" % self.handed_out


class Record(Tracker):
    """A tracker that hands what is logged to a function."""

    def __init__(self, note):
        self.log = note
        self.messages = []

    def message(self, text):
        self.messages.append(text)


class Run:
    """All that fit is told with; `events` lists what it did: ("save", 5, ...), ("log", 5, ...)."""

    def __init__(self, *, start=0, metrics=None, at_step=None, at_evaluation=None, given=None):
        """Makes a run; at_step and at_evaluation are {step: function}, `given` goes to fit."""
        self.events = []
        self._start = start
        self._metrics = metrics or {}
        self._at_step = at_step or {}
        self._at_evaluation = at_evaluation or {}
        self._given = given or {}
        self.hurried = []
        self.batches = Batches(start)
        self.tracker = Record(self._log)

    def fit(self, *, total=10, log=100, evaluation=100, checkpoint=100, **options):
        params = {"model": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}
        return fit(
            TrainState(jnp.int32(self._start), params, {}),
            self.batches,
            self._step,
            mesh=make_mesh(MeshConfig()),
            periods=Periods(
                total=total, log=log, evaluation=evaluation, checkpoint=checkpoint, **options
            ),
            evaluate=self._evaluate,
            save=self._save,
            tracker=self.tracker,
            **self._given,
        )

    def steps(self, kind):
        """At which steps something was done."""
        return [event[1] for event in self.events if event[0] == kind]

    def _log(self, step, metrics):
        kind = "log evaluation" if "validation/loss" in metrics else "log"
        self.events.append((kind, step, dict(metrics)))

    def _step(self, state, batch):
        step = int(state.step) + 1
        self._at_step.get(step, lambda: None)()
        metrics = {"loss": 1 / step, "gradient_norm": 1.0} | self._metrics.get(step, {})
        moved = TrainState(jnp.int32(step), state.params, state.optimizer)
        return moved, {name: jnp.float32(value) for name, value in metrics.items()}

    def _evaluate(self, step, params):
        self.events.append(("evaluate", step))
        if self._at_evaluation.get(step, lambda: None)() == "stopped":
            return None
        return {"validation/loss": float(step)}

    def _save(self, state, position, metrics, *, hurried=False):
        self.hurried += [int(state.step)] * hurried
        self.events.append(("save", int(state.step), position, metrics))


def receive(signum):
    """A function by which this process sends itself a signal."""
    return lambda: os.kill(os.getpid(), signum)


@pytest.mark.parametrize(("log", "evaluation"), [(4, 100), (100, 4)])
def test_a_callback_ends_the_run_with_a_checkpoint(log, evaluation):
    """It is asked after records only, and on the first step of a run that it has ended."""
    run = Run()
    run.tracker.has_callbacks = True
    run.tracker.stop = lambda: "mine: low" if any(e[1] >= 4 for e in run.events) else ""
    run.fit(log=log, evaluation=evaluation)
    assert run.steps("save") == [4]
    assert run.tracker.messages == ["stopped early at step 4: mine: low"]
    again = Run(start=4)
    again.tracker.stop = lambda: "mine: low"
    again.fit()
    assert again.events == []
    assert again.tracker.messages == ["stopped early at step 4: mine: low"]


def test_periods():
    run = Run()
    state = run.fit(total=10, log=3, evaluation=4, checkpoint=5)
    assert int(state.step) == 10
    assert run.steps("log") == [1, 3, 6, 9, 10]
    assert run.steps("evaluate") == run.steps("log evaluation") == [4, 8, 10]
    assert run.steps("save") == [5, 10]


def test_the_first_and_the_last_step_whatever_the_periods():
    run = Run()
    run.fit(total=3)
    assert run.steps("log") == [1, 3]
    assert run.steps("evaluate") == [3]
    assert run.steps("save") == [3]


def test_within_a_step_the_order_is_log_evaluate_save():
    run = Run()
    run.fit(total=1)
    assert [event[:2] for event in run.events] == [
        ("log", 1),
        ("evaluate", 1),
        ("log evaluation", 1),
        ("save", 1),
    ]


def test_a_checkpoint_gets_the_position_of_its_last_batch_and_its_own_metrics():
    run = Run(start=2)
    run.fit(total=8, evaluation=4, checkpoint=2)
    assert [event[1:] for event in run.events if event[0] == "save"] == [
        (4, b"4", {"validation/loss": 4.0}),
        (6, b"6", None),
        (8, b"8", {"validation/loss": 8.0}),
    ]


def test_every_measured_step_is_saved_where_the_best_one_is_kept():
    run = Run()
    run.fit(total=10, evaluation=4, checkpoint=5, save_measured=True)
    assert run.steps("save") == [4, 5, 8, 10]
    assert [event[3] is None for event in run.events if event[0] == "save"] == [
        False,
        True,
        False,
        False,
    ]


def test_a_resumed_run_takes_the_steps_that_are_left():
    run = Run(start=7)
    run.fit(total=10, log=5)
    assert run.steps("log") == [8, 10]


def test_nothing_is_left_to_do():
    run = Run(start=10)
    assert int(run.fit(total=10).step) == 10
    assert run.events == []


def test_the_training_log():
    run = Run(metrics={2: {"loss": 0.5, "accuracy": 0.25}, 3: {"loss": 0.75, "accuracy": 0.5}})
    run.fit(total=3, log=1)
    first, second, third = (event[2] for event in run.events if event[0] == "log")
    assert first == {"loss": 1.0, "gradient_norm": 1.0, "num_parameters": 9}
    rates = {"tokens_per_second", "steps_per_second", "data_wait"}
    assert {name: second[name] for name in second.keys() - rates} == {
        "loss": 0.5,
        "gradient_norm": 1.0,
        "accuracy": 0.25,
    }
    assert third.keys() == second.keys() >= rates
    # Five tokens a step, of inputs and targets.
    assert third["tokens_per_second"] == pytest.approx(5 * third["steps_per_second"])


def test_the_logged_loss_is_the_last_step_s():
    run = Run()
    run.fit(total=4, log=4)
    assert [event[2]["loss"] for event in run.events if event[0] == "log"] == [1.0, 0.25]


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_stops_the_run(name, value):
    run = Run(metrics={6: {name: value}})
    message = f"the {name.replace('_', ' ')} is {value} at step 6; the last checkpoint is kept"
    with pytest.raises(NonFiniteLoss, match=message):
        run.fit(total=10, log=10, evaluation=10, checkpoint=2)
    assert run.steps("save") == [2, 4]
    assert run.steps("log") == [1]
    assert run.steps("evaluate") == []


def test_the_first_bad_step_is_named_though_it_is_seen_later():
    run = Run(metrics={step: {"loss": np.nan} for step in range(4, 11)})
    with pytest.raises(NonFiniteLoss, match="at step 4;"):
        run.fit(total=10, log=10, evaluation=8, checkpoint=10)
    assert run.steps("evaluate") == run.steps("save") == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_in_progress(signum):
    before = signal.getsignal(signum)
    run = Run(at_step={4: receive(signum)})
    with pytest.raises(Interrupted) as stop:
        run.fit(total=10)
    assert (stop.value.signum, stop.value.step) == (signum, 4)
    assert [event[:3] for event in run.events if event[0] == "save"] == [("save", 4, b"4")]
    assert run.steps("log") == [1, 4]
    assert run.steps("evaluate") == []
    assert run.hurried == [4]
    assert signal.getsignal(signum) is before


def test_a_signal_while_the_data_wait_ends_the_run():
    """Behind a step that is saved, as the data wait for a search of hard negatives."""

    class Waiting(Batches):
        def __next__(self):
            if self.handed_out == 4:
                receive(signal.SIGTERM)()
                assert ending.wait(PATIENCE)
                raise Ended("no search")
            return super().__next__()

    run = Run()
    run.batches = Waiting(0)
    with pytest.raises(Interrupted) as stop:
        run.fit(total=10, checkpoint=4)
    assert (stop.value.signum, stop.value.step) == (signal.SIGTERM, 4)
    assert run.steps("save") == [4]
    assert not ending.is_set()


def test_a_signal_during_an_evaluation_saves_the_next_step():
    run = Run(at_evaluation={4: receive(signal.SIGTERM)})
    with pytest.raises(Interrupted) as stop:
        run.fit(total=10, evaluation=4)
    assert stop.value.step == 5
    assert run.steps("save") == [5]


def stopped():
    """What an evaluation does that a signal ends before its end."""
    receive(signal.SIGTERM)()
    return "stopped"


@pytest.mark.parametrize("total", [4, 10])
def test_a_signal_that_ends_an_evaluation_saves_the_step_without_it(total):
    run = Run(at_evaluation={4: stopped}, given={"patience": patience(patience=1)})
    with pytest.raises(Interrupted) as stop:
        run.fit(total=total, evaluation=4)
    assert (stop.value.signum, stop.value.step) == (signal.SIGTERM, 4)
    assert run.steps("log evaluation") == []
    assert run.hurried == [4]
    assert [event for event in run.events if event[0] == "save"] == [("save", 4, b"4", None)]


def test_an_evaluation_that_is_owed_comes_first():
    run = Run(start=4)
    run._given["owed"] = lambda step, metrics: run.events.append(("add", step, dict(metrics)))
    run.fit(total=5)
    assert [event[:2] for event in run.events[:4]] == [
        ("evaluate", 4),
        ("add", 4),
        ("log evaluation", 4),
        ("log", 5),
    ]
    assert run.events[1] == ("add", 4, {"validation/loss": 4.0})


def test_an_evaluation_that_is_owed_can_be_the_last_and_end_training_early():
    run = Run(start=4, given={"owed": lambda step, metrics: None})
    assert int(run.fit(total=4).step) == 4
    assert run.steps("evaluate") == [4]
    owed = {"owed": lambda step, metrics: None, "patience": patience(1.0, patience=1)}
    run = Run(start=4, given=owed)
    assert int(run.fit(total=9).step) == 4
    assert run.tracker.messages[0].startswith("stopped early at step 4")


def test_an_evaluation_that_is_owed_can_be_ended_again():
    run = Run(start=4, at_evaluation={4: stopped}, given={"owed": lambda step, metrics: None})
    with pytest.raises(Interrupted) as stop:
        run.fit(total=9)
    assert stop.value.step == 4
    assert run.events == [("evaluate", 4)]


def test_a_signal_at_the_last_step_changes_nothing():
    run = Run(at_step={3: receive(signal.SIGTERM)})
    assert int(run.fit(total=3).step) == 3
    assert run.steps("evaluate") == run.steps("save") == [3]


def test_a_second_sigint_interrupts_at_once():
    def twice():
        receive(signal.SIGINT)()
        receive(signal.SIGINT)()

    before = signal.getsignal(signal.SIGINT)
    run = Run(at_step={2: twice})
    with pytest.raises(KeyboardInterrupt):
        run.fit(total=10)
    assert run.steps("save") == []
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_are_left_alone_outside_the_main_thread():
    def enter():
        with StopSignals() as stop:
            received.append(stop.received)

    received: list = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert received == [None]


def test_mfu_where_the_peak_of_the_devices_is_known(monkeypatch):
    run = Run(given={"flops": lambda batch: 8_000_000_000})
    run.fit(total=2, log=1)
    assert "mfu" not in run.events[1][2]
    monkeypatch.setattr(loop, "chip", lambda kind: Chip(4e9 if kind == "cpu" else None))
    run = Run(given={"flops": lambda batch: 8_000_000_000})
    run.fit(total=2, log=1)
    logged = run.events[1][2]
    assert logged["mfu"] == pytest.approx(2.0 * logged["steps_per_second"])


def test_the_epoch_is_logged_where_the_batches_tell_it():
    run = Run()
    run.batches.epoch = 0.25
    run.fit(total=2, log=1)
    assert [event[2].get("epoch") for event in run.events if event[0] == "log"] == [None, 0.25]


def patience(*history, **fields):
    config = EarlyStopping(metric="validation/loss", **fields)
    return Patience(config, [{"validation/loss": value} for value in history])


def test_a_save_is_due_by_the_clock_or_by_the_steps():
    clock = [0.0]

    def wait():
        clock[0] += 60

    minutes = dict.fromkeys(range(1, 12), wait)  # a minute each
    run = Run(at_step=minutes, given={"save_clock": SaveClock(3.0, clock=lambda: clock[0])})
    run.fit(total=11, checkpoint=5)
    # Every five steps, and three minutes after the last save.
    assert run.steps("save") == [3, 5, 8, 10, 11]
    assert run.steps("evaluate") == [11]
    assert run.hurried == []


def test_early_stopping_saves_the_step_that_it_ends_at():
    run = Run(given={"patience": patience(patience=2)})  # the loss is the step: it only rises
    state = run.fit(total=100, evaluation=4)
    assert int(state.step) == 12
    assert run.steps("evaluate") == [4, 8, 12]
    assert [event[1:] for event in run.events if event[0] == "save"] == [
        (12, b"12", {"validation/loss": 12.0})
    ]
    assert run.tracker.messages == [
        "stopped early at step 12: validation/loss has not improved for 2 evaluations (best 4.0000)"
    ]


def test_a_run_that_stopped_early_does_not_go_on():
    run = Run(start=12, given={"patience": patience(4.0, 8.0, 12.0, patience=2)})
    assert int(run.fit(total=100, evaluation=4).step) == 12
    assert run.events == []
    assert run.tracker.messages[0].startswith("stopped early at step 12: validation/loss has not")


def test_a_resumed_run_stops_early_where_it_would_have():
    run = Run(start=8, given={"patience": patience(4.0, 8.0, patience=2)})
    assert int(run.fit(total=100, evaluation=4).step) == 12


def test_chosen_steps_are_traced(tmp_path):
    run = Run(given={"capture": Capture(Profile(start=2, steps=2), tmp_path / "profile")})
    run.fit(total=4)
    assert len(list((tmp_path / "profile").rglob("*.xplane.pb"))) == 1
    assert run.tracker.messages == [f"traced the steps up to 3: {tmp_path / 'profile'}"]


def test_count_tokens():
    assert count_tokens(BATCH) == 5
    assert count_tokens({"decoder_target_tokens": BATCH["decoder_target_tokens"]}) == 2


def test_the_next_batch_is_drawn_before_the_step_is_waited_for():
    run = Run()
    drawn = []
    run._log = lambda step, metrics: drawn.append((step, run.batches.handed_out))
    run.tracker = Record(run._log)
    run.fit(total=8, log=1, evaluation=8, checkpoint=4)
    training = [each for each in drawn if each[0] != 8]
    # But where the step is saved: the position saved is that of the batches it has behind it.
    assert training == [(1, 2), (2, 3), (3, 4), (4, 4), (5, 6), (6, 7), (7, 8)]
    assert [event[:3] for event in run.events if event[0] == "save"] == [
        ("save", 4, b"4"),
        ("save", 8, b"8"),
    ]


def test_the_epoch_is_that_of_the_batches_taken():
    class Telling(Batches):
        @property
        def epoch(self):
            return self.handed_out / 4

    run = Run()
    run.batches = Telling(0)
    run.fit(total=4, log=2)
    assert [event[2].get("epoch") for event in run.events if event[0] == "log"] == [None, 0.5, 1.0]


def test_a_notice_of_maintenance_saves_once_and_goes_on():
    stop = StopSignals()

    def notice():
        stop.notices += 1

    run = Run(at_step={4: notice, 7: notice}, given={"stop": stop})
    with stop:
        assert int(run.fit(total=9, checkpoint=7).step) == 9
    assert [event[1:3] for event in run.events if event[0] == "save"] == [
        (4, b"4"),
        (7, b"7"),
        (9, b"9"),
    ]


def test_where_the_time_went_is_logged():
    spent = Goodput(clock=itertools.count(0.0).__next__)
    seen = []

    def note(step):
        return lambda: seen.append((step, spent._cause))

    evaluating = {4: lambda: seen.append(("evaluate", spent._cause))}
    run = Run(
        at_step={1: note(1), 2: note(2), 4: note(4)},
        at_evaluation=evaluating,
        given={"spent": spent},
    )
    run._save = lambda *args, hurried: seen.append(("save", spent._cause))
    run.fit(total=4, log=2)
    assert seen == [
        (1, "compile"),
        (2, "steps"),
        (4, "steps"),
        ("evaluate", "evaluation"),
        ("save", "checkpoint"),
    ]
    first, second, last = (event[2] for event in run.events if event[0] == "log")
    for logged in (first, second, last):
        shares = [logged[name] for name in FIELDS if name in logged and name != "run_seconds"]
        assert sum(shares) == pytest.approx(1.0, abs=1e-4)
        assert logged["run_seconds"] > 0
    assert first["goodput"] < last["goodput"]


def test_the_watchdog_sees_every_step(tmp_path):
    spent = Goodput()
    watchdog = Watchdog(spent, seconds=0.0, directory=tmp_path)
    run = Run(given={"spent": spent, "watchdog": watchdog})
    run.fit(total=4)
    assert len(watchdog._took) == watchdog._step == 4
