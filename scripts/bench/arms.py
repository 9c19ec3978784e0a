"""Runs of a study: each in a work directory that says what it is, and repeated by no second call.

    run_all([Arm(work / "mlm", 400, ("configs/pretrain/bert_tiny.py", "--seed", "0"))], at_once=2)

An arm that is there is not repeated, and one that was stopped goes on. Each has a core of its own.
What one command makes beside training is a `Made`.
"""

import concurrent.futures
import dataclasses
import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol


def t5x_lite(*arguments: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "t5x_lite", *arguments]


def merged(arguments: Iterable[str]) -> list[str]:
    """Flags and their values, where of a flag that is given twice the later one stands."""
    values: dict[str, list[str]] = {}
    flag = ""
    for argument in arguments:
        if argument.startswith("--"):
            flag = argument
            values[flag] = []
        else:
            values[flag].append(argument)
    return [part for flag, those in values.items() for part in (flag, *those)]


class Job(Protocol):
    """What `run_all` runs."""

    @property
    def log(self) -> Path:
        """Where its output goes."""
        ...

    def done(self) -> bool:
        """Whether its result is there."""
        ...

    def command(self) -> list[str]:
        """What makes the result."""
        ...


@dataclasses.dataclass(frozen=True)
class Arm:
    """One training run.

    Attributes:
      workdir: its work directory, whose parent holds the programs that all of them compiled.
      steps: when it ends.
      arguments: the config and the changes to it, which may be given twice: the last one stands.
    """

    workdir: Path
    steps: int
    arguments: Sequence[str]

    @property
    def log(self) -> Path:
        """The file beside its work directory."""
        return self.workdir.with_name(self.workdir.name + ".log")

    def done(self) -> bool:
        """Whether its last step is there."""
        return (self.workdir / "checkpoints" / str(self.steps)).is_dir()

    def command(self) -> list[str]:
        """Trains, or goes on."""
        config, *changes = self.arguments
        compiled = ("--compilation-cache", str(self.workdir.parent / "compiled"))
        given = merged(("--checkpoints.period", "500", *compiled, *changes))
        own = ("--workdir", str(self.workdir), "--steps", str(self.steps))
        return t5x_lite("train", config, *given, *own)

    def metric(self, name: str) -> dict[int, float]:
        """A metric at every step that has it; empty before the last step is there."""
        file = self.workdir / "metrics.jsonl"
        if not self.done() or not file.exists():
            return {}
        records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        return {record["step"]: record[name] for record in records if name in record}

    def last(self, name: str) -> float | None:
        """The metric of the last evaluation; None before it is there."""
        found = self.metric(name)
        return found[max(found)] if found else None


@dataclasses.dataclass(frozen=True)
class Made:
    """A file or a directory that one command makes.

    Attributes:
      output: it is there when the command is done.
      arguments: of t5x-lite.
    """

    output: Path
    arguments: Sequence[str]

    @property
    def log(self) -> Path:
        """The file beside the output."""
        return self.output.with_name(self.output.name + ".log")

    def done(self) -> bool:
        """Whether the output is there."""
        return self.output.exists()

    def command(self) -> list[str]:
        """Makes it."""
        return t5x_lite(*self.arguments)


def run_all(jobs: Sequence[Job], *, at_once: int) -> None:
    """Runs what is not there yet, so many at once, each on a core of its own.

    Raises:
      SystemExit: one failed; what had not begun is left out.
    """
    cores: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[:at_once]:
        cores.put(core)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(_run, job, cores) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            if future.exception():
                pool.shutdown(cancel_futures=True)
            future.result()


def _run(job: Job, cores: "queue.Queue[int]") -> None:
    if job.done():
        return
    core = cores.get()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(job.log, "a", encoding="utf-8") as log:
            code = subprocess.run(
                job.command(),
                stdout=log,
                stderr=log,
                check=False,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            ).returncode
    finally:
        cores.put(core)
    if code:
        raise SystemExit(f"exit code {code}: see {job.log}")
    print(f"{job.log.stem}: done", flush=True)
