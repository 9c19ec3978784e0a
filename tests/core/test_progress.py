"""Tests of progress: lines where there is no terminal, a bar where there is one."""

import contextlib
import io
import json
import logging
import sys
import time
import types

import pytest

from t5x_lite.core import workers
from t5x_lite.core.workers import Lines, as_table, counting, never_silent, print_result, step
from tests.waiting import wait_until


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_says_what_is_done_how_fast_and_how_long_it_takes():
    now = [0.0]
    lines = Lines("embedding", unit="texts", total=5000, done=1000, clock=lambda: now[0])
    assert lines.line() == "embedding: 1,000 of 5,000 texts"
    now[0] = 20.0
    lines(1000)
    assert lines.line() == "embedding: 2,000 of 5,000 texts, 50 texts/s, ETA 0:01:00"


def test_a_line_without_a_total_and_one_without_a_count():
    now = [0.0]
    read = Lines("reading text", unit="lines", clock=lambda: now[0])
    waited = Lines("training a vocabulary", unit="", clock=lambda: now[0])
    read(123_456)
    now[0] = 60.0
    assert read.line() == "reading text: 123,456 lines, 2,058 lines/s"
    assert waited.line() == "training a vocabulary: 0:01:00 so far"


def test_a_line_comes_also_while_nothing_is_counted(caplog):
    caplog.set_level(logging.INFO, logger="t5x_lite")
    with Lines("embedding", unit="texts", total=5).regularly(0.01):
        wait_until(lambda: caplog.messages)
    assert caplog.messages[0] == "embedding: 0 of 5 texts"


def test_a_command_is_never_silent_for_long(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(workers, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    caplog.set_level(logging.INFO, logger="t5x_lite")
    with never_silent("mine", seconds=0.02):
        time.sleep(0.1)
        assert not caplog.messages
        now[0] = 0.015
        workers.told()
        now[0] = 0.03
        time.sleep(0.1)
        assert not caplog.messages
        now[0] = 61.0
        wait_until(lambda: caplog.messages)
    assert caplog.messages == ["mine: running for 0:01:01 so far"]


def test_steps_reach_the_count_around_them(monkeypatch):
    counted = []

    @contextlib.contextmanager
    def displayed(description, **options):
        yield lambda more: counted.append((description, more))

    monkeypatch.setattr(workers, "_displayed", displayed)
    step(1)
    with counting("outer", unit="texts", steps=True), counting("inner", unit="batches"):
        step(2)
    assert counted == [("outer", 2)]


def test_without_a_terminal_there_is_no_bar(capsys):
    with counting("caching", unit="examples") as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("total", [None, 4000])
def test_a_terminal_gets_a_bar(monkeypatch, total):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    logger = logging.getLogger("t5x_lite")
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    try:
        with counting("embedding", unit="texts", total=total) as advance:
            advance(3000)
            advance(1000)
            logger.warning("one was cut")
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)
    shown = terminal.getvalue()
    assert "embedding" in shown
    assert ("4,000 texts" if total is None else "4,000/4,000 texts") in shown
    assert "one was cut" in shown
    assert ("ETA" in shown) == (total is not None)


RESULT = {"a": 0.12345678, "n": 12345, "s": "x"}


def test_a_result_is_json_in_a_pipe(capsys):
    print_result(RESULT, [RESULT], indent=None)
    assert json.loads(capsys.readouterr().out) == RESULT
    print_result([RESULT, RESULT], [RESULT])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [RESULT] * 2


def test_a_result_is_a_table_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_result(
        RESULT, [{"run": "first", "mrr": 0.12345678}, {"run": "b", "n": 12345, "mrr": 1.0}]
    )
    assert capsys.readouterr().out == (
        "run       mrr       n\nfirst  0.1235\nb      1.0000  12,345\n"
    )
    assert as_table([{"x": [1, None], "y": 1234567.5, "z": True}]).splitlines()[1:] == [
        "[1, null]  1,234,567.5  true"
    ]
    assert as_table([]) == ""
