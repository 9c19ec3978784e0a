"""Files of composable-sft: sparse differences of a model of Hugging Face.

    pytorch_diff.bin    {"diffs": {name: {"size", "index_steps", "values"}}, "abs": {name: tensor}}

A place is one number, in which the FIRST axis runs fastest; places are sorted, and each is stored
less the one before it. Theirs are tensors of one layer, [out, in]; ours are stacked, [N, in, out].
`abs` has whole tensors: the head's. Their reader adds up the steps as int32 numbers, so a tensor of
2^31 entries or more is not written. Source: cambridgeltl/composable-sft, src/sft/sft.py.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.deltas.parts import Sparse
from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS, Head
from t5x_lite.interop import hf, hf_config
from t5x_lite.interop import torch_writing as writing
from t5x_lite.interop.encoder_families import with_family
from t5x_lite.interop.encoders import MODEL, learner_shapes
from t5x_lite.interop.rules import Piece, check_finite, pieces
from t5x_lite.interop.torch_files import read_tree
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import is_encoder
from t5x_lite.options import did_you_mean

FILE = "pytorch_diff.bin"
_DIFFS, _WHOLE = "diffs", "abs"
_LONGEST_PICKLE = 512 << 20
_MOST = 1 << 31
_PREFIXES = ("bert.", "roberta.", "deberta.", "electra.", "transformer.")


def table_of(
    model: ModelConfig, head: Head | None, *, model_type: str | None, where: object
) -> tuple[dict[str, tuple[int, ...]], list[Piece]]:
    """Our shapes by path in a learner, and the tensors that they are made of.

    Raises:
      InputError: transformers has no such model.
    """
    if is_encoder(model):
        config, family = with_family(model, where=where)
        kind = str(family.from_model(config, head, model_type)["model_type"])
        shapes = learner_shapes(config, head)
        return shapes, pieces(family.table(config, head, kind), shapes)
    shapes, tensors = hf.model_pieces(hf_config.written(model, where=where))
    return {MODEL + path: shape for path, shape in shapes.items()}, tensors


def read_sft(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], table: Sequence[Piece]
) -> tuple[dict[str, Sparse], dict[str, np.ndarray]]:
    """The differences of a directory, and what it has of the head.

    Args:
      directory: with pytorch_diff.bin.
      shapes: of our arrays, by path.
      table: of the base.

    Returns:
      path of ours -> sparse part, and path of a head -> array.

    Raises:
      InputError: the file is missing or damaged, or of another base.
    """
    where = directory / FILE
    if not where.is_file():
        raise InputError(f"{directory} has no {FILE}, as composable-sft writes it")
    content = read_tree(where, longest_pickle=_LONGEST_PICKLE)
    if not isinstance(content, dict) or not isinstance(content.get(_DIFFS), dict):
        raise InputError(f"{where}: it has no {_DIFFS}, and is no file of composable-sft")
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
    """The head's arrays, which must be whole."""
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        piece = _piece(where, name, by_name)
        path = _ours(piece)
        if not path.startswith(HEADS) or piece.layer is not None:
            raise InputError(
                f"{where}: {name} of {_WHOLE} is a whole tensor of the model, and the head's alone "
                "are read"
            )
        if tuple(tensor.shape) != piece.shape:
            raise InputError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, and the base's is {piece.shape}"
            )
        check_finite(where, name, tensor)
        arrays[path] = piece.to_ours(tensor).astype(np.float32)
    heads = {path for path in shapes if path.startswith(HEADS)}
    if arrays and (missing := sorted(heads - arrays.keys())):
        raise InputError(f"{where}: it has a part of the head, and lacks {missing[0]}")
    return arrays


def _by_name(table: Sequence[Piece]) -> dict[str, Piece]:
    """The pieces by all names that a file may have, with a model's prefix and without."""
    names: dict[str, Piece] = {}
    for piece in table:
        for name in (piece.name, *piece.aliases):
            names[name] = piece
            for prefix in _PREFIXES:
                names.setdefault(name.removeprefix(prefix), piece)
    return names


def _piece(where: Path, name: str, by_name: Mapping[str, Piece]) -> Piece:
    parts = name.split(".")
    for start in range(len(parts)):  # whatever stands before the model's own names
        if (body := ".".join(parts[start:])) in by_name:
            return by_name[body]
    raise InputError(f"{where}: the base has no tensor {name}{did_you_mean(name, by_name)}")


def _ours(piece: Piece) -> str:
    """The path of a piece's array in a learner."""
    return piece.path if piece.path.startswith((MODEL, HEADS)) else MODEL + piece.path


def _decoded(where: Path, name: str, one: Any, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Flat places of a tensor, in C order, and values."""
    try:
        size, steps, values = tuple(one["size"]), one["index_steps"], one["values"]
        numbers = np.asarray(steps, np.int64)
        values = np.asarray(values, np.float32)
        if numbers.ndim != 1 or numbers.shape != values.shape:
            raise ValueError(f"{numbers.shape} places and {values.shape} values")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where}: {name} is damaged ({error})") from error
    if size != piece.shape:
        raise InputError(f"{where}: {name} has shape {size}, and the base's is {piece.shape}")
    places = np.cumsum(numbers)
    wrong = (numbers[1:] <= 0).any() or (places < 0).any() or (places >= math.prod(size)).any()
    if wrong:
        raise InputError(f"{where}: {name} has places that are no sorted places of {size}")
    check_finite(where, name, values)
    axes = np.unravel_index(places, size, order="F")
    return np.ravel_multi_index(axes, size), values


def write_sft(
    directory: Path,
    parts: Mapping[str, Sparse],
    heads: Mapping[str, np.ndarray],
    table: Sequence[Piece],
) -> None:
    """Writes pytorch_diff.bin into a directory.

    Args:
      directory: where.
      parts: by our path in a learner.
      heads: whole arrays of a head, by path.
      table: of the model.

    Raises:
      InputError: a tensor has more entries than their reader counts, or the table lacks an array.
    """
    ours = {_ours(piece) for piece in table}
    if missing := sorted({*parts, *heads} - ours):
        raise InputError(f"transformers has no tensor for {missing[0]}, so the file has none")
    storages: list[bytes] = []
    diffs: list[tuple[str, bytes]] = []
    for path, part in parts.items():
        shape = part.shape
        order = np.full(math.prod(shape), -1, np.int64)
        order[np.asarray(part.indices)] = np.arange(len(part.indices))
        for piece in (each for each in table if _ours(each) == path):
            theirs = piece.to_theirs(piece.of(order.reshape(shape)))
            if theirs.size >= _MOST:
                raise InputError(f"{piece.name} has {theirs.size} entries: the file has no such")
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
    """One tensor's size, steps and values."""
    steps = np.diff(places, prepend=0)
    listed = b"](" + b"".join(map(writing.number, steps.tolist())) + b"e"
    shape = b"ctorch\nSize\n(" + writing.numbers(size) + b"tR"
    items = [("size", shape), ("index_steps", listed), ("values", writing.tensor(values, storages))]
    return writing.mapping(items)
