"""Import and export of sparse deltas of composable-sft.

    pytorch_diff.bin    {"diffs": {name: {"size", "index_steps", "values"}}, "abs": {name: tensor}}

`diffs` contains the changed entries of a Hugging Face model's tensors. An entry has a flat index,
counted with the FIRST axis fastest. Indices are sorted, and each is stored as the difference from
the previous index. The tensors [out, in] belong to one layer; t5x_lite's parameters are stacked,
[N, in, out]. `abs` contains complete tensors of the head. composable-sft sums the index differences
in int32, so tensors of 2^31 entries or more cannot be exported. Source:
cambridgeltl/composable-sft, src/sft/sft.py.

`t5x-lite import sft` writes a checkpoint directory with a `sparse` adapter that refers to its base;
see `interop.adapter_checkpoints`. `t5x-lite export adapter --format sft` exports a delta if all its
changes are sparse.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.delta_parts import Sparse
from t5x_lite.adapters.grammar import write_module
from t5x_lite.adapters.sparse import INDICES, VALUES, SparseTuning
from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import BASE_FILE, Base, Init
from t5x_lite.checkpoints.items import write_step
from t5x_lite.config.file import to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import new_directory
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import local_path
from t5x_lite.core.trees import LazyArray
from t5x_lite.inference.delta_files import goes_along, open_delta
from t5x_lite.inference.loading import Step, find_step, read_experiment
from t5x_lite.interop import hf
from t5x_lite.interop import tensor_files as writing
from t5x_lite.interop.adapter_checkpoints import (
    head_for_export,
    leaf_of,
    left_to_base,
    model_type_of,
)
from t5x_lite.interop.encoder_checkpoints import refuse_views, with_family
from t5x_lite.interop.encoders import MODEL, learner_shapes
from t5x_lite.interop.rules import Piece, check_finite, pieces
from t5x_lite.interop.tensor_files import read_tree
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import is_encoder
from t5x_lite.models.heads import HEADS, Head
from t5x_lite.models.vector_heads import TOWERS
from t5x_lite.objectives.learner import views_of

_logger = logging.getLogger(__name__)

FILE = "pytorch_diff.bin"
_DIFFS, _WHOLE = "diffs", "abs"
_LONGEST_PICKLE = 512 << 20
_MOST = 1 << 31
_PREFIXES = ("bert.", "roberta.", "deberta.", "electra.", "transformer.")


def table_of(
    model: ModelConfig, head: Head | None, *, model_type: str | None, where: object
) -> tuple[dict[str, tuple[int, ...]], list[Piece]]:
    """Return a model's parameter shapes by path, and the names of their tensors in files."""
    if is_encoder(model):
        config, family = with_family(model, where=where)
        kind = str(family.from_model(config, head, model_type)["model_type"])
        shapes = learner_shapes(config, head)
        return shapes, pieces(family.table(config, head, kind), shapes)
    shapes, tensors = hf.model_pieces(hf.written(model, where=where))
    return {MODEL + path: shape for path, shape in shapes.items()}, tensors


def read_sft(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], table: Sequence[Piece]
) -> tuple[dict[str, Sparse], dict[str, np.ndarray]]:
    """Read the sparse changes and the head of a model that composable-sft trained."""
    where = directory / FILE
    if not where.is_file():
        raise InputError(
            f"{directory} contains no {FILE}; pass a directory that composable-sft wrote"
        )
    content = read_tree(where, longest_pickle=_LONGEST_PICKLE)
    if not isinstance(content, dict) or not isinstance(content.get(_DIFFS), dict):
        raise InputError(f"{where}: has no {_DIFFS}, so it is not a file of composable-sft")
    placed: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    by_name = _by_name(table)
    for name, one in content[_DIFFS].items():
        piece = _piece(where, name, by_name)
        places, values = _decoded(where, name, one, piece)
        order = np.full(math.prod(piece.shape), -1, np.int64)
        order[places] = np.arange(places.size)
        ours = piece.to_ours(order.reshape(piece.shape)).reshape(-1)
        flat = np.flatnonzero(ours >= 0)
        indices, numbers = placed.setdefault(_ours(piece), ([], []))
        indices.append(flat + (piece.layer or 0) * math.prod(piece.target))
        numbers.append(values[ours[flat]])
    parts = {}
    for path, (indices, numbers) in placed.items():
        flat, values = np.concatenate(indices), np.concatenate(numbers)
        order = np.argsort(flat)
        kind = np.int32 if math.prod(shapes[path]) < _MOST else np.int64
        parts[path] = Sparse(flat[order].astype(kind), values[order], shapes[path])
    return parts, _heads(where, content.get(_WHOLE) or {}, by_name, shapes)


def _heads(
    where: Path,
    tensors: Any,
    by_name: Mapping[str, Piece],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        piece = _piece(where, name, by_name)
        path = _ours(piece)
        if not path.startswith(HEADS) or piece.layer is not None:
            raise InputError(
                f"{where}: {name} in {_WHOLE} replaces a tensor of the model, but only tensors "
                "of the head can be replaced"
            )
        if tuple(tensor.shape) != piece.shape:
            raise InputError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, but the base has {piece.shape}"
            )
        check_finite(where, name, tensor)
        arrays[path] = piece.to_ours(tensor).astype(np.float32)
    heads = {path for path in shapes if path.startswith(HEADS)}
    if arrays and (missing := sorted(heads - arrays.keys())):
        raise InputError(f"{where}: the head is incomplete, because {missing[0]} is missing")
    return arrays


def _by_name(table: Sequence[Piece]) -> dict[str, Piece]:
    names: dict[str, Piece] = {}
    for piece in table:
        for name in (piece.name, *piece.aliases):
            names[name] = piece
            for prefix in _PREFIXES:
                names.setdefault(name.removeprefix(prefix), piece)
    return names


def _piece(where: Path, name: str, by_name: Mapping[str, Piece]) -> Piece:
    parts = name.split(".")
    for start in range(len(parts)):  # skip any prefix before the model's own names
        if (body := ".".join(parts[start:])) in by_name:
            return by_name[body]
    raise InputError(f"{where}: the base has no tensor {name}{did_you_mean(name, by_name)}")


def _ours(piece: Piece) -> str:
    return piece.path if piece.path.startswith((MODEL, HEADS)) else MODEL + piece.path


def _decoded(where: Path, name: str, one: Any, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices and the values of the changed entries of one tensor."""
    try:
        size, steps, values = tuple(one["size"]), one["index_steps"], one["values"]
        numbers = np.asarray(steps, np.int64)
        values = np.asarray(values, np.float32)
        if numbers.ndim != 1 or numbers.shape != values.shape:
            raise ValueError(
                f"the indices have shape {numbers.shape}, but the values have shape {values.shape}"
            )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where}: {name} is damaged ({error})") from error
    if size != piece.shape:
        raise InputError(f"{where}: {name} has shape {size}, but the base has {piece.shape}")
    places = np.cumsum(numbers)
    wrong = (numbers[1:] <= 0).any() or (places < 0).any() or (places >= math.prod(size)).any()
    if wrong:
        raise InputError(
            f"{where}: the indices of {name} are not sorted, or exceed its size {size}"
        )
    check_finite(where, name, values)
    axes = np.unravel_index(places, size, order="F")
    return np.ravel_multi_index(axes, size), values


def write_sft(
    directory: Path,
    parts: Mapping[str, Sparse],
    heads: Mapping[str, np.ndarray],
    table: Sequence[Piece],
) -> None:
    """Write sparse changes and a head in the format of composable-sft."""
    ours = {_ours(piece) for piece in table}
    if missing := sorted({*parts, *heads} - ours):
        raise InputError(
            f"the array {missing[0]} cannot be exported, because transformers has no tensor for it"
        )
    storages: list[bytes] = []
    diffs: list[tuple[str, bytes]] = []
    for path, part in parts.items():
        shape = part.shape
        order = np.full(math.prod(shape), -1, np.int64)
        order[np.asarray(part.indices)] = np.arange(len(part.indices))
        for piece in (each for each in table if _ours(each) == path):
            theirs = piece.to_theirs(piece.of(order.reshape(shape)))
            if theirs.size >= _MOST:
                raise InputError(
                    f"the array {piece.name} has {theirs.size} entries, but the format of "
                    f"composable-sft allows only {_MOST - 1}"
                )
            flat = theirs.reshape(-1, order="F")
            places = np.flatnonzero(flat >= 0)
            if places.size:
                values = np.asarray(part.values, np.float32)[flat[places]]
                diffs.append((piece.name, _encoded(theirs.shape, places, values, storages)))
    whole = [
        (piece.name, writing.tensor(piece.to_theirs(piece.of(heads[_ours(piece)])), storages))
        for piece in table
        if _ours(piece) in heads
    ]
    pickled = writing.mapping([(_DIFFS, writing.mapping(diffs)), (_WHOLE, writing.mapping(whole))])
    writing.write_archive(directory / FILE, pickled, storages)


def _encoded(
    size: tuple[int, ...], places: np.ndarray, values: np.ndarray, storages: list[bytes]
) -> bytes:
    steps = np.diff(places, prepend=0)
    listed = b"](" + b"".join(map(writing.number, steps.tolist())) + b"e"
    shape = b"ctorch\nSize\n(" + writing.numbers(size) + b"tR"
    items = [("size", shape), ("index_steps", listed), ("values", writing.tensor(values, storages))]
    return writing.mapping(items)


_MODEL = "model/"


def import_sft(
    source: str | Path,
    destination: str | Path,
    *,
    base: str | Path,
    step: Step = None,
    name: str = "sft",
) -> Path:
    """Import sparse changes of a base model from composable-sft as a checkpoint directory."""
    where = Path(find_step(local_path(base, what="base"), step=step))
    checkpoint_manifest.verify(where, "params", "files")
    files = checkpointing.step_files(where)
    experiment = read_experiment(where, files)
    if experiment.adapters.modules:
        raise InputError(
            f"base checkpoint {where} already has adapters; merge them with `t5x-lite merge` "
            "and pass the merged checkpoint"
        )
    refuse_views(where, views_of(experiment.model, experiment.objective))
    if experiment.objective.more_towers():
        raise InputError(
            f"base checkpoint {where} has two encoders, but {source} changes one encoder; pass "
            "a base with one encoder"
        )
    head = head_for_export(experiment, where=where)
    shapes, table = table_of(experiment.model, head, model_type=model_type_of(files), where=where)
    parts, heads = read_sft(local_path(source, what="directory"), shapes, table)
    if not parts:
        raise InputError(f"{source}: the file changes no tensor of the model")
    sizes = {path.removeprefix(_MODEL): len(part.indices) for path, part in parts.items()}
    total = sum(int(np.prod(shape)) for path, shape in shapes.items() if path.startswith(_MODEL))
    adapter = SparseTuning(
        name=name,
        density=round(sum(sizes.values()) / total, 6) or 1e-6,
        entries=tuple(sorted(sizes.items())),
    )
    arrays = dict(heads)
    for path, part in parts.items():
        stem = f"{ADAPTERS}{name}/{path.removeprefix(_MODEL)}/"
        arrays |= {stem + INDICES: part.indices, stem + VALUES: part.values}
    made = dataclasses.replace(
        experiment,
        adapters=Adapters(add=(write_module(adapter),)),
        init=Init(checkpoint=str(where.absolute())),
        train=(),
    )
    params = checkpointing.lazy_params(where)
    with new_directory(destination) as directory:
        left = left_to_base(made, arrays, params, source=Path(source), where=where)
        empty = Base.of({}, {}, base=where, steps=directory.parent)
        leaves = {path: leaf_of(path, params[path]) for path in left}
        contents = {
            **{name: content for name, content in files.items() if goes_along(name)},
            checkpointing.CONFIG_FILE: to_json(made).encode(),
            BASE_FILE: dataclasses.replace(empty, arrays=leaves).content(),
        }
        write_step(directory, contents, {path: _lazy(array) for path, array in arrays.items()})
    return Path(destination)


def export_sft(
    checkpoint: str | Path, destination: str | Path, *, step: Step = None, head: bool = True
) -> Path:
    """Export sparse changes of a base model in the format of composable-sft."""
    opened = open_delta(checkpoint, step=step)
    delta, where = opened.delta, opened.directory
    if any(path.startswith(TOWERS) for path in delta.parts):
        raise InputError(
            f"checkpoint {where} has two encoders, but an sft file changes one encoder; export "
            "the merged encoders with `t5x-lite export hf`"
        )
    sparse: dict[str, Sparse] = {}
    for path, part in delta.parts.items():
        if not isinstance(part, Sparse):
            raise InputError(
                f"{where}: the change of {path} is a {type(part).__name__}, but an sft file can "
                "store only sparse changes; make it sparse with `t5x-lite compose 'sparsify(a, "
                "density=0.005)'`, or export the merged model with `t5x-lite export hf`"
            )
        sparse[path] = part
    if delta.config:
        raise InputError(
            f"{where}: the adapter {delta.config[0].name} is not a sparse change, so it cannot "
            "be exported as sft"
        )
    files = {**checkpointing.step_files(opened.base()[0]), **opened.files}
    experiment = read_experiment(where, files)
    own = head_for_export(experiment, where=where)
    _, table = table_of(experiment.model, own, model_type=model_type_of(files), where=where)
    heads = (
        {}
        if own is None or not head
        else {
            path: np.asarray(array, np.float32)
            for path, array in delta.extra.items()
            if path.startswith(f"{HEADS}{own.name}/")
        }
    )
    with new_directory(destination) as directory:
        write_sft(directory, sparse, heads, table)
    number = sum(len(part.indices) for part in sparse.values())
    _logger.info("%s: exported %d changed entries of %d arrays", destination, number, len(sparse))
    return Path(destination)


def _lazy(array: np.ndarray) -> LazyArray:
    host = np.asarray(array)
    return LazyArray(host.shape, host.dtype, lambda: host)
