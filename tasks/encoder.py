"""Pretraining of encoders on any text files: data.layout is Encoder(), or Spans() of the spans.

    Data(task="tasks.encoder:documents", directory="DIR", layout=layouts.Encoder(), ...)

    documents      *.txt with blank lines between documents; each line may be a sentence or a
                   paragraph, as in the files that BERT's code reads
    lines          *.txt with one document a line, as tasks.text reads them
    passages       a collection, title and text of each passage: DIR/corpus.jsonl (BEIR),
                   collection.tsv, msmarco-docs.tsv (MS MARCO) or psgs_w100.tsv (DPR), or all *.tsv
                   and *.jsonl of DIR (`t5x_lite.data.formats.passages`); DIR may be one file
    spans          documents as above, each a list of spans of whole sentences
    jsonl_spans    *.jsonl, objects {"spans": [str, ...]}, one document each

The first two and spans read all unlabelled text that tasks.text reads: *.jsonl, what `t5x-lite c4`
writes, Parquet, Arrow, hf://NAME and tfds://NAME (docs/guides/documents.md). Files of text may be
compressed, .gz, .zst or .xz. What is held out for validation is said in
`t5x_lite.data.tasks.text_files`: whole files or, of fewer than 20 files and of passages, about
every 100th document. A document is cut into pieces of data.inputs_length that are filled with whole
sentences (`t5x_lite.data.tasks.encoder`), and no piece has text of two documents. With data.pack
several pieces share a row and do not see each other; without it each has a row, as RetroMAE wants
it.
"""

from functools import partial
from typing import Any

import seqio

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.encoder import checked, encoder_task, span_task
from t5x_lite.data.tasks.text_files import SUFFIXES, collection_files, files_of_both
from t5x_lite.data.tasks.text_source import (
    document_source,
    json_objects,
    passage_texts,
    source_of_files,
)


def documents(arguments: TaskArguments) -> seqio.Task:
    """Return documents that are separated by blank lines."""
    return encoder_task("encoder_documents", arguments, source=_documents(arguments, blocks=True))


def lines(arguments: TaskArguments) -> seqio.Task:
    """Return one document per line."""
    return encoder_task("encoder_lines", arguments, source=_documents(arguments, blocks=False))


def passages(arguments: TaskArguments) -> seqio.Task:
    """Return title and text of the passages of a collection."""
    found = source_of_files(collection_files(arguments.directory), passage_texts)
    return encoder_task("encoder_passages", arguments, source=found)


def spans(arguments: TaskArguments) -> seqio.Task:
    """Return spans of documents that are separated by blank lines."""
    found = _documents(arguments, blocks=True)
    return span_task("encoder_spans", arguments, source=found, listed=False)


def jsonl_spans(arguments: TaskArguments) -> seqio.Task:
    """Return lists of spans, one list per document."""
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
