"""Export of checkpoints: for transformers (`export hf`), and as StableHLO (`export stablehlo`).

Export for transformers, with a model card:

    config.json  generation_config.json  model.safetensors  tokenizer files  README.md

Arrays are converted one by one, so memory holds only a few of the largest at a time.

A retriever with two encoders or two projections is exported as two directories:

    DST/query_model/      the files above, for queries
    DST/passage_model/    the files above, for passages

RetroMAE's and Tevatron's checkpoints have this layout. A projection is the module 2_Dense of
sentence-transformers.

The model card README.md has the form that the Hugging Face Hub reads:

    ---
    # license: add one, such as apache-2.0
    library_name: transformers
    pipeline_tag: text2text-generation
    base_model: "google/flan-t5-small"
    tags: ["t5x_lite"]
    model-index: [{"name": "sst2", "results": [{... "metrics": [{"type": "accuracy", ...}]}]}]
    ---
    # sst2
    ...

The card lists the task, base model, metrics at the exported step, command and versions, if the
checkpoint and its work directory have them. The user adds license and language. Each line of the
YAML header has a JSON value, which is valid YAML.

Export as StableHLO, by jax.export; the files need JAX, but not this package:

    stablehlo.json  weights.npz  embed.jax_export  classifier.jax_export  tokenizer/

`stablehlo.json` describes the functions. The first argument of each function is a dict with the
arrays of `weights.npz`:

    weights = dict(np.load("exported/weights.npz"))
    embed = jax.export.deserialize(Path("exported/embed.jax_export").read_bytes())
    vectors = embed.call(weights, input_ids, attention_mask)        # float32 [batch, D]
"""

import dataclasses
import functools
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import export as jax_export

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.tracking import Start, read_starts
from t5x_lite.data.config import text_lengths
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.decoding.generate import greedy
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.decoding.search import prepared
from t5x_lite.inference.answers import HeadLogits, answering_heads, kind_of
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.generate import Scorer
from t5x_lite.inference.loading import Loaded, learner_of, with_float32_base
from t5x_lite.inference.text_encoder import check_encodes, dense_head, trained_length
from t5x_lite.interop import encoder_checkpoints, hf
from t5x_lite.interop.hf import CONFIG, common_dtype, read_json, their_tensors
from t5x_lite.interop.hub import Found
from t5x_lite.interop.retrievers import PROJECTION, flag_embedding, sentence_files
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.tensor_files import write_safetensors, write_tensors, write_torch
from t5x_lite.interop.tokenizers import tokenizer_files, write_tokenizer
from t5x_lite.metrics.benchmarks import is_test
from t5x_lite.models.encoder import is_encoder
from t5x_lite.models.heads import HEADS, ClassHead
from t5x_lite.models.vector_heads import Dense, Pooling, Role, as_model, dense_of
from t5x_lite.objectives.learner import heads_of

_logger = logging.getLogger(__name__)


def roles_of(experiment: Experiment, *, projections: bool) -> tuple[Role, ...]:
    """Return ("query", "passage") for a retriever with two encoders, else ()."""
    head = dense_of(heads_of(experiment.objective, experiment.heads))
    apart = head is not None and head.projection is not None and not head.tied
    two = experiment.objective.more_towers() or (projections and apart)
    return get_args(Role) if two else ()


def of_role(
    experiment: Experiment, params: Mapping[str, LazyArray], role: Role
) -> tuple[Experiment, dict[str, LazyArray]]:
    """Return the config and the parameters of one encoder of a retriever."""
    objective = experiment.objective.with_one_tower()
    found = as_model(params, tower_named(experiment, role))
    return dataclasses.replace(experiment, objective=objective), found


def tower_named(experiment: Experiment, role: Role) -> str:
    """Return the role if a retriever has a separate encoder for the role, else ""."""
    return role if role in experiment.objective.more_towers() else ""


def projection_of(
    head: Dense, params: Mapping[str, LazyArray], role: Role
) -> tuple[LazyArray, LazyArray | None] | None:
    """Return the kernel and the bias of the projection of text vectors, or None without one."""
    if head.projection is None:
        return None
    start = f"{HEADS}{head.name}/{'query' if head.tied else role}"
    bias = params[f"{start}/bias"] if head.projection_bias else None
    return params[f"{start}/kernel"], bias


Dtype = Literal["keep", "float32", "bfloat16"]

HUGGINGFACE = "huggingface"
"""Folder in a checkpoint's files/ with the files of the imported Hugging Face model."""
GENERATION = "generation_config.json"
MODEL = "model/"
"""Prefix of the parameter paths of the model, as opposed to heads."""


def refuse_of_t5(
    source: Path,
    experiment: Experiment,
    *,
    sentence_transformers: bool,
    part: encoder_checkpoints.Part,
    head: str | None,
) -> None:
    """Raise InputError if an export option does not apply to a T5."""
    name = type(experiment.model).__name__
    if sentence_transformers and not hf.is_t5_encoder(experiment.model):
        raise InputError(
            f"checkpoint {source} is a {name}, but only encoders can be exported for "
            "sentence-transformers, such as a BERT or a T5 encoder"
        )
    if hf.is_t5_encoder(experiment.model) and roles_of(
        experiment, projections=sentence_transformers
    ):
        raise InputError(
            f"checkpoint {source} has separate {name} encoders or projections for queries and "
            "passages, but only encoders such as a BERT can be exported as two directories"
        )
    if part != "model":
        raise InputError(f"checkpoint {source} is a {name}, which has no {part}; remove --part")
    if head is not None:
        raise InputError(
            f"checkpoint {source} is a {name}, which has no head {head!r}; remove --head"
        )


def write_sentences(
    directory: Path,
    head: Dense,
    experiment: Experiment,
    params: Mapping[str, LazyArray],
    *,
    dtype: Dtype,
) -> None:
    """Write the config files of sentence-transformers for an exported T5 encoder."""
    d_model = hf.written(experiment.model, where=directory).d_model
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
    model = hf.written(experiment.model, where=source)
    seen = encoder_checkpoints.seen_params(experiment, saved, where=source)
    arrays = {
        path.removeprefix(MODEL): cast(array, dtype)
        for path, array in seen.items()
        if path.startswith(MODEL)
    }
    config = hf.from_model(
        model, model_type=_earlier_type(source, files), dtype=common_dtype(arrays.values())
    )
    config = hf.with_kept(config, _earlier_config(source, files), model=model)
    vocabulary = load_vocabulary(
        source / "files" / checkpointing.VOCABULARY_DIRECTORY,
        extra_ids=experiment.data.extra_ids,
    )
    config["tokenizer_class"] = "ByT5Tokenizer" if isinstance(vocabulary, Bytes) else "T5Tokenizer"
    generation = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    kept = files.get(f"{HUGGINGFACE}/{GENERATION}", as_json(generation))
    write_tensors(directory, their_tensors(model, arrays, where=source))
    write_tokenizer(vocabulary, directory)
    (directory / hf.CONFIG).write_bytes(as_json(config))
    (directory / GENERATION).write_bytes(kept)


def merged(source: Path, experiment: Experiment) -> dict[str, LazyArray]:
    """Return a checkpoint's parameters by path, with adapters merged into the model's kernels."""
    learner = learner_of(with_float32_base(experiment))
    params = checkpointing.restore_params(source, learner.shapes)
    try:
        merged = {"model": learner.merged(params)}
        if towers := experiment.objective.more_towers():
            merged["towers"] = {name: learner.merged(params, tower=name) for name in towers}
    except InputError as error:
        raise InputError(
            f"checkpoint {source} cannot be exported to transformers: {error}"
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
    part: encoder_checkpoints.Part,
    dtype: Dtype,
    head: str | None,
    sentences: Dense | None,
    role: Role,
) -> None:
    start = f"{HUGGINGFACE}/"
    made = encoder_checkpoints.export_of(
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
    for name, content in {**made.files, hf.CONFIG: as_json(made.config)}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    if sentences is not None:
        _write_projection(directory, sentences, params, role, dtype=dtype)


def _write_projection(
    directory: Path, head: Dense, params: Mapping[str, LazyArray], role: Role, *, dtype: Dtype
) -> None:
    layer = projection_of(head, params, role)
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
    found = _earlier_config(source, files).get("model_type")
    return found if isinstance(found, str) else None


def _earlier_config(source: AnyPath, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the imported config.json, or {} if the model was not imported."""
    name = f"{HUGGINGFACE}/{hf.CONFIG}"
    try:
        kept = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source / 'files' / name}: not JSON ({error})") from error
    return kept if isinstance(kept, dict) else {}


def cast(array: LazyArray, dtype: Dtype) -> LazyArray:
    """Convert an array to a dtype; "keep" keeps its dtype, but converts float64 to float32."""
    if dtype == "keep":
        wanted = np.dtype(np.float32) if array.dtype == np.float64 else array.dtype
    else:
        wanted = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)
    return LazyArray(array.shape, wanted, lambda: array.read().astype(wanted, copy=False))


def as_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n"


CARD = "README.md"
SOURCE_FILE = "huggingface/source.json"
"""File of an imported checkpoint with {"repository", "revision"} if it is from the hub."""
_PIPELINES = {
    "ForConditionalGeneration": "text2text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
_SENTENCES = "modules.json"
_AT_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
_GENERIC = "feature-extraction"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Facts about a checkpoint's training, for the model card.

    Attributes:
      name: name of the work directory, or else of the checkpoint directory.
      step: training step; 0 for imported weights.
      start: record of the run's last start or resumption, up to this step; None if unknown.
      metrics: metrics at this step, by "<split>/<name>", without test splits.
      hub_base: hub name of the imported model, or of the model that initialized the run, or "".
      base: `hub_base`, or the path of the checkpoint that the run started from, or "".
    """

    name: str
    step: int
    start: Start | None
    metrics: Mapping[str, float]
    hub_base: str
    base: str


def source_file(source: Found) -> dict[str, bytes]:
    """Return a JSON file with the hub name and commit of an imported model."""
    if not source.repository:
        return {}
    content = {"repository": source.repository, "revision": source.revision}
    return {SOURCE_FILE: json.dumps(content, indent=1).encode() + b"\n"}


def directory_file(source: Found) -> dict[str, bytes]:
    """Return a JSON file with the directory or hub name from which a model was imported."""
    if source.repository:
        return source_file(source)
    content = {"directory": str(source.directory.absolute())}
    return {SOURCE_FILE: json.dumps(content, indent=1).encode() + b"\n"}


def origin_name(files: Mapping[str, bytes]) -> str:
    """Return the hub name or the directory from which a model was imported, or ""."""
    found = _json_of(files.get(SOURCE_FILE, b"{}"))
    named = [found.get(key) for key in ("repository", "directory")]
    return next((name for name in named if isinstance(name, str) and name), "")


def write_adapter_card(
    directory: Path,
    *,
    library: str,
    base: str,
    experiment: Experiment,
    step: AnyPath,
    files: Mapping[str, bytes],
) -> None:
    """Write the model card README.md next to an adapter that is exported from a checkpoint."""
    hub_base = base if _AT_HUB.fullmatch(base) else ""
    origin = origin_of(step, files, experiment)
    origin = dataclasses.replace(origin, base=base or origin.base, hub_base=hub_base)
    head: dict[str, Any] = {"library_name": library, "tags": ["t5x_lite", library]}
    if hub_base:
        head["base_model"] = hub_base
    modules = "\n".join(f"    {line}" for line in experiment.adapters.add)
    sections = [_about(origin, experiment), modules, _metrics(origin), _command(origin)]
    (directory / CARD).write_text(_card(head, origin.name, sections), encoding="utf-8")


def origin_of(step: AnyPath, files: Mapping[str, bytes], experiment: Experiment) -> Origin:
    """Collect the facts about a checkpoint's training for the model card."""
    number = int(step.name) if step.name.isdigit() else 0
    in_workdir = step.parent.name == checkpointing.DIRECTORY
    workdir = step.parent.parent if in_workdir else step
    starts = [start for start in read_starts(workdir) if start.step <= number]
    measured = _json_of(files.get(checkpointing.METRICS_FILE, b"{}"))
    metrics = {
        name: float(value)
        for name, value in measured.items()
        if isinstance(value, int | float) and not is_test(name.partition("/")[0])
    }
    hub_base = _repository(files) or _base_of(experiment)
    return Origin(
        name=workdir.name,
        step=number,
        start=starts[-1] if starts else None,
        metrics=metrics,
        hub_base=hub_base,
        base=hub_base or str(experiment.init.checkpoint or ""),
    )


def _repository(files: Mapping[str, bytes]) -> str:
    found = _json_of(files.get(SOURCE_FILE, b"{}")).get("repository")
    return found if isinstance(found, str) else ""


def _base_of(experiment: Experiment) -> str:
    checkpoint = experiment.init.checkpoint
    if not checkpoint:
        return ""
    try:
        path = checkpointing.find_step(checkpoint) / "files" / SOURCE_FILE
        return _repository({SOURCE_FILE: path.read_bytes()} if path.exists() else {})
    except (InputError, OSError):  # it has been moved or deleted
        return ""


def _json_of(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_card(directory: Path, origin: Origin, experiment: Experiment) -> None:
    """Write the model card README.md next to the exported files."""
    architecture = str((read_json(directory / CONFIG).get("architectures") or [""])[0])
    sentences = (directory / _SENTENCES).is_file()
    card = model_card(origin, experiment, architecture=architecture, sentences=sentences)
    (directory / CARD).write_text(card, encoding="utf-8")


def model_card(
    origin: Origin, experiment: Experiment, *, architecture: str, sentences: bool = False
) -> str:
    """Return the text of the model card."""
    pipeline = next((p for end, p in _PIPELINES.items() if architecture.endswith(end)), _GENERIC)
    head = _head(origin, experiment, pipeline="sentence-similarity" if sentences else pipeline)
    if sentences:
        head["library_name"] = "sentence-transformers"
    sections = [
        _about(origin, experiment),
        _usage(architecture, sentences=sentences),
        _flag_usage(experiment),
        _metrics(origin),
        _command(origin),
    ]
    return _card(head, origin.name, sections)


def _card(head: Mapping[str, Any], name: str, sections: Sequence[str]) -> str:
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    top = "\n".join(["---", "# license: add one, such as apache-2.0", *lines, "---"])
    return "\n\n".join(part for part in (top, f"# {name}", *sections) if part) + "\n"


def _head(origin: Origin, experiment: Experiment, *, pipeline: str) -> dict[str, Any]:
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": pipeline}
    if origin.hub_base:
        head["base_model"] = origin.hub_base
    head["tags"] = ["t5x_lite"]
    task = experiment.data.task
    if origin.metrics and task:
        metrics = [
            {"type": name.rpartition("/")[2], "name": name, "value": value}
            for name, value in origin.metrics.items()
        ]
        result = {
            "task": {"type": pipeline},
            "dataset": {"name": task, "type": task.rpartition(":")[2]},
            "metrics": metrics,
        }
        head["model-index"] = [{"name": origin.name, "results": [result]}]
    return head


def _about(origin: Origin, experiment: Experiment) -> str:
    data = experiment.data
    source = data.task or ", ".join([data.cache] if isinstance(data.cache, str) else data.cache)
    rows = [("Task", f"`{source}`"), ("Model", type(experiment.model).__name__)]
    if origin.base:
        rows.append(("Base model", f"`{origin.base}`"))
    if origin.step:
        rows.append(("Steps", f"{origin.step:,} of {experiment.steps:,}"))
        rows.append(("Batch", f"{data.batch_size:,} rows"))
    if texts := text_lengths(data):
        lengths = ", ".join(f"{size} tokens of a {name}" for name, size in texts.items())
    else:
        lengths = f"{data.inputs_length} tokens of input"
        if not data.layout.of_encoder:
            lengths += f", {data.targets_length} of targets"
    rows.append(("Lengths", lengths))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _usage(architecture: str, *, sentences: bool) -> str:
    if sentences:
        code = (
            "from sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("DIRECTORY_OR_NAME")\n'
            'vectors = model.encode(["a text"])'
        )
    else:
        name = architecture or "AutoModel"
        code = (
            f"from transformers import AutoTokenizer, {name}\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY_OR_NAME")\n'
            f'model = {name}.from_pretrained("DIRECTORY_OR_NAME")'
        )
    return f"## Use\n\n```python\n{code}\n```"


def _flag_usage(experiment: Experiment) -> str:
    """Return instructions to load a BGE-M3 with FlagEmbedding; "" for other checkpoints."""
    if not is_encoder(experiment.model):
        return ""
    heads = heads_of(experiment.objective, experiment.heads)
    if not (call := flag_embedding(heads, experiment.model)):
        return ""
    return (
        "FlagEmbedding gives all three scores:\n\n```python\n"
        f"from FlagEmbedding import BGEM3FlagModel\n\nmodel = {call}\n```"
    )


def _metrics(origin: Origin) -> str:
    if not origin.metrics:
        return ""
    rows = [f"| {name} | {value:.4f} |" for name, value in origin.metrics.items()]
    head = [f"## Metrics at step {origin.step:,}", "", "| metric | value |", "|---|---|"]
    return "\n".join([*head, *rows])


def _command(origin: Origin) -> str:
    if origin.start is None:
        return ""
    versions = ", ".join(f"{name} {value}" for name, value in origin.start.versions.items())
    lines = ["## Training", "", "```", origin.start.command, "```"]
    lines += ["", f"On {origin.start.devices}; {versions}."] if versions else []
    return "\n".join(lines)


STABLEHLO = "stablehlo.json"
"""File that describes the functions of an export as StableHLO."""
_WEIGHTS = "weights.npz"
_TOKENIZER = "tokenizer"
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedFunction:
    """Function of a model that `export_stablehlo` writes.

    Attributes:
      run: function (params, *inputs) -> one output, or a tuple of outputs.
      inputs: shape of each input by name, such as "batch, length"; all inputs are int32.
      outputs: names of the outputs.
      max_length: maximum of the axes "length" and "target_length"; None sets no limit.
      about: further fields of the function in stablehlo.json.
    """

    run: Callable[..., Any]
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    max_length: int | None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def exported_functions(
    model: Checkpoint,
    *,
    max_decode_length: int | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
) -> dict[str, ExportedFunction]:
    """Return the functions of a model by name.

    Args:
      model: loaded checkpoint; not an ensemble.
      max_decode_length: maximum number of generated tokens; None is 64.
      pooling: pooling of vectors; None uses the checkpoint's setting.
      normalize: True to scale vectors to length 1; None uses the checkpoint's setting.
      dimensions: number of leading dimensions to keep of each vector; None keeps all.

    Returns:
      "generate" and "score" for a model that generates text. For an encoder, one function for each
        head that makes predictions, by head name. "embed" computes vectors; it is included for an
        encoder with a head for vectors, for an encoder without a head that makes predictions, and
        if an option for vectors is set. With two encoders or projections, "embed" is split into
        "embed_query" and "embed_passage".

    Raises:
      InputError: if the model does not support an option, or has no such function.
    """
    loaded = _portable(model.members[0])
    model = dataclasses.replace(model, members=(loaded,))
    vectors = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions}
    given = [f"--{name}" for name, value in vectors.items() if value is not None]
    if hasattr(loaded.learner.model_type, "prefill"):
        if given:
            raise InputError(
                f"checkpoint {loaded.directory}: {loaded.learner.model_type.__name__} generates "
                f"text, but {given[0]} is for vectors of encoders; remove {given[0]}"
            )
        return _text_functions(loaded, model.inputs_length, max_decode_length or 64)
    check_encodes(loaded.learner, loaded.directory)
    if max_decode_length is not None:
        raise InputError(
            f"checkpoint {loaded.directory}: {loaded.learner.model_type.__name__} is an encoder, "
            "but --max-decode-length is for models that generate text; remove it"
        )
    heads = answering_heads(loaded.experiment)
    found: dict[str, ExportedFunction] = {}
    if given or not heads or dense_head(loaded.experiment) is not None:
        found = _vector_functions(model, **vectors)
    for name in heads:
        length = model.answerer(head=name).length
        found[name] = _head_function(loaded, name, length)
    return found


def _portable(loaded: Loaded) -> Loaded:
    model = loaded.experiment.model.unrolled()
    if hasattr(model, "attention"):
        model = model.replace(attention="plain")
    experiment = dataclasses.replace(loaded.experiment, model=model)
    learner = dataclasses.replace(learner_of(experiment), dtype=loaded.learner.dtype)
    return dataclasses.replace(loaded, experiment=experiment, learner=learner)


def _text_functions(
    loaded: Loaded, length: int, max_decode_length: int
) -> dict[str, ExportedFunction]:
    bind, decoding = loaded.learner.bind_model, Decoding(max_decode_length=max_decode_length)
    scorer = Scorer(bind, batch_size=1)

    def generate(params: Any, input_ids: Any) -> Any:
        return greedy(prepared(bind(params)), input_ids, decoding=decoding)

    ending = loaded.experiment.data.layout.ending(loaded.vocabulary)
    ids = {_IDS: f"batch, {length}"}  # the cache of decoding has blocks of a fixed size
    both = {_IDS: "batch, length", "target_ids": "batch, target_length"}
    return {
        "generate": ExportedFunction(
            run=generate,
            inputs=ids,
            outputs=("output_ids", "score"),
            max_length=None,
            about={"inputs_end": [*ending], "eos_id": decoding.eos_id},
        ),
        "score": ExportedFunction(
            run=scorer.score, inputs=both, outputs=("log_likelihood",), max_length=None
        ),
    }


def _vector_functions(model: Checkpoint, **options: Any) -> dict[str, ExportedFunction]:
    encoder = model.encoder(**options)
    embedder = encoder.embedder(batch_size=1)
    experiment = encoder.loaded.experiment
    head = dense_head(experiment) or Dense()
    about = {
        "pooling": encoder.vectors.pooling,
        "normalize": encoder.vectors.normalize,
        "prefix": encoder.begins_with(None, None),
        "prompts": {prompt.name: prompt.text for prompt in head.prompts},
    }

    def of(role: Role) -> ExportedFunction:
        def embed(params: Any, input_ids: Any, attention_mask: Any) -> Any:
            return embedder.vectors[role](params, input_ids, jnp.sum(attention_mask, axis=1))

        shape, longest = _row_shape(experiment, encoder.length)
        return ExportedFunction(
            run=embed,
            inputs={_IDS: shape, _MASK: shape},
            outputs=("vectors",),
            max_length=longest,
            about=about,
        )

    roles = roles_of(experiment, projections=True)
    return {f"embed_{role}": of(role) for role in roles} if roles else {"embed": of("query")}


def _head_function(loaded: Loaded, name: str, length: int) -> ExportedFunction:
    head = answering_heads(loaded.experiment)[name]
    logits = HeadLogits(
        loaded.learner.bind,
        head=name,
        batch_size=1,
        longest=length,
        pad_id=loaded.vocabulary.pad_id,
        sep_id=encoder_tokens(loaded.vocabulary).sep_id,
    ).logits
    shape, longest = _row_shape(loaded.experiment, length)
    about: dict[str, Any] = {"kind": kind_of(head)}
    if isinstance(head, ClassHead):
        about["labels"] = [*head.labels]
    return ExportedFunction(
        run=logits,
        inputs={_IDS: shape, _MASK: shape, _TYPES: shape},
        outputs=("logits",),
        max_length=longest,
        about=about,
    )


def _row_shape(experiment: Experiment, length: int) -> tuple[str, int | None]:
    """Return an encoder's input shape, and the maximum length; None for a fixed length."""
    if getattr(experiment.model, "has_distances", False):
        return f"batch, {length}", None  # disentangled attention needs the number of distances
    return "batch, length", length


def export_stablehlo(
    model: Checkpoint,
    functions: Mapping[str, ExportedFunction],
    directory: Path,
    *,
    platforms: Sequence[str],
) -> None:
    """Write functions of a checkpoint by jax.export, with weights, tokenizer and stablehlo.json.

    Args:
      model: loaded checkpoint that the functions were made for.
      functions: functions by name.
      directory: existing directory to write into.
      platforms: platforms to lower for, as JAX names them; no device is needed.

    Raises:
      InputError: if JAX cannot export a function for an unknown batch size.
    """
    loaded = model.members[0]
    weights = trees.flatten(loaded.params)
    shapes = {path: jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in weights.items()}
    described = {}
    for name, function in functions.items():
        try:
            exported = _exported(function, shapes, platforms)
        except InputError:
            raise
        except Exception as error:  # whatever an operation raises for a symbolic size
            raise InputError(
                f"checkpoint {loaded.directory}: JAX cannot export {name} for any batch size "
                f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); write the "
                "adapters into the weights by `t5x-lite merge`, or use `t5x-lite serve`"
            ) from error
        file = f"{name}.jax_export"
        (directory / file).write_bytes(exported.serialize())
        inputs = exported.in_avals[len(shapes) :]
        described[name] = {
            "file": file,
            "inputs": [_described(*pair) for pair in zip(function.inputs, inputs, strict=True)],
            "outputs": [
                _described(*pair) for pair in zip(function.outputs, exported.out_avals, strict=True)
            ],
            **({} if function.max_length is None else {"max_length": function.max_length}),
            **function.about,
        }
    arrays: Any = {path: np.asarray(array) for path, array in weights.items()}
    np.savez(directory / _WEIGHTS, **arrays)
    _write_tokenizer(loaded, directory / _TOKENIZER)
    description = {
        "functions": described,
        "weights": _WEIGHTS,
        "tokenizer": _TOKENIZER,
        "pad_id": loaded.vocabulary.pad_id,
        "platforms": [*platforms],
        "compute_dtype": loaded.learner.dtype,
        "jax": jax.__version__,
    }
    (directory / STABLEHLO).write_bytes(as_json(description))


def _exported(
    function: ExportedFunction, shapes: Mapping[str, Any], platforms: Sequence[str]
) -> jax_export.Exported:
    most = function.max_length
    limits = () if most is None else (f"length <= {most}",)
    scope = jax_export.SymbolicScope(limits)
    inputs = [
        jax.ShapeDtypeStruct(jax_export.symbolic_shape(shape, scope=scope), jnp.int32)
        for shape in function.inputs.values()
    ]

    def run(weights: Mapping[str, Any], *arrays: Any) -> Any:
        return function.run(trees.unflatten(weights), *arrays)

    return jax_export.export(jax.jit(run), platforms=platforms)(dict(shapes), *inputs)


def _described(name: str, array: Any) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else str(size) for size in array.shape]
    return {"name": name, "shape": shape, "dtype": array.dtype.name}


def _write_tokenizer(loaded: Loaded, directory: Path) -> None:
    directory.mkdir()
    vocabulary = loaded.vocabulary
    if not isinstance(vocabulary, Tokenizer):
        write_tokenizer(vocabulary, directory)
        return
    start = f"{HUGGINGFACE}/"
    files = checkpointing.step_files(loaded.directory)
    kept = {name.removeprefix(start): files[name] for name in files if name.startswith(start)}
    longest = trained_length(loaded.experiment)
    for name, content in tokenizer_files(vocabulary, kept, max_length=longest).items():
        (directory / name).write_bytes(content)
