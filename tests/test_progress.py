"""Tests of progress: lines where there is no terminal, a bar where there is one."""

import io
import json
import logging
import sys

import pytest

from t5x_lite.progress import Lines, as_table, counting, print_result


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_every_half_minute(caplog):
    caplog.set_level(logging.INFO, logger="t5x_lite")
    now = [0.0]
    advance = Lines("embedding", unit="texts", total=5000, clock=lambda: now[0])
    for now[0] in (10.0, 40.0, 50.0, 80.0):
        advance(1000)
    assert caplog.messages == [
        "embedding: 2,000 of 5,000 texts (50/s)",
        "embedding: 4,000 of 5,000 texts (50/s)",
    ]


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
    assert "4,000 texts" in shown
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
