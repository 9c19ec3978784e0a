import pytest

from t5x_lite.metrics.text import multirc_exact_match, multirc_f1, record


def members(*pairs):
    return [{"group": group, "value": value} for group, value in pairs]


TARGETS = members(("p0-q0", 1), ("p0-q0", 0), ("p0-q1", 1), ("p0-q1", 1), ("p1-q0", 0))


def test_multirc():
    predictions = members(("", 1), ("", 0), ("", 1), ("", 0), ("", 1))
    # All answers: 2 right positives, 1 missed, 1 false alarm. Questions: the first alone is whole.
    assert multirc_f1(TARGETS, predictions) == {"f1": 4 / 6}
    assert multirc_exact_match(TARGETS, predictions) == {"exact_match": 1 / 3}


def test_an_answer_that_is_no_label_is_wrong():
    predictions = members(("", 1), ("", -1), ("", -1), ("", 1), ("", -1))
    # -1 for 0 is a false alarm, for 1 a miss: TP 2, FP 2, FN 1.
    assert multirc_f1(TARGETS, predictions) == {"f1": 4 / 7}
    assert multirc_exact_match(TARGETS, predictions) == {"exact_match": 0.0}


def test_multirc_all_right_and_all_wrong():
    assert multirc_f1(TARGETS, TARGETS) == {"f1": 1.0}
    assert multirc_exact_match(TARGETS, TARGETS) == {"exact_match": 1.0}
    wrong = [{"group": t["group"], "value": 1 - t["value"]} for t in TARGETS]
    assert multirc_f1(TARGETS, wrong) == {"f1": 0.0}
    assert multirc_exact_match(TARGETS, wrong) == {"exact_match": 0.0}


def test_record_counts_a_question_once_by_its_best_answer():
    targets = members((0, ["Paris", "the city"]), (0, ["Paris", "the city"]), (1, ["Ann Lee"]))
    predictions = members((0, "City"), (0, "London"), (1, "Ann"))
    # The second question: 1 of 2 words, 1 shared: 2 / 3.
    assert record(targets, predictions) == {
        "exact_match": 0.5,
        "f1": pytest.approx((1 + 2 / 3) / 2),
    }


@pytest.mark.parametrize("metric", [multirc_f1, multirc_exact_match, record])
def test_refuses_nothing_and_unequal_lengths(metric):
    with pytest.raises(ValueError, match="empty"):
        metric([], [])
    with pytest.raises(ValueError, match="there are 1 targets and 0 predictions"):
        metric(members((0, 1)), [])
