"""Import of PEFT's directories: LoRA, with rsLoRA and DoRA, (IA)^3, heads, base arrays.

Contents of PEFT directories: checks of adapter_config.json, heads and base arrays.

    base_model.model.classifier.weight            heads/classifier/out/kernel
    base_model.model.bert.pooler.dense.weight     heads/classifier/dense/kernel

Settings of adapter_config.json that cannot be converted raise an error. modules_to_save contains
heads and arrays of the base model. The head of a directory may be incomplete: by default PEFT does
not save BERT's pooler, so the base's pooler is used. Arrays of the base are, for example, an
embedding with added tokens, the output layer of a T5, and norms.

Import of PEFT's adapters: LoRA, with rsLoRA and DoRA, and (IA)^3.

    adapter_config.json            {"peft_type": "LORA", "r": 8, "lora_alpha": 16, ...}
    adapter_model.safetensors      base_model.model.HOST.lora_A.weight [r, in]; or .bin

HOST is Hugging Face's name of a dense layer (`interop.module_hosts`). N is the number of layers.

| PEFT tensor | parameter, below adapters/NAME/STACK/SITE |
|---|---|
| lora_A.weight [r, in], lora_B.weight [out, r] | a [N, in, r], b [N, r, out] |
| lora_magnitude_vector [out], of DoRA | magnitude [N, out], minus the column norms of the base |
| ia3_l [out, 1] | scale [N, out] of the layer's output |
| ia3_l [1, in], of feedforward_modules | scale [N, in] of the layer's input, at mlp/hidden |
| base_model.model.classifier.weight, of modules_to_save | heads/classifier/out/kernel |

An adapter of t5x_lite has the same sites in each layer and stack. A file may lack some of them
(layers_to_transform, a regular expression); there A and B are zeros, which have zero gradients.
rank_pattern and alpha_pattern become the fields of these names, with the paths of t5x_lite.

Unsupported settings raise an error: a bias, an initialization that changes the base (pissa, olora,
corda, loftq), trained tokens, replicated layers. `interop.peft_prompts` converts prompts and
prefixes, and `interop.peft_writing` exports adapters. Source: huggingface/peft 0.21, config.py,
tuners/lora, tuners/ia3, utils/save_and_load.py.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.lora import Ia3, Lora, layer_paths
from t5x_lite.core import trees
from t5x_lite.core import trees as patterns
from t5x_lite.core.errors import InputError, shown
from t5x_lite.interop import hf
from t5x_lite.interop.encoder_checkpoints import FAMILIES, Hosts, with_family
from t5x_lite.interop.encoders import MODEL, SUFFIXES
from t5x_lite.interop.hf import LARGEST, read_json
from t5x_lite.interop.rules import LAYER, Rule, check_finite, check_shape
from t5x_lite.interop.tensor_files import read_safetensors, read_torch
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import is_encoder
from t5x_lite.models.heads import Head, Mlm
from t5x_lite.models.t5 import T5Config

_logger = logging.getLogger(__name__)


CONFIG = "adapter_config.json"

_COSTLY = 3
"""Maximum number of slow regular expressions in PEFT's rank_pattern or alpha_pattern."""
_LATER = ("P_TUNING", "MULTITASK_PROMPT_TUNING")
_METHODS = ("LORA", "IA3")
_HARMLESS = (
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
    *("revision", "inference_mode", "modules_to_save", "target_modules", "exclude_modules"),
    *("init_ia3_weights", "init_lora_weights", "feedforward_modules"),
    *("layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"),
    # Settings of an initialization in `init_lora_weights`, or of something that the file lacks.
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core"),
    *("megatron_config", "qalora_group_size", "runtime_config"),
)
_OFF = {"bias": ("none",)}
"""Values that disable a field of adapter_config.json, in addition to null, false and empty."""
_LEAVES_THE_BASE = (None, True, False, "gaussian", "orthogonal", "eva")


def read_config(directory: Path) -> dict[str, Any]:
    """Read adapter_config.json; raise InputError if the adapter cannot be converted."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory")
    where = directory / CONFIG
    if not where.is_file():
        raise InputError(
            f"{directory}: contains no {CONFIG}; pass a directory that PEFT or the library "
            "`adapters` wrote"
        )
    config = read_json(where)
    kind = config.get("peft_type")
    if kind in _LATER:
        raise InputError(
            f"{where}: peft_type {kind} is not supported, only LoRA, (IA)^3, prompt and prefix "
            "tuning"
        )
    if kind not in _METHODS:
        raise InputError(
            f"{where}: peft_type {kind!r} is not supported, only {' and '.join(_METHODS)}"
        )
    for name, value in config.items():
        if name not in _HARMLESS and value and value not in _OFF.get(name, ()):
            raise InputError(f"{where}: {name} {str(value)[:60]!r} is not supported")
    initial = config.get("init_lora_weights", True)
    if not any(initial is each or initial == each for each in _LEAVES_THE_BASE):
        raise InputError(
            f"{where}: init_lora_weights {initial!r} changes the base, so this LoRA does not "
            "fit the original base; convert it by saving it in PEFT with "
            "path_initial_model_for_weight_conversion"
        )
    for name in ("use_rslora", "use_dora"):
        if not isinstance(config.get(name) or False, bool):
            raise InputError(f"{where}: {name} must be true or false, got {config[name]!r}")
    return config


def number_of(where: object, name: str, value: Any, *, least: int | float) -> Any:
    """Return a number from adapter_config.json; raise InputError if it is out of range."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < LARGEST:
        raise InputError(
            f"{where}: {name} must be a number of at least {least}, got {str(value)[:60]!r}"
        )
    return value


def of_pattern(
    where: object, config: Mapping[str, Any], field: str, name: str, default: Any
) -> Any:
    """Return the rank or alpha of one layer from PEFT's rank_pattern or alpha_pattern."""
    patterns = config.get(field) or {}
    if not isinstance(patterns, dict):
        raise InputError(f"{where}: {field} must be an object, got {str(patterns)[:60]!r}")
    costly = [each for each in patterns if not _is_simple(where, field, each)]
    if len(costly) > _COSTLY:
        raise InputError(
            f"{where}: {field} has {len(costly)} regular expressions that can match in "
            f"too many ways, such as {shown(costly[0])}; simplify them"
        )
    for pattern, value in patterns.items():
        if _matches(where, field, pattern, name, start=r"(?:.*\.)?"):
            return value
    return default


def is_target(where: object, config: Mapping[str, Any], field: str, name: str) -> bool:
    """Return True if target_modules or exclude_modules matches a layer."""
    targets = config.get(field)
    if isinstance(targets, str):
        return _matches(where, field, targets, name)
    if targets is None:
        return False
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise InputError(
            f"{where}: {field} must be a list of names or a regular expression, got "
            f"{str(targets)[:60]!r}"
        )
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _is_simple(where: object, field: str, pattern: str) -> bool:
    patterns.check(f"{where}: {field}", pattern)
    return patterns.is_simple(pattern)


def _matches(where: object, field: str, pattern: str, name: str, *, start: str = "") -> bool:
    patterns.check(f"{where}: {field}", pattern)
    try:
        return patterns.fullmatch(f"{start}(?:{pattern})", name)
    except InputError as error:
        raise InputError(f"{where}: {field}: {error}") from error


def targets_of(chosen: Iterable[str], known: Iterable[str]) -> list[str] | str:
    """Return PEFT's target_modules, which match exactly the chosen layers."""
    wanted, all_names = set(chosen), set(known)
    short = sorted({_short(name) for name in wanted})
    if {n for n in all_names if n.endswith(tuple(f".{end}" for end in short))} == wanted:
        return short
    return expression_of(wanted, all_names)


def expression_of(chosen: Iterable[str], known: Iterable[str]) -> str:
    """Return a regular expression that matches exactly the chosen layers."""
    wanted, all_names = set(chosen), set(known)
    layers: dict[tuple[str, str], set[int]] = {}
    everywhere: dict[tuple[str, str], set[int]] = {}
    for table, names in ((layers, wanted), (everywhere, all_names)):
        for name in names:
            before, layer, after = re.split(r"\.(\d+)\.", name, maxsplit=1)
            table.setdefault((before, after), set()).add(int(layer))
    alternatives = []
    for (before, after), numbers in sorted(layers.items()):
        which = r"\d+"
        if numbers != everywhere[before, after]:
            which = f"(?:{'|'.join(map(str, sorted(numbers)))})"
        body = before[max(before.find("encoder"), before.find("decoder")) :]
        alternatives.append(rf"{re.escape(body)}\.{which}\.{re.escape(after)}")
    return rf"(?:.*\.)?(?:{'|'.join(alternatives)})"


def _short(name: str) -> str:
    parts = name.split(".")
    return parts[-1] if parts[-1] != "dense" else ".".join(parts[-2:])


TASKS = {"SEQ_CLS": "classifier", "TOKEN_CLS": "token", "QUESTION_ANS": "span"}
"""Names of t5x_lite heads, by PEFT's task_type."""
_OUTPUTS = tuple(name for family in FAMILIES for name in family.copies)
"""Names of the copies of the token embedding in transformers' masked language model heads."""


def head_of(
    where: Path,
    said: Mapping[str, Any],
    kept: Mapping[str, np.ndarray],
    *,
    model: ModelConfig,
    model_type: str | None,
    heads: Mapping[str, Head],
) -> Head | None:
    """Return the config of the task head that a PEFT directory contains, or None."""
    if not kept or not is_encoder(model):
        return None
    encoder, family = with_family(model, where=where)
    task = TASKS.get(str(said.get("task_type")))
    known = [name for name in heads if name in SUFFIXES]
    if task is None and len(known) == 1:
        [task] = known
    kind = model_type or str(family.from_model(encoder, None, None)["model_type"])
    classes = {"architectures": [SUFFIXES[task]]} if task else {}
    config = {**classes, **{k: v for k, v in said.items() if k in _OF_HEADS}, "model_type": kind}
    own_names = {name for rule in family.table(encoder, None, kind) for name in _names(rule)}
    own = {name: x for name, x in kept.items() if not _is_of(name, own_names)}
    if not own:
        return None
    head = family.head_of(where, config, own)
    names = {name for rule in family.table(encoder, head, kind) for name in _names(rule)}
    if head is None or not family.heads(head) or not any(map(names.__contains__, own)):
        raise InputError(
            f"{where}: {min(own)} in modules_to_save belongs to no supported task head; check "
            f"that task_type is one of {', '.join(TASKS)}"
        )
    base = heads.get(head.name)
    if base is None or _classes(base) != _classes(head):
        return head
    return head if getattr(head, "labels", ()) else base


_OF_HEADS = ("architectures", "id2label", "problem_type")


def _names(rule: Rule) -> tuple[str, ...]:
    return (rule.theirs, *rule.aliases)


def _is_of(name: str, rules: Collection[str]) -> bool:
    return name in rules or re.sub(r"\.\d+\.", f".{LAYER}.", name, count=1) in rules


def _classes(head: Head) -> Any:
    return next((v for k, v in vars(head).items() if k == "num_classes"), None)


def head_arrays(where: Path, kept: Mapping[str, np.ndarray], hosts: Hosts) -> dict[str, np.ndarray]:
    """Return the arrays of a PEFT directory's task head by parameter path."""
    left, arrays = dict(kept), {}
    for piece in hosts.pieces:
        names = [name for name in (piece.name, *piece.aliases) if name in left]
        if names:
            tensor = left.pop(names[0])
            for name in names[1:]:
                if not np.array_equal(left.pop(name), tensor):
                    raise InputError(
                        f"{where}: the head tensors {name} and {names[0]} must be equal, but "
                        "differ; remove one of them"
                    )
            check_shape(where, piece, tensor.shape)
            arrays[piece.path] = np.ascontiguousarray(piece.to_ours(tensor))
    known = {name for piece in hosts.base for name in (piece.name, *piece.aliases)}
    is_t5 = any(stack == "decoder" for stack, _ in hosts.kernels)
    known |= {hf.HEAD} if is_t5 else set(_OUTPUTS)
    if odd := sorted(set(left) - known):
        raise InputError(
            f"{where}: {odd[0]} in modules_to_save belongs neither to the base model, nor to "
            "the head of task_type"
        )
    return arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseChange:
    """Arrays of the base model that a PEFT directory replaces (modules_to_save).

    Attributes:
      model: config of the model after the replacement.
      arrays: float32 arrays by parameter path.
    """

    model: ModelConfig
    arrays: Mapping[str, np.ndarray]


def base_change(
    where: Path,
    kept: Mapping[str, np.ndarray],
    hosts: Hosts,
    *,
    model: ModelConfig,
    scaled: bool,
    read: Callable[[str], np.ndarray],
) -> BaseChange:
    """Return the arrays of the base model that a PEFT directory replaces (modules_to_save)."""
    own = {name for piece in hosts.pieces for name in (piece.name, *piece.aliases)}
    left = {name: x for name, x in kept.items() if name not in own}
    if not left:
        return BaseChange(model=model, arrays={})
    if isinstance(model, T5Config):
        model, arrays = _t5_tables(where, left, model, scaled=scaled, read=read)
    else:
        model, arrays = _encoder_table(where, left, hosts, model, read=read)
    by_name = {name: piece for piece in hosts.base for name in (piece.name, *piece.aliases)}
    for name, tensor in left.items():
        piece = by_name[name]
        check_shape(where, piece, tensor.shape)
        if piece.layer is None:
            arrays[piece.path] = np.ascontiguousarray(piece.to_ours(tensor))
            continue
        if piece.path not in arrays:
            arrays[piece.path] = np.array(read(piece.path), np.float32)
        arrays[piece.path][piece.layer] = piece.to_ours(tensor)
    return BaseChange(model=model, arrays=arrays)


def _t5_tables(
    where: Path,
    left: dict[str, np.ndarray],
    model: T5Config,
    *,
    scaled: bool,
    read: Callable[[str], np.ndarray],
) -> tuple[T5Config, dict[str, np.ndarray]]:
    """Convert the embedding and the output layer of a T5 from PEFT's tensors."""
    d_model, arrays = model.d_model, {}
    shared, head = left.pop(hf.EMBEDDING, None), left.pop(hf.HEAD, None)
    copies = [left.pop(name) for name in hf.COPIES if name in left]
    for tensor in (shared, head, *copies):
        if tensor is not None and (tensor.ndim != 2 or tensor.shape[1] != d_model):
            raise InputError(
                f"{where}: an embedding has shape {tensor.shape}, but must have d_model = "
                f"{d_model} columns"
            )
    if copies and (len(copies) < 2 or not np.array_equal(copies[0], copies[1])):
        raise InputError(
            f"{where}: the embeddings of encoder and decoder (embed_tokens in modules_to_save) "
            "must be equal, but differ"
        )
    table = read(f"{MODEL}token_embedding/table")
    if copies:
        new = copies[0]
    elif shared is not None and len(shared) != len(table):
        new = shared  # has another number of rows; PEFT copies it to both stacks before training
    else:
        new = None
        if shared is not None and not np.array_equal(shared, table):
            _logger.warning(
                "%s: skipping %s, because transformers reads embed_tokens in encoder and "
                "decoder instead",
                where,
                hf.EMBEDDING,
            )
    rows = len(table) if new is None else len(new)
    factor = np.float32(d_model**-0.5 if scaled else 1.0)
    if head is not None and len(head) != rows:
        raise InputError(
            f"{where}: the output layer {hf.HEAD} has {len(head)} rows, but the embedding has "
            f"{rows}"
        )
    tied = model.tie_embeddings
    if head is None and new is not None and rows != len(table) and (copies or not tied):
        raise InputError(
            f"{where}: the embedding has {rows} rows, but the output layer of the base has "
            f"{len(table)}; save the adapter with lm_head in modules_to_save"
        )
    if head is None and tied and copies:
        head = table
    if new is not None and not np.array_equal(new, table):
        arrays[f"{MODEL}token_embedding/table"] = np.asarray(new, np.float32)
    if head is not None:
        is_tied = tied and np.array_equal(head, table if new is None else new)
        if not is_tied:
            tied = False
            arrays[f"{MODEL}lm_head/kernel"] = np.ascontiguousarray((head * factor).T)
    return model.replace(tie_embeddings=tied, vocab_size=rows), arrays


def _encoder_table(
    where: Path,
    left: dict[str, np.ndarray],
    hosts: Hosts,
    model: ModelConfig,
    *,
    read: Callable[[str], np.ndarray],
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Convert the token embedding of an encoder from PEFT's tensors."""
    path = f"{MODEL}embedding/token"
    names = [name for p in hosts.base if p.path == path for name in (p.name, *p.aliases)]
    found = [left.pop(name) for name in names if name in left]
    outputs = {name: left.pop(name) for name in _OUTPUTS if name in left}
    table = read(path)
    new = found[0] if found else table
    if new.ndim != 2 or new.shape[1] != table.shape[1]:
        raise InputError(
            f"{where}: the embedding has shape {new.shape}, but the embedding of the base has "
            f"{table.shape}"
        )
    for name, output in outputs.items():
        if hosts.head is not None and not np.array_equal(output, new):
            raise InputError(
                f"{where}: {name} differs from the embedding, but a masked language model head "
                "must share the embedding"
            )
    if np.array_equal(new, table):
        return model, {}
    tied = hosts.head is not None and hosts.head.name == Mlm().name
    if tied and not outputs:
        raise InputError(
            f"{where}: modules_to_save replaces the embedding but not the output layer of the "
            "masked language model; they must be equal, so save both"
        )
    return model.replace(vocab_size=len(new)), {path: np.asarray(new, np.float32)}


def changed_base(
    arrays: Mapping[str, np.ndarray], hosts: Hosts, *, scaled: bool, where: object
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Convert trained arrays of the base model for PEFT; return tensors and modules_to_save."""
    tensors: dict[str, np.ndarray] = {}
    modules: list[str] = []
    by_path = {piece.path: piece for piece in hosts.base}
    for path in (path for path in arrays if path.startswith(MODEL)):
        if path == f"{MODEL}token_embedding/table":
            tensors |= dict.fromkeys(hf.COPIES, arrays[path])
            modules.append("embed_tokens")
        elif path == f"{MODEL}lm_head/kernel":
            d_model = arrays[path].shape[0]
            factor = np.float32(d_model**0.5 if scaled else 1.0)
            tensors[hf.HEAD] = (arrays[path] * factor).T
            modules.append("lm_head")
        elif path == f"{MODEL}embedding/token":
            name = by_path[path].name
            tensors[name] = arrays[path]
            modules.append("word_embeddings")
        else:
            raise InputError(
                f"checkpoint {where}: {path} was trained together with the adapter, but PEFT "
                "cannot store it; export the merged model with `t5x-lite export hf`"
            )
    return tensors, modules


SAFETENSORS = "adapter_model.safetensors"
_TORCH = "adapter_model.bin"
PREFIX = "base_model.model."
MAGNITUDE, SCALE = "lora_magnitude_vector", "ia3_l"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a LoRA layer (A, B or magnitude), with its conversion to and from PEFT.

    Attributes:
      ours: name of the array in t5x_lite.
      theirs: suffix of the tensor name in PEFT.
      axes: names of the axes in PEFT; t5x_lite has them in reverse order.
      scaled: True to import the array as zeros for layers with alpha 0.
      less_norms: True to subtract the column norms of the base model's kernel.
    """

    ours: str
    theirs: str
    axes: tuple[str, ...]
    scaled: bool = False
    less_norms: bool = False

    def shape(self, **sizes: int) -> tuple[int, ...]:
        return tuple(sizes[axis] for axis in self.axes)

    def of_layer(self, layer: int, *, rank: int) -> tuple[int | slice, ...]:
        """Return the index of a layer's values in a stacked array of t5x_lite."""
        return (layer, *(slice(rank) if axis == "r" else slice(None) for axis in self.axes[::-1]))

    def to_ours(self, tensor: np.ndarray, *, factor: np.float32, norms: Any) -> np.ndarray:
        array = tensor.T * factor if self.scaled else tensor.T
        return array - norms if self.less_norms else array

    def to_theirs(self, array: np.ndarray, *, norms: Any) -> np.ndarray:
        return (array + norms if self.less_norms else array).T


_A, _B = Leaf("a", "lora_A.weight", ("r", "in")), Leaf("b", "lora_B.weight", ("out", "r"), True)
_DIRECTION = Leaf("magnitude", MAGNITUDE, ("out",), less_norms=True)


def lora_leaves(*, dora: bool) -> tuple[Leaf, ...]:
    """Return the arrays of a LoRA layer: A and B, and the magnitude for DoRA."""
    return (_A, _B, _DIRECTION) if dora else (_A, _B)


_LEAVES = {"LORA": tuple(leaf.theirs for leaf in lora_leaves(dora=True)), "IA3": (SCALE,)}
"""Suffixes of PEFT's tensor names, by peft_type."""
HIDDEN = {"mlp/out": "mlp/hidden", "attention/out": "attention/hidden"} | {
    "cross_attention/out": "cross_attention/hidden"
}
"""Adapter site of the input of a dense layer, by adapter site of the layer."""

Site = tuple[str, str]
"""Stack ("encoder" or "decoder") and adapter site (such as "mlp/out") of a dense layer."""
Norms = Callable[[Site], np.ndarray]
"""Function (adapter site) -> column norms [N, out] of its base kernel, for DoRA."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeftFile:
    """PEFT directory with a LoRA or (IA)^3 adapter.

    Attributes:
      where: file of the tensors.
      config_file: adapter_config.json.
      config: content of adapter_config.json.
      tensors: float32 tensors by name without "base_model.model.".
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    library: ClassVar[str] = "peft"
    """Folder of an imported checkpoint that keeps adapter_config.json."""

    @property
    def leaves(self) -> tuple[str, ...]:
        return _LEAVES[self.config["peft_type"]]

    def kept(self) -> dict[str, np.ndarray]:
        """Return the tensors of PEFT's modules_to_save, such as a task head."""
        ends = tuple(f".{leaf}" for leaf in self.leaves)
        return {name: array for name, array in self.tensors.items() if not name.endswith(ends)}

    def head_config(self) -> Mapping[str, Any]:
        """Return the fields of adapter_config.json that describe a task head."""
        return {"task_type": self.config.get("task_type")}

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> "Module":
        return to_module(self, hosts, name=name, norms=norms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
    """One or more imported adapters in t5x_lite's layout, with their head and composition.

    Attributes:
      adapter: config of the adapter.
      arrays: float32 arrays of the adapters and of an imported task head, by parameter path.
      others: configs of further adapters.
      use: composition of the adapters, such as "Stack(a, b)".
      head: config of an imported task head, or None.
    """

    adapter: Adapter
    arrays: Mapping[str, np.ndarray]
    others: Sequence[Adapter] = ()
    use: str = ""
    head: Head | None = None


def read_peft(directory: Path) -> PeftFile:
    """Read a PEFT directory with a LoRA or (IA)^3 adapter."""
    config = read_config(directory)
    path, arrays = arrays_of(directory)
    tensors: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not name.startswith(PREFIX):
            raise InputError(f"{path}: the tensor name {name} must begin with {PREFIX}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(
                f"{path}: {name} has dtype {array.dtype}, but weights must be floating-point"
            )
        check_finite(path, name, array)
        # Files from before 0.12 store DoRA's magnitudes as parameters of a module.
        short = name.removeprefix(PREFIX).replace(f"{MAGNITUDE}.weight", MAGNITUDE)
        tensors[short] = np.asarray(array, np.float32)
    return PeftFile(where=path, config_file=directory / CONFIG, config=config, tensors=tensors)


def arrays_of(directory: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the tensor file of a PEFT directory, and its tensors by name."""
    path, torch = directory / SAFETENSORS, directory / _TORCH
    if path.is_file():
        return path, read_safetensors(path)
    if torch.is_file():
        return torch, read_torch(torch)
    raise InputError(f"{directory}: contains neither {SAFETENSORS} nor {_TORCH}")


def to_module(file: PeftFile, hosts: Hosts, *, name: str, norms: Norms) -> Module:
    """Convert a LoRA or (IA)^3 of PEFT into a t5x_lite adapter."""
    by_layer, names = _by_place(file, hosts)
    if file.config["peft_type"] == "IA3":
        adapter, arrays = _to_ia3(file, hosts, by_layer, name=name)
    else:
        adapter, arrays = _to_lora(file, hosts, by_layer, name=name, names=names, norms=norms)
    module = {
        f"{ADAPTERS}{name}/{stack}/{site}/{leaf}": array
        for (stack, site, leaf), array in arrays.items()
    }
    return Module(adapter=adapter, arrays={**module, **head_arrays(file.where, file.kept(), hosts)})


def _by_place(
    file: PeftFile, hosts: Hosts
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
    by_layer: dict[str, dict[str, np.ndarray]] = {}
    names: dict[str, str] = {}
    prefix = ""
    for name, array in file.tensors.items():
        leaf = next((leaf for leaf in file.leaves if name.endswith(f".{leaf}")), None)
        if leaf is None:
            if "lora_" in name or "ia3_" in name:
                raise InputError(f"{file.where}: the tensor {name} belongs to no supported adapter")
            continue
        layer = name.removesuffix(f".{leaf}")
        hit = hosts.find(layer)
        if hit is None:
            raise InputError(
                f"{file.where}: {name} belongs to the layer {layer}, but the base has no such "
                "dense layer that supports adapters"
            )
        written, prefix = hit
        names[written] = layer
        if leaf in by_layer.setdefault(written, {}):
            raise InputError(
                f"{file.where}: {name} belongs to a layer that the file also has under another name"
            )
        by_layer[written][leaf] = array
    if not by_layer:
        raise InputError(
            f"{file.where}: contains no adapter tensor, such as {' or '.join(file.leaves)}"
        )
    _check_targets(file, hosts, by_layer, prefix=prefix)
    wanted = {SCALE} if file.config["peft_type"] == "IA3" else {_A.theirs, _B.theirs}
    if file.config.get("use_dora"):
        wanted.add(MAGNITUDE)
    for written, leaves in by_layer.items():
        if difference := trees.difference(wanted, leaves):
            raise InputError(
                f"{file.where}: the tensors of the layer {written} are incomplete or unknown: "
                f"{difference}"
            )
    return by_layer, names


def _check_targets(
    file: PeftFile, hosts: Hosts, by_layer: Mapping[str, Any], *, prefix: str
) -> None:
    config, where = file.config, file.config_file
    if config.get("target_modules") is None:
        return
    bodies = {written: prefix + body for body, written in hosts.bodies.items()}
    named = [
        written
        for written, body in bodies.items()
        if is_target(where, config, "target_modules", body)
        and not is_target(where, config, "exclude_modules", body)
    ]
    if config.get("layers_to_transform") is not None:  # only some of the named layers
        named = [written for written in named if written in by_layer]
    if difference := trees.difference(named, by_layer):
        raise InputError(f"{file.where}: the layers do not match target_modules: {difference}")


def _to_lora(
    file: PeftFile,
    hosts: Hosts,
    by_layer: Mapping[str, Mapping[str, np.ndarray]],
    *,
    name: str,
    names: Mapping[str, str],
    norms: Norms,
) -> tuple[Lora, dict[tuple[str, str, str], np.ndarray]]:
    config, where = file.config, file.config_file
    stabilised, dora = bool(config.get("use_rslora")), bool(config.get("use_dora"))
    dropout = number_of(where, "lora_dropout", config.get("lora_dropout") or 0, least=0)
    rank = number_of(where, "r", config.get("r", 8), least=1)
    alpha = number_of(where, "lora_alpha", config.get("lora_alpha", 8), least=1e-6)
    ranks, alphas = {}, {}
    for written in by_layer:
        ranks[written] = of_pattern(where, config, "rank_pattern", names[written], rank)
        ranks[written] = number_of(where, "rank_pattern", ranks[written], least=1)
        alphas[written] = of_pattern(where, config, "alpha_pattern", names[written], alpha)
        alphas[written] = number_of(where, "alpha_pattern", alphas[written], least=0)
    _check_lora(file, hosts, by_layer, ranks)
    ranks = {written: int(r) for written, r in ranks.items()}
    used = {written: float(a) for written, a in alphas.items() if a}
    common_rank, common = _common(ranks, int(rank)), _common(used, float(alpha))
    made = Lora(
        name=name,
        rank=common_rank,
        alpha=common,
        rank_pattern=_patterns(ranks, common_rank, hosts),
        alpha_pattern=_patterns(used, common, hosts),
        rank_stabilised=stabilised,
        dropout=float(dropout),
        dora=dora,
        **_sites(hosts, by_layer, default=Lora().sites),
    )
    arrays: dict[tuple[str, str, str], np.ndarray] = {}
    for site in _all_sites(hosts, by_layer):
        layers, features_in, features_out = hosts.kernels[site]
        for leaf in lora_leaves(dora=dora):
            r = max(map(made.rank_at, layer_paths(*site, layers)))
            shape = leaf.shape(r=r, **{"in": features_in, "out": features_out})[::-1]
            arrays[*site, leaf.ours] = np.zeros((layers, *shape), np.float32)
    for written, tensors in by_layer.items():
        place, factor = hosts.places[written], np.float32(written in used)
        site = (place.stack, place.site)
        norm = norms(site)[place.layer] if dora else None
        for leaf in lora_leaves(dora=dora):
            array = leaf.to_ours(tensors[leaf.theirs], factor=factor, norms=norm)
            arrays[*site, leaf.ours][(place.layer, *map(slice, array.shape))] = array
    return made, arrays


def _common(values: Mapping[str, Any], default: Any) -> Any:
    """Return the value that all layers have, or the default if their values differ."""
    [value, *others] = {*values.values()} or {default}
    return default if others else value


def _patterns(
    values: Mapping[str, Any], default: float | int, hosts: Hosts
) -> tuple[tuple[str, Any], ...]:
    """Return (pattern, value) pairs for the layers with non-default values."""
    layers: dict[tuple[str, str, Any], list[int]] = {}
    for written, value in values.items():
        if value != default:
            place = hosts.places[written]
            layers.setdefault((place.stack, place.site, value), []).append(place.layer)
    made = []
    for (stack, site, value), numbers in layers.items():
        some = "|".join(map(str, sorted(numbers)))
        which = ".*" if len(numbers) == hosts.kernels[stack, site][0] else f"({some})"
        made.append((f"{stack}/{which}/{site}", value))
    return tuple(made)


def _check_lora(
    file: PeftFile,
    hosts: Hosts,
    by_layer: Mapping[str, Mapping[str, np.ndarray]],
    ranks: Mapping[str, int | float],
) -> None:
    """Raise InputError if LoRA tensors have wrong shapes or are missing."""
    dora = bool(file.config.get("use_dora"))
    if dora:
        _check_everywhere(file, hosts, by_layer)
    for written, tensors in by_layer.items():
        place = hosts.places[written]
        _, features_in, features_out = hosts.kernels[place.stack, place.site]
        sizes = {"r": int(ranks[written]), "in": features_in, "out": features_out}
        for leaf in lora_leaves(dora=dora):
            name = f"{written}.{leaf.theirs}"
            _check_shape(file, name, tensors[leaf.theirs], leaf.shape(**sizes))


def _to_ia3(
    file: PeftFile, hosts: Hosts, by_layer: Mapping[str, Mapping[str, np.ndarray]], *, name: str
) -> tuple[Ia3, dict[tuple[str, str, str], np.ndarray]]:
    _check_everywhere(file, hosts, by_layer)
    arrays: dict[tuple[str, str, str], np.ndarray] = {}
    outputs: dict[str, None] = {}
    for written, leaves in by_layer.items():
        place, tensor = hosts.places[written], leaves[SCALE]
        layers, features_in, features_out = hosts.kernels[place.stack, place.site]
        reads = tensor.shape == (1, features_in) and tensor.shape != (features_out, 1)
        if reads and place.site not in HIDDEN:
            raise InputError(
                f"{file.where}: the layer {written} is in feedforward_modules, but only the inputs "
                f"of {' and '.join(HIDDEN)} can be scaled"
            )
        if not reads:
            _check_shape(file, f"{written}.{SCALE}", tensor, (features_out, 1))
            outputs[place.site] = None
        site = HIDDEN[place.site] if reads else place.site
        key = (place.stack, site, "scale")
        if key not in arrays:
            arrays[key] = np.ones((layers, tensor.size), np.float32)
        arrays[key][place.layer] = tensor.reshape(-1)
    hidden = {site for _, site, _ in arrays if site.endswith("hidden")}
    attention = hidden - {"mlp/hidden"}
    if not outputs:
        raise InputError(
            f"{file.where}: the adapter scales no layer outputs; (IA)^3 adapters without output "
            "scales are not supported"
        )
    made = Ia3(
        name=name,
        feed_forward="mlp/hidden" in hidden,
        attention_out=bool(attention),
        **_named_sites(hosts, set(outputs), default=Ia3().sites),
    )
    crosses = any(site == "cross_attention/out" for _, site in hosts.kernels)
    if attention and crosses and len(attention) == 1:
        raise InputError(
            f"{file.where}: (IA)^3 must scale the input of the output layer in both attention "
            "and cross-attention, or in none, but scales only one"
        )
    return made, arrays


def _all_sites(hosts: Hosts, by_layer: Iterable[str]) -> list[Site]:
    sites = {hosts.places[written].site for written in by_layer}
    return [(stack, site) for stack, site in hosts.kernels if site in sites]


def _sites(hosts: Hosts, by_layer: Iterable[str], *, default: tuple[str, ...]) -> dict[str, Any]:
    sites = {hosts.places[written].site for written in by_layer}
    return _named_sites(hosts, sites, default=default)


def _named_sites(hosts: Hosts, sites: set[str], *, default: tuple[str, ...]) -> dict[str, Any]:
    all_sites = dict.fromkeys(site for _, site in hosts.kernels)
    usual = {site for site in all_sites if any(trees.covers(each, site) for each in default)}
    return {} if sites == usual else {"sites": tuple(site for site in all_sites if site in sites)}


def _check_everywhere(file: PeftFile, hosts: Hosts, by_layer: Mapping[str, Any]) -> None:
    """Raise InputError if some layers of a model have no adapter."""
    sites = {hosts.places[written].site for written in by_layer}
    wanted = [written for written, place in hosts.places.items() if place.site in sites]
    if difference := trees.difference(wanted, by_layer):
        what = "use_dora" if file.config["peft_type"] == "LORA" else "(IA)^3"
        raise InputError(
            f"{file.where}: the adapter ({what}) must be in all layers of encoder and decoder, but "
            f"is only in some: {difference}"
        )


def _check_shape(file: PeftFile, name: str, tensor: np.ndarray, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise InputError(
            f"{file.where}: the tensor {name} has shape {tensor.shape}, but its config and the "
            f"base require {shape}"
        )
