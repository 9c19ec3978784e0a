"""`t5x-lite vocab` and `t5x-lite report`: neither needs a model."""

import os
from collections.abc import Sequence

from t5x_lite import report as reports
from t5x_lite.data.vocabulary import read_lines, train_sentencepiece


def vocab(inputs: Sequence[str], *, output: str, size: int) -> None:
    """Trains a SentencePiece vocabulary on text files ("-" is standard input)."""
    path = train_sentencepiece(read_lines(inputs), size=size, output_dir=output)
    print(os.fspath(path))


def report(workdir: str, *, output: str | None = None) -> None:
    """Writes the HTML page of a work directory and prints its path."""
    print(os.fspath(reports.write_report(workdir, output)))
