"""Towers and pooling: additions to the model for retrievers.

Towers are encoders with the architecture of the model, in addition to the model, such as the
passage encoder of a retriever:

    towers = Towers(("passage",), config, rngs=rngs)
    towers["passage"](tokens)                           # parameters at towers/passage

A tower has the architecture and the adapters of the model, with separate parameters:

    model/layers/mlp/wi/kernel            towers/passage/layers/mlp/wi/kernel
    adapters/lora/layers/mlp/in/a         adapters/lora/towers/passage/layers/mlp/in/a

`pool` computes one vector of each text from an encoder's hidden states: the [CLS] state or the
mean.

    pool(model(tokens), tokens != pad_id, "mean")       # [B, D]

"cls" is the hidden state of a text's first token, as in BERT and SimCSE. "mean" is the mean over
all tokens except padding, including [CLS] and [SEP] (Reimers and Gurevych 2019, arXiv:1908.10084).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Array
from t5x_lite.models.base import ModelConfig

TOWERS = "towers/"
"""Prefix of the parameter paths of all towers."""

_OF_TOWER = re.compile(r"towers/([^/]+)/(.*)|(adapters/[^/]+)/towers/([^/]+)/(.*)")
_OF_MODEL = re.compile(r"model/(.*)|(adapters/[^/]+)/(.*)")


def tower_of(path: str) -> tuple[str, str] | None:
    """Split a path of a second encoder (tower) into the tower's name and the path in the model."""
    match = _OF_TOWER.fullmatch(path)
    if match is None:
        return None
    if match[1] is not None:
        return match[1], f"model/{match[2]}"
    return match[4], f"{match[3]}/{match[5]}"


def in_tower(path: str, tower: str) -> str:
    """Convert a path of the model or its adapters to the path in a second encoder (tower)."""
    match = _OF_MODEL.fullmatch(path)
    if match is None or tower_of(path) is not None:
        return path
    if match[1] is not None:
        return f"{TOWERS}{tower}/{match[1]}"
    return f"{match[2]}/{TOWERS}{tower}/{match[3]}"


def as_model(arrays: Mapping[str, Any], tower: str = "") -> dict[str, Any]:
    """Select one encoder's arrays; paths of a second encoder (tower) become paths of the model.

    Args:
      arrays: arrays of all encoders, by path.
      tower: name of the second encoder, such as "passage"; "" selects the model.

    Returns:
      Arrays of the encoder, its adapters, and all shared arrays, such as heads, by path.
    """
    own = {path: tower_of(path) for path in arrays}
    shared = {
        path: array
        for path, array in arrays.items()
        if own[path] is None and (not tower or in_tower(path, tower) == path)
    }
    if not tower:
        return shared
    return shared | {found[1]: arrays[p] for p, found in own.items() if found and found[0] == tower}


def with_towers(tree: Any, names: Sequence[str]) -> Any:
    """Return a nested dict with a copy of the model's adapters for each second encoder (tower)."""
    flat = trees.flatten(tree)
    adapters = {path: leaf for path, leaf in flat.items() if path.startswith("adapters/")}
    more = {in_tower(path, name): leaf for name in names for path, leaf in adapters.items()}
    return trees.unflatten({**flat, **more}) if more else tree


class Towers(nnx.Module):
    """Encoders of a retriever in addition to the model, by name.

    Args:
      names: names of the towers; () for none.
      model: config of each tower.
      rngs: random streams; "params" is used.
    """

    def __init__(self, names: Sequence[str], model: ModelConfig, *, rngs: nnx.Rngs):
        self.names = tuple(names)
        for name in names:
            setattr(self, name, model.build(rngs=rngs))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


Pooling = Literal["cls", "mean"]


def pool(
    hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | Int[Array, "B T"], kind: Pooling
) -> Float[Array, "B D"]:
    """Pool the hidden states of each text into one float32 vector.

    Args:
      hidden: hidden states of an encoder.
      mask: mask of tokens that are not padding: True, or positive.
      kind: "cls" or "mean".
    """
    check_pooling("pooling", kind)
    if kind == "cls":
        return hidden[:, 0].astype(jnp.float32)
    weights = (mask > 0).astype(jnp.float32)
    total = jnp.sum(hidden.astype(jnp.float32) * weights[..., None], axis=1)
    return total / jnp.maximum(jnp.sum(weights, axis=1), 1.0)[:, None]


def check_pooling(name: str, kind: str) -> None:
    """Raise InputError for an unknown kind of pooling; `name` is the option in the message."""
    if kind not in get_args(Pooling):
        raise InputError(f"{name} must be one of {get_args(Pooling)}: got {kind!r}")
