import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.layouts.base import BEGINS, CONTINUES, ENCODER_FEATURES, SPECIAL
from tests.layouts.laying_out import BERT, encoder_tokens, made

DOCUMENTS = [{"inputs": [2, 5, 7, 6, 3]}, {"inputs": [2, 4, 3]}]


def test_documents_of_an_encoder_share_a_row_and_have_their_own_words():
    assert made(layouts.Encoder(), [0, 0], examples=DOCUMENTS, tokens=BERT) == {
        "encoder_input_tokens": [[2, 5, 7, 6, 3, 2, 4, 3, 0, 0]],
        "encoder_segment_ids": [[1, 1, 1, 1, 1, 2, 2, 2, 0, 0]],
        "encoder_positions": [[0, 1, 2, 3, 4, 0, 1, 2, 0, 0]],
        "encoder_word_ids": [[0, 1, 1, 2, 0, 0, 3, 0, 0, 0]],
    }


@pytest.mark.parametrize("pack", [True, False])
def test_documents_of_an_encoder_in_rows_of_their_own(pack):
    found = made(layouts.Encoder(), [0, 1], num_rows=2, pack=pack, examples=DOCUMENTS, tokens=BERT)
    assert found["encoder_segment_ids"] == [[1] * 5 + [0] * 5, [1] * 3 + [0] * 7]
    assert found["encoder_word_ids"] == [[0, 1, 1, 2] + [0] * 6, [0, 1] + [0] * 8]


def test_rows_of_an_encoder_whose_padding_is_not_0():
    roberta = encoder_tokens(
        cls_id=0, sep_id=2, pad_id=1, kinds=[SPECIAL] * 3 + [CONTINUES, BEGINS] + [SPECIAL] * 5
    )
    documents = [{"inputs": [0, 3, 3, 2]}, {"inputs": [0, 4, 2]}]
    assert made(layouts.Encoder(), [1, 1], num_rows=2, examples=documents, tokens=roberta) == {
        "encoder_input_tokens": [[1] * 10, [0, 3, 3, 2, 0, 4, 2, 1, 1, 1]],
        "encoder_segment_ids": [[0] * 10, [1, 1, 1, 1, 2, 2, 2, 0, 0, 0]],
        "encoder_positions": [[0] * 10, [0, 1, 2, 3, 0, 1, 2, 0, 0, 0]],
        "encoder_word_ids": [[0] * 10, [0, 1, 1, 0, 0, 2, 0, 0, 0, 0]],
    }


def test_the_features_of_an_encoders_row_are_known_without_a_vocabulary():
    found = made(layouts.Encoder(), np.zeros(0, np.int64), examples=[])
    assert found == {name: [[0] * 10] for name in ENCODER_FEATURES}
