"""`t5x-lite vocab` and `t5x-lite report`: neither needs a model."""

import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from t5x_lite.data.tasks.text_source import texts_of
from t5x_lite.errors import InputError
from t5x_lite.options import suggesting
from t5x_lite.records.compressed import open_text
from t5x_lite.records.documents import TEXT, as_template, is_named
from t5x_lite.records.weighted_lines import Source, tempered_files, weighted_files, weighted_lines
from t5x_lite.remote import is_remote
from t5x_lite.vocabulary.fertility import fertility
from t5x_lite.vocabulary.loading import (
    ASCII,
    frequent_characters,
    load_vocabulary,
    train_sentencepiece,
)

_logger = logging.getLogger(__name__)


@suggesting
def vocab(
    inputs: Sequence[str],
    *,
    output: str,
    size: int,
    ascii: bool = True,
    alpha: float | None = None,
    encoder: bool = False,
    character_coverage: float | None = None,
    seed: int = 0,
    text: str = TEXT,
) -> Path:
    """Train a SentencePiece vocabulary on unlabelled text, and print its path.

    Of files with weights, or of tempered ones, the fertility is told (`vocabulary.fertility`).

    Args:
      inputs: files, patterns, directories and data sets (`data.tasks.text_files`); "-" is standard
        input. All as "FILE=WEIGHT" are drawn from in these shares of their text
        (`records.weighted_lines`).
      output: the directory that receives it.
      size: number of pieces, without the sentinels.
      ascii: whether digits, ASCII letters and punctuation all get a piece, however rare they are in
        the text. Labels, numbers and the prefixes of tasks are written with them. Like T5's, a
        vocabulary has no byte fallback: characters of other scripts must be in the text.
      alpha: shares of files without weights are those of their bytes to this power, as of
        languages: q ~ p^alpha; None reads all text.
      encoder: whether the pieces are those of DeBERTa's spm.model, with [CLS] and [SEP].
      character_coverage: fraction of the text's characters that get a piece, at least 0.98 and
        at most 1. If None, T5's 0.9995 applies, and each frequent character
        (`frequent_characters`) gets a piece, up to half of the pieces; the text is read twice.
      seed: random seed for the lines drawn by weights, and for the 2,000,000 of a longer text.
      text: the text of JSON, tables and data sets, with columns in braces.

    Returns:
      The path of the model.

    Raises:
      InputError: files or weights are wrong, or there is too little text.
    """
    template = as_template(text)
    if not inputs:
        raise InputError("no input file was given; name one, or - for standard input")

    def read(names: Sequence[str]) -> Iterator[str]:
        for name in names:
            for document in texts_of(name, template=template):
                yield from document.split("\n")

    sources = weighted_files(inputs, is_place=_is_place)
    if alpha is not None:
        if sources is not None:
            raise InputError("--alpha makes the weights: leave out those of --input")
        sources = tempered_files(inputs, alpha, is_place=_is_place, read=read)
    if character_coverage is not None and not 0.98 <= character_coverage <= 1:  # SentencePiece's
        raise InputError(
            f"--character-coverage must be at least 0.98 and at most 1, got {character_coverage}"
        )
    required = ASCII if ascii else ""
    with contextlib.ExitStack() as stack:
        if character_coverage is None and sources is None:
            inputs = [_readable_twice(path, stack) for path in inputs]

        def lines() -> Iterator[str]:
            if sources is None:
                return read(inputs)
            return weighted_lines(sources, seed=seed, read=read)

        if character_coverage is None:
            required = _with_frequent(required, lines(), size=size)
        try:
            path = train_sentencepiece(
                lines(),
                size=size,
                output_dir=output,
                character_coverage=0.9995 if character_coverage is None else character_coverage,
                required=required,
                encoder=encoder,
                seed=seed,
            )
        except InputError as error:
            raise _with_weights(error, sources) from error
    for source in sources or ():
        found = fertility(read(source.files), load_vocabulary(path))
        _logger.info("%s: %s", source.name, found)
    print(os.fspath(path))
    return Path(path)


def _is_place(name: str) -> bool:
    """Whether an input is a data set, a directory or in a bucket, and no file of this machine."""
    return is_named(name) or is_remote(name) or os.path.isdir(name)


_NAMED_CHARACTERS = 40


def _with_frequent(required: str, lines: Iterable[str], *, size: int) -> str:
    """Add the text's frequent characters to the required ones, up to half of the pieces."""
    selected, rest = frequent_characters(lines, limit=size // 2)
    if rest:
        _logger.warning(
            "%d frequent characters have no piece of their own, such as %s; raise --size to at "
            "least %d, or set --character-coverage",
            len(rest),
            " ".join(rest[:_NAMED_CHARACTERS]),
            2 * (len(selected) + len(rest)),
        )
    return required + "".join(one for one in selected if one not in required)


def _readable_twice(path: str, stack: contextlib.ExitStack) -> str:
    """Return the path of a file, or of a temporary copy of standard input or of a pipe."""
    if path != "-" and (_is_place(path) or not os.path.exists(path) or os.path.isfile(path)):
        return path
    copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="t5x_lite."))  # noqa: SIM115
    with contextlib.ExitStack() as opened:
        stream = sys.stdin.buffer if path == "-" else opened.enter_context(open_text(path))
        shutil.copyfileobj(stream, copy)
    copy.flush()
    return copy.name


def _with_weights(error: InputError, sources: Sequence[Source] | None) -> InputError:
    """Says of too little text that weights may be the cause."""
    if sources is None or not str(error).startswith("too little text"):
        return error
    return InputError(
        f"{error} to the file that the weights leave whole: no line is repeated, so it says how "
        "much of the others is used"
    )
