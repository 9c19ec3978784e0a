"""Driver of C4 for clusters, with Apache Beam; its output is the same as the local driver's.

    run(expand_inputs(["gs://B/wet.paths"]), "gs://B/c4", released(), runner="DataflowRunner",
        options=["--project=P", "--region=R", "--temp_location=gs://B/tmp"])

    files -> read, length, domains                one element per file
          -> by normalized URL: the newest        GroupByKey
          -> URLs, paragraphs, clean lines
          -> by line (or span): find the owner    GroupByKey
          -> by page: remove what others keep     CoGroupByKey
          -> language, bad words
          -> by shard: sort and write             GroupByKey

Every stage yields its pages and, in the same collection, one tally of counts per bundle. The
tallies are merged at the end. If a runner repeats a bundle, only the tally of the successful run is
used, so the counts are exact on every runner, unlike Beam's own counters.

To work on every runner, the pipeline has no side inputs and no tagged outputs, keys are bytes, text
and numbers, and the result is a collection with one element (reasons: docs/guides/c4.md).
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.pvalue import PValue
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from t5x_lite.c4.cluster import (
    ByShard,
    CarriedRules,
    Clean,
    CleanNewest,
    Finish,
    Job,
    Keys,
    Owner,
    Read,
    RemoveAndFinish,
    Result,
    ShardKey,
    Work,
    Write,
    empty_shards,
    largest,
    losers,
)
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import Rules
from t5x_lite.c4.output import Kind, Shard, describe_run
from t5x_lite.c4.pages import Input, Page, Tally, normalize_url, page_rank, url_digest
from t5x_lite.core.beam import DASK, pipeline_options
from t5x_lite.core.errors import InputError
from t5x_lite.core.project import safe_path
from t5x_lite.core.remote import open_path, write_whole

_DOMAIN_GROUPS = 64


def run(
    inputs: Sequence[Input],
    output: str,
    cleaning: Cleaning,
    *,
    runner: str,
    options: Sequence[str] = (),
    num_shards: int = 1024,
    kinds: Sequence[Kind] = ("json",),
    report: Callable[[Tally], None] | None = None,
) -> Tally:
    """Build C4 from WET or WARC files on a cluster, and return the counts of its pages.

    If this process ends before the cluster's job, run the command again when the job has finished.
    A failed job starts again from the beginning.
    """
    if not inputs:
        raise InputError("no input was given; give WET or WARC files")
    if not 1 <= num_shards <= 99_999:
        raise InputError("--num-shards must be between 1 and 99999")
    found = pipeline_options(runner, options)
    rules = Rules(cleaning)
    rules.load()
    ordered = sorted(inputs, key=lambda file: file.path)
    job = Job(
        output,
        describe_run(
            cleaning=cleaning,
            inputs=ordered,
            sentences=rules.counter.name,
            num_shards=num_shards,
            kinds=kinds,
        ),
    )
    if job.complete is not None:
        return job.complete
    try:
        result = job.read_result()
        if result is None:
            every = 1 if found.view_as(StandardOptions).runner == DASK else 0
            with safe_path(), beam.Pipeline(options=found) as pipeline:
                build(
                    pipeline,
                    [file.path for file in ordered],
                    cleaning,
                    output=job.output,
                    result=job.result,
                    num_shards=num_shards,
                    kinds=tuple(kinds),
                    tally_every=every,
                )
            result = job.read_result()
        if result is None:
            raise RuntimeError(
                f"the pipeline ended without writing {job.result}; see the runner's log"
            )
        if report is not None:
            report(result.tally)
        job.finish(result)
    finally:
        job.close()
    return result.tally


def build(
    pipeline: beam.Pipeline,
    paths: Sequence[str],
    cleaning: Cleaning,
    *,
    output: str,
    result: str,
    num_shards: int,
    kinds: tuple[Kind, ...] = ("json",),
    tally_every: int = 0,
) -> PValue:
    """Add the stages of the C4 build to a Beam pipeline, and return the last stage."""
    rules = CarriedRules(cleaning)
    tallies: list[PValue] = []

    def stage(name: str, given: PValue, work: Work) -> PValue:
        both = given | name >> beam.ParDo(_Stage(work, tally_every=tally_every))
        tallies.append(both | f"{name}: tallies" >> beam.Filter(_is_tally))
        return both | f"{name}: pages" >> beam.Filter(_is_page).with_output_types(Page)

    files = pipeline | "files" >> beam.Create(list(paths)) | "spread" >> beam.Reshuffle()
    pages = stage("read", files, Read(rules))
    if cleaning.dedup_urls:
        groups = pages | "key by URL" >> beam.Map(_by_url) | "one URL" >> beam.GroupByKey()
        pages = stage("newest, clean", groups, CleanNewest(rules))
    else:
        pages = stage("clean", pages, Clean(rules))
    if cleaning.dedup == "none":
        pages = stage("language, bad words", pages, Finish(rules))
    else:
        owners = pages | "keys" >> beam.ParDo(_Keys(Keys(rules))) | "one key" >> beam.GroupByKey()
        lost = owners | "losers" >> beam.FlatMap(losers)
        ranked = pages | "key by rank" >> beam.Map(_by_rank)
        joined = {"pages": ranked, "lost": lost} | "one page" >> beam.CoGroupByKey()
        pages = stage("remove, language, bad words", joined, RemoveAndFinish(rules))
    keyed = pages | "key by shard" >> beam.Map(ByShard(cleaning, num_shards))
    empty = _all_shards(pipeline, keyed, cleaning, num_shards)
    shards = (keyed, empty) | "with all" >> beam.Flatten() | "one shard" >> beam.GroupByKey()
    writer = Write(rules, output=output, num_shards=num_shards, kinds=kinds)
    written = shards | "write" >> beam.ParDo(_Stage(writer, tally_every=tally_every))
    tallies.append(written | "write: tallies" >> beam.Filter(_is_tally))
    total = (
        tallies
        | "all tallies" >> beam.Flatten()
        | "tallies by nothing" >> beam.Map(_by_nothing)
        | "merge" >> beam.CombinePerKey(_Merge())
        | "total" >> beam.Values()
    )
    names = written | "write: shards" >> beam.Filter(_is_shard)
    return (
        (total, names, _domains(written))
        | "all counts" >> beam.Flatten()
        | "by nothing" >> beam.Map(_by_nothing)
        | "one result" >> beam.GroupByKey()
        | "collect" >> beam.ParDo(_Collect(result))
    )


def _all_shards(
    pipeline: beam.Pipeline, keyed: PValue, cleaning: Cleaning, num_shards: int
) -> PValue:
    """Return the keys of all output shards, including empty shards."""
    if cleaning.splits_by_language:
        languages = keyed | "language" >> beam.Map(_language) | "each once" >> beam.Distinct()
    else:
        languages = pipeline | "no language" >> beam.Create([""])
    return languages | "all shards" >> beam.FlatMap(
        empty_shards, cleaning.validation_modulus, num_shards
    )


def _language(keyed: tuple[ShardKey, Page]) -> str:
    return keyed[0][0].removesuffix("-validation")


class _Stage(beam.DoFn):
    """Beam stage that applies a step of the C4 build to each element.

    Args:
      work: the step to apply.
      tally_every: number of elements after which page counts are output; 0 for once per bundle.
    """

    def __init__(self, work: Work, *, tally_every: int):
        super().__init__()
        self._work, self._every = work, tally_every

    def setup(self) -> None:
        self._work.setup()

    def start_bundle(self) -> None:
        self._tally = Tally()
        self._count = 0

    def process(self, element: Any) -> Iterator[Any]:
        yield from self._work(element, self._tally)
        self._count += 1
        if self._count == self._every:
            yield from self._counts()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._count:
            for counts in self._counts():
                yield WindowedValue(counts, MIN_TIMESTAMP, (GlobalWindow(),))

    def _counts(self) -> Iterator[str | dict[str, int]]:
        if self._tally.domains:
            yield dict(self._tally.domains)
            self._tally.domains.clear()
        yield json.dumps(self._tally.to_json())
        self.start_bundle()


class _Keys(beam.DoFn):
    def __init__(self, work: Keys):
        super().__init__()
        self._work = work

    def setup(self) -> None:
        self._work.setup()

    def process(self, element: Page) -> Iterator[tuple[bytes, Owner]]:
        yield from self._work(element, Tally())


def _domains(written: PValue) -> PValue:
    return (
        written
        | "write: domains" >> beam.Filter(_is_domains)
        | "pages of domains" >> beam.FlatMap(_counts)
        | "sum" >> beam.CombinePerKey(sum)
        | "key by group" >> beam.Map(_by_group)
        | "one group" >> beam.GroupByKey()
        | "largest" >> beam.Map(_largest_of_group)
    )


class _Merge(beam.CombineFn):
    """Beam combiner that adds page counts given as JSON."""

    def create_accumulator(self) -> Tally:
        return Tally()

    def add_input(self, mutable_accumulator: Tally, element: str) -> Tally:
        return mutable_accumulator.merge(Tally.from_json(json.loads(element)))

    def merge_accumulators(self, accumulators: Iterable[Tally]) -> Tally:
        total = Tally()
        for tally in accumulators:
            total.merge(tally)
        return total

    def extract_output(self, accumulator: Tally) -> str:
        return json.dumps(accumulator.to_json())


class _Collect(beam.DoFn):
    """Beam stage that writes the result file of the pipeline, and yields its path."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def process(self, element: tuple[bytes, Iterable[Any]]) -> Iterator[str]:
        values = list(element[1])
        result = Result.of(
            (Tally.from_json(json.loads(value)) for value in values if _is_tally(value)),
            (value for value in values if _is_shard(value)),
            (value for value in values if isinstance(value, tuple)),
        )
        write_whole(open_path(self._path), json.dumps(result.to_json()).encode())
        yield self._path


# Functions for Map, FlatMap and Filter; functions of a module are pickled by name.


def _is_page(element: Any) -> bool:
    return isinstance(element, Page)


def _is_tally(element: Any) -> bool:
    return isinstance(element, str)


def _is_shard(element: Any) -> bool:
    return isinstance(element, Shard)


def _is_domains(element: Any) -> bool:
    return isinstance(element, dict)


def _by_url(page: Page) -> tuple[bytes, Page]:
    return url_digest(normalize_url(page.url)), page


def _by_rank(page: Page) -> tuple[bytes, Page]:
    return page_rank(page), page


def _by_nothing(element: Any) -> tuple[bytes, Any]:
    return b"", element


def _by_group(count: tuple[str, int]) -> tuple[int, tuple[str, int]]:
    return zlib.crc32(count[0].encode("utf-8", "replace")) % _DOMAIN_GROUPS, count


def _counts(domains: dict[str, int]) -> list[tuple[str, int]]:
    return list(domains.items())


def _largest_of_group(
    element: tuple[int, Iterable[tuple[str, int]]],
) -> tuple[int, list[tuple[str, int]]]:
    counts = list(element[1])
    return len(counts), largest(counts)
