"""Import and export of sentence-transformers: config files and the Dense projection.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import inside, plain_json
from t5x_lite.interop.encoders import dense_rules
from t5x_lite.interop.hf import LARGEST, read_json
from t5x_lite.interop.rules import Piece, Source, check_finite, pieces
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.interop.torch_files import read_torch
from t5x_lite.models.heads import HEADS
from t5x_lite.models.towers import Pooling
from t5x_lite.models.vector_heads import Dense, Projected, Prompt

ACTIVATIONS: dict[str, Projected] = {"Identity": "identity", "Tanh": "tanh"}
"""Activations of a `Dense` head, by name of the PyTorch class."""
_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Projection(Source):
    """Projection of text vectors in a directory of sentence-transformers.

    Attributes:
      size: output size, k.
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
    """Read the projection of text vectors in a directory 2_Dense."""
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
    """Read a `Dense` head from sentence-transformers' config files; None without modules.json."""
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
    """Return the projection of text vectors of a directory, or None if modules.json has none."""
    if not (directory / _LIST).is_file():
        return None
    place = next((path for kind, path in _modules(directory) if kind == "Dense"), None)
    return None if place is None else read_projection(directory / place, d_model=d_model)


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Return type and path of each sentence-transformers module in modules.json."""
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
            raise InputError(f'{path}: must be a list of {{"type": ..., "path": ...}}')
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
    """Return the maximum text length in tokens, or None if no config file sets it."""
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
    """Return the prompts that are not empty, and the name of the default prompt, or ""."""
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
    """Return the contents of sentence-transformers' config files for a `Dense` head, by path."""
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
