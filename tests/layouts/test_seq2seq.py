import pytest

from t5x_lite import layouts
from tests.layouts.laying_out import made


def test_packed_examples_share_a_row_with_their_segments_and_positions():
    assert made(layouts.Seq2Seq(), [0, 0]) == {
        "encoder_input_tokens": [[7, 8, 5, 1, 8, 4, 9, 3, 1, 0]],
        "encoder_segment_ids": [[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]],
        "encoder_positions": [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]],
        "decoder_target_tokens": [[3, 9, 1, 4, 1, 0, 0]],
        "decoder_input_tokens": [[0, 3, 9, 0, 4, 0, 0]],
        "decoder_loss_weights": [[1, 1, 1, 1, 1, 0, 0]],
        "decoder_segment_ids": [[1, 1, 1, 2, 2, 0, 0]],
        "decoder_positions": [[0, 1, 2, 0, 1, 0, 0]],
    }


def test_examples_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="more tokens than the row length of 8"):
        made(layouts.Seq2Seq(), [0, 0], inputs=8)
