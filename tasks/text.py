"""Pretraining on any text files, the lines of a directory: span corruption, and language models.

    --data.task tasks.text:span_corruption --data.directory DIR

DIR holds *.txt, one document a line (blank lines are skipped), or *.jsonl, objects with a "text".
What is held out for validation: whole files (`t5x_lite.data.text_files` says which) or, of fewer
than 20 files, about every 100th line: those whose hash says so, so that a line that is repeated is
always on the same side, and blank lines do not count.

The paper's variants (Raffel et al. 2020, tables 6 and 7) are named <noise>_<density>_<inputs>_
<targets>: "u_u" is one sentinel a span on both sides. iid_15_u_u, noise drawn token by token, is
left for the other objectives. `language_model` and `prefix_lm` are lm and prefix_lm of its tables 2
and 4.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from t5x_lite.data import stages
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.corruption import prefix_split
from t5x_lite.data.text_files import split_files
from t5x_lite.errors import InputError

LINES_PER_HELD_OUT_LINE = 100


def span_corruption(
    arguments: TaskArguments, *, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> seqio.Task:
    """T5's objective: 15% of the tokens in spans of 3."""
    preprocessors = stages.span_corruption_preprocessors(
        arguments,
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
    )
    return _task("span_corruption", arguments, preprocessors)


span_2_15_u_u = partial(span_corruption, mean_noise_span_length=2.0)
span_3_15_u_u = partial(span_corruption, mean_noise_span_length=3.0)
span_5_15_u_u = partial(span_corruption, mean_noise_span_length=5.0)
span_10_15_u_u = partial(span_corruption, mean_noise_span_length=10.0)


def language_model(arguments: TaskArguments) -> seqio.Task:
    """T5's "lm": the text itself in chunks of targets_length, the EOS of each included.

    There are no inputs: data.layout is "lm".
    """
    length = _chunk_length("targets_length", arguments.targets_length, extra=1)
    preprocessors = (
        partial(stages.chunk_documents, length=length),
        lambda dataset: dataset.map(lambda chunk: {"targets": chunk["tokens"]}),
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
    )
    return _task("language_model", arguments, preprocessors, features=("targets",))


def prefix_lm(arguments: TaskArguments) -> seqio.Task:
    """T5's "prefix_lm": text split at a random place into inputs and targets, EOS on both.

    For an encoder-decoder with data.layout "seq2seq", for a decoder alone with "prefix_lm". A chunk
    of text is of one document. It is two tokens shorter than the shorter of inputs_length and
    targets_length, so that no split is cut off and, where these are equal, two examples just fill a
    row of the "prefix_lm" layout; T5's is one token longer.
    """
    shorter = min(arguments.inputs_length, arguments.targets_length)
    length = _chunk_length("inputs_length and data.targets_length", shorter, extra=2)
    preprocessors = (
        partial(_chunks_of_each_document, length=length),
        stages.number,
        seqio.CacheDatasetPlaceholder(),
        stages.count_epochs,
        partial(stages.corrupt, function=prefix_split, seed=arguments.seed),
        seqio.preprocessors.append_eos_after_trim,
    )
    return _task("prefix_lm", arguments, preprocessors)


def _chunk_length(field: str, length: int, *, extra: int) -> int:
    if length < extra + 2:
        raise InputError(f"data.{field} must be at least {extra + 2} for this task: got {length}")
    return length - extra


def _chunks_of_each_document(
    dataset: tf.data.Dataset, output_features: Mapping[str, Any], *, length: int
) -> tf.data.Dataset:
    """`stages.chunk_documents` without concatenation: a chunk has tokens of one document only."""

    def chunks(document: Mapping[str, tf.Tensor]) -> tf.data.Dataset:
        alone = tf.data.Dataset.from_tensors(document)
        return stages.chunk_documents(alone, output_features, length=length)

    return dataset.flat_map(chunks)


def _task(
    name: str,
    arguments: TaskArguments,
    preprocessors: Sequence[Callable[..., tf.data.Dataset]],
    *,
    features: Sequence[str] = ("inputs", "targets"),
) -> seqio.Task:
    splits = split_files(arguments.directory)
    both = stages.features(arguments.vocabulary)
    return seqio.Task(
        f"text_{name}",
        source=stages.source(("train", "validation"), partial(_lines, splits)),
        preprocessors=preprocessors,
        output_features={feature: both[feature] for feature in features},
    )


def _lines(splits: Mapping[str, Sequence[Path]], split: str) -> tf.data.Dataset:
    if splits["train"] is not splits["validation"]:
        return stages.text_lines(splits[split])

    def keep(texts: tf.Tensor) -> tf.Tensor:
        held_out = tf.strings.to_hash_bucket_fast(texts, LINES_PER_HELD_OUT_LINE) == 0
        return held_out if split == "validation" else ~held_out

    return stages.text_lines(splits[split], keep=keep)
