from t5x_lite.data.labels import NONE, of_class, of_score, of_span


def test_literals():
    assert [of_class(index) for index in (0, 2, -1)] == [(1, 0), (3, 0), NONE]
    assert [of_score(score) for score in (0.0, 3.8, 3.799999952316284, 5.0)] == [
        (1, 0), (3801, 0), (3801, 0), (5001, 0),
    ]  # fmt: skip
    assert of_score(-1.0) == NONE
    assert of_span(0, 9) == (1, 10)
