"""The search of `t5x-lite mine` with a checkpoint: vectors of the pool, then the nearest ones."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_lite.data.config import text_lengths
from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically
from t5x_lite.heads.dense import Role
from t5x_lite.inference.text_encoder import TextEncoder, most_tokens, rows_of
from t5x_lite.models.pooling import Pooling
from t5x_lite.progress import counting
from t5x_lite.records.string_table import create_array
from t5x_lite.records.vector_shards import VectorShards, identity_of
from t5x_lite.retrieval.exact_runs import search_shards
from t5x_lite.retrieval.search import Best, check_vectors
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.mining_inputs import Inputs
from t5x_lite.sharding import MeshConfig, make_mesh

_CHUNK_BATCHES = 32
"""Batches of passages whose vectors are written together."""
_PROMPTS = {"query": ("query",), "passage": ("document", "passage", "corpus")}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EncoderSource:
    """A checkpoint that searches.

    Attributes:
      checkpoint: a work directory or a step directory.
      vectors: files of the passages' vectors, in their order; () has the checkpoint make them.
      step: of a work directory.
      use: the modules in use.
      pooling: None is what the checkpoint says.
      normalize: None is what the checkpoint says.
      query_prefix: what every query begins with; None is the checkpoint's prompt.
      passage_prefix: what every passage begins with; None is the checkpoint's prompt.
      batch_size: texts at once.
      query_length: tokens of a query at most; None is what the model was trained with.
      passage_length: tokens of a passage at most.
    """

    checkpoint: str
    vectors: tuple[str, ...] = ()
    step: Step = None
    use: str | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    batch_size: int = 32
    query_length: int | None = None
    passage_length: int | None = None

    def identity(self) -> dict[str, Any]:
        """What makes two searches the same, as JSON."""
        return {
            "checkpoint": str(find_step(self.checkpoint, step=self.step)),
            **(identity_of(self.vectors) if self.vectors else {}),
            "use": self.use,
            "vectors_are": [self.pooling, self.normalize],
            "prefixes": [self.query_prefix, self.passage_prefix],
            "lengths": [self.query_length, self.passage_length],
            "batch_size": self.batch_size,
        }


class EncoderSearch:
    """The passages of a pool nearest to queries; what was made stays in a folder.

    Args:
      source: the checkpoint.
      inputs: queries and passages.
      folder: of this command alone.
    """

    def __init__(self, source: EncoderSource, inputs: Inputs, *, folder: Path):
        self._source, self._inputs, self._folder = source, inputs, folder
        self._mesh = make_mesh(MeshConfig())
        self._encoder = TextEncoder.load(
            source.checkpoint,
            step=source.step,
            use=source.use,
            mesh=self._mesh,
            pooling=source.pooling,
            normalize=source.normalize,
        )
        self._embedder = self._encoder.embedder(batch_size=source.batch_size)
        texts = [one.prompted for one in inputs.asked]
        self._queries = self._encoded(texts, "query")
        check_vectors(self._queries, what="a query")
        self._shards = self._open()

    def run(self, *, depth: int) -> Best:
        """The nearest passages of each query, by number."""
        return search_shards(
            self._shards,
            self._queries,
            depth=depth,
            mesh=self._mesh,
            state=str(self._folder / "search.npz"),
            identity={"depth": depth},
        )

    def scores_of_answers(self) -> list[list[float]]:
        """The score of each answer of each query; those that the pool lacks are encoded."""
        absent = [
            text
            for one in self._inputs.asked
            for number, text in zip(one.positives, one.texts, strict=True)
            if number is None
        ]
        others = iter(self._encoded(absent, "passage") if absent else ())
        found = []
        for one, query in zip(self._inputs.asked, self._queries, strict=True):
            vectors = [
                next(others) if number is None else self._shards.rows(number, number + 1)[0]
                for number in one.positives
            ]
            found.append([float(np.dot(query, vector)) for vector in vectors])
        return found

    def _encoded(self, texts: Sequence[str], role: Role) -> Float[np.ndarray, "n D"]:
        source, encoder = self._source, self._encoder
        is_query = role == "query"
        prefix = source.query_prefix if is_query else source.passage_prefix
        if prefix is None:
            names = [encoder.known_prompt(name) for name in _PROMPTS[role]]
            known = next((name for name in names if name is not None), None)
            prefix = encoder.begins_with(None, known)
        experiment = encoder.loaded.experiment
        trained = text_lengths(experiment.data).get("query" if is_query else "document")
        length = (source.query_length if is_query else source.passage_length) or trained
        length = min(length or encoder.length, most_tokens(experiment) or encoder.length)
        cut = rows_of(experiment, encoder.loaded.vocabulary)
        rows, _ = cut([prefix + text for text in texts], length=length)
        return self._embedder.run(encoder.params, rows, role=role)

    def _open(self) -> VectorShards:
        """The vectors of the pool.

        Raises:
          InputError: files are not those of the pool.
        """
        pool, vectors = self._inputs.pool, self._source.vectors
        if not vectors:
            self._embed()
            vectors = (str(self._folder / "passages.npy"),)
        shards = VectorShards.open(vectors)
        if len(shards) != len(pool):
            raise InputError(
                f"{vectors[0]}: {len(shards)} vectors, and there are {len(pool)} passages: give "
                "the vectors of the same files"
            )
        return shards

    def _embed(self) -> None:
        """Writes passages.npy; a chunk that is whole is not made again."""
        pool, chunk = self._inputs.pool, _CHUNK_BATCHES * self._source.batch_size
        path, count = self._folder / "passages.npy", self._folder / "passages.done"
        done = int(count.read_text()) if count.exists() and path.exists() else 0
        size = self._queries.shape[1]
        if done:
            file = np.lib.format.open_memmap(path, mode="r+")
        else:
            file = create_array(path, np.float32, (len(pool), size))
        if done:
            _logger.info("going on after %d of %d passages", done, len(pool))
        with counting("embedding", unit="passages", total=len(pool), done=done, steps=True):
            for start in range(done, len(pool), chunk):
                end = min(start + chunk, len(pool))
                texts = [pool.text(k) for k in range(start, end)]
                file[start:end] = self._encoded(texts, "passage")
                file.flush()
                write_atomically(count, str(end).encode())
