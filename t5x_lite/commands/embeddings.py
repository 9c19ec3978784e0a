"""embed: the texts of a file as vectors, without TensorFlow.

A file of any size streams through in constant memory, in chunks of batches with texts sorted by
length. All devices share a batch. The output appears when it is complete, and a killed command
resumes after the last complete chunk.
"""

import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE, new_directory
from t5x_lite.core.option_types import (
    NO_ROW_MODULES,
    Directory,
    File,
    LongInputs,
    Natural,
    OptionalDirectory,
    OptionalPooling,
    OptionalPositive,
    OptionalText,
    Positive,
    RowModules,
    Step,
    Text,
    Texts,
)
from t5x_lite.core.options import Formerly
from t5x_lite.core.progress import counting
from t5x_lite.core.project import trusting_checkpoints

if TYPE_CHECKING:
    import numpy as np

    from t5x_lite.core.trees import Params
    from t5x_lite.data.formats.passages import PassageFormat, TextRecord
    from t5x_lite.data.formats.vectors import VectorWriter, Writer
    from t5x_lite.inference.checkpoint import Checkpoint
    from t5x_lite.inference.text_encoder import TextEncoder
    from t5x_lite.inference.vectors import Embedder, HeadEmbedder
    from t5x_lite.models.vector_heads import Role

CHUNK_BATCHES = 32
"""Batches that are held at a time."""

_logger = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """Texts, and their tokens."""

    records: list["TextRecord"]
    rows: list["np.ndarray"]


@command
def embed(
    checkpoint: Directory,
    *,
    input: File,
    output: File,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: RowModules = NO_ROW_MODULES,
    format: Literal["auto", "text", "jsonl", "tsv"] = "auto",
    pooling: OptionalPooling = None,
    normalize: bool | None = None,
    dimensions: OptionalPositive = None,
    precision: Literal["float32", "float16", "binary"] = "float32",
    prefix: OptionalText = None,
    prompt: OptionalText = None,
    role: Literal["query", "passage"] = "query",
    batch_size: Positive = 32,
    inputs_length: OptionalPositive = None,
    long_inputs: LongInputs = "cut",
    longest_line: Positive = LONGEST_LINE,
    bag_top: Natural = 0,
    heads: Texts = ("dense",),
    mcls: OptionalPositive = None,
    vector_numbers: Literal["float16", "int8", "float32"] = "float16",
    shard: Annotated[OptionalText, Formerly("part")] = None,
    compute_dtype: Literal["float32", "bfloat16"] | None = None,
    text: Text = "{text}",
    trust_project: bool = False,
) -> Path:
    """Turn texts into vectors by an encoder: text, JSON lines or tables to .npy or .parquet.

    All devices share a batch. The output appears when it is complete; a killed command continues,
    but with standard input or .parquet it begins again. In JSON lines, "adapter" names the adapter
    of a text.

    Example:
        t5x-lite embed --checkpoint work/encoder --input corpus.jsonl --output corpus.npy

    Args:
      checkpoint: a work directory or a checkpoint directory.
      input: texts to encode: a file with one text per line; JSON lines {"text"}, optionally with
        "title" and "_id", such as BEIR's corpus.jsonl; tab-separated passages, such as MS MARCO's
        collection.tsv and DPR's psgs_w100.tsv; Parquet or Arrow; a directory or a pattern;
        hf://NAME or tfds://NAME; - is standard input.
      output: FILE.npy, float32 [N, D] in the order of the input, or FILE.parquet with columns id
        and vector (needs pyarrow); an existing file is replaced.
      step: step number of the checkpoint in a work directory, or best for the run's best
        checkpoint; default: the newest.
      base: directory of the base model, for a checkpoint that holds only trained parameters;
        default: the recorded base.
      adapters: the adapters to use.
      format: format of the input; auto infers it from the file name.
      pooling: the [CLS] hidden state, or the mean of all hidden states; default: the checkpoint's
        setting, or mean with a warning.
      normalize: scales vectors to length 1; default: the checkpoint's setting, or True.
      dimensions: keeps only the first N dimensions of each dense vector, for models trained with
        the objective Matryoshka; default: all.
      precision: type of dense vectors in a .npy file: float32, float16, or binary, which keeps only
        the signs (uint8 [N, D / 8]); search reads all three, and its --rescore scores with float
        vectors.
      prefix: string put before every text, such as "query: "; default: the checkpoint's prompt.
      prompt: name of one of the checkpoint's prompts, such as query or document; default: the
        checkpoint's default prompt, if any.
      role: kind of the texts, query or passage, for a retriever with a separate passage encoder or
        projection.
      batch_size: texts encoded at once.
      inputs_length: maximum tokens of a text; default: the model's training length.
      long_inputs: "cut" truncates longer texts and warns; "refuse" rejects them.
      longest_line: maximum bytes of a line; longer lines are rejected before they are read.
      bag_top: for DupMAE, number of entries of the bag of words to keep. The bag holds each
        vocabulary token's highest masked language model logit over the text, and follows the [CLS]
        hidden state in the vector; all but its largest entries are set to 0. 0 disables the bag.
      heads: output per text: dense, lexical (weights of its tokens) and multi_vector (vectors of
        its tokens), in one pass. For dense only, the output is a file; otherwise a new directory
        with ids.txt, dense.npy, lexical.jsonl and multi_vector.npy, which hybrid reads.
      mcls: inserts a [CLS] before every N tokens of a text and averages the [CLS] hidden states
        (BGE-M3 uses 256 for long texts); default: one [CLS].
      vector_numbers: type of token vectors: float16, float32, or int8 with one scale per vector.
      shard: I/N, such as 2/8: embeds only shard I of N, for N hosts; pass the files of all shards,
        in order, to search as --vectors.
      compute_dtype: dtype of the encoder's activations; default: the dtype that the checkpoint was
        trained with.
      text: column with the text in JSON lines and tables, or a template with columns in braces;
        with the default "{text}", a title is put before the text.
      trust_project: lets a checkpoint's config run your own classes, not only those in t5x_lite.

    Returns:
      The file or directory that was written.

    Raises:
      InputError: if the checkpoint or a line is wrong, the checkpoint has no encoder, or a vector
        is not finite; the output is as it was then.
    """
    from t5x_lite.checkpoints.base import base_at
    from t5x_lite.core.jobs import resumable_directory
    from t5x_lite.core.sharding import MeshConfig, make_mesh
    from t5x_lite.core.workers import Prefetch
    from t5x_lite.data.formats.documents import as_template
    from t5x_lite.data.formats.passages import Share
    from t5x_lite.data.formats.vectors import Writer, vector_writer
    from t5x_lite.inference.checkpoint import Checkpoint
    from t5x_lite.inference.json_answers import identity_of_step
    from t5x_lite.inference.loading import find_step

    share = None if shard is None else Share.of_text(shard)
    several = tuple(heads) != ("dense",)
    if several and precision != "float32":
        raise InputError("--precision is for dense vectors only, not for several --heads")
    _check_heads(heads, bag_top=bag_top, mcls=mcls, role=role)
    _check_files(input, output, is_directory=several)
    with trusting_checkpoints(trust_project), base_at(base):
        directory = find_step(checkpoint, step=step)
        template = as_template(text)
        read = functools.partial(
            _read_place, input, format=format, longest=longest_line, template=template
        )
        records, total = read(), None
        size = CHUNK_BATCHES * batch_size
        if share is not None:
            if several or input == "-":
                raise InputError("--shard goes with a file of texts, and with one file of vectors")
            bounds = share.bounds(sum(1 for _ in read()), whole=size, what="texts")
            records, total = itertools.islice(records, *bounds), bounds[1] - bounds[0]
        identity = {
            "command": "embed",
            "inputs": _identity_of_place(input),
            "checkpoint": identity_of_step(directory),
            "base": base,
            "adapters": {k: x for k, x in asdict(adapters).items() if k != "load" or x},
            "format": format,
            "text": text,
            "prefix": prefix,
            "prompt": prompt,
            "part": shard,
            "inputs_length": inputs_length,
            "long_inputs": long_inputs,
            "pooling": pooling,
            "normalize": normalize,
            "role": role,
            "bag_top": bag_top,
            "heads": [*heads],
            "mcls": mcls,
            "vector_numbers": vector_numbers,
            "compute_dtype": compute_dtype,
            "batch_size": batch_size,
            **({} if dimensions is None else {"dimensions": dimensions}),
            **({} if precision == "float32" else {"precision": precision}),
        }
        known = None if input == "-" or Path(input).is_fifo() else identity
        with contextlib.ExitStack() as stack:
            file: VectorWriter | Writer
            if several:
                made = (
                    new_directory(output)
                    if known is None
                    else resumable_directory(output, identity=known, content="vectors")
                )
                file = stack.enter_context(
                    Writer(stack.enter_context(made), numbers=vector_numbers)
                )
                total = _num_lines(input)
            else:
                file = stack.enter_context(
                    vector_writer(output, identity=known, chunk=size, precision=precision)
                )
            records = itertools.islice(records, file.done, None)
            first = next(records, None)  # a wrong input is seen before a large model is loaded
            if first is None and not file.done:
                raise InputError(f"{input}: no text to read")
            model = Checkpoint.load(
                [str(directory)],
                use=adapters.use,
                adapters=adapters.load,
                mesh=make_mesh(MeshConfig()),
                inputs_length=inputs_length,
                compute_dtype=compute_dtype,
            )
            encoder = model.encoder(pooling=pooling, normalize=normalize, dimensions=dimensions)
            cut, numbers = Cutter(encoder, long_inputs, mcls=mcls), ""
            left = records if first is None else itertools.chain([first], records)
            chunks = _chunks(left, cut, prefix=encoder.begins_with(prefix, prompt), size=size)
            ahead = stack.enter_context(contextlib.closing(Prefetch(chunks, depth=2)))
            progress = counting(
                "embedding", unit="texts", total=total or _num_lines(input), done=file.done
            )
            advance = stack.enter_context(progress)
            if isinstance(file, Writer):
                embedder = encoder.head_embedder(heads, batch_size=batch_size)
                _write_heads(file, ahead, embedder, encoder.params, advance, mcls=mcls is not None)
            else:
                vectors_of = _vectors_of(
                    model, encoder, batch_size=batch_size, bag_top=bag_top, mcls=mcls, role=role
                )
                for chunk in ahead:
                    vectors = vectors_of(chunk)
                    _check_finite(vectors, chunk.records)
                    file.write([record.id for record in chunk.records], vectors)
                    numbers = f" of {vectors.shape[1]} numbers"
                    advance(len(vectors))
            done = file.done
    cut.report()
    if several:
        _logger.info("%s: encoded %d texts with the heads %s", output, done, ", ".join(heads))
        return Path(output)
    _logger.info(
        "%s: %d vectors%s (pooling %s, %s)",
        output,
        done,
        numbers,
        encoder.vectors.pooling,
        "of length 1" if encoder.vectors.normalize else "not normalized",
    )
    return Path(output)


def _identity_of_place(place: str) -> list[Any]:
    from t5x_lite.core.jobs import identity_of_file
    from t5x_lite.data.formats.documents import TFDS
    from t5x_lite.data.tasks.text_files import shards_of

    if place == "-" or place.startswith(TFDS):
        return [place]
    return [identity_of_file(str(shard)) for shard in shards_of(place)]


def _read_place(
    place: str, *, format: "PassageFormat", longest: int, template: str
) -> Iterator["TextRecord"]:
    from t5x_lite.data.formats.documents import TFDS, is_named
    from t5x_lite.data.formats.passages import TextRecord, read_texts
    from t5x_lite.data.tasks.text_files import shards_of
    from t5x_lite.data.tasks.text_source import texts_of

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
    from t5x_lite.data.formats.documents import is_named, kind_of
    from t5x_lite.data.formats.lines import count_lines

    if is_named(place) or (place != "-" and kind_of(place) == "table"):
        return None
    return count_lines(place)


def _vectors_of(
    model: "Checkpoint",
    encoder: "TextEncoder",
    *,
    batch_size: int,
    bag_top: int,
    mcls: int | None,
    role: "Role",
) -> "Callable[[Chunk], np.ndarray]":
    @functools.cache
    def of_encoder(by_row: bool) -> "tuple[TextEncoder, Embedder]":
        own = model.by_row().encoder(**asdict(encoder.vectors)) if by_row else encoder
        return own, own.embedder(batch_size=batch_size, bag_top=bag_top)

    def vectors(chunk: Chunk) -> "np.ndarray":
        names, places = zip(*((each.adapter, each.where) for each in chunk.records), strict=True)
        _, ids = model.for_rows(names, where=places)
        own, embedder = of_encoder(ids is not None)
        return embedder.run(own.params, chunk.rows, role=role, adapter_ids=ids)

    if mcls is None:
        return vectors
    by_head = encoder.head_embedder(("dense",), batch_size=batch_size)

    def vectors_of_several_cls(chunk: Chunk) -> "np.ndarray":
        _check_no_adapter(chunk)
        found = by_head.several(encoder.params, chunk.rows, mcls=True).dense
        assert found is not None
        return found

    return vectors_of_several_cls


def _check_no_adapter(chunk: Chunk) -> None:
    named = next((record for record in chunk.records if record.adapter), None)
    if named is not None:
        raise InputError(
            f'{named.where}: "adapter" is not supported with --mcls or several --heads; choose one '
            "adapter for all texts by --adapters.use"
        )


def _write_heads(
    file: "Writer",
    chunks: Iterable[Chunk],
    embedder: "HeadEmbedder",
    params: "Params",
    advance: Callable[[int], None],
    *,
    mcls: bool,
) -> None:
    for chunk in chunks:
        _check_no_adapter(chunk)
        found = embedder.several(params, chunk.rows, mcls=mcls)
        for vectors in (found.dense, *(found.vectors or ())):
            if vectors is not None:
                _check_finite(vectors, chunk.records)
        ids = [record.id for record in chunk.records]
        file.write(ids, dense=found.dense, terms=found.terms, vectors=found.vectors)
        advance(len(ids))


class Cutter:
    """Tokenizer of texts that reports the ones that are too long.

    Args:
      encoder: encoder of the rows.
      long_inputs: "cut" truncates longer texts; "refuse" rejects them.
      mcls: tokens after each [CLS] of a row; None has one [CLS].
    """

    def __init__(self, encoder: "TextEncoder", long_inputs: LongInputs, *, mcls: int | None = None):
        self._encoder, self._mcls = encoder, mcls
        self._refuses = long_inputs == "refuse"
        self._num = 0

    def chunk(self, records: list["TextRecord"], *, prefix: str) -> Chunk:
        """Return the tokens of some texts.

        Raises:
          InputError: if one is too long, and `long_inputs` rejects it.
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
                "%s: the text is truncated to %d tokens, like all longer texts (--inputs-length)",
                records[longer[0]].where,
                self._encoder.length,
            )
        self._num += len(longer)
        return Chunk(records, rows)

    def report(self) -> None:
        """Log the number of truncated texts, if there are others than the first."""
        if self._num > 1:
            _logger.warning("%d texts were truncated", self._num)


def _chunks(
    records: Iterator["TextRecord"], cutter: Cutter, *, prefix: str, size: int
) -> Iterator[Chunk]:
    while some := list(itertools.islice(records, size)):
        yield cutter.chunk(some, prefix=prefix)


def _check_heads(heads: Sequence[str], *, bag_top: int, mcls: int | None, role: "Role") -> None:
    if not heads or len(set(heads)) < len(heads):
        raise InputError(f"heads are one or more different names: got {', '.join(heads) or 'none'}")
    apart = tuple(heads) != ("dense",) or mcls is not None
    if apart and (bag_top or role != "query"):
        raise InputError("--heads and --mcls do not go with --bag-top or --role passage")


def _check_files(input: str, output: str, *, is_directory: bool = False) -> None:
    """Raise InputError for what cannot be written, before the work and not after it."""
    if is_directory:
        return  # the directory's job checks it
    from t5x_lite.data.formats.vectors import check_vector_file

    check_vector_file(output)
    folder = Path(output).absolute().parent
    if not folder.is_dir():
        raise InputError(f"{output}: cannot be written ({folder} is not a directory)")
    if Path(output).is_dir():
        raise InputError(f"{output}: cannot be written (it is a directory)")
    both = input != "-" and Path(input).exists() and Path(output).exists()
    if both and os.path.samefile(input, output):
        raise InputError(f"--input and --output are one file, {input}")


def _check_finite(vectors: "np.ndarray", records: list["TextRecord"]) -> None:
    import numpy as np

    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if broken.size:
        raise InputError(
            f"{records[broken[0]].where}: the vector is not finite: the checkpoint's weights are "
            "broken, or the compute dtype is too narrow for them"
        )
