import numpy as np
import pytest

from t5x_lite.inference.text_encoder import room, with_cls


@pytest.mark.parametrize(
    ("num", "expected"),
    [
        (0, [2, 3]),
        (3, [2, 5, 6, 7, 3]),
        (4, [2, 5, 6, 7, 2, 8, 3]),
        (7, [2, 5, 6, 7, 2, 8, 9, 10, 2, 11, 3]),
    ],
)
def test_a_cls_before_each_window(num, expected):
    row = np.array([2, *range(5, 5 + num), 3], np.int32)
    found = with_cls(row, 3)
    assert found.tolist() == expected
    assert found.dtype == np.int32
    if num <= 3:
        assert found is row


@pytest.mark.parametrize("window", [1, 3, 256])
def test_the_longest_text_of_a_row(window):
    for length in (3, 5, 9, 10, 514):
        most = room(length, window)

        def size(num):
            return len(with_cls(np.array([2, *[5] * num, 3]), window))

        assert size(most) <= length < size(most + 1)
