"""Tests of trackers in threads: order, ids, failures and waits that do not reach training."""

import dataclasses
import functools
import logging
import threading
import time

import pytest

from t5x_lite.core.tracking import KnownIds, RunCallback, RunTracker, TrackedRun, is_callback
from t5x_lite.train.track import Background, Callback

RUN = TrackedRun(directory="d", name="run")


class Recorder:
    def __init__(self, run, *, seen, id="a1"):
        self.id = id
        self.seen = seen
        seen.append(("begin", run.id, run.first_step))

    def log(self, step, metrics):
        self.seen.append((step, dict(metrics)))

    def close(self, outcome):
        self.seen.append(outcome)


def background(tmp_path, make, **options):
    return Background("mine", make, RUN, ids=KnownIds(tmp_path), **options)


def test_records_arrive_in_order_and_a_resumed_run_has_its_id(tmp_path):
    seen = []
    for first in (5, 3):
        sink = background(tmp_path, lambda run: Recorder(run, seen=seen))
        sink.log(first, {"loss": 2.0})
        sink.log(first + 1, {"loss": 1.0})
        sink.close("interrupted")
    assert seen == [
        ("begin", None, 5), (5, {"loss": 2.0}), (6, {"loss": 1.0}), "interrupted",
        ("begin", "a1", 3), (3, {"loss": 2.0}), (4, {"loss": 1.0}), "interrupted",
    ]  # fmt: skip
    assert isinstance(Recorder(RUN, seen=[]), RunTracker)


def test_without_a_record_no_tracker_is_made(tmp_path):
    sink = background(tmp_path, lambda run: pytest.fail("made"))
    sink.close("finished")


@pytest.mark.parametrize("where", ["make", "log", "close"])
def test_a_failure_is_warned_of_once(tmp_path, caplog, where):
    caplog.set_level(logging.WARNING, logger="t5x_lite")
    calls = []

    class Broken(Recorder):
        def __init__(self, run):
            super().__init__(run, seen=calls, id=None)
            if where == "make":
                raise SystemExit("no\nnetwork")

        def log(self, step, metrics):
            super().log(step, metrics)
            if where == "log":
                raise OSError("no\nnetwork")

        def close(self, outcome):
            if where == "close":
                raise OSError("no\nnetwork")

    sink = background(tmp_path, Broken)
    for step in range(1, 4):
        sink.log(step, {"loss": 1.0})
        time.sleep(0.02)
    sink.close("finished")
    (message,) = caplog.messages
    assert message.startswith("tracker mine failed and gets no more metrics; see metrics.jsonl")
    assert "no network" in message
    assert not (tmp_path / "trackers.json").exists()


def test_training_does_not_wait_for_a_slow_tracker(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="t5x_lite")
    release = threading.Event()

    class Slow(Recorder):
        def log(self, step, metrics):
            release.wait(100)

    sink = background(tmp_path, lambda run: Slow(run, seen=[]), patience=0.05)
    start = time.monotonic()
    for step in range(20_000):
        sink.log(step, {"loss": 1.0})
    sink.close("finished")
    assert time.monotonic() - start < 5
    release.set()
    assert [message.split(" is ")[0].split(" did ")[0] for message in caplog.messages] == [
        "tracker mine",
        "tracker mine",
    ]


class Watcher(Recorder):
    synchronous = True
    stop = None
    fails = ""

    def __init__(self, run, *, seen):
        super().__init__(run, seen=seen)
        self.history = dict(run.history)

    def log(self, step, metrics):
        super().log(step, metrics)
        if self.fails == "log":
            raise SystemExit("no\ndisk")
        self.stop = "low" if metrics["loss"] < 1 else None

    def saved(self, step, directory):
        self.seen.append((step, directory))
        if self.fails == "saved":
            raise OSError("no\ndisk")


def test_a_callback_is_called_at_once_and_may_end_the_run(tmp_path):
    seen = []
    run = dataclasses.replace(RUN, history={1: {"loss": 2.0}}, first_step=2)
    make = functools.partial(Watcher, seen=seen)
    assert is_callback(make)
    assert not is_callback(lambda run: Watcher(run, seen=seen))
    assert isinstance(make(run), RunCallback)
    seen.clear()
    one = Callback("mine", make, run, ids=KnownIds(tmp_path))
    assert one.stop() == ""
    one.log(2, {"loss": 0.5})
    assert one.stop() == "mine: low"
    one.saved(2, "d/2")
    one.close("finished")
    assert seen == [("begin", None, 2), (2, {"loss": 0.5}), (2, "d/2"), "finished"]
    assert KnownIds(tmp_path).get("mine") == "a1"
    assert Callback("mine", make, run, ids=KnownIds(tmp_path)).stop() == ""
    assert seen[-1] == ("begin", "a1", 2)


@pytest.mark.parametrize("fails", ["log", "saved"])
def test_a_callback_that_fails_is_named_once_and_not_called_again(tmp_path, caplog, fails):
    caplog.set_level(logging.WARNING, logger="t5x_lite")
    seen = []
    kind = type("Failing", (Watcher,), {"fails": fails})
    one = Callback("mine", functools.partial(kind, seen=seen), RUN, ids=KnownIds(tmp_path))
    for step in (1, 2):
        one.log(step, {"loss": 0.5})
        one.saved(step, "d")
    one.close("finished")
    assert one.stop() == ""
    (message,) = caplog.messages
    assert message.startswith("callback mine failed and is not called again (")
    assert "no disk" in message
    assert len(seen) == (2 if fails == "log" else 3)


def test_a_callback_that_cannot_be_made_is_named(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="t5x_lite")

    class Broken(Watcher):
        def __init__(self, run):
            raise TypeError("no")

    one = Callback("mine", Broken, RUN, ids=KnownIds(tmp_path))
    one.log(1, {"loss": 1.0})
    assert one.stop() == ""
    one.close("failed")
    assert caplog.messages == ["callback mine failed and is not called again (TypeError: no)"]
