"""A label for each word by a head on an encoder: named entities, parts of speech (CoNLL-2003).

    TagTokens(num_classes=9)       # O, and B- and I- of four kinds of names

The head "token" reads the state of each token, and the loss is the cross-entropy at the first piece
of each word, the mean over the words of the global batch (Devlin et al. 2019, section 5.3;
transformers' *ForTokenClassification, of which other pieces have the label -100). Rows are those of
data.layout Tokens().
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from flax import nnx

from t5x_lite.data.layouts import Layout, Tokens
from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, HeadModules
from t5x_lite.heads.token import Token
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.nn.dropout import split_key
from t5x_lite.objectives.base import Loss, Objective
from t5x_lite.objectives.classify import loss_of_classes
from t5x_lite.objectives.masked_lm import features, require_encoder
from t5x_lite.types import Batch, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagTokens(Objective):
    """Cross-entropy of the classes of words.

    Attributes:
      num_classes: number of classes.
      dropout_rate: dropout rate of the head; None is the model's.
    """

    num_classes: int = 2
    dropout_rate: float | None = None

    layouts: ClassVar[tuple[type[Layout], ...]] = (Tokens,)

    def __post_init__(self) -> None:
        try:
            self._head()
        except InputError as error:
            raise InputError(f"objective.{error}") from error

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "TagTokensLoss":
        """Makes the loss module, which has no parameters."""
        del model, rngs
        return TagTokensLoss(self)

    def heads(self, kept: Mapping[str, Head]) -> tuple[Head, ...]:
        """The head "token", with the names of its classes where they are known."""
        known = kept.get("token")
        if isinstance(known, Token) and known.num_classes == self.num_classes:
            return (self._head(known.labels),)
        return (self._head(),)

    def _head(self, labels: tuple[str, ...] = ()) -> Token:
        return Token(num_classes=self.num_classes, dropout_rate=self.dropout_rate, labels=labels)

    def check_model(self, model: nnx.Module) -> None:
        """Refuses what is no encoder."""
        require_encoder(self, model)


class TagTokensLoss(nnx.Module):
    """Sums over the labelled tokens of a batch.

    Args:
      config: the objective.
    """

    def __init__(self, config: TagTokens):
        self.config = config

    def __call__(
        self, model: EncoderModel, heads: HeadModules, batch: Batch, *, key: Key | None = None
    ) -> Loss:
        """The loss of a batch of the layout Tokens(); tokens without a label count 0.

        Raises:
          InputError: the features are those of another layout.
        """
        missing = {"encoder_input_tokens", "encoder_segment_ids", "token_labels"} - set(batch)
        if missing:
            raise InputError(
                "objective TagTokens reads tokens with labels, but the batch has no "
                f"{', '.join(sorted(missing))}: data.layout must be tokens"
            )
        model_key, head_key = split_key(key, 2)
        hidden = model(batch["encoder_input_tokens"], **features(batch), key=model_key)
        return loss_of_classes(heads["token"](hidden, key=head_key), batch["token_labels"])
