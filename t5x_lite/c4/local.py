"""Driver of C4 on one machine, with several processes, and DuckDB for deduplication.

    tally = run(
        expand_inputs(["crawl/*.warc.wet.gz"]), "c4", released(), workers=8,
        progress=lambda stage, done, total: print(stage, done, total),
    )

The shards have the same bytes for every number of workers and every order of the inputs, even if
the run was killed and resumed. Each task's result is a file that is either complete or absent, and
depends only on the task. Memory does not grow with the input: a worker needs memory for one record,
or for a bucket of about 8 MB of text (`BUCKET_BYTES`); DuckDB has a memory limit and uses the disk
beyond it. The disk needs about twice the size of the uncompressed text.

A task of the local driver reads parts of the previous stage and writes one part:

    read_file      an input file           -> pages, by bucket
    clean_bucket   a bucket's pages        -> cleaned pages in order, and keys for deduplication
    find_all       all keys                -> losses of each page
    filter_bucket  cleaned pages, losses   -> pages to be written, by shard
    write_one      a shard's pages         -> the shard

A bucket is a range of the MD5 of normalized URLs, so all pages of a URL are in one bucket. A task
with an existing part is skipped.

`run_tasks` runs tasks in any order in a pool of processes:

    for result in run_tasks(function, tasks, workers=8): ...

If this process ends for any reason, its workers end too. If a worker is killed (out of memory), an
error is raised. Scripts and notebooks may call this function without a main guard.

`show_progress` shows progress bars on a terminal, or else occasional log lines.
"""

import dataclasses
import functools
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from t5x_lite.c4 import dedup, output
from t5x_lite.c4 import pages as reading
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import Rules, find_losers, owner_key, read_losers, write_keys
from t5x_lite.c4.output import (
    Kind,
    Part,
    PartWriter,
    Shard,
    Workdir,
    describe_run,
    manifest,
    order_key,
    read_manifest,
    refuse_other,
    shard_of,
    shards_in,
    write_manifest,
    write_shard,
)
from t5x_lite.c4.pages import Input, Page, Tally, normalize_url, page_rank, read_pages, url_digest
from t5x_lite.c4.warc import MAX_RECORD_BYTES
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically
from t5x_lite.core.remote import local_path
from t5x_lite.core.workers import WorkerContext, above_a_bar, on_terminal, told

_DIGEST_SPACE = 1 << 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a C4 build on one machine.

    Attributes:
      output: directory of the shards.
      work: directory of the intermediate files.
      cleaning: cleaning rules.
      inputs: input files, in order.
      num_buckets: number of groups into which pages are divided by URL.
      num_shards: number of output shards of the training split.
      kinds: file formats of the output.
      max_record_bytes: maximum size of a WARC record in bytes.
    """

    output: Path
    work: Path
    cleaning: Cleaning
    inputs: tuple[Input, ...]
    num_buckets: int
    num_shards: int
    kinds: tuple[Kind, ...] = ("json",)
    max_record_bytes: int = MAX_RECORD_BYTES

    def part(self, stage: str, number: int) -> Path:
        """Return the path of a temporary file that one task writes."""
        return self.work / stage / f"{number:06d}.part"

    @property
    def losers(self) -> Path:
        """Path of the file that lists the duplicate lines or spans of pages."""
        return self.work / "duplicates" / "losers.parquet"

    def shard(self, split: str, shard: int) -> Path:
        """Return the path of the JSON description of a written shard."""
        return self.work / "write" / f"{split}-{shard:05d}.json"


@functools.lru_cache(1)
def _rules(cleaning: Cleaning) -> Rules:
    return Rules(cleaning)


def read_file(plan: Plan, number: int) -> None:
    """Read the pages of an input file, filter them by length and domain, and divide them by URL."""
    path = plan.part("read", number)
    if path.exists():
        return
    rules, tally = _rules(plan.cleaning), Tally()
    pages = read_pages(
        plan.inputs[number].path, plan.cleaning, tally, max_record_bytes=plan.max_record_bytes
    )
    with PartWriter(path) as part:
        for read in pages:
            page = rules.before_urls(read, tally)
            if page is not None:
                digest = url_digest(normalize_url(page.url))
                part.add(shard_of(digest, plan.num_buckets), (digest, *_fields(page)))
        part.extra = tally.to_json()


def clean_bucket(plan: Plan, bucket: int) -> None:
    """Clean the pages of one group of URLs, and write their deduplication keys."""
    path = plan.part("clean", bucket)
    if path.exists():
        return
    rules, tally = _rules(plan.cleaning), Tally()
    found = (
        record
        for number in range(len(plan.inputs))
        for record in Part(plan.part("read", number)).records(bucket)
    )
    pages = _newest(found, rules, tally) if plan.cleaning.dedup_urls else _decoded(found)
    pages = sorted(pages, key=itemgetter(0))
    entries: list[tuple[bytes, bytes, int, int]] = []
    with PartWriter(path) as part:
        number = 0
        for digest, same in itertools.groupby(pages, key=itemgetter(0)):
            kept = [page for _, read in same if (page := rules.after_urls(read, tally))]
            for page in sorted(kept, key=_total_order) if len(kept) > 1 else kept:
                part.add(0, (digest, *_fields(page)))
                entries += _entries(rules, page, number)
                number += 1
        if plan.cleaning.dedup != "none":
            write_keys(plan.work / "keys" / f"{bucket:06d}.parquet", bucket, entries)
        part.extra = tally.to_json()


def _newest(
    records: Iterable[list[Any]], rules: Rules, tally: Tally
) -> Iterable[tuple[bytes, Page]]:
    """Return the newest page of each URL; only these pages are kept in memory."""
    kept: dict[bytes, Page] = {}
    for digest, page in _decoded(records):
        kept[digest] = rules.newer(kept.get(digest), page, tally)
    for page in kept.values():
        tally.page_out("url_dedup", page)
    return kept.items()


def _entries(rules: Rules, page: Page, number: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    keys = rules.keys(page)
    if not keys:
        return
    owner = owner_key(url_digest(page.url), number)
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    for key, position in first.items():
        yield key, owner, number, position


def find_all(plan: Plan, *, threads: int, memory_limit: int) -> None:
    """Find the duplicate lines or spans to remove from each page."""
    if plan.losers.exists():
        return
    find_losers(
        plan.work / "keys",
        plan.losers,
        temporary=plan.work / "spill",
        threads=threads,
        memory_limit=memory_limit,
    )


def filter_bucket(plan: Plan, bucket: int) -> None:
    """Deduplicate and filter the pages of one group of URLs, and divide them by output shard."""
    path = plan.part("filter", bucket)
    if path.exists():
        return
    rules, tally = _rules(plan.cleaning), Tally()
    lost = read_losers(plan.losers, bucket) if plan.cleaning.dedup != "none" else {}
    pages = enumerate(_decoded(Part(plan.part("clean", bucket)).records(0)))
    with PartWriter(path) as part:
        for digest, same in itertools.groupby(pages, key=lambda found: found[1][0]):
            kept = []
            for number, (_, page) in same:
                left = rules.remove(page, frozenset(lost.get(number, ())), tally)
                left = None if left is None else rules.finish(left, tally)
                if left is not None:
                    kept.append(left)
            for page in sorted(kept, key=_output_order) if len(kept) > 1 else kept:
                split = rules.split(page)
                shard = shard_of(digest, shards_in(split, plan.num_shards))
                part.add(f"{split}/{shard}", (digest, *_fields(page)))
                tally.wrote(split, page)
        part.extra = tally.to_json()


def write_one(plan: Plan, which: tuple[str, int]) -> None:
    """Write the files of one output shard."""
    split, shard = which
    path = plan.shard(split, shard)
    if path.exists():
        return
    num_shards = shards_in(split, plan.num_shards)
    pages = (
        page
        for bucket in _buckets_of(shard, num_shards, plan.num_buckets)
        for _, page in _decoded(Part(plan.part("filter", bucket)).records(f"{split}/{shard}"))
    )
    written = write_shard(plan.output, split, shard, num_shards, pages, kinds=plan.kinds)
    write_atomically(path, json.dumps([dataclasses.asdict(file) for file in written]).encode())


def _buckets_of(shard: int, num_shards: int, num_buckets: int) -> range:
    first = -(-shard * _DIGEST_SPACE // num_shards)
    last = -(-(shard + 1) * _DIGEST_SPACE // num_shards) - 1
    return range(first * num_buckets // _DIGEST_SPACE, last * num_buckets // _DIGEST_SPACE + 1)


def _fields(page: Page) -> tuple[str, str, str, str, str, str]:
    return (
        page.url,
        page.text,
        page.timestamp,
        page.content_length,
        page.content_type,
        page.language,
    )


def _decoded(records: Iterable[list[Any]]) -> Iterator[tuple[bytes, Page]]:
    for digest, *fields in records:
        yield digest, Page(*fields)


def _total_order(page: Page) -> tuple[Any, ...]:
    return page_rank(page), page.content_length, page.content_type


def _output_order(page: Page) -> tuple[Any, ...]:
    return order_key(page), page.content_length, page.content_type


Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int
) -> Iterator[Result]:
    """Apply a function to each task in several processes, and yield the results."""
    if workers == 1:
        yield from map(function, tasks)
        return
    context = WorkerContext()
    pipe: Any = context.Pipe(duplex=False)
    theirs, ours = pipe
    pool = ProcessPoolExecutor(
        min(workers, max(1, len(tasks))), mp_context=context, initializer=_begin, initargs=(theirs,)
    )
    try:
        waiting = {pool.submit(function, task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"{context.why_broken()}; run the same command again to resume, with fewer workers if "
            "memory is short"
        ) from error
    finally:
        ours.close()  # ends the workers that still run a task
        pool.shutdown(wait=False, cancel_futures=True)
        theirs.close()


def _begin(parent: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    try:
        parent.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


BUCKET_BYTES = 1 << 23
MAX_BUCKETS = 1 << 12
_MIN_BUCKETS = 4
_GZIP_RATIO = 4
Progress = Callable[[str, int, int], None]
"""Type of a function that receives a stage, its finished tasks, and their total."""


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
    """Build C4 from WET or WARC files, or resume a killed build; return page counts."""
    directory = Path(os.path.abspath(local_path(output, what="--output")))
    if workers < 0 or num_shards < 1 or num_shards > 99_999:
        raise InputError("--workers must be at least 0, and --num-shards between 1 and 99999")
    if not inputs:
        raise InputError("no input was given; give WET or WARC files")
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
            f"--output {output} cannot be written ({error.strerror or error}); free disk space, "
            "and run the same command again to resume"
        ) from error
    finally:
        workdir.close()
    return tally


def _check(cleaning: Cleaning, inputs: Sequence[Input]) -> str:
    """Raise InputError if a list or package is missing; return the sentence counter's name."""
    rules = Rules(cleaning)
    rules.load()
    output.check_installed()
    if cleaning.dedup != "none":
        dedup.check_installed()
    if any(file.path.endswith((".warc", ".warc.gz")) for file in inputs):
        reading.check_installed()
    return rules.counter.name


def bucket_count(inputs: Sequence[Input]) -> int:
    """Return the number of groups into which pages are divided by URL, given the input files."""
    size = sum(file.size * (_GZIP_RATIO if file.path.endswith(".gz") else 1) for file in inputs)
    wanted = max(_MIN_BUCKETS, min(MAX_BUCKETS, size // BUCKET_BYTES))
    return 1 << (wanted - 1).bit_length()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


class _Driver:
    def __init__(self, plan: Plan, workdir: Workdir, workers: int, progress: Progress):
        self._plan, self._workdir = plan, workdir
        self._workers, self._progress = workers, progress

    def stages(self, memory_limit: int) -> tuple[Tally, list[Shard]]:
        """Run the unfinished stages of the build; return the page counts and the shards."""
        plan, done = self._plan, self._workdir
        largest_first = sorted(
            range(len(plan.inputs)), key=lambda number: -plan.inputs[number].size
        )
        buckets = range(plan.num_buckets)
        tally = Tally()
        tally.merge(self._parts("read", read_file, largest_first))
        done.directory("keys")
        tally.merge(self._parts("clean", clean_bucket, buckets))
        done.discard("read")
        if plan.cleaning.dedup != "none":
            self._duplicates(memory_limit)
        tally.merge(self._parts("filter", filter_bucket, buckets))
        done.discard("clean")
        done.discard("duplicates")
        return tally, self._write(tally)

    def _parts(
        self, stage: str, function: Callable[[Plan, int], None], tasks: Sequence[int]
    ) -> Tally:
        found = self._workdir.finished(stage)
        if found is None:
            self._workdir.directory(stage)
            left = [task for task in tasks if not self._plan.part(stage, task).exists()]
            self._tasks(stage, function, left, total=len(tasks))
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
        left = [shard for shard in shards if not plan.shard(*shard).exists()]
        self._tasks("write", write_one, left, total=len(shards))
        return [
            Shard(**file)
            for split, shard in shards
            for file in json.loads(plan.shard(split, shard).read_bytes())
        ]

    def _tasks(
        self, stage: str, function: Callable[..., None], tasks: Sequence[Any], *, total: int
    ) -> None:
        finished = total - len(tasks)  # by an earlier run
        self._progress(stage, finished, total)
        results = run_tasks(functools.partial(function, self._plan), tasks, workers=self._workers)
        for count, _ in enumerate(results, start=finished + 1):
            self._progress(stage, count, total)


def _find(plan: Plan, _: int, *, threads: int, memory_limit: int) -> None:
    find_all(plan, threads=threads, memory_limit=memory_limit)


def _splits(cleaning: Cleaning, tally: Tally) -> list[str]:
    if not cleaning.splits_by_language:
        return ["train", "validation"] if cleaning.validation_modulus else ["train"]
    languages = {split.removesuffix("-validation") for split in tally.splits}
    both = ("", "-validation") if cleaning.validation_modulus else ("",)
    return [language + suffix for language in sorted(languages) for suffix in both]


SECONDS_BETWEEN_LINES = 10.0
_WORDS = {
    "read": "reading files",
    "clean": "cleaning pages",
    "duplicates": "finding duplicates",
    "filter": "filtering pages",
    "write": "writing shards",
}


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Yield a function that shows progress bars on a terminal, and log lines elsewhere."""
    if on_terminal():
        with _bars() as progress:
            yield progress
    else:
        yield Lines()


class Lines:
    """Function object that logs progress, at most every 10 s."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._stage, self._shown = "", -SECONDS_BETWEEN_LINES

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = self._clock()
        if 0 < done < total and stage == self._stage and now - self._shown < SECONDS_BETWEEN_LINES:
            return
        self._stage, self._shown = stage, now
        print(f"{_WORDS.get(stage, stage)}  {done}/{total}", file=sys.stderr, flush=True)
        told()


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console) as shown, above_a_bar():
        tasks = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(_WORDS.get(stage, stage), total=total)
            shown.update(tasks[stage], completed=done, total=total)

        yield progress
