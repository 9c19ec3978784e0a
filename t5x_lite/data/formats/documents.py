"""Readers of documents and of blocks of lines, and weighted sampling of lines.

Readers of documents, and weighted sampling of lines from several files.

Unlabelled documents in text files, JSON lines, Parquet, Arrow and data sets of the hub:

    for document in read_documents(data_path("c4-train.00000-of-01024.json.gz")):
        document.where, document.text

    *.txt, and any other name            a document per line, or per block between blank lines
    *.jsonl, *.json, *.ndjson            an object per line, with "text", as in C4's release
    *.parquet, *.arrow, *.feather        the column "text" (extra `tables`)
    hf://NAME[:CONFIG][:SPLIT]           a split of a data set that the package `datasets` loads
    tfds://NAME[:VERSION]                data that TensorFlow Datasets prepared, read in data/

The first two kinds may be compressed, with names that end in .gz, .zst or .xz. A template names
other columns: "{title} {content}", or just "content". `Groups` reads a table by parts, in any
order, for shuffling, and reads only the columns that the template names.

`ABBREVIATIONS` are English words that end in a period within a sentence. They are used to divide
documents into sentences, also by C4's sentence counter if NLTK's parameters are missing.

Lines of several files with given weights, such as "10 parts English, 1 part German":

    sources = weighted_files(["en.txt=10", "de/*.txt=1"])
    sources                              # two sources, or None without weights
    weighted_lines(sources, seed=0)      # an iterator of lines

A weight is a fraction of the text in bytes of UTF-8, without blank lines and white space at the
ends of lines. No line is repeated, so the scarcest source limits the amount of text: all of its
lines are kept. Each line of another source is kept with a fixed probability, sampled by the seed.
With 50 MB of English and 2 MB of German, 10 to 1, all of the German and 40 % of the English are
read. The fractions are exact on average; with a few hundred lines they may be off by some percent.

The files are read twice, line by line: once to count and once to sample.

Readers of text in blocks of lines, documents or rows, from the start or any part of a file.

    files = Files(["a.txt", "b.jsonl.gz"])
    files.read(0, 5)         # lines 640 to 767 of a.txt, a Block; None after the last block
    files.num_parts          # total number of parts of the files
    files.read_part(7, 0)    # the lines that begin in the eighth part

A part is 64 KiB of a plain file, local or in a bucket. A compressed file is read from the start and
is one part; the parts of a table are given by `documents.Groups`. A block depends only on the
arguments, so that reading can resume from a saved position. Consecutive blocks are read from a file
that stays open.

Lines are stripped, and blank lines are skipped. Documents are separated by blank lines, and their
lines are stripped. A byte-order mark at the start is removed. A line of more than
`files.LONGEST_LINE` bytes raises InputError.
"""

import bisect
import codecs
import contextlib
import dataclasses
import functools
import glob
import itertools
import logging
import math
import random
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.object_store import DataPath, data_path, open_stream, size_of
from t5x_lite.core.remote import is_remote
from t5x_lite.data.formats.benchmark_files import Row
from t5x_lite.data.formats.lines import (
    decompressed,
    is_compressed,
    lines_of,
    naming_damage,
    plain_name,
    read_examples,
    read_lines,
    too_long,
)
from t5x_lite.data.formats.tables import HUB, HubSplit, column_names, num_groups, read_columns

_logger = logging.getLogger(__name__)


TFDS = "tfds://"
TEXT = "{text}"
"""Default template of a document's text: the field "text"."""
TEXTS = (".txt",)
JSON = (".jsonl", ".json", ".ndjson")
TABLES = (".parquet", ".arrow", ".feather")

Kind = Literal["text", "json", "table"]


Shard: TypeAlias = DataPath | HubSplit
"""Location of documents: a local file, a file in a bucket, or a data set of the Hub."""


class Document(NamedTuple):
    """Text of a document and the location of the document, such as "file:line" or "file: row 3"."""

    where: str
    text: str


def kind_of(shard: Any) -> Kind:
    """Return the kind of a file ("text", "json" or "table"), by the suffix of its name."""
    if isinstance(shard, HubSplit):
        return "table"
    name = plain_name(shard)
    if str(shard).endswith(TABLES):
        return "table"
    return "json" if name.endswith(JSON) else "text"


def is_named(place: str) -> bool:
    """Return True if a location is a data set name (hf:// or tfds://) instead of a path."""
    return place.startswith((HUB, TFDS))


def read_documents(
    shard: Shard, *, template: str = TEXT, blocks: bool = False, longest: int = LONGEST_LINE
) -> Iterator[Document]:
    """Read the documents of a file or a data set lazily, in order."""
    if kind_of(shard) == "text":
        yield from _plain(str(shard), blocks=blocks, longest=longest)
        return
    template = as_template(template)
    # `text_of` raises for a missing field of an object, and names the option for another field.
    columns = None if kind_of(shard) == "json" else places(template)
    for row in read_fields(shard, columns=columns, longest=longest):
        yield Document(row.where, text_of(row, template))


def read_fields(
    shard: Shard, *, columns: Sequence[str] | None = None, longest: int = LONGEST_LINE
) -> Iterator[Row]:
    """Read the JSON objects or rows of a file or a data set lazily, in order."""
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
    """Return the text of a table row or JSON object, by filling the template with its fields."""
    for name in places(template):
        value = row.fields.get(name)
        if isinstance(value, str):
            continue
        if name not in row.fields:
            there = sorted(row.fields) or "nothing"
            raise InputError(
                f'{row.where}: must have "{name}", a string, but has {there}; {_NAME_IT}'
            )
        kind = getattr(value, "kind", "null" if value is None else type(value).__name__)
        raise InputError(f"{row.where}: column {name!r} must be a string, got {kind}; {_NAME_IT}")
    if template == TEXT:
        return row.fields["text"]
    return fill(template, row.fields)


_NAME_IT = (
    "name the column of the text by --data.columns.inputs '{COLUMN}' (train, cache) or --text "
    "COLUMN (vocab, embed, pairs)"
)


class Groups:
    """Random access to groups of rows in a table.

    A group is a row group of Parquet, a record batch of Arrow, or 1,024 rows of a Hub data set.

    Args:
      shard: location of the table.
      template: template of a row's text, with column names in braces.
    """

    def __init__(self, shard: Shard, template: str = TEXT):
        self._shard, self._template = shard, as_template(template)

    @functools.cached_property
    def num(self) -> int:
        """Number of groups of rows in the table, at least one."""
        return max(1, num_groups(self._shard))

    def texts(self, group: int | None) -> Iterator[bytes]:
        """Yield the UTF-8 texts of one group of rows, or of all rows if `group` is None."""
        columns = places(self._template)
        for row in read_columns(self._shard, columns=columns, group=group):
            yield text_of(row, self._template).encode("utf-8", "replace")


# Templates.

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def as_template(text: str) -> str:
    """Return a template unchanged, and a column name such as "content" as "{content}"."""
    if text and not _PLACE.search(text):
        return f"{{{text}}}"
    if not places(text):
        raise InputError(
            f"the template {text!r} names no column; write column names in braces, such as "
            "'{text}'"
        )
    return text


def fill(template: str, fields: Mapping[str, object]) -> str:
    """Return the template with each field name in braces replaced by the field's value."""
    return _PLACE.sub(functools.partial(_value, template=template, fields=fields), template)


def _value(match: re.Match[str], *, template: str, fields: Mapping[str, object]) -> str:
    place = match.group()
    if place in ("{{", "}}"):
        return place[0]
    if place in ("{", "}"):
        raise InputError(
            f"the template {template!r} has a single brace {place}; write {place * 2} for a "
            "literal brace"
        )
    name = match.group(1)
    if name not in fields:
        raise InputError(
            f"the template {template!r} names the field {name!r}, but the fields are "
            f"{', '.join(fields)}"
        )
    return str(fields[name])


def places(template: str) -> tuple[str, ...]:
    """Return the names of the fields in a template, in order of first use."""
    found = (match.group(1) for match in _PLACE.finditer(template))
    return tuple(dict.fromkeys(name for name in found if name is not None))


_ENGLISH = """
mr mrs messrs mme mlle dr drs prof rev hon pres gov sen sens col lt maj capt cmdr cpl sgt adm atty
supt insp st ste jr sr esq bros co corp inc ltd llc plc mfg assn dept univ est dist div ave blvd
rd hwy ft mt mts apt bldg jan feb apr jun jul aug sept sep oct nov dec tue tues wed thu thur thurs
fri vs etc cf al ibid viz approx ca vol vols fig figs eq eqs sec secs ch chap ed eds edn pp p pt
pts resp incl excl misc tel ext a.m p.m a.d b.c b.c.e c.e e.g i.e u.s u.s.a u.k u.n e.u d.c n.y
l.a ph.d m.d b.a m.a b.sc m.sc ll.b ll.d r.n j.d j.r g.m n.b p.s q.v s.a n.a ala ariz calif colo
conn fla ga kan ky md mich minn mo mont neb nev okla pa tenn tex va vt wis wyo ont ms gen rep
"""
ABBREVIATIONS = frozenset(_ENGLISH.split())
"""English words that end in a period within a sentence, in lower case, without the final period.
Words that often end sentences ("no", "sat", "mass") are excluded even if they are also
abbreviations."""


# Weighted lines.


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|nan|inf")


Read = Callable[[Sequence[str]], Iterator[str]]
"""Function that takes paths of files and yields their lines."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Group of text files with a sampling weight.

    Attributes:
      name: file or pattern as given in --input, without the weight.
      files: paths, sorted if the name is a pattern.
      weight: sampling weight above 0, relative to the weights of other sources.
    """

    name: str
    files: tuple[str, ...]
    weight: float


def weighted_files(
    inputs: Sequence[str], *, is_place: Callable[[str], bool] = lambda name: False
) -> list[Source] | None:
    """Parse inputs "FILE=WEIGHT" into weighted sources, or return None if no input has a weight.

    FILE may be a pattern such as de/*.txt.
    """
    pairs = [_split(text) for text in inputs]
    if all(weight is None for _, weight in pairs):
        return None
    sources = []
    for name, weight in pairs:
        if weight is None:
            raise InputError(
                f"--input {name} has no weight, but another --input has one; write FILE=WEIGHT, "
                f"such as {name}=1"
            )
        number = float(weight)
        if not 0 < number < math.inf:
            raise InputError(f"--input {name}={weight}: the weight must be a number above 0")
        files = (name,) if is_place(name) else _files(name)
        sources.append(Source(name=name, files=files, weight=number))
    every = [file for source in sources for file in source.files]
    if twice := next((file for file in every if every.count(file) > 1), None):
        raise InputError(
            f"--input names the file {twice} twice; name it once, with the sum of both weights"
        )
    return sources


def tempered_files(
    inputs: Sequence[str],
    alpha: float,
    *,
    is_place: Callable[[str], bool] = lambda name: False,
    read: Read = read_lines,
) -> list[Source]:
    """Return each input as a source, weighted by its size in bytes to the power of `alpha`.

    With alpha 0.3, as in XLM-R, files of 900 MB and 10 MB are sampled at a ratio of 3.9 to 1.
    """
    sources = [
        Source(name=name, files=(name,) if is_place(name) else _files(name), weight=1.0)
        for name in inputs
    ]
    weights = [_bytes_of(source, read) ** alpha for source in sources]
    return [
        dataclasses.replace(source, weight=weight)
        for source, weight in zip(sources, weights, strict=True)
    ]


def weighted_lines(
    sources: Sequence[Source], *, seed: int, read: Read = read_lines
) -> Iterator[str]:
    """Return an iterator over lines that are sampled from the sources by weight."""
    sizes = [_bytes_of(source, read) for source in sources]
    total = math.fsum(source.weight for source in sources)
    most = min(size * total / one.weight for one, size in zip(sources, sizes, strict=True))
    kept = [
        min(most * one.weight / total / size, 1.0) for one, size in zip(sources, sizes, strict=True)
    ]
    for source, size, share in zip(sources, sizes, kept, strict=True):
        _logger.info(
            "input %s has weight %s of a total of %s: sampling %.4g %% of its %s bytes",
            *(source.name, f"{source.weight:g}", f"{total:g}", 100 * share, f"{size:,}"),
        )
    return _drawn(sources, kept, seed=seed, read=read)


def _drawn(
    sources: Sequence[Source], kept: Sequence[float], *, seed: int, read: Read
) -> Iterator[str]:
    for place, (source, share) in enumerate(zip(sources, kept, strict=True)):
        # `random` yields the same numbers in every version of Python.
        draw = random.Random(f"{seed} {place}").random
        for line in read(source.files):
            if line.strip() and draw() < share:
                yield line


def _bytes_of(source: Source, read: Read) -> int:
    size = sum(len(line.strip().encode()) for line in read(source.files))
    if not size:
        raise InputError(f"--input {source.name} has no text; remove the file, or add text to it")
    return size


def _split(text: str) -> tuple[str, str | None]:
    """Split "FILE=WEIGHT" into FILE and WEIGHT; WEIGHT is None if it is missing."""
    name, _, weight = text.rpartition("=")
    if name and not Path(text).exists() and _NUMBER.fullmatch(weight):
        return name, weight
    return text, None


def _files(name: str) -> tuple[str, ...]:
    """Return the paths that match a file name or a pattern."""
    if name == "-":
        raise InputError(
            "--input - is standard input, which can be read only once, but a weighted input is "
            "read twice; give a file"
        )
    found = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
    if not found:
        what = "no file matches" if glob.has_magic(name) else "there is no such file"
        raise InputError(f"--input {name}: {what}")
    for file in found:
        if Path(file).is_dir():
            raise InputError(
                f"--input {file} is a directory; name the files in it, such as {file}/*.txt"
            )
        if not stat.S_ISREG(Path(file).stat().st_mode):
            raise InputError(
                f"--input {file} is not a regular file and can be read only once, but a weighted "
                "input is read twice; give a regular file"
            )
    return tuple(found)


LINES = 128
"""Maximum lines of a block."""


PART_BYTES = 1 << 16
"""Size of the parts of a plain file that can be read separately, in bytes."""


class Block(NamedTuple):
    """Block of consecutive texts of one file.

    Attributes:
      file: path of the file.
      places: start of each text: its line number from 0, or -1 - b for the byte offset b.
      texts: texts in UTF-8.
    """

    file: str
    places: list[int]
    texts: list[bytes]


class Files:
    """Reader of text files and tables that returns blocks of consecutive texts."""

    def __init__(
        self,
        paths: Sequence[str | Shard],
        *,
        documents: Sequence[bool] | None = None,
        template: str = TEXT,
    ):
        """Create a reader of text files and tables; no file is opened yet.

        Args:
          paths: locations of the text files and tables.
          documents: one boolean per file, True if blank lines separate its documents; None if each
            line of every file is a text.
          template: template of a table row's text.
        """
        self.paths = [str(path) for path in paths]
        self._documents = list(documents or [False] * len(self.paths))
        self._tables = {
            place: Groups(data_path(path) if isinstance(path, str) else path, template)
            for place, path in enumerate(paths)
            if kind_of(path) == "table"
        }
        self._streams: dict[tuple[int, int | None, int], _Stream | _Rows] = {}
        self._ends: list[int] | None = None

    def read(self, file: int, number: int) -> Block | None:
        """Return the block of texts with index `number` in a file; None after the last block."""
        return self._read(file, None, number)

    def _read(self, file: int, group: int | None, number: int) -> Block | None:
        stream = self._streams.pop((file, group, number), None)
        path = self.paths[file]
        with _naming_errors(path):
            if stream is None:
                table = self._tables.get(file)
                stream = (
                    _Stream(path, documents=self._documents[file])
                    if table is None
                    else _Rows(path, table.texts(group))
                )
                for _ in range(number):
                    stream.block()
            block = stream.block()
        if block is not None:
            self._streams[file, group, number + 1] = stream
        return block

    @property
    def num_parts(self) -> int:
        """Number of 64 KiB parts in all files together."""
        return self._part_ends()[-1]

    def _part_ends(self) -> list[int]:
        if self._ends is None:
            counts = (
                self._tables[place].num if place in self._tables else _num_parts(path)
                for place, path in enumerate(self.paths)
            )
            self._ends = [*itertools.accumulate(counts)]
        return self._ends

    def read_part(self, part: int, number: int) -> Block | None:
        """Return block `number` of a 64 KiB part of a file, or None after the part's last block."""
        ends = self._part_ends()
        file = bisect.bisect_right(ends, part)
        first = ends[file - 1] if file else 0
        path, count = self.paths[file], ends[file] - first
        if count == 1:
            return self.read(file, number)
        if file in self._tables:
            return self._read(file, part - first, number)
        if number:
            return None
        start = (part - first) * PART_BYTES
        with _naming_errors(path), _opened(path) as stream:
            lines, end = _lines_from(stream, start), start + PART_BYTES
            if self._documents[file]:
                return _block(path, _documents_of_part(lines, end, begins=not start))
            return _block(path, _lines_of_part(lines, end))


def line_of(file: str, place: int) -> int:
    """Convert an entry of `Block.places` to a line number from 1."""
    if place >= 0:
        return place + 1
    line, rest = 1, -1 - place
    with _opened(file) as stream:
        while rest and (piece := stream.read(min(rest, 1 << 20))):
            line, rest = line + piece.count(b"\n"), rest - len(piece)
    return line


def _opened(path: str) -> BinaryIO:
    """Open a plain file; a file in a bucket is read in ranges of about 64 KiB."""
    if not is_remote(path):
        return open(path, "rb")
    return open_stream(path, first=PART_BYTES + PART_BYTES // 4)


@contextlib.contextmanager
def _naming_errors(path: str) -> Iterator[None]:
    try:
        with naming_damage(path):
            yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _num_parts(path: str) -> int:
    if is_compressed(path):
        return 1
    with _naming_errors(path):
        return max(1, -(-size_of(path) // PART_BYTES))


def _block(path: str, numbered: Iterable[tuple[int, bytes]]) -> Block:
    pairs = [(place, text.strip()) for place, text in numbered]
    pairs = [(place, text) for place, text in pairs if text]
    places, texts = [place for place, _ in pairs], [text for _, text in pairs]
    try:
        b"\n".join(texts).decode()
    except UnicodeDecodeError as error:
        place, line = next(found for pair in pairs if (found := _not_utf8(*pair)))
        raise InputError(
            f"{path}:{line_of(path, place) + line}: not UTF-8: convert it to UTF-8"
        ) from error
    return Block(path, places, texts)


def _not_utf8(place: int, text: bytes) -> tuple[int, int] | None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return place, text.count(b"\n", 0, error.start)
    return None


def _joined(numbered: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Join the lines between blank lines to one document."""
    stripped = ((place, line.strip()) for place, line in numbered)
    for blank, lines in itertools.groupby(stripped, key=lambda pair: not pair[1]):
        if not blank:
            found = list(lines)
            yield found[0][0], b"\n".join(line for _, line in found)


class _Stream:
    """Reader of a text file from its start, block by block."""

    def __init__(self, path: str, *, documents: bool):
        self._path, self._documents = path, documents
        self._file = decompressed(path)
        self._numbered = enumerate(lines_of(self._file, name=path, longest=LONGEST_LINE))
        self._begun: list[tuple[int, bytes]] = []  # lines of a document that may continue

    def __del__(self):
        if hasattr(self, "_file"):
            self._file.close()

    def block(self) -> Block | None:
        lines = list(itertools.islice(self._numbered, LINES))
        if lines and lines[0][0] == 0:
            lines[0] = (0, lines[0][1].removeprefix(codecs.BOM_UTF8))
        if not lines and not self._begun:
            self._file.close()
            return None
        if not self._documents:
            return _block(self._path, lines)
        blank = (i for i in reversed(range(len(lines))) if not lines[i][1].strip())
        ended = next(blank, None) if lines else 0
        if ended is None:
            self._begun += lines
            return _block(self._path, [])
        document, self._begun = self._begun + lines[:ended], lines[ended:]
        return _block(self._path, _joined(document))


class _Rows:
    """Reader of the texts of a table, block by block."""

    def __init__(self, path: str, texts: Iterator[bytes]):
        self._path, self._numbered = path, enumerate(texts)

    def block(self) -> Block | None:
        rows = list(itertools.islice(self._numbered, LINES))
        pairs = [(place, text) for place, text in rows if text.strip()]
        texts = [text for _, text in pairs]
        return Block(self._path, [place for place, _ in pairs], texts) if rows else None


def _lines_from(stream: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin at or after a byte offset."""
    offset = start
    if start:
        stream.seek(start - 1)
        end = stream.readline(PART_BYTES + 1)
        if not end.endswith(b"\n"):
            return  # no line begins in this part
        offset += len(end) - 1
    for line in iter(lambda: stream.readline(LONGEST_LINE + 1), b""):
        if len(line) > LONGEST_LINE:
            raise InputError(too_long(stream.name, line_of(stream.name, -1 - offset), LONGEST_LINE))
        yield -1 - offset, line.removeprefix(codecs.BOM_UTF8) if not offset else line
        offset += len(line)


def _lines_of_part(lines: Iterator[tuple[int, bytes]], end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin before the byte offset `end`."""
    return itertools.takewhile(lambda pair: -1 - pair[0] < end, lines)


def _documents_of_part(
    lines: Iterator[tuple[int, bytes]], end: int, *, begins: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield the documents that begin in one part of a file."""
    document: list[tuple[int, bytes]] = []
    for place, line in lines:
        is_blank, is_behind = not line.strip(), -1 - place >= end
        if is_blank or (is_behind and not begins):
            yield from _joined(document)
            document = []
            if is_behind:
                return
            begins = True
        elif begins:
            document.append((place, line))
    yield from _joined(document)
