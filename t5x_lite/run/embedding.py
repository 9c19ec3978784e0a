"""`t5x-lite embed`: the texts of a file as vectors, without TensorFlow.

A file of any size streams through in constant memory, a chunk of batches at a time, whose texts are
sorted by length. All devices share a batch. The output appears when it is whole.
"""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE
from t5x_lite.models.pooling import Pooling
from t5x_lite.records.prefetch import Prefetch
from t5x_lite.records.text_records import TextFormat, TextRecord, read_texts
from t5x_lite.records.vector_files import check_vector_file, vector_writer
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.long_texts import LongInputs
from t5x_lite.run.text_encoder import TextEncoder
from t5x_lite.sharding import MeshConfig, make_mesh

CHUNK_BATCHES = 32
"""Batches that are held at a time."""
_TELL_SECONDS = 60

_logger = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """Texts, and their tokens."""

    records: list[TextRecord]
    rows: list[np.ndarray]


def embed(
    checkpoint: str,
    *,
    step: Step = None,
    use: str | None = None,
    input: str,
    output: str,
    format: TextFormat = "auto",
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    prefix: str | None = None,
    prompt: str | None = None,
    batch_size: int = 32,
    inputs_length: int | None = None,
    long_inputs: LongInputs = "cut",
    longest_line: int = LONGEST_LINE,
) -> None:
    """Writes the vector of each text of a file, in order.

    Args:
      checkpoint: a work directory or a step directory.
      step: of a work directory: its number, "best", or None for the newest.
      use: names of modules, with commas between; "" is the base alone, None all of the checkpoint.
      input: a file, or "-"; `t5x_lite.records.text_records` says what is in it.
      output: a .npy or .parquet file; `t5x_lite.records.vector_files` says what is in it.
      format: of the input; "auto" tells it by its name.
      pooling: "cls" or "mean"; None is what the checkpoint says, or else "mean".
      normalize: whether vectors have length 1; None is what the checkpoint says, or else True.
      prefix: what every text begins with, as some models ask for; None is the checkpoint's prompt.
      prompt: the name of that; None is its default one, if it has one.
      batch_size: texts encoded at once, rounded up to what the devices can share.
      inputs_length: tokens of a text at most, with those that begin and end a row; None is what the
        model was trained with.
      long_inputs: whether longer texts are cut, with a warning, or refused.
      longest_line: bytes of a line at most.

    Raises:
      InputError: the checkpoint or a line is wrong, the checkpoint has no encoder, or a vector is
        not finite; the output is as it was then.
    """
    _check_files(input, output)
    directory = find_step(checkpoint, step=step)
    records = read_texts(input, format=format, longest=longest_line)
    first = next(records, None)  # a wrong input is seen before a large model is loaded
    if first is None:
        raise InputError(f"{input}: no text to read")
    encoder = TextEncoder.load(
        str(directory),
        use=use,
        mesh=make_mesh(MeshConfig()),
        length=inputs_length,
        pooling=pooling,
        normalize=normalize,
    )
    begins = encoder.begins_with(prefix, prompt)
    embedder = encoder.embedder(batch_size=batch_size)
    cut = Cutter(encoder, long_inputs)
    chunks = _chunks(
        itertools.chain([first], records), cut, prefix=begins, size=CHUNK_BATCHES * batch_size
    )
    done, told = 0, time.monotonic()
    with vector_writer(output) as file, contextlib.closing(Prefetch(chunks, depth=2)) as ahead:
        for chunk in ahead:
            vectors = embedder.run(encoder.params, chunk.rows)
            _check_finite(vectors, chunk.records)
            file.write([record.id for record in chunk.records], vectors)
            done += len(vectors)
            if time.monotonic() - told > _TELL_SECONDS:
                _logger.info("%d texts", done)
                told = time.monotonic()
    cut.report()
    _logger.info(
        "%s: %d vectors of %d numbers (pooling %s, %s)",
        output,
        done,
        vectors.shape[1],
        encoder.vectors.pooling,
        "of length 1" if encoder.vectors.normalize else "not normalised",
    )


class Cutter:
    """Tokens of texts; says which were too long.

    Args:
      encoder: whose rows they are.
      long_inputs: whether longer texts are cut or refused.
    """

    def __init__(self, encoder: TextEncoder, long_inputs: LongInputs):
        self._encoder = encoder
        self._refuses = long_inputs == "refuse"
        self._num = 0

    def chunk(self, records: list[TextRecord], *, prefix: str) -> Chunk:
        """The tokens of some texts.

        Raises:
          InputError: one is too long, and such are refused.
        """
        rows, longer = self._encoder.rows([prefix + record.text for record in records])
        if longer and self._refuses:
            raise InputError(
                f"{records[longer[0]].where}: the text is longer than {self._encoder.length} "
                "tokens; shorten it, raise --inputs-length, or have it cut by --long-inputs cut"
            )
        if longer and not self._num:
            _logger.warning(
                "%s: the text is cut to %d tokens, as all longer ones are (--inputs-length)",
                records[longer[0]].where,
                self._encoder.length,
            )
        self._num += len(longer)
        return Chunk(records, rows)

    def report(self) -> None:
        """Says how many, where it is more than the one that was named."""
        if self._num > 1:
            _logger.warning("%d texts were cut", self._num)


def _chunks(
    records: Iterator[TextRecord], cutter: Cutter, *, prefix: str, size: int
) -> Iterator[Chunk]:
    while some := list(itertools.islice(records, size)):
        yield cutter.chunk(some, prefix=prefix)


def _check_files(input: str, output: str) -> None:
    """Refuses what cannot be written, before the work and not after it.

    Raises:
      InputError: the output is no file of vectors, has no directory, or is the input.
    """
    check_vector_file(output)
    folder = Path(output).absolute().parent
    if not folder.is_dir():
        raise InputError(f"{output}: cannot be written ({folder} is no directory)")
    if Path(output).is_dir():
        raise InputError(f"{output}: cannot be written (it is a directory)")
    both = input != "-" and Path(input).exists() and Path(output).exists()
    if both and os.path.samefile(input, output):
        raise InputError(f"--input and --output are one file, {input}")


def _check_finite(vectors: np.ndarray, records: list[TextRecord]) -> None:
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if broken.size:
        raise InputError(
            f"{records[broken[0]].where}: the vector is not finite: the checkpoint's weights are "
            "broken, or the compute dtype is too narrow for them"
        )
