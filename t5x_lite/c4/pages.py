r"""Pages of the crawl, their URLs and tallies, and the WET and WARC files that hold them.

Pages of a crawl, normalized URLs, and tallies (counts) of pages.

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

Reader of pages from WET and WARC files, and expansion of `--input` to files.

`read_pages` yields the pages of a WET or WARC file:

    for page in read_pages("CC-MAIN-00000.warc.wet.gz", cleaning, tally): ...

A page is a record of type "conversion" (WET), or the text of a "response" (WARC). Its text is the
same as from `c4_utils.split_wet_file`: lines, which end in "\n", "\r" or both, are stripped, and
empty lines and lines that begin like a header ("WARC", "Content-", "CONTENT-") are removed. There
are two intended differences. URL, date and type are read only from the record's header, not from
lines of the text that look like a header. Google's code fails on a damaged file; this module counts
the damaged record in the tally and continues.

Invalid UTF-8 becomes U+FFFD; a record with more than one such character in ten is not text.

`response_text` returns the text of a web page that is stored as an HTTP response in a WARC file:

    response_text(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>One. <b>Two.</b>")
        == "One. Two."

resiliparse extracts the text from HTML (Bevendorff et al., "Elastic ChatNoir", ECIR 2018). All text
is extracted, not only the main content, as in Common Crawl's WET files.

`--input` accepts files, globs, directories, lists of paths, and a crawl's paths file:

    expand_inputs(["crawl/*.warc.wet.gz", "gs://crawl/2019-18"])
    expand_inputs(["wet.paths.gz"], base="s3://commoncrawl")

A file named *.paths, *.txt or *.list (or with .gz) contains one path per line, relative to `base`,
or without `base` to the directory of the file. A directory is searched recursively for *.warc and
*.wet files, with or without .gz.
"""

import bisect
import functools
import glob
import gzip
import hashlib
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.warc import MAX_RECORD_BYTES, Damage, Readable, Record, read_members, read_records
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.remote import AnyPath, files_below, is_remote, open_path, size_of
from t5x_lite.data.formats.lines import LARGEST_WHOLE

_SCHEME = re.compile(r"https?:\/\/(www\.)?")
_CAMPAIGN = re.compile(r"\?(utm_|ref|feed).*")


def normalize_url(url: str) -> str:
    """Return a URL without scheme, "www.", final slashes and tails such as "?utm_source=x".

    As in Google's C4 code, a scheme is removed at any position ("a.com/?u=http://b.com" too).
    """
    if "://" in url:
        url = _SCHEME.sub("", url)
    if "?" in url:
        url = _CAMPAIGN.sub("", url)
    return url.rstrip("/")


def url_digest(url: str) -> bytes:
    """Return the MD5 of a URL as 16 bytes, without normalizing the URL."""
    return hashlib.md5(url.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def url_md5(url: str) -> str:
    """Return the MD5 of a URL as 32 hexadecimal digits, without normalizing the URL."""
    return url_digest(url).hex()


def url_number(url: str) -> int:
    """Return the MD5 of a normalized URL as an integer."""
    return int.from_bytes(url_digest(normalize_url(url)), "big")


def is_validation(url: str, *, modulus: int = 1000) -> bool:
    """Return True if a page belongs to the validation split, which has one page in `modulus`."""
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
    """Return the host of a URL without "www."."""
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
    r"""Web page with its URL, text and metadata.

    Attributes:
      url: WARC-Target-URI, unchanged from the record.
      text: text of the page, with lines separated by "\n".
      timestamp: WARC-Date, such as "2019-04-24T09:23:58Z", which is compared as text.
      content_length: Content-Length, unchanged from the record.
      content_type: Content-Type of the record.
      language: language code; "" if the language is not identified yet.
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
    """Return a hash by which pages are ranked; a repeated line is kept on the page ranked first.

    The hash consists of the MD5 of the URL, of the text and of the timestamp. Source:
    c4_utils.remove_duplicate_text: "Hash before comparison to avoid biasing by domain".
    """
    parts = (page.url, page.text, page.timestamp)
    return b"".join(hashlib.md5(_utf8(part)).digest() for part in parts)


def newest(pages: Iterable[Page]) -> Page:
    """Return the newest of several pages with the same normalized URL.

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
    """Counts of pages, lines and bytes by processing stage and rule, with samples of pages.

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
        """Count a page that a processing stage reads."""
        counts = self._stage(stage)
        counts["pages_in"] += 1
        counts["bytes_in"] += self._bytes(page.text)

    def page_out(self, stage: str, page: Page) -> None:
        """Count a page that a processing stage outputs."""
        counts = self._stage(stage)
        counts["pages_out"] += 1
        counts["bytes_out"] += self._bytes(page.text)
        self.lengths[stage][len(page.text).bit_length()] += 1

    def drop_page(self, stage: str, rule: str, page: Page | None = None) -> None:
        """Count a page that a rule drops."""
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
        """Return pairs (URL, truncated text) of some pages that a rule dropped."""
        return [(url, text) for _, url, text in self._samples.get((stage, rule), ())]

    @property
    def kept_samples(self) -> list[tuple[str, str]]:
        """Return pairs (URL, truncated text) of some written pages."""
        return self.samples(*_KEPT)

    @property
    def damaged_records(self) -> list[tuple[str, int, str]]:
        """Return triples (path, offset, reason) of some damaged records."""
        return list(self._damaged)

    def merge(self, other: "Tally") -> "Tally":
        """Add the counts and samples of another `Tally`."""
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
        """Return the counts and samples as a JSON object with sorted keys."""
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
        """Add a page to the samples of a rule if the hash of its URL is among the smallest."""
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


_BLANK = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/[0-9.]+[ \t]+([0-9]{3})")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.ASCII)
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_MOST_CHUNKS = 1 << 16
_HTML = ("text/html", "application/xhtml+xml")
MAX_ATTRIBUTES = 10_000
"""Maximum number of attributes of an HTML tag; the parser's time is quadratic in this number."""
MAX_TAG_CHARS = 5 * MAX_ATTRIBUTES
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+)"""
_ATTRIBUTE_PATTERN = rf"[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+{_QUOTED}?)?"
_ATTRIBUTE = re.compile(_ATTRIBUTE_PATTERN)
_TAG = re.compile(rf"<[A-Za-z][^\s/>]*+(?:{_ATTRIBUTE_PATTERN})*+")


class NoText(Exception):
    """Error raised for an HTTP response without readable text."""


@functools.cache
def _resiliparse():
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    except ImportError as error:
        raise InputError(
            f"reading WARC files needs resiliparse, which is not installed; {install_command('c4')}"
        ) from error
    return extract_plain_text, bytes_to_str, detect_encoding


def check_installed() -> None:
    """Raise InputError if resiliparse is not installed."""
    _resiliparse()


def response_text(block: bytes, *, max_bytes: int) -> str:
    """Return the text of a stored HTTP response; raise NoText if it has no readable text."""
    blank = _BLANK.search(block)
    status = _STATUS.match(block)
    if blank is None or status is None:
        raise NoText("damaged HTTP header")
    if status.group(1) != b"200":
        raise NoText("responses with a status other than 200")
    headers = _headers(block[: blank.start()])
    kind = headers.get("content-type", "text/html")
    mime = kind.partition(";")[0].strip().lower()
    if mime not in (*_HTML, "text/plain"):
        raise NoText("responses that are neither HTML nor plain text")
    body = _decoded(block[blank.end() :], headers, max_bytes)
    charset = _CHARSET.search(kind)
    text = _to_str(body, charset.group(1) if charset else "", html=mime in _HTML)
    return text if mime == "text/plain" else html_text(text)


def html_text(html: str) -> str:
    """Return the text of an HTML page, with each block of text on a line."""
    extract = _resiliparse()[0]
    if len(html) > MAX_TAG_CHARS:
        for tag in _TAG.finditer(html):
            if tag.end() - tag.start() > MAX_TAG_CHARS and _is_crowded(tag.group()):
                raise NoText("an HTML tag with too many attributes")
    return extract(html, preserve_formatting=True, list_bullets=False)


def _is_crowded(tag: str) -> bool:
    return sum(1 for _ in _ATTRIBUTE.finditer(tag)) > MAX_ATTRIBUTES


def _headers(block: bytes) -> dict[str, str]:
    headers = {}
    for line in block.decode("latin-1").splitlines()[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _decoded(body: bytes, headers: dict[str, str], max_bytes: int) -> bytes:
    """Return a response's body after undoing chunked transfer encoding and compression."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _without_chunks(body)
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity") or not body:
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NoText("responses in a compression that is not gzip")
    if encoding != "deflate" and not body.startswith(b"\x1f\x8b"):
        return body  # Common Crawl decompresses, but older crawls kept the header
    inflate = zlib.decompressobj(wbits=47 if encoding != "deflate" else _deflate_bits(body))
    try:
        content = inflate.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise NoText("damaged compression of a response") from error
    if len(content) > max_bytes:
        raise NoText("responses longer than the limit when decompressed")
    return content


def _deflate_bits(body: bytes) -> int:
    return 15 if body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0 else -15


def _without_chunks(body: bytes) -> bytes:
    parts, at = [], 0
    while len(parts) < _MOST_CHUNKS:
        size = _CHUNK_SIZE.match(body, at)
        line = body.find(b"\n", at)
        if size is None or line < 0:
            return b"".join(parts) if parts else body
        length = int(size.group(), 16)
        if length == 0:
            break
        parts.append(body[line + 1 : line + 1 + length])
        at = line + 1 + length
        at += 2 if body[at : at + 2] == b"\r\n" else 0
    return b"".join(parts)


def _to_str(body: bytes, charset: str, *, html: bool) -> str:
    """Decode a body by the charset in its header, as UTF-8, or by detection, in this order."""
    _, bytes_to_str, detect_encoding = _resiliparse()
    if charset:
        try:
            return body.decode(charset, "replace")
        except (LookupError, ValueError):
            pass
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        found = detect_encoding(body, from_html_meta=html)
        return bytes_to_str(body, found or "utf-8", errors="replace")


_LISTS = (".paths", ".txt", ".list")
_ARCHIVES = (".warc", ".wet", ".warc.gz", ".wet.gz")
_GLOB = re.compile(r"[*?\[]")
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Input:
    """Input file of a C4 build.

    Attributes:
      path: absolute path, or gs:// or s3:// URL.
      size: size in bytes.
    """

    path: str
    size: int


def expand_inputs(inputs: Sequence[str], *, base: str = "") -> list[Input]:
    """Return the files named by paths, globs, directories and lists of paths, sorted by path."""
    if not inputs:
        raise InputError(
            "no input was given; give WET or WARC files, globs, directories or lists of paths"
        )
    paths: set[str] = set()
    for given in inputs:
        paths.update(_expand(given, base))
    return [_input(path) for path in sorted(paths)]


def _expand(given: str, base: str) -> Iterator[str]:
    if not given.strip():
        raise InputError("an input is empty; give a file, a glob, a directory or a list of paths")
    path = open_path(given)
    if not path.exists():
        if _GLOB.search(given) is None:
            raise InputError(f"input {given} does not exist")
        found = sorted(_glob(given))
        if not found:
            raise InputError(f"input {given} matches no file")
        yield from found
    elif path.is_dir():
        found = [name for name in files_below(path) if name.endswith(_ARCHIVES)]
        if not found:
            raise InputError(
                f"input {given} is a directory without files that end in {', '.join(_ARCHIVES)}"
            )
        yield from (_absolute(f"{str(path).rstrip('/')}/{name}") for name in found)
    elif given.removesuffix(".gz").endswith(_LISTS):
        yield from _listed(path, given, base)
    else:
        yield _absolute(given)


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path)


def _glob(pattern: str) -> Iterator[str]:
    if not is_remote(pattern):
        found = glob.glob(pattern, recursive=True)
        yield from (_absolute(path) for path in found if os.path.isfile(path))
        return
    first = _GLOB.search(pattern)
    assert first is not None
    root, _, _ = pattern[: first.start()].rpartition("/")
    below = pattern[len(root) + 1 :]
    yield from (str(path) for path in open_path(root).glob(below) if not path.is_dir())


def _listed(path: AnyPath, given: str, base: str) -> Iterator[str]:
    """Yield the files named in a list of paths; raise InputError if a file does not exist."""
    root = (base or _absolute(given).rpartition("/")[0]).rstrip("/")
    count = 0
    for number, line in enumerate(_lines(path, given), start=1):
        if not line or line.startswith("#"):
            continue
        count += 1
        named = line if is_remote(line) or line.startswith("/") else f"{root}/{line}"
        if not open_path(named).exists():
            raise InputError(
                f"{given}:{number}: file {named} does not exist"
                + (
                    ""
                    if base
                    else "; paths are relative to the directory of the list, or to --base"
                )
            )
        yield _absolute(named)
    if not count:
        raise InputError(f"input {given} is a list of paths, but contains no path")


def _lines(path: AnyPath, given: str) -> Iterator[str]:
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(LARGEST_WHOLE + 1)
        if len(content) > LARGEST_WHOLE:
            raise InputError(
                f"input {given} is a list of paths with more than {LARGEST_WHOLE} bytes; divide "
                "the list"
            )
        lines = content.decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"input {given} cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"input {given} is not a list of paths; a WET or WARC file must not end in .txt"
        ) from error
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE or line.startswith("WARC/"):
            raise InputError(
                f"input {given}: line {number} is not a path; if the input is a WET or WARC file, "
                "rename it to *.warc"
            )
        yield line.strip()


def _input(path: str) -> Input:
    try:
        return Input(path=path, size=size_of(open_path(path)))
    except OSError as error:
        raise InputError(f"input {path} cannot be read ({error.strerror or error})") from error


_MOST_REPLACED = 0.1


def read_pages(
    path: str, cleaning: Cleaning, tally: Tally, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Page]:
    """Yield the pages of a WET or WARC file in order, and add them to the counts in `tally`."""
    try:
        with open_path(path).open("rb") as file:
            yield from _pages(cast(Readable, file), path, cleaning, tally, max_record_bytes)
    except OSError as error:
        why = error.strerror or str(error).partition("\n")[0]
        raise InputError(f"input {path} cannot be read ({why})") from error


def _pages(
    file: Readable, path: str, cleaning: Cleaning, tally: Tally, max_record_bytes: int
) -> Iterator[Page]:
    events = read_members(file, compressed=path.endswith(".gz"))
    empty = True
    for found in read_records(events, max_bytes=max_record_bytes):
        empty = False
        if isinstance(found, Damage):
            tally.damaged(path, found.offset, found.reason)
            continue
        if found.note:
            tally.damaged(path, found.offset, found.note)
        page = _page(found, path, cleaning, tally, max_record_bytes)
        if page is not None:
            yield page
    if empty:
        tally.damaged(path, 0, "empty file")


_FIRST_BYTES = 1 << 22
"""Number of bytes at the beginning of a file that are searched for a WARC record."""


def check_archives(files: Sequence[Input]) -> None:
    """Raise InputError if none of the files begins with WARC records."""
    for file in files:
        try:
            with open_path(file.path).open("rb") as stream:
                head = io.BytesIO(cast(Readable, stream).read(_FIRST_BYTES))
        except OSError:
            return  # the run reports the file that it cannot read
        records = read_records(read_members(head, compressed=file.path.endswith(".gz")))
        if any(isinstance(found, Record) for found in records):
            return
    raise InputError(
        f"none of {len(files)} input files, such as {files[0].path}, has a WARC record; give WET "
        "or WARC files of Common Crawl (*.warc.wet.gz, *.warc.gz)"
    )


_TEXT_TYPES = ("conversion", "resource", "")
"""Types of WARC records that contain text; "" is a record without a type."""


def _page(
    record: Record, path: str, cleaning: Cleaning, tally: Tally, max_bytes: int
) -> Page | None:
    """Return the page of a record, or None if the record is not a page or is dropped."""
    headers = record.headers
    kind = headers.get("warc-type", "").lower()
    content_type = headers.get("content-type", "")
    if kind == "response":
        try:
            text = response_text(record.body, max_bytes=max_bytes)
        except NoText as error:
            _no_text(str(error), record, path, tally)
            return None
        length = ""
        content_type = "text/plain"
    elif kind in _TEXT_TYPES and (kind != "resource" or content_type.startswith("text/plain")):
        decoded = _decode(record, path, tally)
        if decoded is None:
            return None
        text, length = decoded, headers.get("content-length", "")
    else:
        return None
    lines = page_lines(text)
    prefixes = cleaning.metadata_prefixes
    kept = [line for line in lines if not line.startswith(prefixes)] if prefixes else lines
    page = Page(
        url=headers.get("warc-target-uri", "").removeprefix("<").removesuffix(">"),
        text="\n".join(kept),
        timestamp=headers.get("warc-date", ""),
        content_length=length,
        content_type=content_type,
    )
    if kind == "response":
        # Same value as in the WET record that Common Crawl makes of this one.
        size = str(len(page.text.encode("utf-8", "surrogatepass")))
        page = Page(page.url, page.text, page.timestamp, size, content_type)
    if len(kept) < len(lines):
        dropped = [line for line in lines if line.startswith(prefixes)]
        tally.drop_lines("read", "metadata_line", page, dropped)
    return _complete(page, tally)


def page_lines(text: str) -> list[str]:
    """Return the stripped nonempty lines of a text."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return [line for line in map(str.strip, text.split("\n")) if line]


def _decode(record: Record, path: str, tally: Tally) -> str | None:
    try:
        return record.body.decode("utf-8")
    except UnicodeDecodeError:
        pass
    text = record.body.decode("utf-8", "replace")
    if text.count("\ufffd") > _MOST_REPLACED * len(text):
        tally.damaged(path, record.offset, "a binary record")
        return None
    tally.damaged(path, record.offset, "invalid UTF-8; read with U+FFFD in its place")
    return text


def _no_text(reason: str, record: Record, path: str, tally: Tally) -> None:
    if reason.startswith("responses"):  # valid, but not a page
        tally.notes[reason] += 1
    else:
        tally.damaged(path, record.offset, reason)


def _complete(page: Page, tally: Tally) -> Page | None:
    """Return the page if it has URL, text and timestamp, otherwise None."""
    tally.page_in("read", page)
    for rule, there in (
        ("no_url", page.url),
        ("no_text", page.text),
        ("no_timestamp", page.timestamp),
    ):
        if not there:
            tally.drop_page("read", rule, page)
            return None
    tally.page_out("read", page)
    return page
