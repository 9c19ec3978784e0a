"""What config.json and tensors say of a head for a task."""

from pathlib import Path

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.encoders import (
    check_activation,
    labels_of,
    task_config,
    task_head,
    task_rules,
)
from t5x_lite.models.heads import Choice, Classifier, Mlm, Span, Token

WHERE = Path("config.json")
OPTIONS = {"kinds": {"classifier": "roberta", "choice": "bert"}, "dropout": "classifier_dropout"}
LABELS = {"0": "no", "2": "yes", "1": "perhaps"}


def tensors(*names, classes=3):
    return {name: np.zeros((classes, 4), np.float32) for name in names}


def head_of(config, found):
    return task_head(WHERE, config, found, **OPTIONS)


def named(suffix, **fields):
    return {"architectures": [f"Bert{suffix}"], **fields}


POOLED = ("bert.pooler.dense.weight", "classifier.weight")


@pytest.mark.parametrize(
    ("config", "found", "expected"),
    [
        (named("ForSequenceClassification", id2label=LABELS), tensors(*POOLED),
         Classifier(num_classes=3, kind="roberta", labels=("no", "perhaps", "yes"))),
        (named("ForSequenceClassification", classifier_dropout=0.3), tensors(*POOLED, classes=1),
         Classifier(num_classes=1, kind="roberta", dropout_rate=0.3)),
        (named("ForTokenClassification"), tensors("classifier.weight"), Token(num_classes=3)),
        (named("ForMultipleChoice"), tensors(*POOLED, classes=1), Choice(kind="bert")),
        (named("ForQuestionAnswering"), tensors("qa_outputs.weight"), Span()),
        # Without the name of a class it is told by the tensors.
        ({}, tensors("qa_outputs.weight"), Span()),
        ({}, tensors("sequence_summary.summary.weight", "classifier.weight"), Choice(kind="bert")),
        ({}, tensors(*POOLED), Classifier(num_classes=3, kind="roberta")),
        ({}, tensors("classifier.out_proj.weight"), Classifier(num_classes=3, kind="roberta")),
        ({"architectures": "Bert"}, tensors("classifier.weight"), Token(num_classes=3)),
        (named("Model"), tensors("bert.pooler.dense.weight"), None),
    ],
)  # fmt: skip
def test_the_head_of_a_directory(config, found, expected):
    assert head_of(config, found) == expected


@pytest.mark.parametrize(
    ("config", "found", "message"),
    [
        (named("ForTokenClassification"), {}, "needs the tensor classifier.weight"),
        (named("ForTokenClassification"), tensors("classifier.weight", classes=1), "at least 2"),
        (named("ForSequenceClassification", id2label={"0": "a"}), tensors(*POOLED),
         "id2label has the classes 0, but must have 3 classes, numbered from 0"),
        (named("ForSequenceClassification", id2label=["a"]), tensors(*POOLED), "must map class"),
        (named("ForSequenceClassification", id2label={"0": 1}), tensors(*POOLED), "to names"),
        (named("ForSequenceClassification", classifier_dropout=True), tensors(*POOLED),
         "classifier_dropout must be a dropout rate below 1, or null, got True"),
        (named("ForSequenceClassification", problem_type="ranking"), tensors(*POOLED),
         "problem_type 'ranking' is not supported; it must be one of regression, single_label"),
        (named("ForSequenceClassification", num_labels=2), tensors(*POOLED),
         "num_labels is 2, but the weights have 3 classes"),
    ],
)  # fmt: skip
def test_what_is_malformed(config, found, message):
    with pytest.raises(InputError, match=message):
        head_of(config, found)


def test_classes_that_do_not_exclude_each_other_are_said(caplog):
    config = named("ForSequenceClassification", problem_type="multi_label_classification")
    head = head_of(config, tensors(*POOLED))
    assert head == Classifier(
        num_classes=3, kind="roberta", problem_type="multi_label_classification"
    )
    assert task_config(head, dropout="d")["problem_type"] == "multi_label_classification"
    assert "are not mutually exclusive" in caplog.text


@pytest.mark.parametrize(
    ("problem", "classes", "kept"),
    [
        (None, 3, "auto"),
        (None, 1, "auto"),
        ("single_label_classification", 3, "auto"),
        ("single_label_classification", 1, "single_label_classification"),
        ("regression", 1, "auto"),
        ("regression", 3, "regression"),
        ("multi_label_classification", 1, "multi_label_classification"),
    ],
)
def test_the_meaning_of_the_logits_is_kept(problem, classes, kept):
    config = named("ForSequenceClassification", problem_type=problem)
    head = head_of(config, tensors(*POOLED, classes=classes))
    assert isinstance(head, Classifier)
    assert head.problem_type == kept
    if problem is not None:
        assert task_config(head, dropout="d")["problem_type"] == problem


def test_names_that_say_nothing_are_none():
    assert labels_of(WHERE, {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, 2) == ()
    assert labels_of(WHERE, {"id2label": {0: "a", 1: "LABEL_1"}}, 2) == ("a", "LABEL_1")
    assert labels_of(WHERE, {}, 2) == ()


def test_one_name_of_two_classes_is_none(caplog):
    assert labels_of(WHERE, {"id2label": {"0": "a", "1": "a"}}, 2) == ()
    assert "ignoring id2label, in which two classes have the same name" in caplog.text


def test_what_is_written_of_a_head():
    head = Classifier(num_classes=2, labels=("no", "yes"), dropout_rate=0.3)
    assert task_config(head, dropout="cls_dropout") == {
        "id2label": {"0": "no", "1": "yes"},
        "label2id": {"no": 0, "yes": 1},
        "problem_type": "single_label_classification",
        "cls_dropout": 0.3,
    }
    score = task_config(Classifier(num_classes=1), dropout="d")
    assert (score["id2label"], score["problem_type"]) == ({"0": "LABEL_0"}, "regression")
    assert task_config(Span(), dropout="d") == task_config(None, dropout="d") == {}
    check_activation(head, wanted="tanh", architecture="X")
    check_activation(Span(), wanted="tanh", architecture="X")
    with pytest.raises(
        InputError, match=r"transformers' X has .* gelu, .* checkpoint has tanh \(kind 'bert'"
    ):
        check_activation(head, wanted="gelu", architecture="X")


def test_rules():
    rules = task_rules(Classifier(), "a.dense", "a.out")
    assert {rule.ours: rule.theirs for rule in rules} == {
        "heads/classifier/dense/kernel": "a.dense.weight",
        "heads/classifier/dense/bias": "a.dense.bias",
        "heads/classifier/out/kernel": "a.out.weight",
        "heads/classifier/out/bias": "a.out.bias",
    }
    assert [rule.theirs for rule in task_rules(Span(), "x", "y")] == [
        "qa_outputs.weight", "qa_outputs.bias",
    ]  # fmt: skip
    assert task_rules(Mlm(), "x", "y") == task_rules(None, "x", "y") == []
