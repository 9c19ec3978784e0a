"""Processes that form one JAX job on this machine."""

import os
import random
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port():
    """A port that is free; below 32,768, so that no connection is given it meanwhile."""
    for port in random.SystemRandom().sample(range(10_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port of a hundred is free")


def start(commands: Sequence[Sequence[object]], **environment):
    """Starts processes that import this checkout."""
    return [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]


def finish(processes, *, timeout=600):
    """Waits for all; [(exit code, standard output, standard error)]."""
    try:
        return [
            (process.wait(), out, err)
            for process in processes
            for out, err in [process.communicate(timeout=timeout)]
        ]
    finally:
        for process in processes:
            process.kill()
