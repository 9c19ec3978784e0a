"""SQuAD 1.1 (Rajpurkar et al. 2016, arXiv:1606.05250) as text-to-text (Raffel et al. 2020, app. D).

    --data.task tasks.squad:squad --data.directory SQUAD

SQUAD contains train-v1.1.json and dev-v1.1.json, or is a directory of TensorFlow Datasets
(`t5x_lite.data.tasks.benchmarks`). The target is the first answer of a question. The metrics are
exact match and F1, the maximum over all answers. `closed_book` has only the question as inputs.

With data.layout Windows(), the answer is a span of the context's tokens, for an encoder's head, and
a long context is divided (`t5x_lite.data.tasks.questions`, configs/finetune/encoder_squad.py). With
Labelled(), a long context is truncated.

`squad_v2` is SQuAD 2.0 (Rajpurkar et al. 2018, arXiv:1806.03822), train-v2.0.json and
dev-v2.0.json, only for an encoder: a question may have no answer (metrics/text.py,
configs/finetune/encoder_squad_v2.py).

TriviaQA (Joshi et al. 2017, arXiv:1705.03551) is read from its release, qa/*.json and evidence/:

    trivia_qa                each question with each of its Wikipedia pages, qa/wikipedia-*.json
    trivia_qa_web            each question with each page of qa/web-*.json (web and Wikipedia)
    trivia_qa_closed_book    only the question, from unfiltered-web-*.json or qa/web-*.json

A page is truncated to its first 800 words. The target is the first alias in the page; pages without
an alias are excluded from training. The metrics are TriviaQA's exact match and F1, the maximum over
all aliases; each page counts separately, as in the evaluation of the Web domain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import seqio

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath
from t5x_lite.data import postprocess, preprocessors
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats import released_files
from t5x_lite.data.formats.benchmark_files import read_squad
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.data.tasks.labelled import Labelled, first_answer
from t5x_lite.data.tasks.names import Wording
from t5x_lite.metrics import text
from t5x_lite.metrics.text import squad_v2 as metric_v2


def _shown(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return question, context and answers of a record; [""] if the question has no answer."""
    none = [""] if record.get("is_impossible", False) else []
    answers = record["answers"]["text"] or none
    return {"question": record["question"], "context": record["context"], "answers": answers}


SQUAD_SPANS = Labelled(
    texts=("question", "context"),
    label=first_answer,
    target=lambda record: (record["answers"]["text"] or [preprocessors.UNKNOWN])[0],
    spans=True,
    fields=_shown,
)
SQUAD = Benchmark(
    name="squad",
    tfds="squad/v1.1",
    folder="SQuAD",
    files={"train": "train-v1.1.json", "validation": "dev-v1.1.json"},
    read=lambda file, split: read_squad(file),
    examples=lambda record, split, **words: [preprocessors.squad(record, **words)],
    extras={"id": str, "context": str, "question": str, "answers": list},
    postprocess=postprocess.qa,
    metrics=(text.squad,),
    labelled=SQUAD_SPANS,
    wording=Wording(prefix="", template="question: {question} context: {context}"),
)
CLOSED_BOOK = replace(
    SQUAD,
    name="squad_closed_book",
    examples=lambda record, split, inputs="squad trivia question: {question}": [
        preprocessors.squad(record, inputs=inputs)
    ],
    labelled=None,
    wording=Wording(prefix="squad trivia question:", template="{question}"),
)
SQUAD_V2 = replace(
    SQUAD,
    name="squad_v2",
    tfds="squad/v2.0",
    files={"train": "train-v2.0.json", "validation": "dev-v2.0.json"},
    read=lambda file, split: read_squad(file, unanswerable=True),
    metrics=(metric_v2,),
    labelled=replace(SQUAD_SPANS, nulls=True, target=lambda record: _shown(record)["answers"][0]),
)
TRIVIA_QA = replace(SQUAD, name="trivia_qa", tfds="", folder="", metrics=(text.trivia_qa,))
TRIVIA_QA_CLOSED_BOOK = replace(
    TRIVIA_QA,
    name="trivia_qa_closed_book",
    examples=lambda record, split, inputs="trivia question: {question}": [
        preprocessors.squad(record, inputs=inputs)
    ],
    labelled=None,
    wording=Wording(prefix="trivia question:", template="{question}"),
)


def _task(row: Benchmark, arguments: TaskArguments) -> seqio.Task:
    return benchmarks.task(row, arguments)


squad = partial(_task, SQUAD)
closed_book = partial(_task, CLOSED_BOOK)


def _trivia(
    row: Benchmark,
    arguments: TaskArguments,
    domains: Sequence[str],
    read: Callable[[DataPath, str], Iterator[dict[str, Any]]],
) -> seqio.Task:
    """Return the task of the first domain of TriviaQA that exists in data.directory."""
    files = released_files.trivia_splits(arguments.directory, domains)
    names = {split: file.name for split, (file,) in files.items()}
    folder = next(iter(files.values()))[0].parent
    own = replace(arguments, directory=str(folder))
    return benchmarks.task(replace(row, files=names, read=read), own)


_documents = released_files.read_trivia_documents
trivia_qa = partial(_trivia, TRIVIA_QA, domains=("wikipedia",), read=_documents)
trivia_qa_web = partial(
    _trivia, replace(TRIVIA_QA, name="trivia_qa_web"), domains=("web",), read=_documents
)
trivia_qa_closed_book = partial(
    _trivia,
    TRIVIA_QA_CLOSED_BOOK,
    domains=("unfiltered-web", "web"),
    read=lambda file, split: released_files.read_trivia_questions(file),
)


def squad_v2(arguments: TaskArguments) -> seqio.Task:
    """Return the task SQuAD 2.0 for an encoder's head."""
    if "labels" not in arguments.layout.features:
        raise InputError(
            f"data.layout is {arguments.layout.name}, but SQuAD 2.0 is only for an encoder's head; "
            "set layout=layouts.Windows() in the config, as in "
            "configs/finetune/encoder_squad_v2.py"
        )
    return benchmarks.task(SQUAD_V2, arguments)
