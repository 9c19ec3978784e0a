"""What a head is: a frozen config that builds a module which reads an encoder's states.

    head = Classifier(num_classes=3)
    module = head.build(model_config, rngs=rngs)
    logits = module(states)                        # float32 [B, C]

A head has a name, that of its parameters: those of "mlm" are at heads/mlm. A checkpoint keeps all
heads that its run and the runs before it made; those that the loss does not read are frozen.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from flax import nnx

from t5x_lite.errors import InputError
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.nn.dense import Dense, truncated_normal

HEADS = "heads/"
"""Beginning of the paths of all heads' parameters."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """Base of the heads' configs.

    Attributes:
      name: of its parameters, below heads/; lower-case letters, digits and "_".
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                "the name of a head is lower-case letters, digits and _, a letter first: got "
                f"{self.name!r}"
            )
        if hasattr(HeadModules, self.name):
            raise InputError(f"no head may be called {self.name!r}: give it another name")

    @property
    def scores_texts(self) -> bool:
        """Whether it gives one number of a text, or of two texts that are read together."""
        return False

    @property
    def has_parameters(self) -> bool:
        """Whether a checkpoint holds something of it."""
        return True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> Any:
        """Makes the module, with parameters or none.

        Args:
          model: of the states that it reads.
          rngs: the stream "params" is used.

        Raises:
          InputError: it cannot read the states of such a model.
        """
        raise TypeError(f"{type(self).__name__} does not define build")


class HeadModules(nnx.Module):
    """The modules of some heads, by name.

    Args:
      heads: name -> config.
      model: of the states that they read.
      rngs: the stream "params" is used.
    """

    def __init__(self, heads: Mapping[str, Head], model: ModelConfig, *, rngs: nnx.Rngs):
        for name, head in heads.items():
            setattr(self, name, head.build(model, rngs=rngs))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def by_name(heads: Iterable[Head]) -> dict[str, Head]:
    """Heads by their names.

    Raises:
      InputError: two have one name.
    """
    found: dict[str, Head] = {}
    for head in heads:
        if head.name in found:
            raise InputError(f"two heads are called {head.name}: give one another name")
        found[head.name] = head
    return found


def encoder_of(head: Head, model: ModelConfig) -> EncoderConfig:
    """The config of an encoder, which the head reads.

    Raises:
      InputError: it is the config of something else.
    """
    if not isinstance(model, EncoderConfig):
        raise InputError(
            f"head {head.name!r} reads the states of an encoder, not of a {type(model).__name__}"
        )
    return model


def dense(
    d_in: int,
    d_out: int,
    *,
    axes: tuple[str | None, str | None],
    stddev: float,
    bias: bool = True,
    rngs: nnx.Rngs,
) -> Dense:
    """A dense layer of a head: a kernel of truncated normal numbers, and a bias if it has one."""
    init = truncated_normal(stddev)
    return Dense(d_in, d_out, axes=axes, initializer=init, bias=bias, rngs=rngs)
