import math

import numpy as np
import pytest

from t5x_lite.data.postprocess import (
    ClassIndex,
    Similarity,
    any_number,
    class_index,
    is_answer,
    lower_text,
    multirc,
    qa,
    record,
    similarity,
    string_to_float,
    wsc_simple,
)


def test_class_index_of_a_label_and_of_any_other_text():
    labels = ("negative", "positive")
    assert [class_index(text, labels) for text in ("negative", "positive")] == [0, 1]
    assert [class_index(text, labels) for text in ("", "Positive", "positive .")] == [-1, -1, -1]


def test_white_space_around_a_label_does_not_matter():
    assert [class_index(text, ("no", " yes")) for text in (" no", "no\n", "yes", "n o")] == [
        0, 0, 1, -1,
    ]  # fmt: skip
    assert multirc(" True ") == {"value": 1}


def test_similarity_has_a_closed_set_to_rank_and_takes_any_number():
    assert similarity.labels[:3] == ("0.0", "0.2", "0.4")
    assert (len(Similarity.labels), Similarity.labels[-1]) == (26, "5.0")
    assert [similarity(text) for text in ("3.4", " 3.41", "five")] == [3.4, 3.41, -1.0]


@pytest.mark.parametrize(
    ("postprocess", "text", "wanted"),
    [
        (ClassIndex(("no", "yes")), " yes", True),
        (ClassIndex(("no", "yes")), "maybe", False),
        (multirc, "True", True),
        (similarity, "3.41", True),
        (similarity, "-1", False),
        (similarity, "nan", False),
        (similarity, " \u2047 . \u2047 ", False),
        (any_number, "-1", True),
        (any_number, "one", False),
        (wsc_simple, "the dog", None),
        (None, "anything", None),
    ],
)
def test_is_answer(postprocess, text, wanted):
    assert is_answer(postprocess, text) is wanted


def test_class_index_as_a_postprocessor_knows_its_labels():
    postprocess = ClassIndex(("negative", "positive"))
    assert postprocess.labels == ("negative", "positive")
    assert postprocess("positive", example={"idx": 3}, is_target=True) == 1
    assert postprocess("good") == -1


def test_string_to_float_has_a_default():
    assert [string_to_float(text) for text in ("3.4", " 1e2 ", "five", "")] == [3.4, 100.0, -1, -1]
    assert string_to_float("five", default=0.0, example={}, is_target=True) == 0.0
    assert math.isnan(string_to_float("nan"))


def test_lower_text():
    assert lower_text("Ab", example={}) == "ab"


def test_multirc_groups_targets_by_their_question():
    example = {"idx/question": 14, "idx/paragraph": 3, "idx/answer": 2}
    assert multirc("True", example=example, is_target=True) == {"value": 1, "group": 14}
    assert multirc("False", example=example) == {"value": 0}
    assert multirc("yes") == {"value": -1}
    assert multirc.labels == ("False", "True")


def test_record_gives_all_answers_of_a_target():
    answers = np.array([b"Bob", b"Bob B."], object)  # as TensorFlow gives them
    example = {"answers": answers, "idx/passage": 2, "idx/query": 9}
    assert record("Bob", example=example, is_target=True) == {
        "value": ["Bob", "Bob B."],
        "group": (2, 9),
    }
    assert record("Ann", example=example) == {"value": "Ann"}


def test_qa_gives_all_answers_of_a_target():
    assert qa("a", example={"answers": ["a", "b"]}, is_target=True) == ["a", "b"]
    assert qa("c", example={"answers": ["a", "b"]}) == "c"


@pytest.mark.parametrize(
    ("prediction", "referent", "same"),
    [
        ("bunny", "the fuzzy Bunny", 1),
        ("the fuzzy bunny", "bunny", 1),
        ("fuzzy dog", "bunny fuzzy", 0),
        ("Bob", "Bob's hat", 0),
        ("bob's", "Bob's hat", 1),
        ("their hat", "hat", 1),
        ("", "hat", -1),
        ("the", "hat", -1),
        ("cat", "dog", 0),
    ],
)
def test_wsc_simple_compares_nouns(prediction, referent, same):
    assert wsc_simple(prediction, example={"targets_pretokenized": referent, "label": 0}) == same
    assert wsc_simple(prediction, example={"targets_pretokenized": referent.encode()}) == same


def test_a_target_of_wsc_is_its_label():
    example = {"targets_pretokenized": "Bob", "label": 0}
    assert wsc_simple("Bob", example=example, is_target=True) == 0
