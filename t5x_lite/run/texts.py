"""`t5x-lite vocab` and `t5x-lite report`: neither needs a model."""

import os
from collections.abc import Sequence

from t5x_lite.records.lines import read_lines
from t5x_lite.report import runs as reports
from t5x_lite.vocabulary.loading import ASCII, train_sentencepiece


def vocab(inputs: Sequence[str], *, output: str, size: int, ascii: bool = True) -> None:
    """Trains a SentencePiece vocabulary on text files, and prints its path.

    Args:
      inputs: files in UTF-8; "-" is standard input.
      output: the directory that receives it.
      size: number of pieces, without the sentinels.
      ascii: whether digits, ASCII letters and punctuation all get a piece, however rare they are in
        the text. Labels, numbers and the prefixes of tasks are written with them. Like T5's, a
        vocabulary has no byte fallback: characters of other scripts must be in the text.
    """
    lines = read_lines(inputs)
    required = ASCII if ascii else ""
    path = train_sentencepiece(lines, size=size, output_dir=output, required=required)
    print(os.fspath(path))


def report(workdir: str, *, output: str | None = None) -> None:
    """Writes the HTML page of a work directory and prints its path."""
    print(os.fspath(reports.write_report(workdir, output)))
