"""C4 on one machine: processes over files and buckets, and DuckDB between them.

    tally = run(
        expand_inputs(["crawl/*.warc.wet.gz"]), "c4", released(), workers=8,
        progress=lambda stage, done, total: print(stage, done, total),
    )

The shards are the same bytes whatever the number of workers, the order of the inputs, and however
often the run was killed and started again: each task's result is a file that is there whole or not
at all, and depends on nothing but the task. Memory does not grow with the input: a worker holds a
record, or a bucket of about 8 MB of text (`BUCKET_BYTES`); DuckDB has its limit and spills to disk.
The disk needs room for about the size of the uncompressed text, twice.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.c4 import dedup, html, local_tasks, parts
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.inputs import Input
from t5x_lite.c4.local_tasks import Plan
from t5x_lite.c4.output import (
    Kind,
    Shard,
    describe_run,
    manifest,
    read_manifest,
    shards_in,
    write_manifest,
)
from t5x_lite.c4.pages import Tally
from t5x_lite.c4.parts import Part
from t5x_lite.c4.stages import Rules
from t5x_lite.c4.warc import MAX_RECORD_BYTES
from t5x_lite.c4.workdir import Workdir, refuse_other
from t5x_lite.c4.workers import run_tasks
from t5x_lite.errors import InputError
from t5x_lite.remote import local_path

BUCKET_BYTES = 1 << 23
MAX_BUCKETS = 1 << 12
_MIN_BUCKETS = 4
_GZIP_RATIO = 4
Progress = Callable[[str, int, int], None]
"""Called with a stage, the tasks of it that are done, and how many it has."""


def run(
    inputs: Sequence[Input],
    output: str | os.PathLike[str],
    cleaning: Cleaning,
    *,
    workers: int = 0,
    memory_limit: int = 1 << 31,
    num_shards: int = 1024,
    kinds: Sequence[Kind] = ("json",),
    max_record_bytes: int = MAX_RECORD_BYTES,
    progress: Progress | None = None,
    report: Callable[[Tally], None] | None = None,
) -> Tally:
    """Makes C4 of files; goes on where a run of the same inputs and rules was killed.

    Args:
      inputs: from `expand_inputs`.
      output: a new directory, or that of this run.
      cleaning: the rules.
      workers: processes; 0 is one for each core.
      memory_limit: bytes that DuckDB may hold, when no worker runs.
      num_shards: of the training split.
      kinds: of files to be written.
      max_record_bytes: a longer record of the crawl is passed over.
      progress: see `Progress`.
      report: called with the tally of the whole run before the manifest is written, and not at all
        where the output is complete already.

    Returns:
      What was dropped and why; without samples where the output is complete already.

    Raises:
      InputError: an input, a list or the output is wrong, or the disk is full.
    """
    directory = Path(os.path.abspath(local_path(output, what="--output")))
    if workers < 0 or num_shards < 1 or num_shards > 99_999:
        raise InputError("--workers must be at least 0, and --num-shards between 1 and 99999")
    if not inputs:
        raise InputError("no input: give WET or WARC files")
    ordered = tuple(sorted(inputs, key=lambda file: file.path))
    description = describe_run(
        cleaning=cleaning,
        inputs=ordered,
        sentences=_check(cleaning, ordered),
        num_shards=num_shards,
        kinds=kinds,
    )
    workdir = Workdir(directory)
    complete = read_manifest(directory)
    if complete is not None:
        refuse_other(directory, complete["run"], description)
        workdir.remove()
        return Tally.from_json(complete["tally"])
    plan = Plan(
        output=directory,
        work=workdir.work,
        cleaning=cleaning,
        inputs=ordered,
        num_buckets=bucket_count(ordered),
        num_shards=num_shards,
        kinds=tuple(kinds),
        max_record_bytes=max_record_bytes,
    )
    try:
        workdir.open(description | {"max_record_bytes": max_record_bytes})
        driver = _Driver(plan, workdir, workers or _cores(), progress or _silent)
        tally, shards = driver.stages(memory_limit)
        if report is not None:
            report(tally)
        write_manifest(directory, manifest(description, shards, tally))
        workdir.remove()
    except OSError as error:
        raise InputError(
            f"--output {output}: cannot be written ({error.strerror or error}); what is finished "
            "stays: make room, and start the same command again"
        ) from error
    finally:
        workdir.close()
    return tally


def _check(cleaning: Cleaning, inputs: Sequence[Input]) -> str:
    """Finds at once that a list or a package is not there; the name of the sentence counter."""
    rules = Rules(cleaning)
    rules.load()
    parts.check_installed()
    if cleaning.dedup != "none":
        dedup.check_installed()
    if any(file.path.endswith((".warc", ".warc.gz")) for file in inputs):
        html.check_installed()
    return rules.counter.name


def bucket_count(inputs: Sequence[Input]) -> int:
    """Buckets for an input, a power of two: it depends on the input's size and on nothing else."""
    size = sum(file.size * (_GZIP_RATIO if file.path.endswith(".gz") else 1) for file in inputs)
    wanted = max(_MIN_BUCKETS, min(MAX_BUCKETS, size // BUCKET_BYTES))
    return 1 << (wanted - 1).bit_length()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _silent(stage: str, done: int, total: int) -> None:
    """Says nothing."""


class _Driver:
    """Takes a run through its stages."""

    def __init__(self, plan: Plan, workdir: Workdir, workers: int, progress: Progress):
        self._plan, self._workdir = plan, workdir
        self._workers, self._progress = workers, progress

    def stages(self, memory_limit: int) -> tuple[Tally, list[Shard]]:
        """Does what is not done; the tally of all, and the shards."""
        plan, done = self._plan, self._workdir
        largest_first = sorted(
            range(len(plan.inputs)), key=lambda number: -plan.inputs[number].size
        )
        buckets = range(plan.num_buckets)
        tally = Tally()
        tally.merge(self._parts("read", local_tasks.read_file, largest_first))
        done.directory("keys")
        tally.merge(self._parts("clean", local_tasks.clean_bucket, buckets))
        done.discard("read")
        if plan.cleaning.dedup != "none":
            self._duplicates(memory_limit)
        tally.merge(self._parts("filter", local_tasks.filter_bucket, buckets))
        done.discard("clean")
        done.discard("duplicates")
        return tally, self._write(tally)

    def _parts(
        self, stage: str, function: Callable[[Plan, int], None], tasks: Sequence[int]
    ) -> Tally:
        """Does a stage's tasks; its tally."""
        found = self._workdir.finished(stage)
        if found is None:
            self._workdir.directory(stage)
            self._tasks(stage, function, tasks)
            tally = Tally()
            for task in tasks:
                tally.merge(Tally.from_json(Part(self._plan.part(stage, task)).extra))
            found = tally.to_json()
            self._workdir.finish(stage, found)
        return Tally.from_json(found)

    def _duplicates(self, memory_limit: int) -> None:
        if self._workdir.finished("duplicates") is None:
            self._workdir.directory("duplicates")
            self._workdir.directory("spill")
            self._progress("duplicates", 0, 1)
            find = functools.partial(
                _find, self._plan, threads=self._workers, memory_limit=memory_limit
            )
            for _ in run_tasks(find, [0], workers=self._workers):
                self._progress("duplicates", 1, 1)
            self._workdir.finish("duplicates", {})
        self._workdir.discard("keys")
        self._workdir.discard("spill")

    def _write(self, tally: Tally) -> list[Shard]:
        plan = self._plan
        splits = _splits(plan.cleaning, tally)
        shards = [
            (split, shard) for split in splits for shard in range(shards_in(split, plan.num_shards))
        ]
        self._workdir.directory("write")
        self._tasks("write", local_tasks.write_one, shards)
        return [
            Shard(**file)
            for split, shard in shards
            for file in json.loads(plan.shard(split, shard).read_bytes())
        ]

    def _tasks(self, stage: str, function: Callable[..., None], tasks: Sequence[Any]) -> None:
        self._progress(stage, 0, len(tasks))
        results = run_tasks(functools.partial(function, self._plan), tasks, workers=self._workers)
        for count, _ in enumerate(results, start=1):
            self._progress(stage, count, len(tasks))


def _find(plan: Plan, _: int, *, threads: int, memory_limit: int) -> None:
    local_tasks.find_all(plan, threads=threads, memory_limit=memory_limit)


def _splits(cleaning: Cleaning, tally: Tally) -> list[str]:
    """The splits that there are, each with all of its shards, be they empty."""
    if not cleaning.splits_by_language:
        return ["train", "validation"] if cleaning.validation_modulus else ["train"]
    languages = {split.removesuffix("-validation") for split in tally.splits}
    both = ("", "-validation") if cleaning.validation_modulus else ("",)
    return [language + suffix for language in sorted(languages) for suffix in both]
