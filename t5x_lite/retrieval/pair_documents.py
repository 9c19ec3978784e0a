"""Documents that `t5x-lite pairs` reads, each with the pairs that a rule makes from it.

reader = PairReader(["a.jsonl", "b.warc.wet.gz"], rule="title_body") for document, pairs in reader:
... reader.num, reader.empty        # number of documents, number of documents without a pair
"""

import contextlib
import glob
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Tally, expand_inputs, read_pages
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.jobs import identity_of_file
from t5x_lite.core.object_store import data_path
from t5x_lite.core.remote import is_remote
from t5x_lite.data.formats.documents import (
    TEXT,
    TFDS,
    Shard,
    is_named,
    kind_of,
    read_documents,
    read_fields,
    text_of,
)
from t5x_lite.data.formats.lines import plain_name, read_lines
from t5x_lite.data.formats.released_files import read_parallel
from t5x_lite.data.tasks.text_source import texts_of
from t5x_lite.data.tasks.unsupervised import shards_of
from t5x_lite.retrieval.pairs import RULES, Document, Raw

_ARCHIVES = (".warc", ".wet")


class PairReader:
    """Iterator over the documents of files, with the query-passage pairs made from each document.

    Args:
      inputs: files, directories, file patterns and data sets to read.
      rule: name of the rule, a key of `pair_rules.RULES`.
      languages: the two languages of aligned text files or of *.tsv; for other inputs, at most one,
        which documents without a language get.
      template: template of a document's text, with column names in braces.
      seed: random seed of the sentences that the rule "ict" samples.
      min_score: minimum score of a line of *.tsv; None keeps all lines.

    Attributes:
      files: identities (path, size and modification time) of the input files.
      num: number of documents read.
      empty: number of documents without a pair.

    Raises:
      InputError: if a file cannot be read, or an option is not for these files.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        rule: str,
        languages: Sequence[str] = (),
        template: str = TEXT,
        seed: int = 0,
        min_score: float | None = None,
    ):
        if rule not in RULES:
            raise InputError(f"unknown --rule {rule!r}; give one of {', '.join(RULES)}")
        self._rule, self._languages, self._template = RULES[rule], tuple(languages), template
        self._seed, self._min_score = seed, min_score
        kinds = [_kind(name) for name in inputs]
        texts = [
            name
            for name, kind in zip(inputs, kinds, strict=True)
            if kind == "documents" and not _is_several(name) and kind_of(name) == "text"
        ]
        columns = [name for name in texts if plain_name(name).endswith(".tsv")]
        self._columns = rule == "parallel" and len(columns) == len(inputs)
        self._aligned = rule == "parallel" and bool(texts) and not self._columns
        if self._aligned and (len(inputs) != 2 or len(texts) != 2 or columns):
            raise InputError(
                "--rule parallel needs JSON lines, *.tsv with two texts per line, or two text "
                f"files that are translations line by line, got {len(inputs)} files"
            )
        if min_score is not None and not self._columns:
            raise InputError(
                "--min-score is supported only for *.tsv files with scores and --rule "
                "parallel; remove it"
            )
        if min_score is not None and not math.isfinite(min_score):
            raise InputError(f"--min-score must be a finite number, got {min_score}")
        pair = self._aligned or self._columns
        if len(languages) != 2 * pair and (pair or len(languages) > 1):
            raise InputError(
                "--languages must be the two languages of aligned files or of *.tsv, or one "
                f"language for other inputs, got {' '.join(languages) or 'none'}"
            )
        paths: list[tuple[str, Any]] = []
        for name, kind in zip(inputs, kinds, strict=True):
            if kind == "archive":
                paths += [(kind, one.path) for one in expand_inputs([name])]
            elif kind == "tfds" or name == "-" or not _is_several(name):
                paths.append((kind, name))
            else:
                paths += [(kind, shard) for shard in shards_of(name)]
        self._paths, self._tally = paths, Tally()
        self.files = [identity_of_file(str(path)) for _, path in paths]
        self.num = self.empty = 0
        self._fields: list[str] = []

    def __iter__(self) -> Iterator[tuple[Document, list[Raw]]]:
        for document in self._documents():
            raws = list(self._rule(document._replace(seed=self._seed)))
            self._fields = self._fields or [*document.record]
            self.num += 1
            self.empty += not raws
            yield document, raws

    def fields(self) -> str:
        """Return the end of an error message, which lists the fields of the first document."""
        if not self._fields:
            return ""
        listed = ", ".join(self._fields)
        return f"; the first document has the fields {listed}; set --text, or choose another --rule"

    def damaged(self) -> int:
        """Return the number of archive records that could not be read."""
        return sum(self._tally.damage.values())

    def _documents(self) -> Iterator[Document]:
        if self._aligned:
            one, other = (str(path) for _, path in self._paths)
            yield from _aligned(one, other, languages=self._languages)
            return
        if self._columns:
            for _, path in self._paths:
                for where, source, target, _ in read_parallel(str(path), min_score=self._min_score):
                    texts = {"src": source, "tgt": target, "langs": [*self._languages]}
                    yield Document(where, texts)
            return
        own = {"lang": self._languages[0]} if self._languages else {}
        for kind, path in self._paths:
            if kind == "archive":
                with contextlib.closing(read_pages(path, Cleaning(), self._tally)) as pages:  # pyright: ignore
                    for number, page in enumerate(pages):
                        record = {**own, "text": page.text, "url": page.url}
                        yield Document(f"{path}:{number}", record)
            elif kind == "tfds":
                for number, text in enumerate(texts_of(path, template=self._template)):
                    yield Document(f"{path}: example {number + 1}", {**own, "text": text})
            else:
                yield from self._documents_of(path, own)

    def _documents_of(self, shard: str | Shard, own: dict[str, str]) -> Iterator[Document]:
        if kind_of(shard) == "text":
            for document in read_documents(data_path(str(shard)), blocks=True):
                yield Document(document.where, {**own, "text": document.text})
            return
        for row in read_fields(data_path(shard) if isinstance(shard, str) else shard):
            record = {**own, **row.fields}
            if self._template != TEXT:
                record["text"] = text_of(row, self._template)
            yield Document(row.where, record)


def _kind(name: str) -> Literal["archive", "documents", "tfds"]:
    if is_named(name):
        return "tfds" if name.startswith(TFDS) else "documents"
    if plain_name(name).endswith((*_ARCHIVES, ".paths")):
        return "archive"
    if os.path.isdir(name):
        with contextlib.suppress(InputError):
            return "archive" if expand_inputs([name]) else "documents"
        return "documents"
    if is_remote(name) and kind_of(name) == "text" and not plain_name(name).endswith(".txt"):
        with contextlib.suppress(InputError):
            return "archive" if expand_inputs([name]) else "documents"
    if any(plain_name(found).endswith(_ARCHIVES) for found in glob.glob(name, recursive=True)):
        return "archive"
    return "documents"


def _is_several(name: str) -> bool:
    """Return True if a name refers to several files: a pattern, a directory or a data set."""
    return (
        is_named(name)
        or os.path.isdir(name)
        or (glob.has_magic(name) and not os.path.exists(name))
        or (is_remote(name) and not data_path(name).is_file())
    )


def _aligned(one: str, other: str, *, languages: tuple[str, ...]) -> Iterator[Document]:
    pairs = itertools.zip_longest(
        read_lines([one], longest=LONGEST_LINE), read_lines([other], longest=LONGEST_LINE)
    )
    for number, (src, tgt) in enumerate(pairs, start=1):
        if src is None or tgt is None:
            raise InputError(
                f"file {one if src is None else other} ends before line {number}, but the two "
                "files of --rule parallel must be translations line by line"
            )
        yield Document(f"{one}:{number}", {"src": src, "tgt": tgt, "langs": [*languages]})
