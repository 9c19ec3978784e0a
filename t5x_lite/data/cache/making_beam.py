"""Writing of offline caches with Apache Beam, on clusters.

    write_cache(data, vocabulary, "/shared/caches/c4", runner="FlinkRunner",
                options=["--flink_master=host:8081"])

    shards of the task's source                one element a shard
        -> run the task, write tokens
        -> list of written parts               GroupByKey, one element

The output's directory and the task's files must have the same paths on all workers. The launching
process joins the parts in the order of the source's shards and writes the index last, so the cache
has the same bytes for any number and order of workers. The examples are in the order of the
source's files, while `making` interleaves several files; for a single file both caches are equal.

The pipeline has no side inputs or tagged outputs, writes only in `process`, and ends in one
element, to work on every runner (reasons: docs/guides/c4.md).
"""

import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PValue

from t5x_lite.core.beam import pipeline_options
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically
from t5x_lite.core.project import safe_path
from t5x_lite.data.cache.files import Index, check_local
from t5x_lite.data.cache.making import (
    SHARD_BYTES,
    Job,
    goes_without,
    index_of,
    load_job,
    new_cache,
    write_index,
)
from t5x_lite.data.cache.parts import Part, PartWriter, UnsharedError, check_shards, join, shards_of
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import Vocabulary

_logger = logging.getLogger(__name__)

_PARTS, _RESULT = "parts", "result.json"
_BEGIN, _END = "<unshared>", "</unshared>"


def write_cache(
    data: Data,
    vocabulary: Vocabulary,
    output: str | Path,
    *,
    runner: str,
    options: Sequence[str] = (),
    splits: Sequence[str] | None = None,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
) -> Index:
    """Tokenize a task on a Beam cluster, write the tokens to a cache, and return its index."""
    found = pipeline_options(runner, options)
    try:
        check_local(output, what="--output")
    except InputError as error:
        raise InputError(f"{error}; every Beam worker must use the same --output path") from error
    job = load_job(data, vocabulary, splits=splits, seed=seed, bake=False)
    counts = _counts(job, splits)
    with new_cache(output) as directory:
        parts = directory / _PARTS
        parts.mkdir()
        work = PartWriter.of(job, parts, counts=counts, shard_bytes=shard_bytes)
        shards = [(split, number) for split, count in counts.items() for number in range(count)]
        written = _run(found, work, shards, result=parts / _RESULT, runner=runner)
        joined = {}
        for split in counts:
            of_split = [part for part in written if part.split == split]
            whole = join(split, of_split, where=parts, directory=directory)
            if whole is None:
                goes_without(job, split, asked=bool(splits))
            else:
                joined[split] = whole
        shutil.rmtree(parts, ignore_errors=True)  # an abandoned worker may still write there
        index = index_of(job, joined)
        write_index(directory, index, vocabulary)
    return index


def _counts(job: Job, splits: Sequence[str] | None) -> dict[str, int]:
    counts = {}
    for split in splits or job.task.splits:
        counts[split] = len(shards_of(job, split))
        if not counts[split]:
            goes_without(job, split, asked=bool(splits))
            del counts[split]
            continue
        check_shards(job, split, counts[split])
        if counts[split] == 1:
            _logger.warning(
                "running split %s on a single worker, because its source has only one shard", split
            )
    if not counts:
        goes_without(job, next(iter(job.task.splits), "train"), asked=True)
    return counts


def _run(
    options: Any, work: PartWriter, shards: Sequence[tuple[str, int]], *, result: Path, runner: str
) -> list[Part]:
    try:
        with safe_path(), beam.Pipeline(options=options) as pipeline:
            build(pipeline, shards, work, result=str(result))
    except Exception as error:
        message = str(error)
        if _BEGIN in message:
            raise InputError(message.split(_BEGIN, 1)[1].split(_END, 1)[0]) from error
        last = [line for line in message.splitlines() if line.strip()][-1:]
        raise RuntimeError(
            f"Beam runner {runner} failed: {' '.join(last) or type(error).__name__}"
        ) from error
    if not result.is_file():
        raise RuntimeError(f"the Beam pipeline ended without a result; see the log of {runner}")
    found = [Part.from_json(node) for node in json.loads(result.read_bytes())]
    once = {(part.split, part.number): part for part in found}
    if once.keys() != set(shards):
        raise RuntimeError(
            f"the Beam pipeline wrote only {len(once)} of {len(shards)} shards; see the log of "
            f"{runner}"
        )
    return list(once.values())


def build(
    pipeline: beam.Pipeline, shards: Sequence[tuple[str, int]], work: PartWriter, *, result: str
) -> PValue:
    """Extend a Beam pipeline by the stages that write a cache, and return the last stage."""
    return (
        pipeline
        | "shards" >> beam.Create(list(shards))
        | "spread" >> beam.Reshuffle()
        | "write" >> beam.ParDo(_Write(work))
        | "by nothing" >> beam.Map(_by_nothing)
        | "one result" >> beam.GroupByKey()
        | "collect" >> beam.ParDo(_Collect(result))
    )


class _Write(beam.DoFn):
    """Beam stage that tokenizes one shard of a task's source and yields a summary as JSON."""

    def __init__(self, work: PartWriter):
        super().__init__()
        self._work = work

    def process(self, element: tuple[str, int]) -> Iterator[str]:
        try:
            part = self._work(*element)
        except UnsharedError as error:
            raise UnsharedError(f"{_BEGIN}{error}{_END}") from error
        yield json.dumps(part.to_json())


class _Collect(beam.DoFn):
    """Beam stage that writes the summaries of all shards to a file and yields the file's path."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def process(self, element: tuple[bytes, Iterable[str]]) -> Iterator[str]:
        parts = [json.loads(part) for part in element[1]]
        write_atomically(Path(self._path), json.dumps(parts).encode())
        yield self._path


def _by_nothing(element: str) -> tuple[bytes, str]:
    return b"", element
