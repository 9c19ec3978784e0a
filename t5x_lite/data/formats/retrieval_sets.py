"""Readers of retrieval sets: BEIR, DPR, MS MARCO, MIRACL.

DPR's training files are JSON arrays of questions, positives, and hard negatives:

    [{"question": "who wrote emma",
      "positive_ctxs": [{"title": "Emma (novel)", "text": "Emma is by Jane Austen."}],
      "hard_negative_ctxs": [{"title": "Emma Stone", "text": "She is an actress."}], ...}, ...]

become {"query": "who wrote emma", "pos": ["Emma (novel) Emma is by Jane Austen."], "neg": [...]}.
Questions without a positive passage are skipped, as in DPR. "negative_ctxs" (random passages) are
used if hard negatives are missing. Other fields are not read.

Source: Karpukhin et al. 2020, "Dense Passage Retrieval", section 3.2, and the README of
facebookresearch/DPR, "Retriever input data format".

Queries, judgments and a collection of passages in one directory, as in MS MARCO and DPR:

    DIR/collection.tsv        or another collection (`passages`), which may be compressed
    DIR/queries.train.tsv     query id TAB text
    DIR/qrels.train.tsv       query id, 0, passage id, score, as in TREC; without the 0; or only the
                              two ids

A first line of column names, such as qid TAB query, is a header (`passages`, `rankings`).

The split "validation" is queries.dev.tsv and qrels.dev.tsv, or the two files *.dev.small.tsv. Ids
are strings: they are never read as numbers.

Source: the README of microsoft/MSMARCO-Passage-Ranking.

MIRACL's topics, judgments and corpora as pairs, for all languages in a directory:

    DIR/miracl-v1.0-LANG/topics/*-{train,dev}.tsv     query id TAB text
    DIR/miracl-v1.0-LANG/qrels/*-{train,dev}.tsv      query id, Q0, passage id, 0 or 1
    DIR/miracl-corpus-v1.0-LANG/docs-*.jsonl.gz       objects with "docid", "title", "text"

Passages that were judged as not relevant to a query are its negatives. Languages follow each other
in the order of their codes.

Source: the data cards of miracl/miracl and miracl/miracl-corpus; Zhang et al. 2023, "MIRACL".

Directories in BEIR's format, with queries, documents and relevance judgments:

    DIR/corpus.jsonl        {"_id": "4983", "title": "Microstructural development", "text": "..."}
    DIR/queries.jsonl       {"_id": "0", "text": "..."}
    DIR/qrels/train.tsv     query-id, corpus-id, score, with a header or without; dev.tsv, test.tsv

A document with a score above 0 is relevant; a document with a score of 0 is known as not relevant.
Judgments of documents that the corpus lacks, as in ArguAna, are kept: rankings never find them.

Source: Thakur et al. 2021, "BEIR: A Heterogenous Benchmark for Zero-shot Evaluation of Information
Retrieval Models"; beir/datasets/data_loader.py.
"""

import codecs
import contextlib
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE, reason
from t5x_lite.core.object_store import DataPath, data_path
from t5x_lite.data.formats import tables
from t5x_lite.data.formats.lines import (
    Line,
    check_surrogates,
    open_text,
    read_examples,
    read_lines,
    read_whole,
)
from t5x_lite.data.formats.pairs import (
    Pairs,
    TextRecord,
    named_columns,
    of_line,
    read_passages,
    titled_text,
)
from t5x_lite.data.formats.rankings import judgments

_logger = logging.getLogger(__name__)

_EXPECTED = (
    '*train*.json of DPR, an array of objects with "question", "positive_ctxs" and '
    '"hard_negative_ctxs"'
)
_BYTES = 1 << 20
"""Bytes that are read at a time, because files may have several gigabytes."""
_SCALAR = 64
"""Maximum characters of a number in JSON."""
_SPACE = re.compile(r"[ \t\r\n]*")
_JSON = json.JSONDecoder()

_END = "the end of the file"


def dpr_splits(directory: str) -> tuple[str, ...]:
    """Return the names of the splits that a DPR directory has files for."""
    return tuple(split_files(directory))


def read_dpr_pairs(directory: str, split: str) -> Iterator[Pairs]:
    """Read the questions of a split of a DPR directory, with their passages."""
    return pairs_of(split_files(directory)[split])


def split_files(directory: str) -> dict[str, list[DataPath]]:
    """Return the JSON files of each split of a DPR directory."""
    return tables.split_files(directory, suffix=".json", expected=_EXPECTED)


def pairs_of(files: Sequence[DataPath]) -> Iterator[Pairs]:
    """Yield the questions of DPR files that have a positive passage, in order."""
    num_read = num_left_out = 0
    for file in files:
        for number, record in enumerate(array_elements(file), start=1):
            pairs = _pairs(record, where=f"{file}: question {number}")
            num_read += 1
            num_left_out += pairs is None
            if pairs is not None:
                yield pairs
    if num_read == num_left_out:
        raise InputError(f"{', '.join(map(str, files))}: no question has a positive passage")
    _logger.info(
        "read %d questions, %d of them without a positive passage, which are skipped",
        num_read,
        num_left_out,
    )


def array_elements(file: DataPath, *, member: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON array, with one object in memory at a time.

    Args:
      file: path of the JSON file.
      member: name of the array if the file is an object; "" if the file is the array.
    """
    with _read_by_parts(file, kind="object" if member else "array") as text:
        if not member:
            text.take("[", where=f"{file}: must be a JSON array of objects")
            yield from text.elements(file)
            return
        found = False
        for name in text.members(file):
            if name != member:
                text.value(where=f"{file}: {name!r}")
                continue
            found = True
            text.take("[", where=f"{file}: {member!r} must be an array of objects")
            yield from text.elements(file)
        if not found:
            raise InputError(f"{file}: the JSON object must have {member!r}, an array of objects")


def object_members(file: DataPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and value of each member of a JSON object, parsed one at a time."""
    with _read_by_parts(file) as text:
        for name in text.members(file):
            yield name, text.object_(where=f"{file}: {name!r}")


@contextlib.contextmanager
def _read_by_parts(file: DataPath, *, kind: str = "object") -> Iterator["_Text"]:
    """Open a JSON file for lazy parsing; raise InputError if text follows its JSON value."""
    try:
        with open_text(file) as stream:
            text = _Text(stream)
            yield text
            if text.sign():
                raise InputError(f"{file}: unexpected text after the JSON {kind}")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8; convert the file to UTF-8") from error


class _Text:
    """Lazy parser of a stream of JSON text."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at = "", 0

    def sign(self) -> str:
        """Return the next character that is not white space, or "" at the end of the text."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # pyright: ignore
            if rest := self._text[self._at : self._at + 1]:
                return rest
            if not self._more(_BYTES):
                return ""

    def take(self, sign: str, *, where: str) -> None:
        """Skip the next character; raise InputError if it is not `sign`."""
        if self.sign() != sign:
            raise InputError(f"{where}: expected {sign}, got {self.sign() or _END}")
        self._at += 1

    def elements(self, file: DataPath) -> Iterator[dict[str, Any]]:
        """Yield the objects of a JSON array, after its opening bracket."""
        number = 0
        while self.sign() != "]" or number:
            number += 1
            yield self.object_(where=f"{file}: question {number}")
            if self.sign() != ",":
                break
            self.take(",", where="")
        self.take("]", where=f"{file}: after question {number}")

    def members(self, file: DataPath) -> Iterator[str]:
        """Yield the member names of a JSON object; the caller parses each value in turn."""
        self.take("{", where=f"{file}: must be a JSON object")
        name = ""
        while self.sign() != "}" or name:
            if self.sign() != '"':
                raise InputError(
                    f"{file}: expected a name in quotation marks, got {self.sign() or _END}"
                )
            name = self.value(where=f"{file}: after {name!r}")
            self.take(":", where=f"{file}: after {name!r}")
            yield name
            if self.sign() != ",":
                break
            self.take(",", where="")
        self.take("}", where=f"{file}: after {name!r}")

    def object_(self, *, where: str) -> dict[str, Any]:
        if self.sign() != "{":
            raise InputError(f"{where}: must be a JSON object, got {self.sign() or _END}")
        return self.value(where=where)

    def value(self, *, where: str) -> Any:
        self.sign()
        while len(self._text) - self._at < _SCALAR and self._more(_BYTES):
            pass  # a number that continues after the text read so far would be cut
        size = _BYTES
        while True:
            try:
                start = self._at
                found, self._at = _JSON.raw_decode(self._text, start)
                check_surrogates(found, self._text[start : self._at], where=where)
                return found
            except InputError:
                raise
            except json.JSONDecodeError as error:
                of_the_end = error.pos > len(self._text) - 16 or "Unterminated" in error.msg
                if of_the_end and size > LONGEST_LINE:
                    raise InputError(
                        f"{where}: the JSON value has more than {LONGEST_LINE} bytes; divide the "
                        "value"
                    ) from error
                if not of_the_end or not self._more(size):
                    raise InputError(f"{where}: not JSON: {error.msg}") from error
                size *= 2
            except (RecursionError, ValueError) as error:
                raise InputError(f"{where}: not JSON that can be read ({error})") from error

    def _more(self, size: int) -> bool:
        """Read up to `size` more bytes of the stream; return False at its end."""
        found = self._stream.read(size)
        self._text = self._text[self._at :] + self._decoder.decode(found, final=not found)
        self._at = 0
        return bool(found)


def _pairs(record: Mapping[str, Any], *, where: str) -> Pairs | None:
    """Return a DPR question with its passages, or None if it has no positive passage."""
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise InputError(f'{where}: must have "question", a text')
    positive = _passages(record, "positive_ctxs", where=where)
    negative = _passages(record, "hard_negative_ctxs", where=where)
    negative = negative or _passages(record, "negative_ctxs", where=where)
    if not positive:
        return None
    return Pairs(question.strip(), positive, [text for text in negative if text not in positive])


def _passages(record: Mapping[str, Any], name: str, *, where: str) -> list[str]:
    passages = record.get(name, [])
    for passage in passages if isinstance(passages, list) else [None]:
        if not isinstance(passage, dict) or not isinstance(passage.get("text"), str):
            raise InputError(f'{where}: "{name}" must be a list of objects with "text"')
        if not isinstance(passage.get("title") or "", str):
            raise InputError(f'{where}: "title" in "{name}" must be a text')
    texts = (titled_text({**each, "title": each.get("title") or ""}) for each in passages)
    return list(dict.fromkeys(text for text in texts if text))


MARCO_SPLITS = {"train": ("train",), "validation": ("dev", "dev.small")}


def marco_splits(directory: str) -> tuple[str, ...]:
    """Return the splits of an MS MARCO directory that have queries and judgments."""
    found = tuple(split for split in MARCO_SPLITS if directory and _names(directory, split))
    if not found:
        raise InputError(
            f"data.directory {directory!r} has no queries.train.tsv with a qrels.train.tsv, and no "
            "queries.dev.tsv with a qrels.dev.tsv"
        )
    return found


def read_marco_pairs(
    directory: str, split: str, collection: Sequence[str | DataPath]
) -> list[Pairs]:
    """Return the queries of an MS MARCO split that have a positive, with their passages."""
    names = _names(directory, split)
    if names is None:
        raise InputError(f"data.directory {directory!r} has no queries of the split {split}")
    return judged_pairs(*names, collection)


def judged_pairs(
    queries: str, qrels: str, collection: Sequence[str | DataPath], *, negatives: bool = False
) -> list[Pairs]:
    """Return the queries of a file that have a positive passage, with their judged passages.

    Args:
      queries: path of the queries.
      qrels: path of the relevance judgments.
      collection: paths of the passages, which are read once.
      negatives: True to include passages with a score of 0 or less as negatives.
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
            f"{qrels}: the passage collection lacks {len(missing)} judged passages, such as "
            f"{missing[0]!r}; use the collection of these judgments"
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
    for name in MARCO_SPLITS[split]:
        found = [data_path(directory) / f"{kind}.{name}.tsv" for kind in ("queries", "qrels")]
        if all(path.is_file() for path in found):
            return str(found[0]), str(found[1])
    return None


def _texts(path: str) -> Iterator[tuple[str, str]]:
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
                f"{path}:{number}: must have 2 fields, query id TAB text, got {len(fields)}: "
                f"{line[:60]!r}"
            )
        yield fields[0], fields[1]


MIRACL_SPLITS = {"train": "train", "validation": "dev"}
_QUERIES, _CORPUS = "miracl-v1.0-", "miracl-corpus-v1.0-"


def miracl_splits(directory: str) -> tuple[str, ...]:
    """Return the splits of a MIRACL directory that have topics, judgments and a corpus."""
    found = tuple(split for split in MIRACL_SPLITS if directory and _languages(directory, split))
    if "train" not in found:
        raise InputError(
            f"data.directory {directory!r} has no language of MIRACL to train on; it must contain "
            f"{_QUERIES}LANG with topics/*-train.tsv and qrels/*-train.tsv, and "
            f"{_CORPUS}LANG with docs-*.jsonl.gz"
        )
    return found


def read_miracl_pairs(directory: str, split: str) -> list[Pairs]:
    """Return the queries of a MIRACL split that have a positive passage, in all languages."""
    return [
        pairs
        for queries, qrels, corpus in _languages(directory, split)
        for pairs in judged_pairs(str(queries), str(qrels), corpus, negatives=True)
    ]


def _languages(directory: str, split: str) -> list[tuple[DataPath, DataPath, list[DataPath]]]:
    """Return the paths of topics, judgments and corpus of each language that has all three."""
    root, found = data_path(directory), []
    for folder in sorted(root.glob(f"{_QUERIES}*")):
        language = folder.name.removeprefix(_QUERIES)
        files = [
            sorted(folder.glob(f"{n}/*-{MIRACL_SPLITS[split]}.tsv")) for n in ("topics", "qrels")
        ]
        corpus = sorted((root / f"{_CORPUS}{language}").glob("docs-*.jsonl*"))
        if all(files) and corpus:
            found.append((files[0][0], files[1][0], corpus))
    return found


FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
"""File name of the judgments of each split."""


class Judged(NamedTuple):
    """Queries and relevance judgments of a retrieval test set.

    Attributes:
      queries: text of each query that has judgments, by query id.
      judgements: score of each judged document, by query id and document id.
      twins: ids of queries that occur in the corpus with the same id and the same text.
      namesakes: number of queries with the same id as a document with a different text.
      missing: number of judged documents that the corpus lacks.
    """

    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]
    twins: frozenset[str] = frozenset()
    namesakes: int = 0
    missing: int = 0


def beir_splits(directory: str, *, field: str = "data.directory") -> tuple[str, ...]:
    """Return the splits of a BEIR directory that have judgments."""
    found = tuple(
        s for s, name in FILES.items() if (data_path(directory) / "qrels" / name).is_file()
    )
    if not directory or not found:
        raise InputError(
            f"{field} {directory!r} is not a BEIR directory: it must contain corpus.jsonl, "
            f"queries.jsonl and one of qrels/{', qrels/'.join(FILES.values())}"
        )
    return found


def read_judgements(path: DataPath) -> dict[str, dict[str, int]]:
    """Read a BEIR file of relevance judgments: query id -> document id -> score, in file order."""
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
    """Return the query texts of a BEIR directory, by query id."""
    path = str(data_path(directory) / "queries.jsonl")
    fields = ("_id", "text")
    return {line.record["_id"]: line.record["text"] for line in read_examples(path, fields=fields)}


def read_documents(directory: str, wanted: Collection[str]) -> dict[str, str]:
    """Return the texts of BEIR documents with the given ids: title and text, joined by a space."""
    records = (line.record for line in _corpus_lines(directory))
    return {record["_id"]: titled_text(record) for record in records if record["_id"] in wanted}


def read_corpus(directory: str) -> Iterator[TextRecord]:
    """Yield all documents of a BEIR directory, in order."""
    for line in _corpus_lines(directory):
        yield TextRecord(line.where, line.record["_id"], titled_text(line.record))


def _corpus_lines(directory: str) -> Iterator[Line]:
    path = str(data_path(directory) / "corpus.jsonl")
    return read_examples(path, fields=("_id", "text"), optional=("title",))


def read_judged(directory: str, split: str) -> Judged:
    """Return the judgments and queries of a BEIR split, after checking them against the corpus."""
    path = data_path(directory) / "qrels" / FILES[split]
    judgements = read_judgements(path)
    if not judgements:
        raise InputError(
            f"{path} has no relevance judgment; it needs lines of query-id, corpus-id, score after "
            "a header"
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
            raise InputError(
                f"{line.where}: the document id {name!r} occurs twice, first in {places[name]}"
            )
        if name in wanted:
            places[name] = line.where
    if is_empty:
        raise InputError(f"{data_path(directory) / 'corpus.jsonl'} has no document")
    missing = _missing(wanted, places, path=path)
    return Judged(
        queries={query: queries[query] for query in judgements},
        judgements=judgements,
        twins=frozenset(name for name, same in twins.items() if same),
        namesakes=sum(not same for same in twins.values()),
        missing=len(missing),
    )


def read_beir_pairs(directory: str, split: str) -> list[Pairs]:
    """Return the queries of a BEIR split that have a relevant document, with all judged documents.

    Judged documents that the corpus lacks are skipped with a warning.
    """
    path = data_path(directory) / "qrels" / FILES[split]
    judgements = read_judgements(path)
    queries = read_queries(directory)
    wanted = {document for scores in judgements.values() for document in scores}
    documents = read_documents(directory, wanted)
    _check_queries(judgements, queries, path=path)
    if missing := _missing(wanted, documents, path=path):
        _logger.warning(
            "%s: skipping %d judged documents that corpus.jsonl lacks",
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
    """Return True if a query equals a document's text, with or without the document's title."""
    texts = (query, document["text"], titled_text(document))
    same, *others = (" ".join(text.split()) for text in texts)
    return same in others


def _check_queries(names: Collection[str], there: Mapping[str, str], *, path: DataPath) -> None:
    missing = sorted(set(names) - set(there))
    if missing:
        raise InputError(
            f"{path} has judgments of query {missing[0]!r}, but queries.jsonl has no such query"
        )


def _missing(names: Collection[str], there: Mapping[str, str], *, path: DataPath) -> set[str]:
    """Return the ids of judged documents that the corpus lacks."""
    missing = set(names) - set(there)
    if missing and not there:
        raise InputError(
            f"{path}: corpus.jsonl has none of the {len(missing)} judged documents, such as "
            f"{min(missing)!r}; use the corpus of these judgments"
        )
    return missing
