"""BM25 as in Lucene, on an inverted index.

    bm25 = BM25(InvertedIndex.open("corpus.bm25"), k1=0.9, b=0.4)
    bm25.search("wing flutter", depth=1000)         # [("d7", 14.89), ...]

    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))
    score(q, d) = sum over the terms of q, with repetition, of
                  idf * tf / (tf + k1 (1 - b + b * dl / avgdl))

N is the number of documents with at least one term. The factor k1 + 1 of other versions, which
changes no ranking, is omitted. Documents with equal scores are ordered by id.

Source: Robertson and Zaragoza 2009; Lucene BM25Similarity; Kamphuis et al. 2020, "Which BM25 do you
mean?"; Turtle and Flood 1995, "Query evaluation: strategies and optimizations", for skipping
postings that cannot change the best documents.

The inverted index of a corpus lists for every term its documents, and its frequency in each of
them:

    build("corpus.bm25", texts, analyzer="english", identity={...})
    index = InvertedIndex.open("corpus.bm25")
    index.postings("wing")          # (documents [df], frequencies [df]), by document number

    index.json          identity of the corpus, and settings
    ids.*, terms.*      strings (`string_table`); terms are numbered by first appearance
    sorted.npy          term numbers sorted by the bytes of the terms, for lookups
    ends.npy            end of each term's postings
    documents.npy, frequencies.npy      int32, concatenated postings of all terms
    lengths.npy         int32, number of terms of each document

A build keeps the terms and one block of postings in memory. Blocks are sorted by term and written
to disk; at the end, their postings are copied into the final arrays. If a build is killed, the next
build resumes after the last block.
"""

import array
import collections
import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import open_atomically, write_atomically
from t5x_lite.core.jobs import resumable_directory
from t5x_lite.core.workers import counting, waiting
from t5x_lite.data.formats.vectors import (
    StringTable,
    check_ends,
    create_array,
    open_array,
    read_record,
    save_array,
)
from t5x_lite.retrieval.analyzers import Analyzer, analyzer

_logger = logging.getLogger(__name__)

BLOCK_POSTINGS = 4 << 20
"""Maximum number of postings in memory before a block is written, 12 bytes each."""
_VERSION = 1
_ARRAYS = {
    "sorted": np.int32,
    "ends": np.int64,
    "documents": np.int32,
    "frequencies": np.int32,
    "lengths": np.int32,
}
"""Name of each file with one array -> data type of the array."""
_SHOWN_AT_A_TIME = 1000


class InvertedIndex(NamedTuple):
    """Inverted index of documents for BM25 search, with memory-mapped arrays.

    Attributes:
      settings: content of index.json: analyzer, documents, terms, postings, total_length.
      ids: ids of the documents.
      terms: all terms; the index of a term is its term number.
      sorted: term numbers sorted by the bytes of the terms.
      ends: end offset of each term's postings.
      documents: document numbers of all postings.
      frequencies: term frequencies of all postings.
      lengths: number of terms of each document.
    """

    settings: Mapping[str, Any]
    ids: StringTable
    terms: StringTable
    sorted: np.ndarray
    ends: np.ndarray
    documents: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray

    @classmethod
    def open(cls, directory: str | Path) -> "InvertedIndex":
        """Open the directory of a BM25 index that `build` wrote.

        Raises:
          InputError: if the directory is not an index, or a file is missing or damaged.
        """
        path = Path(directory)
        fields = {"version": int, "analyzer": str, "documents": int, "terms": int}
        settings = read_record(
            path / "index.json",
            {**fields, "postings": int, "total_length": int},
            kind="BM25 index",
            made_by="bm25 build",
        )
        with _naming_the_command():
            if settings["version"] != _VERSION:
                found = f"version {settings['version']} instead of {_VERSION}"
                raise InputError(f"index {path} has an unsupported format version ({found})")
            arrays = [
                open_array(path / f"{name}.npy", dtypes=(dtype,), dims=1)
                for name, dtype in _ARRAYS.items()
            ]
            tables = StringTable.open(path / "ids"), StringTable.open(path / "terms")
            index = cls(settings, *tables, *arrays)
            index._check(path)
        index.analyzer()
        return index

    def _check(self, path: Path) -> None:
        sizes = {
            "documents": (len(self.ids), len(self.lengths)),
            "terms": (len(self.terms), len(self.ends), len(self.sorted)),
            "postings": (len(self.documents), len(self.frequencies)),
        }
        for name, found in sizes.items():
            if set(found) != {self.settings[name]}:
                raise InputError(f"index {path} is damaged ({name} {found})")
        check_ends(self.ends, self.settings["postings"], where=path / "ends.npy")
        for name, limit in (("sorted", self.settings["terms"]), ("lengths", 1 << 31)):
            _check_range(getattr(self, name), limit, where=path / f"{name}.npy")

    def analyzer(self) -> Analyzer:
        """Return the analyzer that split the documents into terms."""
        return analyzer(self.settings["analyzer"])

    def postings(self, term: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the documents with a term, and the term's frequency in each."""
        span = self.span(term)
        self.check(span)
        return self.documents[span], self.frequencies[span]

    def span(self, term: str) -> slice:
        number = self._number(term)
        if number is None:
            return slice(0, 0)
        return slice(int(self.ends[number - 1]) if number else 0, int(self.ends[number]))

    def check(self, span: slice) -> None:
        """Raise InputError if postings contain an invalid document number."""
        where = "documents.npy of the index"
        _check_range(self.documents[span], len(self.lengths), where=where)

    def _number(self, term: str) -> int | None:
        key, low, high = term.encode(), 0, len(self.terms)
        while low < high:
            middle = (low + high) // 2
            if self.terms[int(self.sorted[middle])].encode() < key:
                low = middle + 1
            else:
                high = middle
        found = int(self.sorted[low]) if low < len(self.terms) else None
        return found if found is not None and self.terms[found] == term else None


def _check_range(numbers: np.ndarray, limit: int, *, where: str | Path) -> None:
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= limit):
        raise InputError(f"file {where} is damaged (a number is not below {limit})")


@contextlib.contextmanager
def _naming_the_command() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}; build the index again with t5x-lite bm25 build") from error


def build(
    directory: str,
    texts: Iterable[tuple[str, str]],
    *,
    analyzer: str,
    identity: Mapping[str, Any],
) -> None:
    """Write the BM25 index of documents; the directory appears when the index is complete.

    Args:
      directory: output directory, which must not exist.
      texts: id and text of each document.
      analyzer: name of the analyzer.
      identity: JSON values that must be unchanged to resume an unfinished build.

    Raises:
      InputError: if the directory exists or cannot be written, an unfinished build has another
        identity, two documents have the same id, or `texts` is empty.
    """
    asked = {**identity, "analyzer": analyzer}
    with resumable_directory(directory, identity=asked, content="a part") as part:
        _Builder(part, analyzer).run(texts)


class _Builder:
    """Builder of an index, which writes sorted blocks of postings and merges them at the end."""

    def __init__(self, directory: Path, name: str):
        self._directory, self._name, self._analyze = directory, name, analyzer(name)
        self._terms: dict[str, int] = {}
        self._blocks: list[Path] = []
        self._num_documents = 0
        self._start_block()

    def _start_block(self) -> None:
        self._block_terms, self._block_documents, self._block_counts = (
            array.array("i") for _ in range(3)
        )
        self._lengths, self._ids = array.array("i"), list[str]()
        self._known = len(self._terms)

    def run(self, texts: Iterable[tuple[str, str]]) -> None:
        self._resume()
        seen = self._num_documents
        with counting("indexing", unit="documents", done=seen) as advance:
            for number, (name, text) in enumerate(texts):
                if number < seen:
                    continue
                self._add(name, text)
                if self._num_documents % _SHOWN_AT_A_TIME == 0:
                    advance(_SHOWN_AT_A_TIME)
                if len(self._block_terms) >= BLOCK_POSTINGS:
                    self._write_block()
        if self._ids:
            self._write_block()
        if not self._num_documents:
            raise InputError("the input contains no documents to index")
        with waiting(f"writing the index of {self._num_documents:,} documents"):
            self._finish()

    def _add(self, name: str, text: str) -> None:
        counts = collections.Counter(self._analyze(text))
        terms, number = self._terms, self._num_documents
        self._block_terms.extend(terms.setdefault(term, len(terms)) for term in counts)
        self._block_documents.extend([number] * len(counts))
        self._block_counts.extend(counts.values())
        self._lengths.append(counts.total())
        self._ids.append(name)
        self._num_documents += 1

    def _write_block(self) -> None:
        terms = np.asarray(self._block_terms, np.int32)
        order = np.argsort(terms, kind="stable")
        numbers, counts = np.unique(terms, return_counts=True)
        path = self._directory / f"block-{len(self._blocks):05d}.npz"
        new = list(self._terms)[self._known :]
        tables = {"ids": StringTable.of(self._ids), "new": StringTable.of(new)}
        block: dict[str, Any] = {
            "terms": numbers,
            "counts": counts,
            "documents": np.asarray(self._block_documents, np.int32)[order],
            "frequencies": np.asarray(self._block_counts, np.int32)[order],
            "lengths": np.asarray(self._lengths, np.int32),
        }
        for name, table in tables.items():
            block |= {f"{name}_{part}": values for part, values in table.arrays().items()}
        with open_atomically(path) as file:
            np.savez(file, **block)
        self._blocks.append(path)
        self._start_block()

    def _resume(self) -> None:
        for path in sorted(self._directory.glob("block-*.npz")):
            with np.load(path) as block:
                for term in StringTable(block["new_bytes"], block["new_ends"]):
                    self._terms[term] = len(self._terms)
                self._num_documents += len(block["lengths"])
            self._blocks.append(path)
        if self._blocks:
            _logger.info("resuming the index after %d documents", self._num_documents)
        self._start_block()

    def _finish(self) -> None:
        directory = self._directory
        frequencies = np.zeros(len(self._terms), np.int64)
        for block in self._opened():
            frequencies[block["terms"]] += block["counts"]
        ends = np.cumsum(frequencies)
        postings = int(ends[-1]) if len(ends) else 0
        self._place_postings(ends - frequencies, postings)
        save_array(directory / "ends.npy", ends)
        lengths = np.concatenate([block["lengths"] for block in self._opened()])
        save_array(directory / "lengths.npy", lengths)
        tables = (StringTable(b["ids_bytes"], b["ids_ends"]) for b in self._opened())
        ids = StringTable.of(name for table in tables for name in table)
        ids.check_distinct("the corpus")
        ids.save(directory / "ids")
        StringTable.of(self._terms).save(directory / "terms")
        order = sorted(self._terms.items(), key=lambda item: item[0].encode())
        save_array(directory / "sorted.npy", np.array([n for _, n in order], np.int32))
        settings = {
            "version": _VERSION,
            "analyzer": self._name,
            "documents": self._num_documents,
            "terms": len(self._terms),
            "postings": postings,
            "total_length": int(lengths.sum(dtype=np.int64)),
        }
        write_atomically(directory / "index.json", json.dumps(settings, indent=1).encode() + b"\n")
        for path in reversed(self._blocks):  # last first: a killed build leaves the first blocks
            path.unlink()

    def _place_postings(self, starts: np.ndarray, postings: int) -> None:
        if not postings:
            for name in ("documents", "frequencies"):
                save_array(self._directory / f"{name}.npy", np.zeros(0, np.int32))
            return
        places, files = starts.copy(), {}
        for name in ("documents", "frequencies"):
            path = self._directory / f"{name}.npy"
            files[name] = create_array(path, np.int32, (postings,))
        for block in self._opened():
            terms, counts = block["terms"], block["counts"]
            inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            where = np.repeat(places[terms], counts) + inside
            for name, file in files.items():
                file[where] = block[name]
            places[terms] += counts
        for file in files.values():
            file.flush()

    def _opened(self) -> Iterator[Mapping[str, np.ndarray]]:
        for path in self._blocks:
            with np.load(path) as block:
                yield block


Lengths = Literal["exact", "lucene"]


class _Term(NamedTuple):
    """Term of a query, with its weight, and with the documents that contain it (postings)."""

    weight: np.float32
    span: slice
    documents: np.ndarray
    frequencies: np.ndarray


class BM25:
    """Ranker of documents by BM25, on an inverted index.

    Args:
      index: index of the corpus.
      k1: parameter k1, the saturation of term frequencies; 0 ignores repetitions.
      b: parameter b, the strength of length normalization, from 0 to 1.
      lengths: "lucene" rounds the length of a document to one byte, as in Lucene; "exact" does not.
    """

    def __init__(
        self, index: InvertedIndex, *, k1: float = 0.9, b: float = 0.4, lengths: Lengths = "exact"
    ):
        if k1 < 0 or not 0 <= b <= 1:
            raise InputError(f"BM25 needs k1 of at least 0 and b from 0 to 1, got {k1} and {b}")
        self._index, self._analyze = index, index.analyzer()
        exact = np.asarray(index.lengths)
        self._documents = int((exact > 0).sum())
        mean = index.settings["total_length"] / max(1, self._documents)
        used = in_one_byte(exact) if lengths == "lucene" else exact
        self._norms = (k1 * (1 - b + b * (used / max(mean, 1e-9)))).astype(np.float32)
        self._scores = np.full(len(exact), -0.0, np.float32)  # -0.0: without a term so far

    @_naming_the_command()
    def search(self, query: str, *, depth: int) -> list[tuple[str, float]]:
        """Return (id, score) of the best documents with a term of the query, best first."""
        terms = []
        for term, times in collections.Counter(self._analyze(query)).items():
            span = self._index.span(term)
            documents, frequencies = self._index.documents[span], self._index.frequencies[span]
            if len(documents):
                weight = np.float32(times * self._idf(len(documents)))
                terms.append(_Term(weight, span, documents, frequencies))
        if not terms:
            return []
        documents = self._candidates(terms, depth)
        scores = np.zeros(len(documents), np.float32)
        for term in terms:
            self._add(term, documents, scores)
        return self._best(documents, scores, depth)

    def _candidates(self, terms: Sequence[_Term], depth: int) -> np.ndarray:
        """Return the numbers of some documents, which include the best `depth` documents.

        A term adds at most its weight to a score; rare terms weigh more, so they are processed
        first. Once the depth-th score is above the sum of the remaining weights, no new document
        can enter the ranking. The remaining terms are then only looked up for the documents found
        so far.
        """
        terms = sorted(terms, key=lambda term: term.weight, reverse=True)
        rest = np.cumsum([0.0, *(float(term.weight) for term in reversed(terms))])[::-1]
        exactness = 1 - 1e-6 * len(terms)  # float32 sums in another order differ by less
        scores, found, num = self._scores, [], 0
        for at, term in enumerate(terms):
            if depth <= num < len(term.documents):
                least = _kth(scores[np.concatenate(found)], depth)
                if least * exactness > rest[at]:
                    terms, rest = terms[at:], rest[at:]
                    break
            self._index.check(term.span)
            before = scores[term.documents]
            found.append(term.documents[np.signbit(before)])
            num += len(found[-1])
            tf = term.frequencies.astype(np.float32)
            gain = term.weight * (tf / (tf + self._norms[term.documents]))
            scores[term.documents] = before + gain
        else:
            terms, rest = [], rest[-1:]
        documents = np.concatenate(found)
        sums = scores[documents]
        scores[documents] = -0.0
        for at, left in enumerate(rest):
            if len(documents) > depth:
                kept = sums + left >= _kth(sums, depth) * exactness
                documents, sums = documents[kept], sums[kept]
            if at < len(terms):
                self._add(terms[at], documents, sums)
        return documents

    def _add(self, term: _Term, documents: np.ndarray, scores: np.ndarray) -> None:
        """Add a term's contribution to the scores of documents, in place."""
        places = np.searchsorted(term.documents, documents)
        places[places == len(term.documents)] = 0
        own = term.documents[places] == documents
        tf = term.frequencies[places[own]].astype(np.float32)
        scores[own] += term.weight * (tf / (tf + self._norms[documents[own]]))

    def _idf(self, df: int) -> float:
        return float(np.log1p((self._documents - df + 0.5) / (df + 0.5)))

    def _best(self, documents: np.ndarray, scores: np.ndarray, depth: int) -> list:
        if len(documents) > depth:
            kept = scores >= _kth(scores, depth)
            documents, scores = documents[kept], scores[kept]
        pairs = [
            (self._index.ids[document], score)
            for document, score in zip(documents.tolist(), scores.tolist(), strict=True)
        ]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:depth]


def _kth(scores: np.ndarray, k: int) -> np.floating:
    return np.partition(scores, len(scores) - k)[len(scores) - k]


def in_one_byte(lengths: np.ndarray) -> np.ndarray:
    """Round document lengths to values that Lucene can store in one byte.

    Source: Lucene SmallFloat.intToByte4.
    """
    rest = np.maximum(np.asarray(lengths, np.int64) - 24, 0)
    bits = np.frexp(rest.astype(np.float64))[1]
    shift = np.maximum(bits - 4, 0)
    return np.where(np.asarray(lengths) < 24, lengths, 24 + ((rest >> shift) << shift))
