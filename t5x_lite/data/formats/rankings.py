"""Runs (rankings of documents for queries), qrels (relevance judgments), and answers of questions.

    run.trec      301 Q0 d7 1 14.89 t5x_lite      query, Q0, document, rank, score, name of the run
    run.tsv       301 TAB d7 TAB 1                query, document, rank: MS MARCO's form
    run.jsonl     {"query": "301", "documents": ["d7"], "scores": [14.89]}      a query per line
    qrels         301 0 d7 1                      query, 0, document, score: TREC's form
                  301 TAB d7                      query, relevant document: MS MARCO's form
                  301 TAB d7 TAB 1                query, document, score: BEIR's form

In a run and in qrels, a first line of column names, such as qid, pid, rank or BEIR's query-id,
corpus-id, score, is a header.

Fields are separated by white space, and ids are strings: "007" and "NA" are ordinary ids. Runs are
read a query at a time if the lines of each query are adjacent, and otherwise as a whole. A document
occurs only once in a ranking. Files may be compressed (.gz, .zst).

A ranking has the order of its rank column. trec_eval does not read that column, and some programs
write 0 on every line or count from 0. If ranks repeat or are below 1, the order is by score, with a
warning. Ties are broken as in trec_eval: scores are compared as float32, and the document with the
greater id is first.

Source: trec_eval 9.0, form_res_rels.c and get_trec_results.c.

A run written in chunks of queries, which a killed command resumes:

    with run_writer("run.trec", identity={"index": "corpus.bm25"}, chunk=64) as file:
        for rankings in found_after(file.done):     # chunks of 64, the last one perhaps smaller
            file.write(rankings)

The rankings are collected as JSON lines, one per query (`core.jobs`), in run.trec.jsonl.partial.
For TREC's and MS MARCO's forms, they are converted to run.trec at the end; if an id does not fit
these forms, the rankings stay in run.trec.jsonl, or in run.trec.1.jsonl if that file exists.

Answers of questions, for the recall of open question answering:

    answers.jsonl       {"_id": "17", "answers": ["Paris", "City of Paris"]}
    nq-test.qa.csv      question TAB ['Paris', 'City of Paris']     DPR's form; ids are 0, 1, 2, ...
    mkqa.jsonl          {"example_id": 3, "queries": {"de": ...}, "answers": {"de": [{"type": ...,
                        "text": ..., "aliases": [...]}]}}           MKQA's, of one language

A first line of column names, question TAB answers, is a header and has no id. A question of MKQA
is used if it is answerable and its English answer is neither long nor yes or no: 6,619 of 10,000 in
BGE-M3's evaluation.
"""

import ast
import contextlib
import functools
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.jobs import ResumableWriter, is_resumable, resumable_writer
from t5x_lite.data.formats import lines
from t5x_lite.data.formats.lines import (
    LONGEST_COLUMNS,
    Line,
    plain_name,
    read_examples,
    read_lines,
    writer,
)

_logger = logging.getLogger(__name__)

RunFormat = Literal["trec", "marco", "jsonl"]
SameIds = Literal["keep", "drop"]
"""Treatment of a document with the same id as the query: kept in the ranking, or dropped."""
_QUERY_NAMES = {"query", "qid", "topic", "query-id", "queryid", "topic-id", "topicid"}
_DOCUMENT_NAMES = {"document", "doc", "passage", "docid", "docno", "pid", "did"} | {
    f"{name}-id" for name in ("corpus", "document", "doc", "passage")
}
_SCORE_NAMES = {"score", "rel", "relevance", "relevancy", "label", "judgment", "judgement", "grade"}
"""Names of the score column in files of relevance judgments."""
_RANK_NAMES = {"rank", "ranking", "position"}
_RANK = re.compile(r"-?[0-9]{1,18}", re.ASCII)


Qrels = dict[str, dict[str, int]]
"""Relevance judgments: query id -> document id -> score."""


class Ranked(NamedTuple):
    """Document in a ranking.

    Attributes:
      document: id of the document.
      score: retrieval score; None in MS MARCO's format, which has no scores.
      rank: rank, from 1.
    """

    document: str
    score: float | None
    rank: int


class Ranking(NamedTuple):
    """Ranked documents of one query, best first."""

    query: str
    documents: list[Ranked]


class _Row(NamedTuple):
    where: str
    query: str
    ranked: Ranked


def format_of(path: str, format: RunFormat | None = None) -> RunFormat:
    """Return the format of a file of rankings: `format` if set, else by the file's suffix."""
    if format is not None:
        return format
    suffix = Path(plain_name(path)).suffix
    return "jsonl" if suffix == ".jsonl" else "marco" if suffix == ".tsv" else "trec"


def read_run(
    path: str, *, format: RunFormat | None = None, quiet: bool = False
) -> Iterator[Ranking]:
    """Yield the rankings in a file, one per query, in the order of the file.

    Args:
      path: file, or "-" for standard input.
      format: format of the file; None takes it from the file's suffix.
      quiet: True to not warn of repeated ranks, because the file was read before.
    """
    if path != "-" and format_of(path, format) == "jsonl":
        yield from _once(_read_json(path))
        return
    rows = _rows(path, format)
    groups: Iterable[tuple[str, Iterable[_Row]]]
    if path != "-" and _stand_together(path):
        groups = itertools.groupby(rows, key=lambda row: row.query)
    else:
        by_query: dict[str, list[_Row]] = {}
        for row in rows:
            by_query.setdefault(row.query, []).append(row)
        groups = by_query.items()
    is_told = quiet
    for query, group in groups:
        ranking, by_score = _ranking(query, [*group])
        if by_score and not is_told:
            is_told = True
            _logger.warning(
                "%s: the ranks of the query %r repeat or are below 1; such queries are ordered by "
                "score, as in trec_eval",
                path,
                query,
            )
        yield ranking


def _stand_together(path: str) -> bool:
    """Return True if the lines of each query are adjacent in a file of rankings."""
    seen: set[str] = set()
    last = ""
    for line in read_lines([path], longest=LONGEST_COLUMNS):
        query = line.split(maxsplit=1)[:1]
        if query and query[0] != last:
            last = query[0]
            if last in seen:
                return False
            seen.add(last)
    return True


def _once(found: Iterable[tuple[str, Ranking]]) -> Iterator[Ranking]:
    seen: set[str] = set()
    for where, ranking in found:
        if ranking.query in seen:
            raise InputError(
                f"{where}: the query {ranking.query!r} occurs twice; write one line per query"
            )
        seen.add(ranking.query)
        yield ranking


def _rows(path: str, format: RunFormat | None) -> Iterator[_Row]:
    name, expected = "<stdin>" if path == "-" else path, {"trec": 6, "marco": 3, None: None}[format]
    for number, line in enumerate(read_lines([path], longest=LONGEST_COLUMNS), start=1):
        where, fields = f"{name}:{number}", line.split()
        if not fields:
            continue
        expected = len(fields) if expected is None else expected
        if number == 1 and len(fields) == expected and _is_run_header(fields):
            continue
        if len(fields) != expected or expected not in (3, 6):
            raise InputError(
                f"{where}: a line must be query, Q0, document, rank, score, tag (TREC), or query, "
                f"document, rank (MS MARCO), with the same columns in all lines: got {line[:60]!r}"
            )
        if expected == 6:
            query, _, document, rank, score, _ = fields
            yield _Row(where, query, Ranked(document, _score(score, where), _rank(rank, where)))
        else:
            query, document, rank = fields
            yield _Row(where, query, Ranked(document, None, _rank(rank, where)))


def _is_run_header(fields: Sequence[str]) -> bool:
    names = _names_of(fields)
    if len(names) not in (3, 6) or names[0].lstrip("\ufeff") not in _QUERY_NAMES:
        return False
    return names[2 if len(names) == 3 else 3] in _RANK_NAMES


def _rank(text: str, where: str) -> int:
    if not _RANK.fullmatch(text):
        raise InputError(f"{where}: a rank must be a whole number, got {text[:20]!r}")
    return int(text)


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: a score must be a finite number, got {text[:20]!r}")
    return score


def _ranking(query: str, rows: Sequence[_Row]) -> tuple[Ranking, bool]:
    documents: dict[str, str] = {}
    ranks: dict[int, str] = {}
    is_scored = all(row.ranked.score is not None for row in rows)
    for row in rows:
        document, rank = row.ranked.document, row.ranked.rank
        if document in documents:
            raise InputError(
                f"{row.where}: document {document!r} occurs twice in the ranking of query "
                f"{query!r}, first in {documents[document]}"
            )
        if rank in ranks and not is_scored:
            raise InputError(
                f"{row.where}: query {query!r} has rank {rank} twice, first in {ranks[rank]}; "
                "number the ranks from 1"
            )
        documents[document], ranks[rank] = row.where, row.where
    found = sorted((row.ranked for row in rows), key=lambda ranked: ranked.rank)
    if len(ranks) == len(rows) and min(ranks, default=1) >= 1:
        return Ranking(query, found), False
    if is_scored:
        found.sort(key=lambda ranked: ranked.document.encode(), reverse=True)
        with np.errstate(over="ignore"):
            found.sort(key=lambda ranked: -np.float32(ranked.score or 0.0))
    numbered = [one._replace(rank=rank) for rank, one in enumerate(found, start=1)]
    return Ranking(query, numbered), is_scored


def _read_json(path: str) -> Iterator[tuple[str, Ranking]]:
    for where, record in read_examples(path, fields=("query",)):
        documents, scores = record.get("documents"), record.get("scores")
        if not isinstance(documents, list) or not all(isinstance(d, str) for d in documents):
            raise InputError(f'{where}: must have "documents", a list of strings')
        if scores is None:
            scores = [None] * len(documents)
        numbers = isinstance(scores, list) and len(scores) == len(documents)
        if not numbers or not all(score is None or _is_score(score) for score in scores):
            raise InputError(
                f'{where}: "scores" must have one number for each entry of "documents"'
            )
        rows = [
            _Row(where, record["query"], Ranked(document, None if s is None else float(s), rank))
            for rank, (document, s) in enumerate(zip(documents, scores, strict=True), start=1)
        ]
        yield where, _ranking(record["query"], rows)[0]


def _is_score(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # pyright: ignore[reportArgumentType]


def run_lines(rankings: Iterable[Ranking], *, format: RunFormat, tag: str) -> Iterator[str]:
    """Yield the lines of a file of rankings, including line ends."""
    form: Callable[[Ranking], Iterator[str]]
    if format == "jsonl":
        form = _json_lines
    elif format == "marco":
        form = _marco_lines
    else:
        form = lambda ranking: _trec_lines(ranking, tag)  # noqa: E731
    for ranking in rankings:
        if format != "jsonl":
            _check_ids(ranking)
        yield from form(ranking)


def _json_lines(ranking: Ranking) -> Iterator[str]:
    record = {
        "query": ranking.query,
        "documents": [ranked.document for ranked in ranking.documents],
        "scores": [ranked.score for ranked in ranking.documents],
    }
    yield json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _marco_lines(ranking: Ranking) -> Iterator[str]:
    for document, _, rank in ranking.documents:
        yield f"{ranking.query}\t{document}\t{rank}\n"


def _trec_lines(ranking: Ranking, tag: str) -> Iterator[str]:
    for document, score, rank in ranking.documents:
        if score is None:
            raise ValueError(
                f"document {document!r} of query {ranking.query!r} has no score, but TREC's format "
                "needs one"
            )
        yield f"{ranking.query} Q0 {document} {rank} {score!r} {tag}\n"


def _check_ids(ranking: Ranking) -> None:
    for name in (ranking.query, *(ranked.document for ranked in ranking.documents)):
        if not name or name.split() != [name]:
            raise InputError(
                f"the id {name!r} is empty or has white space, but files in the TREC or MS MARCO "
                "format separate ids by white space; write a .jsonl file"
            )


def write_run(
    path: str,
    rankings: Iterable[Ranking],
    *,
    format: RunFormat | None = None,
    tag: str = "t5x_lite",
) -> None:
    """Write rankings to a file atomically; the path "-" is standard output."""
    check_tag(tag)
    with writer(path) as file:
        for line in run_lines(rankings, format=format_of(path, format), tag=tag):
            file.write_text(line)


def check_tag(tag: str) -> None:
    """Raise InputError unless a run name is one word, as TREC's format of rankings requires."""
    if tag.split() != [tag]:
        raise InputError(f"the run name (--tag) must be one word, got {tag!r}")


def ranked(documents: Iterable[tuple[str, float]]) -> list[Ranked]:
    """Convert (document, score) pairs, sorted best first, to ranked documents."""
    return [Ranked(name, score, rank) for rank, (name, score) in enumerate(documents, start=1)]


def read_qrels(path: str) -> Qrels:
    """Read a file of relevance judgments: query id -> document id -> score, in file order."""
    found: Qrels = {}
    name = "<stdin>" if path == "-" else path
    for where, query, document, score in judgments(
        read_lines([path], longest=LONGEST_COLUMNS), name=name
    ):
        if found.setdefault(query, {}).setdefault(document, score) != score:
            raise InputError(
                f"{where}: document {document!r} of query {query!r} has two different scores; keep "
                "one line"
            )
    if not found:
        raise InputError(f"{path} has no relevance judgment")
    return found


_LARGEST_SCORE = 1 << 31


def judgments(lines: Iterable[str], *, name: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield the location, query, document and score of each line of relevance judgments."""
    columns = None
    for number, line in enumerate(lines, start=1):
        where = f"{name}:{number}"
        line = line.removeprefix("\ufeff") if number == 1 else line
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("\t")]  # ids of BEIR may have spaces
        if not 2 <= len(fields) <= 4 or not all(fields):
            fields = line.split()
        is_first, columns = columns is None, columns or len(fields)
        if len(fields) != columns or columns not in (2, 3, 4):
            raise InputError(
                f"{where}: a line must be query, 0, document, score (TREC), query, document, score "
                "(BEIR) or query, document (MS MARCO), with the same columns in all lines: got "
                f"{line[:60]!r}"
            )
        if is_first and _is_header(fields):
            continue
        query, document = fields[0], fields[2 if columns == 4 else 1]
        yield where, query, document, 1 if columns == 2 else _judgement(fields[-1], where)


def _is_header(fields: Sequence[str]) -> bool:
    names = _names_of(fields)
    if len(names) == 2:
        return names[0] in _QUERY_NAMES and names[1] in _DOCUMENT_NAMES
    is_name = names[0] in _QUERY_NAMES or names[-1] in _SCORE_NAMES
    is_name |= len(names) == 3 and not re.search(r"[0-9]", "".join(names))  # BEIR has a header
    return is_name and not re.fullmatch(r"[+-]?[0-9]+", names[-1])


def _names_of(fields: Sequence[str]) -> list[str]:
    return [field.strip('"').lower().replace("_", "-") for field in fields]


def _judgement(text: str, where: str) -> int:
    try:
        if abs(score := int(text)) < _LARGEST_SCORE:
            return score
    except ValueError:
        pass
    raise InputError(f"{where}: a score must be a whole number, got {text[:20]!r}")


def write_qrels(path: str, qrels: Qrels) -> None:
    """Write relevance judgments in TREC's format, atomically."""
    with writer(path) as file:
        for query, scores in qrels.items():
            _check_ids(Ranking(query, [Ranked(document, None, 1) for document in scores]))
            for document, score in scores.items():
                file.write_text(f"{query} 0 {document} {score}\n")


class RunWriter:
    """Writer of rankings to a file of retrieval results (a run).

    Attributes:
      done: number of written rankings, including rankings from an interrupted process.
    """

    def __init__(self, file: ResumableWriter | lines.Writer, form: tuple[RunFormat, str]):
        self._file, self._form, self.done = file, form, file.done

    def write(self, rankings: Sequence[Ranking]) -> None:
        """Write the rankings of one chunk of queries."""
        if isinstance(self._file, ResumableWriter):
            self._file.write(
                *(
                    {
                        "query": ranking.query,
                        "documents": [one.document for one in ranking.documents],
                        "scores": [one.score for one in ranking.documents],
                    }
                    for ranking in rankings
                )
            )
        else:
            format, tag = self._form
            self._file.write_text("".join(run_lines(rankings, format=format, tag=tag)))
        self.done += len(rankings)


def _unused(path: Path) -> Path:
    others = (path.with_name(f"{path.stem}.{i}{path.suffix}") for i in itertools.count(1))
    return next(one for one in itertools.chain([path], others) if not one.exists())


@contextlib.contextmanager
def run_writer(
    path: str,
    *,
    identity: Mapping[str, Any],
    chunk: int,
    format: RunFormat | None = None,
    tag: str = "t5x_lite",
) -> Iterator[RunWriter]:
    """Open a file of rankings (a run) for writing; the file appears at its path when complete."""
    check_tag(tag)
    kind = format_of(path, format)
    if not is_resumable(path):
        with lines.writer(path) as file:
            yield RunWriter(file, (kind, tag))
        return
    work = path if kind == "jsonl" else f"{path}.jsonl"

    def convert(partial: Path, target: Path) -> None:
        found = functools.partial(read_run, str(partial), format="jsonl")
        try:
            for ranking in found():
                _check_ids(ranking)
        except InputError as error:
            kept = _unused(target)
            partial.replace(kept)
            raise InputError(f"{error}; the rankings are in {kept}, as JSON lines") from error
        write_run(path, found(), format=kind, tag=tag)
        partial.unlink()

    with resumable_writer(
        work,
        identity={**identity, "format": kind},
        chunk=chunk,
        complete=Path.replace if kind == "jsonl" else convert,
    ) as file:
        yield RunWriter(file, (kind, tag))


_HEADERS = (["question", "answers"], ["question", "answer"], ["query", "answers"])
_LEFT_OUT = ("unanswerable", "binary", "long_answer")


class Question(NamedTuple):
    """MKQA question in one language, with its answers."""

    id: str
    text: str
    answers: list[str]


def read_answers(path: str) -> dict[str, list[str]]:
    """Read a file of questions, and return the answers of each question by its id."""
    found: dict[str, list[str]] = {}
    if Path(plain_name(path)).suffix in (".jsonl", ".json"):
        pairs = map(_of_object, read_examples(path, fields=()))
    else:
        pairs = _of_table(path)
    for where, name, answers in pairs:
        if name in found:
            raise InputError(f"{where}: the id {name!r} comes twice")
        found[name] = answers
    if not found:
        raise InputError(f"{path}: no question")
    return found


def _of_object(line: Line) -> tuple[str, str, list[str]]:
    name, answers = line.record.get("_id", line.record.get("id")), line.record.get("answers")
    if not isinstance(name, str | int) or isinstance(name, bool) or not _are_texts(answers):
        raise InputError(f'{line.where}: must have "_id" and "answers", a list of strings')
    return line.where, str(name), list(answers or ())


def _of_table(path: str) -> Iterator[tuple[str, str, list[str]]]:
    header = 0
    for number, line in enumerate(read_lines([path], longest=LONGEST_COLUMNS)):
        where, fields = f"{path}:{number + 1}", line.split("\t", 2)
        if not number and [name.strip().strip('"').lower() for name in fields[:2]] in _HEADERS:
            header = 1
            continue
        try:
            answers = ast.literal_eval(fields[1].strip('"').replace('""', '"'))
        except (IndexError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{where}: the line must be question TAB ['answer', ...]") from error
        if not _are_texts(answers):
            raise InputError(f"{where}: the line must be question TAB ['answer', ...]")
        yield where, str(number - header), answers


def _are_texts(answers: Any) -> bool:
    return isinstance(answers, list) and all(isinstance(answer, str) for answer in answers)


def read_mkqa(path: str, language: str) -> list[Question]:
    """Read the MKQA questions with short answers in one language."""
    found = []
    for where, record in read_examples(path, fields=()):
        try:
            kinds = {str(one["type"]) for one in record["answers"]["en"]}
            if kinds & set(_LEFT_OUT):
                continue
            texts = [
                text
                for one in record["answers"][language]
                for text in (one.get("text"), *one.get("aliases", ()))
                if isinstance(text, str) and text
            ]
            found.append(Question(str(record["example_id"]), record["queries"][language], texts))
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(
                f'{where}: must have "example_id", and "queries" and "answers" in the languages en '
                f"and {language}"
            ) from error
    if not found:
        raise InputError(f"{path}: no question")
    return found
