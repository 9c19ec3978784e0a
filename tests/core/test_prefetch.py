import gc
import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from t5x_lite.core.workers import Prefetch
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]


def test_elements_come_in_order_and_end():
    assert list(Prefetch(iter(range(20)), depth=3)) == list(range(20))


def test_only_so_many_are_made_ahead():
    made = []
    ahead = Prefetch((made.append(i) or i for i in itertools.count()), depth=2)
    assert made == []
    assert next(ahead) == 0
    wait_until(lambda: len(made) == 4)  # two in the queue, one in the thread's hands
    time.sleep(0.2)
    assert len(made) == 4
    ahead.close()


def test_an_error_comes_at_its_place_and_once():
    def elements():
        yield 1
        raise ValueError("broken")

    ahead = Prefetch(elements())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="broken"):
        next(ahead)
    assert list(ahead) == []


def test_the_interpreter_ends_while_the_thread_works():
    program = (
        "import itertools, time\n"
        "from t5x_lite.core.workers import Prefetch\n"
        "ahead = Prefetch(time.sleep(0.3) or i for i in itertools.count())\n"
        "print(next(ahead))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.slow
def test_the_thread_ends_with_close_and_with_the_object():
    before = threading.active_count()
    closed, dropped = Prefetch(itertools.count()), Prefetch(itertools.count())
    next(closed), next(dropped)
    assert threading.active_count() == before + 2
    closed.close()
    assert list(closed) == []
    del dropped
    gc.collect()
    wait_until(lambda: threading.active_count() == before)
