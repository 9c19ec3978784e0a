"""Unsupervised objectives of tasks, and the files of unlabelled text that they read.

Discovery of the files of unlabelled text in data.directory, and the held-out split.

data.directory is one of these, local or in a bucket:

    a directory                 C4's shards, else *.txt and *.jsonl, else *.json, *.parquet, *.arrow
    a file, or a pattern        of these kinds; "corpus/*.parquet"
    hf://NAME[:CONFIG][:SPLIT]  a data set of the hub
    tfds://NAME[:VERSION]       data that TensorFlow Datasets prepared (`text_source`)

`data.formats.documents` describes the formats; *.txt, *.jsonl and *.json may be compressed. The
first rule that applies defines the held-out documents:

1. The files of data.columns.validation; else the shards c4-validation.*; else the files in
   DIR/validation/ and the files named validation*. Training reads DIR/train/ and all other files in
   DIR. Tables may have the names of labelled tables (`table_splits`).
2. With at least 20 files, every 20th in the order of their names (the 20th, the 40th, ...).
3. Documents, not files: both splits have all files and divide the documents among them.

In mC4 each language has separate shards, c4-LANGUAGE.* and c4-LANGUAGE-validation.*.

Unsupervised objectives of tasks: the chunk length of the text and the corruption of each chunk.

    Raffel et al. 2020                 here                               T5's name
    language model (table 2)           language_model                     lm
    the same, EOS ends the documents   full_language_model                full_lm
    prefix language model (table 2)    prefix_lm                          prefix_lm
    BERT-style (table 4)               bert_style                         iid_15_r10s90_f
    deshuffling (table 4)              deshuffling                        all_permute
    MASS-style (table 5)               mass_style                         iid_15_m_f
    replace spans (tables 5 and 6)     iid_replace_spans                  iid_{10,15,25,50}_u_u
    drop tokens (table 5)              iid_drop_tokens                    iid_15_d_d
    span corruption (table 7)          span_corruption                    span_{2,3,5,10}_15_u_u
    UL2 (Tay et al. 2022)              mixture_of_denoisers

Each function takes a task's arguments and returns an `Objective` for its lengths. It raises
InputError if the lengths are incompatible. A chunk of text fills the inputs, including EOS: 511
tokens for inputs of 512, or 568 for spans of 3 at 15 %. For inputs of 512, the paper's targets have
114 tokens (span_3_15_u_u; 126, 105 and 99 for spans of 2, 5 and 10), 103, 192, 256 and 512 (iid_10,
15, 25 and 50_u_u), 104 (iid_15_d_d), and otherwise 512. With `data.final_sentinel` the targets of
span corruption have one more token for the same text. Targets of i.i.d. noise have no maximum
length; longer targets are truncated, as in T5.

Source: t5/models/gin/objectives in google-research/text-to-text-transfer-transformer.
"""

import functools
import glob
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketPath, DataPath, can_read, data_path, size_of
from t5x_lite.core.remote import is_remote
from t5x_lite.data import denoising
from t5x_lite.data import denoising as noise
from t5x_lite.data import denoising as ul2
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.documents import (
    JSON,
    TABLES,
    TEXT,
    Shard,
    as_template,
    is_named,
    kind_of,
    places,
)
from t5x_lite.data.formats.lines import plain_name
from t5x_lite.data.formats.tables import HUB, HubSplit, column_names, require_columns, table_splits
from t5x_lite.data.preprocessors import Columns

_logger = logging.getLogger(__name__)


SUFFIXES = (".txt", ".jsonl")
"""Suffixes of text files. If a directory has such files, only they are read."""
_OTHERS = (*JSON, *TABLES)
_METADATA = re.compile(
    r"(manifest|stats|state|config|features|dataset_\w+|metadata|.*\.report)\.json"
)
"""Names of JSON files with metadata, which are not read as data."""
FILES_PER_HELD_OUT_FILE = 20
_CHECKED = 1000
"""Maximum number of local tables that are checked for columns before the first row is read."""
_USUAL = Columns()
_Splits = Mapping[str, Sequence[Any]]


def split_files(directory: str, *, columns: Columns = _USUAL, language: str = "") -> _Splits:
    """Return the files of the splits "train" and "validation" in data.directory.

    If documents instead of files are divided between the splits, both splits have the same list.

    Args:
      directory: value of data.directory, except data sets of TFDS.
      columns: options of data.columns; train and validation may be files or glob patterns.
      language: language of mC4; "" for all other data.
    """
    if columns.train or columns.validation:
        patterns = {"train": columns.train, "validation": columns.validation}
        found = table_splits(directory, patterns=patterns, endings=(*SUFFIXES, *_OTHERS))
        return found if "validation" in found else divided([*found.get("train", ())], directory)
    if directory.startswith(HUB):
        found = {k: v for k, v in table_splits(directory).items() if k in ("train", "validation")}
        if "train" not in found:
            raise InputError(
                f"data.directory {directory} has no split train; append the name of another split "
                "as :SPLIT"
            )
        return found if "validation" in found else _one_list([*found["train"]])
    if _is_pattern(directory) or (directory and data_path(directory).is_file()):
        return divided(shards_of(directory), directory)
    if language:
        there = _languages(directory)
        check_language(language, there, where=directory)
        return {k: v for k, v in there[language].items() if v}
    if has_release(directory):
        found = {split: release(directory, split) for split in ("train", "validation")}
        found = {split: shards for split, shards in found.items() if shards}
        if found:
            return found
        listed = ", ".join(_languages(directory))
        raise InputError(
            f"data.directory {directory} has the languages {listed}; choose languages by "
            "--data.languages"
        )
    return _split_directory(directory)


def shards_of(place: str) -> list[Shard]:
    """Return the training files of a file path, a glob pattern, a directory or a Hub data set."""
    if place.startswith(HUB):
        return [*split_files(place)["train"]]
    path = data_path(place)
    if _is_pattern(place):
        if isinstance(path, BucketPath):
            return _not_none([*path.parent.glob(path.name)], place)
        found = sorted(glob.glob(place, recursive=True))
        return _not_none([data_path(name) for name in found if os.path.isfile(name)], place)
    if path.is_dir():
        if has_release(place) and not release(place, "train"):
            there = [*_languages(place)]
            raise InputError(
                f"{place} has the languages {', '.join(there)}; name the shards of one language, "
                f"such as '{place.rstrip('/')}/c4-{there[0]}.*'"
            )
        found = split_files(place)["train"]
        return [data_path(one) if isinstance(one, str) else one for one in found]
    return [path]


def _not_none(found: list[Any], place: str) -> list[Any]:
    if not found:
        raise InputError(f"{place}: no file matches")
    return found


def _is_pattern(place: str) -> bool:
    return glob.has_magic(place) and not data_path(place).exists()


def is_no_directory(place: str) -> bool:
    """Return True if `place` is a data set name, a glob pattern or a file, not a directory."""
    if is_named(place):
        return True
    local = not is_remote(place)
    return (
        (local and _is_pattern(place))
        or (not local and glob.has_magic(place))
        or (local and bool(place) and os.path.isfile(place))
    )


def divided(train: Sequence[Any], directory: str) -> _Splits:
    """Divide files, or their documents if files are few, into "train" and "validation"."""
    if not train:
        raise InputError(f"no file to train on in {directory}")
    if len(train) < FILES_PER_HELD_OUT_FILE:
        return _one_list(train)
    held_out = train[FILES_PER_HELD_OUT_FILE - 1 :: FILES_PER_HELD_OUT_FILE]
    return {"train": [file for file in train if file not in held_out], "validation": held_out}


def files_of_both(directory: str, *, suffixes: tuple[str, ...], shown: str = "") -> _Splits:
    """Return the sorted files of the splits "train" and "validation" in a directory.

    If lines instead of files are divided between the splits, both splits have the same list.

    Args:
      directory: directory with the files.
      suffixes: suffixes of the files' names.
      shown: file names to show in error messages; "" shows the suffixes.
    """
    root = data_path(directory)
    shown = shown or " or ".join(f"*{suffix}" for suffix in suffixes)
    if not directory or not root.is_dir():
        raise InputError(
            f"data.directory {directory!r} is not a directory: it must contain {shown} files"
        )
    files = functools.partial(_text_files, suffixes=suffixes)
    validation = [*files(root / "validation"), *files(root, pattern="validation*")]
    others = [file for file in files(root) if file not in validation]
    train = sorted([*files(root / "train"), *others])
    if not train:
        if (root / ".work").is_dir():
            raise InputError(
                f"{directory} is an unfinished output of `t5x-lite c4`; run that command again"
            )
        raise InputError(f"no {shown} file to train on in {directory}")
    if validation:
        return {"train": train, "validation": sorted(validation)}
    return divided(train, directory)


_SHOWN = "*.txt, *.jsonl, *.json, *.parquet or *.arrow"


def _split_directory(directory: str) -> _Splits:
    """Return the files of each split in a directory."""
    root = data_path(directory)
    places = (root, root / "train") if directory and root.is_dir() else ()
    text, others = (
        [file for place in places for file in _text_files(place, suffixes=suffixes)]
        for suffixes in (SUFFIXES, _OTHERS)
    )
    if text:
        if left := [file for file in others if file not in text]:
            _tell_of_others(directory, left[0].name, len(left))
        return files_of_both(directory, suffixes=SUFFIXES, shown=_SHOWN)
    tables = {} if not directory else _named_tables(directory)
    if tables:
        return tables
    return files_of_both(directory, suffixes=_OTHERS, shown=_SHOWN)


def _named_tables(directory: str) -> _Splits:
    """Return the tables of each split in a directory."""
    found = {
        split: [table for table in tables if kind_of(table) == "table"]
        for split, tables in table_splits(directory).items()
        if split != "test"
    }
    found = {split: tables for split, tables in found.items() if tables}
    if "train" not in found:
        return {}
    return found if "validation" in found else divided(found["train"], directory)


@functools.cache
def _tell_of_others(directory: str, name: str, number: int) -> None:
    _logger.warning(
        "data.directory %s: reading only *.txt and *.jsonl; skipping %d other files, such as %s",
        directory,
        number,
        name,
    )


# The text.


def template_of(columns: Columns) -> str:
    """Return the template of a table row's text, with column names in braces."""
    return as_template(columns.inputs) if columns.inputs else TEXT


def check_columns(splits: Mapping[str, Sequence[Any]], template: str) -> None:
    """Raise InputError if a table lacks a column of the template."""
    shards = [*dict.fromkeys(shard for split in splits.values() for shard in split)]
    tables = [shard for shard in shards if kind_of(shard) == "table"]
    here = [one for one in tables if isinstance(one, HubSplit) or not is_remote(one)]
    for shard in [*here[:_CHECKED], *(tables[:1] if not here else ())]:
        require_columns(column_names(shard), places(template), name=str(shard))
    if template != TEXT and shards and all(kind_of(shard) == "text" for shard in shards):
        raise InputError(
            f"data.columns.inputs is {template!r}, but plain text such as {shards[0]} has no "
            "columns; unset data.columns.inputs"
        )


# Languages.

_RELEASE = re.compile(
    r"c4-(?P<split>train|validation|[a-z]{2,3}(-[A-Z][a-zA-Z]+)?(-validation)?)"
    r"\.(tfrecord-)?\d+-of-\d+\.json"
)


def one_language(languages: Sequence[str]) -> str:
    """Return a task's only language, or ""; raise InputError for several languages."""
    if len(languages) > 1 or "all" in languages:
        raise InputError(
            f"a task reads one language, but data.languages has {', '.join(languages)}"
        )
    return next(iter(languages), "")


def check_language(language: str, there: Collection[str], *, where: str) -> None:
    """Raise InputError if `language` is not among the languages of the data."""
    if language not in there:
        listed = ", ".join(there) or "none"
        raise InputError(
            f"data.languages: {where} has no language {language!r}; its languages are {listed}"
        )


def has_release(directory: str) -> bool:
    """Return True if a directory has shards with the names of C4 or mC4."""
    return bool(directory) and not is_no_directory(directory) and bool(_released(directory))


def release(directory: str, split: str) -> list[str]:
    """Return the existing shards of a split of C4; warn if some shards are missing."""
    shards = _released(directory).get(split, [])
    name = f"c4-{split}.*.json"
    return numbered_shards(
        shards, name=f"{name}.gz" if all(map(_is_gzip, shards)) else name, directory=directory
    )


def _is_gzip(name: str) -> bool:
    return name.endswith(".gz")


def _released(directory: str) -> dict[str, list[str]]:
    """Return the shards of each split of C4 or mC4, by the split's name."""
    found: dict[str, list[str]] = {}
    for path in files_matching(directory, "c4-*.json*"):
        match = _RELEASE.fullmatch(plain_name(path.rpartition("/")[2]))
        if match:
            found.setdefault(match["split"], []).append(path)
    return found


def _languages(directory: str) -> dict[str, _Splits]:
    """Return the shards of "train" and "validation" of each language of mC4."""
    names = [] if not directory or is_no_directory(directory) else sorted(_released(directory))
    return {
        name: {
            "train": release(directory, name),
            "validation": release(directory, f"{name}-validation"),
        }
        for name in names
        if name not in ("train", "validation") and not name.endswith("-validation")
    }


def language_sizes(directory: str) -> dict[str, int]:
    """Return the bytes of the training shards of each language in a directory."""
    return {
        name: sum(size_of(shard) for shard in splits["train"])
        for name, splits in _languages(directory).items()
    }


COLLECTIONS = ("corpus.jsonl", "collection.tsv", "psgs_w100.tsv", "msmarco-docs.tsv")
"""Published file names of passage collections."""


def collection_files(directory: str, *, named: bool = False) -> _Splits:
    """Return the files of a collection of passages, for training and validation.

    Both splits have all files, because passages are divided between training and validation.

    Args:
      directory: a file, or a directory with a file named in `COLLECTIONS` or with *.jsonl and *.tsv
        files.
      named: True to find only files named in `COLLECTIONS`.
    """
    root = data_path(directory)
    if directory and root.is_file():
        return _one_list([root])
    if directory and root.is_dir():
        there = [file for file in sorted(root.glob("*")) if file.is_file()]
        for name in COLLECTIONS:
            if found := [file for file in there if plain_name(file.name) == name]:
                return _one_list(found[:1])
        suffixes = () if named else (".jsonl", ".tsv")
        if found := [file for file in there if plain_name(file.name).endswith(suffixes)]:
            return _one_list(found)
    raise InputError(
        f"data.directory {directory!r} is not a passage collection: it must be a file of passages, "
        f"or a directory with {', '.join(COLLECTIONS)}, or other *.jsonl or *.tsv files"
    )


def _one_list(files: Sequence[Any]) -> _Splits:
    return {"train": files, "validation": files}


def _text_files(
    directory: DataPath, *, suffixes: tuple[str, ...], pattern: str = "*"
) -> list[DataPath]:
    found = sorted(directory.glob(pattern))
    found = [f for f in found if plain_name(f).endswith(suffixes) and f.is_file()]
    return [f for f in found if not _METADATA.fullmatch(f.name)]


def files_matching(directory: str, pattern: str) -> list[str]:
    """Return the sorted paths of a directory's files with names that match a glob pattern."""
    if not _by_tensorflow(directory):
        return sorted(map(str, data_path(directory).glob(pattern)))
    from t5x_lite.data.elements import tf

    return sorted(tf.io.gfile.glob(f"{directory}/{pattern}"))


def is_there(directory: str, name: str) -> bool:
    """Return True if a directory contains a file or directory with this name."""
    if not _by_tensorflow(directory):
        return (data_path(directory) / name).exists()
    from t5x_lite.data.elements import tf

    return tf.io.gfile.exists(f"{directory}/{name}")


def _by_tensorflow(directory: str) -> bool:
    return is_remote(directory) and not can_read(directory)


def numbered_shards(found: Sequence[str], *, name: str, directory: str) -> list[str]:
    """Return the existing shards of a data set; warn if some shards are missing.

    Args:
      found: paths that end in "NUMBER-of-TOTAL" and suffixes, such as "c4-train.00000-of-01024".
      name: glob pattern of the file names, to show in messages.
      directory: directory of the shards, to show in messages.
    """
    names = [re.search(r"\.(?:tfrecord-)?(\d+)-of-(\d+)\.[^/]*$", shard) for shard in found]
    numbers = {int(match[1]) for match in names if match}
    totals = {int(match[2]) for match in names if match}
    if not found:
        return []
    if None in names or len(totals) > 1 or max(numbers) >= max(totals) or len(numbers) < len(found):
        raise InputError(
            f"data.directory {directory}: the {len(found)} shards {name} must be of one release, "
            f"with numbers from 00000-of-{max(totals, default=0):05}"
        )
    if len(found) < max(totals):
        _tell_of_missing(directory, name, len(found), max(totals))
    return list(found)


@functools.cache
def _tell_of_missing(directory: str, name: str, there: int, total: int) -> None:
    _logger.warning(
        "data.directory %s: %d of %d shards %s are missing; reading only the other %d shards",
        directory,
        total - there,
        total,
        name,
        there,
    )


Corruption = Callable[..., Mapping[str, np.ndarray]]
"""Function from tokens, int32 [n], and the options seed, epoch and index to {"inputs", "targets"},
int32 [_] without EOS."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Unsupervised objective: the chunk length of the text, and the corruption of each chunk.

    Attributes:
      chunk_length: number of tokens in a chunk of text. The last chunk may be shorter.
      corruption: function from a chunk to an example; None if the chunk itself is the targets.
      join_documents: True to concatenate 128 documents before dividing them into chunks, so that
        few chunks are short.
      eos_of_documents: True if EOS ends each document, False if EOS ends each chunk.
    """

    chunk_length: int
    corruption: Corruption | None
    join_documents: bool = True
    eos_of_documents: bool = False


def span_corruption(
    arguments: TaskArguments, *, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> Objective:
    """Return the span-corruption objective: spans of tokens become sentinels.

    The targets list the sentinels and the tokens that they replace.

    Args:
      arguments: arguments of the task function.
      noise_density: fraction of the tokens to replace.
      mean_noise_span_length: mean length of a span, in tokens.

    Raises:
      InputError: if the lengths are incompatible, or there are too few sentinels.
    """
    inputs_length = arguments.inputs_length
    _check_inputs_length("span corruption", inputs_length, least=3)
    final = arguments.final_sentinel
    raw, needed = noise.random_spans_lengths(
        inputs_length, noise_density, mean_noise_span_length, final_sentinel=final
    )
    _check_targets_length("span corruption", arguments, needed=needed)
    _, spans = noise.noise_counts(raw, noise_density, mean_span_length=mean_noise_span_length)
    _check_sentinels("span corruption", arguments, spans=spans + final)
    function = partial(
        denoising.span_corruption,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
        **_final(arguments),
    )
    return Objective(chunk_length=raw, corruption=function)


def iid_replace_spans(arguments: TaskArguments, *, noise_density: float = 0.15) -> Objective:
    """Return T5's baseline objective: each span of random noise tokens becomes one sentinel.

    Args:
      arguments: arguments of the task function.
      noise_density: probability that a token is noise.

    Raises:
      InputError: if more than half of the targets would be truncated, or sentinels would overlap
        the vocabulary's special tokens.
    """
    length = _whole_chunk("i.i.d. noise", arguments)
    final = arguments.final_sentinel
    mean, deviation = noise.iid_targets_length(length, noise_density, final_sentinel=final)
    _check_mean_targets("i.i.d. noise", arguments, mean=mean, deviation=deviation)
    spans, deviation = noise.iid_spans(length, noise_density)
    _tell_of_sentinels(arguments, spans=math.ceil(spans + 4 * deviation) + final)
    function = partial(
        denoising.iid_replace_spans,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
        **_final(arguments),
    )
    return Objective(chunk_length=length, corruption=function)


def iid_drop_tokens(arguments: TaskArguments, *, noise_density: float = 0.15) -> Objective:
    """Return the objective that drops i.i.d. noise tokens from the inputs and predicts them."""
    _no_final_sentinel("dropping tokens", arguments)
    length = _whole_chunk("dropping tokens", arguments)
    deviation = math.sqrt(length * noise_density * (1 - noise_density))
    mean = length * noise_density
    _check_mean_targets("dropping tokens", arguments, mean=mean, deviation=deviation)
    function = partial(denoising.iid_drop_tokens, noise_density=noise_density)
    return Objective(chunk_length=length, corruption=function)


def bert_style(
    arguments: TaskArguments, *, noise_density: float = 0.15, random_share: float = 0.1
) -> Objective:
    """Return the objective that predicts the full text from noised inputs, as in BERT.

    Noise tokens become sentinels or random tokens.

    Args:
      arguments: arguments of the task function.
      noise_density: probability that a token is noise.
      random_share: probability that noise becomes a random token.

    Raises:
      InputError: if targets_length is less than inputs_length.
    """
    _no_final_sentinel("BERT-style", arguments)
    function = partial(
        denoising.bert_style,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
        random_share=random_share,
    )
    return Objective(chunk_length=_full_targets("BERT-style", arguments), corruption=function)


def mass_style(arguments: TaskArguments, *, noise_density: float = 0.15) -> Objective:
    """Return the objective that predicts the full text from inputs with masked tokens, as in MASS.

    Every noise token becomes the same sentinel.
    """
    _no_final_sentinel("MASS-style", arguments)
    function = partial(
        denoising.mass_style,
        sentinel_start=arguments.vocabulary.sentinel_start,
        noise_density=noise_density,
    )
    return Objective(chunk_length=_full_targets("MASS-style", arguments), corruption=function)


def deshuffling(arguments: TaskArguments) -> Objective:
    """Return the objective that restores the order of a document's shuffled tokens.

    Raises:
      InputError: if targets_length is less than inputs_length.
    """
    _no_final_sentinel("deshuffling", arguments)
    return Objective(
        chunk_length=_full_targets("deshuffling", arguments),
        corruption=denoising.deshuffling,
        join_documents=False,
    )


def prefix_lm(arguments: TaskArguments) -> Objective:
    """Return the objective that splits a document at a random position into inputs and targets.

    A chunk of text is two tokens shorter than the minimum of inputs_length and targets_length. So
    nothing is truncated and, if the lengths are equal, two examples fill a row of the "prefix_lm"
    layout. T5's chunk is one token longer.
    """
    _no_final_sentinel("a prefix language model", arguments)
    shorter = min(arguments.inputs_length, arguments.targets_length)
    return Objective(
        chunk_length=_chunk_length("inputs_length and data.targets_length", shorter, extra=2),
        corruption=denoising.prefix_split,
        join_documents=False,
    )


def language_model(arguments: TaskArguments) -> Objective:
    """Return the language-model objective: the targets are chunks of text, without inputs.

    The length of a chunk includes EOS.
    """
    _no_final_sentinel("a language model", arguments)
    length = _chunk_length("targets_length", arguments.targets_length, extra=1)
    return Objective(chunk_length=length, corruption=None)


def full_language_model(arguments: TaskArguments) -> Objective:
    """Return the language-model objective with EOS only at the end of each document."""
    _no_final_sentinel("a language model", arguments)
    length = _chunk_length("targets_length", arguments.targets_length, extra=0)
    return Objective(chunk_length=length, corruption=None, eos_of_documents=True)


def mixture_of_denoisers(
    arguments: TaskArguments, *, sequential_share: float = ul2.SEQUENTIAL_SHARE
) -> Objective:
    """Return UL2's objective: each example uses one of seven denoisers, named by its first tokens.

    Args:
      arguments: arguments of the task function.
      sequential_share: probability of the S denoiser; all other denoisers are equally likely.

    Raises:
      InputError: if the lengths are incompatible, or there are too few sentinels.
    """
    _no_final_sentinel("UL2", arguments)
    vocabulary, inputs_length = arguments.vocabulary, arguments.inputs_length
    modes = {kind: vocabulary.encode(text) for kind, text in ul2.MODES.items()}
    longest = max(len(mode) for mode in modes.values())
    _check_inputs_length("UL2", inputs_length, least=longest + 4)
    chunk = needed = spans = 0
    for denoiser in ul2.DENOISERS:
        room = inputs_length - len(modes[denoiser.kind])
        raw, targets_length = ul2.chunk_lengths(denoiser, room)
        chunk, needed = max(chunk, raw), max(needed, targets_length)
        if denoiser.kind != "S":
            counts = noise.noise_counts(
                raw, denoiser.noise_density, mean_span_length=denoiser.mean_span_length
            )
            spans = max(spans, counts[1])
    _check_targets_length("UL2", arguments, needed=needed)
    _tell_of_sentinels(arguments, spans=spans)
    function = partial(
        denoising.mixture_of_denoisers,
        sentinel_start=vocabulary.sentinel_start,
        inputs_length=inputs_length,
        r_mode=modes["R"],
        x_mode=modes["X"],
        s_mode=modes["S"],
        sequential_share=sequential_share,
    )
    return Objective(chunk_length=chunk, corruption=function)


# Checks of lengths and sentinels.


def _final(arguments: TaskArguments) -> dict[str, bool]:
    return {"final_sentinel": True} if arguments.final_sentinel else {}


def _no_final_sentinel(what: str, arguments: TaskArguments) -> None:
    if arguments.final_sentinel:
        raise InputError(
            "data.final_sentinel is only for span corruption and for i.i.d. noise with a sentinel "
            f"for each span, not for {what}; unset it"
        )


def _check_inputs_length(what: str, length: int, *, least: int) -> None:
    if length < least:
        raise InputError(f"{what} needs a data.inputs_length of at least {least}, got {length}")


def _check_targets_length(what: str, arguments: TaskArguments, *, needed: int) -> None:
    if arguments.targets_length < needed:
        raise InputError(
            f"{what} with data.inputs_length {arguments.inputs_length} needs {needed} tokens of "
            f"targets, but data.targets_length is {arguments.targets_length}; set it to {needed}"
        )


def _check_sentinels(what: str, arguments: TaskArguments, *, spans: int) -> None:
    sentinels = arguments.vocabulary.num_sentinels
    if spans > sentinels:
        raise InputError(
            f"{what} with data.inputs_length {arguments.inputs_length} needs {spans} sentinels, "
            f"but the vocabulary has {sentinels}; raise data.extra_ids"
        )


def _tell_of_sentinels(arguments: TaskArguments, *, spans: int) -> None:
    """Warn if an example may have more spans than the vocabulary has sentinels."""
    vocabulary = arguments.vocabulary
    if vocabulary.sentinel_start - spans < vocabulary.unk_id:
        _check_sentinels("this objective", arguments, spans=spans)
    if spans > vocabulary.num_sentinels:
        _warn_once(
            f"an example may have {spans} spans, but the vocabulary has {vocabulary.num_sentinels} "
            "sentinels; the last ordinary tokens also serve as sentinels, as in T5 "
            "(data.extra_ids sets the number of sentinels of a new vocabulary)"
        )


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)


def _whole_chunk(what: str, arguments: TaskArguments) -> int:
    _check_inputs_length(what, arguments.inputs_length, least=3)
    return arguments.inputs_length - 1


def _full_targets(what: str, arguments: TaskArguments) -> int:
    _check_targets_length(what, arguments, needed=arguments.inputs_length)
    return _whole_chunk(what, arguments)


def _check_mean_targets(
    what: str, arguments: TaskArguments, *, mean: float, deviation: float
) -> None:
    if arguments.targets_length < mean + 1:
        raise InputError(
            f"{what} with data.inputs_length {arguments.inputs_length} needs {round(mean) + 1} "
            f"tokens of targets on average, but data.targets_length is {arguments.targets_length}; "
            f"set it to {math.ceil(mean + 1 + 3.1 * deviation)}, which 999 of 1000 examples fit"
        )


def _chunk_length(field: str, length: int, *, extra: int) -> int:
    if length < extra + 2:
        raise InputError(f"data.{field} must be at least {extra + 2} for this task: got {length}")
    return length - extra
