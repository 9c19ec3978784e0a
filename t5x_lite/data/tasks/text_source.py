"""Seqio source of unlabelled documents, in a new order for each pass that can be resumed.

Passes over the data of a task, each in a new order that a saved iterator can resume.

    passes = Passes(lambda epoch: parts_of(files, Shuffle(seed=0, epoch=epoch)), size="24 bytes")
    endless(passes, task.preprocess_precache, seed=0, epoch="epoch")

A shuffle buffer only mixes nearby examples: a file sorted by label yields one label first. So the
parts of files that do not fit into memory are permuted in each pass (`mixing.order`). The order
depends only on the seed and the epoch, and tf.data saves the epoch.

Seqio source of unlabelled documents: text, JSON lines, tables, the hub and TFDS.

    document_source(arguments.directory)     # a source of the directory, with its splits
    text_lines([Path("a.txt"), Path("c4-train.00000-of-00001.json.gz")])   # {"text": "..."}, ...
    text_documents([Path("b.txt")])          # one example per block between blank lines
    json_objects([Path("c.jsonl")], parse)   # one example per JSON object
    parsed_lines([Path("c.tsv")], parse)     # one example per line
    passage_texts([Path("collection.tsv")])  # one example per passage, with title and text
    text_lines(["d.txt"], shuffle=Shuffle(seed=0, epoch=epoch))   # shuffled

`text_files` documents the kinds of directories and the held-out documents. Files may be compressed.
In order, up to 64 files are read in turn, 128 lines from each. When shuffled, the parts of all
files (`line_blocks`) are permuted, and up to 64 parts are read in turn, so that a shuffle buffer
holds examples from many positions of a file. Iterators over both can be saved.
"""

import contextlib
import errno
import functools
import itertools
import json
import operator
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath, size_of
from t5x_lite.core.remote import is_remote
from t5x_lite.data.formats.documents import (
    LINES,
    TEXT,
    TFDS,
    Block,
    Files,
    Shard,
    fill,
    kind_of,
    line_of,
    places,
    read_documents,
)
from t5x_lite.data.formats.lines import is_compressed
from t5x_lite.data.formats.pairs import Passage, line_reader
from t5x_lite.data.mixing import order
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.tasks import unsupervised

IN_MEMORY_BYTES = 1 << 26
"""Maximum bytes (64 MiB) of files that are tokenized at the start and fully permuted."""
_EXPANSION = 8
"""Typical maximum ratio of text to file size, for compressed files."""
_PLACES = 1024

Dataset = Any
"""tf.data.Dataset; TensorFlow is imported when it is used."""


class Shuffle(NamedTuple):
    """Random order of one pass over the data.

    Attributes:
      seed: seed of the run.
      epoch: number of the pass, a tf.Tensor int64 [].
    """

    seed: int
    epoch: Any


@dataclass(frozen=True)
class Passes:
    """Passes over the examples of a split, each in a new random order.

    Attributes:
      of_epoch: function from the number of a pass, tf.Tensor int64 [], to the pass's examples.
      size: size and checksum of the files, which change if the files change; None if unknown.
    """

    of_epoch: Callable[[Any], Dataset]
    size: str | None


def endless(
    passes: Passes, preprocess: Callable[..., Dataset], *, seed: int, epoch: str
) -> Dataset:
    """Return an infinite dataset of passes over the data, each preprocessed separately.

    The function `preprocess` is traced by tf.data, so it cannot iterate over the dataset.

    Args:
      passes: passes over the examples of a split.
      preprocess: function from the examples of a pass and the seed to a dataset.
      seed: seed of the preprocessing.
      epoch: name of the added feature with the number of the pass.
    """
    from t5x_lite.data.elements import tf

    # Preprocessors run as plain Python in a graph. Functions that they map use AutoGraph as usual.
    autograph = tf.__internal__.autograph
    status = autograph.control_status_ctx()
    of_epoch, converted = (
        autograph.tf_convert(function, status, convert_by_default=False)
        for function in (passes.of_epoch, preprocess)
    )

    @tf.autograph.experimental.do_not_convert
    def one_pass(number: Any) -> Dataset:
        examples = converted(of_epoch(number), seed)
        return examples.map(lambda example: {**example, epoch: number})

    return tf.data.Dataset.range(tf.int64.max).flat_map(one_pass)


def permuted_range(size: int, shuffle: Shuffle) -> Dataset:
    """Return a dataset of the numbers from 0 to size - 1, int64, in shuffled order."""
    return _shuffled_blocks(size, shuffle).unbatch()


def _shuffled_blocks(size: int, shuffle: Shuffle) -> Dataset:
    from t5x_lite.data.elements import tf

    def ordered(places: np.ndarray, epoch: np.integer) -> np.ndarray:
        return order(places, np.full_like(places, epoch), size=size, seed=shuffle.seed)

    @tf.autograph.experimental.do_not_convert
    def of(places: Any) -> Any:
        found = tf.numpy_function(ordered, [places, shuffle.epoch], tf.int64, stateful=False)
        return tf.ensure_shape(found, [None])

    return tf.data.Dataset.range(size).batch(_PLACES).map(of)


def can_be_permuted(dataset: Dataset) -> bool:
    """Return True if a tf.data.Dataset supports random access."""
    from t5x_lite.data.elements import tf

    if int(dataset.cardinality()) < 1:
        return False
    try:
        tf.data.experimental.at(dataset, 0)
    except tf.errors.UnimplementedError:
        return False
    return True


def sizes_of(files: Sequence[Any]) -> str | None:
    """Return total size and checksum of files as a text, such as "512 bytes (5f0c2a9b)".

    Return None if the size of a file is unknown: the file is neither local nor in a bucket.
    """
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError, InputError):
        return None
    each = [f"{os.path.basename(file)} {size}" for file, size in zip(files, sizes, strict=True)]
    return f"{sum(sizes)} bytes ({zlib.crc32(chr(10).join(each).encode()):08x})"


def fit_in_memory(files: Sequence[Any]) -> bool:
    """Return True if the text of files fits into `IN_MEMORY_BYTES`.

    Compressed files and Parquet count eight times their size. The result is False if the size of a
    file is unknown: the file is neither local nor in a bucket.
    """
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError, InputError):
        return False
    compact = [is_compressed(str(file)) or str(file).endswith(".parquet") for file in files]
    factors = [_EXPANSION if one else 1 for one in compact]
    return sum(s * f for s, f in zip(sizes, factors, strict=True)) <= IN_MEMORY_BYTES


Tensor = Any
"""tf.Tensor; TensorFlow is imported when files are read."""

_OPEN = 64
"""Maximum number of files, or parts of files, that are read in turn."""
_USUAL = Columns()
HELD_OUT = 100
"""Number of documents per held-out document, if the files are not divided by split."""


def document_source(
    directory: str,
    *,
    columns: Columns = _USUAL,
    languages: Sequence[str] = (),
    blocks: bool = False,
    c4: bool = False,
) -> Any:
    """Return a seqio source of the documents in data.directory, with the feature "text".

    Args:
      directory: value of the option data.directory.
      columns: options of data.columns.
      languages: language of multilingual data; () for other data.
      blocks: True if blank lines separate the documents of plain text; False if each line is a
        document.
      c4: True to read C4 (c4/en of TFDS) if `directory` is TFDS's directory or "".

    Raises:
      InputError: if documents, a language, a column or a package are missing.
    """
    from t5x_lite.data.tasks import stages

    template = unsupervised.template_of(columns)
    language = unsupervised.one_language(languages)
    prepared = _prepared(directory, c4=c4, language=language)
    if prepared is not None:
        source = prepared.source(template, language=language)
    else:
        splits = unsupervised.split_files(directory, columns=columns, language=language)
        unsupervised.check_columns(splits, template)
        read = partial(text_documents if blocks else text_lines, template=template)
        source = source_of_files(splits, read, held_out=columns.hold_out or HELD_OUT)
    assert isinstance(source, stages.FileSource)
    source.language = language
    return source


def source_of_files(
    splits: Mapping[str, Sequence[Any]],
    read: Callable[..., Dataset],
    *,
    held_out: int = HELD_OUT,
) -> Any:
    """Return a seqio source of the files of each split.

    Args:
      splits: files of each split. If "train" and "validation" are the same list object, documents
        are assigned to a split by their hash.
      read: function (files, keep=, shuffle=) that returns the examples of files; `keep` is a filter
        of documents, `shuffle` a `Shuffle` or None.
      held_out: one in `held_out` documents is used for validation.
    """
    from t5x_lite.data.tasks import stages

    by_document = "validation" in splits and splits["train"] is splits["validation"]
    of_split = partial(_of_split, read=read, held_out=held_out if by_document else 0)
    return stages.FileSource([*splits], splits.__getitem__, of_split, shuffled=of_split)


def _of_split(
    split: str,
    files: Sequence[Any],
    *,
    read: Callable[..., Dataset],
    held_out: int,
    shuffle: Shuffle | None = None,
) -> Dataset:
    if not held_out:
        return read(files, shuffle=shuffle)
    from t5x_lite.data.elements import tf

    def keep(texts: Tensor) -> Tensor:
        is_held_out = tf.strings.to_hash_bucket_fast(texts, held_out) == 0
        return is_held_out if split == "validation" else ~is_held_out

    return read(files, keep=keep, shuffle=shuffle)


def text_lines(
    files: Sequence[str | Shard],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
    template: str = TEXT,
) -> Dataset:
    """Return a dataset of the lines of text files, and the texts of JSON files and tables.

    Args:
      files: files in UTF-8 with one document per line; compressed files end in .gz, .zst or .xz.
        Tables and splits of the Hub are also supported (`data.formats.documents`).
      keep: function from stripped lines, string [n], to a mask [n] of the lines to keep; None for
        all.
      shuffle: seed and epoch of the order; None for the fixed order of the files.
      template: template of the text of a JSON object or a row, with column names in braces.

    Returns:
      Examples {"text": str}, without empty lines. Iterating raises if a line is not UTF-8 or, in a
        JSON file, not an object with a string "text".
    """
    return _texts(_blocks(Files(files, template=template), keep, shuffle), files, template)


def text_documents(
    files: Sequence[str | Shard],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
    template: str = TEXT,
) -> Dataset:
    """Return a dataset of the documents of files; blank lines separate documents in text files.

    Args:
      files: paths of files in UTF-8, tables, or splits of the Hub. The lines of a document are
        stripped and remain separate lines.
      keep: function from documents, string [n], to a mask [n] of the documents to keep; None for
        all.
      shuffle: seed and epoch of the order; None for the fixed order of the files.
      template: template of the text of a JSON object or a row, with column names in braces.

    Returns:
      Examples {"text": str}. Without `shuffle`, plain text files come before other files.
    """
    ordered = sorted(files, key=lambda file: kind_of(file) != "text")
    divided = [kind_of(file) == "text" for file in ordered]
    if shuffle is not None or len({*divided}) < 2:
        found = Files(ordered, documents=divided, template=template)
        return _texts(_blocks(found, keep, shuffle), ordered, template)
    plain, others = (ordered[: sum(divided)], ordered[sum(divided) :])
    return text_documents(plain, keep=keep, template=template).concatenate(
        text_documents(others, keep=keep, template=template)
    )


def json_objects(
    files: Sequence[str | DataPath],
    parse: Callable[[Mapping[str, Any], str], str],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """Return a dataset of one text per JSON object of JSON Lines files.

    Args:
      files: files with one JSON object per line.
      parse: pure function from an object and its location, "file:line", to a text. The location is
        only for error messages.
      keep: function from lines, string [n], to a mask [n] of the lines to keep; None for all.
      shuffle: seed and epoch of the order; None for the fixed order of the files.
    """
    return _made(_blocks(Files(files), keep, shuffle), partial(of_object, parse=parse))


def texts_of_files(
    files: Sequence[str | DataPath], make: Callable[[bytes, str], bytes]
) -> Iterator[str]:
    """Convert each line of files to a text, without TensorFlow; yield the texts in order.

    Args:
      files: paths of the files.
      make: function from a line and its location, "file:line", to a text; a line with the text ""
        is skipped.
    """
    reader = Files(files)
    for file in range(len(files)):
        for number in itertools.count():
            block = reader.read(file, number)
            if block is None:
                break
            for place, line in zip(block.places, block.texts, strict=True):
                if text := _of_place(make, line, block.file, place):
                    yield text.decode()


def of_object(line: bytes, where: str, *, parse: Callable[[Mapping[str, Any], str], str]) -> bytes:
    return parse(_object(line, where=where), where).encode()


def of_line(line: bytes, where: str, *, parse: Callable[[str, str], str]) -> bytes:
    return parse(line.decode(), where).encode()


def parsed_lines(
    files: Sequence[str | DataPath],
    parse: Callable[[str, str], str],
    *,
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """Return a dataset of one text per nonempty line of text files.

    Args:
      files: paths of the files.
      parse: pure function from a line and its location, "file:line", to a text. A line with the
        text "" is skipped.
      keep: function from lines, string [n], to a mask [n] of the lines to keep; None for all.
      shuffle: seed and epoch of the order; None for the fixed order of the files.
    """
    return _not_empty(_made(_blocks(Files(files), keep, shuffle), partial(of_line, parse=parse)))


def passage_texts(
    files: Sequence[str | DataPath],
    *,
    write: Callable[[Passage], str] = operator.attrgetter("whole"),
    keep: Callable[[Tensor], Tensor] | None = None,
    shuffle: Shuffle | None = None,
) -> Dataset:
    """Return a dataset with one text for each passage in the given files.

    Args:
      files: files of passages, in a format of `data.formats.pairs`.
      write: pure function from a passage to a text; a passage with the text "" is skipped.
      keep: function from lines, string [n], to a mask [n] of the lines to keep; None for all.
      shuffle: seed and epoch of the order; None for the fixed order of the files.
    """
    readers = {str(file): line_reader(str(file)) for file in files}

    def of_line(line: bytes, where: str) -> bytes:
        passage = readers[where.rpartition(":")[0]](line, where)
        return b"" if passage is None else write(passage).encode()

    return _not_empty(_made(_blocks(Files(files), keep, shuffle), of_line))


def _not_empty(texts: Dataset) -> Dataset:
    from t5x_lite.data.elements import tf

    return texts.filter(lambda example: tf.strings.length(example["text"]) > 0)


def _is_json(file: str | Shard) -> bool:
    return kind_of(file) == "json"


def _blocks(
    files: Files, keep: Callable[[Tensor], Tensor] | None, shuffle: Shuffle | None
) -> Dataset:
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    _check_readable(files.paths)
    read = files.read if shuffle is None else files.read_part
    count = len(files.paths) if shuffle is None else files.num_parts
    spec = {
        "ended": tf.TensorSpec([], tf.bool),
        "file": tf.TensorSpec([None], tf.string),
        "place": tf.TensorSpec([None], tf.int64),
        "text": tf.TensorSpec([None], tf.string),
    }

    def block(at: Mapping[str, Any]) -> Mapping[str, Any]:
        found = read(int(at["unit"]), int(at["number"]))
        file, places, texts = found or Block("", [], [])
        names = [file.encode()] * len(texts)
        return {"ended": found is None, "file": names, "place": places, "text": texts}

    @tf.autograph.experimental.do_not_convert
    def blocks(unit: Tensor) -> Dataset:
        numbers = tf.data.Dataset.range(tf.int64.max)
        places = numbers.map(lambda number: {"unit": unit, "number": number})
        # Blocks are read in sequence, so that an open file is read further.
        found = stages.map_numpy(places, block, spec, parallel=False)
        found = found.take_while(lambda block: ~block["ended"])
        return found.map(lambda block: {name: block[name] for name in ("file", "place", "text")})

    @tf.autograph.experimental.do_not_convert
    def texts(unit: Tensor) -> Dataset:
        return blocks(unit).unbatch()

    turns: Any = {"cycle_length": min(count, _OPEN), "block_length": 1}
    if shuffle is None:
        dataset = tf.data.Dataset.range(count).interleave(blocks, **turns)
    else:  # text by text, so that nearby texts come from different parts
        units = permuted_range(count, shuffle)
        dataset = units.interleave(texts, **turns).batch(LINES)
    if keep is None:
        return dataset

    @tf.autograph.experimental.do_not_convert
    def wanted(block: Mapping[str, Tensor]) -> dict[str, Tensor]:
        kept = tf.squeeze(tf.where(keep(block["text"])), axis=1)
        return {name: tf.gather(values, kept) for name, values in block.items()}

    return dataset.map(wanted, num_parallel_calls=tf.data.AUTOTUNE)


def _texts(blocks: Dataset, files: Sequence[str | Shard], template: str) -> Dataset:
    if not any(_is_json(file) for file in files):
        return blocks.map(lambda block: {"text": block["text"]}).unbatch()

    return _made(blocks, partial(_jsonl_text, template=template), only=_is_json)


def _made(
    blocks: Dataset,
    make: Callable[[bytes, str], bytes],
    *,
    only: Callable[[str], bool] = lambda file: True,
) -> Dataset:
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    def texts(block: Mapping[str, Any]) -> Mapping[str, Any]:
        files = [file.decode() for file in block["file"]]
        found = zip(files, block["place"].tolist(), block["text"], strict=True)
        return {
            "text": [
                _of_place(make, text, file, place) if only(file) else text
                for file, place, text in found
            ]
        }

    return stages.map_numpy(blocks, texts, {"text": tf.TensorSpec([None], tf.string)}).unbatch()


def _of_place(make: Callable[[bytes, str], bytes], text: bytes, file: str, place: int) -> bytes:
    where = f"{file}:{place + 1}"
    try:
        return make(text, where)
    except InputError as error:
        if place >= 0:
            raise
        message = str(error).replace(where, f"{file}:{line_of(file, place)}")
        raise InputError(message) from error


def _check_readable(files: Sequence[str]) -> None:
    for file in files:
        if not is_remote(file) and not os.access(file, os.R_OK):
            reason = errno.EACCES if os.path.exists(file) else errno.ENOENT
            raise InputError(f"cannot read {file}: {os.strerror(reason)}")


def _jsonl_text(line: bytes, where: str, *, template: str = TEXT) -> bytes:
    record = _object(line, where=where)
    for name in places(template):
        if name not in record:
            raise InputError(
                f'{where}: must have "{name}"; it has {sorted(record) or "nothing"}; name the '
                "field of the text by --data.columns.inputs '{FIELD}'"
            )
        if not isinstance(record[name], str):
            kind = type(record[name]).__name__
            raise InputError(f'{where}: "{name}" must be a string, got {kind}')
    text = record["text"] if template == TEXT else fill(template, record)
    return text.encode("utf-8", "replace")


def _object(line: bytes, *, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    except (RecursionError, ValueError) as error:  # deep nesting, or a number of 5000 digits
        raise InputError(f"{where}: not JSON that can be read ({error})") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be a JSON object, got {type(record).__name__}")
    return record


def texts_of(place: str, *, template: str = TEXT, blocks: bool = False) -> Iterator[str]:
    """Yield the training documents of a directory, a file, a glob pattern or a data set.

    Args:
      place: location, as in data.directory.
      template: template of the text, with column names in braces.
      blocks: True if blank lines separate the documents of plain text.
    """
    if place.startswith(TFDS):
        from t5x_lite.data.elements import as_numpy

        source = _Prepared(place.removeprefix(TFDS)).source(template, language="")
        for example in as_numpy(source.get_dataset("train", shuffle=False)):
            yield example["text"].decode()
        return
    for shard in unsupervised.shards_of(place):
        for document in read_documents(shard, template=template, blocks=blocks):
            yield document.text


def language_sizes(directory: str) -> dict[str, int]:
    """Return the size of each language of multilingual data: examples in TFDS, or bytes of files.

    Raises:
      InputError: if the data have no languages.
    """
    prepared = _prepared(directory, c4=False, language="und")
    found = unsupervised.language_sizes(directory) if prepared is None else prepared.languages()
    if not found:
        raise InputError(
            f"data.directory {directory!r} has no files of single languages: data.languages "
            "requires mC4's files c4-LANGUAGE.tfrecord-*.json.gz, files of `t5x-lite c4 --variant "
            "multilingual`, or c4/multilingual of TFDS"
        )
    return found


# TensorFlow Datasets.

_TRAINED = ("train", "validation")
_ENGLISH, _VERSION, _MULTILINGUAL = "c4/en", "3.1.0", "c4/multilingual"


def _prepared(directory: str, *, c4: bool, language: str) -> "_Prepared | None":
    """Return the TFDS data set in data.directory, or None for other data."""
    from t5x_lite.data.elements import tf

    if directory.startswith(TFDS):
        return _Prepared(directory.removeprefix(TFDS))
    if (not directory and not c4) or unsupervised.is_no_directory(directory):
        return None
    name = _MULTILINGUAL if language else _ENGLISH
    try:
        if unsupervised.has_release(directory):
            return None
        if unsupervised.is_there(directory, "dataset_info.json"):
            path = directory if is_remote(directory) else os.path.abspath(directory)
            return _Prepared(path, is_directory=True)
        if (language or c4) and (not directory or unsupervised.is_there(directory, name)):
            there = sorted(tf.io.gfile.glob(f"{directory}/{name}/*")) if directory else []
            version = there[-1].rpartition("/")[2] if there else _VERSION
            is_default = not language
            return _Prepared(f"{name}:{version}", data_dir=directory or None, is_default=is_default)
    except tf.errors.OpError as error:
        raise InputError(f"cannot read data.directory {directory}: {error.message}") from error
    return None


@functools.cache
def _builder_of(name: str, data_dir: str | None) -> Any:
    import tensorflow_datasets as tfds

    if os.path.isabs(name) or is_remote(name):
        return tfds.builder_from_directory(name)
    return tfds.builder(name, data_dir=data_dir, try_gcs=False)


class _Prepared:
    """Data set that is read with TensorFlow Datasets (TFDS).

    Args:
      name: name such as "wikipedia/20230601.en:1.0.0", or the directory of one version.
      is_directory: True if `name` is a directory.
      data_dir: TFDS's directory; None for its default.
      is_default: True if the data set is the default because the user did not name one.
    """

    def __init__(
        self,
        name: str,
        *,
        is_directory: bool = False,
        data_dir: str | None = None,
        is_default: bool = False,
    ):
        self._name, self._is_directory, self._data_dir = name, is_directory, data_dir
        self._is_default = is_default

    @property
    def _builder(self) -> Any:
        with self._errors():
            if self._is_directory:
                return _builder_of(self._name, None)
            return _builder_of(self._name, self._data_dir or os.environ.get("TFDS_DATA_DIR"))

    def source(self, template: str, *, language: str) -> Any:
        """Return a seqio source of the data set's splits."""
        from t5x_lite.data.tasks import stages

        splits = {split: split for split in _TRAINED}
        if language:
            splits = {"train": language, "validation": f"{language}-validation"}
            unsupervised.check_language(language, self.languages(), where=self._name)
        if not self._is_default:
            there = self._builder.info.splits
            if not there:
                raise InputError(
                    f"TFDS has not prepared {self._name} in {self._builder.data_dir}; prepare the "
                    "data set, or set TFDS_DATA_DIR to its directory"
                )
            splits = {split: own for split, own in splits.items() if own in there}
            if "train" not in splits:
                raise InputError(
                    f"{TFDS}{self._name} has no split train, but the splits {', '.join(there)}; "
                    "choose languages by --data.languages"
                )
        return stages.FileSource(
            [*splits],
            lambda split: self._shards(splits[split]),
            lambda split, shards: self._dataset(splits[split], shards, template),
        )

    def languages(self) -> dict[str, int]:
        splits = self._builder.info.splits
        return {
            name: int(split.num_examples)
            for name, split in splits.items()
            if name not in _TRAINED and not name.endswith("-validation")
        }

    def _shards(self, split: str) -> Sequence[str]:
        there = self._builder.info.splits
        number = there[split].num_shards if split in there else 0
        return [f"{split}[{shard}shard]" for shard in range(number)]

    def _dataset(self, split: str, shards: Sequence[str], template: str) -> Dataset:
        import tensorflow_datasets as tfds

        whole = len(shards) == len(self._shards(split))
        with self._errors():
            dataset = self._builder.as_dataset(
                split=split if whole else "+".join(shards),
                shuffle_files=False,
                # An in-memory cache is not part of a saved iterator.
                read_config=tfds.ReadConfig(try_autocache=False, skip_prefetch=True),
            )
        self._check_features(dataset.element_spec, template)
        return dataset.map(_joined_features(template))

    def _check_features(self, features: Mapping[str, Any], template: str) -> None:
        from t5x_lite.data.elements import tf

        for name in places(template):
            if name not in features:
                raise InputError(
                    f"{TFDS}{self._name} has no feature {name!r}; name one of "
                    f"{', '.join(features)} by --data.columns.inputs '{{FEATURE}}'"
                )
            found = features[name]
            if getattr(found, "dtype", None) != tf.string or found.shape.rank:
                raise InputError(f"{TFDS}{self._name}: the feature {name!r} is not text")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert TFDS's errors about missing data within the `with` block to InputError."""
        try:
            yield
        except (AssertionError, ValueError, OSError, ImportError) as error:
            what = " ".join(str(error).split()).partition(" Available datasets")[0][:200]
            name, where = self._name.partition(":")[0], self._data_dir or "its default directory"
            if self._is_directory:
                name, where = "data", self._name
            raise InputError(f"TFDS has no {name} in {where}: {what}") from error


def _joined_features(template: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """Return a TensorFlow function that fills a template with the features of an example."""
    from t5x_lite.data.elements import tf

    names = places(template)
    cut = chr(0)
    parts = fill(template, {name: f"{cut}{name}{cut}" for name in names}).split(cut)

    @tf.autograph.experimental.do_not_convert
    def joined(fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if template == TEXT:
            return {"text": fields["text"]}
        found = [fields[part] if place % 2 else part for place, part in enumerate(parts)]
        return {"text": tf.strings.join(found)}

    return joined
