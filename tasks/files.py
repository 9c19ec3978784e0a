"""Your own JSONL, CSV or TSV files as text to text, with no code: the config says which columns.

    --data.task tasks.files:classify --data.directory DIR \
        --data.columns.inputs "review: {text}" --data.columns.targets "{stars}" \
        --data.columns.labels 1=bad 5=good

DIR holds train, validation and test files, .jsonl, .csv or .tsv with a header, or these compressed
(.jsonl.gz, .csv.zst, ...); only train and validation must have the targets' columns. The tasks
differ in their metric alone:

    text_to_text    exact match
    classify        accuracy, over data.columns.labels, which it needs
    regress         Pearson and Spearman correlation; targets are numbers
    answer          exact match and F1 of words, as SQuAD has them
    translate       BLEU
    summarize       ROUGE
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import seqio

from t5x_lite.data.columns import SPLITS, Columns, split_file
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.postprocess import ClassIndex, any_number
from t5x_lite.data.tasks import benchmarks, stages
from t5x_lite.errors import InputError
from t5x_lite.metrics.classification import accuracy
from t5x_lite.metrics.correlation import pearson, spearman
from t5x_lite.metrics.generation import bleu, rouge
from t5x_lite.metrics.text import exact_match, squad


def classify(arguments: TaskArguments) -> seqio.Task:
    """Which of data.columns.labels is it?"""
    labels = arguments.columns.words()
    if not labels:
        raise InputError("tasks.files:classify needs data.columns.labels: all labels there are")
    return _task((accuracy,), arguments, postprocess=ClassIndex(labels))


def _task(
    metrics: Sequence[Callable[..., Any]],
    arguments: TaskArguments,
    *,
    postprocess: Callable[..., Any] | None = None,
) -> seqio.Task:
    columns: Columns = arguments.columns
    columns.check()
    directory = arguments.directory
    files = {split: split_file(directory, split) for split in SPLITS}
    there = {split: file for split, file in files.items() if file is not None}
    if not directory or not there:
        raise InputError(
            f"no train, validation or test file (.jsonl, .csv, .tsv) in data.directory "
            f"{directory!r}"
        )
    return seqio.Task(
        "files",
        source=stages.source(
            tuple(there),
            lambda split: benchmarks.in_memory(
                [*columns.examples(there[split], split)], extras={"id": str}
            ),
            one_to_one=True,
        ),
        preprocessors=stages.SUPERVISED_PREPROCESSORS,
        output_features=stages.features(arguments.vocabulary),
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )


def _one_answer(text: str, *, is_target: bool = False, **_: Any) -> str | list[str]:
    return [text] if is_target else text


text_to_text = partial(_task, (exact_match,))
regress = partial(_task, (pearson, spearman), postprocess=any_number)
answer = partial(_task, (squad,), postprocess=_one_answer)
translate = partial(_task, (bleu,))
summarize = partial(_task, (rouge,))
