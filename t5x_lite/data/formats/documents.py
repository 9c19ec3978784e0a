"""Readers of documents, and weighted sampling of lines from several files.

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
"""

import dataclasses
import functools
import glob
import itertools
import logging
import math
import random
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.object_store import DataPath
from t5x_lite.data.formats.benchmark_files import Row
from t5x_lite.data.formats.lines import (
    plain_name,
    read_examples,
    read_lines,
)
from t5x_lite.data.formats.table_splits import HUB, HubSplit, column_names, num_groups, read_columns

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
    """Text of a document and its location, "file:line" or "file: row 3"."""

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
    """Return True if `place` is the name of a data set (hf:// or tfds://) instead of a path."""
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
    """Reader of a table by groups of rows, in any order.

    A group is a row group of Parquet, a record batch of Arrow, or 1,024 rows of a Hub data set.

    Args:
      shard: location of the table.
      template: template of a row's text, with column names in braces.
    """

    def __init__(self, shard: Shard, template: str = TEXT):
        self._shard, self._template = shard, as_template(template)

    @functools.cached_property
    def num(self) -> int:
        """Number of separately readable groups of rows in the table, at least one."""
        return max(1, num_groups(self._shard))

    def texts(self, group: int | None) -> Iterator[bytes]:
        """Yield the texts of one group of rows in UTF-8, or of all groups for `group` None."""
        columns = places(self._template)
        for row in read_columns(self._shard, columns=columns, group=group):
            yield text_of(row, self._template).encode("utf-8", "replace")


# Templates.

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def as_template(text: str) -> str:
    """Return the template for the value of an option; "content" becomes "{content}"."""
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
            f"the template {template!r} has a single {place}; write {place * 2} for a literal brace"
        )
    name = match.group(1)
    if name not in fields:
        raise InputError(
            f"the template {template!r} names {name!r}, but the fields are {', '.join(fields)}"
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
    """Files that are sampled with a common weight.

    Attributes:
      name: file or pattern as given in --input, without the weight.
      files: paths, sorted if the name is a pattern.
      weight: weight above 0; only the ratios of weights count.
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
        raise InputError(f"--input names {twice} twice; name it once, with the sum of its weights")
    return sources


def tempered_files(
    inputs: Sequence[str],
    alpha: float,
    *,
    is_place: Callable[[str], bool] = lambda name: False,
    read: Read = read_lines,
) -> list[Source]:
    """Return a source for each input, with its size in bytes to the power of `alpha` as weight.

    For languages, this is q_l ~ p_l^alpha: with alpha 0.3, as in XLM-R, 900 MB and 10 MB are
    sampled at a ratio of 3.9 to 1.
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
    """Return an iterator over lines sampled by weight, source by source, in the order of files."""
    sizes = [_bytes_of(source, read) for source in sources]
    total = math.fsum(source.weight for source in sources)
    most = min(size * total / one.weight for one, size in zip(sources, sizes, strict=True))
    kept = [
        min(most * one.weight / total / size, 1.0) for one, size in zip(sources, sizes, strict=True)
    ]
    for source, size, share in zip(sources, sizes, kept, strict=True):
        _logger.info(
            "sampling from %s with weight %s of %s: %.4g %% of %s bytes",
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
    """Split "FILE=WEIGHT" into FILE and WEIGHT, or None for a missing WEIGHT."""
    name, _, weight = text.rpartition("=")
    if name and not Path(text).exists() and _NUMBER.fullmatch(weight):
        return name, weight
    return text, None


def _files(name: str) -> tuple[str, ...]:
    """Return the paths that match a name; raise InputError if a file cannot be read twice."""
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
