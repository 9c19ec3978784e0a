"""Files of sentences with a tag for each word: CoNLL's columns, and JSON lines.

    EU NNP I-NP I-ORG               {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}
    rejects VBZ I-VP O

    read_conll(Path("eng.train"))   read_tagged_jsonl(Path("train.jsonl"))

In columns, which spaces or tabs divide, the word is the first and its tag the last one. A blank
line ends a sentence, and so does a line that begins with -DOCSTART-, which is no word. An object
may call its tags "ner_tags", as `datasets` does, and have numbers there. Whatever is wrong raises
InputError with file and line.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_lite.buckets.paths import DataPath
from t5x_lite.errors import InputError
from t5x_lite.records.benchmark_files import Row, read_jsonl
from t5x_lite.records.lines import LONGEST_COLUMNS, read_lines

_DOCUMENT = "-DOCSTART-"
_COLUMNS = re.compile(r"[ \t]+")
_TAGS = ("tags", "ner_tags")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentence:
    """Words and their tags, where they are known.

    Attributes:
      words: as the file has them.
      tags: as many; None in a file without tags.
      file: where it stands.
      line: of the first word, from 1.
      is_column: whether each word has a line of its own.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    file: str
    line: int
    is_column: bool = True

    def where(self, place: int = 0) -> str:
        """Where the word at a place stands, as "file:line"."""
        return f"{self.file}:{self.line + place * self.is_column}"


def read_conll(file: DataPath, *, may_lack_tags: bool = False) -> Iterator[Sentence]:
    """The sentences of a file with columns.

    Args:
      file: in UTF-8; it may be compressed.
      may_lack_tags: whether a sentence may have words alone, as in a test split.

    Raises:
      InputError: the file cannot be read, or a word has no tag.
    """
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
    """The sentence that ends before a line, unless it is empty."""
    if not rows:
        return
    first = end - len(rows)
    bare = [place for place, columns in enumerate(rows) if len(columns) == 1]
    if bare and not (may_lack_tags and len(bare) == len(rows)):
        word = rows[bare[0]][0]
        raise InputError(
            f"{file}:{first + bare[0]}: {word[:40]!r} has no tag: a line must have a word and, in "
            "its last column, its tag"
        )
    tags = None if bare else tuple(columns[-1] for columns in rows)
    for place, tag in enumerate(tags or ()):
        if tag.split() != [tag]:
            raise InputError(f"{file}:{first + place}: a tag must be a word, got {tag[:40]!r}")
    words = tuple(columns[0] for columns in rows)
    yield Sentence(words=words, tags=tags, file=file, line=first)


def read_tagged_jsonl(file: DataPath, *, may_lack_tags: bool = False) -> Iterator[Sentence]:
    """The sentences of JSON lines; white space inside a word becomes one space.

    Args:
      file: in UTF-8; it may be compressed.
      may_lack_tags: whether an object may have no tags, or null, as in a test split.

    Raises:
      InputError: the file cannot be read, or a line is no such object.
    """
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
    """The tags of an object as text.

    Raises:
      InputError: they are none, or not as many as the words.
    """
    if not isinstance(tags, list):
        raise InputError(f"{row.where}: the tags must be a list, got {json.dumps(tags)[:40]}")
    if len(tags) != number:
        raise InputError(f"{row.where}: has {number} tokens and {len(tags)} tags")
    for tag in tags:
        is_word = isinstance(tag, str) and len(tag.split()) == 1 and tag.split()[0] == tag
        if not is_word and type(tag) is not int:
            raise InputError(
                f"{row.where}: a tag must be a word or a number, got {json.dumps(tag)[:40]}"
            )
    return tuple(map(str, tags))
