"""`t5x-lite search`: the nearest vectors of a corpus, exactly."""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.models.pooling import Pooling
from t5x_lite.records.passages import read_passages
from t5x_lite.records.resumable import is_resumable
from t5x_lite.records.run_files import RunFormat, SameIds, check_tag, write_run
from t5x_lite.records.shares import Share
from t5x_lite.records.vector_shards import VectorShards
from t5x_lite.retrieval.exact_runs import rankings_of, search_shards
from t5x_lite.run.best_step import Step
from t5x_lite.run.text_encoder import TextEncoder
from t5x_lite.sharding import MeshConfig, make_mesh

_logger = logging.getLogger(__name__)


class QueryEncoder(NamedTuple):
    """What turns queries into vectors.

    Attributes:
      checkpoint: a work directory or a step directory.
      step: of a work directory.
      use: the modules in use.
      pooling: None is what the checkpoint says.
      normalize: None is what the checkpoint says.
      prefix: what every query begins with; None is the checkpoint's prompt.
      prompt: its name; None is "query" where the checkpoint has one of that name.
      batch_size: queries at once.
      inputs_length: tokens of a query at most.
    """

    checkpoint: str
    step: Step = None
    use: str | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    prefix: str | None = None
    prompt: str | None = None
    batch_size: int = 32
    inputs_length: int | None = None


class Queries(NamedTuple):
    """Queries with their vectors.

    Attributes:
      ids: of each.
      vectors: float32 [Q, D].
    """

    ids: list[str]
    vectors: np.ndarray


def search(
    vectors: Sequence[str],
    *,
    ids: Sequence[str] = (),
    queries: str,
    query_ids: Sequence[str] = (),
    encoder: QueryEncoder | None = None,
    output: str,
    depth: int = 1000,
    same_ids: SameIds = "keep",
    format: RunFormat | None = None,
    tag: str = "t5x_lite",
    part: Share | None = None,
) -> None:
    """Writes the nearest vectors of each query, exactly, as a run.

    All devices share the corpus, which may be larger than memory. A killed command goes on where
    its last minute began.

    Args:
      vectors: files of the corpus, .npy or .parquet.
      ids: files of the passages that they were made of; without them .npy has numbers.
      queries: texts, with an encoder; else vectors.
      query_ids: as ids, of queries that are vectors.
      encoder: of queries that are texts.
      output: the run.
      depth: documents of a query at most.
      same_ids: whether a document that has a query's id is in that query's ranking.
      format: of the run; None is what its name says.
      tag: TREC's name of the run.
      part: of the corpus, which is searched alone; None is all of it.

    Raises:
      InputError: a file is wrong, or what is there of the output is of another command.
    """
    check_tag(tag)
    shards = VectorShards.open(vectors, ids=ids)
    asked = read_queries(queries, ids=query_ids, encoder=encoder)
    _logger.info("%d queries, %d documents", len(asked.ids), len(shards))
    names = asked.ids if same_ids == "drop" else None
    state = f"{output}.partial.npz" if is_resumable(output) else None
    best = search_shards(
        shards,
        asked.vectors,
        depth=min(depth, len(shards)),
        names=names,
        mesh=make_mesh(MeshConfig()),
        part=part,
        state=state,
        identity={
            **corpus_identity(vectors),
            "queries": hashlib.sha256(asked.vectors.tobytes()).hexdigest(),
            "depth": depth,
            "same_ids": same_ids,
            **({"part": part} if part else {}),
            # Names decide what is in a ranking only where equal ones are dropped.
            **({"names": [asked.ids, [*map(os.path.abspath, ids)]]} if names else {}),
        },
    )
    rankings = rankings_of(best, asked.ids, shards.name)
    write_run(output, rankings, format=format, tag=tag)
    if state is not None:
        Path(state).unlink(missing_ok=True)


def corpus_identity(files: Sequence[str]) -> dict[str, Any]:
    """What tells the files of a corpus from others: paths, sizes, times of the last change."""
    stats = [os.stat(file) for file in files]
    return {
        "vectors": [os.path.abspath(file) for file in files],
        "sizes": [stat.st_size for stat in stats],
        "changed": [stat.st_mtime_ns for stat in stats],
    }


def read_queries(
    path: str, *, ids: Sequence[str] = (), encoder: QueryEncoder | None = None
) -> Queries:
    """Queries of a file of texts, or of vectors where there is no encoder.

    Raises:
      InputError: the file is wrong, there is no query, or one's id comes twice.
    """
    if encoder is None:
        shards = VectorShards.open([path], ids=ids)
        names, vectors = shards.names(0, len(shards)), shards.rows(0, len(shards))
    else:
        passages = list(read_passages(path))
        names = [passage.id for passage in passages]
        vectors = _encoded([passage.whole for passage in passages], encoder)
    if not names:
        raise InputError(f"{path}: no query")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: the id {twice!r} comes twice")
    return Queries(names, vectors)


def _encoded(texts: Sequence[str], how: QueryEncoder) -> np.ndarray:
    encoder = TextEncoder.load(
        how.checkpoint,
        step=how.step,
        use=how.use,
        mesh=make_mesh(MeshConfig()),
        length=how.inputs_length,
        pooling=how.pooling,
        normalize=how.normalize,
    )
    prompt = how.prompt
    if prompt is None and how.prefix is None:
        prompt = encoder.known_prompt("query")
    begins = encoder.begins_with(how.prefix, prompt)
    rows, longer = encoder.rows([begins + text for text in texts])
    if longer:
        _logger.warning("%d queries were cut to %d tokens", len(longer), encoder.length)
    return encoder.embedder(batch_size=how.batch_size).run(encoder.params, rows)
