import pytest

from t5x_lite.models.heads import Classifier, Mlm, Rtd, Span, Token
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.task_heads import Classify, Spans, TagTokens, objective_for


@pytest.mark.parametrize(
    ("head", "objective", "task"),
    [
        (Mlm(), MaskedLM(mask_id=7), "tasks.encoder:documents"),
        (Span(longest=9), Spans(longest=9), "tasks.squad:squad"),
        (Classifier(num_classes=1), Classify(num_classes=1), "tasks.glue:stsb"),
        (
            Classifier(num_classes=3, kind="electra", dropout_rate=0.2),
            Classify(num_classes=3, head="electra", dropout_rate=0.2),
            "tasks.glue:mnli",
        ),
        (
            Token(num_classes=9, dropout_rate=0.2, labels=tuple("ABCDEFGHO")),
            TagTokens(num_classes=9, dropout_rate=0.2),
            "tasks.tokens:conll",
        ),
        (Rtd(), NoLoss(), "tasks.encoder:documents"),
        (None, NoLoss(), "tasks.encoder:documents"),
    ],
)
def test_what_trains_a_head(head, objective, task):
    assert objective_for(head, mask_id=7) == (objective, task)
    if head is not None and objective != NoLoss():
        assert objective.heads({head.name: head}) == (head,)
