"""Retrievers with files next to an encoder's directory: sentence-transformers, BGE-M3, Condenser.

Import and export of retriever files that are stored next to an encoder's files.

Condenser. luyug/Condenser saves a BERT or RoBERTa with its masked-LM head as transformers does, and
the layers of Condenser's head in model.pt, under transformers' names of layers:

    c_head.{i}.attention.self.{query,key,value}.{weight,bias}     c_head.{i}.intermediate.dense...
    c_head.{i}.attention.output.{dense,LayerNorm}...              c_head.{i}.output...
    co_target                                                     a buffer of coCondenser

The buffer is ignored; any other tensor raises an error that names it. The file does not store which
layer the skip connection starts from. The pickled arguments in the same directory (args.pt,
training_args.bin) are never read, because unpickling runs code from the file. Exports have the
layers as safetensors under the same names. Source: luyug/Condenser modeling.py,
CondenserForPretraining.save_pretrained.

BGE-M3 is an XLM-R with two more heads:

    colbert_linear.pt     weight [k, d], bias [k]       heads/multi_vector/out
    sparse_linear.pt      weight [1, d], bias [1]       heads/lexical/out

Each file has the state of one linear layer, as FlagEmbedding saves it. The directory itself is a
sentence-transformers directory with [CLS] pooling and vectors of length 1. A file with any other
tensor raises an error, and no code in a file is run (`interop.torch_files`). Exports have the same
files; imports also read safetensors with the same names. If a release lacks the files, the heads
are randomly initialized, and a warning is logged.

FlagEmbedding reads the end token of the tokenizer as eos_token. A BERT's tokenizer names it only
sep_token, so `flag_tokenizer` adds the name to the exported tokenizer_config.json.

RetroMAE and Tevatron have retrievers with a projection, which can only be imported:

    pooler_config.json      input_dim d, output_dim k, tied
    pooler.pt               linear_q and linear_p, each with weight [k, d] and bias [k]

The files are next to a single encoder or next to the directories of two encoders. Vectors are
projected [CLS] states, compared by dot product and not scaled to length 1. The file of a tied
pooler has its layer under both names, or only under the name for queries. Source:
staoxiao/RetroMAE, examples/retriever/modeling.py; texttron/tevatron, modeling/dense.py.

Import and export of sentence-transformers: config files and the Dense projection.

    modules.json                            Transformer, Pooling, optional Dense and Normalize
    sentence_bert_config.json               maximum text length, in tokens
    1_Pooling/config.json                   pooling of the token states into a vector
    2_Dense/config.json                     sizes, bias and activation of the projection
    2_Dense/model.safetensors               linear.weight [k, d], linear.bias [k]; or
    2_Dense/pytorch_model.bin
    2_Normalize/config.json                 empty; the module scales vectors to length 1
    config_sentence_transformers.json       prompts, and the similarity function

The files are converted to and from a `Dense` head. Names are as in sentence-transformers 2, which
all later versions can read. Unknown modules raise an error, because they would change the vectors.

The sentence-transformers module Dense becomes the projection of the `Dense` head. If its config has
a bias but the file has none, the bias is 0.
"""

import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import inside, plain_json
from t5x_lite.data.vocabularies.added_tokens import TOKENIZER_CONFIG_NAME
from t5x_lite.interop.encoders import dense_rules, layer_rules
from t5x_lite.interop.hf import LARGEST, read_json
from t5x_lite.interop.rules import (
    LAYER,
    LazyArray,
    Piece,
    Source,
    check_finite,
    check_names,
    check_shape,
    is_same,
    lazy_tensors,
    pieces,
)
from t5x_lite.interop.tensor_files import read_safetensors, read_torch
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.models.heads import HEADS, Head, Mlm
from t5x_lite.models.vector_heads import (
    Dense,
    Lexical,
    MultiVector,
    Pooling,
    Projected,
    Prompt,
    Role,
)
from t5x_lite.nn.slots import shapes
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.m3 import M3, m3
from t5x_lite.objectives.retromae import Condenser

_logger = logging.getLogger(__name__)


SAFETENSORS, TORCH = "condenser_head.safetensors", "model.pt"
PREFIX = "objective/"

_IGNORED = ("co_target",)
_LAYER = re.compile(r"c_head\.(\d+)\.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CondenserHead(Source):
    """Transformer layers of a Condenser's head, read from a Hugging Face directory.

    Attributes:
      objective: config of the training objective that uses this head.
    """

    objective: Condenser

    def read(self, piece: Piece) -> np.ndarray:
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_condenser(
    directory: Path,
    model: EncoderConfig,
    head: Head | None,
    *,
    mask_id: int,
    skip_from: int | None,
) -> CondenserHead | None:
    """Read the layers of a Condenser's head from a directory; return None without a head."""
    where, arrays = _read(directory, needed=skip_from is not None)
    if where is None:
        return None
    if skip_from is None:
        raise InputError(
            f"{where}: the file contains the head of a Condenser, but not the layer that its "
            "skip connection starts from; pass --skip-from N (the paper uses the middle layer, "
            f"here {model.num_layers // 2} of {model.num_layers})"
        )
    if head != Mlm():
        raise InputError(
            f"{where}: the head of a Condenser needs a masked language model head; pass a "
            "directory with a BertForMaskedLM or a RobertaForMaskedLM"
        )
    numbers = {int(match[1]) for name in arrays if (match := _LAYER.match(name))}
    objective = Condenser(mask_id=mask_id, skip_from=skip_from, head_layers=max(1, len(numbers)))
    ours = _shapes(objective, model)
    wanted = pieces(layer_rules(f"{PREFIX}condenser", f"c_head.{LAYER}"), ours)
    names = check_names(where, wanted, arrays, ignored=_IGNORED)
    for piece in wanted:
        check_shape(where, piece, arrays[names[piece.name]].shape)
    tensors = {piece.name: arrays[names[piece.name]] for piece in wanted}
    return CondenserHead(
        where=where, shapes=ours, pieces=wanted, tensors=tensors, objective=objective
    )


def condenser_files(
    objective: Objective,
    model: ModelConfig,
    head: Head | None,
    arrays: Mapping[str, LazyArray],
    *,
    where: object,
) -> dict[str, dict[str, LazyArray]]:
    """Return the tensor files of a Condenser's head for an export, by file name."""
    if not isinstance(objective, Condenser) or not isinstance(model, EncoderConfig):
        return {}
    if head != Mlm():
        _logger.info(
            "%s: skipping the Condenser's head, because the masked language model head is not "
            "exported",
            where,
        )
        return {}
    ours = _shapes(objective, model)
    if difference := trees.difference(ours, arrays):
        raise InputError(f"{where}: the parameters do not match the objective: {difference}")
    wanted = pieces(layer_rules(f"{PREFIX}condenser", f"c_head.{LAYER}"), ours)
    return {SAFETENSORS: lazy_tensors(wanted, arrays, where=where)}


def _shapes(objective: Condenser, model: EncoderConfig) -> dict[str, tuple[int, ...]]:
    abstract = shapes(lambda rngs: objective.build(model, rngs=rngs))[1]
    return {PREFIX + path: tuple(leaf.shape) for path, leaf in trees.flatten(abstract).items()}


def _read(directory: Path, *, needed: bool) -> tuple[Path | None, Mapping[str, np.ndarray]]:
    if (path := directory / SAFETENSORS).is_file():
        return path, read_safetensors(path)
    path = directory / TORCH
    if not path.is_file():
        if needed:
            raise InputError(
                f"{directory}: contains neither {TORCH} nor {SAFETENSORS}, the head of a "
                "Condenser; remove --skip-from"
            )
        return None, {}
    try:
        arrays = read_torch(path)
    except InputError as error:
        if needed:
            raise
        _logger.warning("skipping a file that cannot be read: %s", error)
        return None, {}
    if needed or any(_LAYER.match(name) for name in arrays):
        return path, arrays
    _logger.info("skipping %s, which is not the head of a Condenser", path)
    return None, {}


_ROLES = {"bos_token": "cls", "eos_token": "sep"}
"""Role of the special token in each field of tokenizer_config.json that FlagEmbedding reads."""

FILES = {"lexical": "sparse_linear", "multi_vector": "colbert_linear"}
"""File name without suffix of each BGE-M3 head."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class M3Heads(Source):
    """BGE-M3 heads for term weights and for token vectors, read from a directory.

    Attributes:
      lexical: config of the head for term weights.
      multi_vector: config of the head for token vectors.
    """

    lexical: Lexical
    multi_vector: MultiVector

    def read(self, piece: Piece) -> np.ndarray:
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)

    def objective(self, vectors: Dense | None) -> M3:
        """Return the objective that trains all BGE-M3 heads."""
        own = (
            {} if vectors is None else {"pooling": vectors.pooling, "normalize": vectors.normalize}
        )
        return m3(vector_size=self.multi_vector.size, specials=self.lexical.specials, **own)


def read_m3(directory: Path, model: EncoderConfig, *, specials: tuple[int, ...]) -> M3Heads | None:
    """Read the heads of a BGE-M3 from a directory; return None without heads."""
    places = {name: _place(directory, stem) for name, stem in FILES.items()}
    if not any(places.values()):
        return None
    arrays: dict[str, np.ndarray] = {}
    for name, path in places.items():
        if path is None:
            raise InputError(
                f"{directory}: has only one head of a BGE-M3; add the other head, {FILES[name]}.pt"
            )
        tensors = read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path)
        check_names(
            path, pieces(dense_rules("out", ""), _dense_shapes(1, 1)), _dotted(tensors), ignored=()
        )
        arrays |= {f"{FILES[name]}.{key}": value for key, value in tensors.items()}
    weight = arrays[f"{FILES['multi_vector']}.weight"]
    size = weight.shape[0] if weight.ndim else 0
    ours = _all_shapes(model, size=size)
    wanted = _pieces(ours)
    for piece in wanted:
        check_shape(directory, piece, arrays[piece.name].shape)
    return M3Heads(
        where=directory,
        shapes=ours,
        pieces=wanted,
        tensors={piece.name: arrays[piece.name] for piece in wanted},
        lexical=Lexical(specials=specials),
        multi_vector=MultiVector(size=None if size == model.d_model else size),
    )


def m3_files(
    heads: Mapping[str, Head],
    model: EncoderConfig,
    arrays: Mapping[str, LazyArray],
    *,
    where: object,
) -> dict[str, dict[str, LazyArray]]:
    """Return the tensor files of BGE-M3's heads for an export, by file name."""
    vectors = heads.get("multi_vector")
    if not isinstance(vectors, MultiVector) or not isinstance(heads.get("lexical"), Lexical):
        return {}
    ours = _all_shapes(model, size=vectors.size or model.d_model)
    own = {path: arrays[path] for path in ours}
    tensors = lazy_tensors(_pieces(ours), own, where=where)
    return {
        f"{stem}.pt": {
            name.removeprefix(f"{stem}."): array
            for name, array in tensors.items()
            if name.startswith(f"{stem}.")
        }
        for stem in FILES.values()
    }


def flag_tokenizer(
    files: Mapping[str, bytes], names: Mapping[str, str], *, where: object
) -> dict[str, bytes]:
    """Add the names of [CLS] and [SEP] to tokenizer_config.json, as FlagEmbedding expects."""
    try:
        config = json.loads(files.get(TOKENIZER_CONFIG_NAME, b"{}"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {TOKENIZER_CONFIG_NAME} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise InputError(f"{where}: {TOKENIZER_CONFIG_NAME} must be a JSON object")
    missing = {field: names[role] for field, role in _ROLES.items() if not config.get(field)}
    if not missing:
        return dict(files)
    content = json.dumps(config | missing, ensure_ascii=False, indent=2).encode() + b"\n"
    return {**files, TOKENIZER_CONFIG_NAME: content}


def flag_embedding(heads: Mapping[str, Head], model: EncoderConfig) -> str:
    """Return Python code that loads an exported BGE-M3 with FlagEmbedding."""
    vectors = heads.get("multi_vector")
    if not isinstance(vectors, MultiVector) or not isinstance(heads.get("lexical"), Lexical):
        return ""
    size = vectors.size or model.d_model
    option = "" if size == model.d_model else f", colbert_dim={size}"
    return f'BGEM3FlagModel("DIRECTORY_OR_NAME"{option})'


def _place(directory: Path, stem: str) -> Path | None:
    paths = [directory / f"{stem}{suffix}" for suffix in (".safetensors", ".pt")]
    return next((path for path in paths if path.is_file()), None)


def _dotted(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f".{name}": array for name, array in tensors.items()}


def _dense_shapes(d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
    return {"out/kernel": (d_in, d_out), "out/bias": (d_out,)}


def _all_shapes(model: EncoderConfig, *, size: int) -> dict[str, tuple[int, ...]]:
    sizes = {"lexical": 1, "multi_vector": size}
    return {
        f"{HEADS}{name}/{path}": shape
        for name, d_out in sizes.items()
        for path, shape in _dense_shapes(model.d_model, d_out).items()
    }


def _pieces(ours: Mapping[str, tuple[int, ...]]) -> list[Piece]:
    table = [
        rule for name, stem in FILES.items() for rule in dense_rules(f"{HEADS}{name}/out", stem)
    ]
    return pieces(table, ours)


POOLER = "pooler.pt"
_CONFIG = "pooler_config.json"
_LAYERS: dict[Role, str] = {"query": "linear_q", "passage": "linear_p"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooler(Source):
    """Linear projection of text vectors, read from the file pooler.pt of a retriever.

    Attributes:
      head: config of the head that computes vectors with this projection.
    """

    head: Dense

    def read(self, piece: Piece) -> np.ndarray:
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_pooler(directory: Path, *, d_model: int) -> Pooler | None:
    """Read the linear projection of text vectors from pooler.pt; return None if it is missing."""
    path, where = directory / POOLER, directory / _CONFIG
    if not path.is_file() and not where.is_file():
        return None
    for file in (path, where):
        if not file.is_file():
            raise InputError(
                f"{file}: no such file, but a pooler needs both {POOLER} and {_CONFIG}"
            )
    config = read_json(where)
    found_in, size = (_size(where, config, name) for name in ("input_dim", "output_dim"))
    tied = config.get("tied", True)
    if not isinstance(tied, bool):
        raise InputError(f"{where}: tied must be true or false, got {tied!r}")
    if found_in != d_model:
        raise InputError(
            f"{where}: input_dim is {found_in}, but the encoder's hidden states have size {d_model}"
        )
    head = Dense(pooling="cls", normalize=False, projection=size, tied=tied)
    found = read_torch(path)
    kinds: dict[Role, str] = {role: _LAYERS[role] for role in get_args(Role)[: 1 if tied else 2]}
    start = f"{HEADS}{head.name}"
    shapes = {
        f"{start}/{role}/{leaf}": shape
        for role in kinds
        for leaf, shape in (("kernel", (d_model, size)), ("bias", (size,)))
    }
    rules = [
        rule for role, layer in kinds.items() for rule in dense_rules(f"{start}/{role}", layer)
    ]
    wanted = pieces(rules, shapes)
    check_names(path, wanted, found, ignored=[rf"{_LAYERS['passage']}\.(weight|bias)"])
    for piece in wanted:
        check_shape(path, piece, found[piece.name].shape)
    if tied:
        _check_tied(path, found)
    return Pooler(where=path, shapes=shapes, pieces=wanted, tensors=found, head=head)


def _size(where: Path, config: Mapping[str, Any], name: str) -> int:
    size = config.get(name)
    if not isinstance(size, int) or size < 1:
        raise InputError(f"{where}: {name} must be a whole number of at least 1, got {size!r}")
    return size


def _check_tied(path: Path, found: dict[str, np.ndarray]) -> None:
    for leaf in ("weight", "bias"):
        query, passage = (found.get(f"{layer}.{leaf}") for layer in _LAYERS.values())
        if query is not None and passage is not None and not is_same(query, passage):
            raise InputError(
                f"{path}: linear_q.{leaf} and linear_p.{leaf} must be equal, because "
                f"{_CONFIG} has tied true, but they differ"
            )


ACTIVATIONS: dict[str, Projected] = {"Identity": "identity", "Tanh": "tanh"}
"""Activations of a `Dense` head, by name of the PyTorch class."""
_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projection(Source):
    """Projection of text vectors, read from a sentence-transformers directory.

    Attributes:
      size: output size.
      activation: activation of the output.
      bias: True if the projection has a bias.
    """

    size: int
    activation: Projected
    bias: bool = True

    def read(self, piece: Piece) -> np.ndarray:
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_projection(directory: Path, *, d_model: int) -> Projection:
    """Read the projection of text vectors from sentence-transformers' directory 2_Dense."""
    where = directory / "config.json"
    if not where.is_file():
        raise InputError(
            f"{where}: no such file, but it must define the projection of text vectors"
        )
    config = read_json(where)
    name = str(config.get("activation_function", "")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise InputError(
            f"{where}: the activation {name or 'none'} is not supported, only "
            f"{', '.join(ACTIVATIONS)}"
        )
    path = next((directory / file for file in _FILES if (directory / file).is_file()), None)
    if path is None:
        raise InputError(f"{directory}: contains neither {' nor '.join(_FILES)}")
    found = dict(read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path))
    weight = found.get("linear.weight")
    if weight is None or len(weight.shape) != 2 or weight.shape[1] != d_model:
        shape = None if weight is None else tuple(weight.shape)
        raise InputError(
            f"{path}: linear.weight has shape {shape}, but the encoder's hidden states have "
            f"size {d_model}"
        )
    size = int(weight.shape[0])
    tensors = {"linear.weight": np.asarray(weight)}
    has_bias = config.get("bias", "linear.bias" in found) is not False
    if not has_bias and "linear.bias" in found:
        raise InputError(f"{path}: contains linear.bias, but {where} has bias false")
    if has_bias:
        tensors["linear.bias"] = np.asarray(found.get("linear.bias", np.zeros(size, np.float32)))
    if has_bias and tensors["linear.bias"].shape != (size,):
        raise InputError(
            f"{path}: linear.bias has shape {tensors['linear.bias'].shape}, but must have {(size,)}"
        )
    start = f"{HEADS}{Dense().name}/query"
    shapes: dict[str, tuple[int, ...]] = {f"{start}/kernel": (d_model, size)}
    shapes |= {f"{start}/bias": (size,)} if has_bias else {}
    return Projection(
        where=path,
        shapes=shapes,
        pieces=pieces(
            [rule for rule in dense_rules(start, "linear") if rule.ours in shapes], shapes
        ),
        tensors=tensors,
        size=size,
        activation=ACTIVATIONS[name],
        bias=has_bias,
    )


PROJECTION = "2_Dense"
"""Directory of the projection module in a sentence-transformers model."""
_MODULES = "sentence_transformers.models."
_KINDS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
_NAMES: dict[Pooling, str] = {"cls": "cls_token", "mean": "mean_tokens"}
_MODE = "pooling_mode_"
_CLASSES: dict[Projected, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}
_LIST = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_LENGTHS = tuple(
    f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "xlm-roberta", "distilbert")
)


def read_sentences(directory: Path, *, d_model: int, lowers: bool) -> Dense | None:
    """Read the head for text vectors from sentence-transformers' config files."""
    if not (directory / _LIST).is_file():
        return None
    modules = _modules(directory)
    kinds = [kind for kind, _ in modules]
    for kind, _ in modules:
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            raise InputError(
                f"{directory / _LIST}: the module {kind} is not supported, only Transformer, "
                "Pooling, Dense and Normalize"
            )
    rest = [["Dense"] * dense + ["Normalize"] * norm for dense in (0, 1) for norm in (0, 1)]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in rest:
        raise InputError(
            f"{directory / _LIST}: the modules must be Transformer, Pooling and optionally Dense "
            f"and Normalize, in this order; got {', '.join(kinds) or 'none'}"
        )
    if modules[0][1] not in ("", "."):
        raise InputError(
            f"{directory / _LIST}: the encoder is in {modules[0][1]}; move its files next to "
            f"{_LIST}, and set its path to ''"
        )
    prompts, default = _prompts(directory)
    pooling = _pooling(directory / modules[1][1] / "config.json", d_model=d_model, prompts=prompts)
    projection = projection_of(directory, d_model=d_model)
    own: dict[str, Any] = {}
    if projection is not None:
        own = {"projection": projection.size, "activation": projection.activation}
        own["projection_bias"] = projection.bias
    try:
        return Dense(
            **own,
            pooling=pooling,
            normalize="Normalize" in kinds,
            max_length=_longest(directory, lowers=lowers),
            prompts=prompts,
            default_prompt=default,
        )
    except InputError as error:
        raise InputError(f"{directory / _PROMPTS}: {error}") from error


def projection_of(directory: Path, *, d_model: int) -> Projection | None:
    """Return the projection of text vectors in a directory, or None."""
    if not (directory / _LIST).is_file():
        return None
    place = next((path for kind, path in _modules(directory) if kind == "Dense"), None)
    return None if place is None else read_projection(directory / place, d_model=d_model)


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Return the type and the path of each module in sentence-transformers' modules.json."""
    path = directory / _LIST
    try:
        content = plain_json(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON that can be read ({error})") from error
    modules = []
    for module in content if isinstance(content, list) else [None]:
        kind = module.get("type") if isinstance(module, dict) else None
        where = module.get("path", "") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not isinstance(where, str):
            raise InputError(
                f'{path}: the file must be a list of objects {{"type": ..., "path": ...}}'
            )
        inside(directory, where, where=path)
        modules.append((kind.rpartition(".")[2], where))
    return modules


def _pooling(path: Path, *, d_model: int, prompts: tuple[Prompt, ...]) -> Pooling:
    if not path.is_file():
        raise InputError(f"{path}: no such file, but it must define the pooling")
    config = read_json(path)
    modes = {
        name.removeprefix(_MODE) for name, on in config.items() if name.startswith(_MODE) and on
    }
    kinds: dict[str, Pooling] = {theirs: ours for ours, theirs in _NAMES.items()}
    if isinstance(mode := config.get("pooling_mode"), str):
        modes = {_NAMES["cls"] if mode == "cls" else _NAMES["mean"] if mode == "mean" else mode}
    if len(modes) != 1 or not modes <= set(kinds):
        raise InputError(
            f"{path}: the pooling {' and '.join(sorted(modes)) or 'none'} is not supported, only "
            "cls_token or mean_tokens"
        )
    size = config.get("word_embedding_dimension", config.get("embedding_dimension", d_model))
    if size != d_model:
        raise InputError(
            f"{path}: the dimension is {size!r}, but the encoder's hidden states have size "
            f"{d_model}"
        )
    if prompts and config.get("include_prompt", True) is not True:
        raise InputError(f"{path}: include_prompt false is not supported")
    return kinds[modes.pop()]


def _longest(directory: Path, *, lowers: bool) -> int | None:
    """Return the maximum text length in tokens of a sentence-transformers model, or None."""
    path = next((directory / name for name in _LENGTHS if (directory / name).is_file()), None)
    if path is not None:
        config = read_json(path)
        if config.get("do_lower_case") and not lowers:
            raise InputError(
                f"{path}: do_lower_case is true, but the tokenizer does not lower-case "
                "text, which is not supported"
            )
        longest = config.get("max_seq_length")
        if longest is not None:
            if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
                raise InputError(f"{path}: max_seq_length must be a whole number, got {longest!r}")
            return longest
    tokenizer = directory / "tokenizer_config.json"
    said = read_json(tokenizer).get("model_max_length") if tokenizer.is_file() else None
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return int(said) if 1 <= said < LARGEST else None  # 1e30 means no limit


def _prompts(directory: Path) -> tuple[tuple[Prompt, ...], str]:
    """Return the prompts of a sentence-transformers model, and the name of the default prompt."""
    path = directory / _PROMPTS
    if not path.is_file():
        return (), ""
    config = read_json(path)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name") or ""
    texts = prompts.values() if isinstance(prompts, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or not isinstance(default, str):
        raise InputError(f"{path}: prompts must map names to texts, got {str(prompts)[:60]!r}")
    if default and default not in prompts:
        raise InputError(f"{path}: default_prompt_name is {default!r}, but no prompt has this name")
    found = tuple(Prompt(name=name, text=text) for name, text in sorted(prompts.items()) if text)
    return found, default if prompts.get(default) else ""


def sentence_files(head: Dense, *, d_model: int, max_length: int) -> dict[str, bytes]:
    """Return the config files of sentence-transformers by path, for a text vector head."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if head.projection is not None:
        modules.append((PROJECTION, "Dense"))
    if head.normalize:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    projection = {
        "in_features": d_model,
        "out_features": head.projection,
        "bias": head.projection_bias,
        "activation_function": _CLASSES[head.activation],
    }
    pooling: dict[str, Any] = {"word_embedding_dimension": d_model}
    for kind in _KINDS:
        pooling[f"{_MODE}{kind}"] = kind == _NAMES[head.pooling]
    prompts = {"query": "", "document": ""}
    prompts |= {prompt.name: prompt.text for prompt in head.prompts}
    contents: Mapping[str, Any] = {
        _LIST: [
            {"idx": i, "name": str(i), "path": path, "type": _MODULES + name}
            for i, (path, name) in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": pooling,
        _PROMPTS: {
            "prompts": prompts,
            "default_prompt_name": head.default_prompt or None,
            "similarity_fn_name": "cosine" if head.normalize else "dot",
        },
        **({f"{modules[-1][0]}/config.json": {}} if head.normalize else {}),
        **({} if head.projection is None else {f"{PROJECTION}/config.json": projection}),
    }
    return {
        name: json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n"
        for name, content in contents.items()
    }
