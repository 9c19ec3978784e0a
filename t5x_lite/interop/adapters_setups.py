"""Import and export of compositions of the library `adapters`: adapter_setup.json and its parts.

    DIR/adapter_setup.json      {"adapter_setup": {"type": "Fuse", "children": [...]}, ...}
    DIR/NAME/                   an adapter and its head, see `interop.adapters_library`
    DIR/"a,b"/                  a fusion: adapter_fusion_config.json and its tensors

| tensor, below SITE.adapter_fusion_layer.NAME | parameter, below adapters/fusion/TITLE/STACK/SITE |
|---|---|
| query.{weight, bias}, key.{weight, bias} | {query, key}/{kernel, bias} |
| value.weight, if the fusion is not static | value/kernel |

Each composition block (Stack, Fuse, ...) becomes the t5x_lite block of the same name. Two bugs of
the library are not copied: its blocks feed the input of their first adapter to all adapters, and
Average divides twice.
Source: adapter-hub/adapters 1.3, composition.py, loading.py, model_mixin.py (save_adapter_setup).
"""

import dataclasses
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.composition import (
    Average,
    BatchSplit,
    Block,
    Fuse,
    MultiTask,
    Parallel,
    Split,
    Stack,
    names_of,
    walk,
)
from t5x_lite.adapters.grammar import write_trees
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.files import inside
from t5x_lite.interop.adapters_heads import (
    ClassHeadFile,
    LibraryHead,
    is_whole,
    read_head,
    tensors_of,
)
from t5x_lite.interop.adapters_library import (
    LibraryDirectory,
    about,
    holders,
    read_library,
    site_of,
    to_module,
    with_head,
    write_library,
)
from t5x_lite.interop.encoder_checkpoints import Hosts
from t5x_lite.interop.hf import read_json
from t5x_lite.interop.peft import Module, Norms
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.tensor_files import write_torch
from t5x_lite.models.heads import Head

SETUP = "adapter_setup.json"

_logger = logging.getLogger(__name__)

FUSION_CONFIG = "adapter_fusion_config.json"
_SAFETENSORS, _TORCH = "model_adapter_fusion.safetensors", "pytorch_model_adapter_fusion.bin"
_FUSION = {
    "key": True,
    "query": True,
    "value": True,
    "query_before_ln": False,
    "residual_before": False,
    "temperature": False,
    "value_before_softmax": True,
    "value_initialized": True,
    "regularization": True,
    "dropout_prob": None,
}
_PREFIXES = {
    "bert": "bert.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
    "electra": "electra.",
    "deberta-v2": "deberta.",
    "t5": "transformer.",
    "mt5": "transformer.",
}
"""Prefix of the tensor names of each model_type. The library `adapters` writes this prefix before
the names of an adapter, but not of a fusion."""
_OF_TRAINING = ("value_initialized", "regularization", "dropout_prob")
_OPTIONS = {"Split": ("splits", "splits"), "BatchSplit": ("batch_sizes", "sizes")}
_OPTIONS |= {"Average": ("weights", "weights")}
"""Options of composition blocks: name in the library `adapters` and name in t5x_lite."""
_BLOCKS: dict[str, type[Block]] = {
    each.__name__: each for each in (Stack, Fuse, Split, BatchSplit, Parallel, MultiTask, Average)
}
_NESTED: dict[str, tuple[str, ...]] = {
    "Stack": ("Fuse", "Split", "Parallel", "BatchSplit", "Average", "MultiTask"),
    "Fuse": ("Stack",),
    "Split": ("Split", "Stack", "BatchSplit", "Average"),
    "Parallel": ("Stack", "BatchSplit", "Average"),
    "MultiTask": ("Stack", "Average", "Fuse"),
    "BatchSplit": ("Stack", "Split", "BatchSplit", "Average"),
    "Average": ("Stack", "Split", "BatchSplit"),
}
"""Composition blocks that the library allows inside each block, in addition to adapters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetupFile:
    """Composition of adapters, such as Stack(a, b), in a directory of the library `adapters`.

    Attributes:
      where: path of the directory.
      config_file: path of adapter_setup.json.
      config: content of adapter_setup.json.
      tree: the composition, with the adapter names that t5x_lite uses.
      modules: contents of the adapter directories, by the same adapter names.
      head: name of the adapter with the active task head, or None.
      class_head: task head of a transformers model class, or None.
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    tree: Block
    modules: Mapping[str, LibraryDirectory]
    head: str | None
    class_head: ClassHeadFile | None = None

    library: ClassVar[str] = "adapters"

    def kept(self) -> dict[str, np.ndarray]:
        return {} if self.class_head is None else dict(self.class_head.tensors)

    def head_config(self) -> Mapping[str, Any]:
        return {} if self.class_head is None else self.class_head.said()

    def without_kept(self) -> "SetupFile":
        return dataclasses.replace(self, class_head=None)

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> Module:
        del name, norms
        made = {own: to_module(file, hosts, name=own) for own, file in self.modules.items()}
        adapters = [each.adapter for each in made.values()]
        arrays = {path: x for each in made.values() for path, x in each.arrays.items()}
        for block in _fusions(self.tree):
            arrays |= self._fusion(block, hosts)
        module = Module(
            adapter=adapters[0], arrays=arrays, others=adapters[1:], use=write_trees((self.tree,))
        )
        file = self.modules.get(self.head or "")
        own = None if file is None else file.head
        return with_head(module, self.class_head or _library_head(own), hosts)

    def _fusion(self, block: Fuse, hosts: Hosts) -> dict[str, np.ndarray]:
        theirs = {own: file.name for own, file in self.modules.items()}
        name = _fusion_name(block, theirs)
        path, tensors, static = _read_fusion(self.where / name, name)
        if static != block.static:
            raise ValueError(
                f"{path}: the adapter fusion has static={static}, but its block in the composition "
                f"has static={block.static}"
            )
        layers: dict[str, dict[int, np.ndarray]] = {}
        pattern = re.compile(
            r"(?:.*\.)?(encoder|decoder)\.(?:layer|block)\.(\d+)\.(.*)\.adapter_fusion_layer\."
            rf"{re.escape(name)}\.(query|key|value)\.(weight|bias)"
        )
        for tensor, array in tensors.items():
            match = pattern.fullmatch(tensor)
            stack, layer, above, part, leaf = match.groups() if match else ("", "0", "", "", "")
            site = site_of(stack, above)
            if site is None:
                raise InputError(
                    f"{path}: the tensor {tensor} belongs to no supported adapter fusion"
                )
            d_model = hosts.kernels[stack, "attention/query"][1]
            if array.shape != (d_model,) * array.ndim:
                raise InputError(
                    f"{path}: the tensor {tensor} has shape {array.shape}, but d_model is {d_model}"
                )
            own = f"{ADAPTERS}{block.part}/{block.title}/{stack}/{site}/{part}"
            own = f"{own}/{'kernel' if leaf == 'weight' else 'bias'}"
            layers.setdefault(own, {})[int(layer)] = array.T
        for own, found in layers.items():
            num = hosts.kernels[own.split("/")[3], "attention/query"][0]
            if sorted(found) != list(range(num)):
                raise InputError(
                    f"{path}: the fusion array {own} must have tensors for {num} layers, but has "
                    f"tensors only for the layers {sorted(found)}"
                )
        return {own: np.stack([found[i] for i in sorted(found)]) for own, found in layers.items()}


def is_setup(directory: Path) -> bool:
    """Return True if a directory contains a composition of adapters, such as Stack(a, b)."""
    return (directory / SETUP).is_file()


def read_setup(directory: Path) -> SetupFile:
    """Read a directory of the library `adapters` with a composition, such as Stack(a, b)."""
    where = directory / SETUP
    config = read_json(where)
    names: dict[str, str] = {}
    static: dict[str, bool] = {}
    tree = _tree(where, config.get("adapter_setup"), names, static)
    if isinstance(tree, str):
        tree = Stack((tree,))
    theirs = {own: name for name, own in names.items()}
    if len(theirs) != len(names):
        raise InputError(
            f"{where}: two adapter names differ only in case or punctuation; rename one adapter"
        )
    modules = {own: read_library(directory / name) for own, name in theirs.items()}
    for block in _fusions(tree):
        name = _fusion_name(block, theirs)
        static[block.title] = _read_fusion(directory / name, name)[2]
    said = config.get("head_setup")
    head = names.get(said) if isinstance(said, str) else None
    return SetupFile(
        where=directory,
        config_file=where,
        config=config,
        tree=_with_static(tree, static),
        modules=modules,
        head=head,
        class_head=_class_head(directory, modules),
    )


def _library_head(head: object) -> LibraryHead | None:
    return head if isinstance(head, LibraryHead) else None


def _class_head(directory: Path, modules: Mapping[str, LibraryDirectory]) -> ClassHeadFile | None:
    """Return the task head that was saved with a composition of adapters, or None."""
    heads = [read_head(directory), *(file.head for file in modules.values())]
    found = [head for head in heads if isinstance(head, ClassHeadFile)]
    for head in found[1:]:
        same = head.tensors.keys() == found[0].tensors.keys() and all(
            np.array_equal(array, found[0].tensors[name]) for name, array in head.tensors.items()
        )
        if not same:
            _logger.warning(
                "%s and %s contain different heads of the same model; skipping both heads",
                found[0].where,
                head.where,
            )
            return None
    return found[0] if found else None


def _tree(where: Path, node: Any, names: dict[str, str], static: dict[str, bool]) -> str | Block:
    """Parse a composition of adapters, such as Stack(a, b), from JSON."""
    if not isinstance(node, dict) or not isinstance(node.get("children"), list):
        raise InputError(
            f"{where}: each node of adapter_setup must have a type and children, got "
            f"{str(node)[:60]!r}"
        )
    kind, children = node.get("type"), node["children"]
    if kind == "single" and len(children) == 1 and isinstance(children[0], str):
        inside(where.parent, children[0], where=where)
        if children[0] in ("", ".") or "/" in children[0]:
            raise InputError(
                f"{where}: adapter_setup names the adapter {shown(children[0])}, which is not the "
                "name of a directory next to this file"
            )
        own = re.sub(r"[^a-z0-9_]", "_", children[0].lower())
        own = own if own[:1].isalpha() else f"m_{own}"
        return names.setdefault(children[0], own)
    if kind not in _BLOCKS:
        raise InputError(
            f"{where}: composition block type {kind!r} is not supported, only {', '.join(_BLOCKS)}"
        )
    made = tuple(_tree(where, child, names, static) for child in children)
    theirs, ours = _OPTIONS.get(str(kind), ("", ""))
    kwargs = node.get("kwargs") or {}
    if not isinstance(kwargs, dict):
        raise InputError(
            f"{where}: kwargs of the block {kind} must be an object, got {str(kwargs)[:60]!r}"
        )
    kwargs = dict(kwargs)
    value = kwargs.pop(theirs, None)
    is_each: Any = _is_number if kind == "Average" else is_whole
    if value is not None and not (isinstance(value, list) and all(map(is_each, value))):
        what = "numbers" if kind == "Average" else "whole numbers"
        raise InputError(
            f"{where}: option {theirs} of the block {kind} must be a list of {what}, got "
            f"{str(value)[:60]!r}"
        )
    if kwargs:
        raise InputError(
            f"{where}: the options {', '.join(kwargs)} of the block {kind} are not supported"
        )
    try:
        options: dict[str, Any] = {} if value is None else {ours: tuple(value)}
        return _BLOCKS[str(kind)](made, **options)
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _is_number(value: Any) -> bool:
    return is_whole(value) or isinstance(value, float)


def _with_static(tree: Any, static: Mapping[str, bool]) -> Any:
    if not isinstance(tree, Block):
        return tree
    children = tuple(_with_static(child, static) for child in tree.children)
    more = {"static": static[tree.title]} if isinstance(tree, Fuse) else {}
    return dataclasses.replace(tree, children=children, **more)


def _fusions(tree: str | Block) -> list[Fuse]:
    found = [node for node, _ in walk(tree) if isinstance(node, Fuse)]
    return list({block.title: block for block in found}.values())


def _fusion_name(block: Fuse, theirs: Mapping[str, str]) -> str:
    """Return a fusion's name in the library `adapters`: adapter names joined by commas."""
    return ",".join(theirs[names_of((child,))[-1]] for child in block.children if child is not None)


def _read_fusion(directory: Path, name: str) -> tuple[Path, dict[str, np.ndarray], bool]:
    """Read an adapter fusion (AdapterFusion) from a directory."""
    where = directory / FUSION_CONFIG
    if not where.is_file():
        raise InputError(
            f"{directory}: contains no {FUSION_CONFIG}, which the adapter fusion {name} requires"
        )
    config = read_json(where).get("config")
    if not isinstance(config, dict):
        raise InputError(
            f"{where}: the file must contain the config of the adapter fusion as an object"
        )
    for field, value in config.items():
        if field not in (*_OF_TRAINING, "value") and value != _FUSION.get(field, False):
            raise InputError(f"{where}: {field} {value!r} of an adapter fusion is not supported")
    path, tensors = tensors_of(directory, _SAFETENSORS, _TORCH)
    return path, tensors, not config.get("value", True)


def write_setup(
    directory: Path,
    tree: Block,
    adapters: Sequence[Adapter],
    arrays: Mapping[str, np.ndarray],
    hosts: Hosts,
    *,
    base: str,
    head: Head | None,
    where: object,
) -> bool:
    """Write a composition for the library `adapters`; return True if it includes a task head."""
    said = f"checkpoint {where}: {tree}"
    written = False
    for number, adapter in enumerate(adapters):
        own = directory / adapter.name
        own.mkdir()
        first = head if number == 0 else None
        options = {"base": base, "head": first, "where": where}
        written = write_library(own, adapter, arrays, hosts, **options) or written
    names = {adapter.name: adapter.name for adapter in adapters}
    for block in _fusions(tree):
        _write_fusion(directory, block, names, arrays, hosts, base=base, said=said)
    root = tree if isinstance(tree, Stack) else Stack((tree,))
    head_setup = adapters[0].name if written else None
    content = {
        "adapter_setup": _written(root, said=said, level=0),
        "head_setup": head_setup,
        "version": about(hosts, base=base)["version"],
    }
    (directory / SETUP).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return written


def _written(node: Any, *, said: str, level: int) -> dict[str, Any]:
    if isinstance(node, str):
        return {"type": "single", "children": [node]}
    kind = type(node).__name__
    if node is None or kind not in _BLOCKS:
        raise InputError(
            f"{said}: the library `adapters` does not support {node} in a composition; its blocks "
            f"are {', '.join(_BLOCKS)}"
        )
    if level > 1 and kind != "Stack":
        raise InputError(
            f"{said}: the library `adapters` does not support the block {kind} inside two "
            "nested blocks, only a Stack"
        )
    for child in node.children:
        if isinstance(child, Block) and type(child).__name__ not in _NESTED[kind]:
            raise InputError(
                f"{said}: the library `adapters` does not support the block "
                f"{type(child).__name__} inside the block {kind}"
            )
    children = [_written(child, said=said, level=level + 1) for child in node.children]
    found: dict[str, Any] = {"type": kind, "children": children}
    theirs, ours = _OPTIONS.get(kind, ("", ""))
    if isinstance(node, Average):
        if abs(sum(node.shares) - 1.0) > 1e-6:
            raise InputError(
                f"{said}: the weights of an Average block of the library `adapters` must sum to 1, "
                f"got {node.shares}"
            )
        return {**found, "kwargs": {theirs: list(node.shares)}}
    if ours:
        values = list(getattr(node, ours))
        if not values or "rest" in values:
            raise InputError(
                f"{said}: the library `adapters` requires explicit numbers in the option {theirs} "
                f"of the block {kind}"
            )
        found["kwargs"] = {theirs: values}
    return found


def _write_fusion(
    directory: Path,
    block: Fuse,
    names: Mapping[str, str],
    arrays: Mapping[str, np.ndarray],
    hosts: Hosts,
    *,
    base: str,
    said: str,
) -> None:
    if block.temperature != 1.0:
        raise InputError(
            f"{said}: the library `adapters` does not support an adapter fusion with "
            f"temperature={block.temperature}"
        )
    name = _fusion_name(block, names)
    own = f"{ADAPTERS}{block.part}/{block.title}/"
    places = holders(hosts)
    start = _PREFIXES.get(hosts.model_type, "")
    tensors: dict[str, np.ndarray] = {}
    for path, array in arrays.items():
        if not path.startswith(own):
            continue
        stack, site, part, leaf = path.removeprefix(own).split("/")
        for layer, value in enumerate(array):
            above = places[stack, site].format(layer)
            tensor = f"{start}{above}.adapter_fusion_layer.{name}.{part}."
            tensors[tensor + ("weight" if leaf == "kernel" else "bias")] = value.T
    for tensor, array in tensors.items():
        check_finite(said, tensor, array)
    config = {**_FUSION, "value": not block.static}
    content = {
        **about(hosts, base=base),
        "adapter_names": name.split(","),
        "config": config,
        "name": name,
    }
    place = directory / name
    place.mkdir()
    (place / FUSION_CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    write_torch(place / _TORCH, tensors)
