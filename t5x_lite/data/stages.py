"""What tasks are made of: tf.data stages between raw text and seqio's "inputs" and "targets".

The words, as in seqio: a source yields raw examples, a preprocessor is a function from dataset to
dataset, and `seqio.CacheDatasetPlaceholder` divides the preprocessors in those whose output an
offline cache may hold and those that run anew in every epoch. Unsupervised text goes this way:

    text_lines -> chunk_documents -> number -> CacheDatasetPlaceholder -> count_epochs
        -> corrupt -> append_eos_after_trim

Every iterator over these stages can be saved: sources are files or tensors, and NumPy code enters
through `map_numpy` only, as a pure function of the example. What an example gets at random depends
on its own (seed, epoch, index): `number` attaches the index before seqio repeats the data, and
`count_epochs` the epoch after it.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.corruption import noise_counts, random_spans_lengths, span_corruption
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.vocabulary import Vocabulary
from t5x_lite.errors import InputError

Example = Mapping[str, Any]

Corruption = Callable[..., Mapping[str, np.ndarray]]
"""(tokens int32 [n], *, seed, epoch, index) -> {"inputs", "targets"}, int32 [_] without EOS."""

DOCUMENTS_PER_GROUP = 128
"""Documents that are concatenated before they are split into chunks, as in T5."""

_OPEN_FILES = 64
_BEGIN, _END = "<input error>", "</input error>"


def input_error(error: Exception) -> Exception:
    """The InputError inside an error that tf.data raised, or that error where the fault is ours."""
    message = str(getattr(error, "message", error))
    if _BEGIN in message:
        return InputError(message.split(_BEGIN, 1)[1].split(_END, 1)[0])
    unreadable = (
        tf.errors.NotFoundError,
        tf.errors.PermissionDeniedError,
        tf.errors.DataLossError,
        tf.errors.FailedPreconditionError,
    )
    if isinstance(error, unreadable):
        return InputError(f"cannot read the data: {message.splitlines()[0]}")
    return error


def map_numpy(
    dataset: tf.data.Dataset,
    function: Callable[[dict[str, np.ndarray]], Example],
    signature: Mapping[str, tf.TensorSpec],
) -> tf.data.Dataset:
    """Maps a pure NumPy function over examples: the one way for Python code into the graph.

    Args:
      dataset: examples as flat dicts.
      function: example -> example, a pure function of its argument (else a saved iterator would not
        go on as it was). An InputError that it raises reaches the user as it is.
      signature: names, shapes and dtypes of what the function returns.

    Returns:
      The dataset of the function's results, in the same order.
    """
    elements: Any = dataset.element_spec
    names = sorted(elements)

    def call(*values):
        try:
            outputs = function(dict(zip(names, values, strict=True)))
        except InputError as error:
            raise ValueError(f"{_BEGIN}{error}{_END}") from error
        return [np.asarray(outputs[k], v.dtype.as_numpy_dtype) for k, v in signature.items()]

    def apply(example):
        dtypes = [spec.dtype for spec in signature.values()]
        values = tf.numpy_function(call, [example[name] for name in names], dtypes, stateful=False)
        return {
            name: tf.ensure_shape(value, spec.shape)
            for (name, spec), value in zip(signature.items(), values, strict=True)
        }

    return dataset.map(apply, num_parallel_calls=tf.data.AUTOTUNE)


# Sources.


def _all(texts: tf.Tensor) -> tf.Tensor:
    return tf.fill(tf.shape(texts), True)


def text_lines(
    files: Sequence[Path], *, keep: Callable[[tf.Tensor], tf.Tensor] = _all
) -> tf.data.Dataset:
    """The non-empty lines of text files, and the "text" fields of .jsonl files.

    Up to 64 files are read in turn, 128 lines from each, so that neighbouring lines stay together
    and a shuffle buffer still sees many files. The order is always the same.

    Args:
      files: the files to read, in UTF-8, one document a line.
      keep: from stripped lines, string [n], to a mask [n] of those wanted; all by default.

    Returns:
      Examples {"text": str}. Iterating raises where a line is not UTF-8 or, in a .jsonl file, not
      an object with a string "text"; `input_error` reads it.

    Raises:
      InputError: a file cannot be read.
    """
    _check_readable(files)

    # tf.data costs tens of microseconds for each call of a function: hence by blocks, not lines.
    def blocks(file):
        numbered = tf.data.TextLineDataset(file).enumerate().batch(DOCUMENTS_PER_GROUP)
        return numbered.map(lambda lines, texts: (file, lines, texts))

    def documents(file, lines, texts):
        texts = _checked_utf8(file, lines, _without_mark(lines, texts))
        wanted = keep(texts) & (tf.strings.length(texts) > 0)
        chosen = {"line": lines[wanted], "text": texts[wanted]}
        return {"file": tf.fill(tf.shape(chosen["line"]), file), **chosen}

    paths = tf.data.Dataset.from_tensor_slices([str(file) for file in files])
    dataset = paths.interleave(blocks, cycle_length=min(len(files), _OPEN_FILES), block_length=1)
    dataset = dataset.map(documents, num_parallel_calls=tf.data.AUTOTUNE)
    if any(file.suffix == ".jsonl" for file in files):
        spec = tf.TensorSpec([None], tf.string)
        return map_numpy(dataset, _jsonl_texts, {"text": spec}).unbatch()
    return dataset.map(lambda block: {"text": block["text"]}).unbatch()


def _check_readable(files: Sequence[Path]) -> None:
    for file in files:
        if not os.access(file, os.R_OK):
            reason = errno.EACCES if file.exists() else errno.ENOENT
            raise InputError(f"cannot read {file}: {os.strerror(reason)}")


def _without_mark(lines: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """The texts [n] without the byte-order mark with which a file's first line may begin."""
    return tf.where(lines == 0, tf.strings.regex_replace(texts, "^\ufeff", ""), texts)


def _checked_utf8(file: tf.Tensor, lines: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """The texts [n], stripped; raises with file and line at the first that is not UTF-8."""
    decoded = tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", replace_control_characters=False
    )
    bad = lines[tf.not_equal(decoded, texts)]
    first = tf.strings.as_string(tf.reduce_min(bad) + 1)
    message = tf.strings.join([_BEGIN, file, ":", first, ": not UTF-8: convert it to UTF-8", _END])
    tf.debugging.Assert(tf.equal(tf.size(bad), 0), [message])
    return tf.strings.strip(texts)


def _jsonl_texts(block: Mapping[str, Any]) -> Example:
    file = block["file"][0].decode() if len(block["file"]) else ""
    if not file.endswith(".jsonl"):
        return block
    lines = zip(block["line"], block["text"], strict=True)
    return {"text": [_jsonl_text(text, where=f"{file}:{line + 1}") for line, text in lines]}


def _jsonl_text(line: bytes, *, where: str) -> bytes:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise InputError(f"{where}: not JSON that can be read ({error})") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be a JSON object, got {type(record).__name__}")
    if "text" not in record:
        raise InputError(f'{where}: must have "text"; it has {sorted(record) or "nothing"}')
    text = record["text"]
    if not isinstance(text, str):
        raise InputError(f'{where}: "text" must be a string, got {type(text).__name__}')
    return text.encode("utf-8", "replace")


# Preprocessors. seqio passes `output_features` and `sequence_length` to those that name them.


def chunk_documents(
    dataset: tf.data.Dataset, output_features: Mapping[str, Any], *, length: int
) -> tf.data.Dataset:
    """Tokenises documents, concatenates groups of 128, and splits each group into chunks.

    Nothing is put between documents, as in T5. A group's last chunk is shorter than the others; one
    of a single token, which span corruption cannot use, is dropped. T5 first cuts documents of more
    than 65536 tokens to a random part of that length: here they stay whole.

    Args:
      dataset: examples with "text".
      output_features: from seqio; the vocabulary is that of "targets".
      length: tokens of a chunk.

    Returns:
      Examples {"tokens": int32 [2..length]}.
    """
    vocabulary = output_features["targets"].vocabulary

    def chunks(documents):
        tokens = tf.cast(vocabulary.encode_tf(documents["text"]).flat_values, tf.int32)
        size = tf.size(tokens)
        # A last chunk of one token is of no use to span corruption.
        size -= tf.cast(size % length == 1, tf.int32)
        rows = tf.reshape(tf.pad(tokens[:size], [[0, -size % length]]), [-1, length])
        return {"tokens": rows, "length": tf.minimum(size - tf.range(0, size, length), length)}

    dataset = dataset.batch(DOCUMENTS_PER_GROUP).map(chunks, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.unbatch().map(lambda chunk: {"tokens": chunk["tokens"][: chunk["length"]]})


def number(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "index", int64: the example's position in the unshuffled data."""
    return dataset.enumerate().map(lambda index, example: {**example, "index": index})


def count_epochs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "epoch", int64 from 0: how often the first index has come by again."""

    def step(state, example):
        first, epoch = state
        first = tf.where(first < 0, example["index"], first)
        epoch += tf.cast(tf.equal(example["index"], first), tf.int64)
        return (first, epoch), {**example, "epoch": epoch}

    return dataset.scan((tf.constant(-1, tf.int64), tf.constant(-1, tf.int64)), step)


def corrupt(dataset: tf.data.Dataset, function: Corruption, *, seed: int) -> tf.data.Dataset:
    """Makes inputs and targets of "tokens", with the example's own (seed, epoch, index).

    Args:
      dataset: examples with "tokens", "epoch" and "index".
      function: one of corruption.py, its options bound.
      seed: the run's seed.

    Returns:
      Examples {"inputs", "targets"}: int32 [_] without EOS.
    """

    def corrupted(example):
        epoch, index = int(example["epoch"]), int(example["index"])
        return function(example["tokens"], seed=seed, epoch=epoch, index=index)

    spec = tf.TensorSpec([None], tf.int32)
    return map_numpy(dataset, corrupted, {"inputs": spec, "targets": spec})


# Parts of a seqio.Task.


def features(vocabulary: Vocabulary) -> dict[str, Any]:
    """The output features of a text-to-text task: "inputs" and "targets", each ended by EOS."""
    feature = seqio.Feature(vocabulary=vocabulary.seqio(), add_eos=True, dtype=tf.int32)
    return {"inputs": feature, "targets": feature}


def source(
    splits: Sequence[str], dataset_of: Callable[[str], tf.data.Dataset]
) -> seqio.FunctionDataSource:
    """A seqio source from a function of the split; the order of its examples is always the same."""

    def dataset_fn(split, shuffle_files, seed=None):
        del shuffle_files, seed  # a cache must be able to hold what comes of it
        return dataset_of(split)

    return seqio.FunctionDataSource(dataset_fn, splits=splits)


def text_documents(texts: Sequence[str]) -> tf.data.Dataset:
    """Examples {"text"}, held in memory."""
    encoded = tf.constant([text.encode() for text in texts], tf.string, shape=[len(texts)])
    return tf.data.Dataset.from_tensor_slices(encoded).map(lambda text: {"text": text})


def text_pairs(inputs: Sequence[str], targets: Sequence[str]) -> tf.data.Dataset:
    """Examples {"inputs", "targets"} of text, held in memory."""
    columns: Any = {
        name: tf.constant([text.encode() for text in texts], tf.string, shape=[len(texts)])
        for name, texts in (("inputs", inputs), ("targets", targets))
    }
    return tf.data.Dataset.from_tensor_slices(columns)


SUPERVISED_PREPROCESSORS = (
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos_after_trim,
)
"""From text under "inputs" and "targets" to tokens."""


def span_corruption_preprocessors(
    arguments: TaskArguments, *, noise_density: float, mean_noise_span_length: float
) -> list[Callable[..., tf.data.Dataset]]:
    """From "text" to span corruption's "inputs" and "targets": the whole list for a seqio.Task.

    Raises:
      InputError: if the lengths do not go together, or the sentinels do not suffice.
    """
    inputs_length, extra_ids = arguments.inputs_length, arguments.vocabulary.num_sentinels
    if inputs_length < 3:
        raise InputError(
            f"span corruption needs a data.inputs_length of at least 3, got {inputs_length}"
        )
    raw, needed = random_spans_lengths(inputs_length, noise_density, mean_noise_span_length)
    if arguments.targets_length < needed:
        raise InputError(
            f"span corruption of data.inputs_length {inputs_length} gives {needed} tokens of "
            f"targets, but data.targets_length is {arguments.targets_length}: set it to {needed}"
        )
    _, spans = noise_counts(raw, noise_density, mean_span_length=mean_noise_span_length)
    if spans > extra_ids:
        raise InputError(
            f"span corruption of data.inputs_length {inputs_length} needs {spans} sentinels, but "
            f"the vocabulary has {extra_ids}: raise data.extra_ids"
        )
    function = partial(
        span_corruption,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
    )
    return corruption_preprocessors(function, length=raw, seed=arguments.seed)


def corruption_preprocessors(
    function: Corruption, *, length: int, seed: int
) -> list[Callable[..., tf.data.Dataset]]:
    """From "text" to the "inputs" and "targets" of a corruption: the whole list for a seqio.Task.

    Args:
      function: one of corruption.py, its options bound.
      length: tokens of the chunks that it gets.
      seed: the run's seed.
    """
    return [
        partial(chunk_documents, length=length),
        number,
        seqio.CacheDatasetPlaceholder(),
        count_epochs,
        partial(corrupt, function=function, seed=seed),
        seqio.preprocessors.append_eos_after_trim,
    ]
