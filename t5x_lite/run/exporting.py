"""`t5x-lite export hf`: a checkpoint as Hugging Face's transformers loads it, with a model card.

    config.json  generation_config.json  model.safetensors  tokenizer files  README.md

Arrays go through one by one, so the memory that is needed is that of the largest few.
"""

import functools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from t5x_lite import trees
from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.errors import InputError
from t5x_lite.heads.dense import Dense, Role
from t5x_lite.inference.loading import learner_of, with_float32_base
from t5x_lite.inference.text_encoder import trained_length
from t5x_lite.interop import hf_config
from t5x_lite.interop.hf import common_dtype, their_tensors
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.sentence_transformers import PROJECTION, sentence_files
from t5x_lite.interop.tensor_files import write_safetensors, write_tensors
from t5x_lite.interop.tokenizer import write_tokenizer
from t5x_lite.interop.torch_writing import write_torch
from t5x_lite.remote import AnyPath
from t5x_lite.run import encoder_interchange, tower_export
from t5x_lite.vocabulary.byte_level import Bytes
from t5x_lite.vocabulary.loading import load_vocabulary

Dtype = Literal["keep", "float32", "bfloat16"]

HUGGINGFACE = "huggingface"
"""The folder of a step's files that holds those of the model's release."""
GENERATION = "generation_config.json"
MODEL = "model/"
"""What the paths of the model's parameters begin with."""

_logger = logging.getLogger(__name__)


def refuse_of_t5(
    source: Path,
    experiment: Experiment,
    *,
    sentence_transformers: bool,
    part: encoder_interchange.Part,
    head: str | None,
) -> None:
    """Refuses what encoders alone have.

    Raises:
      InputError: it is asked for.
    """
    name = type(experiment.model).__name__
    if sentence_transformers and not hf_config.is_t5_encoder(experiment.model):
        raise InputError(
            f"checkpoint {source}: a {name} is not exported for sentence-transformers, but "
            "encoders are, such as a BERT or the encoder of a T5"
        )
    if hf_config.is_t5_encoder(experiment.model) and tower_export.roles_of(
        experiment, projections=sentence_transformers
    ):
        raise InputError(
            f"checkpoint {source}: it has one {name} or one projection for queries and one for "
            "passages, and only encoders such as a BERT are exported as two directories"
        )
    if part != "model":
        raise InputError(f"checkpoint {source}: a {name} has no {part}")
    if head is not None:
        raise InputError(f"checkpoint {source}: a {name} has no head {head!r}")


def write_sentences(
    directory: Path,
    head: Dense,
    experiment: Experiment,
    params: Mapping[str, LazyArray],
    *,
    dtype: Dtype,
) -> None:
    """Write the files of sentence-transformers beside a T5's encoder."""
    d_model = hf_config.written(experiment.model, where=directory).d_model
    length = trained_length(experiment)
    for name, content in sentence_files(head, d_model=d_model, max_length=length).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    _write_projection(directory, head, params, "query", dtype=dtype)


def export_t5(
    source: Path,
    files: Mapping[str, bytes],
    experiment: Experiment,
    saved: Mapping[str, LazyArray],
    directory: Path,
    *,
    dtype: Dtype,
) -> None:
    model = hf_config.written(experiment.model, where=source)
    seen = encoder_interchange.seen_params(experiment, saved, where=source)
    arrays = {
        path.removeprefix(MODEL): cast(array, dtype)
        for path, array in seen.items()
        if path.startswith(MODEL)
    }
    config = hf_config.from_model(
        model, model_type=_earlier_type(source, files), dtype=common_dtype(arrays.values())
    )
    config = hf_config.with_kept(config, _earlier_config(source, files), model=model)
    vocabulary = load_vocabulary(
        source / "files" / checkpointing.VOCABULARY_DIRECTORY,
        extra_ids=experiment.data.extra_ids,
    )
    config["tokenizer_class"] = "ByT5Tokenizer" if isinstance(vocabulary, Bytes) else "T5Tokenizer"
    generation = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    kept = files.get(f"{HUGGINGFACE}/{GENERATION}", as_json(generation))
    write_tensors(directory, their_tensors(model, arrays, where=source))
    write_tokenizer(vocabulary, directory)
    (directory / hf_config.CONFIG).write_bytes(as_json(config))
    (directory / GENERATION).write_bytes(kept)


def merged(source: Path, experiment: Experiment) -> dict[str, LazyArray]:
    """A checkpoint's parameters by path, with its adapters added to the model's kernels.

    Raises:
      InputError: an adapter cannot be merged.
    """
    learner = learner_of(with_float32_base(experiment))
    params = checkpointing.restore_params(source, learner.shapes)
    try:
        merged = {"model": learner.merged(params)}
        if towers := experiment.objective.more_towers():
            merged["towers"] = {name: learner.merged(params, tower=name) for name in towers}
    except InputError as error:
        raise InputError(
            f"checkpoint {source}: {error}, and no directory of transformers holds it"
        ) from error
    flat = trees.flatten({**params, **merged})
    kept = {path: np.asarray(leaf) for path, leaf in flat.items() if not path.startswith(ADAPTERS)}
    return {
        path: LazyArray(array.shape, array.dtype, lambda array=array: array)
        for path, array in kept.items()
    }


def export_encoder(
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
    role: Role,
) -> None:
    start = f"{HUGGINGFACE}/"
    made = encoder_interchange.export_of(
        experiment,
        params,
        load_vocabulary(
            source / "files" / checkpointing.VOCABULARY_DIRECTORY,
            extra_ids=experiment.data.extra_ids,
        ),
        part=part,
        cast=functools.partial(cast, dtype=dtype),
        model_type=_earlier_type(source, files),
        kept={name.removeprefix(start): files[name] for name in files if name.startswith(start)},
        head=head,
        sentences=sentences,
        max_length=None if sentences is None else trained_length(experiment),
        where=source,
    )
    write_tensors(directory, made.tensors)
    for name, tensors in made.beside.items():
        if name.endswith(".pt"):
            arrays = {key: array.read() for key, array in tensors.items()}
            write_torch(directory / name, arrays, keep_dtype=True)
        else:
            write_safetensors(directory / name, tensors)
    for name, content in {**made.files, hf_config.CONFIG: as_json(made.config)}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    if sentences is not None:
        _write_projection(directory, sentences, params, role, dtype=dtype)


def _write_projection(
    directory: Path, head: Dense, params: Mapping[str, LazyArray], role: Role, *, dtype: Dtype
) -> None:
    """Write the tensors of a vector's projection, if it has one."""
    layer = tower_export.projection_of(head, params, role)
    if layer is None:
        return
    kernel, bias = cast(layer[0], dtype), layer[1]
    shape = (kernel.shape[1], kernel.shape[0])
    arrays = {
        "linear.weight": LazyArray(
            shape, kernel.dtype, lambda: np.ascontiguousarray(kernel.read().T)
        )
    }
    arrays |= {} if bias is None else {"linear.bias": cast(bias, dtype)}
    write_tensors(directory / PROJECTION, arrays)


def _earlier_type(source: AnyPath, files: Mapping[str, bytes]) -> str | None:
    """The model_type that an imported model had."""
    found = _earlier_config(source, files).get("model_type")
    return found if isinstance(found, str) else None


def _earlier_config(source: AnyPath, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The config.json of an imported model; {} without one.

    Raises:
      InputError: the config.json that was kept is damaged.
    """
    name = f"{HUGGINGFACE}/{hf_config.CONFIG}"
    try:
        kept = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source / 'files' / name}: not JSON ({error})") from error
    return kept if isinstance(kept, dict) else {}


def cast(array: LazyArray, dtype: Dtype) -> LazyArray:
    """The array in the dtype that was asked for; float64, which JAX would not hold, in float32."""
    if dtype == "keep":
        wanted = np.dtype(np.float32) if array.dtype == np.float64 else array.dtype
    else:
        wanted = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
    return LazyArray(array.shape, wanted, lambda: array.read().astype(wanted, copy=False))


def as_json(content: Mapping[str, Any]) -> bytes:
    """A file of JSON for people: indented, with a newline at its end."""
    return json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n"
