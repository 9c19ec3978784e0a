"""`t5x-lite refresh`: hard negatives by the checkpoints of a run that goes on (ANCE).

    t5x-lite train CONFIG --workdir W --data.cache C --data.refresh.period 1000 \
        --data.refresh.directory W/refresh
    t5x-lite refresh W --passages corpus.jsonl          # meanwhile, here or on another machine

For each checkpoint of a step that is a multiple of `data.refresh.period` it encodes the passages
and the queries of the cache, and writes the passages nearest to each query, without its answers.
The search of a step is there whole or not at all; a killed command goes on with the step that it
was at. It ends when no search is needed any more.
"""

import array
import hashlib
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.checkpoints import reading
from t5x_lite.config import Experiment, load
from t5x_lite.data.cache import refreshes
from t5x_lite.data.cache.batches import open_sources
from t5x_lite.data.cache.files import Split
from t5x_lite.data.config import text_lengths
from t5x_lite.data.layouts.base import separate
from t5x_lite.data.refresh import Refresh
from t5x_lite.errors import InputError
from t5x_lite.files import scratch_directory
from t5x_lite.heads.dense import Role
from t5x_lite.records.passages import read_passages
from t5x_lite.records.vector_shards import VectorShards
from t5x_lite.remote import open_path
from t5x_lite.retrieval.exact_runs import search_shards
from t5x_lite.run.text_encoder import TextEncoder, rows_of
from t5x_lite.sharding import MeshConfig, make_mesh
from t5x_lite.vocabulary.loading import Vocabulary, load_vocabulary

POLL_SECONDS = 5.0
_CHUNK_BATCHES = 32
_READ_AT_A_TIME = 1024

_logger = logging.getLogger(__name__)


def refresh(
    workdir: str, *, passages: Sequence[str], batch_size: int = 32, once: bool = False
) -> None:
    """Searches with each checkpoint that a run needs a search of, as it comes.

    Args:
      workdir: of the run, whose config has `data.refresh`.
      passages: files of the passages that are searched.
      batch_size: texts encoded at once.
      once: whether it ends after the checkpoints that are there.

    Raises:
      InputError: the config has no refresh, or a file or the cache is wrong.
    """
    experiment = load(str(Path(workdir) / "config.json"))
    data = experiment.data
    if not data.refresh.period:
        raise InputError(f"{workdir}: its config has no data.refresh.period: nothing is needed")
    if not passages:
        raise InputError("--passages needs at least one file")
    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    pool = _pool(experiment, vocabulary, passages)
    (source,) = open_sources(data, vocabulary, split="train")
    queries = _Queries(_examples(source.split), pool)
    for step in needed_steps(data.refresh, experiment.steps):
        if refreshes.is_whole(data.refresh.directory, step):
            continue
        if not _wait(workdir, step, once=once):
            return
        started = time.monotonic()
        with scratch_directory(_folder(data.refresh, step)):
            numbers = _search(data.refresh, workdir, step, pool, queries, batch_size=batch_size)
        settings = {"top": data.refresh.top, "passages": len(pool), "cache": source.cache.digest}
        refreshes.write(data.refresh.directory, step, numbers, settings=settings)
        _logger.info("step %d: searched in %.0f s", step, time.monotonic() - started)


def needed_steps(rule: Refresh, steps: int) -> list[int]:
    """The steps whose checkpoints search for some batch of a run of so many steps."""
    batches = range(0, steps, rule.period)
    return sorted({step for number in batches if (step := rule.searched_by(number))})


def _wait(workdir: str, step: int, *, once: bool) -> bool:
    """Waits for a checkpoint; False where `once` says not to.

    Raises:
      InputError: it is gone already.
    """
    told = False
    while True:
        there = reading.saved_steps(open_path(workdir) / "checkpoints")
        if step in there:
            return True
        if there and max(there) > step:
            raise InputError(
                f"{workdir}: the checkpoint of step {step} is gone, and later ones are there: "
                "keep more of them (--checkpoints.keep), and begin the run again"
            )
        if once:
            return False
        if not told:
            _logger.info("waiting for the checkpoint of step %d of %s", step, workdir)
            told = True
        time.sleep(POLL_SECONDS)


def _pool(
    experiment: Experiment, vocabulary: Vocabulary, files: Sequence[str]
) -> refreshes.Passages:
    """The tokens of all passages, which are written at the first call."""
    directory, data = experiment.data.refresh.directory, experiment.data
    if not (Path(directory) / "passages" / "ends.npy").is_file():
        length = text_lengths(data)["document"]
        cut = rows_of(experiment, vocabulary)
        texts = (one.whole for name in files for one in read_passages(name))
        rows: list[np.ndarray] = []
        while some := list(itertools.islice(texts, _READ_AT_A_TIME)):
            rows += [np.asarray(row, np.int32) for row in cut(some, length=length).rows]
        refreshes.Passages.write(directory, rows)
    return refreshes.Passages.open(directory)


class _Queries:
    """The queries of a cache: each once, and the passages that answer it.

    Attributes:
      rows: the tokens of each.
      of_examples: int64 [n], the query of each example.
      answers: the numbers of the passages that answer each, and of those with the query's tokens.
    """

    def __init__(self, examples: Iterable[Mapping[str, np.ndarray]], pool: refreshes.Passages):
        by_tokens: dict[bytes, list[int]] = {}
        for number in range(len(pool)):
            by_tokens.setdefault(_key(pool.tokens(number)), []).append(number)
        self.rows: list[np.ndarray] = []
        self.answers: list[set[int]] = []
        of_examples = array.array("q")
        known: dict[bytes, int] = {}
        for example in examples:
            key = _key(example["query"])
            if key not in known:
                known[key] = len(self.rows)
                self.rows.append(example["query"])
                self.answers.append({*by_tokens.get(key, ())})
            of_examples.append(known[key])
            for text in separate(example["positives"]):
                self.answers[known[key]].update(by_tokens.get(_key(text), ()))

        self.of_examples = np.asarray(of_examples, np.int64)


def _examples(split: Split) -> Iterator[Mapping[str, np.ndarray]]:
    for start in range(0, split.size, _READ_AT_A_TIME):
        yield from split.read(np.arange(start, min(start + _READ_AT_A_TIME, split.size)))


def _key(tokens: np.ndarray) -> bytes:
    return hashlib.blake2b(np.asarray(tokens, "<i4").tobytes(), digest_size=12).digest()


def _folder(rule: Refresh, step: int) -> Path:
    """The directory of vectors while a step is searched."""
    return Path(rule.directory) / f"{step}.partial"


def _search(
    rule: Refresh,
    workdir: str,
    step: int,
    pool: refreshes.Passages,
    queries: _Queries,
    *,
    batch_size: int,
) -> np.ndarray:
    """int32 [n, top]: the passages of each example, nearest first; -1 is none."""
    mesh, top = make_mesh(MeshConfig()), rule.top
    encoder = TextEncoder.load(workdir, step=step, mesh=mesh)
    embedder = encoder.embedder(batch_size=batch_size)

    def encoded(rows: Sequence[np.ndarray], role: Role) -> np.ndarray:
        return embedder.run(encoder.params, rows, role=role)

    vectors = encoded(queries.rows, "query")
    path = _folder(rule, step) / "passages.npy"
    file = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(len(pool), vectors.shape[1])
    )
    chunk = _CHUNK_BATCHES * batch_size
    for start in range(0, len(pool), chunk):
        end = min(start + chunk, len(pool))
        file[start:end] = encoded([pool.tokens(k) for k in range(start, end)], "passage")
    file.flush()
    most = max(map(len, queries.answers), default=0)
    depth = min(len(pool), top + most)
    best: Any = search_shards(VectorShards.open([str(path)]), vectors, depth=depth, mesh=mesh)
    found = np.full((len(queries.rows), top), -1, np.int32)
    for row, (numbers, answers) in enumerate(zip(best.rows, queries.answers, strict=True)):
        kept = [k for k in numbers.tolist() if k >= 0 and k not in answers][:top]
        found[row, : len(kept)] = kept
    return found[queries.of_examples]
