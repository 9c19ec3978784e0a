import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from tests.layouts.laying_out import BERT, made

EXAMPLES = [
    {"choices": [2, 5, 3, 6, 3, 2, 5, 3, 7, 3], "labels": [2, 0]},
    {"choices": [2, 4, 3], "labels": [1, 0]},
]


def test_a_question_with_each_of_its_choices():
    found = made(
        layouts.Choices(), [1, 0], num_rows=3, pack=False, inputs=6, examples=EXAMPLES, tokens=BERT
    )
    assert found == {
        "encoder_input_tokens": [
            [[2, 4, 3, 0, 0, 0], [0] * 6],
            [[2, 5, 3, 6, 3, 0], [2, 5, 3, 7, 3, 0]],
            [[0] * 6, [0] * 6],
        ],
        "encoder_segment_ids": [
            [[1, 1, 1, 0, 0, 0], [0] * 6],
            [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]],
            [[0] * 6, [0] * 6],
        ],
        "encoder_token_types": [
            [[0] * 6, [0] * 6],
            [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0]],
            [[0] * 6, [0] * 6],
        ],
        "labels": [[1, 0], [2, 0], [0, 0]],
    }


def test_the_shapes_are_known_without_examples():
    found = made(layouts.Choices(num=4), np.zeros(0, np.int64), examples=[])
    assert np.shape(found["encoder_token_types"]) == (1, 4, 10)


def test_more_choices_than_a_row_has_are_refused():
    three = [{"choices": [2, 3] * 3, "labels": [0, 0]}]
    with pytest.raises(
        InputError, match=r"has 3 choices, but data.layout.num is 2; set --data\.layout\.num 3"
    ):
        made(layouts.Choices(), [0], examples=three, pack=False)
    with pytest.raises(InputError, match="must be at least 2: got 1"):
        layouts.Choices(num=1)


def test_a_row_is_as_long_as_its_longest_choice():
    assert [layouts.Choices().longest(example) for example in examples()] == [5, 6, 0]


def examples():
    rows = ([2, 5, 3, 6, 3, 2, 5, 3], [2, 3, 2, 5, 5, 5, 5, 3], [])
    return [{"choices": np.array(row, np.int32)} for row in rows]
