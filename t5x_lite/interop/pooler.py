"""The projection of RetroMAE's and Tevatron's retrievers, in: pooler.pt and pooler_config.json.

    pooler_config.json      input_dim d, output_dim k, tied
    pooler.pt               linear_q and linear_p, each with weight [k, d] and bias [k]

It stands beside one encoder, or beside the directories of two. Vectors are products' there: of
[CLS], and not of length 1. A tied pooler's file holds the one layer under both names, or under that
of queries alone.

Source: staoxiao/RetroMAE, examples/retriever/modeling.py; texttron/tevatron, modeling/dense.py.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS
from t5x_lite.heads.dense import Dense, Role
from t5x_lite.interop.encoders import dense_rules
from t5x_lite.interop.hf_config import read_json
from t5x_lite.interop.rules import (
    Piece,
    Source,
    check_finite,
    check_names,
    check_shape,
    is_same,
    pieces,
)
from t5x_lite.interop.torch_files import read_torch

POOLER = "pooler.pt"
_CONFIG = "pooler_config.json"
_LAYERS: dict[Role, str] = {"query": "linear_q", "passage": "linear_p"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooler(Source):
    """A projection, or one of queries and one of passages.

    Attributes:
      head: that it belongs to.
    """

    head: Dense

    def read(self, piece: Piece) -> np.ndarray:
        """One piece in our layout."""
        tensor = self.tensors[piece.name]
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_pooler(directory: Path, *, d_model: int) -> Pooler | None:
    """The pooler of a directory; None where there is none.

    Args:
      directory: that may hold the two files.
      d_model: size of the encoder's states.

    Raises:
      InputError: one file is missing, or they are damaged or of other states.
    """
    path, where = directory / POOLER, directory / _CONFIG
    if not path.is_file() and not where.is_file():
        return None
    for file in (path, where):
        if not file.is_file():
            raise InputError(
                f"{file}: there is no such file, and the other one of a pooler is here"
            )
    config = read_json(where)
    found_in, size = (_size(where, config, name) for name in ("input_dim", "output_dim"))
    tied = config.get("tied", True)
    if not isinstance(tied, bool):
        raise InputError(f"{where}: tied must be true or false: got {tied!r}")
    if found_in != d_model:
        raise InputError(f"{where}: input_dim is {found_in}, and the encoder's states {d_model}")
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
    """A size that the config says."""
    size = config.get(name)
    if not isinstance(size, int) or size < 1:
        raise InputError(f"{where}: {name} must be at least 1: got {size!r}")
    return size


def _check_tied(path: Path, found: dict[str, np.ndarray]) -> None:
    """Refuses a tied pooler whose two layers differ."""
    for leaf in ("weight", "bias"):
        query, passage = (found.get(f"{layer}.{leaf}") for layer in _LAYERS.values())
        if query is not None and passage is not None and not is_same(query, passage):
            raise InputError(
                f"{path}: {_CONFIG} says tied, and linear_q.{leaf} and linear_p.{leaf} differ"
            )
