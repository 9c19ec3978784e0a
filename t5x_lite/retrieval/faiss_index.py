"""Approximate search by faiss indexes: IVF, product quantization and HNSW; and exact search.

    build("corpus.hnsw", shards, "HNSW32,Flat", settings=Settings(ef_construction=200))
    index = FaissIndex.open("corpus.hnsw")
    index.search(queries, depth=100, ef_search=128)     # Best: scores and numbers [Q, depth]

    Flat              all vectors unchanged: exact
    IVFn,Flat         n lists around centroids, and a search reads `nprobe`; n about 4 sqrt(N)
    IVFn,PQm          like IVFn,Flat, each vector compressed to m bytes: small, but lossy
    HNSWm,Flat        graph with m neighbors per vector: fast, high recall, large, slow to build
    SQ8               one byte per dimension; from int8 vectors it takes their ranges and codes

Scores are dot products. Centroids and codes are trained on a sample of the vectors. The number of
threads is fixed, so that every machine builds the same index and returns the same order.

Sources: Johnson, Douze and Jegou 2019, arXiv:1702.08734; Malkov and Yashunin 2018; faiss wiki,
"Guidelines to choose an index".
"""

import contextlib
import dataclasses
import hashlib
import importlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.files import reason, scratch_directory, write_atomically
from t5x_lite.core.workers import counting
from t5x_lite.data.formats.vectors import StringTable, VectorShards, read_record, steps_of
from t5x_lite.retrieval.exact import Best, check_vectors

_VERSION = 1
_ROWS = 1 << 16
_QUERIES = 1024
_ADDED_AT_A_TIME = 10_000
_KIND = re.compile(r"(?:IVF(\d+)(?:_HNSW\d+)?,)?(?:HNSW\d+(?:,Flat)?|PQ\d+(?:x\d+)?|Flat|SQ8)")
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings for building a faiss index.

    Attributes:
      train_vectors: number of vectors to train centroids and codes on; None is 64 per list and at
        least 65,536, or all vectors if there are fewer.
      ef_construction: number of candidates from which HNSW chooses the neighbors of a vector.
      seed: random seed of the sample of training vectors.
      threads: number of CPU threads for faiss; HNSW indexes are reproducible only with 1 thread.
    """

    train_vectors: int | None = None
    ef_construction: int = 200
    seed: int = 0
    threads: int = 1


def usual_kind(documents: int) -> str:
    """Return the usual index type for this number of documents: IVF with about 4 sqrt(N) lists."""
    return f"IVF{max(1, round(4 * math.sqrt(documents)))},Flat"


def build(
    directory: str, shards: VectorShards, kind: str, *, settings: Settings | None = None
) -> None:
    """Build and write a faiss index; the directory appears when the index is complete.

    Args:
      directory: output directory, which must not exist.
      shards: vector files of the corpus.
      kind: index type in faiss's notation, such as "HNSW32,Flat".
      settings: settings of the index.

    Raises:
      InputError: if faiss is missing, the type is unknown, there are too few vectors for it, or the
        directory exists or cannot be written.
    """
    faiss, how, target = library(), settings or Settings(), Path(directory)
    if target.exists():
        raise InputError(f"{target} already exists; delete it, or choose another --output")
    with contextlib.ExitStack() as stack:
        with _writing(target):
            name = target.with_name(f"{target.name}.partial")
            part = stack.enter_context(scratch_directory(name, output=target))
        start = time.monotonic()
        with _threads(faiss, how.threads):
            index = _made(faiss, shards, kind, how)
            _fill(index, shards)
        with _writing(target):
            _write(faiss, index, part, shards, kind, how, seconds=time.monotonic() - start)
            os.replace(part, target)


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        # faiss names its own source file and line before the system's words.
        own = re.search(r"write error.*\(([^()]+)\)\s*$", str(error), re.DOTALL)
        why = reason(error) if isinstance(error, OSError) else own[1] if own else str(error)
        raise InputError(f"index {target} cannot be written ({why})") from error


def _fill(index: Any, shards: VectorShards) -> None:
    ranges = _ranges_for(index, shards)
    with counting("indexing", unit="documents", total=len(shards)) as advance:
        for block in shards.blocks(rows=_ROWS):
            check_vectors(block.vectors, what="a document")
            for first in range(0, len(block.vectors), _ADDED_AT_A_TIME):
                some = block.vectors[first : first + _ADDED_AT_A_TIME]
                if ranges is not None:
                    low, steps = steps_of(ranges)
                    index.add_sa_codes(np.rint((some - low) / steps).astype(np.uint8))
                else:
                    index.add(np.ascontiguousarray(some))
                advance(len(some))


def _ranges_for(index: Any, shards: VectorShards) -> np.ndarray | None:
    """Return the value ranges of int8 vectors if the index has the type SQ8 without IVF."""
    return shards.ranges if hasattr(index, "sq") and not hasattr(index, "invlists") else None


@contextlib.contextmanager
def _name_for_faiss(path: Path, flags: int) -> Iterator[str]:
    """Yield a path that faiss accepts: the file's path if it is UTF-8, else a path in /dev/fd."""
    name = str(path)
    if name.encode("utf-8", "replace") == os.fsencode(name):
        yield name
        return
    descriptor = os.open(path, flags, 0o666)
    try:
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _write(
    faiss: Any,
    index: Any,
    part: Path,
    shards: VectorShards,
    kind: str,
    how: Settings,
    *,
    seconds: float,
) -> None:
    with _name_for_faiss(part / "index.faiss", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as name:
        faiss.write_index(index, name)
    if shards.ids is not None:
        shards.ids.save(part / "ids")
    files = sorted(path for path in part.iterdir() if path.suffix in (".faiss", ".npy"))
    record = {
        "version": _VERSION,
        "kind": kind,
        "documents": len(shards),
        "size": shards.size,
        "ids": shards.ids is not None,
        "seconds": seconds,
        "sha256": {file.name: _digest(file) for file in files},
        **dataclasses.asdict(how),
    }
    write_atomically(part / "index.json", json.dumps(record, indent=1).encode() + b"\n")


def _made(faiss: Any, shards: VectorShards, kind: str, how: Settings) -> Any:
    match = _KIND.fullmatch(kind)
    if match is None:
        raise InputError(
            f"unknown index type {kind!r}; give a type such as Flat, IVF4096,Flat, "
            "IVF4096,PQ32, PQ32 or HNSW32,Flat"
        )
    try:
        # "np": no order of the codes for polysemous filters, which takes minutes and is not used.
        name = re.sub(r"(PQ\d+(?:x\d+)?)$", r"\1np", kind)
        index = faiss.index_factory(shards.size, name, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"faiss cannot build an index {kind!r} of vectors with {shards.size} dimensions; "
            "the number of PQ bytes must divide the number of dimensions"
        ) from error
    if hasattr(index, "hnsw"):
        index.hnsw.efConstruction = how.ef_construction
    ranges = _ranges_for(index, shards)
    if ranges is not None:  # faiss decodes a code as low + (code + 0.5) / 255 * width
        low, steps = steps_of(ranges)
        faiss.copy_array_to_vector(np.concatenate([low, 255 * steps]), index.sq.trained)
        index.is_trained = True
    if not index.is_trained:
        lists = int(match.group(1) or 1)
        least = max(lists, 256 if "PQ" in kind else 1)
        if len(shards) < least:
            raise InputError(
                f"index type {kind} needs at least {least} vectors, but the corpus has "
                f"{len(shards)}"
            )
        num = how.train_vectors or max(64 * lists, 65_536)
        index.train(_sample(shards, min(num, len(shards)), seed=how.seed))
    return index


def _sample(shards: VectorShards, num: int, *, seed: int) -> Float[np.ndarray, "n D"]:
    rows = np.sort(np.random.default_rng(seed).choice(len(shards), num, replace=False))
    found, filled = np.empty((num, shards.size), np.float32), 0
    for block in shards.blocks(rows=_ROWS):
        end = int(np.searchsorted(rows, block.first + len(block.vectors)))
        found[filled:end] = block.vectors[rows[filled:end] - block.first]
        filled = end
    return found


class FaissIndex:
    """Faiss index of document vectors, as written by `build`.

    Attributes:
      settings: content of index.json.
    """

    def __init__(self, index: Any, settings: dict[str, Any], ids: StringTable | None, path: Path):
        self._index, self.settings, self._ids, self._path = index, settings, ids, path

    @classmethod
    def open(cls, directory: str) -> "FaissIndex":
        """Read an index, and compare it with its checksums.

        Computing SHA-256 takes about 0.7 s per GiB, such as 14 s for an index of 20 GiB. Delete
        "sha256" from index.json to skip it. Indexes of earlier versions have no checksums and are
        also accepted.

        Raises:
          InputError: if the index is missing or damaged, or faiss is missing.
        """
        path = Path(directory)
        settings = read_record(path / "index.json", _FIELDS, made_by="index build")
        faiss = library()
        if settings["version"] != _VERSION:
            raise InputError(
                f"index {path} has an unsupported format version; build the index again"
            )
        file = path / "index.faiss"
        _check_sums(path, settings.get("sha256", {}))
        with _naming_damage(file):
            with file.open("rb") as opened:
                if opened.read(4) != _fourcc(settings["kind"], path):
                    raise InputError(
                        f"file {file} is not an index of the type {settings['kind']}; build the "
                        "index again"
                    )
            with _name_for_faiss(file, os.O_RDONLY) as name:
                index = faiss.read_index(name)
            sizes = index.ntotal, index.d
            if sizes != (settings["documents"], settings["size"]) or not index.is_trained:
                raise InputError(
                    f"index {path} is damaged (index.faiss has {sizes[0]} vectors of size "
                    f"{sizes[1]}, but index.json {settings['documents']} of size "
                    f"{settings['size']}); build it again"
                )
            _check_structure(faiss, index)
        ids = StringTable.open(path / "ids") if settings["ids"] else None
        if ids is not None and len(ids) != index.ntotal:
            raise InputError(
                f"index {path} is damaged (the number of ids is not the number of vectors); "
                "build it again"
            )
        return cls(index, settings, ids, path)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def name(self, row: int) -> str:
        """Return the id of the document with a given number."""
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
        """Return the best documents that the index finds for each query.

        Documents with equal scores keep the order of the corpus, as in `exact.ExactSearch`. If
        documents tie at the last rank, faiss decides which of them are found.

        Args:
          queries: vectors of the queries.
          depth: maximum number of documents per query.
          nprobe: number of IVF lists to search per query; None is 1/64 of the lists.
          ef_search: number of HNSW candidates per query, at least `depth`; None is 128.
          threads: number of CPU threads for faiss.

        Raises:
          InputError: if queries and documents differ in size, or a query is not finite.
        """
        faiss, index = library(), self._index
        if queries.shape[1] != index.d:
            raise InputError(
                f"query vectors have {queries.shape[1]} dimensions, but index vectors have "
                f"{index.d}; encode both by the same encoder"
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
                with _naming_damage(self._path / "index.faiss"):
                    found = index.search(np.ascontiguousarray(queries[part], np.float32), depth)
                scores[part], rows[part] = found
        if rows.size and int(rows.max()) >= len(self):
            raise InputError(
                f"index {self._path} is damaged (it returned a document number above "
                f"{len(self)}); build it again"
            )
        scores[rows < 0] = -np.inf
        # Documents with equal scores rank in the order of the corpus, as in `search`.
        order = np.lexsort((rows, -scores), axis=1)
        scores, rows = (np.take_along_axis(x, order, axis=1) for x in (scores, rows))
        return Best(scores, rows.astype(np.int32), len(self))


_FIELDS = {
    "version": int,
    "kind": str,
    "documents": int,
    "size": int,
    "ids": bool,
    "seconds": float,
}
_PLAIN_CODES = {"Flat": b"IxFI", "PQ": b"IxPq", "SQ": b"IxSQ", "HN": b"IHNf"}
_LIST_CODES = {"Flat": b"IwFl", "PQ": b"IwPQ", "SQ": b"IwSq"}


def _fourcc(kind: str, path: Path) -> bytes:
    match = _KIND.fullmatch(kind)
    has_lists = match is not None and match[1] is not None
    codec, table = kind, _PLAIN_CODES
    if has_lists:
        codec, table = kind.partition(",")[2], _LIST_CODES
    found = next((code for name, code in table.items() if codec.startswith(name)), b"")
    if match is None or not found:
        raise InputError(
            f"index {path} is damaged (unknown index type {kind[:40]!r}); build it again"
        )
    return found


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_sums(path: Path, sums: Any) -> None:
    if not isinstance(sums, dict):
        raise InputError(
            f'{path / "index.json"} is damaged ("sha256" is not an object); build the index again'
        )
    for name, digest in sums.items():
        if name not in _SUMMED:
            raise InputError(
                f'{path / "index.json"} is damaged ("sha256" has the unknown file '
                f"{name[:40]!r}); build the index again"
            )
        try:
            same = _digest(path / name) == digest
        except OSError as error:
            raise InputError(
                f"{path / name} cannot be read ({reason(error)}); build the index again"
            ) from error
        if not same:
            raise InputError(
                f"{path / name} is damaged (its SHA-256 differs from index.json); build the "
                "index again"
            )


_SUMMED = ("index.faiss", "ids.bytes.npy", "ids.ends.npy")


@contextlib.contextmanager
def _naming_damage(file: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({reason(error)}); build the index again"
        ) from error
    except (RuntimeError, MemoryError, ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{file} is damaged; build the index again") from error


def _check_structure(faiss: Any, index: Any) -> None:
    """Raise RuntimeError if the sizes in an index would make faiss read outside of its memory."""
    if hasattr(index, "hnsw"):
        _check_graph(faiss, index.hnsw, int(index.ntotal))
        _check_structure(faiss, faiss.downcast_index(index.storage))
        if (index.storage.ntotal, index.storage.d) != (index.ntotal, index.d):
            raise RuntimeError("the HNSW graph and its vectors have different sizes")
    elif hasattr(index, "invlists"):
        lists, quantizer = index.invlists, faiss.downcast_index(index.quantizer)
        same = (lists.nlist, quantizer.ntotal) == (index.nlist, index.nlist)
        if not same or quantizer.d != index.d or lists.code_size != index.code_size:
            raise RuntimeError("the inverted lists and their centroids have different sizes")
        if sum(lists.list_size(i) for i in range(index.nlist)) != index.ntotal:
            raise RuntimeError("the inverted lists do not contain all vectors")
        _check_structure(faiss, quantizer)
    elif index.codes.size() != index.ntotal * index.code_size:
        raise RuntimeError("the codes of the vectors have a wrong size")
    _check_codes(index)


def _check_codes(index: Any) -> None:
    """Raise RuntimeError if the codes of an index do not fit its vector size."""
    if hasattr(index, "pq"):
        pq = index.pq
        bytes_a_code = (pq.M * pq.nbits + 7) // 8
        if pq.d != index.d or pq.M * pq.dsub != pq.d or pq.ksub != 1 << pq.nbits:
            raise RuntimeError("the product quantizer does not fit the vector size")
        if pq.centroids.size() != pq.d * pq.ksub or index.code_size != bytes_a_code:
            raise RuntimeError("the centroids of the product quantizer have a wrong size")
    elif hasattr(index, "sq"):
        sq = index.sq
        if sq.d != index.d or index.code_size != sq.code_size or sq.code_size != sq.d:
            raise RuntimeError("the scalar quantizer does not fit the vector size")
        if sq.trained.size() != 2 * sq.d:
            raise RuntimeError("the scalar quantizer has a wrong number of ranges")
    elif hasattr(index, "code_size") and index.code_size != 4 * index.d:
        raise RuntimeError("the stored vectors have a wrong size")


def _check_graph(faiss: Any, graph: Any, count: int) -> None:
    """Raise RuntimeError if the HNSW graph refers to vectors that do not exist."""
    levels, offsets, neighbors = (
        _view(faiss, getattr(graph, name)) for name in ("levels", "offsets", "neighbors")
    )
    places = _view(faiss, graph.cum_nneighbor_per_level)
    if len(levels) != count or len(offsets) != count + 1:
        raise RuntimeError("the HNSW graph has a wrong number of vectors")
    if not count:
        return
    if int(levels.min()) < 1 or int(levels.max()) >= len(places) or (np.diff(places) < 0).any():
        raise RuntimeError("the HNSW graph has invalid levels")
    entry, top = int(graph.entry_point), int(graph.max_level)
    if not 0 <= entry < count or not 0 <= top < int(levels[entry]):
        raise RuntimeError("the entry point of the HNSW graph is not a vector of the graph")
    sizes = np.diff(offsets.astype(np.int64))
    if int(offsets[0]) or int(offsets[-1]) != len(neighbors) or (sizes != places[levels]).any():
        raise RuntimeError("the HNSW graph has invalid offsets")
    if len(neighbors) and not -1 <= int(neighbors.min()) <= int(neighbors.max()) < count:
        raise RuntimeError("the HNSW graph has a neighbor that does not exist")
    for level in range(1, int(levels.max())):  # few vectors have a second level
        nodes = np.flatnonzero(levels > level)
        own = offsets[nodes].astype(np.int64)[:, None]
        found = neighbors[own + np.arange(places[level], places[level + 1])]
        if (levels[np.maximum(found, 0)] <= level)[found >= 0].any():
            raise RuntimeError("the HNSW graph has a neighbor from a lower level")


def _view(faiss: Any, vector: Any) -> np.ndarray:
    size = vector.size()
    return faiss.rev_swig_ptr(vector.data(), size) if size else np.zeros(0, np.int64)


def library() -> Any:
    """Return the module faiss.

    Raises:
      InputError: if the package faiss-cpu is not installed.
    """
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise InputError(
            "a faiss index needs the package faiss-cpu, which is missing; run "
            f"{install_command('index')}"
        ) from error


class _threads:
    """Context manager that temporarily sets the number of faiss threads."""

    def __init__(self, faiss: Any, number: int):
        self._faiss, self._number, self._before = faiss, number, faiss.omp_get_max_threads()

    def __enter__(self) -> None:
        self._faiss.omp_set_num_threads(self._number)

    def __exit__(self, *_: object) -> None:
        self._faiss.omp_set_num_threads(self._before)
