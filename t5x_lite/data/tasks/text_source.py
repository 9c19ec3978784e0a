"""Text files as documents: the lines of *.txt, and the "text" of *.jsonl and of C4's *.json.gz.

    text_lines([Path("a.txt"), Path("c4-train.00000-of-00001.json.gz")])   # {"text": "..."}, ...
    text_documents([Path("b.txt")])        # the same, of what blank lines divide
    json_objects([Path("c.jsonl")], parse)   # the same, of what is made of each object
    parsed_lines([Path("c.tsv")], parse)     # the same, of what is made of each line
    passage_texts([Path("collection.tsv")])  # the same, of titles and texts of passages
    text_lines(["d.txt"], shuffle=Shuffle(seed=0, epoch=epoch))   # the same, in another order

Files may be compressed (`compressed`). In order, up to 64 of them are read in turn, 128 lines from
each. Shuffled, the parts of all files (`line_blocks`) come in an order of their own, and up to 64
of them are read in turn: a shuffle buffer behind them sees many places of one file. An iterator
over either can be saved.
"""

import errno
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t5x_lite.buckets.paths import DataPath
from t5x_lite.data.tasks.shuffling import Shuffle, permuted_range
from t5x_lite.errors import InputError
from t5x_lite.records.compressed import plain_name
from t5x_lite.records.line_blocks import LINES, Block, Files, line_of
from t5x_lite.records.passages import Passage, line_reader
from t5x_lite.remote import is_remote

Tensor = Any
"""tf.Tensor; TensorFlow is imported when files are read."""
Dataset = Any
"""tf.data.Dataset."""

_OPEN = 64
"""Files, or parts of them, that are read in turn."""
_JSON = (".jsonl", ".json")


def text_lines(
    files: Sequence[str | DataPath],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """The non-empty lines of text files, and the "text" fields of .jsonl and .json files.

    Args:
      files: the files to read, in UTF-8, one document a line; compressed ones end in .gz,
        .zst or .xz.
      keep: from stripped lines, string [n], to a mask [n] of those wanted; all by default.
      shuffle: what the order depends on; None is the files' own, always the same.

    Returns:
      Examples {"text": str}. Iterating raises where a line is not UTF-8 or, in a file of JSON, not
      an object with a string "text"; `elements.input_error` reads it.

    Raises:
      InputError: a file cannot be read.
    """
    return _texts(_blocks(Files(files), keep, shuffle), files)


def text_documents(
    files: Sequence[str | DataPath],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """What blank lines divide in text files, and the "text" of .jsonl and .json files.

    Args:
      files: as of `text_lines`; a document's lines are stripped and stay lines.
      keep: from documents, string [n], to a mask [n] of those wanted; all by default.
      shuffle: as of `text_lines`.

    Returns:
      Examples {"text": str}, in the files' own order those of text files first; see `text_lines`.

    Raises:
      InputError: a file cannot be read.
    """
    ordered = sorted(files, key=_is_json)
    divided = [not _is_json(file) for file in ordered]
    if shuffle is not None or len({*divided}) < 2:
        return _texts(_blocks(Files(ordered, documents=divided), keep, shuffle), ordered)
    plain, others = (ordered[: sum(divided)], ordered[sum(divided) :])
    return text_documents(plain, keep=keep).concatenate(text_documents(others, keep=keep))


def json_objects(
    files: Sequence[str | DataPath],
    parse: Callable[[Mapping[str, Any], str], str],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """What is made of each object of files of JSON lines; else as `text_lines`.

    Args:
      files: each line is a JSON object.
      parse: from an object and its place, "file:line", to a text; a pure function, which may raise
        InputError. The place is for its message alone: shuffled, it has no line until it is shown.
      keep: from lines, string [n], to a mask [n] of those wanted; all by default.
      shuffle: as of `text_lines`.

    Raises:
      InputError: a file cannot be read.
    """

    def of_line(line: bytes, where: str) -> bytes:
        return parse(_object(line, where=where), where).encode()

    return _made(_blocks(Files(files), keep, shuffle), of_line)


def parsed_lines(
    files: Sequence[str | DataPath],
    parse: Callable[[str, str], str],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """What is made of each non-empty line of text files; else as `json_objects`.

    Args:
      files: see `text_lines`.
      parse: from a line and its place, "file:line", to a text; see `json_objects`. "" leaves the
        line out.
      keep: as of `json_objects`.
      shuffle: as of `text_lines`.

    Raises:
      InputError: a file cannot be read.
    """

    def of_line(line: bytes, where: str) -> bytes:
        return parse(line.decode(), where).encode()

    return _not_empty(_made(_blocks(Files(files), keep, shuffle), of_line))


def passage_texts(
    files: Sequence[str | DataPath],
    *,
    write: Callable[[Passage], str] = operator.attrgetter("whole"),
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """Title and text of each passage of collections; else as `text_lines`.

    Args:
      files: see `records.passages`.
      write: from a passage to a text, a pure function; "" leaves it out.
      keep: from lines, string [n], to a mask [n] of those wanted; all by default.
      shuffle: as of `text_lines`.

    Raises:
      InputError: a file cannot be read.
    """
    readers = {str(file): line_reader(str(file)) for file in files}

    def of_line(line: bytes, where: str) -> bytes:
        passage = readers[where.rpartition(":")[0]](line, where)
        return b"" if passage is None else write(passage).encode()

    return _not_empty(_made(_blocks(Files(files), keep, shuffle), of_line))


def _not_empty(texts: Dataset) -> Dataset:
    from t5x_lite.data.quiet_tensorflow import tf

    return texts.filter(lambda example: tf.strings.length(example["text"]) > 0)


def _is_json(file: str | DataPath) -> bool:
    return plain_name(file).endswith(_JSON)


def _blocks(
    files: Files, keep: Callable[[Tensor], Tensor] | None, shuffle: Shuffle | None
) -> Dataset:
    """Blocks of wanted texts, {"file", "place", "text"}, each [n]."""
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.tasks import stages

    _check_readable(files.paths)
    read = files.read if shuffle is None else files.read_part
    count = len(files.paths) if shuffle is None else files.num_parts
    spec = {
        "ended": tf.TensorSpec([], tf.bool),
        "file": tf.TensorSpec([None], tf.string),
        "place": tf.TensorSpec([None], tf.int64),
        "text": tf.TensorSpec([None], tf.string),
    }

    def block(at: Mapping[str, Any]) -> Mapping[str, Any]:
        found = read(int(at["unit"]), int(at["number"]))
        file, places, texts = found or Block("", [], [])
        names = [file.encode()] * len(texts)
        return {"ended": found is None, "file": names, "place": places, "text": texts}

    @tf.autograph.experimental.do_not_convert
    def blocks(unit: Tensor) -> Dataset:
        numbers = tf.data.Dataset.range(tf.int64.max)
        places = numbers.map(lambda number: {"unit": unit, "number": number})
        # One after the other: a file that is open is read on.
        found = stages.map_numpy(places, block, spec, parallel=False)
        found = found.take_while(lambda block: ~block["ended"])
        return found.map(lambda block: {name: block[name] for name in ("file", "place", "text")})

    @tf.autograph.experimental.do_not_convert
    def texts(unit: Tensor) -> Dataset:
        return blocks(unit).unbatch()

    @tf.autograph.experimental.do_not_convert
    def wanted(block: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mask = tf.fill(tf.shape(block["place"]), True) if keep is None else keep(block["text"])
        return {name: values[mask] for name, values in block.items()}

    turns: Any = {"cycle_length": min(count, _OPEN), "block_length": 1}
    if shuffle is None:
        dataset = tf.data.Dataset.range(count).interleave(blocks, **turns)
    else:  # text by text, so that neighbours are of different places
        units = permuted_range(count, shuffle)
        dataset = units.interleave(texts, **turns).batch(LINES)
    return dataset.map(wanted, num_parallel_calls=tf.data.AUTOTUNE)


def _texts(blocks: Dataset, files: Sequence[str | DataPath]) -> Dataset:
    """Examples of the texts of blocks; a file of JSON has them in its objects."""
    if not any(_is_json(file) for file in files):
        return blocks.map(lambda block: {"text": block["text"]}).unbatch()

    return _made(blocks, _jsonl_text, only=_is_json)


def _made(
    blocks: Dataset,
    make: Callable[[bytes, str], bytes],
    *,
    only: Callable[[str], bool] = lambda file: True,
) -> Dataset:
    """Examples of what a function of a text and its place, "file:line", makes.

    Args:
      blocks: of texts.
      make: the function, which may raise InputError.
      only: of which files; the texts of others stay.
    """
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.tasks import stages

    def texts(block: Mapping[str, Any]) -> Mapping[str, Any]:
        files = [file.decode() for file in block["file"]]
        found = zip(files, block["place"].tolist(), block["text"], strict=True)
        return {
            "text": [
                _of_place(make, text, file, place) if only(file) else text
                for file, place, text in found
            ]
        }

    return stages.map_numpy(blocks, texts, {"text": tf.TensorSpec([None], tf.string)}).unbatch()


def _of_place(make: Callable[[bytes, str], bytes], text: bytes, file: str, place: int) -> bytes:
    """What a function makes of a text; the line of one in a part is counted for a message alone."""
    where = f"{file}:{place + 1}"
    try:
        return make(text, where)
    except InputError as error:
        if place >= 0:
            raise
        message = str(error).replace(where, f"{file}:{line_of(file, place)}")
        raise InputError(message) from error


def _check_readable(files: Sequence[str]) -> None:
    for file in files:
        if not is_remote(file) and not os.access(file, os.R_OK):
            reason = errno.EACCES if os.path.exists(file) else errno.ENOENT
            raise InputError(f"cannot read {file}: {os.strerror(reason)}")


def _jsonl_text(line: bytes, where: str) -> bytes:
    record = _object(line, where=where)
    if "text" not in record:
        raise InputError(f'{where}: must have "text"; it has {sorted(record) or "nothing"}')
    text = record["text"]
    if not isinstance(text, str):
        raise InputError(f'{where}: "text" must be a string, got {type(text).__name__}')
    return text.encode("utf-8", "replace")


def _object(line: bytes, *, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise InputError(f"{where}: not JSON that can be read ({error})") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be a JSON object, got {type(record).__name__}")
    return record
