"""Deduplication of lines or spans, and the stages of C4 in order, as both drivers run them.

Deduplication of C4: each line, or each span of three sentences, is kept on only one page.

DuckDB finds lines or spans of sentences that occur on several pages, and the pages from which they
are removed ("lost"):

    write_keys(path, bucket=3, entries=[(key, owner, page, position), ...])
    find_losers(directory, losers, ...)
    read_losers(losers, bucket=3) == {page: [position, ...]}

A key is a 16-byte hash of a line or span, and an owner is 16 bytes that identify a page. Among all
pages with a key, the page with the smallest owner keeps the line or span. DuckDB first finds the
keys that occur more than once by half of their bytes, so that few rows remain for the exact
comparison, and uses the disk if memory is short.

Line deduplication keeps each line on only one page, as in the published C4.

Source: c4_utils.remove_duplicate_text. Lines are compared stripped and in lower case. Among all
pages with a line, the one with the smallest MD5 of its URL keeps the first occurrence. Then a page
with too few sentences is dropped; sentences are counted in the joined text, in which a line that
ends in "etc." continues in the next line.

The drivers find the owner of a line with `line_keys` and `pages.page_rank`:

    for number, key in enumerate(line_keys(page.text)):
        smallest page_rank of all pages with this key is not this page's -> `number` is lost
    remove_lines(page, lost, cleaning, counter, tally)

`remove_lines` itself finds lines that a page repeats, so they need not be among the lost lines.

Span deduplication keeps one occurrence of every span of three sentences, as in the paper.

Source: Raffel et al. (JMLR 2020), section 2.2: "we discarded all but one of any three-sentence span
occurring more than once in the data set." The paper does not define this for overlapping spans.
Here it is defined on the original text:

* A *window* is `span_sentences` consecutive sentences of a page, compared with repeated
  whitespace as single spaces. Shorter pages have no windows.
* Among all occurrences of a window, the first one on the page with the smallest `pages.page_rank`
  is kept. All others are *lost*.
* A sentence is removed if it belongs to a lost window, unless it also belongs to the kept
  occurrence of the same window on this page ("a a a a a" leaves "a a a").

Therefore the result does not depend on the order of pages, every sentence is kept on some page, and
no window occurs twice. The drivers find the owner of a window:

    for number, key in enumerate(span_keys(page.text, counter)):
        smallest page_rank of all pages with this key is not this page's -> `number` is lost
    remove_spans(page, lost, cleaning, counter, tally)

`remove_spans` itself finds windows that a page repeats, so they need not be among the lost windows.

Stages of C4 in order, for both drivers.

    rules = Rules(cleaning)
    page = rules.before_urls(page, tally)           # length, domains
    page = rules.newest(pages, tally)               # among pages with one normalized URL
    page = rules.after_urls(page, tally)            # URLs, paragraphs, lines
    rules.keys(page)                                # keys that are deduplicated across pages
    page = rules.remove(page, lost, tally)          # duplicates
    page = rules.finish(page, tally)                # language, bad words
    rules.split(page)                               # "train", "validation", or mC4's "fr"

Each method returns None for a page that is dropped. A stage that the config disables is not
counted.
"""

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.c4.bad_words import BadWordsFilter, DomainList, UrlList, load_domains, load_urls
from t5x_lite.c4.cleaning import (
    LanguageIdentifier,
    SentenceCounter,
    clean_page,
    keep_length,
    keep_paragraphs,
    load_counter,
)
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally, is_validation, newest
from t5x_lite.core.errors import InputError, install_command

_ROWS = 1 << 18
_REMEDY = "free disk space or give more memory, and run the same command again"


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise InputError(
            f"deduplicating needs duckdb, which is not installed; {install_command('c4')}"
        ) from error
    return duckdb


def check_installed() -> None:
    """Raise InputError if duckdb is not installed."""
    _duckdb()


@contextlib.contextmanager
def _connect(**settings: Any):
    duckdb = _duckdb()
    config = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    try:
        with duckdb.connect(config={**config, **settings}) as database:
            yield database
    except duckdb.Error as error:
        what = " ".join(str(error).split("\n")[0].split())[:300]
        raise InputError(f"deduplicating failed: {what}; {_REMEDY}") from error


def _quoted(path: str | os.PathLike[str]) -> str:
    return "'" + os.fspath(path).replace("'", "''") + "'"


def owner_key(url_digest: bytes, page: int) -> bytes:
    """Return 16 bytes that identify a page: a hash of the page's URL, and the page's number."""
    return url_digest[:12] + page.to_bytes(4, "big")


def write_keys(path: Path, bucket: int, entries: Iterable[tuple[bytes, bytes, int, int]]) -> None:
    """Write the deduplication keys of pages to a file."""
    rows = list(entries)
    keys = np.frombuffer(b"".join(row[0] for row in rows), ">u8").reshape(-1, 2)
    owners = np.frombuffer(b"".join(row[1] for row in rows), ">u8").reshape(-1, 2)
    numbers = np.array([row[2:] for row in rows], np.uint32).reshape(-1, 2)
    columns = {
        "key_high": keys[:, 0].astype(np.uint64),
        "key_low": keys[:, 1].astype(np.uint64),
        "owner_high": owners[:, 0].astype(np.uint64),
        "owner_low": owners[:, 1].astype(np.uint64),
        "page": numbers[:, 0].copy(),
        "position": numbers[:, 1].copy(),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _connect(threads=1) as database:
        database.register("columns", columns)
        database.execute(
            f"COPY (SELECT *, {bucket}::UINTEGER AS bucket FROM columns) TO {_quoted(temporary)} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROWS})"
        )
    _publish(temporary, path)


def _publish(unfinished: Path, path: Path) -> None:
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def find_losers(
    keys: Path, losers: Path, *, temporary: Path, threads: int, memory_limit: int
) -> int:
    """Find the duplicate lines or spans to remove from each page, and return their number."""
    unfinished = losers.with_name(f".{losers.name}.{os.getpid()}")
    with _connect(
        threads=threads,
        memory_limit=f"{max(memory_limit >> 20, 64)}MiB",
        temp_directory=str(temporary),
        preserve_insertion_order=False,
    ) as database:
        rows = f"read_parquet({_quoted(keys / '*.parquet')})"
        database.execute(
            f"CREATE TEMP TABLE repeated AS SELECT key_high FROM {rows} "
            "GROUP BY key_high HAVING count(*) > 1"
        )
        owner = "(owner_high::UHUGEINT << 64) | owner_low::UHUGEINT"
        database.execute(
            "CREATE TEMP TABLE candidates AS "
            f"SELECT key_high, key_low, {owner} AS owner, bucket, page, position "
            f"FROM {rows} SEMI JOIN repeated USING (key_high)"
        )
        database.execute(
            "CREATE TEMP TABLE winners AS SELECT key_high, key_low, min(owner) AS winner "
            "FROM candidates GROUP BY key_high, key_low HAVING count(*) > 1"
        )
        database.execute(
            "COPY (SELECT bucket, page, position FROM candidates "
            "JOIN winners USING (key_high, key_low) WHERE owner <> winner "
            f"ORDER BY bucket, page, position) TO {_quoted(unfinished)} "
            f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROWS})"
        )
        found = database.execute(f"SELECT count(*) FROM read_parquet({_quoted(unfinished)})")
        row = found.fetchone()
    _publish(unfinished, losers)
    return int(row[0]) if row else 0


def read_losers(losers: Path, bucket: int) -> dict[int, list[int]]:
    """Return the indices of duplicate lines or spans to remove, by page."""
    with _connect(threads=1) as database:
        found = database.execute(
            f"SELECT page, position FROM read_parquet({_quoted(losers)}) WHERE bucket = ?",
            [bucket],
        ).fetchnumpy()
    lost: dict[int, list[int]] = {}
    for page, position in zip(found["page"].tolist(), found["position"].tolist(), strict=True):
        lost.setdefault(page, []).append(position)
    return lost


def page_lines(text: str) -> list[str]:
    """Return the lines of a page in order; deduplication refers to lines by their index."""
    return text.split("\n")


def line_key(line: str) -> bytes:
    """Return the key of a line: the MD5 of the stripped, lower-cased line, 16 bytes."""
    return hashlib.md5(
        line.strip().lower().encode("utf-8", "surrogatepass"), usedforsecurity=False
    ).digest()


def line_keys(text: str) -> list[bytes]:
    """Return the key of each line of a text."""
    return [line_key(line) for line in page_lines(text)]


def remove_lines(
    page: Page,
    lost: Collection[int],
    cleaning: Cleaning,
    counter: SentenceCounter,
    tally: Tally,
) -> Page | None:
    """Remove duplicate lines from a page; return None if too little text remains."""
    tally.page_in("dedup", page)
    elsewhere: list[str] = []
    above: list[str] = []
    kept: dict[str, str] = {}
    gone: set[str] = set()
    for number, line in enumerate(page_lines(page.text)):
        same = line.strip().lower()
        if same in kept:
            above.append(line)
        elif number in lost or same in gone:
            elsewhere.append(line)
            gone.add(same)
        else:
            kept[same] = line
    if elsewhere:
        tally.drop_lines("dedup", "global_duplicate", page, elsewhere)
    if above:
        tally.drop_lines("dedup", "local_duplicate", page, above)
    return finish_dedup(page, "\n".join(kept.values()), cleaning, counter, tally)


def finish_dedup(
    page: Page, text: str, cleaning: Cleaning, counter: SentenceCounter, tally: Tally
) -> Page | None:
    """Return a page with its deduplicated text, or None if too little text remains."""
    if not text:
        tally.drop_page("dedup", "empty", page)
        return None
    if not counter.at_least(text, cleaning.min_sentences_after_dedup):
        tally.drop_page("dedup", "too_few_sentences", page)
        return None
    left = page.with_text(text)
    tally.page_out("dedup", left)
    return left


def page_sentences(text: str, counter: SentenceCounter) -> list[str]:
    """Return the sentences of a page; each line is divided into sentences separately."""
    return [sentence for line in text.split("\n") for sentence in counter.sentences(line)]


def span_keys(text: str, counter: SentenceCounter, *, n: int = 3) -> list[bytes]:
    """Return a key of each group of `n` consecutive sentences, by which duplicates are found."""
    return _keys(page_sentences(text, counter), n)


def remove_spans(
    page: Page,
    lost: Collection[int],
    cleaning: Cleaning,
    counter: SentenceCounter,
    tally: Tally,
) -> Page | None:
    """Remove duplicate groups of sentences from a page; return None if too little text remains."""
    tally.page_in("dedup", page)
    lines = page.text.split("\n")
    divided = [counter.sentences(line) for line in lines]
    flat = [sentence for sentences in divided for sentence in sentences]
    removed = _removed(_keys(flat, cleaning.span_sentences), lost, cleaning.span_sentences)
    if not removed:
        return finish_dedup(page, page.text, cleaning, counter, tally)
    tally.drop_lines("dedup", "repeated_span", page, [flat[number] for number in sorted(removed)])
    left, number = [], 0
    for line, sentences in zip(lines, divided, strict=True):
        stay = [text for place, text in enumerate(sentences, number) if place not in removed]
        number += len(sentences)
        if len(stay) == len(sentences):
            left.append(line)
        elif stay:
            left.append(" ".join(stay))
    return finish_dedup(page, "\n".join(left), cleaning, counter, tally)


def _keys(sentences: Sequence[str], n: int) -> list[bytes]:
    digests = [
        hashlib.md5(
            " ".join(sentence.split()).encode("utf-8", "surrogatepass"), usedforsecurity=False
        ).digest()
        for sentence in sentences
    ]
    return [
        hashlib.md5(b"".join(digests[first : first + n]), usedforsecurity=False).digest()
        for first in range(len(digests) - n + 1)
    ]


def _removed(keys: Sequence[bytes], lost: Collection[int], n: int) -> set[int]:
    kept: dict[bytes, int] = {}
    gone: set[bytes] = set()
    removed: set[int] = set()
    for number, key in enumerate(keys):
        if key in kept:
            removed.update(range(max(number, kept[key] + n), number + n))
        elif number in lost or key in gone:
            removed.update(range(number, number + n))
            gone.add(key)
        else:
            kept[key] = number
    return removed


class Rules:
    """Cleaning rules of a config, which load their lists and models on first use.

    Attributes:
      cleaning: config of the rules.
    """

    def __init__(self, cleaning: Cleaning):
        self.cleaning = cleaning

    @cached_property
    def counter(self) -> SentenceCounter:
        """Counter of sentences, which is loaded on first use."""
        return load_counter()

    @cached_property
    def _domains(self) -> DomainList:
        return load_domains(self.cleaning.domains)

    @cached_property
    def _urls(self) -> UrlList:
        return load_urls(self.cleaning.urls)

    @cached_property
    def _language(self) -> LanguageIdentifier:
        return LanguageIdentifier(self.cleaning)

    @cached_property
    def _bad_words(self) -> BadWordsFilter:
        return BadWordsFilter(self.cleaning)

    def load(self) -> None:
        """Load all lists and models that the config needs, to find missing files early."""
        _ = self.counter
        if self.cleaning.domains:
            _ = self._domains
        if self.cleaning.urls:
            _ = self._urls
        if self.cleaning.languages:
            _ = self._language
        if self.cleaning.bad_words:
            _ = self._bad_words

    def before_urls(self, page: Page, tally: Tally) -> Page | None:
        """Filter a page by length and domain; return None if the page is dropped."""
        kept = keep_length(page, self.cleaning, tally)
        if kept is not None and self.cleaning.domains:
            kept = self._domains.keep(kept, tally)
        return kept

    def newest(self, pages: Iterable[Page], tally: Tally) -> Page:
        """Return the newest page of one URL, and count the others as dropped."""
        kept = None
        for page in pages:
            kept = self.newer(kept, page, tally)
        if kept is None:
            raise ValueError("cannot select the newest page, because the list of pages is empty")
        tally.page_out("url_dedup", kept)
        return kept

    def newer(self, kept: Page | None, page: Page, tally: Tally) -> Page:
        """Return the newer of two pages with the same URL, and count the other page as dropped."""
        tally.page_in("url_dedup", page)
        if kept is None:
            return page
        winner = newest((kept, page))
        tally.drop_page("url_dedup", "older", page if winner is kept else kept)
        return winner

    def after_urls(self, page: Page, tally: Tally) -> Page | None:
        """Filter a page by URL, paragraphs and lines; return None if the page is dropped."""
        kept: Page | None = page
        if self.cleaning.urls:
            kept = self._urls.keep(page, tally)
        if kept is not None and self.cleaning.min_paragraphs:
            kept = keep_paragraphs(kept, self.cleaning, tally)
        if kept is not None and self.cleaning.clean_lines:
            kept = clean_page(kept, self.cleaning, self.counter, tally)
        return kept

    def keys(self, page: Page) -> list[bytes]:
        """Return the keys of a page's lines or groups of sentences, to find duplicates."""
        if self.cleaning.dedup == "lines":
            return line_keys(page.text)
        if self.cleaning.dedup == "spans":
            return span_keys(page.text, self.counter, n=self.cleaning.span_sentences)
        return []

    def remove(self, page: Page, lost: Collection[int], tally: Tally) -> Page | None:
        """Remove the lines or groups of sentences with the indices `lost` from a page."""
        if self.cleaning.dedup == "lines":
            return remove_lines(page, lost, self.cleaning, self.counter, tally)
        if self.cleaning.dedup == "spans":
            return remove_spans(page, lost, self.cleaning, self.counter, tally)
        return page

    def finish(self, page: Page, tally: Tally) -> Page | None:
        """Filter a page by language and bad words; return None if the page is dropped."""
        kept: Page | None = page
        if self.cleaning.languages:
            kept = self._language.keep(page, tally)
        if kept is not None and self.cleaning.bad_words:
            kept = self._bad_words.keep(kept, tally)
        return kept

    def split(self, page: Page) -> str:
        """Return the name of the split that contains a page, such as "train" or "fr-validation".

        Source: c4.C4._split_generators.
        """
        validation = is_validation(page.url, modulus=self.cleaning.validation_modulus)
        if not self.cleaning.splits_by_language:
            return "validation" if validation else "train"
        return f"{page.language}-validation" if validation else page.language
