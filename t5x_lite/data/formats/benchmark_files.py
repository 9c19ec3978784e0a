"""Readers of benchmark files: rows with their location, and tagged sentences.

Rows of the files of benchmarks and users, with their location in the file:

    for row in read_tsv(Path("GLUE/RTE/dev.tsv"), columns=("sentence1", "label")):
        row.where, row.fields            # "GLUE/RTE/dev.tsv:2", {"sentence1": ..., "label": ...}

`read_tsv` reads GLUE's TSV, where a quotation mark is an ordinary character. `read_csv` reads CSV
and TSV written by spreadsheets (RFC 4180): an entry in quotation marks may hold separators, line
ends and doubled quotation marks. `read_jsonl` reads SuperGLUE's JSON lines, and `read_squad` reads
SQuAD's JSON file. Any error raises InputError with file and line.

Sentences with a tag for each word, in CoNLL's columns or JSON lines:

    EU NNP I-NP I-ORG               {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}
    rejects VBZ I-VP O

    read_conll(Path("eng.train"))   read_tagged_jsonl(Path("train.jsonl"))

Columns are separated by spaces or tabs; the word is the first column, and its tag is the last. A
blank line ends a sentence, and so does a line that begins with -DOCSTART-. The field of the tags
may be named "ner_tags", as in `datasets`, and may contain numbers. Any error raises InputError with
file and line.
"""

import codecs
import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE, without_bom
from t5x_lite.core.object_store import DataPath
from t5x_lite.data.formats import lines as json_lines
from t5x_lite.data.formats.lines import LONGEST_COLUMNS, open_text, read_lines, read_whole

_logger = logging.getLogger(__name__)

_NAMED_LINES = 5
_CSV_BYTES = 1 << 16
"""Minimum bytes of a CSV file that are parsed at a time."""
_LINE_END = re.compile(r"\r\n|\n|\r")


class Row(NamedTuple):
    """Row of a file: its entries by column name, and its location, "file:line"."""

    where: str
    fields: dict[str, Any]


def read_tsv(
    file: DataPath,
    *,
    columns: Sequence[str],
    header: Sequence[str] = (),
    skip_incomplete: bool = False,
) -> list[Row]:
    """Return the rows of a TSV file without quoting, such as GLUE's; skip blank lines.

    Args:
      file: path of the file.
      columns: names of columns that must exist.
      header: column names, for a file without a header line.
      skip_incomplete: True to skip rows with too few columns with a warning.
    """
    names, rows, skipped = list(header), [], []
    for number, line in enumerate(_bytes(file).split(b"\n"), start=1):
        try:
            entries = line.decode("utf-8").rstrip("\r").split("\t")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}:{number}: not UTF-8: convert the file to UTF-8") from error
        if not names:
            names = entries
            _check_header(names, columns, file=file)
        elif entries != [""]:
            if len(entries) < len(names) and skip_incomplete:
                skipped.append(number)
                continue
            _check_width(entries, names, where=f"{file}:{number}")
            rows.append(Row(f"{file}:{number}", dict(zip(names, entries, strict=True))))
    if skipped:
        lines = ", ".join(map(str, skipped[:_NAMED_LINES]))
        more = ", ..." if len(skipped) > _NAMED_LINES else ""
        _logger.warning(
            "%s: skipping %d rows with too few columns (lines %s%s)",
            file,
            len(skipped),
            lines,
            more,
        )
    return rows


def _bytes(file: DataPath) -> bytes:
    """Return the content of a file without its byte-order mark."""
    try:
        return read_whole(file).removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error


def _check_header(names: Sequence[str], columns: Sequence[str], *, file: DataPath) -> None:
    if not names:
        raise InputError(f"{file}: the file is empty; its first line must name the columns")
    missing = [column for column in columns if column not in names]
    if missing:
        raise InputError(
            f"{file}:1: the header lacks {', '.join(missing)}; the columns are {', '.join(names)}"
        )
    twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
    if twice and set(twice) & set(columns):
        raise InputError(f"{file}:1: the header has column {', '.join(twice)} more than once")


def _check_width(entries: Sequence[str], names: Sequence[str], *, where: str) -> None:
    if len(entries) != len(names):
        raise InputError(
            f"{where}: the line has {len(entries)} columns, but the header has {len(names)}"
        )


def read_csv(
    file: DataPath, *, columns: Sequence[str], separator: str = ",", quoting: bool = True
) -> Iterator[Row]:
    """Yield the rows of a CSV file with a header and quoting as in RFC 4180; skip blank lines."""
    names: list[str] = []
    for number, entries in _all_records(file, separator=separator, quoting=quoting):
        where = f"{file}:{number}"
        if entries == [""]:
            continue
        if not names:
            names = entries
            _check_header(names, columns, file=file)
        else:
            _check_width(entries, names, where=where)
            yield Row(where, dict(zip(names, entries, strict=True)))
    if not names:
        _check_header([], columns, file=file)


def _all_records(
    file: DataPath, *, separator: str, quoting: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the entries of each record of a CSV file, read lazily."""
    try:
        with open_text(file) as stream:
            lines = without_bom(json_lines.lines_of(stream, name=str(file), longest=LONGEST_LINE))
            for first, content in _whole_records(lines, file=file, quoting=quoting):
                try:
                    text = content.decode("utf-8")
                except UnicodeDecodeError as error:
                    number = first + content.count(b"\n", 0, error.start)
                    raise InputError(
                        f"{file}:{number}: not UTF-8: convert the file to UTF-8"
                    ) from error
                yield from _records(
                    text, file=file, separator=separator, quoting=quoting, first=first
                )
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error


def _whole_records(
    lines: Iterable[bytes], *, file: DataPath, quoting: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of complete CSV records, and the number of each block's first line."""
    block, size, marks, first = [], 0, 0, 1
    for number, line in enumerate(lines, start=1):
        block.append(line)
        size += len(line)
        marks += line.count(b'"') if quoting else 0
        if marks % 2 == 0 and size >= _CSV_BYTES:
            yield first, b"".join(block)
            block, size, marks, first = [], 0, 0, number + 1
        elif size > LONGEST_LINE:
            raise InputError(
                f"{file}:{first}: a quotation mark near this line is not closed within "
                f"{LONGEST_LINE} bytes; close the quotation, or read the file without quoting "
                "(--data.columns.quoting False)"
            )
    yield first, b"".join(block)


def _records(
    text: str, *, file: DataPath, separator: str, quoting: bool, first: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the entries of each CSV record of a text.

    The csv module is not used, because it does not report misplaced quotation marks.
    """
    plain = re.escape(separator) + r"\r\n" + ('"' if quoting else "")
    quoted = r'"([^"]*(?:""[^"]*)*)"|' if quoting else "()(?!)|"
    entry = re.compile(rf"(?:{quoted}([^{plain}]*))({re.escape(separator)}|\r\n|\n|\r|\Z)")
    place, line, start, entries = 0, first, first, []
    while place < len(text) or entries:
        if not entries:  # a line without quotation marks is a record
            end_of_line = _LINE_END.search(text, place)
            stop = end_of_line.start() if end_of_line else len(text)
            if not quoting or text.find('"', place, stop) < 0:
                yield line, text[place:stop].split(separator)
                place, line = end_of_line.end() if end_of_line else stop, line + 1
                start = line
                continue
        match = entry.match(text, place)
        if match is None:
            raise InputError(
                f"{file}:{line}: an unquoted entry contains a quotation mark; double the mark and "
                "quote the entry, or read the file without quoting (--data.columns.quoting False)"
            )
        inside, outside, end = match.groups()
        entries.append(outside if inside is None else inside.replace('""', '"'))
        line += len(_LINE_END.findall(match.group()))
        place = match.end()
        if end != separator:
            yield start, entries
            start, entries = line, []


def read_jsonl(
    file: DataPath, *, fields: Sequence[str], numbers: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield the objects of a JSON Lines file as rows; skip blank lines."""
    for line in json_lines.read_examples(str(file), fields=fields):
        for name in numbers:
            if name in line.record:
                line.record[name] = whole_number(line.record[name])
            json_lines.check_number(line, name)
        yield Row(line.where, line.record)


def whole_number(entry: Any) -> Any:
    """Convert a string of digits to a number, such as "7" to 7; return other values unchanged."""
    is_digits = isinstance(entry, str) and entry.isascii() and entry.isdigit() and len(entry) <= 10
    return int(entry) if is_digits else entry


def read_squad(file: DataPath, *, unanswerable: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the questions of a JSON file in SQuAD's format.

    Each question has "id", "title", "context", "question" and "answers" with the lists "text" and
    "answer_start", which are empty if the file has no answers.
    """
    content = json_lines.parse_json(_bytes(file), where=str(file))
    seen: dict[str, str] = {}
    for where, fields in _questions(file, content):
        if fields["id"] in seen:
            raise InputError(
                f"{where}: the id {fields['id']!r} occurs twice, first in {seen[fields['id']]}"
            )
        seen[fields["id"]] = where.removeprefix(f"{file}: ")
        if unanswerable:
            _check_impossible(fields, where=where)
        else:
            del fields["is_impossible"]
        yield fields


def _check_impossible(fields: Mapping[str, Any], *, where: str) -> None:
    if not isinstance(fields["is_impossible"], bool):
        raise InputError(
            f'{where}: the question must have "is_impossible", true or false; use a file of SQuAD '
            "2.0"
        )
    if fields["is_impossible"] == bool(fields["answers"]["text"]):
        has = "has answers" if fields["is_impossible"] else "has no answer"
        raise InputError(
            f'{where}: "is_impossible" is {str(fields["is_impossible"]).lower()}, but the question '
            f"{has}; correct one of the two"
        )


def _questions(file: DataPath, content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each question with its location, such as "file: data[0].paragraphs[0].qas[0]"."""
    for article_place, article in _items(content, "data", where=f"{file}: "):
        title = article.get("title", "")
        for place, paragraph in _items(article, "paragraphs", where=f"{article_place}."):
            context = _string(paragraph, "context", where=place)
            for where, qa in _items(paragraph, "qas", where=f"{place}."):
                found = [
                    (
                        _string(answer, "text", where=answer_place),
                        _start(answer, where=answer_place),
                    )
                    for answer_place, answer in _items(
                        {"answers": qa.get("answers", [])}, "answers", where=f"{where}."
                    )
                ]
                yield (
                    where,
                    {
                        "id": _string(qa, "id", where=where),
                        "title": title,
                        "context": context,
                        "question": _string(qa, "question", where=where),
                        "is_impossible": qa.get("is_impossible"),
                        "answers": {
                            "text": [text for text, _ in found],
                            "answer_start": [start for _, start in found],
                        },
                    },
                )


def _items(node: Any, name: str, *, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    items = node.get(name) if isinstance(node, dict) else None
    if not isinstance(items, list):
        raise InputError(
            f"{where}{name}: the field must be a list; use a file in the format of SQuAD"
        )
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise InputError(f"{where}{name}[{number}]: the list entry must be a JSON object")
        yield f"{where}{name}[{number}]", item


def _start(answer: Mapping[str, Any], *, where: str) -> int:
    """Return the position of an answer in its context, in characters; -1 if unknown."""
    start = answer.get("answer_start", -1)
    if type(start) is not int:
        raise InputError(f'{where}: "answer_start" must be a whole number, got {start!r}')
    return start


def _string(node: Mapping[str, Any], name: str, *, where: str) -> str:
    if not isinstance(node.get(name), str):
        raise InputError(f'{where} must have "{name}", a string')
    return node[name]


def read_dpr(file: DataPath, split: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of definite pronoun resolution (DPR), five lines per record.

    The lines are the sentence, the pronoun, the two candidates with a comma between them, the
    correct candidate, and a blank line.
    """
    del split  # all have answers
    try:
        lines = [line.strip() for line in _bytes(file).decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8: convert the file to UTF-8") from error
    for start in range(0, len(lines), 5):
        sentence, pronoun, candidates, answer = [*lines[start : start + 4], "", "", ""][:4]
        if not sentence:
            return
        names = [name.strip() for name in candidates.split(",")]
        if not pronoun or len(names) != 2 or answer not in names:
            raise InputError(
                f"{file}:{start + 1}: an example must have five lines: a sentence, a pronoun, two "
                "candidates separated by a comma, the correct candidate, and a blank line"
            )
        yield {
            "sentence": sentence,
            "pronoun": pronoun,
            "candidates": names,
            "label": names.index(answer),
        }


def numbered(rows: Iterable[Row], *, column: str) -> Iterator[tuple[Row, int]]:
    """Yield each row with a unique number: the number in a column, or the index of the row."""
    seen: dict[int, str] = {}
    for count, row in enumerate(rows):
        number = count
        if column in row.fields:
            entry = str(row.fields[column])
            if not (entry.isascii() and entry.isdigit() and len(entry) < 10):
                raise InputError(
                    f"{row.where}: column {column} must be a whole number, got {entry[:40]!r}"
                )
            number = int(entry)
        if number in seen:
            raise InputError(
                f"{row.where}: {column} {number} occurs twice, first in {seen[number]}"
            )
        seen[number] = row.where
        yield row, number


def label_index(row: Row, column: str, labels: Sequence[str]) -> int:
    """Return the index of a row's label in the list `labels`."""
    if column not in row.fields:
        raise InputError(
            f"{row.where}: the column {column} is missing; only a test split may lack it"
        )
    label = str(row.fields[column])
    if label not in labels:
        raise InputError(
            f"{row.where}: column {column} is {label!r}, but must be one of {', '.join(labels)}"
        )
    return labels.index(label)


_DOCUMENT = "-DOCSTART-"
_COLUMNS = re.compile(r"[ \t]+")
_TAGS = ("tags", "ner_tags")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentence:
    """Sentence of a tagging data set: its words, and a tag for each word if tags are known.

    Attributes:
      words: words, exactly as in the file.
      tags: one tag per word; None in a file without tags.
      file: path of the file.
      line: line number of the first word, from 1.
      is_column: True if the file has one word per line.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    file: str
    line: int
    is_column: bool = True

    def where(self, place: int = 0) -> str:
        """Return the location of a word, "file:line"."""
        return f"{self.file}:{self.line + place * self.is_column}"


def read_conll(file: DataPath, *, may_lack_tags: bool = False) -> Iterator[Sentence]:
    """Yield the tagged sentences of a CoNLL file, which has one word per line."""
    rows: list[list[str]] = []
    number = 0
    for number, line in enumerate(read_lines([str(file)], longest=LONGEST_COLUMNS), start=1):
        columns = _COLUMNS.split(line.strip(" \t"))
        if columns == [""] or columns[0] == _DOCUMENT:
            yield from _sentence(rows, str(file), number, may_lack_tags=may_lack_tags)
            rows = []
        else:
            rows.append(columns)
    yield from _sentence(rows, str(file), number + 1, may_lack_tags=may_lack_tags)


def _sentence(
    rows: Sequence[Sequence[str]], file: str, end: int, *, may_lack_tags: bool
) -> Iterator[Sentence]:
    if not rows:
        return
    first = end - len(rows)
    bare = [place for place, columns in enumerate(rows) if len(columns) == 1]
    if bare and not (may_lack_tags and len(bare) == len(rows)):
        word = rows[bare[0]][0]
        raise InputError(
            f"{file}:{first + bare[0]}: the word {word[:40]!r} has no tag; a line must have a word "
            "in its first column and a tag in its last column"
        )
    tags = None if bare else tuple(columns[-1] for columns in rows)
    for place, tag in enumerate(tags or ()):
        if tag.split() != [tag]:
            raise InputError(
                f"{file}:{first + place}: a tag must be one word without spaces, got {tag[:40]!r}"
            )
    words = tuple(columns[0] for columns in rows)
    yield Sentence(words=words, tags=tags, file=file, line=first)


def read_tagged_jsonl(file: DataPath, *, may_lack_tags: bool = False) -> Iterator[Sentence]:
    """Yield the tagged sentences of a JSON Lines file; white space in a word becomes one space."""
    for row in read_jsonl(file, fields=()):
        words = row.fields.get("tokens")
        if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
            raise InputError(f'{row.where}: must have "tokens", a list of at least one word')
        tags = next((row.fields[name] for name in _TAGS if name in row.fields), None)
        if tags is None and not may_lack_tags:
            raise InputError(f'{row.where}: must have "tags", a list of as many tags as "tokens"')
        name, _, line = row.where.rpartition(":")
        yield Sentence(
            words=tuple(" ".join(word.split()) for word in words),
            tags=None if tags is None else _checked(row, tags, len(words)),
            file=name,
            line=int(line),
            is_column=False,
        )


def _checked(row: Row, tags: Any, number: int) -> tuple[str, ...]:
    """Return the tags of a sentence as strings; raise InputError if a tag is invalid."""
    if not isinstance(tags, list):
        raise InputError(f"{row.where}: the tags must be a list, got {json.dumps(tags)[:40]}")
    if len(tags) != number:
        raise InputError(f"{row.where}: the sentence has {number} tokens, but {len(tags)} tags")
    for tag in tags:
        is_word = isinstance(tag, str) and len(tag.split()) == 1 and tag.split()[0] == tag
        if not is_word and type(tag) is not int:
            raise InputError(
                f"{row.where}: a tag must be a word or a number, got {json.dumps(tag)[:40]}"
            )
    return tuple(map(str, tags))
