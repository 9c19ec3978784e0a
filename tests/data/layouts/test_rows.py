import numpy as np
import pytest

from t5x_lite.data.config import LAYOUT_NAMES
from t5x_lite.data.layouts.rows import (
    ENCODER_FEATURES,
    capacity,
    features,
    lay_out,
    packed_lengths,
)
from t5x_lite.vocabulary.encoder_tokens import (
    ALONE,
    BEGINS,
    CONTINUES,
    SPECIAL,
    EncoderTokens,
)

SEQIOS = [name for name in LAYOUT_NAMES if name not in ("encoder", "pairs", "labelled")]
EXAMPLES = [
    {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]},
    {"inputs": [8, 4, 9, 3, 1], "targets": [4, 1]},
]


def arrays(examples, layout="seq2seq"):
    return [{k: np.array(e[k], np.int32) for k in features(layout)} for e in examples]


def made(
    layout, rows, *, num_rows=1, pack=True, inputs=10, targets=7, examples=EXAMPLES, tokens=None
):
    found = lay_out(
        arrays(examples, layout),
        np.array(rows),
        num_rows=num_rows,
        layout=layout,
        lengths={"inputs": inputs, "targets": targets},
        pack=pack,
        tokens=tokens,
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


@pytest.mark.parametrize("layout", [*SEQIOS, "encoder"])
def test_no_example_at_all(layout):
    found = made(layout, np.zeros(0, np.int64), num_rows=2, examples=[])
    assert set(found) == set(made(layout, [0, 0]))
    assert not np.any([value for name, value in found.items() if name == "decoder_loss_weights"])


def test_capacities():
    lengths = {"inputs": 10, "targets": 7}
    assert capacity("seq2seq", lengths) == (10, 7)
    assert capacity("prefix_lm", lengths) == capacity("concat_lm", lengths) == (17,)
    assert capacity("lm", lengths) == (7,)
    assert capacity("encoder", lengths) == (10,)
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


def encoder_tokens(*, cls_id, sep_id, pad_id, kinds):
    return EncoderTokens(
        cls_id=cls_id,
        sep_id=sep_id,
        mask_id=9,
        pad_id=pad_id,
        unk_id=8,
        kinds=np.array(kinds, np.uint8),
    )


DOCUMENTS = [{"inputs": [2, 5, 7, 6, 3]}, {"inputs": [2, 4, 3]}]
BERT = encoder_tokens(
    cls_id=2,
    sep_id=3,
    pad_id=0,
    kinds=[SPECIAL] * 4 + [BEGINS, BEGINS, ALONE, CONTINUES, ALONE, SPECIAL],
)


def test_documents_of_an_encoder_share_a_row_and_have_their_own_words():
    assert made("encoder", [0, 0], examples=DOCUMENTS, tokens=BERT) == {
        "encoder_input_tokens": [[2, 5, 7, 6, 3, 2, 4, 3, 0, 0]],
        "encoder_segment_ids": [[1, 1, 1, 1, 1, 2, 2, 2, 0, 0]],
        "encoder_positions": [[0, 1, 2, 3, 4, 0, 1, 2, 0, 0]],
        "encoder_word_ids": [[0, 1, 1, 2, 0, 0, 3, 0, 0, 0]],
    }


@pytest.mark.parametrize("pack", [True, False])
def test_documents_of_an_encoder_in_rows_of_their_own(pack):
    found = made("encoder", [0, 1], num_rows=2, pack=pack, examples=DOCUMENTS, tokens=BERT)
    assert found["encoder_segment_ids"] == [[1] * 5 + [0] * 5, [1] * 3 + [0] * 7]
    assert found["encoder_word_ids"] == [[0, 1, 1, 2] + [0] * 6, [0, 1] + [0] * 8]


def test_rows_of_an_encoder_whose_padding_is_not_0():
    roberta = encoder_tokens(
        cls_id=0, sep_id=2, pad_id=1, kinds=[SPECIAL] * 3 + [CONTINUES, BEGINS] + [SPECIAL] * 5
    )
    documents = [{"inputs": [0, 3, 3, 2]}, {"inputs": [0, 4, 2]}]
    assert made("encoder", [1, 1], num_rows=2, examples=documents, tokens=roberta) == {
        "encoder_input_tokens": [[1] * 10, [0, 3, 3, 2, 0, 4, 2, 1, 1, 1]],
        "encoder_segment_ids": [[0] * 10, [1, 1, 1, 1, 2, 2, 2, 0, 0, 0]],
        "encoder_positions": [[0] * 10, [0, 1, 2, 3, 0, 1, 2, 0, 0, 0]],
        "encoder_word_ids": [[0] * 10, [0, 1, 1, 0, 0, 2, 0, 0, 0, 0]],
    }


def test_pairs():
    examples = [
        {"query": [2, 5, 6, 3], "passages": [2, 5, 3, 2, 4, 3, 2, 6, 3]},
        {"query": [2, 4, 3], "passages": [2, 4, 3]},
    ]
    found = lay_out(
        arrays(examples, "pairs"),
        np.array([2, 0]),
        num_rows=3,
        layout="pairs",
        lengths={"inputs": 4, "targets": 3, "passages": 6},
        pack=False,
        tokens=encoder_tokens(cls_id=2, sep_id=3, pad_id=1, kinds=[SPECIAL] * 10),
    )
    assert {name: value.tolist() for name, value in found.items()} == {
        "query_tokens": [[2, 4, 3, 1], [1] * 4, [2, 5, 6, 3]],
        "query_segment_ids": [[1, 1, 1, 0], [0] * 4, [1, 1, 1, 1]],
        "passage_tokens": [[[2, 4, 3], [1] * 3], [[1] * 3] * 2, [[2, 5, 3], [2, 4, 3]]],
        "passage_segment_ids": [[[1] * 3, [0] * 3], [[0] * 3] * 2, [[1] * 3] * 2],
    }
    none = made("pairs", np.zeros(0, np.int64), examples=[])
    assert np.shape(none["query_tokens"]) == (1, 10)
    assert np.shape(none["passage_tokens"]) == (1, 1, 7)


def test_texts_with_labels():
    examples = [
        {"inputs": [2, 5, 3, 6, 4, 3], "labels": [2, 0]},
        # The marks of an example's epoch, which its tokens carry.
        {"inputs": [2 + (1 << 24), 4, 3 + (1 << 24)], "labels": [(1 << 24) + 7, 0]},
    ]
    found = made("labelled", [2, 0], num_rows=3, pack=False, examples=examples, tokens=BERT)
    assert found["encoder_segment_ids"] == [[1] * 3 + [0] * 7, [0] * 10, [1] * 6 + [0] * 4]
    assert found["encoder_token_types"] == [[0] * 10, [0] * 10, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]]
    assert found["encoder_input_tokens"][2] == [2, 5, 3, 6, 4, 3, 0, 0, 0, 0]
    assert found["labels"] == [[7, 0], [0, 0], [2, 0]]
    assert capacity("labelled", {"inputs": 10, "labels": 2}) == (10, 2)
    none = made("labelled", np.zeros(0, np.int64), examples=[])
    assert {name: np.shape(value) for name, value in none.items()} == {
        **dict.fromkeys(found, (1, 10)),
        "labels": (1, 2),
    }


def test_the_features_of_an_encoders_row_are_known_without_a_vocabulary():
    found = made("encoder", np.zeros(0, np.int64), examples=[])
    assert found == {name: [[0] * 10] for name in ENCODER_FEATURES}


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("layout", SEQIOS)
def test_rows_are_those_of_seqio(layout, pack):
    from t5x_lite.data.layouts.live import feature_converter
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
