"""Heads for tasks (classes, choices, token labels, spans) and for pretraining (MLM, RTD).

Heads for tasks: the base class, and heads for classes, choices, token labels and spans.

    head = Classifier(num_classes=3)
    module = head.build(model_config, rngs=rngs)
    logits = module(states)                        # float32 [B, C]

The name of a head is part of its parameters' paths: the parameters of "mlm" are at heads/mlm. A
checkpoint keeps all heads of its run and of earlier runs. Heads that the loss does not use are
frozen.

A custom head of any class can be trained by a custom objective. Evaluation, predict and serve need
a `Classifier`, `Choice`, `Token` or `Span`. To use a custom head there, derive it from one of these
classes, keep its name, and build a module that is called in the same way.

`Choice` is a classifier of one class that reads a question with each of its choices (transformers'
*ForMultipleChoice): the softmax is over the choices.

The layers of a `Classifier` are as in transformers' *ForSequenceClassification:

    bert      dense -> tanh -> dropout -> linear
    roberta   dropout -> dense -> tanh -> dropout -> linear
    electra   dropout -> dense -> gelu -> dropout -> linear
    deberta   dense -> gelu -> dropout -> linear

`Token` labels each token, for named entities or parts of speech. `Span` finds an answer in a text:
its first and last token.

Heads for pretraining: masked language modeling and replaced token detection.

The token embedding, which the output layer shares, is passed as an array, so that no module has two
parents.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Rate, check_bounds
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Key
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.nn.dense import (
    Activation,
    Dense,
    LayerNorm,
    activate,
    dropout,
    einsum,
    split_key,
    truncated_normal,
)
from t5x_lite.nn.slots import InvertibleSlot

HEADS = "heads/"
"""Prefix of the parameter paths of all heads."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """Base class of head configs.

    Attributes:
      name: name of the head in its parameters' paths, below heads/: lower-case letters, digits and
        "_".
    """

    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                "a head name must be lower-case letters, digits and _, with a letter first: got "
                f"{self.name!r}"
            )
        if hasattr(HeadModules, self.name):
            raise InputError(f"the head name {self.name!r} is reserved; choose another name")
        check_bounds(self)

    @property
    def scores_texts(self) -> bool:
        """True if the head gives one score for a text, or for a pair of texts read together."""
        return False

    @property
    def has_parameters(self) -> bool:
        """True if a checkpoint holds parameters of the head."""
        return True

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> Any:
        """Build the head's module.

        Args:
          model: config of the model that provides the hidden states.
          rngs: random streams; "params" is used.
        """
        raise TypeError(f"class {type(self).__name__} does not define the method build")


def is_custom(head: Head) -> bool:
    """Return True if the module of the head comes from a class outside of t5x_lite."""
    return type(head).build.__module__.partition(".")[0] != __name__.partition(".")[0]


class HeadModules(nnx.Module):
    """Modules of several heads, by name.

    Args:
      heads: head configs, by name.
      model: config of the model that provides the hidden states.
      rngs: random streams; "params" is used.
    """

    def __init__(self, heads: Mapping[str, Head], model: ModelConfig, *, rngs: nnx.Rngs):
        for name, head in heads.items():
            setattr(self, name, head.build(model, rngs=rngs))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def by_name(heads: Iterable[Head]) -> dict[str, Head]:
    """Return a dict of heads by name."""
    found: dict[str, Head] = {}
    for head in heads:
        if head.name in found:
            raise InputError(f"two heads have the name {head.name}; rename one of them")
        found[head.name] = head
    return found


def encoder_of(head: Head, model: ModelConfig) -> EncoderConfig:
    """Return the model config, or raise InputError if the model is not an encoder."""
    if not isinstance(model, EncoderConfig):
        raise InputError(
            f"head {head.name!r} needs an encoder, but the model is a {type(model).__name__}"
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
    """Build a head's dense layer, with a truncated normal kernel and an optional bias."""
    init = truncated_normal(stddev)
    return Dense(d_in, d_out, axes=axes, initializer=init, bias=bias, rngs=rngs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassHead(Head):
    """Base class of heads with a logit for each class.

    Attributes:
      num_classes: number of classes.
      dropout_rate: dropout rate of the head; None is the model's rate.
      labels: names of the classes, if known.
    """

    num_classes: int = 2
    dropout_rate: Rate | None = None
    labels: tuple[str, ...] = ()

    fewest: ClassVar[int] = 1
    """Minimum number of classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < self.fewest:
            raise InputError(
                f"head {self.name!r}: num_classes must be at least {self.fewest}: got "
                f"{self.num_classes}"
            )
        if self.labels and len(self.labels) != self.num_classes:
            raise InputError(
                f"head {self.name!r}: labels must have {self.num_classes} entries (num_classes): "
                f"got {self.labels}"
            )

    def order_of(self, labels: Sequence[str]) -> tuple[str, ...] | None:
        """Return a task's labels in the order of the head's class names.

        Returns:
          The labels; None if they differ from the head's class names (ignoring case).
        """
        names = {label.lower(): label for label in labels}
        found = [names[label.lower()] for label in self.labels if label.lower() in names]
        whole = len(set(found)) == len(found) == len(self.labels) == len(labels)
        return tuple(found) if found and whole else None


def with_labels(heads: Sequence[Head], own: Head, labels: Sequence[str]) -> tuple[Head, ...]:
    """Name the classes of one head by the labels of a task, and return all heads.

    Args:
      heads: heads of an experiment.
      own: head to label; it need not be in `heads`.
      labels: labels of the task, in order.

    Raises:
      InputError: if the head has these classes in another order.
    """
    if not isinstance(own, ClassHead) or own.num_classes != len(labels):
        return tuple(heads)
    order = own.order_of(labels)
    if order is not None and order != tuple(labels):
        raise InputError(
            f"head {own.name!r} has the class order {', '.join(order)}, but the task has the class "
            f"order {', '.join(labels)}; reinitialize the head by --init.fresh heads/{own.name}"
        )
    # Training makes the classes exclusive, whatever they were before.
    exclusive = {"problem_type": "auto"} if hasattr(own, "problem_type") else {}
    named = dataclasses.replace(own, labels=tuple(labels), **exclusive)
    return (*(head for head in heads if head.name != own.name), named)


def as_before(heads: Sequence[Head], earlier: Sequence[Head]) -> tuple[Head, ...]:
    """Order the heads of a resumed run as before it was resumed, and return them.

    Args:
      heads: heads in the config of the resumed run.
      earlier: heads before the run was resumed.
    """
    ours, before = by_name(heads), by_name(earlier)
    found = [ours.get(name, head) for name, head in before.items()]
    for i, (now, then) in enumerate(zip(found, earlier, strict=True)):
        if isinstance(then, ClassHead) and dataclasses.replace(then, labels=()) == now:
            found[i] = then
    return (*found, *(head for name, head in ours.items() if name not in before))


ClassifierKind = Literal["bert", "roberta", "electra", "deberta"]
Problem = Literal["auto", "regression", "single_label_classification", "multi_label_classification"]
"""Meaning of a classifier's logits, with transformers' values."""

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
      kind: kind of the layers: "bert", "roberta", "electra" or "deberta".
      problem_type: meaning of the logits, for the export: "multi_label_classification" if classes
        are independent; "auto" is regression for one class and exclusive classes for several.
    """

    name: str = "classifier"
    kind: ClassifierKind = "bert"
    problem_type: Problem = "auto"

    @property
    def scores_texts(self) -> bool:
        return self.num_classes == 1

    @property
    def problem(self) -> Problem:
        if self.problem_type != "auto":
            return self.problem_type
        return "regression" if self.num_classes == 1 else "single_label_classification"

    @property
    def activation(self) -> Activation:
        """Activation after the head's first layer."""
        return _KINDS[self.kind]["activation"]

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ClassificationHead":
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
    """Module that computes class logits of a text from the [CLS] hidden state.

    The layers are dropout -> dense -> activation -> dropout -> dense. The first dense layer and
    tanh are BERT's pooler, which has no dropout before it (Devlin et al. 2019; transformers'
    *ForSequenceClassification).

    Args:
      d_model: size of the hidden states.
      num_classes: number of logits; 1 for regression.
      activation: activation after the first layer.
      dropout_rate: dropout rate before the second layer.
      input_dropout_rate: dropout rate before the first layer.
      stddev: standard deviation of the initial kernels.
      rngs: random streams; "params" is used.
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
        """Return the logits of the classes; a random key enables dropout."""
        in_key, out_key = split_key(key, 2)
        x = dropout(hidden[:, 0], self.input_dropout_rate, key=in_key)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(dropout(x, self.dropout_rate, key=out_key))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Head):
    """Head of multiple choice: the score of a question with one of its choices.

    Attributes:
      kind: kind of the layers, as in `Classifier`.
      dropout_rate: dropout rate of the head; None is the model's rate.
    """

    name: str = "choice"
    kind: ClassifierKind = "bert"
    dropout_rate: Rate | None = None

    @property
    def activation(self) -> Activation:
        return self._classifier().activation

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> ClassificationHead:
        return self._classifier().build(model, rngs=rngs)

    def _classifier(self) -> Classifier:
        return Classifier(
            name=self.name, num_classes=1, kind=self.kind, dropout_rate=self.dropout_rate
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token(ClassHead):
    """Head that labels each token with one of several classes."""

    name: str = "token"

    fewest: ClassVar[int] = 2

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "TokenHead":
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
    """Module that computes class logits of each token: dropout -> linear, as in transformers.

    Args:
      d_model: size of the hidden states.
      num_classes: number of logits per token.
      dropout_rate: dropout rate before the linear layer.
      stddev: standard deviation of the initial kernel.
      rngs: random streams; "params" is used.
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
        """Return float32 class logits of each token; a random key enables dropout."""
        return self.out.product(dropout(hidden, self.dropout_rate, key=key))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span(Head):
    """Head that finds an answer in a text: its first and last token.

    Attributes:
      longest: maximum length of an answer, in tokens.
    """

    name: str = "span"
    longest: Count = 30

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "SpanHead":
        encoder = encoder_of(self, model)
        return SpanHead(encoder.d_model, stddev=encoder.initializer_stddev, rngs=rngs)


class SpanHead(nnx.Module):
    """Module that computes two logits per token: start and end of an answer (SQuAD).

    Args:
      d_model: size of the hidden states.
      stddev: standard deviation of the initial kernel.
      rngs: random streams; "params" is used.
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
        """Return two logits per token: for the start and for the end of an answer."""
        logits = self.out.product(hidden)
        return logits[..., 0], logits[..., 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mlm(Head):
    """Config of the head for masked language modeling."""

    name: str = "mlm"

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "MaskedLMHead":
        encoder = encoder_of(self, model)
        return MaskedLMHead(
            encoder.d_model,
            encoder.table_size,
            encoder.vocab_size,
            activation=encoder.activation,
            norm_epsilon=encoder.norm_epsilon,
            stddev=encoder.initializer_stddev,
            rngs=rngs,
        )


class MaskedLMHead(nnx.Module):
    """Module that computes token logits: LayerNorm(activation(dense(hidden))) table^T + bias.

    Source: google-research/bert run_pretraining.py, get_masked_lm_output.

    Args:
      d_model: size of the hidden states.
      embedding_size: number of columns of the token embedding.
      vocab_size: number of rows of the token embedding.
      activation: activation after the dense layer.
      norm_epsilon: epsilon of the norm.
      stddev: standard deviation of the initial kernel.
      rngs: random streams; "params" is used.
    """

    inverse: InvertibleSlot | None = None

    def __init__(
        self,
        d_model: int,
        embedding_size: int,
        vocab_size: int,
        *,
        activation: Activation = "gelu",
        norm_epsilon: float = 1e-12,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        # Whole on each device of "tensor": the norm that follows sums over the features.
        self.dense = dense(
            d_model,
            embedding_size,
            axes=("embed", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.norm = LayerNorm(embedding_size, norm_epsilon)
        self.bias = nnx.Param(jnp.zeros((vocab_size,), jnp.float32), logical=("vocab",))
        self.activation: Activation = activation

    def __call__(
        self, hidden: Float[Array, "*batch D"], table: Float[Array, "V E"]
    ) -> Float[Array, "*batch V"]:
        """Return the logits of all tokens of the vocabulary.

        Args:
          hidden: hidden states of the positions to predict.
          table: token embedding.
        """
        x = self.transform(hidden).astype(table.dtype)
        batch = "ABCF"[: x.ndim - 1]
        logits = einsum(f"{batch}E,VE->{batch}V", x, table) + self.bias[...].astype(jnp.float32)
        return constrain(logits, "batch", "length", "vocab") if logits.ndim == 3 else logits

    def transform(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch E"]:
        """Apply dense layer, activation and norm, before the product with the token embedding."""
        x = activate(self.dense.product(hidden), self.activation)
        x = self.norm(x.astype(hidden.dtype))
        return x if self.inverse is None else self.inverse.inverse(x)


RtdKind = Literal["electra", "deberta"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rtd(Head):
    """Config of the head for replaced token detection.

    Attributes:
      kind: architecture of the head, "electra" or "deberta".
    """

    name: str = "rtd"
    kind: RtdKind = "electra"

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ElectraRtdHead | DebertaRtdHead":
        encoder = encoder_of(self, model)
        activation, stddev = encoder.activation, encoder.initializer_stddev
        if self.kind == "electra":
            return ElectraRtdHead(encoder.d_model, activation=activation, stddev=stddev, rngs=rngs)
        return DebertaRtdHead(
            encoder.d_model,
            activation=activation,
            norm_epsilon=encoder.norm_epsilon,
            stddev=stddev,
            rngs=rngs,
        )


class ElectraRtdHead(nnx.Module):
    """ELECTRA's replaced token detection: dense -> activation -> one logit (Clark et al. 2020).

    Args:
      d_model: size of the hidden states.
      activation: activation after the first layer.
      stddev: standard deviation of the initial kernels.
      rngs: random streams; "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        *,
        activation: Activation = "gelu",
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
            1,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation

    def __call__(self, hidden: Float[Array, "B S D"]) -> Float[Array, "B S"]:
        """Return the logit of "replaced" for each token."""
        x = activate(self.dense.product(hidden), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]


class DebertaRtdHead(nnx.Module):
    """DeBERTaV3's replaced token detection: w2 activation(W1 LayerNorm(h_i + h_CLS)).

    Source: He et al. 2021; microsoft/DeBERTa, apps/models/replaced_token_detection_model.py.

    Args:
      d_model: size of the hidden states.
      activation: activation after the first layer.
      norm_epsilon: epsilon of the norm.
      stddev: standard deviation of the initial kernels.
      rngs: random streams; "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        *,
        activation: Activation = "gelu",
        norm_epsilon: float = 1e-7,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.norm = LayerNorm(d_model, norm_epsilon)
        self.dense = dense(
            d_model,
            d_model,
            axes=("embed", "mlp"),
            stddev=stddev,
            rngs=rngs,
        )
        self.out = dense(
            d_model,
            1,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation

    def __call__(
        self, hidden: Float[Array, "B S D"], *, positions: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B S"]:
        """Return the logit of "replaced" for each token.

        Args:
          hidden: hidden states of the encoder.
          positions: positions from 0 within each packed document, which begins with its own [CLS];
            None for one document per row.
        """
        if positions is None:
            first = hidden[:, :1]
        else:
            starts = jnp.arange(hidden.shape[1])[None] - positions
            first = jnp.take_along_axis(hidden, starts[..., None], axis=1)
        x = self.norm(hidden + first)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]
