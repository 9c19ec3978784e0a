r"""Filters of C4 that use lists: bad words, news domains and OpenWebText's URLs.

A page is dropped if it contains an entry of a list of bad words.

Source: c4_utils.get_badwords_filter_fn. A page is bad if its lower-cased text contains an entry
between non-word characters or ends of the text: `(?:\W|^)(entry)(?:\W|$)`, with literal entries.
Google's C4 code tries an alternation of 400 entries at every position. Here the text is normalized
to bytes: ASCII letters, digits and underscores are kept, and everything else becomes a space. A
table of hashes, which is looked up for all positions at once, finds the first bytes of entries.
Entries that do not fit the table (non-ASCII entries, languages without spaces) are found by an
automaton (Aho and Corasick, 1975). All candidates are then checked exactly.

    BadWords(["bad", "s&m"]).find("Not BAD!")         -> "bad"
    BadWords(["bad", "s&m"]).find("A badge, s and m") -> None

The user supplies the list. As in Google's code, an entry with a capital letter is never found in
lower-cased text; a warning gives the number of such entries.

`FirstBytes` selects candidates among many entries with one table lookup per position.

Text and entries are *normalized* bytes of UTF-8: lower-case ASCII letters, digits and "_" are kept,
and everything else is a space, including all bytes of non-ASCII characters.

    FirstBytes(["bad day"]).candidates("A BAD-day, badly.".encode()) == ["bad day"]

The key of an entry is a space followed by the entry's first five bytes, such as " bad d"; the short
entry "bad" has a key for every possible continuation of " bad ". The table has one bit for a hash
of these six bytes. The few other positions with the same hash are rejected by comparison. Entries
of one byte are searched separately.

Two variants of C4 use other lists: news domains (realnewslike) and URLs of OpenWebText
(webtextlike).

Source: c4_utils.is_realnews_domain and filter_by_webtextlike. The user supplies these lists.
"""

import itertools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally, host, normalize_url, url_digest, url_number
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.data.formats.lines import read_whole

_SPACE = ord(" ")
_KEY = 6
_PREFIX = 3
"""Number of bytes in a key: the shortest entry in the table, and the space after it."""
_ALPHABET = b" 0123456789_abcdefghijklmnopqrstuvwxyz"
_NORMAL = bytes(
    code if code in _ALPHABET else _SPACE
    for code in (ord(chr(byte).lower()) if byte < 128 else byte for byte in range(256))
)
_BITS = 19
_UNUSED_BITS = np.uint64(64 - 8 * _KEY)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Factor of Knuth's multiplicative hash, the golden ratio in 64 bits."""
_SHIFT = np.uint64(64 - _BITS)


class FirstBytes:
    """Fast search for listed words or phrases in a text, by their first bytes.

    Args:
      entries: ASCII words or phrases, which are normalized by the constructor.
    """

    def __init__(self, entries: Iterable[str]):
        self._short: list[tuple[bytes, str]] = []
        found: dict[bytes, list[tuple[bytes, str]]] = {}
        keys = [bytes(8)]
        for entry in entries:
            pattern = entry.encode().translate(_NORMAL) + b" "
            if len(pattern) < _PREFIX:
                self._short.append((b" " + pattern, entry))
                continue
            found.setdefault(pattern[:_PREFIX], []).append((pattern, entry))
            key = b" " + pattern[: _KEY - 1]
            rest = itertools.product(_ALPHABET, repeat=_KEY - len(key))
            keys += [(key + bytes(more)).ljust(8, b"\0") for more in rest]
        self._entries = found
        self._patterns = {
            prefix: tuple(pattern for pattern, _ in group) for prefix, group in found.items()
        }
        self._table = np.zeros(1 << _BITS, bool)
        self._table[_hash(np.frombuffer(b"".join(keys), "<u8"))] = True

    def candidates(self, text: bytes) -> list[str]:
        """Return the listed words or phrases that occur in a text as separate words."""
        normal = b" " + text.translate(_NORMAL) + b"        "
        found = [entry for pattern, entry in self._short if pattern in normal]
        windows = np.ndarray((len(normal) - 8,), "<u8", normal, strides=(1,))
        for place in self._table.take(_hash(windows)).nonzero()[0].tolist():
            if normal[place] != _SPACE:
                continue
            start = place + 1
            prefix = normal[start : start + _PREFIX]
            patterns = self._patterns.get(prefix)
            if patterns and normal.startswith(patterns, start):
                found += [
                    entry
                    for pattern, entry in self._entries[prefix]
                    if normal.startswith(pattern, start)
                ]
        return found


def _hash(windows: np.ndarray) -> np.ndarray:
    hashes = windows << _UNUSED_BITS
    hashes *= _FACTOR
    hashes >>= _SHIFT
    return hashes.view(np.int64)


_LOGGER = logging.getLogger(__name__)
_LIST_NAME = re.compile(r"([a-z]{2,3})(-[A-Za-z0-9-]+)?(\.txt)?")
_LOWERED_TO_ASCII = ("\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}")
_FEW = 4


class BadWords:
    """Search for bad words in a text, with the same results as Google's C4 code.

    Args:
      entries: words or phrases to find literally in lower-cased text.
      word_boundaries: True if entries must be separate words; False for languages without spaces.

    Raises:
      InputError: if an entry is "", or pyahocorasick is needed but not installed.
    """

    def __init__(self, entries: Iterable[str], *, word_boundaries: bool = True):
        found = list(dict.fromkeys(entries))
        if "" in found:
            raise InputError(
                'the list of bad words contains "", which every page contains; remove the entry'
            )
        self._boundaries = word_boundaries
        tabled = [entry for entry in found if word_boundaries and entry.isascii()]
        self._table = FirstBytes(tabled) if tabled else None
        self._others = [entry for entry in found if not (word_boundaries and entry.isascii())]
        self._automaton = _automaton(self._others) if len(self._others) > _FEW else None
        self._ascii_may_match = any(entry.isascii() for entry in self._others)
        self._as_they_are = all(map(_has_no_case, self._others))

    def find(self, text: str) -> str | None:
        """Return a listed bad word that the text contains, or None."""
        if self._table is not None:
            found = self._find_tabled(text, self._table)
            if found is not None:
                return found
        if not self._others or (text.isascii() and not self._ascii_may_match):
            return None
        if self._automaton is None:
            if self._as_they_are and not any(entry in text for entry in self._others):
                return None
            lowered = text.lower()
            return next((entry for entry in self._others if self._occurs(entry, lowered)), None)
        lowered = text.lower()
        for end, entry in self._automaton.iter(lowered):
            if self._stands_alone(lowered, end + 1 - len(entry), end + 1):
                return entry
        return None

    def _find_tabled(self, text: str, table: FirstBytes) -> str | None:
        lowered = None
        if not text.isascii() and any(map(text.__contains__, _LOWERED_TO_ASCII)):
            text = lowered = text.lower()
        refuted: set[str] = set()
        for entry in table.candidates(text.encode("utf-8", "surrogatepass")):
            if entry in refuted:
                continue
            lowered = text.lower() if lowered is None else lowered
            if self._occurs(entry, lowered):
                return entry
            refuted.add(entry)
        return None

    def _occurs(self, entry: str, lowered: str) -> bool:
        start = lowered.find(entry)
        while start >= 0:
            if self._stands_alone(lowered, start, start + len(entry)):
                return True
            start = lowered.find(entry, start + 1)
        return False

    def _stands_alone(self, lowered: str, start: int, end: int) -> bool:
        if not self._boundaries:
            return True
        before = start == 0 or not _is_word(lowered[start - 1])
        return before and (end == len(lowered) or not _is_word(lowered[end]))


class BadWordsFilter:
    """Filter that drops pages with bad words.

    Args:
      cleaning: config; its field `bad_words` is the path of a list, or of a directory with one list
        per language.
      entries: list of bad words, instead of the file `bad_words`.

    Raises:
      InputError: if a list cannot be read, or only one list is given for several languages.
    """

    def __init__(self, cleaning: Cleaning, *, entries: Sequence[str] = ()):
        self._share = cleaning.bad_words_fraction.as_integer_ratio()
        self._lists: dict[str, BadWords] = {}
        self._list = BadWords(entries) if entries else None
        if self._list or not cleaning.bad_words or not cleaning.bad_words_fraction:
            return
        path = Path(cleaning.bad_words)
        if path.is_dir():
            self._lists = _lists(path, cleaning)
        elif cleaning.splits_by_language:
            raise InputError(
                f"cleaning.bad_words: {path} is one list, but the pages have several languages; "
                "give a directory of lists named en, fr, ..."
            )
        else:
            self._list = BadWords(load_bad_words(path))

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """Return the page, or None if it is dropped because of a bad word."""
        tally.page_in("bad_words", page)
        words = self._list or self._lists.get(page.language.split("-")[0])
        if words is not None and words.find(page.text) is not None:
            numerator, denominator = self._share
            if url_number(page.url) % denominator < numerator:
                tally.drop_page("bad_words", "bad_word", page)
                return None
            tally.notes["bad_word_pages_kept"] += 1
        tally.page_out("bad_words", page)
        return page


def load_bad_words(path: str | os.PathLike[str]) -> list[str]:
    """Return the entries of a list of bad words, one per line; blank lines are ignored."""
    try:
        lines = read_whole(path, most=LONGEST_LINE).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the list {path} of cleaning.bad_words: {error}") from error
    entries = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if not entries:
        raise InputError(
            f"cleaning.bad_words: the list {path} has no entries; give one entry per line"
        )
    capitals = sum(entry != entry.lower() for entry in entries)
    if capitals:
        _LOGGER.warning(
            "list of bad words %s: %d entries have capital letters and are never found in the "
            "lower-cased text, as in the original C4 code",
            path,
            capitals,
        )
    return entries


def _lists(folder: Path, cleaning: Cleaning) -> dict[str, BadWords]:
    entries: dict[str, dict[str, None]] = {}
    for path in sorted(folder.iterdir()):
        named = _LIST_NAME.fullmatch(path.name)
        if named and path.is_file():
            entries.setdefault(named[1], {}).update(dict.fromkeys(load_bad_words(path)))
    if not entries:
        raise InputError(
            f"cleaning.bad_words: the directory {folder} has no file named after a language, such "
            "as en or fr.txt"
        )
    for allowed in cleaning.allowed_bad_words:
        language, _, entry = allowed.partition(":")
        entries.get(language, {}).pop(entry, None)
    return {
        language: BadWords(found, word_boundaries=language not in cleaning.unspaced_languages)
        for language, found in entries.items()
    }


def _automaton(entries: Iterable[str]) -> Any:
    try:
        import ahocorasick
    except ImportError as error:
        raise InputError(
            "finding bad words needs pyahocorasick, which is not installed; "
            f"{install_command('c4')}"
        ) from error
    automaton = ahocorasick.Automaton()
    for entry in entries:
        automaton.add_word(entry, entry)
    automaton.make_automaton()
    return automaton


def _has_no_case(entry: str) -> bool:
    """Return True if lower-casing a text can neither add nor remove occurrences of an entry."""
    return all(
        character == character.lower() == character.upper() and character != "\u0307"
        for character in entry
    )


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


class DomainList:
    """Filter that keeps only pages of listed domains (realnewslike).

    Args:
      domains: dict from a registered domain in lower case ("bbc.co.uk") to True, or to the list of
        its allowed subdomains ("" is the domain itself).
    """

    def __init__(self, domains: Mapping[str, bool | list[str]]):
        self._domains = {
            name: frozenset(allowed) if isinstance(allowed, list) else None
            for name, allowed in domains.items()
        }

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """Return the page, or None if its domain or subdomain is not in the list."""
        tally.page_in("domains", page)
        rule = self._rule(host(normalize_url(page.url)))
        if rule:
            tally.drop_page("domains", rule, page)
            return None
        tally.page_out("domains", page)
        return page

    def _rule(self, name: str) -> str:
        """Return the name of the rule that drops pages of a host, or "" to keep them.

        The registered domain is the longest listed suffix of the host. Google's C4 code instead
        finds it with tldextract.
        """
        labels = name.split(".")
        for first in range(len(labels)):
            ending = ".".join(labels[first:])
            if ending in self._domains:
                allowed = self._domains[ending]
                if allowed is None or ".".join(labels[:first]) in allowed:
                    return ""
                return "bad_subdomain"
        return "bad_domain"


def load_domains(path: str | os.PathLike[str]) -> DomainList:
    """Read a JSON object {domain: true or list of subdomains}, such as Grover's RealNews."""
    text = _read(Path(path), field="domains")
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise InputError(f"cleaning.domains: {path} is not JSON ({error})") from error
    if not isinstance(found, dict) or not all(
        isinstance(allowed, bool) or _is_list_of_text(allowed) for allowed in found.values()
    ):
        raise InputError(
            f"cleaning.domains: {path} must be a JSON object that maps each domain to true or to "
            "a list of subdomains"
        )
    return DomainList(found)


class UrlList:
    """Filter that keeps only pages with listed URLs (webtextlike).

    URLs are stored as 64-bit hashes: 23 million URLs of OpenWebText need 0.2 GB. An unlisted page
    is kept with a probability of one in 10**12.

    Args:
      urls: listed URLs, which are normalized by the constructor.
    """

    def __init__(self, urls: Iterable[str]):
        numbers = (_number(normalize_url(url)) for url in urls)
        self._numbers = np.unique(np.fromiter(numbers, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self._numbers)

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """Return the page, or None if its normalized URL is not in the list."""
        tally.page_in("urls", page)
        number = np.uint64(_number(normalize_url(page.url)))
        place = int(np.searchsorted(self._numbers, number))
        if place == len(self._numbers) or self._numbers[place] != number:
            tally.drop_page("urls", "unlisted_url", page)
            return None
        tally.page_out("urls", page)
        return page


def load_urls(path: str | os.PathLike[str]) -> UrlList:
    """Read a file with one URL per line, or all *.txt files in a directory."""
    root = Path(path)
    files = sorted(root.glob("*.txt")) if root.is_dir() else [root]
    found = UrlList(_urls(files))
    if not len(found):
        raise InputError(f"cleaning.urls: the list {path} has no URLs; give one URL per line")
    return found


def _urls(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from filter(None, map(str.strip, lines))
        except OSError as error:
            raise InputError(
                f"cannot read the list {file} of cleaning.urls: {error.strerror}"
            ) from error


def _number(url: str) -> int:
    return int.from_bytes(url_digest(url)[:8], "big")


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _read(path: Path, *, field: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the list {path} of cleaning.{field}: {error}") from error
