"""Readers of text in blocks of lines, documents or rows, from the start or any part of a file.

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
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.object_store import data_path, open_stream, size_of
from t5x_lite.core.remote import is_remote
from t5x_lite.data.formats.documents import TEXT, Groups, Shard, kind_of
from t5x_lite.data.formats.lines import (
    decompressed,
    is_compressed,
    lines_of,
    naming_damage,
    too_long,
)

LINES = 128
"""Maximum lines of a block."""


PART_BYTES = 1 << 16
"""Size of the parts of a plain file that can be read separately, in bytes."""


class Block(NamedTuple):
    """Block of texts of one file.

    Attributes:
      file: path of the file.
      places: start of each text: its line number, from 0, if the file was read from its start, or
        else -1 - its byte offset.
      texts: texts in UTF-8.
    """

    file: str
    places: list[int]
    texts: list[bytes]


class Files:
    """Reader of text files and tables in blocks of texts, from the start of a file or of a part."""

    def __init__(
        self,
        paths: Sequence[str | Shard],
        *,
        documents: Sequence[bool] | None = None,
        template: str = TEXT,
    ):
        """Set up the readers without opening files.

        Args:
          paths: locations of the text files and tables.
          documents: True for each file with documents between blank lines; None for one text per
            line.
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
        """Return block `number` of a file, counted from its start; None after the last block."""
        return self._read(file, None, number)

    def _read(self, file: int, group: int | None, number: int) -> Block | None:
        """Return block `number` of a file, or of one group of a table."""
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
        """Number of parts of 64 KiB in all files; the sizes of the files are read once."""
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
        """Return block `number` of a part (64 KiB of a file); None after the part's last block."""
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
    """Return the line number, from 1, of a text in a `Block`, given its entry in `places`."""
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
    """Return a block of the texts that are not blank; raise InputError if a text is not UTF-8."""
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
    """Return a text's start and the index of its first line that is not UTF-8, or None."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return place, text.count(b"\n", 0, error.start)
    return None


def _joined(numbered: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Join lines between blank lines to documents, each with the start of its first line."""
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
        """Return the block of the next lines, or of the documents that end within these lines."""
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
    """Reader of the texts of a table or of one of its groups, block by block."""

    def __init__(self, path: str, texts: Iterator[bytes]):
        self._path, self._numbered = path, enumerate(texts)

    def block(self) -> Block | None:
        """Return the block of the next rows, or None at the end."""
        rows = list(itertools.islice(self._numbered, LINES))
        pairs = [(place, text) for place, text in rows if text.strip()]
        texts = [text for _, text in pairs]
        return Block(self._path, [place for place, _ in pairs], texts) if rows else None


def _lines_from(stream: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin at a byte offset or after it, each with its start."""
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
    """Yield the documents that begin after a blank line of the part; the last may end later."""
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
