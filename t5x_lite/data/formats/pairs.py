r"""Readers of passages, and of pairs of a query and passages.

Readers of passages with an id and an optional title, and shards of them.

Passages of the published files of collections, one per line:

    for passage in read_passages("collection.tsv.gz"):
        passage.where, passage.id, passage.title, passage.text

    corpus.jsonl       {"_id": "4983", "title": "...", "text": "..."}    BEIR; MIRACL has "docid"
    docs.jsonl         {"id": "4983#0", "contents": "Title\n\nText"}      Pyserini; Mr. TyDi
    psgs_w100.tsv      id TAB text TAB title, with these names in the first line     DPR
    collection.tsv     id TAB text, with or without names                    MS MARCO's passages
    msmarco-docs.tsv   id TAB url TAB title TAB text, with or without names  MS MARCO's documents
    queries.tsv        id TAB text, with or without names, such as qid TAB query
    other.txt          a passage per line; its line number, from 0, is its id
    corpus.parquet     a passage per row, with columns named as the fields of JSON; also Arrow

A first line of column names is a header: one of its fields names the id (id, _id, qid, pid, docid,
query-id, corpus-id, ...), one the text (text, passage, query, contents, body, ...), and others may
be title, url, or columns that are not read. With a header, the columns may have any order. If the
text column is named "text", fields may be quoted, with "" for a quotation mark, as in DPR's files;
in other files a quotation mark is ordinary text. All may be compressed (.gz, .zst).

Source: facebookresearch/DPR dpr/data/retriever_data.py; the README files of MS MARCO's two tasks.

Texts in files, one per line: plain, or passages with or without a title and an id:

for record in read_texts("corpus.jsonl"):
    record.where, record.id, record.text      # "corpus.jsonl:1", "4983", "Title The text ..."

texts.txt       every line is a text, also an empty one; its number, from 0, is its id
corpus.jsonl    objects with "text"; a "title" is prepended to it, as in BEIR; the id is "_id"
                (BEIR), or else "id" or "docid", or else the object's number; blank lines are
                skipped
passages.tsv    fields separated by tabs, as in MS MARCO and DPR (`passages`)

corpus.parquet  rows with the column "text", and optional columns "title" and an id; also Arrow

All but Parquet and Arrow may be compressed, with names that end in .gz, .zst or .xz.

Shard I of N of a file's records, for N hosts:

    share = Share.of_text("2/3")
    share.bounds(1000, whole=64, what="texts")      # (320, 640): complete blocks of 64

A shard is a range of complete blocks, so that each block is the same as on a single host. The
concatenated results of the shards are bitwise equal to the results of a single host.

Pairs of a query and passages: JSON objects, triplets, and natural language inference.

Queries with positive and negative passages, as JSON objects:

{"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

Optional fields are a teacher's scores of the passages, "pos_scores": [9.5, 7.0] and "neg_scores":
[0.25], where null is a missing score, and ids, "pos_ids": ["p7", "p9"] and "neg_ids". Ids identify
a positive among the negatives of another row. A "prompt" is prepended to the query, like an
instruction. It is also prepended to each passage if "type" is one of FlagEmbedding's symmetric
types, "symmetric_sts" or "symmetric_clustering". Other types, such as "normal", "symmetric_class"
and "only_1neg", have no effect: data.layout.negatives sets the number of negatives.

Triplets of a query, a positive and a negative passage, one per line, separated by tabs:

    who wrote Emma TAB Jane Austen wrote Emma. TAB Emma Stone is an actress.

This is the form of MS MARCO's triples.train.small.tsv. Each line is a separate row, even for the
same query. A line of column names, such as query TAB positive TAB negative, is a header and makes
no row.

Source: the README of microsoft/MSMARCO-Passage-Ranking.

Natural language inference, with entailed sentences as positives and contradictions as negatives:

    {"gold_label": "entailment", "sentence1": "A man plays.", "sentence2": "Someone plays."}
    {"gold_label": "contradiction", "sentence1": "A man plays.", "sentence2": "Nobody plays."}

become {"query": "A man plays.", "pos": ["Someone plays."], "neg": ["Nobody plays."]}. The input is
the JSON of SNLI 1.0 and MultiNLI 1.0. Neutral sentences, sentences without a majority ("-") and
premises that entail nothing are skipped. Premises are in the order of their first sentence.

Source: Gao et al. 2021, "SimCSE", section 4; Bowman et al. 2015 and Williams et al. 2018 for files.
"""

import functools
import hashlib
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.object_store import DataPath, data_path
from t5x_lite.data.formats import tables
from t5x_lite.data.formats.benchmark_files import Row
from t5x_lite.data.formats.documents import (
    TEXT,
    Shard,
    as_template,
    kind_of,
    places,
    read_fields,
    text_of,
)
from t5x_lite.data.formats.lines import Line, parse_object, plain_name, read_examples, read_lines
from t5x_lite.data.formats.tables import column_names

_logger = logging.getLogger(__name__)


PassageFormat = Literal["auto", "text", "jsonl", "tsv"]

_SUFFIXES: Mapping[str, PassageFormat] = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
}
_TEXTS = ("text", "contents", "title")
"""Optional string fields of a passage's JSON object."""
_IDS = ("_id", "id", "docid", "pid")
"""Names of the id field; the first name that a passage has is used."""
_ROLES: Mapping[str, str] = {
    **dict.fromkeys(("id", "docid", "pid", "did", "docno", "qid", "topicid", "queryid"), "id"),
    **dict.fromkeys(("passageid", "documentid", "corpusid", "questionid"), "id"),
    **dict.fromkeys(("text", "passage", "content", "contents", "body", "segment"), "text"),
    **dict.fromkeys(("query", "question", "document", "doc", "topic"), "text"),
    **dict.fromkeys(("passagetext", "documenttext", "querytext", "questiontext"), "text"),
    "title": "title",
    "url": "url",
}
"""Role of a column, by the column's name in lower case without "-", "_" and spaces."""
_UNNAMED = {2: ("id", "text"), 4: ("id", "url", "title", "text")}
"""Column roles of tab-separated files without a header, by the number of columns."""
_QUOTED = re.compile(r'"((?:[^"]|"")*)"(?:\t|$)|([^\t]*)(?:\t|$)')


class Passage(NamedTuple):
    """Passage of a collection, with its id and title.

    Attributes:
      where: location, "file:line".
      id: id of the passage in its collection; the line number if the file has no ids.
      title: title; "" if the passage has no title.
      text: text without the title.
    """

    where: str
    id: str
    title: str
    text: str

    @property
    def whole(self) -> str:
        """Title and text of the passage, separated by a space: the input of a model."""
        return f"{self.title} {self.text}".strip()


class Columns(NamedTuple):
    """Columns of a tab-separated file of passages or queries, such as "id" and "text".

    Attributes:
      names: role of each column, in order: "id", "text", "title" or "url"; "" for an unused column.
      named: True if the first line is a header.
      quoted: True if fields may be quoted.
    """

    names: tuple[str, ...]
    named: bool
    quoted: bool = False


def read_passages(
    path: str | Shard,
    *,
    format: PassageFormat = "auto",
    longest: int = LONGEST_LINE,
    template: str = TEXT,
) -> Iterator[Passage]:
    """Read the passages of a file lazily, in order."""
    if kind_of(path) == "table":
        shard = data_path(path) if isinstance(path, str) else path
        yield from _of_table(shard, as_template(template))
        return
    path = str(path)
    kind = format_of(path) if format == "auto" else format
    if kind == "jsonl":
        yield from (passage for _, passage in _of_objects(path, template, longest=longest))
        return
    name = "standard input" if path == "-" else path
    numbered = enumerate(read_lines([path], longest=longest), start=1)
    if kind == "text":
        for number, text in numbered:
            yield Passage(f"{name}:{number}", str(number - 1), "", text)
        return
    first = next(numbered, None)
    if first is None:
        return
    columns = columns_of(first[1], where=f"{name}:1")
    for number, text in numbered if columns.named else itertools.chain([first], numbered):
        if text.strip():
            yield of_line(text, columns, where=f"{name}:{number}")


def _of_objects(path: str, template: str, *, longest: int) -> Iterator[tuple[Line, Passage]]:
    template = as_template(template)
    texts = {"fields": (), "optional": _TEXTS}
    if template != TEXT:
        texts = {"fields": places(template), "optional": ()}
    for number, line in enumerate(read_examples(path, **texts, longest=longest)):
        yield line, of_object(_with_text(line, template), number=number)


def _of_table(shard: Shard, template: str) -> Iterator[Passage]:
    there = column_names(shard)
    needed = places(template)
    if template == TEXT:
        needed = ("contents",) if "text" not in there and "contents" in there else ("text",)
    also = {*_IDS, *(("title",) if template == TEXT else ())}
    columns = [*needed, *(name for name in there if name in also)]
    for number, row in enumerate(read_fields(shard, columns=[*dict.fromkeys(columns)])):
        if template == TEXT:
            text_of(row, f"{{{needed[0]}}}")  # raises InputError if it is not a text
        fields = {name: value for name, value in row.fields.items() if value is not None}
        yield of_object(_with_text(Line(row.where, fields), template), number=number)


def _with_text(line: Line, template: str) -> Line:
    if template == TEXT:
        return line
    text = text_of(Row(line.where, line.record), template)
    ids = {name: line.record[name] for name in _IDS if name in line.record}
    return Line(line.where, {**ids, "text": text})


def format_of(path: str) -> PassageFormat:
    """Return the format of a file of passages, by the suffix of its name."""
    return _SUFFIXES.get(Path(plain_name(path)).suffix.lower(), "text")


def line_reader(path: str) -> Callable[[bytes, str], Passage | None]:
    """Return a function that parses single lines of a file of passages, in any order.

    The function takes a line and its location "file:line". It returns None for a header line, and a
    passage with the id "" if the file has no ids.
    """
    kind = format_of(path)

    @functools.cache
    def columns() -> Columns:
        first = next(iter(read_lines([path], longest=LONGEST_LINE)), "")
        return columns_of(first, where=f"{path}:1")

    def passage(line: bytes, where: str) -> Passage | None:
        if kind == "jsonl":
            found = parse_object(line, where=where, fields=(), optional=_TEXTS)
            return of_object(found)
        text = line.decode()
        if kind == "text":
            return Passage(where, "", "", text)
        if columns().named and named_columns(text) == columns():
            return None
        return of_line(text, columns(), where=where)

    return passage


def of_object(line: Line, *, number: int | str = "") -> Passage:
    """Return the passage of a JSON object with "text", or with "contents" as in Pyserini.

    If the first line of "contents" is followed by a blank line, it is the title.
    """
    record = line.record
    if "text" not in record and "contents" not in record:
        raise InputError(
            f'{line.where}: must have "text", a string; it has {sorted(record) or "nothing"}'
        )
    identity = next((record[name] for name in _IDS if name in record), number)
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise InputError(
            f"{line.where}: the id must be a string or a whole number, got {identity!r:.40}"
        )
    title, text = record.get("title", ""), record.get("text")
    if text is None:
        text = record["contents"]
        first, blank, rest = text.partition("\n\n")
        if blank and not title and "\n" not in first:
            title, text = first, rest
    return Passage(line.where, str(identity), title, text)


def columns_of(first: str, *, where: str) -> Columns:
    """Return the columns of a tab-separated file, given its first line."""
    if (columns := named_columns(first)) is not None:
        return columns
    number = first.count("\t") + 1
    if number in _UNNAMED:
        return Columns(_UNNAMED[number], False)
    raise InputError(
        f"{where}: the first line has {number} columns, but must be id TAB text, or id TAB url TAB "
        "title TAB text, or column names such as id TAB text TAB title"
    )


def of_line(line: str, columns: Columns, *, where: str) -> Passage:
    """Return the passage in one line of a tab-separated file, given the columns of the file."""
    fields = _fields(line) if columns.quoted and '"' in line else line.split("\t")
    if len(fields) == len(columns.names) - 1 and columns.names[-1] == "title":
        fields = [*fields, ""]
    if len(fields) != len(columns.names):
        raise InputError(
            f"{where}: must have {len(columns.names)} columns, "
            f"{' TAB '.join(name or '(not read)' for name in columns.names)}, got "
            f"{len(fields)}: {line[:60]!r}"
        )
    found = dict(zip(columns.names, fields, strict=True))
    return Passage(where, found["id"], found.get("title", ""), found["text"])


def titled_text(record: Mapping[str, Any]) -> str:
    """Return the title and the text of a JSON object, separated by a space."""
    return Passage("", "", record.get("title", ""), record["text"]).whole


def named_columns(line: str) -> Columns | None:
    """Return the columns of a tab-separated file if `line` is a header; None if `line` is data.

    A header names one id column, one text column, and at most one title and one url.
    """
    names = [name.strip().strip('"').lower() for name in line.lstrip("\ufeff").split("\t")]
    roles = [_ROLES.get(re.sub(r"[-_ ]", "", name), "") for name in names]
    known = [role for role in roles if role]
    if not {"id", "text"} <= {*known} or len({*known}) < len(known):
        return None
    return Columns(tuple(roles), True, quoted=names[roles.index("text")] == "text")


def _fields(line: str) -> Sequence[str]:
    """Return the fields of a tab-separated line with quotes, or () if a quote is not closed."""
    found, place = [], 0
    while True:
        match = _QUOTED.match(line, place)
        if match is None or (match[2] or "").startswith('"'):
            return ()
        found.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        if not line[place : match.end()].endswith("\t"):
            return found
        place = match.end()


class TextRecord(NamedTuple):
    """Text to encode, with its id, its location "file:line", and the adapter to encode it with."""

    where: str
    id: str
    text: str
    adapter: str = ""


def read_texts(
    path: str | Shard,
    *,
    format: PassageFormat = "auto",
    longest: int = LONGEST_LINE,
    template: str = TEXT,
) -> Iterator[TextRecord]:
    """Read the texts of a file lazily, in order; a title and its text are joined."""
    kind = format_of(str(path)) if format == "auto" else format
    if kind_of(path) == "table":
        kind = "jsonl"
    elif kind == "jsonl":
        for line, passage in _of_objects(str(path), template, longest=longest):
            adapter = line.record.get("adapter", "")
            if not isinstance(adapter, str):
                raise InputError(
                    f'{line.where}: "adapter" must be a string, the name of an adapter'
                )
            yield TextRecord(passage.where, passage.id, passage.whole, adapter)
        return
    for passage in read_passages(path, format=kind, longest=longest, template=template):
        text = passage.text if kind == "text" else passage.whole
        yield TextRecord(passage.where, passage.id, text)


class Share(NamedTuple):
    """Range of records that a command processes, selected by --shard I/N.

    Attributes:
      number: number of the shard, from 1.
      of: total number of shards.
    """

    number: int
    of: int

    @classmethod
    def of_text(cls, text: str) -> "Share":
        """Parse the value of --shard, such as "1/4"."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        share = cls(*map(int, found.groups())) if found else None
        if share is None or not 1 <= share.number <= share.of:
            raise InputError(
                f"--shard is {text!r}, but must be I/N with I from 1 to N, such as 1/4"
            )
        return share

    def bounds(self, total: int, *, whole: int, what: str) -> tuple[int, int]:
        """Return the range [first, end) of the record numbers in this shard.

        Args:
          total: number of records of the file.
          whole: number of records per block; blocks are not divided between shards.
          what: noun for the records in messages, such as "texts".
        """
        blocks = -(-total // whole)
        if blocks < self.of:
            raise InputError(
                f"--shard {self.number}/{self.of} requires {self.of} blocks of {whole} {what}, but "
                f"{total} {what} make only {blocks} blocks; use {blocks} shards or fewer"
            )
        first, end = (
            blocks * number // self.of * whole for number in (self.number - 1, self.number)
        )
        return first, min(end, total)


SCORES = ("pos_scores", "neg_scores")
"""JSON fields with a teacher's scores of the positives and of the negatives."""
IDS = ("pos_ids", "neg_ids")
"""JSON fields with the ids of the positives and of the negatives."""

_PROMPTED = ("symmetric_sts", "symmetric_clustering")
"""Values of the field "type" for which the prompt is also prepended to passages."""

_LARGEST = 3e38  # about the largest float32


class Pairs(NamedTuple):
    """Query with its positive and negative passages.

    Attributes:
      query: text of the query, with its prompt.
      positives: passages that answer the query.
      negatives: passages that do not answer the query.
      positive_scores: a teacher's scores of the positives, NaN if missing; None without scores.
      negative_scores: a teacher's scores of the negatives, NaN if missing; None without scores.
      positive_ids: ids of the positives; None if unknown.
      negative_ids: ids of the negatives; None if unknown.
    """

    query: str
    positives: Sequence[str]
    negatives: Sequence[str] = ()
    positive_scores: Sequence[float] | None = None
    negative_scores: Sequence[float] | None = None
    positive_ids: Sequence[str] | None = None
    negative_ids: Sequence[str] | None = None


def from_json(text: str) -> Pairs:
    """Parse a query and its passages from the JSON that `to_json` returns."""
    record = json.loads(text)
    positive, negative = (_scores(record.get(name)) for name in SCORES)
    ids = [record.get(name) for name in IDS]
    return Pairs(record["query"], record["pos"], record["neg"], positive, negative, *ids)


def _scores(found: Sequence[Any] | None) -> list[float] | None:
    return None if found is None else [math.nan if x is None else float(x) for x in found]


def to_json(pairs: Pairs) -> str:
    """Return a query and its passages as JSON for `from_json`."""
    record: dict[str, Any] = {
        "query": pairs.query,
        "pos": [*pairs.positives],
        "neg": [*pairs.negatives],
    }
    for name, scores in zip(SCORES, (pairs.positive_scores, pairs.negative_scores), strict=True):
        if scores is not None:
            record[name] = [None if math.isnan(score) else score for score in scores]
    for name, ids in zip(IDS, (pairs.positive_ids, pairs.negative_ids), strict=True):
        if ids is not None:
            record[name] = [*ids]
    return json.dumps(record)


class Answers:
    """Index of the positive passages of each query, collected from all lines of a file.

    The same query may be on several lines, and a negative on one line may be a positive on another
    line.
    """

    def __init__(self, lines: Iterable[Pairs]):
        """Build the index from the lines of a file."""
        self._known: dict[bytes, set[bytes]] = {}
        for one in lines:
            known = self._known.setdefault(_digest(_folded(one.query)), set())
            known.update(_digest(f"text {_folded(text)}") for text in one.positives)
            known.update(_digest(f"id {name}") for name in one.positive_ids or ())

    def of(self, pairs: Pairs) -> Callable[[str, str | None], bool]:
        """Return a function (text, id) -> True if this passage is a positive of the query."""
        known = self._known.get(_digest(_folded(pairs.query)), set())

        def is_answer(text: str, name: str | None) -> bool:
            is_named = name is not None and _digest(f"id {name}") in known
            return is_named or _digest(f"text {_folded(text)}") in known

        return is_answer


def without_answers(pairs: Pairs, answers: Answers | None = None) -> Pairs:
    """Drop negatives that have the id or the text of a positive of the query.

    Two texts are equal if they differ only in case and white space.

    Args:
      pairs: query with its passages.
      answers: positives of all queries; None to use only the positives of `pairs`.
    """
    if not pairs.negatives:
        return pairs
    is_answer = (answers or Answers([pairs])).of(pairs)
    ids = pairs.negative_ids or [None] * len(pairs.negatives)
    kept = [
        place
        for place, (text, name) in enumerate(zip(pairs.negatives, ids, strict=True))
        if not is_answer(text, name)
    ]
    if len(kept) == len(pairs.negatives):
        return pairs
    scores, named = pairs.negative_scores, pairs.negative_ids
    return pairs._replace(
        negatives=[pairs.negatives[place] for place in kept],
        negative_scores=None if scores is None else [scores[place] for place in kept],
        negative_ids=None if named is None else [named[place] for place in kept],
    )


def without_any_answers(lines: Iterable[Pairs]) -> list[Pairs]:
    """Drop negative passages that are positives of the same query on any line of a file."""
    lines = [*lines]
    answers = Answers(lines)
    return [without_answers(one, answers) for one in lines]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def titled(passage: Passage) -> str:
    """Return a passage's title as query and its text as positive, in JSON; "" if one is missing.

    The title is removed from the start of the text.
    """
    title = passage.title.strip()
    text = passage.text.strip().removeprefix(title).strip()
    return to_json(Pairs(title, [text])) if title and text else ""


def same_text(text: str) -> Pairs:
    """Return a pair with a text as both query and positive."""
    return Pairs(text, [text])


def checked(record: Mapping[str, Any], where: str) -> str:
    """Check a record with "query", "pos" and "neg", and convert it to the JSON of `to_json`."""
    if not isinstance(record.get("query"), str):
        raise InputError(
            f'{where}: must have "query", a string; it has {sorted(record) or "nothing"}'
        )
    lists = {name: record.get(name, []) for name in ("pos", "neg")}
    for name, found in lists.items():
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise InputError(f'{where}: "{name}" must be a list of strings')
    if not lists["pos"]:
        raise InputError(f'{where}: "pos" must have a passage that answers the query')
    prompt = record.get("prompt")
    if not isinstance(prompt, str | None):
        raise InputError(f'{where}: "prompt" must be a string, got {prompt!r}')
    positive, negative = (
        _checked_scores(record, name, texts, where)
        for name, texts in zip(SCORES, lists.values(), strict=True)
    )
    named, unnamed = (
        _checked_ids(record, name, texts, where)
        for name, texts in zip(IDS, lists.values(), strict=True)
    )
    kind = record.get("type")
    if not isinstance(kind, str | None):
        raise InputError(f'{where}: "type" must be a string, got {kind!r}')
    before = prompt or ""
    texts = [lists["pos"], lists["neg"]]
    if kind in _PROMPTED:
        texts = [[before + text for text in each] for each in texts]
    return to_json(Pairs(before + record["query"], *texts, positive, negative, named, unnamed))


def _checked_ids(
    record: Mapping[str, Any], name: str, texts: Sequence[str], where: str
) -> list[str] | None:
    """Check and return the ids of passages in a JSON object; None if the object has no ids."""
    found = record.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != len(texts):
        raise InputError(
            f'{where}: "{name}" must be a list of {len(texts)} ids, one for each passage'
        )
    for one in found:
        if type(one) not in (str, int):
            raise InputError(
                f'{where}: "{name}" must contain only strings or whole numbers, got {one!r}'
            )
    return [str(one) for one in found]


def _checked_scores(
    record: Mapping[str, Any], name: str, texts: Sequence[str], where: str
) -> list[float] | None:
    """Check and return a teacher's scores of passages; None if the object has no scores."""
    found = record.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != len(texts):
        raise InputError(
            f'{where}: "{name}" must be a list of {len(texts)} numbers, one for each passage'
        )
    for score in found:
        right = type(score) in (int, float) and abs(score) < _LARGEST
        if score is not None and not right:
            raise InputError(f'{where}: "{name}" must contain only numbers or null, got {score!r}')
    return _scores(found)


_POSITIVE = r"pos(itive)?([-_ ]\w+)?|passage|\w+[-_ ]pos(itive)?"
_NEGATIVE = r"neg(ative)?([-_ ]\w+)?|\w+[-_ ]neg(ative)?"
_HEADER = re.compile(
    rf'"?(query|question|anchor)([-_ ]text)?"?\t"?({_POSITIVE})"?\t"?({_NEGATIVE})"?', re.IGNORECASE
)


def checked_triplet(line: str, where: str) -> str:
    """Convert a tab-separated line of query, positive and negative to JSON; "" for a header."""
    texts = [text.strip() for text in line.split("\t")]
    if _HEADER.fullmatch("\t".join(texts)):
        return ""
    if len(texts) != 3 or not all(texts):
        raise InputError(
            f"{where}: the line must be query TAB positive passage TAB negative passage, got "
            f"{line[:60]!r}"
        )
    query, positive, negative = texts
    return to_json(Pairs(query, [positive], [negative]))


LABELS = ("entailment", "neutral", "contradiction", "-")
_EXPECTED = (
    '*train*.jsonl of SNLI or MultiNLI, objects with "gold_label", "sentence1" and "sentence2"'
)


def nli_splits(directory: str) -> tuple[str, ...]:
    """Return the names of the splits that an NLI directory has files for."""
    return tuple(split_files(directory))


def read_nli_pairs(directory: str, split: str) -> list[Pairs]:
    """Return the premises of an NLI split as queries with positives and negatives."""
    return pairs_of(split_files(directory)[split])


def split_files(directory: str) -> dict[str, list[DataPath]]:
    """Return the JSON Lines files of each split of an NLI directory."""
    return tables.split_files(directory, suffix=".jsonl", expected=_EXPECTED)


def pairs_of(files: Sequence[DataPath]) -> list[Pairs]:
    """Return the premises of NLI files as queries with positives and negatives."""
    answers: dict[str, tuple[list[str], list[str]]] = {}
    for file in files:
        for line in read_examples(str(file), fields=("gold_label", "sentence1", "sentence2")):
            label, premise, other = (
                line.record[name] for name in ("gold_label", "sentence1", "sentence2")
            )
            if label not in LABELS:
                raise InputError(
                    f'{line.where}: "gold_label" must be one of {", ".join(LABELS)}: got {label!r}'
                )
            if label in ("entailment", "contradiction"):
                both = answers.setdefault(premise, ([], []))
                own = both[label == "contradiction"]
                if other not in own:
                    own.append(other)
    found = [
        Pairs(premise, entailed, [text for text in against if text not in entailed])
        for premise, (entailed, against) in answers.items()
        if entailed
    ]
    if not found:
        raise InputError(
            f"{', '.join(map(str, files))}: no premise has a sentence labeled entailment"
        )
    _logger.info(
        "read %d premises, %d of them without an entailed sentence, which are skipped",
        len(answers),
        len(answers) - len(found),
    )
    return found
