"""Filters of pairs, and the account of what each of them dropped.

    sieve = Sieve(Filters())
    sieve.keep(Raw("Emma, a novel", "Jane Austen ..."))     # the pair as it is kept, or None
    sieve.dropped                                           # {"passage too short": 1}

A pair falls to the first filter that does not like it. Texts are in Unicode's form NFC, without
control characters; a query that is the passage's first line is cut off there. BGE-M3's paper says
only that bad content and pairs of low relevance are removed: filters and numbers are ours.
"""

import dataclasses
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Literal

from t5x_lite.c4.language import identifier
from t5x_lite.errors import InputError
from t5x_lite.option_types import OptionalFile, Positive
from t5x_lite.retrieval.pair_rules import Raw
from t5x_lite.retrieval.words import words

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\ufeff]")
_UNSPACED = ("ja", "th", "zh")
SAMPLES = 3
"""Pairs of each filter that a report shows: the first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Filters:
    """Which pairs are kept; its fields are options of `t5x-lite pairs`.

    Attributes:
      min_query_words: of a query at least.
      max_query_words: of a query at most.
      min_passage_words: of a passage at least.
      max_queries: pairs of one passage at most.
      bad_words: a file with an entry on each line; a pair with one is dropped.
      languages_by: langdetect or cld3 drops passages in another language than they say.
    """

    min_query_words: Positive = 2
    max_query_words: Positive = 64
    min_passage_words: Positive = 10
    max_queries: Positive = 20
    bad_words: OptionalFile = None
    languages_by: Literal["langdetect", "cld3"] | None = None

    def __post_init__(self):
        if 1 <= self.max_query_words < self.min_query_words:
            raise InputError(
                "the words of a query must be from 1 up, min to max: got "
                f"{self.min_query_words} to {self.max_query_words}"
            )


class Sieve:
    """The filters at work; what tells repetitions is in memory: two numbers a pair.

    Attributes:
      seen: pairs.
      kept: those of them that passed.
      dropped: the others, by the filter's name.
      samples: some of these.
    """

    def __init__(self, filters: Filters):
        from t5x_lite.c4.bad_words import BadWords, load_bad_words

        self._filters = filters
        self._bad = BadWords(load_bad_words(filters.bad_words)) if filters.bad_words else None
        self._bad_anywhere = (
            BadWords(load_bad_words(filters.bad_words), word_boundaries=False)
            if filters.bad_words
            else None
        )
        self._guess: Callable[[str], tuple[str, float, str]] | None = None
        if filters.languages_by:
            self._guess = identifier(filters.languages_by)
        self._pairs: set[int] = set()
        self._queries: Counter[int] = Counter()
        self.seen = self.kept = 0
        self.dropped: Counter[str] = Counter()
        self.samples: dict[str, list[list[str]]] = {}

    def keep(self, raw: Raw) -> Raw | None:
        """The pair in its last form, or None where a filter dropped it."""
        self.seen += 1
        query, passage = plain(raw.query), plain(raw.passage)
        first, _, rest = passage.partition("\n")
        if first.strip().casefold() == query.casefold():
            passage = rest.strip()
        pair = Raw(query, passage, raw.languages)
        if why := self._why(pair):
            self.drop(pair, why)
            return None
        self.kept += 1
        return pair

    def drop(self, pair: Raw, why: str) -> None:
        """Counts a pair that is dropped."""
        self.dropped[why] += 1
        samples = self.samples.setdefault(why, [])
        if len(samples) < SAMPLES:
            samples.append([pair.query[:200], pair.passage[:200]])

    def _why(self, pair: Raw) -> str:
        """The filter that drops a pair; "" is none."""
        filters = self._filters
        num = _count(pair.query, filters.max_query_words + 1)
        if num < filters.min_query_words:
            return "query too short"
        if num > filters.max_query_words:
            return "query too long"
        if _count(pair.passage, filters.min_passage_words) < filters.min_passage_words:
            return "passage too short"
        if pair.query.casefold() == pair.passage.casefold():
            return "query is passage"
        if self._has_bad_word(pair):
            return "bad word"
        if self._guess is not None and pair.languages[1]:
            found = self._guess(pair.passage)[0].split("-")[0]
            if found != pair.languages[1].split("-")[0]:
                return "other language"
        return self._repeated(pair)

    def _has_bad_word(self, pair: Raw) -> bool:
        if self._bad is None or self._bad_anywhere is None:
            return False
        for text, language in zip((pair.query, pair.passage), pair.languages, strict=True):
            bad = self._bad_anywhere if language in _UNSPACED else self._bad
            if bad.find(text) is not None:
                return True
        return False

    def _repeated(self, pair: Raw) -> str:
        both = _digest(pair.query, pair.passage)
        if both in self._pairs:
            return "duplicate"
        passage = _digest(pair.passage)
        if self._queries[passage] >= self._filters.max_queries:
            return "passage of too many queries"
        self._pairs.add(both)
        self._queries[passage] += 1
        return ""


def plain(text: str) -> str:
    """A text in NFC, without control characters, its lines stripped at their ends."""
    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(_CONTROLS.sub("", line).strip() for line in lines).strip()


def _count(text: str, enough: int) -> int:
    """The words of a text; of one that is divided by spaces, no more are looked for than needed."""
    spaced = len(text.split(None, enough))
    return spaced if text.isascii() or spaced > enough else len(words(text))


def _digest(*texts: str) -> int:
    content = hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=8)
    return int.from_bytes(content.digest(), "little")
