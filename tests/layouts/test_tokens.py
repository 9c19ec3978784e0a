import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from tests.layouts.laying_out import BERT, made

EXAMPLES = [
    {"inputs": [2, 5, 7, 6, 3], "token_labels": [0, 4, 0, 1, 0]},
    {"inputs": [2, 4, 3], "token_labels": [0, 1, 0]},
]


def test_sentences_that_share_a_row():
    assert made(layouts.Tokens(), [0, 0], examples=EXAMPLES, tokens=BERT) == {
        "encoder_input_tokens": [[2, 5, 7, 6, 3, 2, 4, 3, 0, 0]],
        "encoder_segment_ids": [[1, 1, 1, 1, 1, 2, 2, 2, 0, 0]],
        "token_labels": [[0, 4, 0, 1, 0, 0, 1, 0, 0, 0]],
    }


def test_a_sentence_a_row():
    found = made(
        layouts.Tokens(), [2, 0], num_rows=3, pack=False, inputs=5, examples=EXAMPLES, tokens=BERT
    )
    assert found == {
        "encoder_input_tokens": [[2, 4, 3, 0, 0], [0] * 5, [2, 5, 7, 6, 3]],
        "encoder_segment_ids": [[1, 1, 1, 0, 0], [0] * 5, [1] * 5],
        "token_labels": [[0, 1, 0, 0, 0], [0] * 5, [0, 4, 0, 1, 0]],
    }


def test_the_shapes_are_known_without_examples():
    layout = layouts.Tokens()
    found = made(layout, np.zeros(0, np.int64), examples=[])
    assert {np.shape(value) for value in found.values()} == {(1, 10)}
    lengths = layout.lengths(inputs=10, targets=7)
    assert layout.capacity(lengths) == (10, 10)
    assert layout.identity() == {"layout": "tokens"}
    assert layout.answered_by_head


def test_each_token_has_a_label():
    short = [{"inputs": [2, 5, 3], "token_labels": [0, 1]}]
    with pytest.raises(InputError, match=r"an example has 3 input tokens, but 2 token_labels"):
        made(layouts.Tokens(), [0], examples=short, tokens=BERT)
