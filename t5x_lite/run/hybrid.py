"""`t5x-lite hybrid`: runs by each head of a BGE-M3, and by several together.

Corpus and queries are directories of `embed --heads dense lexical multi_vector`. All of a corpus'
dense vectors are read for each query, so this is for corpora of up to some millions of documents;
`search` has the devices share them.
"""

import contextlib
import logging
from pathlib import Path

from t5x_lite.errors import InputError
from t5x_lite.interop.directories import new_directory
from t5x_lite.progress import counting
from t5x_lite.records.m3_files import M3Texts
from t5x_lite.records.run_files import Ranking, SameIds, check_tag, ranked, write_run
from t5x_lite.retrieval.hybrid import Finder, Ways

_logger = logging.getLogger(__name__)


def hybrid(
    corpus: str,
    *,
    queries: str,
    output: str,
    ways: Ways,
    same_ids: SameIds = "keep",
    tag: str = "t5x_lite",
) -> Path:
    """Writes a run of each way, OUTPUT/WAY.trec.

    Args:
      corpus: the documents' directory.
      queries: the queries' directory.
      output: a new directory.
      ways: what is ranked, and how.
      same_ids: whether a document that has a query's id stays in that query's ranking.
      tag: TREC's name of the runs.

    Returns:
      The directory that was made.

    Raises:
      InputError: a directory lacks what a head made, or the output exists.
    """
    check_tag(tag)
    documents, asked = M3Texts(corpus), M3Texts(queries)
    for head in ways.heads:
        for where, one in ((corpus, documents), (queries, asked)):
            if not one.has(head):
                raise InputError(
                    f"{where}: has nothing of the head {head!r}: embed it with --heads "
                    f"{' '.join(ways.heads)}"
                )
    if not asked.ids or not documents.ids:
        raise InputError(f"{corpus if asked.ids else queries}: no text")
    for where, one in ((corpus, documents), (queries, asked)):
        if len(set(one.ids)) < len(one.ids):
            twice = next(name for name in one.ids if one.ids.count(name) > 1)
            raise InputError(f"{where}: the id {twice!r} comes twice")
    finder, found = Finder(documents, ways), {name: [] for name in ways.names}
    terms = asked.terms() if "lexical" in ways.heads else None
    with (
        new_directory(output) as directory,
        contextlib.closing(terms) if terms is not None else contextlib.nullcontext(),
        counting("searching", unit="queries", total=len(asked.ids)) as advance,
    ):
        for number, query in enumerate(asked.ids):
            rankings = finder.rank(
                None if asked.dense is None else asked.dense[number],
                None if terms is None else next(terms),
                asked.vectors(number) if "multi_vector" in ways.heads else None,
            )
            for name, scored in rankings.items():
                named = [(documents.ids[i], score) for i, score in scored]
                kept = [pair for pair in named if same_ids == "keep" or pair[0] != query]
                found[name].append(Ranking(query, ranked(kept)))
            advance(1)
        for name, rankings in found.items():
            write_run(str(directory / f"{name}.trec"), rankings, tag=tag)
    _logger.info("%s: %d queries by %s", output, len(asked.ids), ", ".join(ways.names))
    return Path(output)
