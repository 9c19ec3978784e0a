"""Progress: a line when a stage begins and ends, not one a task; bars on a terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from t5x_lite.c4.local import Lines, show_progress

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
from t5x_lite.c4.local import show_progress
with show_progress() as progress:
    for done in range(3):
        progress("read", done, 2)
"""


def test_lines_are_ten_seconds_apart_but_for_ends(capsys):
    now = iter([0.0, 1.0, 2.0, 11.0, 12.0, 13.0])
    lines = Lines(clock=lambda: next(now))
    for done in range(5):
        lines("read", done, 4)
    lines("write", 3, 4)  # three were finished by an earlier run
    assert capsys.readouterr().err.splitlines() == [
        "reading files  0/4",
        "reading files  3/4",
        "reading files  4/4",
        "writing shards  3/4",
    ]


def test_what_is_no_terminal_gets_lines(capsys):
    with show_progress() as progress:
        progress("clean", 0, 2)
    assert capsys.readouterr().err == "cleaning pages  0/2\n"


def test_a_terminal_gets_bars():
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        stderr=theirs,
        check=True,
    )
    os.close(theirs)
    told = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "reading files" in told
    assert "2/2" in told
    assert "\x1b[" in told
