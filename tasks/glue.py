"""GLUE (Wang et al. 2019) in its official TSV files, as text to text (Raffel et al. 2020, app. D).

    --data.task tasks.glue:sst2 --data.directory GLUE

GLUE holds SST-2/{train,dev,test}.tsv, or is that folder itself. A task is a row, `GlueTask`: the
columns that the prompt shows, and the words that the labels are. Test files have no labels: their
targets are "<unk>", class -1.
"""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import seqio
import tensorflow as tf

from t5x_lite.data import stages
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.preprocess import ClassIndex, prompt
from t5x_lite.errors import InputError
from t5x_lite.metrics.classification import accuracy

FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """One task of GLUE.

    Attributes:
      name: the first word of the prompt.
      directory: the folder's official name.
      columns: the columns that the prompt shows, in its order, under their own names.
      labels: the label column's entries and their words, in the order of the class indices.
      label_column: the column of the labels; test files lack it.
      metrics: (targets, predictions) -> {name: value} on class indices.
    """

    name: str
    directory: str
    columns: Sequence[str]
    labels: Mapping[str, str]
    label_column: str = "label"
    metrics: Sequence = (accuracy,)


SST2 = GlueTask(
    name="sst2",
    directory="SST-2",
    columns=("sentence",),
    labels={"0": "negative", "1": "positive"},
)


def sst2(arguments: TaskArguments) -> seqio.Task:
    """Stanford sentiment treebank: is a film review's sentence positive?"""
    return _task(SST2, arguments)


def _task(row: GlueTask, arguments: TaskArguments) -> seqio.Task:
    root = _folder(row, arguments.directory)
    return seqio.Task(
        f"glue_{row.name}",
        source=stages.source(tuple(FILES), partial(_examples, row, root)),
        preprocessors=stages.SUPERVISED_PREPROCESSORS,
        output_features=stages.features(arguments.vocabulary),
        postprocess_fn=ClassIndex(tuple(row.labels.values())),
        metric_fns=list(row.metrics),
    )


def _folder(row: GlueTask, directory: str) -> Path:
    for root in (Path(directory, row.directory), Path(directory)):
        if directory and (root / FILES["train"]).is_file():
            return root
    raise InputError(
        f"no {row.directory}/{FILES['train']} in data.directory {directory!r}: it must be the GLUE "
        f"folder or its {row.directory}"
    )


def _examples(row: GlueTask, root: Path, split: str) -> tf.data.Dataset:
    labelled = split != "test"
    columns = (*row.columns, row.label_column) if labelled else row.columns
    inputs, targets = [], []
    for number, fields in read_tsv(root / FILES[split], columns=columns):
        inputs.append(prompt(row.name, {column: fields[column] for column in row.columns}))
        label = fields[row.label_column] if labelled else None
        if label is not None and label not in row.labels:
            raise InputError(
                f"{root / FILES[split]}:{number}: {row.label_column} {label!r} is none of "
                f"{', '.join(row.labels)}"
            )
        targets.append("<unk>" if label is None else row.labels[label])
    return stages.text_pairs(inputs, targets)


def read_tsv(file: Path, *, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a GLUE file, which has a header, no quoting and perhaps a byte-order mark.

    Args:
      file: the path.
      columns: names that the header must hold.

    Returns:
      (line number from 1, {column: entry}) of each row; blank lines are skipped.

    Raises:
      InputError: naming file and line, if the file cannot be read, is not UTF-8, lacks a column, or
        has a row that does not fit its header.
    """
    try:
        lines = file.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    header: list[str] = []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            entries = line.decode("utf-8").rstrip("\r").split("\t")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}:{number}: not UTF-8: convert the file to UTF-8") from error
        if not header:
            header = entries
            missing = [column for column in columns if column not in header]
            if missing:
                raise InputError(
                    f"{file}:1: the header lacks {', '.join(missing)}: it has {', '.join(header)}"
                )
        elif entries != [""]:
            if len(entries) != len(header):
                raise InputError(
                    f"{file}:{number}: {len(entries)} columns, but the header has {len(header)}"
                )
            rows.append((number, dict(zip(header, entries, strict=True))))
    return rows
