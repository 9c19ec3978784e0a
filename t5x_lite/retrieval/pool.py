"""The passages among which negatives are looked for, by number.

    pool = Pool.of([Passage("f:1", "d7", "Emma", "Jane Austen wrote it.")])
    pool.number("d7"), pool.name(0), pool.text(0)       # 0, "d7", "Emma Jane Austen wrote it."
    pool.digests(0) == {digest("emma jane austen wrote it"), digest("Jane Austen wrote it")}

Two texts are the same where their words are: case, white space, punctuation and the forms of one
character that Unicode calls compatible make no difference.
"""

import array
import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.records.passages import Passage
from t5x_lite.records.string_table import StringTable

_WORD = re.compile(r"\w+")
_WORDS_KEPT = 1 << 14


def same_words(text: str) -> str:
    """What is equal for two texts that have the same words; the text itself if it has none."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_WORD.findall(plain)) or plain.strip()


def digest(text: str) -> int:
    """63 bits of what `same_words` gives."""
    content = hashlib.blake2b(same_words(text).encode(), digest_size=8).digest()
    return int.from_bytes(content, "little") >> 1


class Pool:
    """Passages in the order of their files; ids, texts and digests are in memory.

    Args:
      names: the ids, all different.
      texts: with their titles.
      digests: int64 [N, 2], of each text with its title and without it.
      starts: int64 [N], the first character of each behind its title.
    """

    def __init__(
        self, names: StringTable, texts: StringTable, digests: np.ndarray, starts: np.ndarray
    ):
        self._names, self._texts, self._digests = names, texts, digests
        self._numbers = {name: number for number, name in enumerate(names)}
        self._by_digest: dict[int, int] | None = None
        self._words = functools.lru_cache(_WORDS_KEPT)(lambda number: same_words(texts[number]))
        self._starts = starts

    @classmethod
    def of(cls, passages: Iterable[Passage]) -> "Pool":
        """The pool of some passages, which are read once.

        Raises:
          InputError: an id comes twice, or there is no passage.
        """
        digests, names, seen = array.array("q"), [], set[str]()
        starts = array.array("q")

        def texts() -> Iterable[str]:
            for passage in passages:
                if passage.id in seen:
                    raise InputError(f"{passage.where}: the id {passage.id!r} comes twice")
                seen.add(passage.id)
                names.append(passage.id)
                starts.append(max(0, len(passage.whole) - len(passage.text.strip())))
                whole = digest(passage.whole)
                digests.extend((whole, digest(passage.text) if passage.text.strip() else whole))
                yield passage.whole

        table = StringTable.of(texts())
        if not names:
            raise InputError("no passage to mine negatives from")
        return cls(
            StringTable.of(names),
            table,
            np.asarray(digests, np.int64).reshape(-1, 2),
            np.asarray(starts, np.int64),
        )

    def __len__(self) -> int:
        return len(self._names)

    def number(self, name: str) -> int | None:
        """The number of a passage, by its id; None is not in the pool."""
        return self._numbers.get(name)

    def find(self, text: str) -> int | None:
        """The number of the first passage of a text, with its title or without it; None is none."""
        if self._by_digest is None:
            numbers = range(len(self) - 1, -1, -1)
            self._by_digest = {each: k for k in numbers for each in self._digests[k].tolist()}
        return self._by_digest.get(digest(text))

    def name(self, number: int) -> str:
        """The id of a passage."""
        return self._names[number]

    def text(self, number: int) -> str:
        """Title and text of a passage."""
        return self._texts[number]

    def words(self, number: int) -> str:
        """What `same_words` gives of a passage with its title; those asked for last are kept."""
        return self._words(number)

    def words_of_text(self, number: int) -> str:
        """The same without its title."""
        start = int(self._starts[number])
        return same_words(self.text(number)[start:]) if start else self.words(number)

    def digests(self, number: int) -> set[int]:
        """Of its text, with its title and without it."""
        return {*self._digests[number].tolist()}

    def identity(self) -> str:
        """What tells it from another pool."""
        content = hashlib.sha256()
        for table in (self._names, self._texts):
            for values in table.arrays().values():
                content.update(np.ascontiguousarray(values).tobytes())
        return content.hexdigest()
