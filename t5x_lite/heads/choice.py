"""The head of multiple choice: one number of each row, and the likeliest row of a question's.

It is a classifier of one class that reads a question with each of its choices (transformers'
*ForMultipleChoice): the softmax is over the choices.
"""

import dataclasses

from flax import nnx

from t5x_lite.heads.base import Head
from t5x_lite.heads.classifier import (
    ClassificationHead,
    Classifier,
    ClassifierKind,
)
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.activations import Activation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Head):
    """The likeliness of a question with one of its choices.

    Attributes:
      kind: as of a `Classifier`.
      dropout_rate: dropout rate of the head; None is the model's.
    """

    name: str = "choice"
    kind: ClassifierKind = "bert"
    dropout_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._classifier()  # checks them

    @property
    def activation(self) -> Activation:
        """The one after the first layer."""
        return self._classifier().activation

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> ClassificationHead:
        """Makes the module, whose logits are [B, 1]."""
        return self._classifier().build(model, rngs=rngs)

    def _classifier(self) -> Classifier:
        return Classifier(
            name=self.name, num_classes=1, kind=self.kind, dropout_rate=self.dropout_rate
        )
