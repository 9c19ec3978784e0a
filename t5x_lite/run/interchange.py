"""`t5x-lite import` and `t5x-lite export`: checkpoints of other code bases, in and out.

An imported directory is a step directory without an optimizer, which every `--checkpoint` and
`--init` takes:

    params/                                  Orbax, dtype of the source or as asked for
    files/config.json                        an Experiment; what no checkpoint says is a default
    files/vocabulary/                        sentencepiece.model, special_tokens.json; or bytes.json
    files/huggingface/                       config.json and generation_config.json of the source
    manifest.json                            checksums of all of these, written last

Arrays go through one by one, so the memory that is needed is that of the largest few.
"""

import dataclasses
import functools
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from t5x_lite import trees
from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.checkpoints import manifest as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.orbax_params import write_params
from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.config import Experiment
from t5x_lite.config.json import to_json
from t5x_lite.data.config import Data
from t5x_lite.errors import InputError
from t5x_lite.heads.dense import Dense
from t5x_lite.interop import encoder_families, hf_config
from t5x_lite.interop.directories import new_directory
from t5x_lite.interop.encoders import Family
from t5x_lite.interop.hf import common_dtype, read_hf, their_tensors
from t5x_lite.interop.rules import LazyArray, Source
from t5x_lite.interop.t5x import read_t5x
from t5x_lite.interop.tensor_files import write_tensors
from t5x_lite.interop.tokenizer import read_tokenizer, write_tokenizer
from t5x_lite.models.pooling import Pooling
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.seq2seq import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import Constant
from t5x_lite.remote import AnyPath, local_path
from t5x_lite.run import encoder_interchange
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.loading import learner_of, read_experiment, with_float32_base
from t5x_lite.run.text_encoder import Vectors, dense_head, trained_length
from t5x_lite.vocabulary.byte_level import Bytes, Layout
from t5x_lite.vocabulary.loading import Vocabulary, load_vocabulary

Dtype = Literal["keep", "float32", "bfloat16"]

_logger = logging.getLogger(__name__)

_MODEL = "model/"
_PADDING = 128
"""The released embeddings are rounded up to a multiple of it."""
_HUGGINGFACE = "huggingface"
_GENERATION = "generation_config.json"


def import_hf(
    source: str | Path,
    destination: str | Path,
    *,
    dtype: Dtype = "keep",
    sentinels: Layout = "hf",
    part: encoder_interchange.Part = "model",
) -> None:
    """Imports a Hugging Face directory of T5, mT5, umT5, ByT5 or Flan-T5, or of an encoder.

    Encoders are BERT, RoBERTa, XLM-R, ELECTRA and DeBERTa; their heads come along.

    Args:
      source: config.json, weights (safetensors, PyTorch's or Flax's; sharded too) and tokenizer.
      destination: a new directory.
      dtype: of the weights there; "keep" is that of the source.
      sentinels: how predict and score read special tokens in text: "hf", anywhere, as Hugging
        Face's tokenizer does, or "seqio", sentinels alone and as words; of a byte vocabulary also
        which ids they have, "seqio" being those that ByT5 was pretrained with.
      part: "generator" is that of a release of DeBERTaV3 (pytorch_model.generator.bin).

    Raises:
      InputError: the source is incomplete, damaged or of another kind, or holds NaN, or the
        destination exists; nothing is left behind then.
    """
    with new_directory(destination) as directory, tempfile.TemporaryDirectory() as scratch:
        config = hf_config.read_config(Path(source))
        if part == "generator":
            config = encoder_interchange.generator_config(Path(source), config)
        if (family := encoder_families.family_of(config)) is not None:
            options: dict[str, Any] = {"dtype": dtype, "part": part}
            _import_encoder(family, Path(source), directory, destination, config, **options)
            return
        kinds = (*hf_config.MODEL_TYPES, *encoder_families.MODEL_TYPES)
        if (kind := config.get("model_type")) not in kinds:
            where = Path(source) / hf_config.CONFIG
            raise InputError(f"{where}: model_type {kind!r} is none of {', '.join(kinds)}")
        found = read_hf(source)
        vocabulary = read_tokenizer(
            Path(source),
            found.hf_config,
            vocab_size=found.config.vocab_size,
            sentinels=sentinels,
            scratch=Path(scratch),
        )
        kept = {hf_config.CONFIG: _json(found.hf_config)}
        generation = Path(source) / _GENERATION
        if generation.is_file():
            kept[_GENERATION] = _json(hf_config.read_json(generation))
        files = {f"{_HUGGINGFACE}/{name}": content for name, content in kept.items()}
        _warn_of_few_tokens(source, vocabulary, vocab_size=found.config.vocab_size)
        experiment = _experiment(found.config, vocabulary, _vocabulary_of(destination))
        _write(directory, found, experiment, vocabulary, dtype=dtype, files=files)


def _import_encoder(
    family: Family,
    source: Path,
    directory: Path,
    destination: str | Path,
    config: Mapping[str, Any],
    *,
    dtype: Dtype,
    part: encoder_interchange.Part,
) -> None:
    found = encoder_interchange.read_release(family, source, config, part=part)
    kept = {hf_config.CONFIG: _json(config), **found.tokenizer}
    _write(
        directory,
        found.checkpoint,
        found.experiment(_vocabulary_of(destination)),
        found.vocabulary,
        prefix="",
        dtype=dtype,
        files={f"{_HUGGINGFACE}/{name}": content for name, content in kept.items()},
    )


def import_t5x(
    source: str | Path,
    destination: str | Path,
    *,
    vocabulary: str | Path,
    extra_ids: int | None = None,
    step: int | None = None,
    dtype: Dtype = "keep",
    dropout_rate: float = 0.1,
) -> None:
    """Imports a checkpoint of t5x.

    Args:
      source: a directory checkpoint_N, or the one above it.
      destination: a new directory.
      vocabulary: a SentencePiece model, or "bytes" for ByT5; a checkpoint of t5x holds none.
      extra_ids: sentinels besides the model's own pieces; None is 0 where it holds them, and 100.
      step: which N; None is the newest.
      dtype: of the weights there; "keep" is that of the source.
      dropout_rate: which no checkpoint says.

    Raises:
      InputError: as `import_hf`.
    """
    with new_directory(destination) as directory:
        found = read_t5x(source, step=step, dropout_rate=dropout_rate)
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
        experiment = _experiment(found.config, loaded, _vocabulary_of(destination))
        _write(directory, found, experiment, loaded, dtype=dtype, files={})


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


def export_hf(
    checkpoint: str | Path,
    destination: str | Path,
    *,
    step: Step = None,
    dtype: Dtype = "keep",
    part: encoder_interchange.Part = "model",
    head: str | None = None,
    sentence_transformers: bool = False,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
) -> None:
    """Exports a T5 or an encoder as a directory that transformers' `from_pretrained` loads.

    Of an untied umT5, transformers 5 multiplies the logits by d_model**-0.5, that of the released
    models included; transformers 4 does not.

    Args:
      checkpoint: a work directory or a step directory.
      destination: a new directory.
      step: of a work directory: its number, "best", or None for the newest.
      dtype: of the weights there; "keep" is that of the checkpoint, float32 where it was trained.
      part: "generator" is, of an encoder that was trained to detect replaced tokens, what drew
        them.
      head: of an encoder, the name of the one that is written: mlm, rtd, classifier, choice, token,
        span, or none; None is the one that the objective reads, or the only one that there is.
      sentence_transformers: whether SentenceTransformer loads the directory, too, and makes the
        vectors of `embed`; of an encoder, whose head is left out.
      pooling: of these vectors; None is what the checkpoint says, or else "mean", with a warning.
      normalize: whether they have length 1; None is what the checkpoint says, or else True.

    Raises:
      InputError: the checkpoint is damaged or no T5 or encoder, the options contradict each other,
        or the destination exists; nothing is left behind then.
    """
    if not sentence_transformers and (pooling is not None or normalize is not None):
        raise InputError("pooling and normalize are for --sentence-transformers")
    if sentence_transformers and part != "model":
        raise InputError(f"sentence-transformers: vectors are those of the model, not of {part!r}")
    source = Path(find_step(local_path(checkpoint, what="checkpoint"), step=step))
    checkpoint_manifest.verify(source, "params", "files")
    with new_directory(destination) as directory:
        files = checkpointing.step_files(source)
        experiment = read_experiment(source, files)
        model = experiment.model
        saved = _merged(source, experiment) if experiment.adapters.modules else lazy_params(source)
        if encoder_families.is_encoder(model):
            sentences = None
            if sentence_transformers:
                how = Vectors.of(experiment, pooling=pooling, normalize=normalize)
                known = dense_head(experiment) or Dense()
                sentences = dataclasses.replace(known, **dataclasses.asdict(how))
            _export_encoder(
                *(source, files, experiment, saved, directory),
                part=part,
                dtype=dtype,
                head=head,
                sentences=sentences,
            )
            return
        if sentence_transformers:
            raise InputError(
                f"checkpoint {source}: a {type(model).__name__} is not exported for "
                "sentence-transformers, but encoders are, such as a BERT"
            )
        if part != "model":
            raise InputError(f"checkpoint {source}: a {type(model).__name__} has no {part}")
        if head is not None:
            raise InputError(f"checkpoint {source}: a {type(model).__name__} has no head {head!r}")
        model = hf_config.written(model, where=source)
        seen = encoder_interchange.seen_params(experiment, saved, where=source)
        arrays = {
            path.removeprefix(_MODEL): _cast(array, dtype)
            for path, array in seen.items()
            if path.startswith(_MODEL)
        }
        config = hf_config.from_model(
            model, model_type=_earlier_type(source, files), dtype=common_dtype(arrays.values())
        )
        vocabulary = load_vocabulary(
            source / "files" / checkpointing.VOCABULARY_DIRECTORY,
            extra_ids=experiment.data.extra_ids,
        )
        config["tokenizer_class"] = (
            "ByT5Tokenizer" if isinstance(vocabulary, Bytes) else "T5Tokenizer"
        )
        generation = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
        kept = files.get(f"{_HUGGINGFACE}/{_GENERATION}", _json(generation))
        write_tensors(directory, their_tensors(model, arrays, where=source))
        write_tokenizer(vocabulary, directory)
        (directory / hf_config.CONFIG).write_bytes(_json(config))
        (directory / _GENERATION).write_bytes(kept)


def _merged(source: Path, experiment: Experiment) -> dict[str, LazyArray]:
    """A checkpoint's parameters by path, with its adapters added to the model's kernels.

    Raises:
      InputError: an adapter cannot be merged.
    """
    learner = learner_of(with_float32_base(experiment))
    params = checkpointing.restore_params(source, learner.shapes)
    try:
        model = learner.merged(params)
    except InputError as error:
        raise InputError(
            f"checkpoint {source}: {error}, and no directory of transformers holds it"
        ) from error
    flat = trees.flatten({**params, "model": model})
    kept = {path: np.asarray(leaf) for path, leaf in flat.items() if not path.startswith(ADAPTERS)}
    return {
        path: LazyArray(array.shape, array.dtype, lambda array=array: array)
        for path, array in kept.items()
    }


def _export_encoder(
    source: Path,
    files: Mapping[str, bytes],
    experiment: Experiment,
    params: Mapping[str, LazyArray],
    directory: Path,
    *,
    part: encoder_interchange.Part,
    dtype: Dtype,
    head: str | None,
    sentences: Dense | None,
) -> None:
    start = f"{_HUGGINGFACE}/"
    made = encoder_interchange.export_of(
        experiment,
        params,
        load_vocabulary(
            source / "files" / checkpointing.VOCABULARY_DIRECTORY,
            extra_ids=experiment.data.extra_ids,
        ),
        part=part,
        cast=functools.partial(_cast, dtype=dtype),
        model_type=_earlier_type(source, files),
        kept={name.removeprefix(start): files[name] for name in files if name.startswith(start)},
        head=head,
        sentences=sentences,
        max_length=None if sentences is None else trained_length(experiment),
        where=source,
    )
    write_tensors(directory, made.tensors)
    for name, content in {**made.files, hf_config.CONFIG: _json(made.config)}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)


def _earlier_type(source: AnyPath, files: Mapping[str, bytes]) -> str | None:
    """The model_type that an imported model had.

    Raises:
      InputError: the config.json that was kept is damaged.
    """
    name = f"{_HUGGINGFACE}/{hf_config.CONFIG}"
    try:
        kept = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source / 'files' / name}: not JSON ({error})") from error
    found = kept.get("model_type") if isinstance(kept, dict) else None
    return found if isinstance(found, str) else None


def _write(
    directory: Path,
    checkpoint: Source,
    experiment: Experiment,
    vocabulary: Vocabulary,
    *,
    prefix: str = _MODEL,
    dtype: Dtype,
    files: Mapping[str, bytes],
) -> None:
    """Writes the step directory; `prefix` is what stands before the checkpoint's paths there."""
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
    arrays = {
        prefix + path: _cast(
            LazyArray(shape, checkpoint.dtype(path), functools.partial(checkpoint.array, path)),
            dtype,
        )
        for path, shape in checkpoint.shapes.items()
    }
    write_params(directory / "params", arrays)
    checkpoint_manifest.write(directory)


def _vocabulary_of(destination: str | Path) -> Path:
    """Where the vocabulary of a step directory will be."""
    return Path(destination).absolute() / "files" / checkpointing.VOCABULARY_DIRECTORY


def _cast(array: LazyArray, dtype: Dtype) -> LazyArray:
    """The array in the dtype that was asked for; float64, which JAX would not hold, in float32."""
    if dtype == "keep":
        wanted = np.dtype(np.float32) if array.dtype == np.float64 else array.dtype
    else:
        wanted = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
    return LazyArray(array.shape, wanted, lambda: array.read().astype(wanted, copy=False))


def _experiment(model: T5Config, vocabulary: Vocabulary, place: Path) -> Experiment:
    """A config around an imported model: fine-tuning as the paper does it, on span corruption."""
    is_bytes = isinstance(vocabulary, Bytes)
    return Experiment(
        model=model,
        objective=Seq2Seq(),
        data=Data(
            task="tasks.text:span_corruption",
            vocabulary=str(vocabulary.model_path) if is_bytes else str(place),
            extra_ids=vocabulary.extra_ids,
            inputs_length=1024 if is_bytes else 512,
            targets_length=189 if is_bytes else 114,
        ),
        optimizer=Adafactor(schedule=Constant(value=1e-3)),
        steps=1000,
    )


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n"
