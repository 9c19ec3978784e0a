"""Texts in files, one a line: plain, or passages with or without a title and an id.

for record in read_texts("corpus.jsonl"):
    record.where, record.id, record.text      # "corpus.jsonl:1", "4983", "Title The text ..."

texts.txt       every line is a text, also an empty one; its number, from 0, is its id
corpus.jsonl    objects with "text"; a "title" stands before it, as BEIR's documents have it; the
                id is "_id" (BEIR), or else "id" or "docid", or else the object's number; blank
                lines are passed over
passages.tsv    fields with tabs between them, as MS MARCO and DPR have them (`passages`)

corpus.parquet  rows with the columns "text", and "title" and an id if they have them; also Arrow

Each but the last may be compressed, and ends in .gz, .zst or .xz then.
"""

from collections.abc import Iterator
from typing import NamedTuple

from t5x_lite.files import LONGEST_LINE
from t5x_lite.records.documents import TEXT, Shard, kind_of
from t5x_lite.records.passages import PassageFormat, format_of, read_passages


class TextRecord(NamedTuple):
    """A text, its id, and where it stands, as "file:line"."""

    where: str
    id: str
    text: str


def read_texts(
    path: str | Shard,
    *,
    format: PassageFormat = "auto",
    longest: int = LONGEST_LINE,
    template: str = TEXT,
) -> Iterator[TextRecord]:
    """The texts of a file, in order; it is read as they are asked for.

    Args:
      path: a file in UTF-8, a table or a split of the hub; "-" is standard input.
      format: "auto" goes by the name: .jsonl, .json, .ndjson; .tsv; else "text".
      longest: bytes of a line at most.
      template: as of `passages.read_passages`.

    Raises:
      InputError: naming file and line; see `passages.read_passages`.
    """
    kind = format_of(str(path)) if format == "auto" else format
    if kind_of(path) == "table":
        kind = "jsonl"
    for passage in read_passages(path, format=kind, longest=longest, template=template):
        text = passage.text if kind == "text" else passage.whole
        yield TextRecord(passage.where, passage.id, text)
