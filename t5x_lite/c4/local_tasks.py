"""What the workers of the local driver do: a task reads the parts of one stage and writes one part.

    read_file      an input file           -> pages, by bucket
    clean_bucket   a bucket's pages        -> cleaned pages in order, and keys for deduplication
    find_all       all keys                -> what each page loses
    filter_bucket  cleaned pages, losses   -> pages to be written, by shard
    write_one      a shard's pages         -> the shard

A bucket is a range of the MD5 of normalized URLs, so all pages of a URL are in one. Nothing here
depends on who does a task, or when; a task whose part is there is done.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import find_losers, owner_key, read_losers, write_keys
from t5x_lite.c4.inputs import Input
from t5x_lite.c4.output import Kind, order_key, shard_of, shards_in, write_shard
from t5x_lite.c4.pages import Page, Tally, page_rank
from t5x_lite.c4.parts import Part, PartWriter
from t5x_lite.c4.reading import read_pages
from t5x_lite.c4.stages import Rules
from t5x_lite.c4.urls import normalize_url, url_digest
from t5x_lite.c4.warc import MAX_RECORD_BYTES
from t5x_lite.files import write_atomically

_DIGEST_SPACE = 1 << 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all tasks of a run know.

    Attributes:
      output: the directory of the shards.
      work: the directory of the stages' parts.
      cleaning: the rules.
      inputs: the files, in order.
      num_buckets: see above.
      num_shards: of the training split.
      kinds: of files to be written.
      max_record_bytes: see `read_pages`.
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
        """The path of a part."""
        return self.work / stage / f"{number:06d}.part"

    @property
    def losers(self) -> Path:
        """What pages lose in deduplication."""
        return self.work / "duplicates" / "losers.parquet"

    def shard(self, split: str, shard: int) -> Path:
        """What is known of a shard that was written."""
        return self.work / "write" / f"{split}-{shard:05d}.json"


@functools.lru_cache(1)
def _rules(cleaning: Cleaning) -> Rules:
    return Rules(cleaning)


def read_file(plan: Plan, number: int) -> None:
    """Stages 1 and 2 for an input file."""
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
    """Stages 3 and 4 for a bucket, and the keys of what is left."""
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
    """One page of each URL; no more than these are held."""
    kept: dict[bytes, Page] = {}
    for digest, page in _decoded(records):
        kept[digest] = rules.newer(kept.get(digest), page, tally)
    for page in kept.values():
        tally.page_out("url_dedup", page)
    return kept.items()


def _entries(rules: Rules, page: Page, number: int) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Each key of a page once, where it occurs first."""
    keys = rules.keys(page)
    if not keys:
        return
    owner = owner_key(url_digest(page.url), number)
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    for key, position in first.items():
        yield key, owner, number, position


def find_all(plan: Plan, *, threads: int, memory_limit: int) -> None:
    """What each page loses in stage 5."""
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
    """Stages 5 to 7 for a bucket, by shard."""
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
    """Stage 8 for a shard."""
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
    """The buckets in which a shard's pages are."""
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
