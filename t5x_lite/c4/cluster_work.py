"""The steps of C4 on a cluster as plain objects: what becomes of an element, and what is counted.

    work = Read(carried)             # pickled, and sent to a worker
    work.setup()
    for page in work("crawl.warc.wet.gz", tally): ...

Nothing here knows of Beam, and beam.py nothing of pages.
"""

import functools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from t5x_lite.c4.cluster import CarriedRules
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.output import Kind, Shard, order_key, shard_of, shards_in, write_shard
from t5x_lite.c4.pages import Page, Tally, page_rank
from t5x_lite.c4.reading import read_pages
from t5x_lite.c4.stages import Rules
from t5x_lite.c4.urls import normalize_url, url_digest
from t5x_lite.remote import is_remote, open_path

_COPY_BYTES = 1 << 24

Owner = tuple[bytes, int]
"""A page by its rank, and the number that a key has on it."""
ShardKey = tuple[str, int]
"""A split, and the number of a shard of it."""


class Work:
    """A step.

    Args:
      rules: of the run.
    """

    def __init__(self, rules: CarriedRules):
        self._carried = rules
        self._rules: Rules | None = None

    @property
    def rules(self) -> Rules:
        """The rules, once `setup` was called."""
        assert self._rules is not None
        return self._rules

    def setup(self) -> None:
        """Makes the step ready, on the machine that does it."""
        self._rules = self._carried.unpack()

    def __call__(self, element: Any, tally: Tally) -> Iterator[Any]:
        """What the step makes of an element; counts in `tally`."""
        raise NotImplementedError


class Read(Work):
    """A file's path to the pages that go on to deduplication by URL."""

    def __call__(self, element: str, tally: Tally) -> Iterator[Page]:
        for page in read_pages(element, self.rules.cleaning, tally):
            kept = self.rules.before_urls(page, tally)
            if kept is not None:
                yield kept


class Clean(Work):
    """A page to its good lines."""

    def __call__(self, element: Page, tally: Tally) -> Iterator[Page]:
        kept = self.rules.after_urls(element, tally)
        if kept is not None:
            yield kept


class CleanNewest(Clean):
    """The pages of one URL to the good lines of the newest."""

    def __call__(self, element: tuple[bytes, Iterable[Page]], tally: Tally) -> Iterator[Page]:
        yield from super().__call__(self.rules.newest(element[1], tally), tally)


class Finish(Work):
    """A page to what is in the output."""

    def __call__(self, element: Page, tally: Tally) -> Iterator[Page]:
        kept = self.rules.finish(element, tally)
        if kept is not None:
            yield kept


class RemoveAndFinish(Finish):
    """Pages of one rank, and what other pages keep of theirs, to what is in the output.

    Where URLs are not deduplicated, pages may be equal in all that the rank sees: all but one of
    them lose everything.
    """

    def __call__(
        self, element: tuple[bytes, Mapping[str, Iterable[Any]]], tally: Tally
    ) -> Iterator[Page]:
        pages = sorted(element[1]["pages"], key=_rest)
        lost = frozenset(element[1]["lost"])
        for index, page in enumerate(pages):
            taken = range(len(self.rules.keys(page))) if index else lost
            kept = self.rules.remove(page, taken, tally)
            if kept is not None:
                yield from super().__call__(kept, tally)


class Keys(Work):
    """A page to its lines or spans: (key, owner), each key once."""

    def __call__(self, element: Page, tally: Tally) -> Iterator[tuple[bytes, Owner]]:
        first: dict[bytes, int] = {}
        for number, key in enumerate(self.rules.keys(element)):
            first.setdefault(key, number)
        rank = page_rank(element)
        for key, number in first.items():
            yield key, (rank, number)


def losers(element: tuple[bytes, Iterable[Owner]]) -> Iterator[Owner]:
    """Of the owners of a key all but the smallest, in one pass over any number of them."""
    smallest: Owner | None = None
    for owner in element[1]:
        if smallest is None:
            smallest = owner
        elif owner[0] != smallest[0]:  # pages of one rank are one owner here
            yield max(owner, smallest)
            smallest = min(owner, smallest)


class ByShard:
    """A page to (shard, page)."""

    def __init__(self, cleaning: Cleaning, num_shards: int):
        self._rules, self._num_shards = Rules(cleaning), num_shards

    def __call__(self, element: Page) -> tuple[ShardKey, Page]:
        split = self._rules.split(element)
        digest = url_digest(normalize_url(element.url))
        return (split, shard_of(digest, shards_in(split, self._num_shards))), element


def empty_shards(
    language: str, validation_modulus: int, num_shards: int
) -> Iterator[tuple[ShardKey, None]]:
    """The shards of "train" and "validation" or, of a language, "fr" and "fr-validation"."""
    splits = [language or "train"]
    if validation_modulus:
        splits.append(f"{language}-validation" if language else "validation")
    for split in splits:
        for shard in range(shards_in(split, num_shards)):
            yield (split, shard), None


class Write(Work):
    """The pages of a shard to its files: gives each `Shard`."""

    def __init__(
        self, rules: CarriedRules, *, output: str, num_shards: int, kinds: tuple[Kind, ...]
    ):
        super().__init__(rules)
        self._output, self._num_shards, self._kinds = output, num_shards, kinds

    def setup(self) -> None:
        """Needs no rules."""

    def __call__(
        self, element: tuple[ShardKey, Iterable[Page | None]], tally: Tally
    ) -> Iterator[Shard]:
        (split, shard), values = element
        pages = sorted((page for page in values if page is not None), key=_output_order)
        for page in pages:
            tally.wrote(split, page)
        write = functools.partial(
            write_shard,
            split=split,
            shard=shard,
            num_shards=shards_in(split, self._num_shards),
            pages=pages,
            kinds=self._kinds,
        )
        if not is_remote(self._output):
            yield from write(Path(self._output))
            return
        with tempfile.TemporaryDirectory() as directory:
            for written in write(Path(directory)):
                _copy(Path(directory, written.name), f"{self._output}/{written.name}")
                yield written


def _copy(source: Path, target: str) -> None:
    """Copies a file to a bucket, where an object is there whole or not at all."""
    with source.open("rb") as file, open_path(target).open("wb") as copy:
        shutil.copyfileobj(file, copy, _COPY_BYTES)


def _rest(page: Page) -> tuple[str, str]:
    """What `page_rank` does not see."""
    return page.content_length, page.content_type


def _output_order(page: Page) -> tuple[bytes, str, str]:
    return order_key(page), *_rest(page)
