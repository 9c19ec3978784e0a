"""Tagging tasks, one tag per word: CoNLL-2003's named entities, or custom files.

    Data(task="tasks.tokens:conll", directory="CONLL", layout=layouts.Tokens(), ...)

    conll        columns separated by spaces, with the word first, its tag last, and a blank line
                 after each sentence: eng.train, eng.testa and eng.testb, or train.txt, valid.txt
                 (or validation.txt, dev.txt) and test.txt
    jsonl        train.jsonl, validation.jsonl (or valid, val, dev) and test.jsonl, with an object
                 {"tokens": ["EU", ...], "tags": ["B-ORG", ...]} per line, or with "ner_tags"

data.layout is Tokens(). Files may be compressed (.gz, .zst). Tags are optional in a test split. The
classes are the sorted tags of the training file, or data.columns.labels, which may also rename the
tags of the files:

    --data.columns.labels O B-PER I-PER B-LOC I-LOC
    --data.columns.labels 0=O 1=B-PER 2=I-PER 3=B-LOC 4=I-LOC

The metrics are precision, recall and F1 of entities, as in conlleval and seqeval, or accuracy for
tags such as parts of speech. `t5x_lite.data.tasks.labelled` defines how words become tokens.
"""

from collections.abc import Mapping, Sequence

import seqio

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath, files_among
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.benchmark_files import read_conll, read_tagged_jsonl
from t5x_lite.data.formats.lines import COMPRESSED
from t5x_lite.data.preprocessors import SPLITS
from t5x_lite.data.tasks.labelled import Read, token_task

CONLL = {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"}
TEXT = {split: [CONLL[split], *(f"{name}.txt" for name in SPLITS[split])] for split in CONLL}
JSONL = {split: [f"{name}.jsonl" for name in names] for split, names in SPLITS.items()}


def conll(arguments: TaskArguments) -> seqio.Task:
    """Return a tagging task on files with CoNLL's columns; the last column is the tag."""
    return _task(
        "tokens_conll",
        arguments,
        TEXT,
        lambda file, split: read_conll(file, may_lack_tags=split == "test"),
    )


def jsonl(arguments: TaskArguments) -> seqio.Task:
    """Return a tagging task on JSON objects with "tokens" and "tags"."""
    return _task(
        "tokens_jsonl",
        arguments,
        JSONL,
        lambda file, split: read_tagged_jsonl(file, may_lack_tags=split == "test"),
    )


def _task(
    name: str, arguments: TaskArguments, names: Mapping[str, Sequence[str]], read: Read
) -> seqio.Task:
    files = {split: _file(arguments.directory, names[split]) for split in names}
    there = {split: file for split, file in files.items() if file is not None}
    if not arguments.directory or not there:
        every = ", ".join(file for own in names.values() for file in own)
        raise InputError(f"data.directory {arguments.directory!r} has none of the files {every}")
    return token_task(name, arguments, files=there, read=read)


def _file(directory: str, names: Sequence[str]) -> DataPath | None:
    found = files_among(directory, [f"{n}{end}" for n in names for end in ("", *COMPRESSED)])
    if len(found) > 1:
        raise InputError(
            f"data.directory {directory!r} has both {found[0].name} and {found[1].name}; keep one"
        )
    return found[0] if found else None
