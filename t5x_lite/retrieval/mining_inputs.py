"""Inputs of `t5x-lite mine`: queries with their positives, and the pool of passages to search.

The pool numbers the passages:

    pool = Pool.of([Passage("f:1", "d7", "Emma", "Jane Austen wrote it.")])
    pool.number("d7"), pool.name(0), pool.text(0)       # 0, "d7", "Emma Jane Austen wrote it."
    pool.digests(0) == {digest("emma jane austen wrote it"), digest("Jane Austen wrote it")}

Two texts are the same if their words are the same, ignoring case, white space, punctuation and
compatible forms of Unicode characters (NFKC).
"""

import array
import functools
import hashlib
import itertools
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import pairs, retrieval_sets
from t5x_lite.data.formats.lines import Line, read_examples
from t5x_lite.data.formats.passages import Passage, read_passages
from t5x_lite.data.formats.string_table import StringTable

_logger = logging.getLogger(__name__)
_WORD = re.compile(r"\w+")


_WORDS_KEPT = 1 << 14


def same_words(text: str) -> str:
    """Return a key that is equal for texts with the same words; without words, the text itself."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_WORD.findall(plain)) or plain.strip()


def digest(text: str) -> int:
    """Return a 63-bit hash of the words of a text (`same_words`)."""
    content = hashlib.blake2b(same_words(text).encode(), digest_size=8).digest()
    return int.from_bytes(content, "little") >> 1


class Pool:
    """Passages from which negatives are selected, with ids, texts and digests in memory.

    Args:
      names: ids of the passages, all different.
      texts: texts of the passages, including their titles.
      digests: digests of each text with its title and without it, int64 [N, 2].
      starts: index of the first character after each title, int64 [N].
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
        """Return the pool of passages, which are read once.

        Raises:
          InputError: if two passages have the same id, or the files contain no passage.
        """
        digests, names, seen = array.array("q"), [], set[str]()
        starts = array.array("q")

        def texts() -> Iterable[str]:
            for passage in passages:
                if passage.id in seen:
                    raise InputError(f"{passage.where}: two passages have the id {passage.id!r}")
                seen.add(passage.id)
                names.append(passage.id)
                starts.append(max(0, len(passage.whole) - len(passage.text.strip())))
                whole = digest(passage.whole)
                digests.extend((whole, digest(passage.text) if passage.text.strip() else whole))
                yield passage.whole

        table = StringTable.of(texts())
        if not names:
            raise InputError("the passage files contain no passage to take negatives from")
        return cls(
            StringTable.of(names),
            table,
            np.asarray(digests, np.int64).reshape(-1, 2),
            np.asarray(starts, np.int64),
        )

    def __len__(self) -> int:
        return len(self._names)

    def number(self, name: str) -> int | None:
        """Return the index in the pool of the passage with this id, or None."""
        return self._numbers.get(name)

    def find(self, text: str) -> int | None:
        """Return the index of the first passage with this text or title and text, or None."""
        if self._by_digest is None:
            numbers = range(len(self) - 1, -1, -1)
            self._by_digest = {each: k for k in numbers for each in self._digests[k].tolist()}
        return self._by_digest.get(digest(text))

    def name(self, number: int) -> str:
        return self._names[number]

    def text(self, number: int) -> str:
        """Return the text of a passage, including its title."""
        return self._texts[number]

    def words(self, number: int) -> str:
        """Return `same_words` of a passage with its title, cached for recent passages."""
        return self._words(number)

    def words_of_text(self, number: int) -> str:
        """Return `same_words` of a passage without its title."""
        start = int(self._starts[number])
        return same_words(self.text(number)[start:]) if start else self.words(number)

    def digests(self, number: int) -> set[int]:
        """Return the digests of a passage with its title and without it."""
        return {*self._digests[number].tolist()}

    def identity(self) -> str:
        """Return a digest of all ids and texts in the pool, which changes if a passage changes."""
        content = hashlib.sha256()
        for table in (self._names, self._texts):
            for values in table.arrays().values():
                content.update(np.ascontiguousarray(values).tobytes())
        return content.hexdigest()


class Asked(NamedTuple):
    """Query with its positives.

    Attributes:
      id: id of the query, or its line number from 0.
      query: text of the query, without a prompt.
      prompted: text of the query, with its prompt.
      positives: index in the pool of each positive, found by id or words; None if not in the pool.
      names: id of each positive, or of the passage with the same words; None if unknown.
      texts: texts of the positives.
      scores: scores of the positives in the input.
      record: input line of the query.
    """

    id: str
    query: str
    prompted: str
    positives: list[int | None]
    names: list[str | None]
    texts: list[str]
    scores: list[float | None]
    record: dict[str, Any]

    @property
    def key(self) -> str:
        """Key that is equal for queries with the same words."""
        return same_words(self.query)


class Inputs(NamedTuple):
    """Queries with their positives, and the pool of passages.

    Attributes:
      asked: queries with their positives.
      pool: passages to search.
      digest: digest of the queries and positives.
    """

    asked: list[Asked]
    pool: Pool
    digest: str

    def answers_by_query(self) -> dict[str, frozenset[int]]:
        """Return query key -> pool indices of the positives, from all lines with the query."""
        found: dict[str, set[int]] = {}
        for one in self.asked:
            own = (number for number in one.positives if number is not None)
            found.setdefault(one.key, set()).update(own)
        return {key: frozenset(numbers) for key, numbers in found.items()}

    def texts_by_query(self) -> dict[str, tuple[str, ...]]:
        """Return query key -> words of the positives, from all lines with the query."""
        found: dict[str, dict[str, None]] = {}
        for one in self.asked:
            own = found.setdefault(one.key, {})
            own.update(dict.fromkeys(same_words(text) for text in one.texts))
        return {key: tuple(texts) for key, texts in found.items()}

    def digests_by_query(self) -> dict[str, frozenset[int]]:
        """Return query key -> word digests of the positives, from all lines with the query."""
        found: dict[str, set[int]] = {}
        for one in self.asked:
            own = found.setdefault(one.key, set())
            own.update(digest(text) for text in one.texts)
            for number in one.positives:
                own.update(() if number is None else self.pool.digests(number))
        return {key: frozenset(digests) for key, digests in found.items()}


def _warn(asked: Sequence[Asked]) -> None:
    places = [number for one in asked for number in one.positives]
    if missing := places.count(None):
        _logger.warning(
            "%d of %d positives (%.1f %%) are not in the passage files, neither by id nor by "
            "text; a passage with the same content in other words may become a negative",
            missing,
            len(places),
            100 * missing / len(places),
        )


def read_inputs(path: str, *, passages: Sequence[str] = (), split: str = "train") -> Inputs:
    """Read queries and positives from a file of pairs or a BEIR directory, and read the passages.

    Args:
      path: file of pairs, or BEIR directory.
      passages: passage files; () uses the passages of `path`.
      split: split of a BEIR directory.

    Raises:
      InputError: if a file or a line is invalid, or two passages have the same id.
    """
    files = itertools.chain.from_iterable(read_passages(each) for each in passages)
    if os.path.isdir(path):
        pool = Pool.of(files if passages else _corpus(path))
        lines = [*_of_directory(path, split, pool)]
    else:
        if not (lines := [*_of_file(path)]):
            raise InputError(f"input {path} contains no query")
        pool = Pool.of(files if passages else _of_lines(lines))
    if not lines:
        raise InputError(f"input {path} contains no query")
    content = hashlib.sha256()
    asked = []
    for number, line in enumerate(lines):
        one = _asked(line, number, pool, by_text=not passages)
        content.update(repr((one.id, one.prompted, one.texts, one.names, one.scores)).encode())
        asked.append(one)
    _warn(asked)
    return Inputs(asked, pool, content.hexdigest())


def _of_directory(path: str, split: str, pool: Pool) -> Iterator[Line]:
    """Yield the queries of a BEIR directory as lines of pairs.

    A positive that is not in corpus.jsonl gets its text from the pool. If it is not in the pool, it
    is skipped; then only another passage with its content could become a negative.
    """
    there = retrieval_sets.beir_splits(path, field="--input")
    if split not in there:
        raise InputError(
            f"BEIR directory {path} has no relevance judgments for --split {split}; give "
            f"--split {there[0]}"
        )
    names = retrieval_sets.read_queries(path)
    judged = retrieval_sets.read_judgements(Path(path) / "qrels" / retrieval_sets.FILES[split])
    wanted = {name for scores in judged.values() for name, score in scores.items() if score > 0}
    texts = retrieval_sets.read_documents(path, wanted)
    for name in wanted - texts.keys():
        if (number := pool.number(name)) is not None:
            texts[name] = pool.text(number)
    if missing := len(wanted - texts.keys()):
        _logger.warning(
            "%s: skipping positives that neither corpus.jsonl nor the passage files contain: "
            "%s of %s",
            *(path, f"{missing:,}", f"{len(wanted):,}"),
        )
    for query, scores in judged.items():
        if query not in names:
            raise InputError(
                f"{path}: the relevance judgments of {split} have the query {query!r}, but "
                "queries.jsonl does not contain it"
            )
        answers = [name for name, score in scores.items() if score > 0 and name in texts]
        if answers:
            record = {
                "id": query,
                "query": names[query],
                "pos": [texts[name] for name in answers],
                "pos_ids": answers,
            }
            yield Line(f"{path}:{query}", record)


def _corpus(path: str) -> Iterator[Passage]:
    return read_passages(str(Path(path) / "corpus.jsonl"))


def _of_file(path: str) -> Iterator[Line]:
    for line in read_examples(path, fields=("query",)):
        _ = pairs.checked(line.record, line.where)
        yield line


def _of_lines(lines: Iterable[Line]) -> Iterator[Passage]:
    """Yield each distinct passage of a file of pairs; passages with equal ids or texts are one."""
    seen: set[str] = set()
    for line in lines:
        for kind in ("pos", "neg"):
            texts = line.record.get(kind, [])
            names = line.record.get(f"{kind}_ids") or [None] * len(texts)
            for name, text in zip(names, texts, strict=True):
                key = _key(name, text)
                if key not in seen:
                    seen.add(key)
                    yield Passage(line.where, key, "", text)


def _key(name: Any, text: str) -> str:
    if name is not None:
        return str(name)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _asked(line: Line, number: int, pool: Pool, *, by_text: bool) -> Asked:
    record = line.record
    name = record.get("id", number)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise InputError(f'{line.where}: "id" must be a string or an integer, got {name!r:.40}')
    texts = cast("list[str]", record["pos"])
    named = record.get("pos_ids")
    names: list[str | None] = [None] * len(texts)
    if named is not None:
        names = [str(each) for each in named]
    elif by_text:
        names = [_key(None, text) for text in texts]
    positives = [None if each is None else pool.number(each) for each in names]
    for place, text in enumerate(texts):
        if positives[place] is None:
            found = positives[place] = pool.find(text)
            if found is not None and names[place] is None:
                names[place] = pool.name(found)
    return Asked(
        id=str(name),
        query=record["query"],
        prompted=(record.get("prompt") or "") + record["query"],
        positives=positives,
        names=names,
        texts=texts,
        scores=record.get("pos_scores") or [None] * len(texts),
        record=record,
    )
