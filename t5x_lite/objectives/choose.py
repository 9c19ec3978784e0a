"""Multiple choice by a head on an encoder: COPA, SWAG, RACE.

A question is read with each of its choices, the head "choice" gives each a number from its [CLS]
state, and the loss is the cross-entropy of the right one (Devlin et al. 2019, section 4.4; SWAG).
Rows are those of data.layout Choices().
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, get_args

import jax.numpy as jnp
from flax import nnx

from t5x_lite.data.layouts import Choices, Layout
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.choice import Choice
from t5x_lite.heads.classifier import ClassifierKind
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, Objective
from t5x_lite.objectives.classify import loss_of_classes
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.types import Batch, Key

_NEVER = -1e9
"""The number of a choice that is not there; finite, so that a row of padding has no NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choose(Objective):
    """Cross-entropy of the right choice among those of a question.

    Attributes:
      head: "bert", "roberta", "electra" or "deberta".
      dropout_rate: dropout rate of the head; None is the model's.
    """

    head: ClassifierKind = "bert"
    dropout_rate: float | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Choices,)

    def __post_init__(self) -> None:
        if self.head not in get_args(ClassifierKind):
            kinds = get_args(ClassifierKind)
            raise InputError(f"objective.head must be one of {kinds}: got {self.head!r}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ChooseLoss":
        """Makes the loss module, which has no parameters."""
        del model, rngs
        return ChooseLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """The head "choice"."""
        return (Choice(kind=self.head, dropout_rate=self.dropout_rate),)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class ChooseLoss(nnx.Module):
    """Sums over the labelled rows of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: Choose):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of the layout Choices(); rows without a label count 0.

        Raises:
          InputError: the features are those of another layout.
        """
        tokens = batch.get("encoder_input_tokens")
        if tokens is None or tokens.ndim != 3 or "labels" not in batch:
            raise InputError(
                "objective Choose reads questions with choices, encoder_input_tokens [B, C, S] and "
                "labels: data.layout must be choices"
            )
        rows, num, length = tokens.shape
        flat = {name: value.reshape(-1, length) for name, value in features(batch).items()}
        model_key, head_key = split_key(key, 2)
        hidden = model(tokens.reshape(-1, length), **flat, key=model_key)
        logits = heads["choice"](hidden, key=head_key).reshape(rows, num)
        there = jnp.any(batch["encoder_segment_ids"] > 0, axis=2)
        logits = jnp.where(there, logits, _NEVER)
        return loss_of_classes(logits, batch["labels"][:, 0])
