"""Approximate indexes of faiss: IVF, product quantisation, HNSW; and its exact one.

    build("corpus.hnsw", shards, "HNSW32,Flat", settings=Settings(ef_construction=200))
    index = FaissIndex.open("corpus.hnsw")
    index.search(queries, depth=100, ef_search=128)     # Best: scores and numbers [Q, depth]

    Flat              all vectors as they are: exact
    IVFn,Flat         n lists around centroids, of which `nprobe` are searched; n about 4 sqrt(N)
    IVFn,PQm          the same, each vector in m bytes: small, and lossy
    HNSWm,Flat        a graph of m neighbours: fast, with high recall, large, and slow to build

Scores are dot products. The lists' centroids and the bytes' codes are trained on vectors that a
seed draws. Threads are set to one number, for the same index and the same order everywhere.

Sources: Johnson, Douze and Jegou 2019, arXiv:1702.08734; Malkov and Yashunin 2018; faiss wiki,
"Guidelines to choose an index".
"""

import dataclasses
import importlib
import json
import logging
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.files import reason, scratch_directory, write_atomically
from t5x_lite.progress import counting
from t5x_lite.records.string_table import StringTable
from t5x_lite.records.vector_shards import VectorShards
from t5x_lite.retrieval.search import Best, check_vectors

_VERSION = 1
_ROWS = 1 << 16
_QUERIES = 1024
_ADDED_AT_A_TIME = 10_000
_KIND = re.compile(r"(?:IVF(\d+)(?:_HNSW\d+)?,)?(?:HNSW\d+(?:,Flat)?|PQ\d+(?:x\d+)?|Flat|SQ8)")
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How an index is made.

    Attributes:
      train_vectors: vectors that centroids and codes are trained on; None is 64 of each list, at
        least 65,536, and at most all.
      ef_construction: candidates that a vector of a graph chooses its neighbours from.
      seed: of the vectors for training.
      threads: of faiss; more than one makes graphs that differ from run to run.
    """

    train_vectors: int | None = None
    ef_construction: int = 200
    seed: int = 0
    threads: int = 1


def usual_kind(documents: int) -> str:
    """IVF with about 4 sqrt(N) lists, the usual first choice."""
    return f"IVF{max(1, round(4 * math.sqrt(documents)))},Flat"


def build(
    directory: str, shards: VectorShards, kind: str, *, settings: Settings | None = None
) -> None:
    """Writes an index; the directory takes its name when it is whole.

    Args:
      directory: must not be there.
      shards: the corpus.
      kind: as the factory of faiss names it.
      settings: how it is made.

    Raises:
      InputError: faiss is missing, the kind is none, there are too few vectors for it, or the
        directory is there or cannot be written.
    """
    faiss, how, target = library(), settings or Settings(), Path(directory)
    if target.exists():
        raise InputError(f"{target}: is there already; delete it, or give another --output")
    start = time.monotonic()
    with _threads(faiss, how.threads):
        index = _made(faiss, shards, kind, how)
        with counting("indexing", unit="documents", total=len(shards)) as advance:
            for block in shards.blocks(rows=_ROWS):
                check_vectors(block.vectors, what="a document")
                for start in range(0, len(block.vectors), _ADDED_AT_A_TIME):
                    some = block.vectors[start : start + _ADDED_AT_A_TIME]
                    index.add(np.ascontiguousarray(some))
                    advance(len(some))
    seconds = time.monotonic() - start
    try:
        with scratch_directory(target.with_name(f"{target.name}.partial")) as part:
            faiss.write_index(index, str(part / "index.faiss"))
            if shards.ids is not None:
                shards.ids.save(part / "ids")
            record = {
                "version": _VERSION,
                "kind": kind,
                "documents": len(shards),
                "size": shards.size,
                "ids": shards.ids is not None,
                "seconds": seconds,
                **dataclasses.asdict(how),
            }
            write_atomically(part / "index.json", json.dumps(record, indent=1).encode() + b"\n")
            os.replace(part, target)
    except (OSError, RuntimeError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{target}: cannot be written ({why})") from error


def _made(faiss: Any, shards: VectorShards, kind: str, how: Settings) -> Any:
    """An index without vectors, trained."""
    match = _KIND.fullmatch(kind)
    if match is None:
        raise InputError(
            f"no index {kind!r}: Flat, IVF4096,Flat, IVF4096,PQ32, PQ32 or HNSW32,Flat"
        )
    try:
        # "np": no order of the codes for polysemous filters, which takes minutes and is not used.
        name = re.sub(r"(PQ\d+(?:x\d+)?)$", r"\1np", kind)
        index = faiss.index_factory(shards.size, name, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"faiss makes no index {kind!r} of vectors of {shards.size} numbers: the bytes of PQ "
            "must divide them"
        ) from error
    if hasattr(index, "hnsw"):
        index.hnsw.efConstruction = how.ef_construction
    if not index.is_trained:
        lists = int(match.group(1) or 1)
        least = max(lists, 256 if "PQ" in kind else 1)
        if len(shards) < least:
            raise InputError(f"{kind} needs at least {least} vectors, and there are {len(shards)}")
        num = how.train_vectors or max(64 * lists, 65_536)
        index.train(_sample(shards, min(num, len(shards)), seed=how.seed))
    return index


def _sample(shards: VectorShards, num: int, *, seed: int) -> Float[np.ndarray, "n D"]:
    """Vectors that the seed draws, in the order of the corpus."""
    rows = np.sort(np.random.default_rng(seed).choice(len(shards), num, replace=False))
    found, filled = np.empty((num, shards.size), np.float32), 0
    for block in shards.blocks(rows=_ROWS):
        end = int(np.searchsorted(rows, block.first + len(block.vectors)))
        found[filled:end] = block.vectors[rows[filled:end] - block.first]
        filled = end
    return found


class FaissIndex:
    """An index that was written by `build`.

    Attributes:
      settings: of index.json.
    """

    def __init__(self, index: Any, settings: dict[str, Any], ids: StringTable | None):
        self._index, self.settings, self._ids = index, settings, ids

    @classmethod
    def open(cls, directory: str) -> "FaissIndex":
        """Reads an index.

        Raises:
          InputError: there is none, it is damaged, or faiss is missing.
        """
        faiss, path = library(), Path(directory)
        try:
            settings = json.loads((path / "index.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"{path}: no index ({reason(error)}): t5x-lite index build makes one"
            ) from error
        except ValueError as error:
            raise InputError(f"{path / 'index.json'}: not JSON: build the index again") from error
        try:
            index = faiss.read_index(str(path / "index.faiss"))
        except RuntimeError as error:
            raise InputError(f"{path / 'index.faiss'}: damaged: build the index again") from error
        ids = StringTable.open(path / "ids") if settings["ids"] else None
        if index.ntotal != settings["documents"] or (ids is not None and len(ids) != index.ntotal):
            raise InputError(f"{path}: damaged (its parts have other sizes): build it again")
        return cls(index, settings, ids)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def name(self, row: int) -> str:
        """The id of a document by its number."""
        return str(row) if self._ids is None else self._ids[row]

    def search(
        self,
        queries: Float[np.ndarray, "Q D"],
        *,
        depth: int,
        nprobe: int | None = None,
        ef_search: int | None = None,
        threads: int = 1,
    ) -> Best:
        """The best documents of queries, as far as the index finds them.

        Args:
          queries: their vectors.
          depth: documents of a query at most.
          nprobe: lists of IVF that are searched; None is 1 in 64.
          ef_search: candidates of HNSW; None is 128, and never below depth.
          threads: of faiss.

        Raises:
          InputError: the queries have other sizes than the documents, or are not finite.
        """
        faiss, index = library(), self._index
        if queries.shape[1] != index.d:
            raise InputError(
                f"the vectors of the queries have {queries.shape[1]} numbers, and those of the "
                f"index {index.d}: one encoder must have made both"
            )
        check_vectors(queries, what="a query")
        depth = min(depth, len(self))
        if hasattr(index, "nprobe"):
            index.nprobe = min(index.nlist, nprobe or max(1, index.nlist // 64))
        if hasattr(index, "hnsw"):
            index.hnsw.efSearch = max(depth, ef_search or 128)
        scores = np.empty((len(queries), depth), np.float32)
        rows = np.empty((len(queries), depth), np.int64)
        with _threads(faiss, threads):
            for start in range(0, len(queries), _QUERIES):
                part = slice(start, start + _QUERIES)
                found = index.search(np.ascontiguousarray(queries[part], np.float32), depth)
                scores[part], rows[part] = found
        scores[rows < 0] = -np.inf
        return Best(scores, rows.astype(np.int32), len(self))


def library() -> Any:
    """The package faiss.

    Raises:
      InputError: it is missing.
    """
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise InputError(
            f"an index needs the package faiss-cpu: {install_command('index')}"
        ) from error


class _threads:
    """Sets the threads of faiss, and sets them back."""

    def __init__(self, faiss: Any, number: int):
        self._faiss, self._number, self._before = faiss, number, faiss.omp_get_max_threads()

    def __enter__(self) -> None:
        self._faiss.omp_set_num_threads(self._number)

    def __exit__(self, *_: object) -> None:
        self._faiss.omp_set_num_threads(self._before)
