"""Directories in BEIR's format: queries, documents, and which documents answer which queries.

    DIR/corpus.jsonl        {"_id": "4983", "title": "Microstructural development", "text": "..."}
    DIR/queries.jsonl       {"_id": "0", "text": "..."}
    DIR/qrels/train.tsv     query-id, corpus-id, score, with a header or without; dev.tsv, test.tsv

A document answers where its score is above 0; one with a score of 0 is known not to. Judgements of
documents that the corpus lacks, as ArguAna has them, stay: no ranking finds these documents.

Source: Thakur et al. 2021, "BEIR: A Heterogenous Benchmark for Zero-shot Evaluation of Information
Retrieval Models"; beir/datasets/data_loader.py.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from t5x_lite.buckets.paths import DataPath, data_path
from t5x_lite.errors import InputError
from t5x_lite.files import reason
from t5x_lite.records.compressed import read_whole
from t5x_lite.records.json_lines import Line, read_examples
from t5x_lite.records.pairs import Pairs
from t5x_lite.records.passages import titled_text
from t5x_lite.records.run_files import judgments
from t5x_lite.records.text_records import TextRecord

FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
"""The judgements of each split."""

_logger = logging.getLogger(__name__)


class Judged(NamedTuple):
    """What a ranking of a directory's documents is measured by.

    Attributes:
      queries: the text of each query that has judgements.
      judgements: the scores of documents by query.
      twins: the queries whose document of the same id has the same text, with its title or without.
      namesakes: how many queries have a document of the same id with another text.
      missing: how many judged documents the corpus lacks.
    """

    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]
    twins: frozenset[str] = frozenset()
    namesakes: int = 0
    missing: int = 0


def splits(directory: str, *, field: str = "data.directory") -> tuple[str, ...]:
    """The splits that have judgements.

    Args:
      directory: in BEIR's format.
      field: of the config, for the message.

    Raises:
      InputError: there are none.
    """
    found = tuple(
        s for s, name in FILES.items() if (data_path(directory) / "qrels" / name).is_file()
    )
    if not directory or not found:
        raise InputError(
            f"{field} {directory!r} is not a BEIR directory: it must hold corpus.jsonl, "
            f"queries.jsonl and one of qrels/{', qrels/'.join(FILES.values())}"
        )
    return found


def read_judgements(path: DataPath) -> dict[str, dict[str, int]]:
    """The scores of documents by query, in the order of the file.

    Args:
      path: of a file with BEIR's header or without it, or in TREC's form
        (`run_files.judgments`).

    Raises:
      InputError: it is unreadable, or a line has other fields or no whole number.
    """
    try:
        lines = read_whole(path).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); convert the file") from error
    found: dict[str, dict[str, int]] = {}
    for _, query, document, score in judgments(lines, name=str(path)):
        found.setdefault(query, {})[document] = score
    return found


def read_queries(directory: str) -> dict[str, str]:
    """The text of each query."""
    path = str(data_path(directory) / "queries.jsonl")
    fields = ("_id", "text")
    return {line.record["_id"]: line.record["text"] for line in read_examples(path, fields=fields)}


def read_documents(directory: str, wanted: Collection[str]) -> dict[str, str]:
    """Title and text of some documents, with a space between them; the others are passed over."""
    records = (line.record for line in _corpus_lines(directory))
    return {record["_id"]: titled_text(record) for record in records if record["_id"] in wanted}


def read_corpus(directory: str) -> Iterator[TextRecord]:
    """All documents, in order; the file is read as they are asked for.

    Raises:
      InputError: naming file and line.
    """
    for line in _corpus_lines(directory):
        yield TextRecord(line.where, line.record["_id"], titled_text(line.record))


def _corpus_lines(directory: str) -> Iterator[Line]:
    path = str(data_path(directory) / "corpus.jsonl")
    return read_examples(path, fields=("_id", "text"), optional=("title",))


def read_judged(directory: str, split: str) -> Judged:
    """The judgements of a split and its queries; the corpus is read through once and not kept.

    Raises:
      InputError: a file is wrong, there is no judgement, no document or none that is judged, a
        query is missing, or a judged document comes twice.
    """
    path = data_path(directory) / "qrels" / FILES[split]
    judgements = read_judgements(path)
    if not judgements:
        raise InputError(
            f"{path}: no judgement; lines of query-id, corpus-id, score after a header"
        )
    queries = read_queries(directory)
    _check_queries(judgements, queries, path=path)
    wanted = {document for scores in judgements.values() for document in scores}
    places: dict[str, str] = {}
    twins: dict[str, bool] = {}
    is_empty = True
    for line in _corpus_lines(directory):
        is_empty, name = False, line.record["_id"]
        if name in judgements:
            twins[name] = _is_twin(queries[name], line.record)
        if name in places:
            raise InputError(f"{line.where}: the id {name!r} is that of {places[name]} too")
        if name in wanted:
            places[name] = line.where
    if is_empty:
        raise InputError(f"{data_path(directory) / 'corpus.jsonl'}: no document")
    missing = _missing(wanted, places, path=path)
    return Judged(
        queries={query: queries[query] for query in judgements},
        judgements=judgements,
        twins=frozenset(name for name, same in twins.items() if same),
        namesakes=sum(not same for same in twins.values()),
        missing=len(missing),
    )


def read_pairs(directory: str, split: str) -> list[Pairs]:
    """The queries of a split that some document answers; documents that are missing are left out.

    Raises:
      InputError: a file is wrong, a query is missing, or all judged documents are.
    """
    path = data_path(directory) / "qrels" / FILES[split]
    judgements = read_judgements(path)
    queries = read_queries(directory)
    wanted = {document for scores in judgements.values() for document in scores}
    documents = read_documents(directory, wanted)
    _check_queries(judgements, queries, path=path)
    if missing := _missing(wanted, documents, path=path):
        _logger.warning(
            "%s: corpus.jsonl lacks %d of the judged documents; they are left out",
            path,
            len(missing),
        )
    found = []
    for query, scores in judgements.items():
        there = [name for name in scores if name in documents]
        answers = [name for name in there if scores[name] > 0]
        others = [name for name in there if scores[name] <= 0]
        if answers:
            positives, negatives = (
                [documents[name] for name in names] for names in (answers, others)
            )
            found.append(
                Pairs(
                    queries[query],
                    positives,
                    negatives,
                    positive_ids=answers,
                    negative_ids=others,
                )
            )
    return found


def _is_twin(query: str, document: Mapping[str, Any]) -> bool:
    """Whether a query is a document's text, with its title or without it."""
    texts = (query, document["text"], titled_text(document))
    same, *others = (" ".join(text.split()) for text in texts)
    return same in others


def _check_queries(names: Collection[str], there: Mapping[str, str], *, path: DataPath) -> None:
    missing = sorted(set(names) - set(there))
    if missing:
        raise InputError(
            f"{path} names {missing[0]!r}, which queries.jsonl beside it does not have"
        )


def _missing(names: Collection[str], there: Mapping[str, str], *, path: DataPath) -> set[str]:
    """The judged documents that are not there.

    Raises:
      InputError: none of them is there.
    """
    missing = set(names) - set(there)
    if missing and not there:
        raise InputError(
            f"{path}: corpus.jsonl has none of the {len(missing)} judged documents, such as "
            f"{min(missing)!r}: do the two belong together?"
        )
    return missing
