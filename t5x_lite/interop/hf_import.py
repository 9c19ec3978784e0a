"""Import of Hugging Face and T5X checkpoints (`t5x-lite import hf`, `import t5x`).

An imported model is a checkpoint directory without optimizer/, which every `--checkpoint` and
`--init` accepts:

    params/                                  Orbax, dtype of the source or of --dtype
    files/config.json                        an Experiment; unknown fields have their defaults
    files/vocabulary/                        sentencepiece.model, special_tokens.json; or bytes.json
    files/huggingface/                       config.json and generation_config.json of the source,
                                             and pooler.safetensors of an encoder without classifier
    manifest.json                            checksums of all of these, written last

Arrays are converted one by one, so memory holds only a few of the largest at a time.

A retriever may be two directories, as `interop.hf_export`, RetroMAE and Tevatron write them:

    SOURCE/query_model/        an encoder, optionally with the modules of sentence-transformers
    SOURCE/passage_model/      an encoder like the query encoder
    SOURCE/pooler.pt           optional (`interop.retrievers`)

The query encoder becomes the model, and the passage encoder a second encoder at towers/passage. If
all weights of the two are equal, only one encoder is stored; only their projections may differ.
"""

import dataclasses
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.items import write_step
from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.config import Experiment
from t5x_lite.config.file import to_json
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.byte_level import Bytes, Layout
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.inference.loading import read_experiment
from t5x_lite.interop import encoder_checkpoints, hf
from t5x_lite.interop.encoder_checkpoints import Release, read_release
from t5x_lite.interop.encoders import Family
from t5x_lite.interop.hf import CONFIG, read_config, read_hf
from t5x_lite.interop.hf_export import GENERATION, HUGGINGFACE, MODEL, Dtype, as_json, cast
from t5x_lite.interop.retrievers import POOLER, Pooler, projection_of, read_pooler, read_sentences
from t5x_lite.interop.rules import LazyArray, Source
from t5x_lite.interop.t5x import T5XCheckpoint
from t5x_lite.interop.tokenizers import read_tokenizer
from t5x_lite.layouts import Groups
from t5x_lite.models.heads import HEADS
from t5x_lite.models.t5 import T5Config, T5EncoderConfig
from t5x_lite.models.vector_heads import TOWERS, Dense, Role
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.contrastive import DOT, Contrastive
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant

_logger = logging.getLogger(__name__)

_MODEL = "model/"
_HEAD = f"{HEADS}{Dense().name}/"


def directories_of(source: Path) -> dict[Role, Path]:
    """Return the two encoder directories of a retriever, or {} if the source is a single model."""
    found: dict[Role, Path] = {role: source / f"{role}_model" for role in get_args(Role)}
    if (source / CONFIG).exists() or not any(path.is_dir() for path in found.values()):
        return {}
    for role, path in found.items():
        if not path.is_dir():
            raise InputError(
                f"{source}: the directory {path.name} with the {role} encoder of a retriever is "
                "missing; add it, or import the existing encoder separately"
            )
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoTowers:
    """Retriever with two encoder directories, one for queries and one for passages.

    Attributes:
      releases: contents of each directory, by role.
      configs: content of each config.json, by role.
      head: head that computes the vectors.
      pooler: projection of the vectors in a file next to the two directories, or None.
      is_one: True if both encoders have the same weights.
    """

    releases: Mapping[Role, Release]
    configs: Mapping[Role, dict[str, Any]]
    head: Dense
    pooler: Pooler | None
    is_one: bool

    def experiment(self, place: Path) -> Experiment:
        """Return an experiment config for the retriever; `place` is the path of its vocabulary."""
        one = self.releases["query"].experiment(place)
        vectors = {"pooling": self.head.pooling, "normalize": self.head.normalize}
        temperature = {} if self.head.normalize else {"temperature": DOT["temperature"]}
        objective = Contrastive(towers="one" if self.is_one else "two", **vectors, **temperature)
        data = {"task": "tasks.pairs:jsonl", "layout": Groups(), "pack": Groups.packs}
        return dataclasses.replace(
            one,
            objective=objective,
            heads=(self.head,),
            data=dataclasses.replace(one.data, **data),
        )

    def arrays(self) -> dict[str, LazyArray]:
        query, passage = (self.releases[role].arrays() for role in get_args(Role))
        found = {path: array for path, array in query.items() if path.startswith(_MODEL)}
        if not self.is_one:
            found |= {
                f"{TOWERS}passage/{path.removeprefix(_MODEL)}": array
                for path, array in passage.items()
                if path.startswith(_MODEL)
            }
        if self.pooler is not None:
            return found | self.pooler.lazy_arrays()
        if self.head.projection is None:
            return found
        found |= {path: array for path, array in query.items() if path.startswith(_HEAD)}
        if not self.head.tied:
            start = f"{_HEAD}query/"
            found |= {
                f"{_HEAD}passage/{path.removeprefix(start)}": array
                for path, array in passage.items()
                if path.startswith(start)
            }
        return found


def read_towers(source: Path, directories: Mapping[Role, Path]) -> TwoTowers:
    """Read the two encoder directories of a retriever."""
    configs: dict[Role, dict[str, Any]] = {
        role: read_config(path) for role, path in directories.items()
    }
    releases: dict[Role, Release] = {}
    for role, path in directories.items():
        family = encoder_checkpoints.family_of(configs[role])
        if family is None:
            kind = configs[role].get("model_type")
            raise InputError(f"{path / CONFIG}: model_type {kind!r} is not a supported encoder")
        releases[role] = read_release(family, path, configs[role])
        _warn_of_others(path, releases[role])
    query, passage = (releases[role] for role in get_args(Role))
    if query.checkpoint.model != passage.checkpoint.model:
        raise InputError(
            f"{source}: the encoders for queries and passages have different configs, but must "
            f"have the same: {query.checkpoint.model} and {passage.checkpoint.model}"
        )
    if query.vocabulary.files() != passage.vocabulary.files():
        raise InputError(
            f"{source}: the encoders for queries and passages have different vocabularies, "
            "but must share one"
        )
    is_one = _are_equal(query.checkpoint, passage.checkpoint)
    pooler = read_pooler(source, d_model=query.checkpoint.model.d_model)
    head = _head(source, releases, pooler, is_one=is_one)
    return TwoTowers(releases=releases, configs=configs, head=head, pooler=pooler, is_one=is_one)


def _head(
    source: Path, releases: Mapping[Role, Release], pooler: Pooler | None, *, is_one: bool
) -> Dense:
    """Return the head that computes the vectors of a retriever."""
    query, passage = (releases[role].vectors for role in get_args(Role))
    if pooler is not None:
        if query is not None or passage is not None:
            raise InputError(
                f"{source}: {POOLER} and the encoders' directories both define how text vectors "
                "are computed; remove one of them"
            )
        return pooler.head
    if query is None and passage is None:
        _logger.warning(
            "%s: no file defines how text vectors are computed; assuming [CLS] states and dot "
            "products, as in RetroMAE and Tevatron; set objective.pooling and "
            "objective.normalize if this is wrong",
            source,
        )
        return Dense(pooling="cls", normalize=False)
    if query is None or passage is None:
        raise InputError(
            f"{source}: only one of the two encoder directories has a modules.json; add it "
            "to the other directory"
        )
    prompts = {prompt.name: prompt for prompt in (*passage.prompts, *query.prompts)}
    both = dataclasses.replace(passage, prompts=query.prompts, default_prompt=query.default_prompt)
    if both != query:
        raise InputError(
            f"{source}: the two encoder directories define different text vectors, but must "
            f"define the same: {query} and {passage}"
        )
    sources = [releases[role].projection for role in get_args(Role)]
    tied = all(one is None for one in sources) or (
        is_one and _are_equal(*(one for one in sources if one is not None))
    )
    return dataclasses.replace(query, prompts=tuple(prompts.values()), tied=tied)


def _are_equal(one: Source, other: Source) -> bool:
    return dict(one.shapes) == dict(other.shapes) and all(
        np.array_equal(one.array(path), other.array(path)) for path in one.shapes
    )


def _warn_of_others(directory: Path, release: Release) -> None:
    paths = [path for source in release.sources for path in source.shapes]
    left = sorted({path.split("/")[1] for path in paths if not path.startswith((_MODEL, _HEAD))})
    if left:
        _logger.warning(
            "%s: skipping heads that a retriever does not use: %s", directory, ", ".join(left)
        )


_PADDING = 128
"""Multiple to which released models round up the number of rows of the token embedding."""


def import_model(
    source: Path,
    directory: Path,
    destination: str | Path,
    *,
    part: encoder_checkpoints.Part,
    skip_from: int | None,
    sentinels: Layout,
    dtype: Dtype,
    more: Mapping[str, bytes],
) -> None:
    """Import a single Hugging Face model as a checkpoint directory."""
    config = hf.read_config(source)
    if part == "generator":
        config = encoder_checkpoints.generator_config(source, config)
    family = encoder_checkpoints.family_of(config)
    options: dict[str, Any] = {"dtype": dtype, "more": more}
    if family is not None:
        options |= {"part": part, "skip_from": skip_from}
        _import_encoder(family, source, directory, destination, config, **options)
    elif skip_from is not None:
        raise InputError(
            "--skip-from applies only to a BERT with the head of a Condenser; remove it"
        )
    else:
        with tempfile.TemporaryDirectory() as scratch:
            options |= {"sentinels": sentinels, "scratch": Path(scratch)}
            _import_t5(source, directory, destination, config, **options)


def import_towers(
    found: TwoTowers,
    directory: Path,
    destination: str | Path,
    *,
    dtype: Dtype,
    more: Mapping[str, bytes],
) -> None:
    """Import a retriever with two encoder directories as a checkpoint directory."""
    query = found.releases["query"]
    kept = {hf.CONFIG: as_json(found.configs["query"]), **query.tokenizer}
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
    kinds = (*hf.MODEL_TYPES, *encoder_checkpoints.MODEL_TYPES)
    if (kind := config.get("model_type")) not in kinds:
        where = source / hf.CONFIG
        raise InputError(f"{where}: model_type {kind!r} is not supported, only {', '.join(kinds)}")
    found = read_hf(source)
    vocabulary = read_tokenizer(
        source,
        found.hf_config,
        vocab_size=found.config.vocab_size,
        sentinels=sentinels,
        scratch=scratch,
    )
    kept = {hf.CONFIG: as_json(found.hf_config)}
    generation = source / GENERATION
    if generation.is_file():
        kept[GENERATION] = as_json(hf.read_json(generation))
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
    files = Path(destination) / "files"
    experiment = read_experiment(
        Path(destination), {c: (files / c).read_bytes() for c in (checkpointing.CONFIG_FILE,)}
    )
    shapes = lazy_params(Path(destination))
    number = sum(int(np.prod(array.shape)) for array in shapes.values())
    _logger.info(
        "%s: imported %s with %s parameters and a vocabulary of %s tokens",
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
    part: encoder_checkpoints.Part,
    skip_from: int | None,
    more: Mapping[str, bytes],
) -> None:
    options: dict[str, Any] = {"part": part, "skip_from": skip_from}
    found = encoder_checkpoints.read_release(family, source, config, **options)
    kept = {hf.CONFIG: as_json(config), **found.tokenizer}
    if found.checkpoint.pooler:
        kept[encoder_checkpoints.POOLER_FILE] = encoder_checkpoints.pooler_file(found.checkpoint)
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
    """Import a T5X checkpoint into `directory`, which is later moved to `destination`."""
    if extra_ids is not None and extra_ids > found.config.vocab_size:
        raise InputError(
            f"--extra-ids is {extra_ids}, but the embedding of {source} has only "
            f"{found.config.vocab_size} rows; decrease --extra-ids"
        )
    loaded = _load_vocabulary(vocabulary, extra_ids=extra_ids)
    if loaded.size > found.config.vocab_size:
        raise InputError(
            f"the vocabulary {vocabulary} has {loaded.size} tokens with {loaded.extra_ids} "
            f"extra ids, but the embedding of {source} has only {found.config.vocab_size} rows"
        )
    _warn_of_few_tokens(source, loaded, vocab_size=found.config.vocab_size)
    place = _vocabulary_of(destination)
    experiment = _experiment(found.config, loaded, place, trained_steps=found.step or 0)
    _write(directory, found.lazy_arrays(MODEL), experiment, loaded, dtype=dtype, files={})


def _warn_of_few_tokens(source: str | Path, vocabulary: Vocabulary, *, vocab_size: int) -> None:
    """Log a warning if a vocabulary is much smaller than the model's token embedding."""
    without = isinstance(vocabulary, Bytes) and vocabulary.layout == "seqio"
    if vocab_size - vocabulary.size >= _PADDING and not without:
        _logger.warning(
            "%s: the vocabulary has %d tokens, but the model's embedding has %d rows; check "
            "that the model was trained with this vocabulary",
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
    contents = {
        checkpointing.CONFIG_FILE: to_json(experiment).encode(),
        **{
            f"{checkpointing.VOCABULARY_DIRECTORY}/{name}": content
            for name, content in vocabulary.files().items()
        },
        **files,
    }
    write_step(directory, contents, {path: cast(array, dtype) for path, array in arrays.items()})


def _vocabulary_of(destination: str | Path) -> Path:
    return Path(destination).absolute() / "files" / checkpointing.VOCABULARY_DIRECTORY


def _experiment(
    model: T5Config | T5EncoderConfig,
    vocabulary: Vocabulary,
    place: Path,
    *,
    trained_steps: int = 0,
) -> Experiment:
    """Return a config to fine-tune an imported T5 with span corruption."""
    is_bytes = isinstance(vocabulary, Bytes)
    named = isinstance(vocabulary, Bytes) and not vocabulary.added
    return Experiment(
        model=model,
        objective=Seq2Seq() if isinstance(model, T5Config) else NoLoss(),
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
