"""A tag for each word: CoNLL-2003's named entities, or your own files; data.layout is Tokens().

    Data(task="tasks.tokens:conll", directory="CONLL", layout=layouts.Tokens(), ...)

    conll        columns that spaces divide, the word first and its tag last, a blank line behind
                 each sentence: eng.train, eng.testa and eng.testb, or train.txt, valid.txt (or
                 validation.txt, dev.txt) and test.txt
    jsonl        train.jsonl, validation.jsonl (or valid, val, dev) and test.jsonl, an object
                 {"tokens": ["EU", ...], "tags": ["B-ORG", ...]} a line, or with "ner_tags"

Files may be compressed (.gz, .zst), and those of a test split may lack tags. The classes are the
tags of the training file, sorted, or those that are said, with names for what the file has:

    --data.columns.labels O B-PER I-PER B-LOC I-LOC
    --data.columns.labels 0=O 1=B-PER 2=I-PER 3=B-LOC 4=I-LOC

The metrics are precision, recall and F1 of entities, as conlleval and seqeval have them, or, of
tags such as parts of speech, accuracy. `t5x_lite.data.tasks.labelled` says how words become tokens.
"""

from collections.abc import Mapping, Sequence

import seqio

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath, files_among
from t5x_lite.data.columns import SPLITS
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.benchmark_files import read_conll, read_tagged_jsonl
from t5x_lite.data.formats.lines import COMPRESSED
from t5x_lite.data.tasks.labelled import Read, token_task

CONLL = {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"}
TEXT = {split: [CONLL[split], *(f"{name}.txt" for name in SPLITS[split])] for split in CONLL}
JSONL = {split: [f"{name}.jsonl" for name in names] for split, names in SPLITS.items()}


def conll(arguments: TaskArguments) -> seqio.Task:
    """Return the tags in the last column of files in CoNLL's form."""
    return _task(
        "tokens_conll",
        arguments,
        TEXT,
        lambda file, split: read_conll(file, may_lack_tags=split == "test"),
    )


def jsonl(arguments: TaskArguments) -> seqio.Task:
    """Return the "tags" of JSON objects with "tokens"."""
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
    """Return the file of a split, or None.

    Raises:
      InputError: if there are several.
    """
    found = files_among(directory, [f"{n}{end}" for n in names for end in ("", *COMPRESSED)])
    if len(found) > 1:
        raise InputError(
            f"data.directory {directory!r} has both {found[0].name} and {found[1].name}"
        )
    return found[0] if found else None
