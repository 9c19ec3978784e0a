"""A process ends after a signal, also where its main thread never comes back from C++."""

import signal
import subprocess
import sys
import time

import pytest

# The second lock of a mutex waits for ever, without Python's lock, as JAX does when it allocates.
STUCK = """
import ctypes, signal, sys
from t5x_lite.signals import ended_by
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
    time.sleep(1)  # until it waits for the mutex
    return process


def test_the_process_ends_some_seconds_after_the_signal():
    process = stuck(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    assert process.stderr.read() == "error: terminated\n"


def test_the_second_signal_ends_it_at_once():
    process = stuck(1000)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_process_that_must_not_end_goes_on():
    process = stuck(0.1, "no")
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.kill()
    process.wait()


def test_nothing_stays_behind():
    from t5x_lite.signals import ended_by

    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with ended_by((signal.SIGTERM,), seconds=100.0):
        pass
    after = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after)
    assert after == before
