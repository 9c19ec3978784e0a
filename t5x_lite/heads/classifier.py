"""The heads that classify a text by its [CLS] state: GLUE's, cross-encoders', multiple choice.

What one is made of, by the model that it came with (transformers' *ForSequenceClassification):

    bert      dense -> tanh -> dropout -> linear
    roberta   dropout -> dense -> tanh -> dropout -> linear
    electra   dropout -> dense -> gelu -> dropout -> linear
    deberta   dense -> gelu -> dropout -> linear
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from flax import nnx
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, by_name, dense, encoder_of
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.activations import Activation, activate
from t5x_lite.nn.dropout import dropout, split_key
from t5x_lite.types import Array, Key

ClassifierKind = Literal["bert", "roberta", "electra", "deberta"]

_KINDS: dict[str, dict[str, Any]] = {
    "bert": {"activation": "tanh", "input": False},
    "roberta": {"activation": "tanh", "input": True},
    "electra": {"activation": "gelu", "input": True},
    "deberta": {"activation": "gelu", "input": False},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier(Head):
    """Classes of a text, or a score.

    Attributes:
      num_classes: of the task; 1 is a score.
      kind: "bert", "roberta", "electra" or "deberta".
      dropout_rate: of the head; None is the model's.
      labels: names of the classes, where they are known.
    """

    name: str = "classifier"
    num_classes: int = 2
    kind: ClassifierKind = "bert"
    dropout_rate: float | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 1:
            raise InputError(f"num_classes must be at least 1: got {self.num_classes}")
        if self.kind not in get_args(ClassifierKind):
            raise InputError(f"kind must be one of {get_args(ClassifierKind)}: got {self.kind!r}")
        if self.labels and len(self.labels) != self.num_classes:
            raise InputError(
                f"labels must be {self.num_classes}, as many as num_classes: got {self.labels}"
            )
        check_rate(self.dropout_rate)

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

    def order_of(self, labels: Sequence[str]) -> tuple[str, ...] | None:
        """A task's labels in the order of the classes, which may be another one.

        Returns:
          None where the classes have no names, or other ones than the labels; case does not matter.
        """
        names = {label.lower(): label for label in labels}
        found = [names[label.lower()] for label in self.labels if label.lower() in names]
        whole = len(set(found)) == len(found) == len(self.labels) == len(labels)
        return tuple(found) if found and whole else None


def with_labels(heads: Sequence[Head], own: Head, labels: Sequence[str]) -> tuple[Head, ...]:
    """Heads, one of which has the names of a task's classes from now on.

    Args:
      heads: of an experiment.
      own: the one that is trained; it need not be among them.
      labels: of the task, in their order.

    Raises:
      InputError: its classes are these in another order, so that it would learn them anew.
    """
    if not isinstance(own, Classifier) or own.num_classes != len(labels):
        return tuple(heads)
    order = own.order_of(labels)
    if order is not None and order != tuple(labels):
        raise InputError(
            f"the classes of head {own.name!r} are {', '.join(order)}, and the task has them in "
            f"the order {', '.join(labels)}: --init.fresh heads/{own.name} begins the head anew"
        )
    named = dataclasses.replace(own, labels=tuple(labels))
    return (*(head for head in heads if head.name != own.name), named)


def as_before(heads: Sequence[Head], earlier: Sequence[Head]) -> tuple[Head, ...]:
    """The heads of a run that goes on: those that it had, which may have got names of classes.

    Args:
      heads: of the config.
      earlier: of the run so far, in whose order they are.
    """
    ours, before = by_name(heads), by_name(earlier)
    found = [ours.get(name, head) for name, head in before.items()]
    for i, (now, then) in enumerate(zip(found, earlier, strict=True)):
        if isinstance(then, Classifier) and dataclasses.replace(then, labels=()) == now:
            found[i] = then
    return (*found, *(head for name, head in ours.items() if name not in before))


def check_rate(rate: float | None) -> None:
    """Refuses, by an InputError, what is no rate of dropout, nor None."""
    if rate is not None and not 0.0 <= rate < 1.0:
        raise InputError(f"dropout_rate must be in [0, 1): got {rate}")


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
