"""The heads that classify a text by its [CLS] state: GLUE's, cross-encoders', multiple choice.

What one is made of, by the model that it came with (transformers' *ForSequenceClassification):

    bert      dense -> tanh -> dropout -> linear
    roberta   dropout -> dense -> tanh -> dropout -> linear
    electra   dropout -> dense -> gelu -> dropout -> linear
    deberta   dense -> gelu -> dropout -> linear
"""

import dataclasses
from typing import Any, Literal, get_args

from flax import nnx
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.heads.base import dense, encoder_of
from t5x_lite.heads.classes import ClassHead
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.activations import Activation, activate
from t5x_lite.nn.dropout import dropout, split_key
from t5x_lite.types import Array, Key

ClassifierKind = Literal["bert", "roberta", "electra", "deberta"]
Problem = Literal["auto", "regression", "single_label_classification", "multi_label_classification"]
"""Meaning of a classifier's logits, in transformers' words."""

_KINDS: dict[str, dict[str, Any]] = {
    "bert": {"activation": "tanh", "input": False},
    "roberta": {"activation": "tanh", "input": True},
    "electra": {"activation": "gelu", "input": True},
    "deberta": {"activation": "gelu", "input": False},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier(ClassHead):
    """Classes of a text, or a score, which is one class.

    Attributes:
      kind: "bert", "roberta", "electra" or "deberta".
      problem_type: meaning of the logits, for the export: "multi_label_classification" if each
        class has a probability of its own; "auto" is a score for one class and exclusive classes
        for several.
    """

    name: str = "classifier"
    kind: ClassifierKind = "bert"
    problem_type: Problem = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.problem_type not in get_args(Problem):
            raise InputError(
                f"problem_type must be one of {get_args(Problem)}: got {self.problem_type!r}"
            )
        if self.kind not in get_args(ClassifierKind):
            raise InputError(f"kind must be one of {get_args(ClassifierKind)}: got {self.kind!r}")

    @property
    def scores_texts(self) -> bool:
        """See `Head.scores_texts`."""
        return self.num_classes == 1

    @property
    def problem(self) -> Problem:
        """The meaning of the logits, never "auto"."""
        if self.problem_type != "auto":
            return self.problem_type
        return "regression" if self.num_classes == 1 else "single_label_classification"

    @property
    def activation(self) -> Activation:
        """The one after the first layer."""
        return _KINDS[self.kind]["activation"]

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ClassificationHead":
        """Makes the module."""
        encoder = encoder_of(self, model)
        rate = encoder.dropout_rate if self.dropout_rate is None else self.dropout_rate
        return ClassificationHead(
            encoder.d_model,
            self.num_classes,
            activation=self.activation,
            dropout_rate=rate,
            input_dropout_rate=rate if _KINDS[self.kind]["input"] else 0.0,
            stddev=encoder.initializer_stddev,
            rngs=rngs,
        )


class ClassificationHead(nnx.Module):
    """Classes of a text, or one number, from the state of its [CLS] token.

    dropout -> dense -> activation -> dropout -> dense. The first layer and tanh are BERT's pooler,
    which has no dropout before it (Devlin et al. 2019; transformers' *ForSequenceClassification).

    Args:
      d_model: size of the hidden states.
      num_classes: logits; 1 for regression.
      activation: after the first layer.
      dropout_rate: before the second layer.
      input_dropout_rate: before the first one.
      stddev: of the kernels at the start.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        num_classes: int,
        *,
        activation: Activation = "tanh",
        dropout_rate: float = 0.1,
        input_dropout_rate: float = 0.0,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.dense = dense(
            d_model,
            d_model,
            axes=("embed", "mlp"),
            stddev=stddev,
            rngs=rngs,
        )
        self.out = dense(
            d_model,
            num_classes,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation
        self.dropout_rate = dropout_rate
        self.input_dropout_rate = input_dropout_rate

    def __call__(
        self, hidden: Float[Array, "B S D"], *, key: Key | None = None
    ) -> Float[Array, "B C"]:
        """Logits of the classes; a key turns dropout on."""
        in_key, out_key = split_key(key, 2)
        x = dropout(hidden[:, 0], self.input_dropout_rate, key=in_key)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(dropout(x, self.dropout_rate, key=out_key))
