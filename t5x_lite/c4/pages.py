"""Pages of a crawl, normalized URLs, and tallies (counts) of pages.

A tally counts the pages of every stage. A stage calls `page_in` with each input page, and then
either `page_out` with its result or `drop_page` with the rule that dropped the page. `drop_lines`
counts lines that a rule removed from a page. Then for each stage

    pages_in == pages_out + the pages that its rules dropped

Tallies of parts of the input can be merged, in any order, to the tally of the complete input:

    total = Tally()
    for part in parts:
        total.merge(part)

Sample pages are selected by a hash of the URL, so they do not depend on the number or order of
parts.

Normalized URLs identify equal pages, and select the pages for validation.

    normalize_url("https://www.example.com/a/?utm_source=x") == "example.com/a"

Source: c4_utils.normalize_url and get_hashed_url_filter_fn, and the split predicates of
c4.C4._split_generators.
"""

import bisect
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SCHEME = re.compile(r"https?:\/\/(www\.)?")
_CAMPAIGN = re.compile(r"\?(utm_|ref|feed).*")


def normalize_url(url: str) -> str:
    """Return a URL without scheme, "www.", tails such as "?utm_source=x" and final slashes.

    As in Google's C4 code, a scheme is removed at any position ("a.com/?u=http://b.com" too).
    """
    if "://" in url:
        url = _SCHEME.sub("", url)
    if "?" in url:
        url = _CAMPAIGN.sub("", url)
    return url.rstrip("/")


def url_digest(url: str) -> bytes:
    """Return the MD5 of an unchanged URL, 16 bytes (c4_utils._hash_text)."""
    return hashlib.md5(url.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def url_md5(url: str) -> str:
    """Return the MD5 of an unchanged URL as 32 hexadecimal digits."""
    return url_digest(url).hex()


def url_number(url: str) -> int:
    """Return the MD5 of the normalized URL as an integer, which selects pages as in c4_utils."""
    return int.from_bytes(url_digest(normalize_url(url)), "big")


def is_validation(url: str, *, modulus: int = 1000) -> bool:
    """Return whether a page is in the validation split: one page in `modulus`, chosen by URL."""
    return bool(modulus) and url_number(url) % modulus == 0


def host(url: str) -> str:
    """Return the host of a URL in lower case, without user and port; "" if the host is missing."""
    _, mark, rest = url.partition("://")
    name = rest if mark else url
    for mark in "/?#\\":
        name = name.partition(mark)[0]
    name = name.rpartition("@")[2]
    if name.startswith("["):
        return name.partition("]")[0].lower() + "]"
    return name.partition(":")[0].strip(" .").lower()


def domain(url: str) -> str:
    """Return the host of a URL without "www.", for the report."""
    return host(url).removeprefix("www.")


STAGES = (
    "read",
    "length",
    "domains",
    "url_dedup",
    "urls",
    "paragraphs",
    "clean",
    "dedup",
    "language",
    "bad_words",
)
"""Names of the stages, in the order of c4.C4._get_pages_pcollection."""
SAMPLES = 20
"""Maximum number of samples per rule, with different URLs."""
SAMPLE_CHARS = 400
DAMAGED_NAMED = 1000
"""Maximum number of damaged records that are listed by path and offset; all are counted."""


@dataclass(frozen=True, slots=True)
class Page:
    r"""Web page of a crawl (c4_utils.PageFeatures without the normalized URL).

    Attributes:
      url: WARC-Target-URI, unchanged from the record.
      text: text of the page, with lines separated by "\n".
      timestamp: WARC-Date, such as "2019-04-24T09:23:58Z", which is compared as text.
      content_length: Content-Length, unchanged from the record.
      content_type: Content-Type of the record.
      language: language code; "" before the language stage.
    """

    url: str
    text: str
    timestamp: str
    content_length: str
    content_type: str
    language: str = ""

    def with_text(self, text: str) -> "Page":
        """Return the same page with another text."""
        return Page(
            self.url, text, self.timestamp, self.content_length, self.content_type, self.language
        )

    def with_language(self, language: str) -> "Page":
        return Page(
            self.url, self.text, self.timestamp, self.content_length, self.content_type, language
        )


def page_rank(page: Page) -> bytes:
    """Return the 48-byte rank of a page; the page with the smallest rank keeps a repeated line.

    The MD5 of the URL comes first (c4_utils.remove_duplicate_text: "Hash before comparison to avoid
    biasing by domain"). It is followed by the MD5 of the text and the MD5 of the timestamp, for
    several pages of one URL if URLs are not deduplicated.
    """
    parts = (page.url, page.text, page.timestamp)
    return b"".join(hashlib.md5(_utf8(part)).digest() for part in parts)


def newest(pages: Iterable[Page]) -> Page:
    """Return the newest of the pages with the same normalized URL.

    Source: c4_utils.select_newest_page. If timestamps are equal, Google's code keeps the first
    page. This function keeps the page with the smallest MD5 of the text (then the smallest
    `page_rank`, then the smallest other fields), so that the result does not depend on the order of
    the input.
    """
    candidates = list(pages)
    latest = max(page.timestamp for page in candidates)
    return min((page for page in candidates if page.timestamp == latest), key=_tie)


def _tie(page: Page) -> tuple[bytes, bytes, str, str]:
    rank = page_rank(page)
    return rank[16:32], rank, page.content_length, page.content_type


def utf8_length(text: str) -> int:
    """Return the number of bytes of a text in UTF-8; an unpaired surrogate counts as three."""
    return len(text) if text.isascii() else len(_utf8(text))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_Sample = tuple[str, str, str]
"""Type of a sample: MD5 of the URL, URL, and text."""


class Tally:
    """Counts of pages, lines and bytes by stage and rule, and samples of dropped and kept pages.

    Attributes:
      stages: {stage: Counter of pages_in, bytes_in, pages_out, bytes_out}.
      rules: {stage: {rule: Counter of pages, page_bytes, lines, line_bytes}}.
      lengths: {stage: Counter {b: number of output pages with 2**(b-1) to 2**b - 1 characters}}.
      splits: {split: Counter of pages, bytes} of written pages.
      languages: Counter of written pages by language.
      domains: Counter of written pages by domain.
      damage: Counter of damaged records by reason.
      notes: Counter of other events in readers and writers.
    """

    def __init__(self):
        self.stages: dict[str, Counter[str]] = {}
        self.rules: dict[str, dict[str, Counter[str]]] = {}
        self.lengths: dict[str, Counter[int]] = {}
        self.splits: dict[str, Counter[str]] = {}
        self.languages: Counter[str] = Counter()
        self.domains: Counter[str] = Counter()
        self.damage: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self._damaged: list[tuple[str, int, str]] = []
        self._samples: dict[tuple[str, str], list[_Sample]] = {}
        self._url = ("", "")
        self._text = ("", 0)

    def page_in(self, stage: str, page: Page) -> None:
        """Count an input page of a stage."""
        counts = self._stage(stage)
        counts["pages_in"] += 1
        counts["bytes_in"] += self._bytes(page.text)

    def page_out(self, stage: str, page: Page) -> None:
        """Count an output page of a stage."""
        counts = self._stage(stage)
        counts["pages_out"] += 1
        counts["bytes_out"] += self._bytes(page.text)
        self.lengths[stage][len(page.text).bit_length()] += 1

    def drop_page(self, stage: str, rule: str, page: Page | None = None) -> None:
        """Count a page that a rule drops, or with `page=None` a damaged record."""
        counts = self._rule(stage, rule)
        counts["pages"] += 1
        if page is not None:
            counts["page_bytes"] += self._bytes(page.text)
            self._sample(stage, rule, page.url, (page.text,))

    def drop_lines(self, stage: str, rule: str, page: Page, lines: Sequence[str]) -> None:
        """Count the lines or sentences that a rule removes from a page."""
        counts = self._rule(stage, rule)
        counts["lines"] += len(lines)
        counts["line_bytes"] += utf8_length("".join(lines))
        self._sample(stage, rule, page.url, lines)

    def wrote(self, split: str, page: Page) -> None:
        """Count a written page."""
        counts = self.splits.setdefault(split, Counter())
        counts["pages"] += 1
        counts["bytes"] += utf8_length(page.text)
        self.languages[page.language] += 1
        self.domains[domain(page.url)] += 1
        self._sample(*_KEPT, page.url, (page.text,))

    def damaged(self, path: str, offset: int, reason: str) -> None:
        """Count a record that cannot be read."""
        self.damage[reason] += 1
        bisect.insort(self._damaged, (path, offset, reason))
        del self._damaged[DAMAGED_NAMED:]

    def samples(self, stage: str, rule: str) -> list[tuple[str, str]]:
        """Return up to `SAMPLES` pairs (URL, truncated text) of pages that a rule dropped."""
        return [(url, text) for _, url, text in self._samples.get((stage, rule), ())]

    @property
    def kept_samples(self) -> list[tuple[str, str]]:
        """Return up to `SAMPLES` pairs (URL, truncated text) of written pages."""
        return self.samples(*_KEPT)

    @property
    def damaged_records(self) -> list[tuple[str, int, str]]:
        """Return up to `DAMAGED_NAMED` triples (path, offset, reason) of damaged records."""
        return list(self._damaged)

    def merge(self, other: "Tally") -> "Tally":
        """Add another tally to this tally; the order of merging does not matter."""
        for stage, counts in other.stages.items():
            _add(self._stage(stage), counts)
            _add(self.lengths[stage], other.lengths[stage])
        for stage, rules in other.rules.items():
            for rule, counts in rules.items():
                _add(self._rule(stage, rule), counts)
        for split, counts in other.splits.items():
            _add(self.splits.setdefault(split, Counter()), counts)
        for name in _COUNTERS:
            _add(getattr(self, name), getattr(other, name))
        self._damaged = sorted(self._damaged + other._damaged)[:DAMAGED_NAMED]
        for name, found in other._samples.items():
            mine = self._samples.setdefault(name, [])
            for sample in found:
                _keep(mine, sample)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the tally as a JSON object with sorted keys."""
        return {
            "stages": {
                name: dict(sorted(self.stages[name].items())) for name in _order(self.stages)
            },
            "rules": {
                stage: {rule: dict(sorted(rules[rule].items())) for rule in sorted(rules)}
                for stage in _order(self.rules)
                for rules in [self.rules[stage]]
            },
            "lengths": {
                stage: {str(bits): count for bits, count in sorted(self.lengths[stage].items())}
                for stage in _order(self.lengths)
            },
            "splits": {
                split: dict(sorted(self.splits[split].items())) for split in sorted(self.splits)
            },
            **{name: dict(sorted(getattr(self, name).items())) for name in _COUNTERS},
            "damaged_records": [list(record) for record in self._damaged],
            "samples": [
                {"stage": stage, "rule": rule, "dropped": [list(sample[1:]) for sample in found]}
                for (stage, rule), found in sorted(self._samples.items())
                if (stage, rule) != _KEPT
            ],
            "kept": [list(sample) for sample in self.kept_samples],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Tally":
        tally = cls()
        for stage, counts in value["stages"].items():
            tally._stage(stage).update(counts)
        for stage, rules in value["rules"].items():
            for rule, counts in rules.items():
                tally._rule(stage, rule).update(counts)
        for stage, lengths in value["lengths"].items():
            tally.lengths[stage].update({int(bits): count for bits, count in lengths.items()})
        for split, counts in value["splits"].items():
            tally.splits[split] = Counter(counts)
        for name in _COUNTERS:
            getattr(tally, name).update(value[name])
        tally._damaged = [
            (path, offset, reason) for path, offset, reason in value["damaged_records"]
        ]
        samples = {(entry["stage"], entry["rule"]): entry["dropped"] for entry in value["samples"]}
        samples[_KEPT] = value.get("kept", ())  # missing in tallies of earlier versions
        for name, pairs in samples.items():
            if pairs:
                tally._samples[name] = [(url_md5(url), url, text) for url, text in pairs]
        return tally

    def _bytes(self, text: str) -> int:
        """Return the number of bytes of a text, with a cache of the last result."""
        if self._text[0] is not text:
            self._text = (text, utf8_length(text))
        return self._text[1]

    def _stage(self, stage: str) -> Counter[str]:
        found = self.stages.get(stage)
        if found is None:
            found = self.stages[stage] = Counter()
            self.lengths[stage] = Counter()
        return found

    def _rule(self, stage: str, rule: str) -> Counter[str]:
        rules = self.rules.get(stage)
        if rules is None:
            rules = self.rules[stage] = {}
        found = rules.get(rule)
        if found is None:
            found = rules[rule] = Counter()
        return found

    def _sample(self, stage: str, rule: str, url: str, texts: Sequence[str]) -> None:
        """Add a page to a rule's samples, which are the pages with the smallest URL hashes."""
        if self._url[0] != url or not self._url[1]:
            self._url = (url, url_md5(url))
        key = self._url[1]
        samples = self._samples.setdefault((stage, rule), [])
        if len(samples) == SAMPLES and key > samples[-1][0]:
            return
        _keep(samples, (key, url, texts[int(key[:8], 16) % len(texts)][:SAMPLE_CHARS]))


_KEPT = ("written", "kept")
"""Stage and rule under which samples of written pages are stored."""
_COUNTERS = ("languages", "domains", "damage", "notes")


def _keep(samples: list[_Sample], new: _Sample) -> None:
    for index, old in enumerate(samples):
        if old[0] == new[0]:
            samples[index] = min(old, new)
            return
    bisect.insort(samples, new)
    del samples[SAMPLES:]


def _order(stages: Iterable[str]) -> list[str]:
    known = {stage: index for index, stage in enumerate(STAGES)}
    return sorted(stages, key=lambda stage: (known.get(stage, len(known)), stage))


def _add(counts: Counter[Any], more: Mapping[Any, int]) -> None:
    for key, count in more.items():
        counts[key] += count
