"""Texts in files, one a line: plain, or as JSON lines with or without a title and an id.

for record in read_texts("corpus.jsonl"):
    record.where, record.id, record.text      # "corpus.jsonl:1", "4983", "Title The text ..."

texts.txt       every line is a text, also an empty one; its number, from 0, is its id
corpus.jsonl    objects with "text"; a "title" stands before it, as BEIR's documents have it; the
                id is "_id" (BEIR), or else "id", or else the object's number; blank lines are
                passed over

Either may be compressed, and ends in .gz or .zst then.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE
from t5x_lite.records.compressed import plain_name
from t5x_lite.records.json_lines import read_examples
from t5x_lite.records.lines import read_lines

TextFormat = Literal["auto", "text", "jsonl"]

_JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")


class TextRecord(NamedTuple):
    """A text, its id, and where it stands, as "file:line"."""

    where: str
    id: str
    text: str


def read_texts(
    path: str, *, format: TextFormat = "auto", longest: int = LONGEST_LINE
) -> Iterator[TextRecord]:
    """The texts of a file, in order; it is read as they are asked for.

    Args:
      path: a file in UTF-8; "-" is standard input.
      format: "auto" is "jsonl" of a file that is named so (.jsonl, .json, .ndjson), else "text".
      longest: bytes of a line at most.

    Raises:
      InputError: naming file and line: unreadable, not UTF-8, too long, not a JSON object, no
        "text" in it.
    """
    suffix = Path(plain_name(path)).suffix.lower()
    if format == "jsonl" or (format == "auto" and suffix in _JSON_SUFFIXES):
        lines = read_examples(path, fields=("text",), optional=("title",), longest=longest)
        for number, line in enumerate(lines):
            identity = _id(line.record, number=number, where=line.where)
            yield TextRecord(line.where, identity, titled_text(line.record))
        return
    name = "standard input" if path == "-" else path
    for number, text in enumerate(read_lines([path], longest=longest)):
        yield TextRecord(f"{name}:{number + 1}", str(number), text)


def titled_text(record: Mapping[str, Any]) -> str:
    """Title and text of a document, with a space between them."""
    return f"{record.get('title', '')} {record['text']}".strip()


def _id(record: Mapping[str, Any], *, number: int, where: str) -> str:
    found = record.get("_id", record.get("id", number))
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise InputError(f"{where}: the id must be a string or a whole number, got {found!r:.40}")
    return str(found)
