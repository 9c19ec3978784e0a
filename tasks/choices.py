"""Multiple choice from your own JSON lines, as SWAG and RACE are: data.layout is Choices(num=4).

    Data(task="tasks.choices:jsonl", directory="DIR", layout=layouts.Choices(num=4), pack=False)

DIR holds train.jsonl and validation.jsonl, and perhaps test.jsonl, whose lines may lack the label:

    {"question": "She opened the door and", "choices": ["left.", "sang."], "label": 0}

Of RACE the question is the article with its question behind it. Every line has as many choices as
data.layout.num says. The metric is accuracy.
"""

from collections.abc import Iterator
from typing import Any

import seqio

from t5x_lite.buckets.paths import DataPath
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.labels import of_class
from t5x_lite.data.layouts import Choices
from t5x_lite.data.postprocess import ClassIndex
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks.labelled import Labelled
from t5x_lite.errors import InputError
from t5x_lite.metrics.classification import accuracy
from t5x_lite.records.benchmark_files import label_index, numbered, read_jsonl

FILES = {name: f"{name}.jsonl" for name in ("train", "validation", "test")}


def jsonl(arguments: TaskArguments) -> seqio.Task:
    """Which of the choices is it?"""
    layout = arguments.layout
    if not isinstance(layout, Choices):
        raise InputError(f"tasks.choices:jsonl needs data.layout choices, got {layout.name}")
    numbers = tuple(str(index) for index in range(layout.num))

    def records(file: DataPath, split: str) -> Iterator[dict[str, Any]]:
        for row, number in numbered(read_jsonl(file, fields=("question",)), column="idx"):
            choices = row.fields.get("choices")
            if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
                raise InputError(f'{row.where}: must have "choices", a list of strings')
            if len(choices) != layout.num:
                raise InputError(
                    f"{row.where}: has {len(choices)} choices, and data.layout.num is {layout.num}"
                )
            known = split != "test" or row.fields.get("label") is not None
            label = label_index(row, "label", numbers) if known else -1
            texts = dict(zip(numbers, choices, strict=True))
            yield {"question": row.fields["question"], **texts, "label": label, "idx": number}

    def text(record: Any) -> str:
        return "<unk>" if record["label"] < 0 else numbers[record["label"]]

    form = Labelled(
        texts=("question", *numbers),
        label=lambda record: of_class(record["label"]),
        target=text,
        choices=True,
    )
    benchmark = benchmarks.Benchmark(
        name="choices_jsonl",
        tfds="",
        folder="",
        files=FILES,
        read=records,
        examples=lambda record, split: [{"idx": record["idx"]}],
        postprocess=ClassIndex(numbers),
        metrics=(accuracy,),
        labelled=form,
    )
    return benchmarks.task(benchmark, arguments)
