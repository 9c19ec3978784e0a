"""Searches of `t5x-lite refresh`: passages near to a cache's queries that are not their positives.

    passages = tokenized_passages(experiment.data, vocabulary, ["corpus.jsonl"])
    queries = CachedQueries(examples_of(source.split), passages, length=512)
    numbers = search(rule, "work/run", 2000, passages, queries, batch_size=32)   # int32 [n, top]

For each checkpoint at a multiple of `data.refresh.period` steps, the passages and the cache's
queries are encoded. Then the nearest passages of each query are found, without its positives.
"""

import array
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.checkpoints import reading
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import scratch_directory
from t5x_lite.core.progress import counting
from t5x_lite.core.remote import open_path
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.data.cache import refreshes
from t5x_lite.data.cache.files import Split
from t5x_lite.data.config import Data, Refresh, text_lengths
from t5x_lite.data.formats.passages import read_passages
from t5x_lite.data.formats.string_table import create_array
from t5x_lite.data.formats.vectors import VectorShards
from t5x_lite.data.tasks.pairs import MORE
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, text_rows, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.layouts.base import separate
from t5x_lite.layouts.groups import ID_WIDTH
from t5x_lite.models.vector_heads import Role
from t5x_lite.retrieval.exact import search_shards
from t5x_lite.retrieval.pair_rules import plain

POLL_SECONDS = 5.0
_CHUNK_BATCHES = 32
_READ_AT_A_TIME = 1024
_LEAST_TOKENS = 8
"""Minimum number of tokens of a text that is searched for inside of another text."""

_logger = logging.getLogger(__name__)


def needed_steps(rule: Refresh, steps: int) -> list[int]:
    """Return the steps of a run with `steps` steps that need a search with their checkpoint."""
    batches = range(0, steps, rule.period)
    return sorted({step for number in batches if (step := rule.searched_by(number))})


def wait_for(workdir: str, step: int, *, once: bool) -> bool:
    """Wait for the checkpoint of a step; return False at once if it is missing and `once` is set.

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
                f"{workdir}: the checkpoint of step {step} was deleted before its search; keep "
                "more checkpoints by --checkpoints.keep, and start the run again"
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
    """Return the token ids of all passages, which the first call tokenizes and writes.

    Rows begin with [CLS] like the rows of the cache, even if the model's rows do not. A passage
    also has the keys of its text as normalized by `pair_rules.plain`, because tokens of bytes
    depend on white space.
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
    """Distinct queries of a cache, and the passages that are their positives.

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
    """Return hashes of the ids of an example's passages (`refreshes.name_key`); 0 is unknown."""
    if feature not in example:
        return []
    content = np.ascontiguousarray(example[feature].reshape(-1, ID_WIDTH), "<u2")
    return content.view("<u8").reshape(-1).tolist()


def _inner(row: np.ndarray) -> bytes:
    """Return the tokens of a row between [CLS] and [SEP] as bytes, 4 bytes per token."""
    return np.asarray(row[1:-1], "<i4").tobytes()


def _contains(outer: bytes, inner: bytes, *, full: int) -> bool:
    """Return True if `outer` contains `inner`, or the start of `inner` if `outer` is truncated."""
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
    """Return the nearest passages of each example, by the checkpoint of a step.

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
