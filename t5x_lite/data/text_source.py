"""Text files as documents: the lines of *.txt, and the "text" of *.jsonl and of C4's *.json.gz.

    text_lines([Path("a.txt"), Path("c4-train.00000-of-00001.json.gz")])   # {"text": "..."}, ...
    text_documents([Path("b.txt")])        # the same, of what blank lines divide
    json_objects([Path("c.jsonl")], parse)   # the same, of what is made of each object

TensorFlow reads them, in blocks of lines, so that an iterator over them can be saved.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.remote import is_remote

Tensor = Any
"""tf.Tensor; TensorFlow is imported when files are read."""
Dataset = Any
"""tf.data.Dataset."""

_OPEN_FILES = 64
_JSON = (".jsonl", ".jsonl.gz", ".json.gz")


def text_lines(
    files: Sequence[str | Path], *, keep: Callable[[Tensor], Tensor] | None = None
) -> Dataset:
    """The non-empty lines of text files, and the "text" fields of .jsonl and .json.gz files.

    Up to 64 files are read in turn, 128 lines from each, so that neighbouring lines stay together
    and a shuffle buffer still sees many files. The order is always the same.

    Args:
      files: the files to read, in UTF-8, one document a line; gzip'ed where they end in .gz.
      keep: from stripped lines, string [n], to a mask [n] of those wanted; all by default.

    Returns:
      Examples {"text": str}. Iterating raises where a line is not UTF-8 or, in a file of JSON, not
      an object with a string "text"; `stages.input_error` reads it.

    Raises:
      InputError: a file cannot be read.
    """
    from t5x_lite.data import stages
    from t5x_lite.data.quiet_tensorflow import tf

    dataset = _line_blocks(files, keep)
    if any(str(file).endswith(_JSON) for file in files):
        spec = tf.TensorSpec([None], tf.string)
        return stages.map_numpy(dataset, _jsonl_texts, {"text": spec}).unbatch()
    return dataset.map(lambda block: {"text": block["text"]}).unbatch()


def json_objects(
    files: Sequence[str | Path],
    parse: Callable[[Mapping[str, Any], str], str],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
) -> Dataset:
    """What is made of each object of files of JSON lines; else as `text_lines`.

    Args:
      files: each line is a JSON object.
      parse: from an object and its place, "file:line", to a text; a pure function, which may raise
        InputError.
      keep: from lines, string [n], to a mask [n] of those wanted; all by default.

    Raises:
      InputError: a file cannot be read.
    """
    from t5x_lite.data import stages
    from t5x_lite.data.quiet_tensorflow import tf

    def texts(block: Mapping[str, Any]) -> Mapping[str, Any]:
        file = block["file"][0].decode() if len(block["file"]) else ""
        places = [f"{file}:{line + 1}" for line in block["line"]]
        lines = zip(block["text"], places, strict=True)
        return {"text": [parse(_object(line, where=w), w).encode() for line, w in lines]}

    spec = tf.TensorSpec([None], tf.string)
    return stages.map_numpy(_line_blocks(files, keep), texts, {"text": spec}).unbatch()


def _line_blocks(files: Sequence[str | Path], keep: Callable[[Tensor], Tensor] | None) -> Dataset:
    """Blocks of wanted lines, {"file", "line", "text"}, each [n] and of one file."""
    from t5x_lite.data import stages
    from t5x_lite.data.quiet_tensorflow import tf

    _check_readable(files)

    # tf.data costs tens of microseconds for each call of a function: hence by blocks, not lines.
    def blocks(file):
        compression = tf.where(tf.strings.regex_full_match(file, r".*\.gz"), "GZIP", "")
        lines = tf.data.TextLineDataset(file, compression_type=compression)
        numbered = lines.enumerate().batch(stages.DOCUMENTS_PER_GROUP)
        return numbered.map(lambda lines, texts: (file, lines, texts))

    def documents(file, lines, texts):
        texts = _checked_utf8(file, lines, _without_mark(lines, texts))
        wanted = tf.strings.length(texts) > 0
        if keep is not None:
            wanted &= keep(texts)
        chosen = {"line": lines[wanted], "text": texts[wanted]}
        return {"file": tf.fill(tf.shape(chosen["line"]), file), **chosen}

    paths = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    dataset = paths.interleave(blocks, cycle_length=min(len(files), _OPEN_FILES), block_length=1)
    return dataset.map(documents, num_parallel_calls=tf.data.AUTOTUNE)


def text_documents(
    files: Sequence[str | Path], *, keep: Callable[[Tensor], Tensor] | None = None
) -> Dataset:
    """What blank lines divide in text files, and the "text" of .jsonl and .json.gz files.

    Args:
      files: as of `text_lines`; a document's lines are stripped and stay lines.
      keep: from documents, string [n], to a mask [n] of those wanted; all by default.

    Returns:
      Examples {"text": str}, those of text files first; see `text_lines`.

    Raises:
      InputError: a file cannot be read.
    """
    plain = [file for file in files if not str(file).endswith(_JSON)]
    others = [file for file in files if str(file).endswith(_JSON)]
    parts = [_divided(plain, keep)] if plain else []
    parts += [text_lines(others, keep=keep)] if others else []
    return parts[0] if len(parts) == 1 else parts[0].concatenate(parts[1])


def _divided(files: Sequence[str | Path], keep: Callable[[Tensor], Tensor] | None) -> Dataset:
    from t5x_lite.data import stages
    from t5x_lite.data.quiet_tensorflow import tf

    _check_readable(files)

    def joined(file, lines, texts):
        """A block of lines as one text; what it adds to a file's last document is not known yet."""
        texts = _checked_utf8(file, lines, _without_mark(lines, texts))
        return tf.strings.reduce_join(texts, separator="\n")

    def step(begun, block):
        """The documents that end in a block, and the one that goes on behind it."""
        parts = tf.strings.split(tf.strings.join([begun, block], separator="\n"), "\n\n")
        return parts[-1], parts[:-1]

    def wanted(texts):
        texts = tf.strings.strip(texts)
        mask = tf.strings.length(texts) > 0
        return texts[mask if keep is None else mask & keep(texts)]

    def documents(file):
        compression = tf.where(tf.strings.regex_full_match(file, r".*\.gz"), "GZIP", "")
        numbered = tf.data.TextLineDataset(file, compression_type=compression).enumerate()
        blocks = numbered.batch(stages.DOCUMENTS_PER_GROUP)
        blocks = blocks.map(lambda lines, texts: joined(file, lines, texts))
        end = tf.data.Dataset.from_tensors("\n\n")  # a file's last document ends with it
        return blocks.concatenate(end).scan("", step)

    paths = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    dataset = paths.interleave(documents, cycle_length=min(len(files), _OPEN_FILES), block_length=1)
    return dataset.map(lambda texts: {"text": wanted(texts)}).unbatch()


def _check_readable(files: Sequence[str | Path]) -> None:
    for file in files:
        if not is_remote(file) and not os.access(file, os.R_OK):
            reason = errno.EACCES if os.path.exists(file) else errno.ENOENT
            raise InputError(f"cannot read {file}: {os.strerror(reason)}")


def _without_mark(lines: Tensor, texts: Tensor) -> Tensor:
    """The texts [n] without the byte-order mark with which a file's first line may begin."""
    from t5x_lite.data.quiet_tensorflow import tf

    return tf.where(lines == 0, tf.strings.regex_replace(texts, "^\ufeff", ""), texts)


def _checked_utf8(file: Tensor, lines: Tensor, texts: Tensor) -> Tensor:
    """The texts [n], stripped; raises with file and line at the first that is not UTF-8."""
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.stages import BEGIN, END

    decoded = tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", replace_control_characters=False
    )
    bad = lines[tf.not_equal(decoded, texts)]
    first = tf.strings.as_string(tf.reduce_min(bad) + 1)
    message = tf.strings.join([BEGIN, file, ":", first, ": not UTF-8: convert it to UTF-8", END])
    tf.debugging.Assert(tf.equal(tf.size(bad), 0), [message])
    return tf.strings.strip(texts)


def _jsonl_texts(block: Mapping[str, Any]) -> Mapping[str, Any]:
    file = block["file"][0].decode() if len(block["file"]) else ""
    if not file.endswith(_JSON):
        return block
    lines = zip(block["line"], block["text"], strict=True)
    return {"text": [_jsonl_text(text, where=f"{file}:{line + 1}") for line, text in lines]}


def _jsonl_text(line: bytes, *, where: str) -> bytes:
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
