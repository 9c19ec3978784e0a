"""Inputs of `t5x-lite mine`: queries with their positives, and the searched passages.

The passages among which negatives are looked for, by number.

    pool = Pool.of([Passage("f:1", "d7", "Emma", "Jane Austen wrote it.")])
    pool.number("d7"), pool.name(0), pool.text(0)       # 0, "d7", "Emma Jane Austen wrote it."
    pool.digests(0) == {digest("emma jane austen wrote it"), digest("Jane Austen wrote it")}

Two texts are the same where their words are: case, white space, punctuation and the forms of one
character that Unicode calls compatible make no difference.
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
    """Return a key that is equal for texts of the same words, or the text if it has none."""
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
        """Build the pool of some passages, which are read once.

        Raises:
          InputError: if an id comes twice, or passages are missing.
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
        """Return the number of a passage, by its id; None is not in the pool."""
        return self._numbers.get(name)

    def find(self, text: str) -> int | None:
        """Return the number of the first passage with a text, with or without title, or None."""
        if self._by_digest is None:
            numbers = range(len(self) - 1, -1, -1)
            self._by_digest = {each: k for k in numbers for each in self._digests[k].tolist()}
        return self._by_digest.get(digest(text))

    def name(self, number: int) -> str:
        """Return the id of a passage."""
        return self._names[number]

    def text(self, number: int) -> str:
        """Title and text of a passage."""
        return self._texts[number]

    def words(self, number: int) -> str:
        """Return `same_words` of a passage with its title; the latest results are cached."""
        return self._words(number)

    def words_of_text(self, number: int) -> str:
        """Return the same without its title."""
        start = int(self._starts[number])
        return same_words(self.text(number)[start:]) if start else self.words(number)

    def digests(self, number: int) -> set[int]:
        """Return the digests of the text with its title and without it."""
        return {*self._digests[number].tolist()}

    def identity(self) -> str:
        """Return the identity that distinguishes it from other pools."""
        content = hashlib.sha256()
        for table in (self._names, self._texts):
            for values in table.arrays().values():
                content.update(np.ascontiguousarray(values).tobytes())
        return content.hexdigest()


class Asked(NamedTuple):
    """A query.

    Attributes:
      id: id of the query; its number, from 0, where it has none.
      query: without its prompt.
      prompted: with its prompt.
      positives: the numbers of the answers in the pool, found by id, or else by their words with a
        title or without it; None are not there.
      names: the ids of the answers, or else of the passages that they are; None are not known.
      texts: texts of the answers.
      scores: scores of the input.
      record: the input's line.
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
        """Equal for lines that ask the same."""
        return same_words(self.query)


class Inputs(NamedTuple):
    """Queries and passages.

    Attributes:
      asked: the queries.
      pool: the passages that are searched.
      digest: digest of the queries and their answers.
    """

    asked: list[Asked]
    pool: Pool
    digest: str

    def answers_by_query(self) -> dict[str, frozenset[int]]:
        """Return the positives of each query, over all lines of the same query."""
        found: dict[str, set[int]] = {}
        for one in self.asked:
            own = (number for number in one.positives if number is not None)
            found.setdefault(one.key, set()).update(own)
        return {key: frozenset(numbers) for key, numbers in found.items()}

    def texts_by_query(self) -> dict[str, tuple[str, ...]]:
        """As `answers_by_query`, the words themselves."""
        found: dict[str, dict[str, None]] = {}
        for one in self.asked:
            own = found.setdefault(one.key, {})
            own.update(dict.fromkeys(same_words(text) for text in one.texts))
        return {key: tuple(texts) for key, texts in found.items()}

    def digests_by_query(self) -> dict[str, frozenset[int]]:
        """As `answers_by_query`, of their words."""
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
            "%d of %d answers (%.1f %%) are not among the passages, by id or by text with or "
            "without title: a passage that is one of them in other words may become a negative",
            missing,
            len(places),
            100 * missing / len(places),
        )


def read_inputs(path: str, *, passages: Sequence[str] = (), split: str = "train") -> Inputs:
    """Return the queries of a file of pairs or of a BEIR directory, and their passages.

    Args:
      path: path of either.
      passages: files of passages; by default the passages of `path`.
      split: split of a directory.

    Raises:
      InputError: if a file or a line is wrong, queries are missing, or an id comes twice.
    """
    files = itertools.chain.from_iterable(read_passages(each) for each in passages)
    if os.path.isdir(path):
        pool = Pool.of(files if passages else _corpus(path))
        lines = [*_of_directory(path, split, pool)]
    else:
        if not (lines := [*_of_file(path)]):
            raise InputError(f"{path}: no query")
        pool = Pool.of(files if passages else _of_lines(lines))
    if not lines:
        raise InputError(f"{path}: no query")
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

    A positive that corpus.jsonl lacks gets its text from the pool. If both lack it, it is skipped:
    it cannot become a negative by its id, only in other words under another id.
    """
    there = retrieval_sets.beir_splits(path, field="--input")
    if split not in there:
        raise InputError(f"{path} has no judgments of the split {split}: give --split {there[0]}")
    names = retrieval_sets.read_queries(path)
    judged = retrieval_sets.read_judgements(Path(path) / "qrels" / retrieval_sets.FILES[split])
    wanted = {name for scores in judged.values() for name, score in scores.items() if score > 0}
    texts = retrieval_sets.read_documents(path, wanted)
    for name in wanted - texts.keys():
        if (number := pool.number(name)) is not None:
            texts[name] = pool.text(number)
    if missing := len(wanted - texts.keys()):
        _logger.warning(
            "%s: neither corpus.jsonl nor the passages have %s of %s judged positives; they are "
            "skipped",
            *(path, f"{missing:,}", f"{len(wanted):,}"),
        )
    for query, scores in judged.items():
        if query not in names:
            raise InputError(f"{path}: queries.jsonl lacks {query!r}, which {split} has")
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
    """Yield all passages of a file of pairs, each once: by its id, or else by its text."""
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
        raise InputError(f'{line.where}: "id" must be a string or a whole number, got {name!r:.40}')
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
