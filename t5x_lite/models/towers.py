"""Encoders besides the model, of its kind: that of passages, of a retriever with two towers.

towers = Towers(("passage",), config, rngs=rngs)
towers["passage"](tokens)                           # parameters at towers/passage
"""

from collections.abc import Sequence
from typing import Any

from flax import nnx

from t5x_lite.models.base import ModelConfig

TOWERS = "towers/"
"""Beginning of their paths."""


class Towers(nnx.Module):
    """Models by their names.

    Args:
      names: theirs; () is none, and then there is no parameter.
      model: config of each.
      rngs: the stream "params" is used.
    """

    def __init__(self, names: Sequence[str], model: ModelConfig, *, rngs: nnx.Rngs):
        self.names = tuple(names)
        for name in names:
            setattr(self, name, model.build(rngs=rngs))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)
