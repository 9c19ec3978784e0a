"""Pretraining of encoders on any text files: data.layout is Encoder(), or Spans() of the spans.

    Data(task="tasks.encoder:documents", directory="DIR", layout=layouts.Encoder(), ...)

    documents      *.txt with blank lines between documents; each line may be a sentence or a
                   paragraph, as in the files that BERT's code reads
    lines          *.txt with one document a line, as tasks.text reads them
    passages       a collection, title and text of each passage: DIR/corpus.jsonl (BEIR),
                   collection.tsv, msmarco-docs.tsv (MS MARCO) or psgs_w100.tsv (DPR), or all *.tsv
                   and *.jsonl of DIR (`t5x_lite.records.passages`); DIR may be one file
    spans          documents as above, each a list of spans of whole sentences
    jsonl_spans    *.jsonl, objects {"spans": [str, ...]}, one document each

The first two and spans read *.jsonl, too: objects with a "text", one document each; and all of
these compressed, .gz or .zst. What is held out for validation is said in
`t5x_lite.data.tasks.text_files`: whole files or, of fewer than 20 files and of passages, about
every 100th document. A document is cut into pieces of data.inputs_length that are filled with whole
sentences (`t5x_lite.data.tasks.sentences`), and no piece has text of two documents. With data.pack
several pieces share a row and do not see each other; without it each has a row, as RetroMAE wants
it.
"""

from collections.abc import Callable
from functools import partial

import seqio
import tensorflow as tf

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.document_spans import checked, span_task
from t5x_lite.data.tasks.encoder import encoder_task
from t5x_lite.data.tasks.text_files import collection_files
from t5x_lite.data.tasks.text_source import (
    json_objects,
    passage_texts,
    text_documents,
    text_lines,
)
from tasks.text import source


def documents(arguments: TaskArguments) -> seqio.Task:
    """Documents with blank lines between them."""
    return _task("documents", text_documents, arguments)


def lines(arguments: TaskArguments) -> seqio.Task:
    """A document a line."""
    return _task("lines", text_lines, arguments)


def passages(arguments: TaskArguments) -> seqio.Task:
    """Title and text of the passages of a collection."""
    found = source(arguments.directory, passage_texts, files=collection_files)
    return encoder_task("encoder_passages", arguments, source=found)


def spans(arguments: TaskArguments) -> seqio.Task:
    """Spans of documents with blank lines between them."""
    found = source(arguments.directory, text_documents)
    return span_task("encoder_spans", arguments, source=found, listed=False)


def jsonl_spans(arguments: TaskArguments) -> seqio.Task:
    """Lists of spans, one for each document."""
    found = source(arguments.directory, partial(json_objects, parse=checked))
    return span_task("encoder_jsonl_spans", arguments, source=found, listed=True)


def _task(name: str, read: Callable[..., tf.data.Dataset], arguments: TaskArguments) -> seqio.Task:
    return encoder_task(f"encoder_{name}", arguments, source=source(arguments.directory, read))
