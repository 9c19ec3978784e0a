"""DPR's training files: JSON arrays of questions, what answers them, and hard negatives.

    [{"question": "who wrote emma",
      "positive_ctxs": [{"title": "Emma (novel)", "text": "Emma is by Jane Austen."}],
      "hard_negative_ctxs": [{"title": "Emma Stone", "text": "She is an actress."}], ...}, ...]

become {"query": "who wrote emma", "pos": ["Emma (novel) Emma is by Jane Austen."], "neg": [...]}.
Questions without a passage that answers them are left out, as DPR does. "negative_ctxs" (random
ones) stand in for hard negatives where there are none. Other fields are not read.

Source: Karpukhin et al. 2020, "Dense Passage Retrieval", section 3.2, and the README of
facebookresearch/DPR, "Retriever input data format".
"""

import codecs
import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from t5x_lite.buckets.paths import DataPath
from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE
from t5x_lite.records import named_splits
from t5x_lite.records.compressed import open_text
from t5x_lite.records.json_lines import check_surrogates
from t5x_lite.records.pairs import Pairs
from t5x_lite.records.passages import titled_text

_EXPECTED = (
    '*train*.json of DPR, an array of objects with "question", "positive_ctxs" and '
    '"hard_negative_ctxs"'
)
_BYTES = 1 << 20
"""Read at a time: the files are of several gigabytes."""
_SCALAR = 64
"""Characters of a number at most."""
_SPACE = re.compile(r"[ \t\r\n]*")
_JSON = json.JSONDecoder()

_logger = logging.getLogger(__name__)


def splits(directory: str) -> tuple[str, ...]:
    """The splits that have files; see `split_files`."""
    return tuple(split_files(directory))


def read_pairs(directory: str, split: str) -> Iterator[Pairs]:
    """The questions of a split; see `pairs_of`."""
    return pairs_of(split_files(directory)[split])


def split_files(directory: str) -> dict[str, list[DataPath]]:
    """The files of each split; see `named_splits`."""
    return named_splits.split_files(directory, suffix=".json", expected=_EXPECTED)


def pairs_of(files: Sequence[DataPath]) -> Iterator[Pairs]:
    """The questions of files, in order.

    Raises:
      InputError: a file cannot be read or is no such array, or no question has an answer.
    """
    num_read = num_left_out = 0
    for file in files:
        for number, record in enumerate(array_elements(file), start=1):
            pairs = _pairs(record, where=f"{file}: question {number}")
            num_read += 1
            num_left_out += pairs is None
            if pairs is not None:
                yield pairs
    if num_read == num_left_out:
        raise InputError(f"{', '.join(map(str, files))}: no question has a passage that answers it")
    _logger.info("%d questions, %d without a passage that answers", num_read, num_left_out)


def array_elements(file: DataPath, *, member: str = "") -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, one in memory at a time.

    Args:
      file: the path of a file in UTF-8.
      member: the name of the array in the object that the file holds; "" if the file is the array.

    Raises:
      InputError: the file cannot be read, or is not one array of objects.
    """
    with _read_by_parts(file, kind="object" if member else "array") as text:
        if not member:
            text.take("[", where=f"{file}: must be a JSON array of objects")
            yield from text.elements(file)
            return
        found = False
        for name in text.members(file):
            if name != member:
                text.value(where=f"{file}: {name!r}")
                continue
            found = True
            text.take("[", where=f"{file}: {member!r} must be an array of objects")
            yield from text.elements(file)
        if not found:
            raise InputError(f"{file}: the object has no {member!r}, an array of objects")


def object_members(file: DataPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """The names and the objects of a JSON object of objects, one in memory at a time.

    Raises:
      InputError: the file cannot be read, or is not one object of objects.
    """
    with _read_by_parts(file) as text:
        for name in text.members(file):
            yield name, text.object_(where=f"{file}: {name!r}")


@contextlib.contextmanager
def _read_by_parts(file: DataPath, *, kind: str = "object") -> Iterator["_Text"]:
    """The text of a file, which must be read to its end.

    Raises:
      InputError: the file cannot be read, or text is left.
    """
    try:
        with open_text(file) as stream:
            text = _Text(stream)
            yield text
            if text.sign():
                raise InputError(f"{file}: something stands behind the {kind}")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8; convert the file to UTF-8") from error


class _Text:
    """The text of a stream, read as it is needed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at = "", 0

    def sign(self) -> str:
        """The next sign that is no space; "" at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # pyright: ignore
            if rest := self._text[self._at : self._at + 1]:
                return rest
            if not self._more(_BYTES):
                return ""

    def take(self, sign: str, *, where: str) -> None:
        """Goes on behind a sign.

        Raises:
          InputError: another one is next.
        """
        if self.sign() != sign:
            raise InputError(f"{where}: expected {sign}, got {self.sign() or 'the end'}")
        self._at += 1

    def elements(self, file: DataPath) -> Iterator[dict[str, Any]]:
        """The objects of an array behind its bracket, and the bracket behind them."""
        number = 0
        while self.sign() != "]" or number:
            number += 1
            yield self.object_(where=f"{file}: question {number}")
            if self.sign() != ",":
                break
            self.take(",", where="")
        self.take("]", where=f"{file}: after question {number}")

    def members(self, file: DataPath) -> Iterator[str]:
        """The names of an object's members; the value of each is taken before the next name."""
        self.take("{", where=f"{file}: must be a JSON object")
        name = ""
        while self.sign() != "}" or name:
            if self.sign() != '"':
                raise InputError(f"{file}: expected a name, got {self.sign() or 'the end'}")
            name = self.value(where=f"{file}: after {name!r}")
            self.take(":", where=f"{file}: after {name!r}")
            yield name
            if self.sign() != ",":
                break
            self.take(",", where="")
        self.take("}", where=f"{file}: after {name!r}")

    def object_(self, *, where: str) -> dict[str, Any]:
        """The object that is next.

        Raises:
          InputError: there is none.
        """
        if self.sign() != "{":
            raise InputError(f"{where}: must be an object, got {self.sign() or 'the end'}")
        return self.value(where=where)

    def value(self, *, where: str) -> Any:
        """The value that is next.

        Raises:
          InputError: there is none.
        """
        self.sign()
        while len(self._text) - self._at < _SCALAR and self._more(_BYTES):
            pass  # a number that goes on behind what was read would be cut
        size = _BYTES
        while True:
            try:
                start = self._at
                found, self._at = _JSON.raw_decode(self._text, start)
                check_surrogates(found, self._text[start : self._at], where=where)
                return found
            except InputError:
                raise
            except json.JSONDecodeError as error:
                of_the_end = error.pos > len(self._text) - 16 or "Unterminated" in error.msg
                if of_the_end and size > LONGEST_LINE:
                    raise InputError(
                        f"{where}: has more than {LONGEST_LINE} bytes; divide it"
                    ) from error
                if not of_the_end or not self._more(size):
                    raise InputError(f"{where}: not JSON: {error.msg}") from error
                size *= 2
            except (RecursionError, ValueError) as error:
                raise InputError(f"{where}: not JSON that can be read ({error})") from error

    def _more(self, size: int) -> bool:
        """Whether there was more to read."""
        found = self._stream.read(size)
        self._text = self._text[self._at :] + self._decoder.decode(found, final=not found)
        self._at = 0
        return bool(found)


def _pairs(record: Mapping[str, Any], *, where: str) -> Pairs | None:
    """A question with its passages; None without one that answers it."""
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise InputError(f'{where}: must have "question", a text')
    positive = _passages(record, "positive_ctxs", where=where)
    negative = _passages(record, "hard_negative_ctxs", where=where)
    negative = negative or _passages(record, "negative_ctxs", where=where)
    if not positive:
        return None
    return Pairs(question.strip(), positive, [text for text in negative if text not in positive])


def _passages(record: Mapping[str, Any], name: str, *, where: str) -> list[str]:
    passages = record.get(name, [])
    for passage in passages if isinstance(passages, list) else [None]:
        if not isinstance(passage, dict) or not isinstance(passage.get("text"), str):
            raise InputError(f'{where}: "{name}" must be a list of objects with "text"')
        if not isinstance(passage.get("title") or "", str):
            raise InputError(f'{where}: "title" in "{name}" must be a text')
    texts = (titled_text({**each, "title": each.get("title") or ""}) for each in passages)
    return list(dict.fromkeys(text for text in texts if text))
