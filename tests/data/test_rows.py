import numpy as np
import pytest

from t5x_lite.data.config import LAYOUT_NAMES
from t5x_lite.data.rows import capacity, features, lay_out, packed_lengths

EXAMPLES = [
    {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]},
    {"inputs": [8, 4, 9, 3, 1], "targets": [4, 1]},
]


def arrays(examples, layout="seq2seq"):
    return [{k: np.array(e[k], np.int32) for k in features(layout)} for e in examples]


def made(layout, rows, *, num_rows=1, pack=True, inputs=10, targets=7, examples=EXAMPLES):
    found = lay_out(
        arrays(examples, layout),
        np.array(rows),
        num_rows=num_rows,
        layout=layout,
        lengths={"inputs": inputs, "targets": targets},
        pack=pack,
    )
    assert all(value.dtype == np.int32 for value in found.values())
    return {name: value.tolist() for name, value in found.items()}


def test_packed_examples_share_a_row_with_their_segments_and_positions():
    assert made("seq2seq", [0, 0]) == {
        "encoder_input_tokens": [[7, 8, 5, 1, 8, 4, 9, 3, 1, 0]],
        "encoder_segment_ids": [[1, 1, 1, 1, 2, 2, 2, 2, 2, 0]],
        "encoder_positions": [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0]],
        "decoder_target_tokens": [[3, 9, 1, 4, 1, 0, 0]],
        "decoder_input_tokens": [[0, 3, 9, 0, 4, 0, 0]],
        "decoder_loss_weights": [[1, 1, 1, 1, 1, 0, 0]],
        "decoder_segment_ids": [[1, 1, 1, 2, 2, 0, 0]],
        "decoder_positions": [[0, 1, 2, 0, 1, 0, 0]],
    }


def test_rows_in_any_order_and_rows_without_an_example():
    assert made("lm", [2, 0], num_rows=3, pack=False, targets=4) == {
        "decoder_target_tokens": [[4, 1, 0, 0], [0, 0, 0, 0], [3, 9, 1, 0]],
        "decoder_input_tokens": [[0, 4, 1, 0], [0, 0, 0, 0], [0, 3, 9, 1]],
        "decoder_loss_weights": [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]],
    }


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_no_example_at_all(layout):
    found = made(layout, np.zeros(0, np.int64), num_rows=2, examples=[])
    assert set(found) == set(made(layout, [0, 0]))
    assert not np.any([value for name, value in found.items() if name == "decoder_loss_weights"])


def test_capacities():
    lengths = {"inputs": 10, "targets": 7}
    assert capacity("seq2seq", lengths) == (10, 7)
    assert capacity("prefix_lm", lengths) == capacity("concat_lm", lengths) == (17,)
    assert capacity("lm", lengths) == (7,)
    assert packed_lengths("seq2seq", np.array([[4, 3]])).tolist() == [[4, 3]]
    assert packed_lengths("prefix_lm", np.array([[4, 3]])).tolist() == [[7]]


def test_examples_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="more than its 8 tokens"):
        made("seq2seq", [0, 0], inputs=8)


def seqio_rows(taken, sizes):
    """seqio's packing: an example goes to the last row or opens one, anew for each group."""
    group, found, free, row = max(sizes), [], np.zeros(len(sizes), int), -1
    for i, need in enumerate(taken):
        if i % group == 0 or (free < need).any():
            row, free = row + 1, np.array(sizes)
        free = free - need
        found.append(row)
    return np.array(found)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_rows_are_those_of_seqio(layout, pack):
    from t5x_lite.data.layouts import feature_converter
    from t5x_lite.data.quiet_tensorflow import tf

    rng = np.random.default_rng(0)
    lengths = {"inputs": 14, "targets": 9}
    examples = [
        {
            k: rng.integers(1, 50, rng.integers(1, lengths[k] // 2 + 2)).tolist()
            for k in features(layout)
        }
        for _ in range(40)
    ]
    columns = {k: tf.ragged.constant([e[k] for e in examples], tf.int32) for k in examples[0]}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    dataset = dataset.map(lambda e: {k: tf.ensure_shape(v, [None]) for k, v in e.items()})
    expected = list(feature_converter(layout, pack=pack)(dataset, lengths).as_numpy_iterator())

    rows = np.arange(40)
    if pack:
        sizes = np.array([[len(e[k]) for k in features(layout)] for e in examples])
        rows = seqio_rows(packed_lengths(layout, sizes), capacity(layout, lengths))
        assert rows.max() < 30
    found = made(
        layout,
        rows,
        num_rows=len(expected),
        pack=pack,
        inputs=14,
        targets=9,
        examples=examples,
    )
    assert found == {name: [row[name].tolist() for row in expected] for name in expected[0]}
