"""GLUE's official TSV files (Wang et al. 2019, arXiv:1804.07461) and the tasks over them, as rows.

    SST2 = GlueTask(
        name="sst2",
        directory="SST-2",
        template="sentence: {sentence}",
        labels={"0": "negative", "1": "positive"},
    )
    benchmarks.task(SST2.benchmark(), arguments)        # a seqio.Task

The files have no quoting: a quotation mark is a character like any other.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from t5x_lite.buckets.paths import DataPath
from t5x_lite.data.labels import NONE, of_class
from t5x_lite.data.postprocess import ClassIndex, any_number
from t5x_lite.data.preprocess.classification import glue, label_text
from t5x_lite.data.preprocess.templates import places
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.data.tasks.labelled import Labelled
from t5x_lite.data.tasks.wording import Wording
from t5x_lite.errors import InputError
from t5x_lite.metrics.classification import accuracy
from t5x_lite.records.benchmark_files import Row, label_index, numbered, read_tsv

FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of GLUE. Its text is "<prefix> <template>", the record's fields in their places.

    Attributes:
      name: of the task, and TFDS's name of its config.
      directory: the folder's official name.
      template: the fields that are shown, in T5's order.
      labels: the label column's entries and their words, in the order of the class indices; none
        where the label is a number (STS-B).
      prefix: None is the name.
      columns: the record's fields and their official columns; none are the fields of the template,
        under their own names.
      label_column: the column of the labels; test files lack it.
      id_column: the column of the numbers; where a file lacks it, its rows are counted from 0.
      header: the columns of train and validation, where these files have no header.
      skip_incomplete: whether rows with too few columns are left out, with a warning.
      files: the official file of each split.
      tfds_splits: what TFDS calls a split, where it has another name for it.
      as_text: (record, inputs=prefix and template) -> example; None is `preprocess.glue`.
      extras: the fields of an example beside inputs and targets.
      postprocess: None is the class index.
      metrics: functions (targets, predictions) -> {name: value}.
      texts: the fields that an encoder reads, in its order; none are those of the template.
    """

    name: str
    directory: str
    template: str
    labels: Mapping[str, str]
    prefix: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    label_column: str = "label"
    id_column: str = "index"
    header: Sequence[str] = ()
    skip_incomplete: bool = False
    files: Mapping[str, str] = field(default_factory=lambda: FILES)
    tfds_splits: Mapping[str, str] = field(default_factory=dict)
    as_text: Callable[..., dict[str, Any]] | None = None
    extras: Mapping[str, type] = field(default_factory=lambda: {"idx": int})
    postprocess: Callable[..., Any] | None = None
    metrics: Sequence[Callable[..., Any]] = (accuracy,)
    texts: Sequence[str] = ()

    def benchmark(self) -> Benchmark:
        """The task, to be read from its files or from TFDS."""
        words = tuple(self.labels.values())
        return Benchmark(
            name=f"glue_{self.name}",
            tfds=f"glue/{self.name}",
            folder=self.directory,
            files=self.files,
            read=self.records,
            examples=lambda record, split, **words: [self.example(record, **words)],
            extras=self.extras,
            tfds_splits=self.tfds_splits,
            postprocess=self.postprocess or ClassIndex(words),
            metrics=self.metrics,
            labelled=self.labelled(),
            wording=self.wording(),
        )

    def wording(self) -> Wording:
        """The words of its inputs, and the columns that others may show."""
        prefix = self.name if self.prefix is None else self.prefix
        shown = places(self.template)
        columns = tuple(dict.fromkeys([*shown, *self.columns]))
        return Wording(prefix=prefix, template=self.template, columns=columns)

    def labelled(self) -> Labelled | None:
        """How an encoder reads it; None where the template shows what no field is (WNLI)."""
        shown = places(self.template)
        texts = tuple(self.texts) or shown
        if set(texts) - set(self.columns or shown):
            return None
        if not self.labels:
            return Labelled(
                texts=texts,
                label=lambda record: NONE,
                score=lambda record: record["label"] if record["label"] >= 0 else math.nan,
                target=lambda record: f"{record['label']:g}",
                postprocess=any_number,  # a head gives any number, and chooses among no labels
            )
        words = tuple(self.labels.values())
        return Labelled(
            texts=texts,
            label=lambda record: of_class(record["label"]),
            target=lambda record: label_text(record["label"], words),
        )

    def example(self, record: Mapping[str, Any], *, inputs: str | None = None) -> dict[str, Any]:
        """A record, with the features of TFDS, as text.

        Args:
          record: the record.
          inputs: a template in place of the task's own.
        """
        if inputs is None:
            inputs = f"{self.name if self.prefix is None else self.prefix} {self.template}"
        if self.as_text is not None:
            return self.as_text(record, inputs=inputs)
        return glue(record, inputs=inputs, labels=tuple(self.labels.values()))

    def records(self, file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        """The records of an official file, with the features of TFDS.

        In a test split a label may be missing, or be none of the labels: it is -1 then.

        Raises:
          InputError: naming file and line, what `read_tsv` refuses, an unknown label, or two rows
            with one number.
        """
        columns = self.columns or {name: name for name in places(self.template)}
        labelled = not split.startswith("test")
        rows = read_tsv(
            file,
            columns=[*columns.values(), *([self.label_column] if labelled else [])],
            header=self.header if labelled else (),
            skip_incomplete=self.skip_incomplete,
        )
        for row, number in numbered(rows, column=self.id_column):
            yield {
                **{name: row.fields[column] for name, column in columns.items()},
                "label": self._label(row, labelled=labelled),
                "idx": number,
            }

    def _label(self, row: Row, *, labelled: bool) -> int | float:
        entry = row.fields.get(self.label_column)
        if not self.labels:
            return _score(entry, row.where, column=self.label_column) if labelled else -1.0
        if not labelled and entry not in self.labels:
            return -1
        return label_index(row, self.label_column, tuple(self.labels))


def _score(entry: str | None, where: str, *, column: str) -> float:
    try:
        score = float(entry or "")
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{where}: {column} {entry!r} is not a number")
    return score
