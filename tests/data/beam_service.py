"""Beam's portable job service with two workers, and scripts in processes of their own."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def job_service(directory: Path) -> Iterator[list[str]]:
    """The options of a PortableRunner, whose job service runs as long as the block."""
    port_file = directory / "port"
    # What local_job_service_main does, with two workers: the service has no option for that, and
    # of a job's options it passes direct_num_workers by.
    service = subprocess.Popen(
        [sys.executable, "-c", _SERVICE, "--port_file", str(port_file)],
        stderr=(directory / "service.log").open("w"),
    )
    try:
        for _ in range(600):
            if port_file.exists() and port_file.read_text().strip():
                break
            time.sleep(0.1)
        yield [
            f"--job_endpoint=localhost:{port_file.read_text().strip()}",
            "--environment_type=LOOPBACK",
            "--experiments=use_loopback_process_worker=True",
        ]
    finally:
        service.terminate()
        service.wait()


def run_python(script: str) -> str:
    """What a script says; its workers find `python` and our package by the environment."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


_SERVICE = """
import sys
from apache_beam.runners.portability import local_job_service_main
from apache_beam.runners.portability.fn_api_runner import fn_runner
init = fn_runner.FnApiRunner.__init__
def with_two_workers(self, *args, **kwargs):
    init(self, *args, **kwargs)
    self._num_workers = 2
fn_runner.FnApiRunner.__init__ = with_two_workers
local_job_service_main.run(sys.argv[1:])
"""
