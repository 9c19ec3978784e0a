import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from tests.layouts.laying_out import BERT, made

EXAMPLES = [
    {"inputs": [2, 5, 3, 6, 4, 3], "labels": [4, 5], "window": [0]},
    {"inputs": [2, 5, 3, 4, 3], "labels": [1, 1], "window": [1]},
]


def test_rows_are_those_of_labelled():
    layout = layouts.Windows()
    options = {"num_rows": 3, "pack": False, "examples": EXAMPLES, "tokens": BERT}
    assert made(layout, [0, 2], **options) == made(layouts.Labelled(), [0, 2], **options)
    assert layout.lengths(inputs=9, targets=1) == {"inputs": 9, "labels": 2, "window": 1}
    none = made(layout, np.zeros(0, np.int64), examples=[])
    assert np.shape(none["encoder_input_tokens"]) == (1, 10)


def test_it_is_for_tasks_that_number_their_windows():
    there = ["inputs", "labels", "window"]
    assert layouts.Windows().of_task(there) == layouts.Windows()
    with pytest.raises(InputError, match=r"has inputs and labels; use labelled or a task such"):
        layouts.Windows().check(there[:2])
    with pytest.raises(InputError, match=r"has inputs and labels and window; use windows or a"):
        layouts.Labelled().check(there)


def test_what_a_position_and_a_cache_hold():
    layout = layouts.Windows(doc_stride=3)
    assert layout.identity() == {"layout": "windows", "doc_stride": 3, "query_length": 64}
    layout.check_fixed({"doc_stride": 3, "query_length": 64})
    with pytest.raises(
        InputError,
        match=r"^data\.layout\.doc_stride is 3, but the cache was made with .*doc_stride 128",
    ):
        layout.check_fixed(layouts.Windows().fixed())
    for field in ("doc_stride", "query_length"):
        with pytest.raises(InputError, match=rf"data\.layout\.{field} must be at least 1: got 0"):
            layouts.Windows(**{field: 0})


def test_the_windows_of_a_question_are_one():
    numbers = [0, 1, 2, 0, 0, 1]
    examples = [
        {"inputs": np.array([place, 7]), "window": np.array([number]), "id": place}
        for place, number in enumerate(numbers)
    ]
    whole = list(layouts.Windows().whole(iter(examples)))
    assert [one["inputs"].tolist() for one in whole] == [[0, 7, 1, 7, 2, 7], [3, 7], [4, 7, 5, 7]]
    assert [one["id"] for one in whole] == [0, 3, 4]
    assert list(layouts.Windows().whole(iter([]))) == []
    assert list(layouts.Labelled().whole(iter(examples))) == examples
