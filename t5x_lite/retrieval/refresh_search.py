"""Inputs and searches of `t5x-lite mine` and `refresh`: queries, passages, nearest passages.

Inputs of `t5x-lite mine`: queries with their positives, and the pool of passages to search.

The pool numbers the passages:

    pool = Pool.of([Passage("f:1", "d7", "Emma", "Jane Austen wrote it.")])
    pool.number("d7"), pool.name(0), pool.text(0)       # 0, "d7", "Emma Jane Austen wrote it."
    pool.digests(0) == {digest("emma jane austen wrote it"), digest("Jane Austen wrote it")}

Two texts are the same if their words are the same, ignoring case, white space, punctuation and
compatible forms of Unicode characters (NFKC).

Searches of `t5x-lite refresh`: passages near to a cache's queries that are not their positives.

    passages = tokenized_passages(experiment.data, vocabulary, ["corpus.jsonl"])
    queries = CachedQueries(examples_of(source.split), passages, length=512)
    numbers = search(rule, "work/run", 2000, passages, queries, batch_size=32)   # int32 [n, top]

For each checkpoint at a multiple of `data.refresh.period` steps, the passages and the cache's
queries are encoded. Then the nearest passages of each query are found, without its positives.
"""

import array
import functools
import hashlib
import itertools
import logging
import os
import re
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from t5x_lite.checkpoints import reading
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import scratch_directory
from t5x_lite.core.remote import open_path
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.workers import counting
from t5x_lite.data.cache import refreshes
from t5x_lite.data.cache.files import Split
from t5x_lite.data.config import Data, Refresh, text_lengths
from t5x_lite.data.formats import pairs, retrieval_sets
from t5x_lite.data.formats.lines import Line, read_examples
from t5x_lite.data.formats.pairs import Passage, read_passages
from t5x_lite.data.formats.vectors import StringTable, VectorShards, create_array
from t5x_lite.data.tasks.encoder import MORE
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, text_rows, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.layouts.base import separate
from t5x_lite.layouts.groups import ID_WIDTH
from t5x_lite.models.vector_heads import Role
from t5x_lite.retrieval.exact import search_shards
from t5x_lite.retrieval.pairs import plain

_logger = logging.getLogger(__name__)


_WORD = re.compile(r"\w+")


_WORDS_KEPT = 1 << 14


def same_words(text: str) -> str:
    """Return a key that is equal for texts with the same words; without words, the text itself."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_WORD.findall(plain)) or plain.strip()


def digest(text: str) -> int:
    """Return a 63-bit hash of the words of a text; it ignores case and punctuation."""
    content = hashlib.blake2b(same_words(text).encode(), digest_size=8).digest()
    return int.from_bytes(content, "little") >> 1


class Pool:
    """Collection of passages from which hard negatives are selected, in memory.

    Args:
      names: ids of the passages, all different.
      texts: texts of the passages, including their titles.
      digests: hashes of the words of each text with its title and without it, int64 [N, 2].
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
        """Load the passages into memory.

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
        """Return the index of the passage with this id, or None."""
        return self._numbers.get(name)

    def find(self, text: str) -> int | None:
        """Return the index of the first passage with the same words as a text, or None."""
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
        """Return the normalized words of a passage with its title."""
        return self._words(number)

    def words_of_text(self, number: int) -> str:
        """Return the normalized words of a passage without its title."""
        start = int(self._starts[number])
        return same_words(self.text(number)[start:]) if start else self.words(number)

    def digests(self, number: int) -> set[int]:
        """Return the hashes of a passage's words, with its title and without it."""
        return {*self._digests[number].tolist()}

    def identity(self) -> str:
        """Return a digest of the ids and texts of all passages."""
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
      positives: index of each positive among all passages, found by its id or words; None for a
        missing passage.
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
    """Queries with their positives, and the passages to search.

    Attributes:
      asked: queries with their positives.
      pool: passages to search.
      digest: digest of the queries and positives.
    """

    asked: list[Asked]
    pool: Pool
    digest: str

    def answers_by_query(self) -> dict[str, frozenset[int]]:
        """Return the passage indices of the positives of each query, by query key."""
        found: dict[str, set[int]] = {}
        for one in self.asked:
            own = (number for number in one.positives if number is not None)
            found.setdefault(one.key, set()).update(own)
        return {key: frozenset(numbers) for key, numbers in found.items()}

    def texts_by_query(self) -> dict[str, tuple[str, ...]]:
        """Return the words of the positives of each query, by query key."""
        found: dict[str, dict[str, None]] = {}
        for one in self.asked:
            own = found.setdefault(one.key, {})
            own.update(dict.fromkeys(same_words(text) for text in one.texts))
        return {key: tuple(texts) for key, texts in found.items()}

    def digests_by_query(self) -> dict[str, frozenset[int]]:
        """Return hashes of the words of the positives of each query, by query key."""
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
    """Yield each distinct passage of a file of pairs."""
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


POLL_SECONDS = 5.0
_CHUNK_BATCHES = 32
_READ_AT_A_TIME = 1024
_LEAST_TOKENS = 8
"""Minimum number of tokens of a text that is searched for inside of another text."""


def needed_steps(rule: Refresh, steps: int) -> list[int]:
    """Return the training steps at which hard negatives are searched with the run's checkpoint."""
    batches = range(0, steps, rule.period)
    return sorted({step for number in batches if (step := rule.searched_by(number))})


def wait_for(workdir: str, step: int, *, once: bool) -> bool:
    """Wait for a step's checkpoint; if `once`, return False immediately when it is missing.

    Raises:
      InputError: if the checkpoint was deleted.
    """
    told = False
    while True:
        there = reading.saved_steps(open_path(workdir) / "checkpoints")
        if step in there:
            return True
        if there and max(there) > step:
            raise InputError(
                f"work directory {workdir}: the checkpoint of step {step} was deleted before the "
                "search with this checkpoint; keep more checkpoints by --checkpoints.keep, and "
                "start the run again"
            )
        if once:
            return False
        if not told:
            _logger.info("waiting for the checkpoint of step %d in %s", step, workdir)
            told = True
        time.sleep(POLL_SECONDS)


def tokenized_passages(
    data: Data, vocabulary: Vocabulary, files: Sequence[str]
) -> refreshes.Passages:
    """Return the token ids of all passages; the first call stores them in data.refresh.directory.

    Passages begin with [CLS], as in the training cache, even if the model's inputs do not.
    """
    directory = data.refresh.directory
    if not refreshes.Passages.has_keys(directory):
        length, cut = text_lengths(data)["document"], text_rows(vocabulary, begins=True)
        tokens = encoder_tokens(vocabulary)
        passages = (one for name in files for one in read_passages(name))
        rows: list[np.ndarray] = []
        keys: list[tuple[int, ...]] = []
        while some := list(itertools.islice(passages, _READ_AT_A_TIME)):
            wholes, bodies = [one.whole for one in some], [one.text for one in some]
            plain_bodies, plain_wholes = [*map(plain, bodies)], [*map(plain, wholes)]
            texts = dict.fromkeys([*wholes, *bodies, *plain_bodies, *plain_wholes])
            made = dict(zip(texts, cut([*texts], length=length).rows, strict=True))
            for row in made.values():
                row[1:-1] = without_special(row[1:-1].tolist(), tokens)

            def key_of(text: str, made: Mapping[str, np.ndarray] = made) -> int:
                return refreshes.tokens_key(made[text]) if text.strip() else 0

            rows += [made[text] for text in wholes]
            for one, *forms in zip(some, plain_bodies, plain_wholes, strict=True):
                name = refreshes.name_key(one.id)
                keys.append((key_of(one.text), name, *map(key_of, forms)))
        refreshes.Passages.write(directory, rows, np.array(keys, np.uint64).reshape(-1, 4))
    return refreshes.Passages.open(directory)


class CachedQueries:
    """Distinct queries of a cached training set, and the passages that are their positives.

    A passage is a positive if it has the id of a positive, or the tokens of a positive with or
    without the title. Among the candidates of a search, a passage also counts as a positive if it
    contains a positive or is part of one (`answered_by`).

    Args:
      examples: examples of the cache.
      pool: all passages.
      length: maximum number of tokens of a passage; longer passages are truncated.

    Attributes:
      rows: token ids of each distinct query.
      of_examples: index in `rows` of each example's query, int64 [n].
      answers: indices in `pool` of each query's positives.
      num_answers: total number of positives.
      num_unknown: number of positives that are not among the passages.
    """

    def __init__(
        self,
        examples: Iterable[Mapping[str, np.ndarray]],
        pool: refreshes.Passages,
        *,
        length: int = 0,
    ):
        self._pool, self._length = pool, length
        by_tokens: dict[int, list[int]] = {}
        by_name: dict[int, list[int]] = {}
        for number, (untitled, name, *forms) in enumerate(pool.keys.tolist()):
            for key in {refreshes.tokens_key(pool.tokens(number)), untitled, *forms} - {0}:
                by_tokens.setdefault(key, []).append(number)
            by_name.setdefault(name, []).append(number)
        by_name.pop(0, None)
        self.rows: list[np.ndarray] = []
        self.answers: list[set[int]] = []
        self._texts: list[dict[int, bytes]] = []
        of_examples = array.array("q")
        known: dict[int, int] = {}
        unknown: set[tuple[int, int]] = set()
        for example in examples:
            key = refreshes.tokens_key(example["query"])
            if key not in known:
                known[key] = len(self.rows)
                self.rows.append(example["query"])
                self.answers.append({*by_tokens.get(key, ())})
                self._texts.append({})
            place = known[key]
            of_examples.append(place)
            texts = separate(example["positives"])
            names = _names(example, "passage_ids")[: len(texts)] or [0] * len(texts)
            texts += separate(example[MORE]) if MORE in example else []
            names += [0] * (len(texts) - len(names))
            for name in _names(example, "positive_ids"):
                self.answers[place].update(by_name.get(name, ()))
            for text, name in zip(texts, names, strict=True):
                answer = refreshes.tokens_key(text)
                found = {*by_tokens.get(answer, ()), *by_name.get(name, ())}
                self.answers[place].update(found)
                self._texts[place][answer] = _inner(text)
                if not found:
                    unknown.add((place, answer))
        self.of_examples = np.asarray(of_examples, np.int64)
        self.num_answers, self.num_unknown = sum(map(len, self._texts)), len(unknown)

    def answered_by(self, query: int, passage: int) -> bool:
        """Return True if a passage counts as a positive of a query."""
        if passage in self.answers[query]:
            return True
        tokens, full = _inner(self._pool.tokens(passage)), 4 * (self._length - 2)
        return any(
            _contains(tokens, answer, full=full) or _contains(answer, tokens, full=full)
            for answer in self._texts[query].values()
        )

    def tell(self) -> None:
        """Warn about positives that are not among the passages."""
        if self.num_unknown:
            _logger.warning(
                "%d of %d positives (%.1f %%) are not in the passage files, neither by id nor "
                "by text; a passage with the same content in other words may become a negative",
                self.num_unknown,
                self.num_answers,
                100 * self.num_unknown / self.num_answers,
            )


def examples_of(split: Split) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the examples of a cache's split, in order."""
    for start in range(0, split.size, _READ_AT_A_TIME):
        yield from split.read(np.arange(start, min(start + _READ_AT_A_TIME, split.size)))


def _names(example: Mapping[str, np.ndarray], feature: str) -> list[int]:
    if feature not in example:
        return []
    content = np.ascontiguousarray(example[feature].reshape(-1, ID_WIDTH), "<u2")
    return content.view("<u8").reshape(-1).tolist()


def _inner(row: np.ndarray) -> bytes:
    """Return the tokens of a row between [CLS] and [SEP] as bytes, 4 bytes per token."""
    return np.asarray(row[1:-1], "<i4").tobytes()


def _contains(outer: bytes, inner: bytes, *, full: int) -> bool:
    head = inner[: 4 * _LEAST_TOKENS]
    if len(head) < 4 * _LEAST_TOKENS:
        return False
    at = outer.find(head)
    while at >= 0:
        size = min(len(inner), len(outer) - at)
        is_cut = len(outer) >= full and size >= 8 * _LEAST_TOKENS
        if at % 4 == 0 and outer[at : at + size] == inner[:size] and (size == len(inner) or is_cut):
            return True
        at = outer.find(head, at + 1)
    return False


def _folder(rule: Refresh, step: int) -> Path:
    return Path(rule.directory) / f"{step}.partial"


def search(
    rule: Refresh,
    workdir: str,
    step: int,
    pool: refreshes.Passages,
    queries: CachedQueries,
    *,
    batch_size: int,
) -> np.ndarray:
    """Encode queries and passages by a step's checkpoint, and find each query's nearest passages.

    Returns:
      Passage numbers of each example, nearest first, int32 [n, top]; -1 for missing passages.
    """
    with scratch_directory(_folder(rule, step)) as folder:
        return _search_in(folder, rule, workdir, step, pool, queries, batch_size=batch_size)


def _search_in(
    folder: Path,
    rule: Refresh,
    workdir: str,
    step: int,
    pool: refreshes.Passages,
    queries: CachedQueries,
    *,
    batch_size: int,
) -> np.ndarray:
    mesh, top = make_mesh(MeshConfig()), rule.top
    encoder = Checkpoint.load([workdir], step=step, mesh=mesh).encoder()
    embedder = encoder.embedder(batch_size=batch_size)

    first = 0 if encoder.loaded.experiment.model.begins_with_cls else 1

    def encoded(rows: Sequence[np.ndarray], role: Role) -> np.ndarray:
        return embedder.run(encoder.params, [row[first:] for row in rows], role=role)

    vectors = encoded(queries.rows, "query")
    path = folder / "passages.npy"
    file = create_array(path, np.float32, (len(pool), vectors.shape[1]))
    chunk = _CHUNK_BATCHES * batch_size
    with counting(
        f"encoding with the checkpoint of step {step}", unit="passages", total=len(pool)
    ) as advance:
        for start in range(0, len(pool), chunk):
            end = min(start + chunk, len(pool))
            file[start:end] = encoded([pool.tokens(k) for k in range(start, end)], "passage")
            advance(end - start)
    file.flush()
    depth = min(len(pool), top + max(map(len, queries.answers), default=0))
    found = np.full((len(queries.rows), top), -1, np.int32)
    while True:
        best: Any = search_shards(VectorShards.open([str(path)]), vectors, depth=depth, mesh=mesh)
        for row, numbers in enumerate(best.rows):
            those = (k for k in numbers.tolist() if k >= 0 and not queries.answered_by(row, k))
            kept = list(itertools.islice(those, top))
            found[row, : len(kept)] = kept
        # Passages that contain an answer are seen only among the candidates.
        if depth == len(pool) or not (found[:, -1] < 0).any():
            break
        depth = min(len(pool), 2 * depth)
    return found[queries.of_examples]
