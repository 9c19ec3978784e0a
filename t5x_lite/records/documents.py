"""Unlabelled documents: text files, JSON lines, Parquet, Arrow and data sets of the hub.

    for document in read_documents(data_path("c4-train.00000-of-01024.json.gz")):
        document.where, document.text

    *.txt, and any other name            a document a line; or what blank lines divide
    *.jsonl, *.json, *.ndjson            an object a line; its "text", as C4's release has it
    *.parquet, *.arrow, *.feather        the column "text" (extra `tables`)
    hf://NAME[:CONFIG][:SPLIT]           a split of a data set that the package `datasets` loads
    tfds://NAME[:VERSION]                data that TensorFlow Datasets prepared, read in data/

The first two kinds may be compressed, and end in .gz, .zst or .xz then. A template names other
columns: "{title} {content}", or "content" alone. `Groups` reads a table by parts, in any order, as
a shuffle needs it, and of its columns only those that the template names.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from t5x_lite.buckets.paths import DataPath
from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE
from t5x_lite.records.benchmark_files import Row
from t5x_lite.records.compressed import plain_name
from t5x_lite.records.json_lines import read_examples
from t5x_lite.records.lines import read_lines
from t5x_lite.records.table_splits import HUB, HubSplit, column_names, num_groups, read_columns

TFDS = "tfds://"
TEXT = "{text}"
"""The template that applies if none is given."""
TEXTS = (".txt",)
JSON = (".jsonl", ".json", ".ndjson")
TABLES = (".parquet", ".arrow", ".feather")

Kind = Literal["text", "json", "table"]


Shard: TypeAlias = DataPath | HubSplit
"""What documents are read from, here or in a bucket or at the hub."""


class Document(NamedTuple):
    """A text and its place, "file:line" or "file: row 3"."""

    where: str
    text: str


def kind_of(shard: Any) -> Kind:
    """How documents are read from a shard, by its name."""
    if isinstance(shard, HubSplit):
        return "table"
    name = plain_name(shard)
    if str(shard).endswith(TABLES):
        return "table"
    return "json" if name.endswith(JSON) else "text"


def is_named(place: str) -> bool:
    """Whether a place is the name of a data set, and no path."""
    return place.startswith((HUB, TFDS))


def read_documents(
    shard: Shard, *, template: str = TEXT, blocks: bool = False, longest: int = LONGEST_LINE
) -> Iterator[Document]:
    """The documents of a shard, in order; it is read as they are asked for.

    Args:
      shard: a file, or a split of the hub.
      template: the text, with columns in braces; plain text has none.
      blocks: whether blank lines divide the documents of plain text, and no line ends.
      longest: maximum bytes of a line.

    Raises:
      InputError: naming file and line or row: unreadable, damaged, a column is missing or no text,
        or a package is missing.
    """
    if kind_of(shard) == "text":
        yield from _plain(str(shard), blocks=blocks, longest=longest)
        return
    template = as_template(template)
    # A missing field of an object is named below, with the option that names another.
    columns = None if kind_of(shard) == "json" else places(template)
    for row in read_fields(shard, columns=columns, longest=longest):
        yield Document(row.where, text_of(row, template))


def read_fields(
    shard: Shard, *, columns: Sequence[str] | None = None, longest: int = LONGEST_LINE
) -> Iterator[Row]:
    """The objects or rows of a shard.

    Args:
      shard: JSON lines or a table.
      columns: that each must have; a table is read without its others. None reads all there are.
      longest: maximum bytes of a line.

    Raises:
      InputError: as `read_documents`.
    """
    if kind_of(shard) == "json":
        for line in read_examples(str(shard), fields=columns or (), longest=longest):
            yield Row(line.where, line.record)
        return
    yield from read_columns(shard, columns=column_names(shard) if columns is None else columns)


def _plain(path: str, *, blocks: bool, longest: int) -> Iterator[Document]:
    numbered = enumerate(read_lines([path], longest=longest), start=1)
    name = "standard input" if path == "-" else path
    if not blocks:
        for number, line in numbered:
            yield Document(f"{name}:{number}", line)
        return
    filled = itertools.groupby(numbered, key=lambda pair: bool(pair[1].strip()))
    for is_text, lines in filled:
        if is_text:
            found = list(lines)
            yield Document(f"{name}:{found[0][0]}", "\n".join(line for _, line in found))


def text_of(row: Row, template: str) -> str:
    """The text of a row of a table or of an object.

    Raises:
      InputError: one of its columns is missing, null or no text.
    """
    for name in places(template):
        value = row.fields.get(name)
        if isinstance(value, str):
            continue
        if name not in row.fields:
            there = sorted(row.fields) or "nothing"
            raise InputError(
                f'{row.where}: must have "{name}", a string; it has {there}; {_NAME_IT}'
            )
        kind = getattr(value, "kind", "null" if value is None else type(value).__name__)
        raise InputError(f"{row.where}: {name!r} must be a text, got {kind}; {_NAME_IT}")
    if template == TEXT:
        return row.fields["text"]
    return fill(template, row.fields)


_NAME_IT = (
    "name the column of the text by --data.columns.inputs '{COLUMN}' (train, cache) or --text "
    "COLUMN (vocab, embed, pairs)"
)


class Groups:
    """A table by parts: the row groups of Parquet, the batches of Arrow, 1,024 rows of the hub.

    Args:
      shard: of the kind "table".
      template: the text, with columns in braces.
    """

    def __init__(self, shard: Shard, template: str = TEXT):
        self._shard, self._template = shard, as_template(template)

    @functools.cached_property
    def num(self) -> int:
        """How many there are, at least one."""
        return max(1, num_groups(self._shard))

    def texts(self, group: int | None) -> Iterator[bytes]:
        """The texts of a part, or of all parts if it is None, in UTF-8.

        Raises:
          InputError: as `read_documents`.
        """
        columns = places(self._template)
        for row in read_columns(self._shard, columns=columns, group=group):
            yield text_of(row, self._template).encode("utf-8", "replace")


# Templates.

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def as_template(text: str) -> str:
    """The template that an option gives: "content" stands for "{content}".

    Raises:
      InputError: it names no column.
    """
    if text and not _PLACE.search(text):
        return f"{{{text}}}"
    if not places(text):
        raise InputError(f"the text {text!r} must name a column, such as '{{text}}'")
    return text


def fill(template: str, fields: Mapping[str, object]) -> str:
    """The template with the fields in their places.

    Raises:
      InputError: a place names no field, or a brace is not closed.
    """
    return _PLACE.sub(functools.partial(_value, template=template, fields=fields), template)


def _value(match: re.Match[str], *, template: str, fields: Mapping[str, object]) -> str:
    """The text of one place: the field that it names, or a brace."""
    place = match.group()
    if place in ("{{", "}}"):
        return place[0]
    if place in ("{", "}"):
        raise InputError(f"the template {template!r} has a single {place}: write {place * 2}")
    name = match.group(1)
    if name not in fields:
        raise InputError(
            f"the template {template!r} names {name!r}; the fields are {', '.join(fields)}"
        )
    return str(fields[name])


def places(template: str) -> tuple[str, ...]:
    """The names of the fields in a template, in its order, each once."""
    found = (match.group(1) for match in _PLACE.finditer(template))
    return tuple(dict.fromkeys(name for name in found if name is not None))
