"""Which objective trains a head, and on what: for imported checkpoints, none of which says it."""

from t5x_lite.heads.base import Head
from t5x_lite.heads.choice import Choice
from t5x_lite.heads.classifier import Classifier
from t5x_lite.heads.mlm import Mlm
from t5x_lite.heads.span import Span
from t5x_lite.heads.token import Token
from t5x_lite.objectives.base import NoLoss, Objective
from t5x_lite.objectives.choose import Choose
from t5x_lite.objectives.classify import Classify
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.spans import Spans
from t5x_lite.objectives.tag_tokens import TagTokens

DOCUMENTS = "tasks.encoder:documents"
_BY_CLASSES = {1: "tasks.glue:stsb", 3: "tasks.glue:mnli"}


def objective_for(head: Head | None, *, mask_id: int) -> tuple[Objective, str]:
    """The objective that trains a head, and a task of its kind; `NoLoss` where there is none.

    Args:
      head: of the checkpoint; None is an encoder alone.
      mask_id: the [MASK] of its vocabulary.
    """
    if isinstance(head, Mlm):
        return MaskedLM(mask_id=mask_id), DOCUMENTS
    if isinstance(head, Choice):
        return Choose(head=head.kind, dropout_rate=head.dropout_rate), "tasks.super_glue:copa"
    if isinstance(head, Span):
        return Spans(longest=head.longest), "tasks.squad:squad"
    if isinstance(head, Token):
        tag = TagTokens(num_classes=head.num_classes, dropout_rate=head.dropout_rate)
        return tag, "tasks.tokens:conll"
    if isinstance(head, Classifier):
        objective = Classify(
            num_classes=head.num_classes, head=head.kind, dropout_rate=head.dropout_rate
        )
        return objective, _BY_CLASSES.get(head.num_classes, "tasks.glue:sst2")
    return NoLoss(), DOCUMENTS
