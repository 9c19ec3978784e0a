"""Classification and regression by a head on an encoder: GLUE as BERT does it (Devlin et al. 2019).

    Classify(num_classes=3)        # cross-entropy: MNLI
    Classify(num_classes=1)        # a score, by its squared error: STS-B

The head reads the state of the first token, [CLS]. What it is made of, by the model that it came
with (transformers' *ForSequenceClassification):

    bert      dense -> tanh -> dropout -> linear
    roberta   dropout -> dense -> tanh -> dropout -> linear
    electra   dropout -> dense -> gelu -> dropout -> linear
    deberta   dense -> gelu -> dropout -> linear

Rows are those of data.layout "labelled". The head is at objective/classifier: weights of a
pretrained encoder come by --init, with the rules of configs/finetune/encoder_glue.py.
"""

import dataclasses
from typing import Any, ClassVar, Literal, get_args

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.data.labels import PARTS_OF_SCORE
from t5x_lite.errors import InputError
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig, EncoderModel
from t5x_lite.nn.dropout import split_key
from t5x_lite.nn.heads import ClassificationHead
from t5x_lite.objectives.base import Loss, Objective, Term
from t5x_lite.objectives.losses import cross_entropy
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.types import Array, Batch, Key

HeadKind = Literal["bert", "roberta", "electra", "deberta"]

_HEADS: dict[str, dict[str, Any]] = {
    "bert": {"activation": "tanh", "input": False},
    "roberta": {"activation": "tanh", "input": True},
    "electra": {"activation": "gelu", "input": True},
    "deberta": {"activation": "gelu", "input": False},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(Objective):
    """Cross-entropy of classes, or the squared error of a score.

    Attributes:
      num_classes: of the task; 1 is a score.
      head: "bert", "roberta", "electra" or "deberta".
      dropout_rate: of the head; None is the model's.
    """

    num_classes: int = 2
    head: HeadKind = "bert"
    dropout_rate: float | None = None

    layouts: ClassVar[tuple[str, ...]] = ("labelled",)

    def __post_init__(self) -> None:
        if self.num_classes < 1:
            raise InputError(f"objective.num_classes must be at least 1: got {self.num_classes}")
        if self.head not in get_args(HeadKind):
            raise InputError(
                f"objective.head must be one of {get_args(HeadKind)}: got {self.head!r}"
            )
        if self.dropout_rate is not None and not 0.0 <= self.dropout_rate < 1.0:
            raise InputError(f"objective.dropout_rate must be in [0, 1): got {self.dropout_rate}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ClassifyLoss":
        """Makes the loss module, whose parameters are those of the head."""
        if not isinstance(model, EncoderConfig):
            raise InputError(f"Classify needs an encoder, not {type(model).__name__}")
        return ClassifyLoss(self, model, rngs=rngs)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class ClassifyLoss(nnx.Module):
    """Sums over the labelled rows of a batch.

    Args:
      config: the objective.
      model: of the encoder.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Classify, model: EncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        rate = model.dropout_rate if config.dropout_rate is None else config.dropout_rate
        kind = _HEADS[config.head]
        self.classifier = ClassificationHead(
            model.d_model,
            config.num_classes,
            activation=kind["activation"],
            dropout_rate=rate,
            input_dropout_rate=rate if kind["input"] else 0.0,
            stddev=model.initializer_stddev,
            rngs=rngs,
        )

    def __call__(self, model: EncoderModel, batch: Batch, *, key: Key | None = None) -> Loss:
        """The loss of a batch of the layout "labelled"; rows without a label count 0.

        Raises:
          InputError: the features are those of another layout.
        """
        check_labelled(self.config, batch)
        logits = self.logits(model, batch, key=key)
        label = batch["labels"][:, 0]
        weights = (label > 0).astype(jnp.float32)
        weight = jnp.sum(weights)
        if self.config.num_classes == 1:
            scores = (label - 1).astype(jnp.float32) / PARTS_OF_SCORE
            total = jnp.sum(jnp.square(logits[:, 0] - scores) * weights)
            return Loss(
                terms={"squared_error": Term(total, weight)},
                metrics={"squared_error": (total, weight)},
            )
        targets = jnp.maximum(label - 1, 0)
        losses, _ = cross_entropy(logits, targets)
        right = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
        return Loss(
            terms={"cross_entropy": Term(jnp.sum(losses * weights), weight)},
            metrics={"accuracy": (jnp.sum(right * weights), weight)},
        )

    def logits(
        self, model: EncoderModel, batch: Batch, *, key: Key | None = None
    ) -> Float[Array, "B C"]:
        """What the head says of each row: float32 logits of the classes, or the score.

        Args:
          model: the encoder.
          batch: of the layout "labelled"; its labels are not read.
          key: turns dropout on.
        """
        model_key, head_key = split_key(key, 2)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=model_key)
        return self.classifier(hidden, key=head_key)


def check_labelled(objective: Objective, batch: Batch) -> None:
    """Refuses a batch that has no labels."""
    missing = {"encoder_input_tokens", "encoder_segment_ids", "labels"} - set(batch)
    if missing:
        raise InputError(
            f"objective {type(objective).__name__} reads texts with labels, but the batch has no "
            f"{', '.join(sorted(missing))}: data.layout must be labelled"
        )
