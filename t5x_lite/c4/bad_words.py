r"""Pages that contain an entry of a list of bad words.

Source: c4_utils.get_badwords_filter_fn. A page is bad if its lower-cased text contains an entry
with a non-word character, or an end of the text, on either side: `(?:\W|^)(entry)(?:\W|$)`, every
entry taken literally. The reference tries one alternation of 400 entries at every place. Here the
text is normalized to bytes, in which all but ASCII letters, digits and underscores is a space, and
a table of hashes of the first bytes of entries is asked about all places of the text at once;
entries that the table cannot hold (those beyond ASCII, those of languages without spaces) are found
by one automaton (Aho and Corasick, 1975). What is found so is looked at again exactly.

    BadWords(["bad", "s&m"]).find("Not BAD!") == "bad"
    BadWords(["bad", "s&m"]).find("A badge, s and m") is None

The list is the user's file; none is shipped. An entry with a capital letter is never found in
lower-cased text, here as in the reference: a warning says so.
"""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.first_bytes import FirstBytes
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.c4.urls import url_number
from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.files import LONGEST_LINE
from t5x_lite.records.compressed import read_whole

_LOGGER = logging.getLogger(__name__)
_LIST_NAME = re.compile(r"([a-z]{2,3})(-[A-Za-z0-9-]+)?(\.txt)?")
_LOWERED_TO_ASCII = ("\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}")
_FEW = 4


class BadWords:
    """Finds any of some entries in a text, as the regular expression of the reference does.

    Args:
      entries: words or phrases, taken literally, to be found in lower-cased text.
      word_boundaries: whether an entry must stand alone; False for languages without spaces.

    Raises:
      InputError: an entry is "", which every page contains; or pyahocorasick is needed and missing.
    """

    def __init__(self, entries: Iterable[str], *, word_boundaries: bool = True):
        found = list(dict.fromkeys(entries))
        if "" in found:
            raise InputError(
                'the list of bad words holds ""; every page contains that: leave it out'
            )
        self._boundaries = word_boundaries
        tabled = [entry for entry in found if word_boundaries and entry.isascii()]
        self._table = FirstBytes(tabled) if tabled else None
        self._others = [entry for entry in found if not (word_boundaries and entry.isascii())]
        self._automaton = _automaton(self._others) if len(self._others) > _FEW else None
        self._ascii_may_match = any(entry.isascii() for entry in self._others)
        self._as_they_are = all(map(_has_no_case, self._others))

    def find(self, text: str) -> str | None:
        """An entry that the text contains, or None."""
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
        """What the table finds is a superset: to it "é" is a space, and so is the "&" of "s&m"."""
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
    """The bad-words stage: one list, or one for each language.

    Args:
      cleaning: `bad_words` is the file or the folder of the lists.
      entries: the list itself, in place of `bad_words`.

    Raises:
      InputError: a list cannot be read, or there is one list for many languages.
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
                f"cleaning.bad_words: {path} is one list, and the pages are of many languages: "
                "give a folder of lists named en, fr, ..."
            )
        else:
            self._list = BadWords(load_bad_words(path))

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """Stage 7: the page unless it has a bad word and its URL is in the share to be dropped."""
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
    """The entries of a list, one on each line; blank lines are none.

    Raises:
      InputError: the file cannot be read, is no UTF-8, or holds no entry.
    """
    try:
        lines = read_whole(path, most=LONGEST_LINE).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cleaning.bad_words: cannot read {path}: {error}") from error
    entries = list(dict.fromkeys(filter(None, map(str.strip, lines))))
    if not entries:
        raise InputError(f"cleaning.bad_words: {path} holds no entry; give one on each line")
    capitals = sum(entry != entry.lower() for entry in entries)
    if capitals:
        _LOGGER.warning(
            "%s: %d entries have capital letters, which lower-cased text never has; "
            "they are never found, as in the reference",
            path,
            capitals,
        )
    return entries


def _lists(folder: Path, cleaning: Cleaning) -> dict[str, BadWords]:
    """Lists by language, those of "fr" and "fr-CA-u-sd-caqc" in one, less what is allowed."""
    entries: dict[str, dict[str, None]] = {}
    for path in sorted(folder.iterdir()):
        named = _LIST_NAME.fullmatch(path.name)
        if named and path.is_file():
            entries.setdefault(named[1], {}).update(dict.fromkeys(load_bad_words(path)))
    if not entries:
        raise InputError(
            f"cleaning.bad_words: {folder} has no list named by a language, such as en or fr.txt"
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
            f"finding bad words needs pyahocorasick, which is missing: {install_command('c4')}"
        ) from error
    automaton = ahocorasick.Automaton()
    for entry in entries:
        automaton.add_word(entry, entry)
    automaton.make_automaton()
    return automaton


def _has_no_case(entry: str) -> bool:
    """Whether lower-cased text contains an entry only where the text itself does.

    No character becomes one without case; but for the dot of a lower-cased capital I with a dot.
    """
    return all(
        character == character.lower() == character.upper() and character != "\u0307"
        for character in entry
    )


def _is_word(character: str) -> bool:
    r"""Whether `\w` matches: re and str agree on what is alphanumeric."""
    return character.isalnum() or character == "_"
