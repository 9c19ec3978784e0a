from t5x_lite.layouts.labelled import NONE, of_class, of_span


def test_literals():
    assert [of_class(index) for index in (0, 2, -1)] == [(1, 0), (3, 0), NONE]
    assert of_span(0, 9) == (1, 10)
