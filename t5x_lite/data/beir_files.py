"""Directories in BEIR's format: queries, documents, and which documents answer which queries.

    DIR/corpus.jsonl        {"_id": "4983", "title": "Microstructural development", "text": "..."}
    DIR/queries.jsonl       {"_id": "0", "text": "..."}
    DIR/qrels/train.tsv     query-id, corpus-id, score, with a header; dev.tsv, test.tsv

A document answers where its score is above 0; one with a score of 0 is known not to.

Source: Thakur et al. 2021, "BEIR: A Heterogenous Benchmark for Zero-shot Evaluation of Information
Retrieval Models"; beir/datasets/data_loader.py.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from t5x_lite.data.json_lines import read_examples
from t5x_lite.data.pair_task import Pairs
from t5x_lite.data.text_records import TextRecord, titled_text
from t5x_lite.data.vocabulary_files import reason
from t5x_lite.errors import InputError

FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
"""The judgements of each split."""


class Judged(NamedTuple):
    """What a ranking of a directory's documents is measured by.

    Attributes:
      queries: the text of each query that has judgements.
      judgements: the scores of documents by query.
      twins: how many documents have the id and the text of such a query.
    """

    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]
    twins: int


def splits(directory: str, *, field: str = "data.directory") -> tuple[str, ...]:
    """The splits that have judgements.

    Args:
      directory: in BEIR's format.
      field: of the config, for the message.

    Raises:
      InputError: there are none.
    """
    found = tuple(s for s, name in FILES.items() if Path(directory, "qrels", name).is_file())
    if not directory or not found:
        raise InputError(
            f"{field} {directory!r} is no BEIR directory: it must hold corpus.jsonl, "
            f"queries.jsonl and one of qrels/{', qrels/'.join(FILES.values())}"
        )
    return found


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """The scores of documents by query, in the order of the file.

    Raises:
      InputError: it is unreadable, or a line has no three fields or no whole number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); convert the file") from error
    found: dict[str, dict[str, int]] = {}
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        try:
            query, document, score = fields
            found.setdefault(query, {})[document] = int(score)
        except ValueError as error:
            raise InputError(
                f"{path}:{number}: must be query-id, corpus-id and a whole number, with tabs "
                f"between them, got {line[:60]!r}"
            ) from error
    return found


def read_queries(directory: str) -> dict[str, str]:
    """The text of each query."""
    path = str(Path(directory, "queries.jsonl"))
    fields = ("_id", "text")
    return {line.record["_id"]: line.record["text"] for line in read_examples(path, fields=fields)}


def read_documents(directory: str, wanted: Collection[str]) -> dict[str, str]:
    """Title and text of some documents, with a space between them; the others are passed over."""
    path = str(Path(directory, "corpus.jsonl"))
    lines = read_examples(path, fields=("_id", "text"), optional=("title",))
    records = (line.record for line in lines)
    return {record["_id"]: titled_text(record) for record in records if record["_id"] in wanted}


def read_corpus(directory: str) -> Iterator[TextRecord]:
    """All documents, in order; the file is read as they are asked for.

    Raises:
      InputError: naming file and line.
    """
    path = str(Path(directory, "corpus.jsonl"))
    for line in read_examples(path, fields=("_id", "text"), optional=("title",)):
        yield TextRecord(line.where, line.record["_id"], titled_text(line.record))


def read_judged(directory: str, split: str) -> Judged:
    """The judgements of a split and its queries; the corpus is read through once and not kept.

    Raises:
      InputError: a file is wrong, there is no judgement or no document, the files lack what the
        judgements name, or a judged document comes twice.
    """
    path = Path(directory, "qrels", FILES[split])
    judgements = read_judgements(path)
    if not judgements:
        raise InputError(
            f"{path}: no judgement; lines of query-id, corpus-id, score after a header"
        )
    queries = read_queries(directory)
    _check_there(judgements, queries, path=path, file="queries.jsonl")
    wanted = {document for scores in judgements.values() for document in scores}
    places: dict[str, str] = {}
    is_empty, twins = True, 0
    for document in read_corpus(directory):
        is_empty = False
        twins += document.id in judgements and document.text == queries[document.id].strip()
        if document.id in places:
            raise InputError(
                f"{document.where}: the id {document.id!r} is that of {places[document.id]} too"
            )
        if document.id in wanted:
            places[document.id] = document.where
    if is_empty:
        raise InputError(f"{Path(directory, 'corpus.jsonl')}: no document")
    _check_there(wanted, places, path=path, file="corpus.jsonl")
    return Judged({query: queries[query] for query in judgements}, judgements, twins)


def read_pairs(directory: str, split: str) -> list[Pairs]:
    """The queries of a split that some document answers.

    Raises:
      InputError: a file is wrong, or lacks what the judgements name.
    """
    path = Path(directory, "qrels", FILES[split])
    judgements = read_judgements(path)
    queries = read_queries(directory)
    wanted = {document for scores in judgements.values() for document in scores}
    documents = read_documents(directory, wanted)
    _check_there(judgements, queries, path=path, file="queries.jsonl")
    _check_there(wanted, documents, path=path, file="corpus.jsonl")
    found = []
    for query, scores in judgements.items():
        answers = [documents[document] for document, score in scores.items() if score > 0]
        others = [documents[document] for document, score in scores.items() if score <= 0]
        if answers:
            found.append(Pairs(queries[query], answers, others))
    return found


def _check_there(
    names: Collection[str], there: Mapping[str, str], *, path: Path, file: str
) -> None:
    missing = sorted(set(names) - set(there))
    if missing:
        raise InputError(f"{path} names {missing[0]!r}, which {file} beside it does not have")
