"""Tasks on custom tables for T5 or an encoder; the config selects the columns.

    --data.task tasks.files:classify --data.directory DIR \
        --data.columns.inputs "review: {text}" --data.columns.targets "{stars}" \
        --data.columns.labels 1=bad 5=good

DIR has train, validation and test files: .jsonl, .csv or .tsv with a header, which may be
compressed (.jsonl.gz, .csv.zst, ...), .parquet or .arrow. Several files of a split are read in
order. DIR may also be a directory that `save_to_disk` of Hugging Face's `datasets` wrote, one file,
a directory in a bucket, or hf://NAME (`t5x_lite.data.formats.tables`). Only train and
validation must have the target columns. --data.template replaces data.columns.inputs, and
--data.prefix is prepended to the inputs. The tasks differ only in their metrics:

    text_to_text    exact match
    classify        accuracy over data.columns.labels, or over the targets of the training rows
    regress         Pearson and Spearman correlation; targets are numbers
    answer          exact match and F1 of words, as in SQuAD
    translate       BLEU
    summarize       ROUGE
    parallel        BLEU

`parallel` reads lines of two languages without a header. The file train.tsv has the lines source
TAB target, score TAB source TAB target (CCMatrix), or source TAB target TAB score TAB more (NLLB),
with the columns {source}, {target} and {score}. Alternatively, two files such as train.de.gz and
train.en.gz have the columns {de} and {en}. --data.columns.min-score drops lines with a lower score.

With data.layout Labelled(), `classify` and `regress` are for an encoder's head, which reads
data.columns.inputs and, for pairs, data.columns.second. docs/guides/own_data.md has examples.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import seqio

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.released_files import parallel_splits
from t5x_lite.data.postprocess import ClassIndex, any_number
from t5x_lite.data.tasks.labelled import Labelled
from t5x_lite.data.tasks.table_source import score_of, table_task, tables_of, texts_of_encoder
from t5x_lite.layouts.labelled import NONE, of_class
from t5x_lite.metrics.classification import accuracy, pearson, spearman
from t5x_lite.metrics.text import bleu, exact_match, rouge, squad


def classify(arguments: TaskArguments) -> seqio.Task:
    """Return a task that classifies texts by the labels of a custom table."""
    columns, splits = tables_of(arguments)
    if not columns.labels:
        if "train" not in splits:
            raise InputError("tasks.files:classify needs data.columns.labels, or training rows")
        columns = dataclasses.replace(columns, labels=columns.known_labels(splits["train"]))
    index = ClassIndex(columns.words())
    form = Labelled(
        texts=texts_of_encoder(columns),
        label=lambda record: of_class(index(record["targets"])),
        target=lambda record: record["targets"],
        kinds={"id": str},
    )
    return table_task((accuracy,), arguments, columns, splits, postprocess=index, form=form)


def regress(arguments: TaskArguments) -> seqio.Task:
    """Return a task that predicts the numbers of a custom table."""
    columns, splits = tables_of(arguments)
    form = Labelled(
        texts=texts_of_encoder(columns),
        label=lambda record: NONE,
        score=score_of,
        target=lambda record: record["targets"],
        kinds={"id": str},
    )
    metrics = (pearson, spearman)
    return table_task(metrics, arguments, columns, splits, postprocess=any_number, form=form)


def _task(
    metrics: Sequence[Callable[..., Any]],
    arguments: TaskArguments,
    *,
    postprocess: Callable[..., Any] | None = None,
) -> seqio.Task:
    columns, splits = tables_of(arguments)
    return table_task(metrics, arguments, columns, splits, postprocess=postprocess)


def parallel(arguments: TaskArguments) -> seqio.Task:
    """Return a translation task on parallel lines."""
    columns, splits = tables_of(
        arguments, lambda own: parallel_splits(arguments.directory, own.min_score)
    )
    return table_task((bleu,), arguments, columns, dict(splits), postprocess=None)


def _one_answer(text: str, *, is_target: bool = False, **_: Any) -> str | list[str]:
    return [text] if is_target else text


text_to_text = partial(_task, (exact_match,))
answer = partial(_task, (squad,), postprocess=_one_answer)
translate = partial(_task, (bleu,))
summarize = partial(_task, (rouge,))
