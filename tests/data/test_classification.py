import pytest

from t5x_lite.data.preprocessors import glue, label_text, stsb


def test_glue_is_the_template_the_word_of_the_label_and_the_number():
    record = {"premise": "It rains .", "hypothesis": "It is  wet .", "label": 2, "idx": 5}
    template = "mnli hypothesis: {hypothesis} premise: {premise}"
    labels = ("entailment", "neutral", "contradiction")
    assert glue(record, inputs=template, labels=labels) == {
        "inputs": "mnli hypothesis: It is  wet . premise: It rains .",
        "targets": "contradiction",
        "idx": 5,
    }


def test_an_unknown_label_is_unk():
    assert label_text(-1, ("no", "yes")) == "<unk>"
    assert label_text(0, ("no", "yes")) == "no"


@pytest.mark.parametrize(
    ("score", "text"),
    [
        # As tf.as_string(tf.round(x * 5) / 5, precision=1) in float32.
        (0.0, "0.0"),
        (0.1, "0.0"),
        (0.3, "0.4"),
        (0.5, "0.4"),
        (0.7, "0.8"),
        (1.8, "1.8"),
        (2.5, "2.4"),
        (2.6, "2.6"),
        (3.1, "3.2"),
        (4.9, "4.8"),
        (5.0, "5.0"),
        (-1.0, "-1.0"),
    ],
)
def test_stsb_rounds_to_fifths_as_float32(score, text):
    record = {"sentence1": "A man runs .", "sentence2": "Someone runs.", "label": score, "idx": 0}
    assert stsb(record) == {
        "inputs": "stsb sentence1: A man runs . sentence2: Someone runs.",
        "targets": text,
        "idx": 0,
    }
