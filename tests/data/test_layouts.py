import pytest

from t5x_lite.errors import InputError

EXAMPLES = [
    {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]},
    {"inputs": [8, 4, 9, 3, 1], "targets": [4, 1]},
]


def rows(*, pack):
    from t5x_lite.data.layouts import feature_converter
    from t5x_lite.data.quiet_tensorflow import tf

    columns = {k: tf.ragged.constant([e[k] for e in EXAMPLES], tf.int32) for k in EXAMPLES[0]}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    dataset = dataset.map(lambda e: {k: tf.ensure_shape(v, [None]) for k, v in e.items()})
    converter = feature_converter("seq2seq", pack=pack)
    found = converter(dataset, {"inputs": 10, "targets": 7}).as_numpy_iterator()
    return [{k: v.tolist() for k, v in row.items()} for row in found]


def test_packed_examples_share_a_row_with_their_segments_and_positions():
    assert rows(pack=True) == [
        {
            "encoder_input_tokens": [7, 8, 5, 1, 8, 4, 9, 3, 1, 0],
            "encoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 2, 2, 0],
            "encoder_positions": [0, 1, 2, 3, 0, 1, 2, 3, 4, 0],
            "decoder_target_tokens": [3, 9, 1, 4, 1, 0, 0],
            "decoder_input_tokens": [0, 3, 9, 0, 4, 0, 0],
            "decoder_loss_weights": [1, 1, 1, 1, 1, 0, 0],
            "decoder_segment_ids": [1, 1, 1, 2, 2, 0, 0],
            "decoder_positions": [0, 1, 2, 0, 1, 0, 0],
        }
    ]


def test_unpacked_examples_have_a_row_each():
    assert rows(pack=False) == [
        {
            "encoder_input_tokens": [7, 8, 5, 1, 0, 0, 0, 0, 0, 0],
            "decoder_target_tokens": [3, 9, 1, 0, 0, 0, 0],
            "decoder_input_tokens": [0, 3, 9, 1, 0, 0, 0],
            "decoder_loss_weights": [1, 1, 1, 0, 0, 0, 0],
        },
        {
            "encoder_input_tokens": [8, 4, 9, 3, 1, 0, 0, 0, 0, 0],
            "decoder_target_tokens": [4, 1, 0, 0, 0, 0, 0],
            "decoder_input_tokens": [0, 4, 1, 0, 0, 0, 0],
            "decoder_loss_weights": [1, 1, 0, 0, 0, 0, 0],
        },
    ]


@pytest.mark.parametrize(
    ("layout", "hint"), [("seq2sec", "did you mean seq2seq"), ("lm", "there are: seq2seq")]
)
def test_an_unknown_layout_is_refused(layout, hint):
    from t5x_lite.data.layouts import feature_converter

    with pytest.raises(InputError, match=f"unknown data.layout '{layout}': {hint}"):
        feature_converter(layout, pack=True)
