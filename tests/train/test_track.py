"""Tests of the record of a run: the file, the lines, the bar, the rates."""

import io
import json
import logging
import math
import re
import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from t5x_lite.train import track
from t5x_lite.train.track import Throughput, Tracker


class Terminal(io.StringIO):
    def isatty(self):
        return True


def records(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_log_writes_one_object_a_line(tmp_path, monkeypatch):
    clock = types.SimpleNamespace(time=lambda: 1700000000.12345, monotonic=lambda: 0.0)
    monkeypatch.setattr(track, "time", clock)
    with Tracker(tmp_path / "run", total_steps=10) as tracker:
        tracker.log(1, {"loss": 2.5, "learning_rate": np.float32(0.5)})
        assert (tmp_path / "run" / "metrics.jsonl").read_text() == (
            '{"step": 1, "time": 1700000000.123, "loss": 2.5, "learning_rate": 0.5}\n'
        )
        tracker.log(2, {"loss": math.nan, "gradient_norm": math.inf})
    assert records(tmp_path / "run")[1] == {
        "step": 2,
        "time": 1700000000.123,
        "loss": None,
        "gradient_norm": None,
    }


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        ('{"step": 1}\n{"step": 2, "lo', '{"step": 1}\n'),
        ('{"step": 1}\n{"step": 2}\n', '{"step": 1}\n{"step": 2}\n'),
        ('{"ste', ""),
        ("", ""),
        ('{"step": 1}\n' + "x" * 200_000, '{"step": 1}\n'),
        ("x" * 200_000, ""),
    ],
)
def test_reopening_cuts_the_partial_line(tmp_path, before, kept):
    path = tmp_path / "metrics.jsonl"
    path.write_text(before)
    Tracker(tmp_path, total_steps=10).close()
    assert path.read_text() == kept


def test_a_repeated_step_is_logged_again(tmp_path):
    for loss in (3.0, 4.0):
        with Tracker(tmp_path, total_steps=10) as tracker:
            tracker.log(5, {"loss": loss})
    assert [(line["step"], line["loss"]) for line in records(tmp_path)] == [(5, 3.0), (5, 4.0)]


def test_a_disabled_tracker_writes_nothing(tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO, logger="t5x_lite")
    with Tracker(tmp_path / "run", total_steps=10, enabled=False) as tracker:
        tracker.log(1, {"loss": 2.5})
        tracker.message("hello")
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


def test_plain_lines(tmp_path, capsys, monkeypatch):
    clock = types.SimpleNamespace(time=lambda: 0.0, monotonic=lambda: 7.0)
    monkeypatch.setattr(track, "time", clock)
    with Tracker(tmp_path, total_steps=1000) as tracker:
        training = {"learning_rate": 0.01, "loss": 5.43211, "tokens_per_second": 12345.0}
        tracker.log(200, training | {"steps_per_second": 4.0, "gradient_norm": 1.0})
        tracker.log(200, {"validation/loss": 5.25, "validation/accuracy": 0.2})
        tracker.log(1000, {"loss": math.nan, "accuracy": 0.5, "learning_rate": 1e-5})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "step 200/1000  loss 5.4321  lr 0.0100  12.3k tokens/s  ETA 0:03:20\n"
        "step 200/1000  validation/loss 5.2500  validation/accuracy 0.2000\n"
        "step 1000/1000  loss nan  accuracy 0.5000  lr 1.00e-05\n"
    )


def test_time_left_falls_back_to_the_time_between_logs(tmp_path, capsys, monkeypatch):
    times = iter([100.0, 110.0])

    def monotonic():  # trackers in their own threads read the clock too
        return next(times) if threading.current_thread() is threading.main_thread() else 0.0

    clock = types.SimpleNamespace(time=lambda: 0.0, monotonic=monotonic)
    monkeypatch.setattr(track, "time", clock)
    with Tracker(tmp_path, total_steps=100) as tracker:
        tracker.log(10, {"loss": 1.0})
        tracker.log(30, {"loss": 1.0})
    assert capsys.readouterr().err == (
        "step 10/100  loss 1.0000\nstep 30/100  loss 1.0000  ETA 0:00:35\n"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_terminal_gets_a_bar(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Tracker(tmp_path, total_steps=100) as tracker:
        tracker.log(25, {"loss": 5.5, "tokens_per_second": 900.0, "steps_per_second": 0.5})
        tracker.log(25, {"validation/loss": 5.25})
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "loss 5.5000  900 tokens/s ETA 0:02:30" in shown
    assert " 25/100" in shown
    assert "step 25/100  validation/loss 5.2500" in shown


def test_messages_reach_standard_error_of_a_plain_program(tmp_path):
    program = (
        "import sys; from t5x_lite.train.track import Tracker\n"
        "with Tracker(sys.argv[1], total_steps=1) as tracker: tracker.message('saved [step] 1')\n"
        "print([name for name in ('jax', 'tensorflow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == "saved [step] 1\n"
    assert done.stdout == "[]\n"


def test_messages_go_to_the_application_s_handlers(tmp_path, caplog, capsys):
    caplog.set_level(logging.INFO, logger="t5x_lite")
    handlers = list(logging.getLogger("t5x_lite").handlers)
    with Tracker(tmp_path, total_steps=1) as tracker:
        tracker.message("100% saved")
    assert caplog.messages == ["100% saved"]
    assert logging.getLogger("t5x_lite").handlers == handlers
    assert capsys.readouterr().err == ""


def test_tensorboard_events_hold_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    with Tracker(tmp_path, total_steps=10) as tracker:
        tracker.log(3, {"loss": 2.5, "gradient_norm": math.nan})
        tracker.log(3, {"validation/loss": 1.5})
    (path,) = (tmp_path / "tensorboard").iterdir()
    data, scalars = path.read_bytes(), []
    while data:  # TFRecord: uint64 length, crc, payload, crc
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    assert scalars == [(3, "loss", 2.5), (3, "validation/loss", 1.5)]


def test_tensorboardx_is_optional(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    caplog.set_level(logging.INFO, logger="t5x_lite")
    with Tracker(tmp_path, total_steps=10) as tracker:
        tracker.log(1, {"loss": 2.5})
        tracker.log(2, {"loss": 2.0})
    (message,) = caplog.messages
    assert message.startswith("tracker tensorboard failed and gets no more metrics")
    assert not (tmp_path / "tensorboard").exists()
    assert len(records(tmp_path)) == 2


def test_misuse_is_refused(tmp_path):
    tracker = Tracker(tmp_path, total_steps=10)
    with pytest.raises(ValueError, match="'step' and 'time'"):
        tracker.log(1, {"time": 1.0})
    tracker.close()
    tracker.close()
    with pytest.raises(ValueError, match="after close"):
        tracker.log(1, {"loss": 1.0})


def test_throughput_leaves_the_first_step_out():
    now = [0.0]
    throughput = Throughput(clock=lambda: now[0])
    throughput.start()
    now[0] = 60.0  # compilation
    throughput.add(1000)
    assert throughput.rates() == {}
    for now[0] in (61.0, 62.0):
        throughput.wait(0.25)
        throughput.add(1000)
    assert throughput.rates() == {
        "tokens_per_second": 1000.0,
        "steps_per_second": 1.0,
        "data_wait": 0.25,
    }
    now[0] = 100.0  # an evaluation
    throughput.start()
    now[0] = 104.0
    throughput.add(1000)
    assert throughput.rates() == {
        "tokens_per_second": 250.0,
        "steps_per_second": 0.25,
        "data_wait": 0.0,
    }
