"""A process ends after a signal, also where its main thread never comes back from C++."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, wait_until

# The second lock of a mutex waits for ever, without Python's lock, as JAX does when it allocates.
STUCK = """
import ctypes, signal, sys
from t5x_lite.core.signals import ended_by
def raising(signum, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, raising)
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
with ended_by((signal.SIGTERM,), seconds=float(sys.argv[1]), may_end=lambda: sys.argv[2] == "yes"):
    print("ready", flush=True)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
"""


def stuck(seconds, may_end="yes"):
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(seconds), may_end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    waits = 0

    def waits_for_the_mutex():
        nonlocal waits
        stat = Path(f"/proc/{process.pid}/task/{process.pid}/stat").read_text()
        waits = waits + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
        return waits == 50

    wait_until(waits_for_the_mutex)
    return process


def signals_pending(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return any(int(mask, 16) for mask in re.findall(r"^\w*Pnd:\s*(\w+)$", status, re.MULTILINE))


def test_the_process_ends_some_seconds_after_the_signal():
    process = stuck(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert process.stderr.read() == "error: terminated\n"


def test_the_second_signal_ends_it_at_once():
    process = stuck(1000)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: not signals_pending(process))  # two that are pending would be one
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_process_that_must_not_end_goes_on():
    process = stuck(0.1, "no")
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.kill()
    process.wait()


def test_nothing_stays_behind():
    from t5x_lite.core.signals import ended_by

    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with ended_by((signal.SIGTERM,), seconds=100.0):
        pass
    after = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after)
    assert after == before


COMMAND = """
import signal, sys, threading, time
from t5x_lite import cli
class Command:
    output = None
    def run(self, overrides):
        print("ready", flush=True)
        if sys.argv[1] == "fail":
            raise ValueError("of the command")
        time.sleep(300)
class Stuck:
    def __del__(self):
        threading.Event().wait()  # as an iterator of TensorFlow waits for its threads
stuck = Stuck()
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
cli._parse_command = lambda args: (Command(), [])
cli._command_name = lambda args: ("info", [])
sys.exit(cli.main())
"""


def command(kind):
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_closed_terminal_ends_a_command():
    process = command("wait")
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 128 + signal.SIGHUP
    assert process.stderr.read() == "error: the terminal was closed\n"


def test_nohup_keeps_a_command_from_its_terminal():
    process = command("nohup")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.terminate()
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_a_failed_command_does_not_wait_for_destructors():
    process = command("fail")
    assert process.wait(PATIENCE) == 1
    assert process.stderr.read().startswith("error: ValueError: of the command")


# The destructor of a module's object runs after Python gave up its own handlers of signals.
FINAL = """
import os, signal, sys
from t5x_lite.core.signals import at_start, watching
at_start()
class Late:
    def __init__(self): self.kill, self.pid, self.write = os.kill, os.getpid(), os.write
    def __del__(self):
        for signum in (1, 2, 15):
            self.kill(self.pid, signum)
        self.write(1, b"late")
sys.late = Late()
with watching():
    pass
"""


def test_a_signal_in_the_interpreters_end_keeps_the_exit_code():
    done = subprocess.run([sys.executable, "-c", FINAL], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"late", b"")


def test_output_on_a_closed_terminal_does_not_fail():
    import pty

    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "wait"],
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    while not shown.endswith(b"\n"):  # a line may come in two parts
        shown += os.read(controller, 100)
    assert shown == b"ready\r\n"
    os.close(controller)
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 128 + signal.SIGHUP


def test_temporary_files_of_libraries_are_removed(tmp_path, monkeypatch):
    import types

    from t5x_lite.core import signals

    name = "__autograph_generated_file1"
    module = types.ModuleType(name)
    module.__file__ = str(tmp_path / f"{name}.py")
    (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setitem(sys.modules, name, module)
    kept = tempfile.TemporaryDirectory(dir=tmp_path)  # as a vocabulary of seqio
    monkeypatch.setattr(os, "_exit", lambda code: None)
    signals.Watch().leave(130)
    assert not list(tmp_path.iterdir()), kept


def test_the_line_is_told_while_standard_error_is_held_back():
    program = (
        "import os, signal, t5x_lite.core.signals as s\n"
        "from t5x_lite.core.signals import without_log_lines\n"
        "s.at_start()\n"
        "with without_log_lines(): os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "error: terminated\n")
