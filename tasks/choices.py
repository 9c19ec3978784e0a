"""Multiple-choice tasks: RACE, SWAG, and custom JSON Lines files.

    Data(task="tasks.choices:race", directory="RACE", layout=layouts.Choices(num=4), pack=False)

    race     questions on articles of English examinations: RACE/{train,dev,test}/{middle,high}/
             *.txt, or the Hub's tables; race_middle and race_high read one level
    swag     situations with endings: train.csv, val.csv and test.csv, or the Hub's tables
    jsonl    custom files train.jsonl, validation.jsonl, and optionally test.jsonl

A line of a custom file has data.layout.num choices. The label is optional in the test split:

    {"question": "She opened the door and", "choices": ["left.", "sang."], "label": 0}

An encoder reads the question with each choice, as two texts. For RACE, the first text is the
article; the second is the question with the choice after it, or with its gap "_" replaced by the
choice. For SWAG, the first text is the first sentence; the second is the beginning of the second
sentence with an ending. If a row is too long, its longer text is truncated, which is the end of an
article.

With data.layout Seq2Seq(), `race` and `swag` are text-to-text tasks in the form of T5's COPA: the
inputs list choice1 to choice4, and the target is the name of a choice, such as "choice3". The
metric is accuracy.

Sources: Lai et al. 2017, "RACE"; Zellers et al. 2018, "SWAG"; Devlin et al. 2019, section 4.4.
"""

from collections.abc import Iterator
from typing import Any

import seqio

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats import released_files
from t5x_lite.data.formats.benchmark_files import label_index, numbered, read_jsonl
from t5x_lite.data.formats.released_files import RACE_LEVELS
from t5x_lite.data.postprocess import ClassIndex
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks.names import Wording
from t5x_lite.data.tasks.questions import NAMES, choice_form, question_task
from t5x_lite.layouts import Choices
from t5x_lite.metrics.classification import accuracy

FILES = {name: f"{name}.jsonl" for name in ("train", "validation", "test")}
_LISTED = " ".join(f"{name}: {{{name}}}" for name in NAMES)
RACE = Wording(prefix="race", template=f"question: {{question}} {_LISTED} article: {{article}}")
SWAG = Wording(prefix="swag", template=f"{_LISTED} sentence: {{sent1}} {{sent2}}")


def jsonl(arguments: TaskArguments) -> seqio.Task:
    """Return a multiple-choice task that reads custom JSON Lines files."""
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
                    f"{row.where}: has {len(choices)} choices, but data.layout.num is {layout.num}"
                )
            known = split != "test" or row.fields.get("label") is not None
            label = label_index(row, "label", numbers) if known else -1
            texts = dict(zip(numbers, choices, strict=True))
            yield {"question": row.fields["question"], **texts, "label": label, "idx": number}

    benchmark = benchmarks.Benchmark(
        name="choices_jsonl",
        tfds="",
        folder="",
        files=FILES,
        read=records,
        examples=lambda record, split: [{"idx": record["idx"]}],
        postprocess=ClassIndex(numbers),
        metrics=(accuracy,),
        labelled=choice_form("question", numbers),
    )
    return benchmarks.task(benchmark, arguments)


def _race(arguments: TaskArguments, levels: tuple[str, ...], name: str) -> seqio.Task:
    splits = released_files.race_splits(arguments.directory, levels)

    def records(split: str) -> Iterator[dict[str, Any]]:
        for one in released_files.read_race(splits[split], levels):
            shown = dict(zip(NAMES, one["choices"], strict=True))
            read = [_answered(one["question"], choice) for choice in one["choices"]]
            yield {**one, **shown, "first": one["article"], "second": read}

    return question_task(name, arguments, RACE, tuple(splits), records)


def _answered(question: str, choice: str) -> str:
    """Return a question with a choice after it, or with its gap "_" replaced by the choice."""
    return question.replace("_", choice) if "_" in question else f"{question} {choice}"


def race(arguments: TaskArguments) -> seqio.Task:
    """Return the multiple-choice task RACE, with the questions of both levels."""
    return _race(arguments, RACE_LEVELS, "race")


def race_middle(arguments: TaskArguments) -> seqio.Task:
    """Return the multiple-choice task RACE, with the questions of middle schools."""
    return _race(arguments, ("middle",), "race_middle")


def race_high(arguments: TaskArguments) -> seqio.Task:
    """Return the multiple-choice task RACE, with the questions of high schools."""
    return _race(arguments, ("high",), "race_high")


def swag(arguments: TaskArguments) -> seqio.Task:
    """Return the multiple-choice task SWAG: choose the ending of a situation."""
    splits = released_files.swag_splits(arguments.directory)

    def records(split: str) -> Iterator[dict[str, Any]]:
        for one in released_files.read_swag(splits[split], split):
            shown = dict(zip(NAMES, one["choices"], strict=True))
            read = [f"{one['sent2']} {choice}".strip() for choice in one["choices"]]
            yield {**one, **shown, "first": one["sent1"], "second": read}

    return question_task("swag", arguments, SWAG, tuple(splits), records)
