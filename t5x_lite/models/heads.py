"""Heads for tasks: the base class, and heads for classes, choices, token labels and spans.

    head = Classifier(num_classes=3)
    module = head.build(model_config, rngs=rngs)
    logits = module(states)                        # float32 [B, C]

The name of a head is part of its parameters' paths: the parameters of "mlm" are at heads/mlm. A
checkpoint keeps all heads that its run and earlier runs made. Heads that the loss does not use are
frozen.

A custom head of any class trains by a custom objective. Evaluation, predict and serve answer by a
`Classifier`, `Choice`, `Token` or `Span`. A custom head that shall answer is a subclass of one of
these, keeps its name, and builds a module that is called in the same way.

`Choice` is a classifier of one class that reads a question with each of its choices (transformers'
*ForMultipleChoice): the softmax is over the choices.

The layers of a `Classifier` are as in transformers' *ForSequenceClassification:

    bert      dense -> tanh -> dropout -> linear
    roberta   dropout -> dense -> tanh -> dropout -> linear
    electra   dropout -> dense -> gelu -> dropout -> linear
    deberta   dense -> gelu -> dropout -> linear

`Token` labels each token: names of things, parts of speech. `Span` finds an answer in a text: its
first and last token.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from flax import nnx
from jaxtyping import Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Rate, check_bounds
from t5x_lite.core.trees import Array, Key
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.nn.dense import Activation, Dense, activate, truncated_normal
from t5x_lite.nn.dropout import dropout, split_key

HEADS = "heads/"
"""Beginning of the paths of all heads' parameters."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """Base of the heads' configs.

    Attributes:
      name: name of its parameters, below heads/; lower-case letters, digits and "_".
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                "the name of a head is lower-case letters, digits and _, a letter first: got "
                f"{self.name!r}"
            )
        if hasattr(HeadModules, self.name):
            raise InputError(f"the head name {self.name!r} is reserved; choose another name")
        check_bounds(self)

    @property
    def scores_texts(self) -> bool:
        """True if it gives one number for a text, or for two texts that are read together."""
        return False

    @property
    def has_parameters(self) -> bool:
        """True if a checkpoint holds parameters of it."""
        return True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> Any:
        """Make the module, with parameters or none.

        Args:
          model: model of the states that it reads.
          rngs: the stream "params" is used.

        Raises:
          InputError: it cannot read the states of such a model.
        """
        raise TypeError(f"{type(self).__name__} does not define build")


def is_custom(head: Head) -> bool:
    """Return whether a class outside of this package builds the head and its parameters."""
    return type(head).build.__module__.partition(".")[0] != __name__.partition(".")[0]


class HeadModules(nnx.Module):
    """The modules of some heads, by name.

    Args:
      heads: name -> config.
      model: model with the states that they read.
      rngs: the stream "params" is used.
    """

    def __init__(self, heads: Mapping[str, Head], model: ModelConfig, *, rngs: nnx.Rngs):
        for name, head in heads.items():
            setattr(self, name, head.build(model, rngs=rngs))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def by_name(heads: Iterable[Head]) -> dict[str, Head]:
    """Return the heads by name.

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
    """Return the config of an encoder, which the head reads.

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
    """Return a head's dense layer, a kernel of truncated normal values and an optional bias."""
    init = truncated_normal(stddev)
    return Dense(d_in, d_out, axes=axes, initializer=init, bias=bias, rngs=rngs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassHead(Head):
    """Base of the heads that give a logit for each class.

    Attributes:
      num_classes: number of classes.
      dropout_rate: dropout rate of the head; None is the model's.
      labels: names of the classes, if known.
    """

    num_classes: int = 2
    dropout_rate: Rate | None = None
    labels: tuple[str, ...] = ()

    fewest: ClassVar[int] = 1
    """Classes that such a head has at least."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < self.fewest:
            raise InputError(f"num_classes must be at least {self.fewest}: got {self.num_classes}")
        if self.labels and len(self.labels) != self.num_classes:
            raise InputError(
                f"labels must be {self.num_classes}, as many as num_classes: got {self.labels}"
            )

    def order_of(self, labels: Sequence[str]) -> tuple[str, ...] | None:
        """Return a task's labels in the order of the classes, which may be another one.

        Returns:
          The labels, or None if the names of the classes are missing or differ from the labels,
          ignoring case.
        """
        names = {label.lower(): label for label in labels}
        found = [names[label.lower()] for label in self.labels if label.lower() in names]
        whole = len(set(found)) == len(found) == len(self.labels) == len(labels)
        return tuple(found) if found and whole else None


def with_labels(heads: Sequence[Head], own: Head, labels: Sequence[str]) -> tuple[Head, ...]:
    """Return the heads, with the names of a task's classes set in one of them.

    Args:
      heads: heads of an experiment.
      own: the one that is trained; it need not be among them.
      labels: labels of the task, in their order.

    Raises:
      InputError: its classes are these in another order, so that it would learn them again.
    """
    if not isinstance(own, ClassHead) or own.num_classes != len(labels):
        return tuple(heads)
    order = own.order_of(labels)
    if order is not None and order != tuple(labels):
        raise InputError(
            f"the classes of head {own.name!r} are {', '.join(order)}, and the task has them in "
            f"the order {', '.join(labels)}: --init.fresh heads/{own.name} starts the head over"
        )
    # Training makes the classes exclusive, whatever they were before.
    exclusive = {"problem_type": "auto"} if hasattr(own, "problem_type") else {}
    named = dataclasses.replace(own, labels=tuple(labels), **exclusive)
    return (*(head for head in heads if head.name != own.name), named)


def as_before(heads: Sequence[Head], earlier: Sequence[Head]) -> tuple[Head, ...]:
    """Return a resumed run's earlier heads, perhaps with new names of classes.

    Args:
      heads: heads of the config.
      earlier: heads of the run so far; they set the order.
    """
    ours, before = by_name(heads), by_name(earlier)
    found = [ours.get(name, head) for name, head in before.items()]
    for i, (now, then) in enumerate(zip(found, earlier, strict=True)):
        if isinstance(then, ClassHead) and dataclasses.replace(then, labels=()) == now:
            found[i] = then
    return (*found, *(head for name, head in ours.items() if name not in before))


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
    """Classification head of a text; with one class it computes a score (regression).

    Attributes:
      kind: "bert", "roberta", "electra" or "deberta".
      problem_type: meaning of the logits, for the export: "multi_label_classification" if classes
        are independent; "auto" is regression for one class and exclusive classes for several.
    """

    name: str = "classifier"
    kind: ClassifierKind = "bert"
    problem_type: Problem = "auto"

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
        """Make the module."""
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
      stddev: standard deviation of the initial kernels.
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
        """Return logits of the classes; a key turns dropout on."""
        in_key, out_key = split_key(key, 2)
        x = dropout(hidden[:, 0], self.input_dropout_rate, key=in_key)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(dropout(x, self.dropout_rate, key=out_key))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Head):
    """The likeliness of a question with one of its choices.

    Attributes:
      kind: as of a `Classifier`.
      dropout_rate: dropout rate of the head; None is the model's.
    """

    name: str = "choice"
    kind: ClassifierKind = "bert"
    dropout_rate: Rate | None = None

    @property
    def activation(self) -> Activation:
        """The one after the first layer."""
        return self._classifier().activation

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> ClassificationHead:
        """Make the module, with logits of shape [B, 1]."""
        return self._classifier().build(model, rngs=rngs)

    def _classifier(self) -> Classifier:
        return Classifier(
            name=self.name, num_classes=1, kind=self.kind, dropout_rate=self.dropout_rate
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token(ClassHead):
    """Classes of each token."""

    name: str = "token"

    fewest: ClassVar[int] = 2

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "TokenHead":
        """Make the module."""
        encoder = encoder_of(self, model)
        rate = encoder.dropout_rate if self.dropout_rate is None else self.dropout_rate
        return TokenHead(
            encoder.d_model,
            self.num_classes,
            dropout_rate=rate,
            stddev=encoder.initializer_stddev,
            rngs=rngs,
        )


class TokenHead(nnx.Module):
    """dropout -> linear, at each position (transformers' *ForTokenClassification).

    Args:
      d_model: size of the hidden states.
      num_classes: logits.
      dropout_rate: before the layer.
      stddev: standard deviation of the initial kernel.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        num_classes: int,
        *,
        dropout_rate: float = 0.1,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.out = dense(d_model, num_classes, axes=("embed", None), stddev=stddev, rngs=rngs)
        self.dropout_rate = dropout_rate

    def __call__(
        self, hidden: Float[Array, "B S D"], *, key: Key | None = None
    ) -> Float[Array, "B S C"]:
        """Return float32 logits of the classes; a key turns dropout on."""
        return self.out.product(dropout(hidden, self.dropout_rate, key=key))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span(Head):
    """An answer's first and last token.

    Attributes:
      longest: maximum tokens of an answer.
    """

    name: str = "span"
    longest: Count = 30

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "SpanHead":
        """Make the module."""
        encoder = encoder_of(self, model)
        return SpanHead(encoder.d_model, stddev=encoder.initializer_stddev, rngs=rngs)


class SpanHead(nnx.Module):
    """Scores of an answer's first and last token: two logits for each position (SQuAD).

    Args:
      d_model: size of the hidden states.
      stddev: standard deviation of the initial kernel.
      rngs: the stream "params" is used.
    """

    def __init__(self, d_model: int, *, stddev: float = 0.02, rngs: nnx.Rngs):
        self.out = dense(
            d_model,
            2,
            axes=("embed", None),
            stddev=stddev,
            rngs=rngs,
        )

    def __call__(
        self, hidden: Float[Array, "B S D"]
    ) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
        """Return logits of the first and of the last token."""
        logits = self.out.product(hidden)
        return logits[..., 0], logits[..., 1]
