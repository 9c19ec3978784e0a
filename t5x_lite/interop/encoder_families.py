"""All families of encoders that Hugging Face's directories hold, and which one is meant."""

from collections.abc import Iterable, Mapping
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, by_name
from t5x_lite.heads.classifier import Classifier, ClassifierKind
from t5x_lite.interop.bert import BERT
from t5x_lite.interop.deberta import DEBERTA
from t5x_lite.interop.encoders import Family
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import EncoderConfig

FAMILIES: tuple[Family, ...] = (BERT, DEBERTA)

MODEL_TYPES = tuple(kind for family in FAMILIES for kind in family.model_types)
"""Those of all encoders."""


def family_of(hf_config: Mapping[str, Any]) -> Family | None:
    """The family of a config.json's model_type; None where it is of no encoder."""
    kind = hf_config.get("model_type")
    return next((family for family in FAMILIES if kind in family.model_types), None)


def with_family(model: ModelConfig, *, where: object) -> tuple[EncoderConfig, Family]:
    """An encoder's config and its family.

    Args:
      model: the config.
      where: its checkpoint, for messages.

    Raises:
      InputError: it is of no family.
    """
    for family in FAMILIES:
        # A subclass may compute another thing, of which transformers would know nothing.
        if isinstance(model, EncoderConfig) and type(model) is family.config:
            return model, family
    raise InputError(f"checkpoint {where}: transformers has no {type(model).__name__}")


def classifier_kind(model: EncoderConfig, heads: Iterable[Head]) -> ClassifierKind:
    """The kind of classification head that a checkpoint's family is fine-tuned with.

    Args:
      model: of the checkpoint.
      heads: that it has.
    """
    named = by_name(heads)
    if isinstance(classifier := named.get("classifier"), Classifier):
        return classifier.kind
    # A pretrained or imported ELECTRA is a BERT with the head "rtd".
    return (
        "electra" if "rtd" in named and model.classifier_kind == "bert" else model.classifier_kind
    )
