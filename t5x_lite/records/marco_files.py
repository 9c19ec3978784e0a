"""Queries and judgements beside a collection of passages, as MS MARCO and DPR's data are kept.

    DIR/collection.tsv        or another collection (`records.passages`), which may be compressed
    DIR/queries.train.tsv     query id TAB text
    DIR/qrels.train.tsv       query id, 0, passage id, score, as TREC has it; without the 0; or the
                              two ids alone

A first line of column names, such as qid TAB query, is a header (`passages`, `run_files`).

The split "validation" is queries.dev.tsv and qrels.dev.tsv, or those that end in .dev.small.tsv.
Ids are strings: they are never read as numbers.

Source: the README of microsoft/MSMARCO-Passage-Ranking.
"""

from collections.abc import Iterator, Sequence

from t5x_lite.buckets.paths import DataPath, data_path
from t5x_lite.errors import InputError
from t5x_lite.records.lines import read_lines
from t5x_lite.records.pairs import Pairs
from t5x_lite.records.passages import named_columns, of_line, read_passages
from t5x_lite.records.run_files import judgments

SPLITS = {"train": ("train",), "validation": ("dev", "dev.small")}


def splits(directory: str) -> tuple[str, ...]:
    """The splits that have queries and judgements.

    Raises:
      InputError: there are none.
    """
    found = tuple(split for split in SPLITS if directory and _names(directory, split))
    if not found:
        raise InputError(
            f"data.directory {directory!r} has no queries.train.tsv with a qrels.train.tsv, and no "
            "queries.dev.tsv with a qrels.dev.tsv"
        )
    return found


def read_pairs(directory: str, split: str, collection: Sequence[str | DataPath]) -> list[Pairs]:
    """The queries of a split that some passage answers; the collection is read through once.

    Args:
      directory: of queries and judgements.
      split: "train" or "validation".
      collection: files of passages.

    Raises:
      InputError: a file is wrong, a query or a passage that is judged is missing.
    """
    names = _names(directory, split)
    if names is None:
        raise InputError(f"data.directory {directory!r} has no queries of the split {split}")
    return judged_pairs(*names, collection)


def judged_pairs(
    queries: str, qrels: str, collection: Sequence[str | DataPath], *, negatives: bool = False
) -> list[Pairs]:
    """The queries of a file that some passage answers; the collection is read through once.

    Args:
      queries: a file of ids and texts.
      qrels: a file of judgements.
      collection: files of passages.
      negatives: whether passages that were judged not to answer are the negatives; else they are
        not read.

    Raises:
      InputError: a file is wrong, a query or a passage that is judged is missing.
    """
    texts = dict(_texts(queries))
    judged: dict[str, tuple[list[str], list[str]]] = {}
    for where, query, passage, score in judgments(read_lines([qrels]), name=qrels):
        if query not in texts:
            raise InputError(f"{where}: the query {query!r} is not in {queries}")
        if score > 0 or negatives:
            judged.setdefault(query, ([], []))[score <= 0].append(passage)
    judged = {query: both for query, both in judged.items() if both[0]}
    wanted = {passage for both in judged.values() for each in both for passage in each}
    passages = {
        passage.id: passage.whole
        for path in collection
        for passage in read_passages(str(path))
        if passage.id in wanted
    }
    if missing := sorted(wanted - passages.keys()):
        raise InputError(
            f"{qrels}: {len(missing)} passages that are judged are not in the collection, such as "
            f"{missing[0]!r}: do the two belong together?"
        )
    return [
        Pairs(
            texts[query],
            [passages[p] for p in right],
            [passages[p] for p in wrong],
            positive_ids=right,
            negative_ids=wrong,
        )
        for query, (right, wrong) in judged.items()
    ]


def _names(directory: str, split: str) -> tuple[str, str] | None:
    """The files of queries and of judgements of a split."""
    for name in SPLITS[split]:
        found = [data_path(directory) / f"{kind}.{name}.tsv" for kind in ("queries", "qrels")]
        if all(path.is_file() for path in found):
            return str(found[0]), str(found[1])
    return None


def _texts(path: str) -> Iterator[tuple[str, str]]:
    """The id and the text of each line that is not blank."""
    columns = None
    for number, line in enumerate(read_lines([path]), start=1):
        if not line.strip():
            continue
        if number == 1 and (columns := named_columns(line)) is not None:
            continue
        if columns is not None:
            query = of_line(line, columns, where=f"{path}:{number}")
            yield query.id, query.text
            continue
        fields = line.split("\t", 1)
        if len(fields) != 2:
            raise InputError(
                f"{path}:{number}: must have 2 fields, got {len(fields)}: {line[:60]!r}"
            )
        yield fields[0], fields[1]
