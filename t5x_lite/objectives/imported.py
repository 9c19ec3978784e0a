"""What an imported encoder comes with: nothing, or the detection head of a discriminator.

A checkpoint of `t5x-lite import` has a config like any other. Its encoder can be embedded with,
exported, and trained on by a config with another objective, which takes its parameters by --init.
"""

import dataclasses
from typing import Any, Literal

from flax import nnx

from t5x_lite.errors import InputError
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.nn.heads import DebertaRtdHead, ElectraRtdHead
from t5x_lite.objectives.base import Loss, Objective
from t5x_lite.types import Batch, Key

Detection = Literal["none", "electra_rtd", "deberta_rtd"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported(Objective):
    """No loss, and the head of a discriminator whose generator is elsewhere.

    Attributes:
      head: "none", or the kind of the detection head.
    """

    head: Detection = "none"

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ImportedHead":
        """Makes the module that holds the head."""
        return ImportedHead(self, model, rngs=rngs)


class ImportedHead(nnx.Module):
    """The head alone.

    Args:
      config: the objective.
      model: of the encoder.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Imported, model: ModelConfig, *, rngs: nnx.Rngs):
        if not isinstance(model, EncoderConfig):
            raise InputError(f"objective Imported is of encoders, not of a {type(model).__name__}")
        if config.head != "none":
            self.head = rtd_head(config.head, model, rngs=rngs)

    def __call__(self, model: Any, batch: Batch, *, key: Key | None = None) -> Loss:
        """There is no loss.

        Raises:
          InputError: always.
        """
        raise InputError(
            "an imported encoder has no loss: train it with a config whose objective is another, "
            "and --init CHECKPOINT"
        )


def rtd_head(
    kind: Detection, model: EncoderConfig, *, rngs: nnx.Rngs
) -> ElectraRtdHead | DebertaRtdHead:
    """A detection head for a model of these sizes."""
    if kind == "electra_rtd":
        return ElectraRtdHead(
            model.d_model,
            activation=model.activation,
            stddev=model.initializer_stddev,
            rngs=rngs,
        )
    return DebertaRtdHead(
        model.d_model,
        activation=model.activation,
        norm_epsilon=model.norm_epsilon,
        stddev=model.initializer_stddev,
        rngs=rngs,
    )
