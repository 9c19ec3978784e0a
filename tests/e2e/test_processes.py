"""Processes that form one JAX job train as one does, stop together, and end together."""

import json
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.processes import finish, free_port
from tests.e2e.processes import start as start_all
from tests.metadata_server import Server

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

PROGRAM = Path(__file__).with_name("tiny_training.py")


def start(job, *, count, **variables):
    """Starts so many processes, of one device each."""
    port = str(free_port())
    commands = [
        [sys.executable, str(PROGRAM), "process", port, str(count), str(index), job]
        for index in range(count)
    ]
    return start_all(commands, JAX_PLATFORMS="cpu", **variables)


def results(processes):
    done = finish(processes)
    assert [code for code, _, _ in done] == [0] * len(done), done[0][2][-3000:]
    return [json.loads(out.splitlines()[-1]) for _, out, _ in done]


@pytest.fixture(scope="module")
def alone():
    """What the only process finds."""
    [found] = results(start("train", count=1))
    return found


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_several_processes_train_and_measure_as_one(alone, count):
    found = results(start("train", count=count))
    assert all(other == found[0] for other in found)  # equal on all of them
    for kind in ("plain", "dropout"):
        losses = np.array(found[0][kind]["losses"])
        assert losses.shape == (20, 3)
        np.testing.assert_allclose(losses, alone[kind]["losses"], rtol=1e-5)
        np.testing.assert_allclose(found[0][kind]["sums"], alone[kind]["sums"], rtol=1e-4)
    assert alone["plain"]["losses"] != alone["dropout"]["losses"]
    assert len(found[0]["cached"]["losses"]) == 3  # a contrastive loss in parts, with dropout
    assert found[0]["cached"]["losses"][2] < found[0]["cached"]["losses"][0]
    cached, expected = found[0]["cached"], alone["cached"]
    np.testing.assert_allclose(cached["losses"], expected["losses"], rtol=1e-5)
    np.testing.assert_allclose(cached["sums"], expected["sums"], rtol=1e-4, atol=1e-5)
    measured, expected = found[0]["evaluation"], alone["evaluation"]
    assert measured.pop("texts") == expected["texts"]
    assert len(measured["scores"]) == 8
    for name, value in measured.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4)


def wait_for_steps(processes, *, steps):
    """Waits until all have printed so many steps."""
    for process in processes:
        for _ in range(steps):
            assert process.stdout.readline(), process.stderr.read()


def wait_for_a_save(processes):
    """Waits until all have printed a step after a save."""
    for process in processes:
        for _ in range(2000):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            if "after a save" in line:
                break
        else:
            pytest.fail("2,000 steps without a save")


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_one_killed_process_ends_the_others_with_a_message(victim):
    """The other one waits for it in a collective, since the victim is slow."""
    processes = start("endless", count=2, SLOW=str(victim))
    wait_for_steps(processes, steps=5)
    time.sleep(0.06)
    processes[victim].kill()
    began = time.monotonic()
    done = finish(processes, timeout=90)
    assert time.monotonic() - began < 60
    assert done[victim][0] == -signal.SIGKILL
    other = 1 - victim
    code, _, said = done[other]
    expected = (
        f"error: process {other} of 2: another process of this run has failed or cannot be reached"
    )
    assert expected in said
    assert code == 1, said


@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", [0, 1])
def test_one_stopped_process_ends_the_others_after_the_heartbeat(victim):
    """JAX itself ends a process that has lost another so, by SIGABRT, and says why first."""
    processes = start("endless", count=2, HEARTBEAT="6")
    wait_for_steps(processes, steps=5)
    stopped, other = processes[victim], processes[1 - victim]
    stopped.send_signal(signal.SIGSTOP)
    try:
        _, said = other.communicate(timeout=60)
        assert other.returncode in (-signal.SIGABRT, 1)
        assert "indicates that another task died" in said or "has failed or cannot be" in said
        stopped.send_signal(signal.SIGCONT)
        _, said = stopped.communicate(timeout=60)
        assert stopped.returncode in (-signal.SIGABRT, 1)
        assert "indicates that another task died" in said or "has failed or cannot be" in said
    finally:
        for process in processes:
            process.kill()


def stopped_together(found):
    """What two processes agreed on; the second one received SIGTERM."""
    agreed = found[0]["agreed"]
    assert found[1]["agreed"] == agreed
    assert [each["received"] for each in found] == [None, signal.SIGTERM]
    assert agreed["signal"] == signal.SIGTERM
    assert agreed["slowest_host"] == 1
    assert agreed["slowest_host_seconds"] > 0.1
    return agreed


def test_a_signal_to_one_process_stops_all_after_the_same_step():
    processes = start("endless", count=2)
    wait_for_steps(processes, steps=15)
    processes[1].send_signal(signal.SIGTERM)
    assert stopped_together(results(processes))["saved"] == []


def test_notices_to_one_machine_save_and_stop_all_after_the_same_step():
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    processes = start("preempted", count=2, GCE_METADATA_HOST=f"127.0.0.1:{server.server_port}")
    wait_for_steps(processes, steps=5)
    server.maintenance.set()
    wait_for_a_save(processes)
    server.notice.set()
    agreed = stopped_together(results(processes))
    assert len(agreed["saved"]) == 1
    assert agreed["saved"][0] < agreed["step"]
    server.end()
    server.shutdown()
    server.server_close()
