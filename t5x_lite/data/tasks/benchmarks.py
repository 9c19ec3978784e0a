"""Benchmark tasks from official files or TensorFlow Datasets (TFDS), with the same text from both.

    RTE = Benchmark(
        name="super_glue_rte",
        tfds="super_glue/rte",
        folder="RTE",
        files={"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"},
        read=read_rte,          # (file, split) -> records with TFDS's features
        examples=as_text,       # (record, split) -> examples with "inputs" and "targets"
    )
    def rte(arguments: TaskArguments) -> seqio.Task:
        return task(RTE, arguments)

data.directory selects the source of the records:

    GLUE or GLUE/RTE        the official files
    DIR with glue/rte/...   what TFDS has prepared there
    tfds                    TFDS in its own directory (TFDS_DATA_DIR, or ~/tensorflow_datasets)
    tfds:DIR, gs://bucket   TFDS in that directory or bucket
    nothing                 TFDS, if TFDS_DATA_DIR is set

TFDS downloads and prepares missing data if there is a network connection.
"""

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath, can_read, data_path, files_among, not_installed
from t5x_lite.core.remote import is_remote
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.lines import read_lines
from t5x_lite.data.tasks.labelled import Labelled, SpanText, labelled_task
from t5x_lite.data.tasks.labelled import extras as labelled_extras
from t5x_lite.data.tasks.names import Wording, mark
from t5x_lite.data.tasks.questions import choice_task, expanded, window_task
from t5x_lite.layouts.labelled import Windows

Record = Mapping[str, Any]
Example = Mapping[str, Any]

_TFDS = "tfds"
_ENDED, _LINE = "files that have ended", "line"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Definition of a benchmark task, with data from official files or TFDS.

    Attributes:
      name: name of the seqio task.
      tfds: name of the data set in TFDS, "dataset/config"; "" if TFDS does not have the task.
      folder: name of the task's folder among the official files.
      files: official file of each split. The keys are the names of the splits.
      read: function (file, split) that returns the records of a file, with the features of TFDS, as
        an iterable or a tf.data.Dataset.
      examples: function (record, split) that returns the examples made of the record, in T5's text
        format.
      extras: types of an example's fields other than inputs and targets: int, str, or list for a
        list of str.
      tfds_splits: name of a split in TFDS, for each split with a different name in TFDS.
      postprocess: function (text, example=, is_target=) that returns the value that metrics
        compare; None for the text itself.
      metrics: functions (targets, predictions) -> {name: value}.
      labelled: texts and labels that an encoder reads; None if encoders are not supported.
      wording: prefix and template of the inputs; None if the inputs have no template.
    """

    name: str
    tfds: str
    folder: str
    files: Mapping[str, str]
    read: Callable[[DataPath, str], Any]
    examples: Callable[..., Sequence[Example]]
    extras: Mapping[str, type] = field(default_factory=lambda: {"idx": int})
    tfds_splits: Mapping[str, str] = field(default_factory=dict)
    postprocess: Callable[..., Any] | None = None
    metrics: Sequence[Callable[..., Any]] = ()
    labelled: Labelled | None = None
    wording: Wording | None = None


def task(benchmark: Benchmark, arguments: TaskArguments) -> Any:
    """Build the seqio.Task of a benchmark, given the arguments of a task function.

    Errors in a file are raised when its split is read.
    """
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import stages

    if "labels" in arguments.layout.features:
        return _labelled(benchmark, arguments)
    is_worded = benchmark.wording is not None
    benchmark = _reworded(benchmark, arguments)
    made = seqio.Task(
        benchmark.name,
        source=_source(benchmark, arguments.directory),
        preprocessors=stages.SUPERVISED_PREPROCESSORS,
        output_features=stages.features(arguments.vocabulary),
        postprocess_fn=benchmark.postprocess,
        metric_fns=list(benchmark.metrics),
    )
    return mark(made) if is_worded else made


def _reworded(benchmark: Benchmark, arguments: TaskArguments) -> Benchmark:
    own = benchmark.wording
    if own is None or (not arguments.template and arguments.prefix is None):
        return benchmark
    inputs = own.changed(arguments).inputs
    return replace(benchmark, examples=partial(benchmark.examples, inputs=inputs))


def _labelled(benchmark: Benchmark, arguments: TaskArguments) -> Any:
    """Return a benchmark's seqio.Task for an encoder with a head, such as a classifier."""
    form = benchmark.labelled
    if form is None:
        raise InputError(
            f"task {benchmark.name} supports only text-to-text models, not data.layout "
            f"{arguments.layout.name}"
        )

    def examples(record: Record, split: str) -> list[Example]:
        if form.kinds is not None:
            return [form.example(record, {})]
        made = benchmark.examples(record, split)[0]
        return [form.example(record, {name: made[name] for name in benchmark.extras})]

    kinds = benchmark.extras if form.kinds is None else form.kinds
    shown = replace(benchmark, examples=examples, extras=labelled_extras(kinds, form))
    postprocess = form.postprocess or benchmark.postprocess
    make = choice_task if form.choices else labelled_task
    in_windows = form.spans and isinstance(arguments.layout, Windows)
    return (window_task if in_windows else make)(
        benchmark.name,
        arguments,
        form,
        source=_source(shown, arguments.directory, mark=form.candidates, one_to_one=not in_windows),
        postprocess=SpanText(arguments.vocabulary, form.nulls) if form.spans else postprocess,
        metrics=benchmark.metrics,
    )


def _source(
    benchmark: Benchmark, directory: str, *, mark: str = "", one_to_one: bool = True
) -> Any:
    from t5x_lite.data.tasks import stages

    datasets = _datasets(benchmark, directory)

    def rows(split: str) -> Any:
        return expanded(datasets(split), mark=mark)

    return stages.source(
        tuple(benchmark.files), rows if mark else datasets, one_to_one=one_to_one, made_of=datasets
    )


def _datasets(benchmark: Benchmark, directory: str) -> Callable[[str], Any]:
    files = official_folder(benchmark, directory)
    if files is not None:
        return lambda split: _from_file(benchmark, files / benchmark.files[split], split)
    data_dir = _tfds_directory(benchmark, directory)
    if data_dir is None:
        first = next(iter(benchmark.files.values()))
        raise InputError(
            f"no {benchmark.folder}/{first} in data.directory {directory!r}, which must contain "
            f"{benchmark.folder}, or be that folder itself; for TensorFlow Datasets, give "
            "tfds:DIRECTORY, gs://... or tfds"
        )
    return lambda split: from_tfds(benchmark, split, data_dir=data_dir)


def _from_file(benchmark: Benchmark, file: DataPath, split: str) -> Any:
    from t5x_lite.data.elements import tf

    records = benchmark.read(file, split)
    if isinstance(records, tf.data.Dataset):
        return map_records(
            records, lambda record: benchmark.examples(record, split), extras=benchmark.extras
        )
    found = (example for record in records for example in benchmark.examples(record, split))
    return in_memory([*found], benchmark.extras)


def official_folder(benchmark: Benchmark, directory: str) -> DataPath | None:
    """Return the folder with the official files of a benchmark; None if the folder is missing."""
    if not directory or (is_remote(directory) and not can_read(directory)):
        return None
    whole = data_path(directory)
    for root in (whole / benchmark.folder, whole):
        if files_among(root, benchmark.files.values()):
            return root
    return None


def _tfds_directory(benchmark: Benchmark, directory: str) -> str | None:
    if not benchmark.tfds:
        return None
    if directory == _TFDS or (not directory and os.environ.get("TFDS_DATA_DIR")):
        return ""
    if directory.startswith(f"{_TFDS}://"):
        raise InputError(
            f"data.directory {directory} names a TFDS data set, but the task always reads "
            f"{benchmark.tfds}; set data.directory to tfds, or to tfds:DIR for another data_dir"
        )
    if directory.startswith(f"{_TFDS}:"):
        return directory.removeprefix(f"{_TFDS}:")
    prepared = bool(directory) and Path(directory, benchmark.tfds.partition(":")[0]).is_dir()
    return directory if is_remote(directory) or prepared else None


# Examples in memory.


def in_memory(examples: Sequence[Example], extras: Mapping[str, type]) -> Any:
    """Return examples with "inputs", "targets" and the fields `extras` as a tf.data.Dataset."""
    from t5x_lite.data.elements import tf

    kinds = {"inputs": str, "targets": str, **extras}
    columns: Any = {}
    for name, kind in kinds.items():
        values = [example[name] for example in examples]
        if kind is list:
            texts = [[text.encode() for text in texts] for texts in values]
            flat = tf.constant([*itertools.chain(*texts)], tf.string, shape=[sum(map(len, texts))])
            lengths = tf.constant([*map(len, texts)], tf.int64, shape=[len(texts)])
            ragged: Any = tf.RaggedTensor
            columns[name] = ragged.from_row_lengths(flat, lengths)
        elif kind is str:
            encoded = [text.encode() for text in values]
            columns[name] = tf.constant(encoded, tf.string, shape=[len(encoded)])
        else:
            dtype = tf.float32 if kind is float else tf.int64
            columns[name] = tf.constant(values, dtype, shape=[len(values)])
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    # A row of a ragged tensor is a tensor, but its specification is not a TensorSpec.
    lists = [name for name, kind in kinds.items() if kind is list]
    if not lists:
        return dataset
    return dataset.map(lambda example: {**example, **{n: tf.identity(example[n]) for n in lists}})


def parallel_records(files: Mapping[str, DataPath]) -> Iterator[Record]:
    """Yield the lines of files that are translations of each other, as {language: line}."""
    columns = [read_lines([str(file)]) for file in files.values()]
    for lines in itertools.zip_longest(*columns):
        for file, line in zip(files.values(), lines, strict=True):
            if line is None:
                raise _too_short(file)
        yield dict(zip(files, lines, strict=True))


def _too_short(file: Any) -> InputError:
    return InputError(f"{file} has fewer lines than the files of the other languages")


def parallel_lines(files: Mapping[str, DataPath]) -> Any:
    """Return a dataset of the lines of files that are translations of each other.

    Args:
      files: file of each language.

    Returns:
      A tf.data.Dataset of {language: line}, the line number, and the files that have ended.
    """
    from t5x_lite.data.elements import tf

    for file in files.values():
        if is_remote(file):
            raise InputError(
                f"{file}: files of several languages must be local files; copy the files to this "
                "machine, or mount the bucket and give the mounted path"
            )
        if not file.is_file():
            absent = FileNotFoundError(str(file))
            raise InputError(f"cannot read {file}: no such file") from absent

    def lines(file: DataPath) -> Any:
        texts = tf.data.TextLineDataset(str(file)).map(lambda text: ("", text))
        return texts.concatenate(tf.data.Dataset.from_tensors((str(file), "")))

    def record(number: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
        texts = {name: text for name, (_, text) in columns.items()}
        ended = [end for end, _ in columns.values()]
        return {**texts, _ENDED: tf.stack(ended), _LINE: number + 1}

    rows = tf.data.Dataset.zip({name: lines(file) for name, file in files.items()})
    return rows.enumerate().map(record)


# TensorFlow Datasets.


def from_tfds(benchmark: Benchmark, split: str, *, data_dir: str) -> Any:
    """Return the examples of a benchmark's split from TFDS, after downloading missing data.

    Args:
      benchmark: benchmark that the split belongs to.
      split: name of a split of the benchmark.
      data_dir: TFDS's directory, which may be in a bucket; "" for TFDS's default.
    """
    builder = _prepared(benchmark.tfds, data_dir)
    name = benchmark.tfds_splits.get(split, split)
    if name not in builder.info.splits:
        there = ", ".join(builder.info.splits)
        raise InputError(f"TFDS's {benchmark.tfds} has no split {name!r}; the splits are {there}")
    from t5x_lite.data.elements import seqio

    tfds = seqio.utils.tfds  # imported by seqio; a direct import here would print warnings
    # An in-memory cache is not part of a saved iterator.
    config = tfds.ReadConfig(try_autocache=False, skip_prefetch=True)
    dataset = builder.as_dataset(split=name, shuffle_files=False, read_config=config)
    if "idx" in benchmark.extras and "idx" not in dataset.element_spec:
        dataset = dataset.enumerate().map(lambda number, record: {**record, "idx": number})
    return map_records(
        dataset, lambda record: benchmark.examples(record, split), extras=benchmark.extras
    )


def _prepared(name: str, data_dir: str) -> Any:
    from t5x_lite.data.elements import seqio

    tfds: Any = seqio.utils.tfds
    where = data_dir or tfds.core.constants.DATA_DIR
    parts = [where, *(os.path.join(where, part) for part in ("downloads", name.partition("/")[0]))]
    absent = [] if is_remote(where) else [part for part in parts if not os.path.exists(part)]
    try:
        builder = tfds.builder(name, data_dir=data_dir or None, try_gcs=False)
        if not builder.is_prepared():
            with contextlib.redirect_stdout(sys.stderr):  # TFDS prints progress to stdout
                builder.download_and_prepare()
    except ImportError as error:  # TFDS imports some packages late
        raise InputError(
            f"TFDS cannot prepare {name} without the package {error.name}; install the package, or "
            "give the official files as data.directory"
        ) from error
    except Exception as error:  # errors of network, disk or versions
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        _remove_unfinished(absent)
        also = _how_to_read(data_dir)
        raise InputError(
            f"TFDS has no {name} in {where} and could not prepare it ({reason}); run `tfds build "
            f"{name}` on a machine with a network, or give the official files as "
            f"data.directory{also}"
        ) from error
    return builder


def _remove_unfinished(directories: Sequence[str]) -> None:
    """Remove directories without a finished TFDS file; finished downloads are kept."""
    for directory in directories:
        files = [file for file in Path(directory).rglob("*") if file.is_file()]
        if all(".tmp." in file.name or file.parent.name == ".config" for file in files):
            shutil.rmtree(directory, ignore_errors=True)


def _how_to_read(data_dir: str) -> str:
    """Return a hint on the package to install if a bucket cannot be read, else ""."""
    if not is_remote(data_dir) or can_read(data_dir):
        return ""
    return f" ({not_installed(data_dir)})"


def map_records(
    dataset: Any,
    function: Callable[[Record], Sequence[Example]],
    *,
    extras: Mapping[str, type],
) -> Any:
    """Return a tf.data.Dataset of the examples that a Python function makes from each record.

    Args:
      dataset: records, possibly nested, with text in UTF-8.
      function: function from a record, in Python's own types, to its examples. A list field must
        have the same length in all examples of a record.
      extras: types of an example's fields other than inputs and targets.
    """
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    kinds = {"inputs": str, "targets": str, **extras}
    dtypes = {int: tf.int64, float: tf.float32}
    signature = {
        name: tf.TensorSpec([None, None] if kind is list else [None], dtypes.get(kind, tf.string))
        for name, kind in kinds.items()
    }

    def examples(flat: Mapping[str, Any]) -> dict[str, np.ndarray]:
        record = _record(flat)
        ended = [file for file in record.pop(_ENDED, []) if file]
        if ended and len(ended) == len(flat[_ENDED]):
            found = []  # after the last line of all files
        elif ended:
            raise _too_short(ended[0])
        else:
            found = function(record)
        return {name: _column([e[name] for e in found], kind) for name, kind in kinds.items()}

    return stages.map_numpy(dataset.map(_flat), examples, signature).unbatch()


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _record(flat: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = record
        for parent in parents:
            node = node.setdefault(parent, {})
        try:
            node[name] = _plain(value.tolist() if hasattr(value, "tolist") else value)
        except UnicodeDecodeError as error:
            line = f" of line {flat[_LINE]}" if _LINE in flat else ""
            raise InputError(f"feature {path}{line} is not UTF-8: {value[:40]!r}") from error
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _column(values: Sequence[Any], kind: type) -> np.ndarray:
    if kind in (int, float):
        return np.array(values, np.int64 if kind is int else np.float32)
    if kind is str:
        return np.array([text.encode() for text in values], object)
    texts = [[text.encode() for text in texts] for texts in values]
    return np.array(texts, object).reshape(len(texts), len(texts[0]) if texts else 0)
