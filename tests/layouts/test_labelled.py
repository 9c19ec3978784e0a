import math

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.layouts.labelled import token_types
from tests.layouts.laying_out import BERT, made

EXAMPLES = [
    {"inputs": [2, 5, 3, 6, 4, 3], "labels": [2, 0]},
    {"inputs": [2, 4, 3], "labels": [7, 0]},
]


def test_texts_with_labels():
    layout = layouts.Labelled()
    found = made(layout, [2, 0], num_rows=3, pack=False, examples=EXAMPLES, tokens=BERT)
    assert found["encoder_segment_ids"] == [[1] * 3 + [0] * 7, [0] * 10, [1] * 6 + [0] * 4]
    assert found["encoder_token_types"] == [[0] * 10, [0] * 10, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]]
    assert found["encoder_input_tokens"][2] == [2, 5, 3, 6, 4, 3, 0, 0, 0, 0]
    assert found["labels"] == [[7, 0], [0, 0], [2, 0]]
    none = made(layout, np.zeros(0, np.int64), examples=[])
    assert {name: np.shape(value) for name, value in none.items()} == {
        **dict.fromkeys(found, (1, 10)),
        "labels": (1, 2),
    }


def test_scores_are_floats_and_nan_where_there_is_none():
    layout = layouts.Labelled().of_task(["inputs", "labels", "scores"])
    assert layout.scores
    scored = [
        {**one, "scores": [score]} for one, score in zip(EXAMPLES, (3.799, -0.5), strict=True)
    ]
    found = made(layout, [2, 0], num_rows=3, pack=False, examples=scored, tokens=BERT)
    assert found["scores"][0] == -0.5
    assert found["scores"][2] == pytest.approx(3.799, abs=1e-6)
    assert math.isnan(found["scores"][1])
    assert not layouts.Labelled().of_task(["inputs", "labels"]).scores


def test_what_contradicts_the_task_is_refused():
    for scores, there in ((True, ["inputs", "labels"]), (False, ["inputs", "labels", "scores"])):
        with pytest.raises(
            InputError, match=f"scores is {scores}, but the task has .*unset data.layout.scores"
        ):
            layouts.Labelled(scores=scores).of_task(there)


def test_a_position_says_that_there_are_scores():
    assert layouts.Labelled().identity() == {"layout": "labelled"}
    assert layouts.Labelled(scores=True).identity() == {"layout": "labelled", "scores": True}


def test_token_types_change_behind_a_separator():
    assert token_types(np.array([[2, 5, 3, 6, 3]]), sep_id=3).tolist() == [[0, 0, 0, 1, 1]]
