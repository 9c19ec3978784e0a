"""SQuAD 1.1 (Rajpurkar et al. 2016, arXiv:1606.05250) as text to text (Raffel et al. 2020, app. D).

    --data.task tasks.squad:squad --data.directory SQUAD

SQUAD holds train-v1.1.json and dev-v1.1.json, or is where TensorFlow Datasets are
(`t5x_lite.data.tasks.benchmarks`). The target is a question's first answer; the metrics are exact
match and F1, the best over all of its answers. `closed_book` shows the question alone.

With data.layout Labelled() the answer is a span of the context's tokens, for an encoder's head
(`t5x_lite.data.tasks.spans`, configs/finetune/encoder_squad.py).
"""

from dataclasses import replace
from functools import partial

import seqio

from t5x_lite.data import postprocess, preprocess
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.data.tasks.labelled import Labelled
from t5x_lite.data.tasks.spans import first_answer
from t5x_lite.metrics import text
from t5x_lite.records.benchmark_files import read_squad

SQUAD_SPANS = Labelled(
    texts=("question", "context"),
    label=first_answer,
    target=lambda record: (record["answers"]["text"] or [preprocess.UNKNOWN])[0],
    spans=True,
    fields=lambda record: {
        "question": record["question"],
        "context": record["context"],
        "answers": record["answers"]["text"],
    },
)
SQUAD = Benchmark(
    name="squad",
    tfds="squad/v1.1",
    folder="SQuAD",
    files={"train": "train-v1.1.json", "validation": "dev-v1.1.json"},
    read=lambda file, split: read_squad(file),
    examples=lambda record, split: [preprocess.squad(record)],
    extras={"id": str, "context": str, "question": str, "answers": list},
    postprocess=postprocess.qa,
    metrics=(text.squad,),
    labelled=SQUAD_SPANS,
)
CLOSED_BOOK = replace(
    SQUAD,
    name="squad_closed_book",
    examples=lambda record, split: [
        preprocess.squad(record, inputs="squad trivia question: {question}")
    ],
    labelled=None,
)


def _task(row: Benchmark, arguments: TaskArguments) -> seqio.Task:
    return benchmarks.task(row, arguments)


squad = partial(_task, SQUAD)
closed_book = partial(_task, CLOSED_BOOK)
