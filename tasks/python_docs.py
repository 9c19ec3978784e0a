"""Tasks of the quickstart on Python's documentation, English text that needs no download.

`span_corruption` pretrains on the text; `module` predicts the documented module of a text.
data.directory is the output of `python -m t5x_lite.data.tasks.python_docs DIR`. If it is unset,
every run parses the installed files again. The SHA-1 of a text determines its split (90% train, 5%
validation, 5% test) and its position.
"""

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

import seqio

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.preprocessors import prompt
from t5x_lite.data.tasks import python_docs, stages, unsupervised
from t5x_lite.metrics.classification import accuracy

SPLITS = ("train", "validation", "test")

_T = TypeVar("_T")


def span_corruption(arguments: TaskArguments) -> seqio.Task:
    """Return the span-corruption task on Python's documentation: 15% of the tokens, spans of 3."""
    return stages.unsupervised_task(
        "python_docs_span_corruption",
        unsupervised.span_corruption(arguments),
        arguments,
        source=stages.source(SPLITS, partial(_documents, arguments.directory)),
    )


def module(arguments: TaskArguments) -> seqio.Task:
    """Return a task that predicts the name of the module that a text documents."""
    return seqio.Task(
        "python_docs_module",
        source=stages.source(SPLITS, partial(_labelled, arguments.directory)),
        preprocessors=stages.SUPERVISED_PREPROCESSORS,
        output_features=stages.features(arguments.vocabulary),
        metric_fns=[accuracy],
    )


def split_of(text: str) -> str:
    """Return the split of a text, determined by the text's SHA-1."""
    place = int(_digest(text)[:8], 16) % 20
    return {18: "validation", 19: "test"}.get(place, "train")


def _documents(directory: str, split: str) -> Any:
    texts = [document.text for document in python_docs.documents(directory)]
    return stages.text_documents(_select([(text, text) for text in texts], split))


def _labelled(directory: str, split: str) -> Any:
    examples = python_docs.labelled(python_docs.documents(directory))
    pairs = _select([(text, (text, label)) for text, label in examples], split)
    inputs = [prompt("module", {"documentation": text}) for text, _ in pairs]
    return stages.text_pairs(inputs, [label for _, label in pairs])


def _select(examples: Iterable[tuple[str, _T]], split: str) -> list[_T]:
    chosen = [(_digest(text), example) for text, example in examples if split_of(text) == split]
    return [example for _, example in sorted(chosen, key=lambda pair: pair[0])]


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode("utf-8", "surrogatepass")).hexdigest()
