"""`t5x-lite bm25 build` and `bm25 search`: a first stage by terms, without a model."""

import itertools
import logging
import os
from collections.abc import Iterator, Sequence

from t5x_lite.errors import InputError
from t5x_lite.progress import counting
from t5x_lite.records.lines import count_lines
from t5x_lite.records.passages import Passage, read_passages
from t5x_lite.records.run_files import Ranking, RunFormat, SameIds, ranked
from t5x_lite.records.run_writer import run_writer
from t5x_lite.retrieval.bm25 import BM25, Lengths
from t5x_lite.retrieval.bm25_index import InvertedIndex, build

_CHUNK = 64
_logger = logging.getLogger(__name__)


def build_bm25(inputs: Sequence[str], *, output: str, analyzer: str = "english") -> None:
    """Writes the BM25 index of files of passages; a killed command goes on.

    Args:
      inputs: files of passages, whose title and text are one field.
      output: the directory of the index.
      analyzer: `retrieval.analyzers`.

    Raises:
      InputError: a file is wrong, an id comes twice, or the output is there.
    """
    identity = {
        "inputs": [os.path.abspath(path) for path in inputs],
        "sizes": [os.path.getsize(path) if os.path.isfile(path) else 0 for path in inputs],
    }
    texts = ((passage.id, passage.whole) for path in inputs for passage in read_passages(path))
    build(output, texts, analyzer=analyzer, identity=identity)
    settings = InvertedIndex.open(output).settings
    _logger.info(
        "%s: %d documents, %d terms, %d postings",
        output,
        settings["documents"],
        settings["terms"],
        settings["postings"],
    )


def search_bm25(
    index: str,
    *,
    queries: str,
    output: str,
    depth: int = 1000,
    k1: float = 0.9,
    b: float = 0.4,
    lengths: Lengths = "exact",
    same_ids: SameIds = "keep",
    format: RunFormat | None = None,
    tag: str = "bm25",
) -> None:
    """Writes the best documents of each query by BM25, as a run; a killed command goes on.

    Args:
      index: what `build_bm25` wrote.
      queries: a file of texts.
      output: the run.
      depth: documents of a query at most.
      k1: of BM25.
      b: of BM25.
      lengths: of documents, as `retrieval.bm25.BM25`.
      same_ids: whether a document that has a query's id is in that query's ranking.
      format: of the run; None is what its name says.
      tag: TREC's name of the run.

    Raises:
      InputError: the index or the queries are wrong, or what is there of the output is of another
        command.
    """
    bm25 = BM25(InvertedIndex.open(index), k1=k1, b=b, lengths=lengths)
    identity = {
        "index": os.path.abspath(index),
        "queries": os.path.abspath(queries),
        "settings": [depth, k1, b, lengths, same_ids, tag],
    }
    with (
        run_writer(output, identity=identity, chunk=_CHUNK, format=format, tag=tag) as file,
        counting(
            "searching", unit="queries", total=count_lines(queries), done=file.done
        ) as advance,
    ):
        passages = itertools.islice(_distinct(queries), file.done, None)
        while some := list(itertools.islice(passages, _CHUNK)):
            file.write([_ranking(bm25, one, depth=depth, same_ids=same_ids) for one in some])
            advance(len(some))
        if not file.done:
            raise InputError(f"{queries}: no query")


def _ranking(bm25: BM25, query: Passage, *, depth: int, same_ids: SameIds) -> Ranking:
    drops = same_ids == "drop"
    found = bm25.search(query.whole, depth=depth + drops)
    kept = [pair for pair in found if not (drops and pair[0] == query.id)]
    return Ranking(query.id, ranked(kept[:depth]))


def _distinct(path: str) -> Iterator[Passage]:
    seen: set[str] = set()
    for passage in read_passages(path):
        if passage.id in seen:
            raise InputError(f"{passage.where}: the id {passage.id!r} comes twice")
        seen.add(passage.id)
        yield passage
