"""`t5x-lite embed`: the texts of a file as vectors, without TensorFlow.

A file of any size streams through in constant memory, a chunk of batches at a time, whose texts are
sorted by length. All devices share a batch. The output appears when it is whole.
"""

import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5x_lite.data.tasks.text_files import shards_of
from t5x_lite.data.tasks.text_source import texts_of
from t5x_lite.errors import InputError
from t5x_lite.evaluate.head_vectors import HeadEmbedder
from t5x_lite.files import LONGEST_LINE
from t5x_lite.heads.dense import Role
from t5x_lite.interop.directories import new_directory
from t5x_lite.models.pooling import Pooling
from t5x_lite.options import suggesting
from t5x_lite.progress import counting
from t5x_lite.records.documents import TEXT, TFDS, as_template, is_named, kind_of
from t5x_lite.records.lines import count_lines
from t5x_lite.records.m3_files import Numbers, Writer
from t5x_lite.records.passages import PassageFormat
from t5x_lite.records.prefetch import Prefetch
from t5x_lite.records.shares import Share
from t5x_lite.records.text_records import TextRecord, read_texts
from t5x_lite.records.vector_files import check_vector_file, vector_writer
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.long_texts import LongInputs
from t5x_lite.run.text_encoder import TextEncoder
from t5x_lite.sharding import MeshConfig, make_mesh
from t5x_lite.types import ComputeDtype, Params

CHUNK_BATCHES = 32
"""Batches that are held at a time."""

_logger = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """Texts, and their tokens."""

    records: list[TextRecord]
    rows: list[np.ndarray]


@suggesting
def embed(
    checkpoint: str,
    *,
    step: Step = None,
    use: str | None = None,
    input: str,
    output: str,
    format: PassageFormat = "auto",
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    prefix: str | None = None,
    prompt: str | None = None,
    role: Role = "query",
    batch_size: int = 32,
    inputs_length: int | None = None,
    long_inputs: LongInputs = "cut",
    longest_line: int = LONGEST_LINE,
    bag_top: int = 0,
    heads: Sequence[str] = ("dense",),
    mcls: int | None = None,
    numbers: Numbers = "float16",
    part: Share | None = None,
    compute_dtype: ComputeDtype | None = None,
    text: str = TEXT,
) -> Path:
    """Writes the vector of each text of a file, a directory or a data set, in order.

    Args:
      checkpoint: a work directory or a step directory.
      step: of a work directory: its number, "best", or None for the newest.
      use: names of modules, with commas between; "" is the base alone, None all of the checkpoint.
      input: a file, or "-"; `t5x_lite.records.text_records` says what is in it. Also a directory, a
        pattern or a data set (`t5x_lite.data.tasks.text_files`).
      output: a .npy or .parquet file; `t5x_lite.records.vector_files` says what is in it.
      format: of the input; "auto" tells it by its name.
      pooling: "cls" or "mean"; None is what the checkpoint says, or else "mean".
      normalize: whether vectors have length 1; None is what the checkpoint says, or else True.
      prefix: what every text begins with, as some models ask for; None is the checkpoint's prompt.
      prompt: the name of that; None is its default one, if it has one.
      role: of the texts, of a checkpoint whose passages have an encoder or a projection of their
        own.
      batch_size: texts encoded at once, rounded up to what the devices can share.
      inputs_length: tokens of a text at most, with those that begin and end a row; None is what the
        model was trained with.
      long_inputs: whether longer texts are cut, with a warning, or refused.
      longest_line: bytes of a line at most.
      bag_top: of DupMAE, entries of the bag of words behind each vector, which has as many more
        numbers as the vocabulary tokens; 0 is no bag.
      heads: what is written of a text: "dense" alone is a file of vectors; of several, such as
        "dense", "lexical" and "multi_vector", the output is a new directory
        (`t5x_lite.records.m3_files`).
      mcls: a [CLS] stands before each of so many tokens, and the vector is the mean of their states
        (`t5x_lite.evaluate.mcls`); None has one [CLS].
      numbers: of the vectors of tokens: "float16", "int8" or "float32".
      part: of the texts, whose vectors alone are written: the files of all parts, one behind the
        other, are the file of one command; None is all of them. The input is read twice.
      compute_dtype: of the encoder's activations; None is that of the checkpoint's run.
      text: the text of JSON and of tables, with columns in braces.

    Returns:
      The file or directory that was written.

    Raises:
      InputError: the checkpoint or a line is wrong, the checkpoint has no encoder, or a vector is
        not finite; the output is as it was then.
    """
    several = tuple(heads) != ("dense",)
    _check_heads(heads, bag_top=bag_top, mcls=mcls, role=role)
    _check_files(input, output, is_directory=several)
    directory = find_step(checkpoint, step=step)
    template = as_template(text)
    read = functools.partial(
        _read_place, input, format=format, longest=longest_line, template=template
    )
    records, total = read(), None
    if part is not None:
        if several or input == "-":
            raise InputError("--part goes with a file of texts, and with one file of vectors")
        bounds = part.bounds(sum(1 for _ in read()), whole=CHUNK_BATCHES * batch_size, what="texts")
        records, total = itertools.islice(records, *bounds), bounds[1] - bounds[0]
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
        compute_dtype=compute_dtype,
    )
    begins = encoder.begins_with(prefix, prompt)
    cut = Cutter(encoder, long_inputs, mcls=mcls)
    chunks = _chunks(
        itertools.chain([first], records), cut, prefix=begins, size=CHUNK_BATCHES * batch_size
    )
    if several:
        by_heads = encoder.head_embedder(heads, batch_size=batch_size)
        total = _num_lines(input)
        done = _write_heads(
            *(output, chunks, by_heads, encoder.params),
            numbers=numbers,
            mcls=mcls is not None,
            total=total,
        )
        cut.report()
        _logger.info("%s: %d texts by the heads %s", output, done, ", ".join(heads))
        return Path(output)
    vectors_of = _vectors_of(encoder, batch_size=batch_size, bag_top=bag_top, mcls=mcls, role=role)
    done = 0
    with (
        vector_writer(output) as file,
        contextlib.closing(Prefetch(chunks, depth=2)) as ahead,
        counting("embedding", unit="texts", total=total or _num_lines(input)) as advance,
    ):
        for chunk in ahead:
            vectors = vectors_of(chunk.rows)
            _check_finite(vectors, chunk.records)
            file.write([record.id for record in chunk.records], vectors)
            done += len(vectors)
            advance(len(vectors))
    cut.report()
    _logger.info(
        "%s: %d vectors of %d numbers (pooling %s, %s)",
        output,
        done,
        vectors.shape[1],
        encoder.vectors.pooling,
        "of length 1" if encoder.vectors.normalize else "not normalised",
    )
    return Path(output)


def _read_place(
    place: str, *, format: PassageFormat, longest: int, template: str
) -> Iterator[TextRecord]:
    """The texts of a file, a directory, a pattern or a data set; ids are numbers over all files."""
    if place.startswith(TFDS):
        for number, text in enumerate(texts_of(place, template=template)):
            yield TextRecord(f"{place}: example {number + 1}", str(number), text)
        return
    shards = [place] if place == "-" else shards_of(place)
    if len(shards) == 1:
        shard = place if not is_named(place) and os.path.isfile(place) else shards[0]
        yield from read_texts(shard, format=format, longest=longest, template=template)
        return
    number = 0
    for shard in shards:
        records = read_texts(shard, format=format, longest=longest, template=template)
        for place_in_shard, record in enumerate(records):
            is_number = record.id == str(place_in_shard)
            yield record._replace(id=str(number)) if is_number else record
            number += 1


def _num_lines(place: str) -> int | None:
    """The lines of one plain file, for progress."""
    if is_named(place) or (place != "-" and kind_of(place) == "table"):
        return None
    return count_lines(place)


def _vectors_of(
    encoder: TextEncoder, *, batch_size: int, bag_top: int, mcls: int | None, role: Role
) -> Callable[[list[np.ndarray]], np.ndarray]:
    """What gives the vectors of rows."""
    if mcls is None:
        embedder = encoder.embedder(batch_size=batch_size, bag_top=bag_top)
        return lambda rows: embedder.run(encoder.params, rows, role=role)
    by_head = encoder.head_embedder(("dense",), batch_size=batch_size)

    def vectors(rows: list[np.ndarray]) -> np.ndarray:
        found = by_head.several(encoder.params, rows, mcls=True).dense
        assert found is not None
        return found

    return vectors


def _write_heads(
    output: str,
    chunks: Iterator["Chunk"],
    embedder: HeadEmbedder,
    params: Params,
    *,
    numbers: Numbers,
    mcls: bool,
    total: int | None,
) -> int:
    """Writes the directory of several heads, and says how many texts there were."""
    done = 0
    with (
        new_directory(output) as directory,
        contextlib.closing(Writer(directory, numbers=numbers)) as file,
        contextlib.closing(Prefetch(chunks, depth=2)) as ahead,
        counting("embedding", unit="texts", total=total) as advance,
    ):
        for chunk in ahead:
            found = embedder.several(params, chunk.rows, mcls=mcls)
            for vectors in (found.dense, *(found.vectors or ())):
                if vectors is not None:
                    _check_finite(vectors, chunk.records)
            ids = [record.id for record in chunk.records]
            file.write(ids, dense=found.dense, terms=found.terms, vectors=found.vectors)
            done += len(ids)
            advance(len(ids))
    return done


class Cutter:
    """Tokens of texts; says which were too long.

    Args:
      encoder: whose rows they are.
      long_inputs: whether longer texts are cut or refused.
      mcls: tokens behind each [CLS] of a row; None has one [CLS].
    """

    def __init__(self, encoder: TextEncoder, long_inputs: LongInputs, *, mcls: int | None = None):
        self._encoder, self._mcls = encoder, mcls
        self._refuses = long_inputs == "refuse"
        self._num = 0

    def chunk(self, records: list[TextRecord], *, prefix: str) -> Chunk:
        """The tokens of some texts.

        Raises:
          InputError: one is too long, and such are refused.
        """
        rows, longer = self._encoder.rows(
            [prefix + record.text for record in records], mcls=self._mcls
        )
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


def _check_heads(heads: Sequence[str], *, bag_top: int, mcls: int | None, role: Role) -> None:
    """Refuses, by an InputError, what does not go together."""
    if not heads or len(set(heads)) < len(heads):
        raise InputError(f"heads are one or more different names: got {', '.join(heads) or 'none'}")
    apart = tuple(heads) != ("dense",) or mcls is not None
    if apart and (bag_top or role != "query"):
        raise InputError("--heads and --mcls do not go with --bag-top or --role passage")
    if mcls is not None and mcls < 1:
        raise InputError(f"mcls is a number of tokens from 1 on: got {mcls}")


def _check_files(input: str, output: str, *, is_directory: bool = False) -> None:
    """Refuses what cannot be written, before the work and not after it.

    Raises:
      InputError: the output is no file of vectors, has no directory, or is the input.
    """
    if is_directory:
        return  # `new_directory` checks it
    check_vector_file(output)
    folder = Path(output).absolute().parent
    if not folder.is_dir():
        raise InputError(f"{output}: cannot be written ({folder} is not a directory)")
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
