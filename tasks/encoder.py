"""Pretraining tasks for encoders on unlabelled text, for data.layout Encoder() or Spans().

    Data(task="tasks.encoder:documents", directory="DIR", layout=layouts.Encoder(), ...)

    documents      *.txt with blank lines between documents; a line may be a sentence or a
                   paragraph, as in the files that BERT's code reads
    lines          *.txt with one document per line, as tasks.text reads them
    passages       title and text of the passages of a collection: DIR/corpus.jsonl (BEIR),
                   collection.tsv, msmarco-docs.tsv (MS MARCO) or psgs_w100.tsv (DPR), or all *.tsv
                   and *.jsonl of DIR (`t5x_lite.data.formats.pairs`); DIR may be one file
    spans          documents as above, each divided into spans of whole sentences
    jsonl_spans    *.jsonl with objects {"spans": [str, ...]}, one per document

The tasks documents, lines and spans read all unlabelled text that tasks.text reads: *.jsonl, output
of `t5x-lite c4`, Parquet, Arrow, hf://NAME and tfds://NAME (docs/guides/documents.md). Text files
may be compressed (.gz, .zst, .xz).

`t5x_lite.data.tasks.unsupervised` defines the held-out documents: complete files, or about every
100th document of passages and of fewer than 20 files. A document is divided into segments of whole
sentences with at most data.inputs_length tokens (`t5x_lite.data.tasks.encoder`). A segment never
has text of two documents. With data.pack, several segments share a row and do not attend to each
other; without it, each segment is a row, as in RetroMAE.
"""

from functools import partial
from typing import Any

import seqio

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.encoder import checked, encoder_task, span_task
from t5x_lite.data.tasks.text_source import (
    document_source,
    json_objects,
    passage_texts,
    source_of_files,
)
from t5x_lite.data.tasks.unsupervised import SUFFIXES, collection_files, files_of_both


def documents(arguments: TaskArguments) -> seqio.Task:
    """Return a pretraining task on documents that are separated by blank lines."""
    return encoder_task("encoder_documents", arguments, source=_documents(arguments, blocks=True))


def lines(arguments: TaskArguments) -> seqio.Task:
    """Return a pretraining task on text files with one document per line."""
    return encoder_task("encoder_lines", arguments, source=_documents(arguments, blocks=False))


def passages(arguments: TaskArguments) -> seqio.Task:
    """Return a pretraining task on title and text of the passages of a collection."""
    found = source_of_files(collection_files(arguments.directory), passage_texts)
    return encoder_task("encoder_passages", arguments, source=found)


def spans(arguments: TaskArguments) -> seqio.Task:
    """Return a pretraining task on spans of documents that are separated by blank lines."""
    found = _documents(arguments, blocks=True)
    return span_task("encoder_spans", arguments, source=found, listed=False)


def jsonl_spans(arguments: TaskArguments) -> seqio.Task:
    """Return a pretraining task on JSON objects with a list of spans, one object per document."""
    files = files_of_both(arguments.directory, suffixes=SUFFIXES)
    found = source_of_files(files, partial(json_objects, parse=checked))
    return span_task("encoder_jsonl_spans", arguments, source=found, listed=True)


def _documents(arguments: TaskArguments, *, blocks: bool) -> Any:
    return document_source(
        arguments.directory,
        columns=arguments.columns,
        languages=arguments.languages,
        blocks=blocks,
    )
