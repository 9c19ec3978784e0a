"""`t5x-lite rerank`: the first places of a run in the order of a cross-encoder.

Queries are scored one behind the other, several at a time; a killed command goes on after the last
ones that are written (`records.run_writer`). The texts of the passages that are scored are in
memory, and no others.
"""

import hashlib
import itertools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.inference.best_step import Step, find_step
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.pairs import sigmoid_or_raw
from t5x_lite.progress import counting
from t5x_lite.records import beir_files
from t5x_lite.records.passages import read_passages
from t5x_lite.records.run_files import Ranking, RunFormat, read_run
from t5x_lite.records.run_writer import run_writer
from t5x_lite.retrieval.rerank import reranked
from t5x_lite.sharding import MeshConfig, make_mesh

_AT_A_TIME = 8
"""Queries whose passages are scored together, and sorted by length."""

_logger = logging.getLogger(__name__)


def rerank(
    checkpoint: str,
    *,
    input: str,
    output: str,
    beir: str | None = None,
    queries: str | None = None,
    passages: str | None = None,
    step: Step = None,
    use: str | None = None,
    depth: int = 100,
    sigmoid: bool = False,
    format: RunFormat | None = None,
    tag: str = "t5x_lite",
    batch_size: int = 32,
    inputs_length: int | None = None,
    query_length: int | None = None,
) -> None:
    """Writes a run whose first documents are in the order of their scores.

    Args:
      checkpoint: a work directory or a step directory of a cross-encoder.
      input: the run of the first stage, in TREC's form, MS MARCO's or JSON lines
        (`records.run_files`).
      output: the new run; its name says its form, or `format`.
      beir: a directory with corpus.jsonl and queries.jsonl.
      queries: in place of it, a file of queries with ids (`records.passages`).
      passages: in place of it, a file of passages.
      step: of a work directory: its number, "best", or None for the newest.
      use: names of modules, with commas between; None is all of the checkpoint.
      depth: documents of a query that are scored.
      sigmoid: whether scores are probabilities, and not the logits.
      format: "trec", "marco" or "jsonl".
      tag: TREC's name of the run.
      batch_size: pairs scored at once, rounded up to what the devices can share.
      inputs_length: tokens of query and passage together.
      query_length: tokens of a query at most.

    Raises:
      InputError: the checkpoint, a file or a line is wrong, or a text is missing.
    """
    directory = find_step(checkpoint, step=step)
    rankings = list(read_run(input))
    if not rankings:
        raise InputError(f"{input}: no ranking")
    texts = _texts(rankings, depth=depth, beir=beir, queries=queries, passages=passages, run=input)
    model = Checkpoint.load(
        [directory], use=use, inputs_length=inputs_length, mesh=make_mesh(MeshConfig())
    )
    scorer = model.pair_scorer(batch_size=batch_size, query_length=query_length)
    shown = sigmoid_or_raw(sigmoid=sigmoid)
    identity = {
        "checkpoint": str(directory),
        "use": use,
        "rankings": _digest(rankings, texts, depth=depth),
        "depth": depth,
        "sigmoid": sigmoid,
        "lengths": [scorer.length, scorer.query_length],
    }
    with (
        run_writer(output, identity=identity, chunk=_AT_A_TIME, format=format, tag=tag) as file,
        counting("reranking", unit="queries", total=len(rankings), done=file.done) as advance,
    ):
        for some in _chunks(rankings[file.done :]):
            pairs = [
                (texts.queries[ranking.query], texts.passages[one.document])
                for ranking in some
                for one in ranking.documents[:depth]
            ]
            scores = iter(shown(scorer.scores(pairs)).tolist() if pairs else [])
            file.write(
                [
                    reranked(ranking, list(itertools.islice(scores, min(depth, len(documents)))))
                    for ranking in some
                    for documents in [ranking.documents]
                ]
            )
            advance(len(some))
    _logger.info(
        "%s: %d queries, the first %d of each in the order of %s",
        output,
        len(rankings),
        depth,
        directory,
    )


class _Texts:
    """The texts of queries and of passages, by their ids."""

    def __init__(self, queries: Mapping[str, str], passages: Mapping[str, str]):
        self.queries, self.passages = queries, passages


def _texts(
    rankings: Sequence[Ranking],
    *,
    depth: int,
    beir: str | None,
    queries: str | None,
    passages: str | None,
    run: str,
) -> _Texts:
    """The texts that are to be scored.

    Raises:
      InputError: the files are not named in one of the two ways, or lack what the run names.
    """
    names = {one.document for ranking in rankings for one in ranking.documents[:depth]}
    if beir is not None and queries is None and passages is None:
        found = _Texts(beir_files.read_queries(beir), beir_files.read_documents(beir, names))
        where = (beir, beir)
    elif beir is None and queries is not None and passages is not None:
        asked = {ranking.query for ranking in rankings}
        found = _Texts(_read(queries, asked), _read(passages, names))
        where = (queries, passages)
    else:
        raise InputError("whose texts? give --beir DIR, or --queries FILE and --passages FILE")
    lacking = [ranking.query for ranking in rankings if ranking.query not in found.queries]
    if lacking:
        raise InputError(f"{run} names the query {lacking[0]!r}, which {where[0]} does not have")
    if missing := sorted(names - found.passages.keys()):
        raise InputError(
            f"{run} names the document {missing[0]!r}, which {where[1]} does not have; "
            f"{len(missing)} are missing"
        )
    return found


def _read(path: str, wanted: Collection[str]) -> dict[str, str]:
    return {one.id: one.whole for one in read_passages(path) if one.id in wanted}


def _digest(rankings: Sequence[Ranking], texts: _Texts, *, depth: int) -> str:
    """What tells one input from another: names, order, and the texts that are scored."""
    found = hashlib.sha256()
    for ranking in rankings:
        found.update(f"{ranking.query}\0{texts.queries[ranking.query]}\0".encode())
        for place, one in enumerate(ranking.documents):
            text = texts.passages[one.document] if place < depth else ""
            found.update(f"{one.document}\0{text}\0".encode())
    return found.hexdigest()


def _chunks(rankings: Sequence[Ranking]) -> Iterator[list[Ranking]]:
    those: Any = iter(rankings)
    while some := list(itertools.islice(those, _AT_A_TIME)):
        yield some
