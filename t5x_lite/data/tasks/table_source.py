"""Seqio source of tables: small tables are held in memory, and larger ones are streamed.

    table_source(columns, columns.splits("reviews"), kinds={"id": str})

In memory, each epoch is a permutation of all rows. A stream is read in order, through the shuffle
buffer. Its order does not depend on the names of the files or the division of rows among them. A
saved iterator over a stream resumes by reading all rows before its position again.
"""

import dataclasses
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from glob import has_magic
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import size_of
from t5x_lite.core.remote import is_remote
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.elements import seqio, tf
from t5x_lite.data.formats.lines import is_compressed
from t5x_lite.data.formats.tables import HubSplit, Table
from t5x_lite.data.preprocessors import UNKNOWN, Columns
from t5x_lite.data.tasks import benchmarks, stages, text_source
from t5x_lite.data.tasks.labelled import Labelled, extras, labelled_task
from t5x_lite.data.tasks.names import Wording, mark

_ROWS = 256
_ENDED = "no more rows"
_DTYPES = {str: tf.string, int: tf.int64, float: tf.float32}
_EXPANSION = 8
"""Typical maximum ratio of text to file size, for compressed files and Parquet."""


def table_source(
    columns: Columns,
    splits: Mapping[str, Sequence[Table]],
    *,
    kinds: Mapping[str, type],
    example: Callable[[dict[str, Any]], Mapping[str, Any]] = dict,
) -> stages.Source:
    """Return a seqio source of the rows of tables, held in memory or streamed.

    Args:
      columns: options of data.columns.
      splits: tables of each split.
      kinds: types of an example's fields other than inputs and targets.
      example: function that converts the inputs and targets of a row to an example of the task.
    """
    divided = bool(columns.hold_out) and splits.get("validation") == splits.get("train")

    def examples(split: str) -> Iterator[Mapping[str, Any]]:
        for one in columns.examples(splits[split], split):
            if not divided or split == "test" or columns.held_out(one) == (split == "validation"):
                yield example(one)

    streamed = columns.stream
    if streamed is None:
        streamed = not all(map(fits_in_memory, splits.values()))
    if streamed:
        return _Stream(splits, examples, kinds={"inputs": str, "targets": str, **kinds})
    return stages.source(
        tuple(splits),
        lambda split: benchmarks.in_memory([*examples(split)], extras=kinds),
        one_to_one=True,
    )


def fits_in_memory(sources: Sequence[Table]) -> bool:
    """Return True if tables have at most 64 MiB of text.

    Compressed tables and Parquet count eight times their size.
    """
    files = [table for table in sources if not isinstance(table, HubSplit)]
    if len(files) < len(sources):
        return False
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError):
        return True  # reading the files names the missing one
    texts = [
        _EXPANSION if is_compressed(str(t)) or str(t).endswith(".parquet") else 1 for t in files
    ]
    return sum(s * t for s, t in zip(sizes, texts, strict=True)) <= text_source.IN_MEMORY_BYTES


class _Stream(stages.Source):
    """Seqio source of table rows that are read from the start in every pass."""

    def __init__(
        self,
        splits: Mapping[str, Sequence[Table]],
        examples: Callable[[str], Iterator[Mapping[str, Any]]],
        *,
        kinds: Mapping[str, type],
    ):
        self._tables, self._examples, self._kinds = splits, examples, kinds
        super().__init__(tuple(splits), self._dataset, one_to_one=True)

    def fits_in_memory(self, split: str) -> bool:
        del split
        return False

    def passes(self, split: str, *, seed: int) -> text_source.Passes:
        del seed
        tables = self._tables[split]
        named = None if any(isinstance(t, HubSplit) for t in tables) else tables
        size = None if named is None else text_source.sizes_of(named)
        return text_source.Passes(lambda epoch: self._dataset(split), size=size)

    def _dataset(self, split: str) -> tf.data.Dataset:
        reader = _Reader(partial(self._examples, split))
        spec = {name: tf.TensorSpec([None], _DTYPES[kind]) for name, kind in self._kinds.items()}

        def block(at: Mapping[str, Any]) -> dict[str, Any]:
            rows = reader.block(int(at["number"]))
            found = {n: _column([row[n] for row in rows], k) for n, k in self._kinds.items()}
            return {**found, _ENDED: not rows}

        numbers = tf.data.Dataset.range(tf.int64.max).map(lambda number: {"number": number})
        ended = {_ENDED: tf.TensorSpec([], tf.bool)}
        # Blocks are read in sequence, so that an open file is read further.
        blocks = stages.map_numpy(numbers, block, {**spec, **ended}, parallel=False)
        blocks = blocks.take_while(lambda block: ~block[_ENDED])
        return blocks.map(lambda block: {name: block[name] for name in spec}).unbatch()


class _Reader:
    """Reader of blocks of table rows, given the number of a block."""

    def __init__(self, rows: Callable[[], Iterator[Mapping[str, Any]]]):
        self._rows, self._lock = rows, threading.Lock()
        self._open: Iterator[Mapping[str, Any]] = iter(())
        self._next = -1

    def block(self, number: int) -> list[Mapping[str, Any]]:
        with self._lock:
            if number != self._next:
                self._open = itertools.islice(self._rows(), number * _ROWS, None)
            try:
                found = [*itertools.islice(self._open, _ROWS)]
            except InputError:
                self._next = -1
                raise
            self._next = number + 1
            return found


def _column(values: Sequence[Any], kind: type) -> np.ndarray:
    if kind is str:
        return np.array([text.encode() for text in values], object)
    return np.array(values, np.float32 if kind is float else np.int64)


def tables_of(
    arguments: TaskArguments,
    find: Callable[[Columns], Mapping[str, tuple[Table, ...]]] | None = None,
) -> tuple[Columns, dict[str, tuple[Table, ...]]]:
    """Return a task's options of data.columns, and the tables of each split.

    Args:
      arguments: arguments of the task function.
      find: function from data.columns to the tables of each split; None uses `Columns.splits`.
    """
    columns: Columns = arguments.columns
    if arguments.template or arguments.prefix is not None:
        own = Wording(prefix="", template=columns.inputs, columns=None)
        columns = dataclasses.replace(columns, inputs=own.changed(arguments).inputs)
    columns.check()
    if find is not None:
        found = dict(find(columns))
        if columns.hold_out and "train" in found:
            found.setdefault("validation", found["train"])
        return columns, found
    if columns.min_score is not None:
        raise InputError("data.columns.min_score is only for tasks.files:parallel; unset it")
    splits = columns.splits(arguments.directory)
    directory = arguments.directory
    is_local = bool(directory) and not is_remote(directory) and not has_magic(directory)
    if not splits and is_local and not os.path.exists(directory):
        raise InputError(f"data.directory {directory}: no such file or directory")
    if not splits:
        raise InputError(
            "no train, validation or test file (.jsonl, .csv, .tsv, .parquet, .arrow) in "
            f"data.directory {arguments.directory!r}; name others by --data.columns.train"
        )
    return columns, splits


def table_task(
    metrics: Sequence[Callable[..., Any]],
    arguments: TaskArguments,
    columns: Columns,
    splits: dict[str, tuple[Table, ...]],
    *,
    postprocess: Callable[..., Any] | None,
    form: Labelled | None = None,
) -> seqio.Task:
    """Make a seqio.Task of the rows of tables.

    Args:
      metrics: functions (targets, predictions) -> {name: value}.
      arguments: arguments of the task function.
      columns: columns from `tables_of`, with labels if the task has them.
      splits: tables of each split.
      postprocess: function (text, example=, is_target=) that returns the value that metrics
        compare.
      form: description of the task for encoders; None if encoders are not supported.
    """
    if "labels" in arguments.layout.features:
        if form is None:
            raise InputError(
                f"data.layout {arguments.layout.name} is only supported by tasks.files:classify "
                "and tasks.files:regress"
            )
        kinds = extras({"id": str}, form)
        shown = table_source(
            columns, splits, kinds=kinds, example=lambda one: form.example(one, {"id": one["id"]})
        )
        options = {"source": shown, "postprocess": postprocess, "metrics": metrics}
        return mark(labelled_task("files", arguments, form, **options))
    if columns.second:
        raise InputError(
            "data.columns.second is only for an encoder; write both texts into "
            f"data.columns.inputs, such as '{columns.inputs} {columns.second}'"
        )
    made = seqio.Task(
        "files",
        source=table_source(columns, splits, kinds={"id": str}),
        preprocessors=stages.SUPERVISED_PREPROCESSORS,
        output_features=stages.features(arguments.vocabulary),
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )
    return mark(made)


def texts_of_encoder(columns: Columns) -> tuple[str, ...]:
    """Return the names of the text columns that an encoder reads: one text or two."""
    return ("inputs", "second") if columns.second else ("inputs",)


def score_of(record: Any) -> float:
    """Return the regression target of a record as a number, or NaN if it is unknown."""
    if record["targets"] == UNKNOWN:
        return math.nan
    try:
        return float(record["targets"])
    except ValueError as error:
        raise InputError(
            f"the target {record['targets']!r} of row {record['id']} is not a number, which "
            "tasks.files:regress needs"
        ) from error
