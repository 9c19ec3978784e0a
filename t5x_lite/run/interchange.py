"""`t5x-lite import` and `t5x-lite export`: checkpoints of other code bases, in and out.

An imported directory is a step directory without an optimizer, which every `--checkpoint` and
`--init` takes:

    params/                                  Orbax, dtype of the source or as asked for
    files/config.json                        an Experiment; what no checkpoint says is a default
    files/vocabulary/                        sentencepiece.model, special_tokens.json; or bytes.json
    files/huggingface/                       config.json and generation_config.json of the source,
                                             and pooler.safetensors of an encoder without classifier
    manifest.json                            checksums of all of these, written last

Arrays go through one by one, so the memory that is needed is that of the largest few.
"""

import dataclasses
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.checkpoints import manifest as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.orbax_params import write_params
from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.config import Experiment
from t5x_lite.config.json import to_json
from t5x_lite.data.config import Data
from t5x_lite.errors import InputError
from t5x_lite.inference.loading import read_experiment
from t5x_lite.interop import encoder_families, hf_config
from t5x_lite.interop.encoders import Family
from t5x_lite.interop.hf import read_hf
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.sentence_transformers import projection_of, read_sentences
from t5x_lite.interop.t5x import T5XCheckpoint
from t5x_lite.interop.tokenizer import read_tokenizer
from t5x_lite.models.t5 import T5Config
from t5x_lite.models.t5_encoder import T5EncoderConfig
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.seq2seq import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import Constant
from t5x_lite.run import encoder_interchange, tower_import
from t5x_lite.run.exporting import (
    GENERATION,
    HUGGINGFACE,
    MODEL,
    Dtype,
    as_json,
    cast,
)
from t5x_lite.vocabulary.byte_level import Bytes, Layout
from t5x_lite.vocabulary.loading import Vocabulary, load_vocabulary

_logger = logging.getLogger(__name__)

_PADDING = 128
"""The released embeddings are rounded up to a multiple of it."""


def import_model(
    source: Path,
    directory: Path,
    destination: str | Path,
    *,
    part: encoder_interchange.Part,
    skip_from: int | None,
    sentinels: Layout,
    dtype: Dtype,
    more: Mapping[str, bytes],
) -> None:
    """Imports one model."""
    config = hf_config.read_config(source)
    if part == "generator":
        config = encoder_interchange.generator_config(source, config)
    family = encoder_families.family_of(config)
    options: dict[str, Any] = {"dtype": dtype, "more": more}
    if family is not None:
        options |= {"part": part, "skip_from": skip_from}
        _import_encoder(family, source, directory, destination, config, **options)
    elif skip_from is not None:
        raise InputError("--skip-from is for the head of a Condenser, which stands on a BERT")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            options |= {"sentinels": sentinels, "scratch": Path(scratch)}
            _import_t5(source, directory, destination, config, **options)


def import_towers(
    found: tower_import.TwoTowers,
    directory: Path,
    destination: str | Path,
    *,
    dtype: Dtype,
    more: Mapping[str, bytes],
) -> None:
    """Imports a retriever of two directories; the files kept are those of queries."""
    query = found.releases["query"]
    kept = {hf_config.CONFIG: as_json(found.configs["query"]), **query.tokenizer}
    _write(
        directory,
        found.arrays(),
        found.experiment(_vocabulary_of(destination)),
        query.vocabulary,
        dtype=dtype,
        files={f"{HUGGINGFACE}/{name}": content for name, content in kept.items()} | dict(more),
    )


def _import_t5(
    source: Path,
    directory: Path,
    destination: str | Path,
    config: Mapping[str, Any],
    *,
    sentinels: Layout,
    scratch: Path,
    dtype: Dtype,
    more: Mapping[str, bytes],
) -> None:
    kinds = (*hf_config.MODEL_TYPES, *encoder_families.MODEL_TYPES)
    if (kind := config.get("model_type")) not in kinds:
        where = source / hf_config.CONFIG
        raise InputError(f"{where}: model_type {kind!r} is none of {', '.join(kinds)}")
    found = read_hf(source)
    vocabulary = read_tokenizer(
        source,
        found.hf_config,
        vocab_size=found.config.vocab_size,
        sentinels=sentinels,
        scratch=scratch,
    )
    kept = {hf_config.CONFIG: as_json(found.hf_config)}
    generation = source / GENERATION
    if generation.is_file():
        kept[GENERATION] = as_json(hf_config.read_json(generation))
    files = {f"{HUGGINGFACE}/{name}": content for name, content in kept.items()}
    files |= more
    _warn_of_few_tokens(source, vocabulary, vocab_size=found.config.vocab_size)
    experiment = _experiment(found.config, vocabulary, _vocabulary_of(destination))
    arrays = found.lazy_arrays(MODEL)
    vectors = read_sentences(source, d_model=found.config.d_model, lowers=False)
    if vectors is not None:
        experiment = dataclasses.replace(experiment, heads=(vectors,))
        projection = projection_of(source, d_model=found.config.d_model)
        arrays |= {} if projection is None else projection.lazy_arrays()
    _write(directory, arrays, experiment, vocabulary, dtype=dtype, files=files)


def tell_what_was_made(destination: str | Path) -> Path:
    """Says what an import made."""
    files = Path(destination) / "files"
    experiment = read_experiment(
        Path(destination), {c: (files / c).read_bytes() for c in (checkpointing.CONFIG_FILE,)}
    )
    shapes = lazy_params(Path(destination))
    number = sum(int(np.prod(array.shape)) for array in shapes.values())
    _logger.info(
        "%s: %s, %s parameters, vocabulary of %s",
        destination,
        type(experiment.model).__name__.removesuffix("Config"),
        f"{number:,}",
        f"{experiment.model.vocab_size:,}",
    )
    return Path(destination)


def _import_encoder(
    family: Family,
    source: Path,
    directory: Path,
    destination: str | Path,
    config: Mapping[str, Any],
    *,
    dtype: Dtype,
    part: encoder_interchange.Part,
    skip_from: int | None,
    more: Mapping[str, bytes],
) -> None:
    options: dict[str, Any] = {"part": part, "skip_from": skip_from}
    found = encoder_interchange.read_release(family, source, config, **options)
    kept = {hf_config.CONFIG: as_json(config), **found.tokenizer}
    if found.checkpoint.pooler:
        kept[encoder_interchange.POOLER_FILE] = encoder_interchange.pooler_file(found.checkpoint)
    _write(
        directory,
        found.arrays(),
        found.experiment(_vocabulary_of(destination)),
        found.vocabulary,
        dtype=dtype,
        files={f"{HUGGINGFACE}/{name}": content for name, content in kept.items()} | dict(more),
    )


def import_t5x_model(
    found: T5XCheckpoint,
    directory: Path,
    destination: str | Path,
    *,
    source: str | Path,
    vocabulary: str | Path,
    extra_ids: int | None,
    dtype: Dtype,
) -> None:
    """Writes a checkpoint of T5X as a step directory, which goes to the destination."""
    if extra_ids is not None and extra_ids > found.config.vocab_size:
        raise InputError(
            f"{extra_ids} extra ids, and the embedding of {source} has "
            f"{found.config.vocab_size} rows: lower --extra-ids"
        )
    loaded = _load_vocabulary(vocabulary, extra_ids=extra_ids)
    if loaded.size > found.config.vocab_size:
        raise InputError(
            f"the vocabulary {vocabulary} has {loaded.size} tokens with {loaded.extra_ids} "
            f"extra ids, and the embedding of {source} {found.config.vocab_size} rows"
        )
    _warn_of_few_tokens(source, loaded, vocab_size=found.config.vocab_size)
    place = _vocabulary_of(destination)
    experiment = _experiment(found.config, loaded, place, trained_steps=found.step or 0)
    _write(directory, found.lazy_arrays(MODEL), experiment, loaded, dtype=dtype, files={})


def _warn_of_few_tokens(source: str | Path, vocabulary: Vocabulary, *, vocab_size: int) -> None:
    """Says that a vocabulary is probably another: embeddings are padded by less than 128 rows.

    The byte vocabulary without ids of its own for the sentinels is smaller by those of ByT5.
    """
    without = isinstance(vocabulary, Bytes) and vocabulary.layout == "seqio"
    if vocab_size - vocabulary.size >= _PADDING and not without:
        _logger.warning(
            "%s: the vocabulary has %d tokens and the model's embedding %d rows; is it the one "
            "that the model was trained with?",
            source,
            vocabulary.size,
            vocab_size,
        )


def _load_vocabulary(path: str | Path, *, extra_ids: int | None) -> Vocabulary:
    if extra_ids is not None:
        return load_vocabulary(path, extra_ids=extra_ids)
    plain = load_vocabulary(path, extra_ids=0)
    return plain if plain.num_sentinels else load_vocabulary(path, extra_ids=100)


def _write(
    directory: Path,
    arrays: Mapping[str, LazyArray],
    experiment: Experiment,
    vocabulary: Vocabulary,
    *,
    dtype: Dtype,
    files: Mapping[str, bytes],
) -> None:
    """Writes the step directory."""
    contents = {
        checkpointing.CONFIG_FILE: to_json(experiment).encode(),
        **{
            f"{checkpointing.VOCABULARY_DIRECTORY}/{name}": content
            for name, content in vocabulary.files().items()
        },
        **files,
    }
    for name, content in contents.items():
        path = directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    casted = {path: cast(array, dtype) for path, array in arrays.items()}
    write_params(directory / "params", casted)
    checkpoint_manifest.write(directory)


def _vocabulary_of(destination: str | Path) -> Path:
    """Where the vocabulary of a step directory will be."""
    return Path(destination).absolute() / "files" / checkpointing.VOCABULARY_DIRECTORY


def _experiment(
    model: T5Config | T5EncoderConfig,
    vocabulary: Vocabulary,
    place: Path,
    *,
    trained_steps: int = 0,
) -> Experiment:
    """A config around an imported model: fine-tuning as the paper does it, on span corruption.

    An encoder alone has no loss.

    Args:
      model: its config.
      vocabulary: its vocabulary.
      place: where that will be.
      trained_steps: of the model, where its checkpoint says them; 0 where it does not.
    """
    is_bytes = isinstance(vocabulary, Bytes)
    named = isinstance(vocabulary, Bytes) and not vocabulary.added
    return Experiment(
        model=model,
        objective=Seq2Seq() if hf_config.is_t5(model) else NoLoss(),
        data=Data(
            task="tasks.text:span_corruption",
            vocabulary=str(vocabulary.model_path) if named else str(place),
            extra_ids=vocabulary.extra_ids,
            inputs_length=1024 if is_bytes else 512,
            targets_length=189 if is_bytes else 114,
        ),
        optimizer=Adafactor(schedule=Constant(value=1e-3), schedule_offset=trained_steps),
        steps=1000,
    )
