"""Pretraining of encoders on any text files: data.layout is Encoder().

    Data(task="tasks.encoder:documents", directory="DIR", layout=layouts.Encoder(), ...)

    documents    *.txt with blank lines between documents; each line may be a sentence or a
                 paragraph, as in the files that BERT's code reads
    lines        *.txt with one document a line, as tasks.text reads them

Both read *.jsonl, too: objects with a "text", one document each; and all of these compressed, .gz
or .zst. What is held out for validation is said in `t5x_lite.data.tasks.text_files`: whole files
or, of fewer than 20 files, about every 100th document. A document is cut into pieces of
data.inputs_length that are filled with whole sentences (`t5x_lite.data.tasks.sentences`), and no
piece has text of two documents. With data.pack several pieces share a row and do not see each
other; without it each has a row, as RetroMAE wants it.
"""

from collections.abc import Callable

import seqio
import tensorflow as tf

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.encoder import encoder_task
from t5x_lite.data.tasks.text_source import text_documents, text_lines
from tasks.text import source


def documents(arguments: TaskArguments) -> seqio.Task:
    """Documents with blank lines between them."""
    return _task("documents", text_documents, arguments)


def lines(arguments: TaskArguments) -> seqio.Task:
    """A document a line."""
    return _task("lines", text_lines, arguments)


def _task(name: str, read: Callable[..., tf.data.Dataset], arguments: TaskArguments) -> seqio.Task:
    return encoder_task(f"encoder_{name}", arguments, source=source(arguments.directory, read))
