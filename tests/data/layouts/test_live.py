import pytest

from t5x_lite.data.config import LAYOUT_NAMES
from t5x_lite.errors import InputError

EXAMPLES = [
    {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]},
    {"inputs": [8, 4, 9, 3, 1], "targets": [4, 1]},
]
TARGETS = [{"targets": example["targets"]} for example in EXAMPLES]
DOCUMENTS = [{"inputs": example["inputs"]} for example in EXAMPLES]


def rows(layout, *, pack, examples=EXAMPLES, inputs=10, targets=7, tokens=None):
    from t5x_lite.data.layouts.live import feature_converter
    from t5x_lite.data.quiet_tensorflow import tf

    columns = {k: tf.ragged.constant([e[k] for e in examples], tf.int32) for k in examples[0]}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    dataset = dataset.map(lambda e: {k: tf.ensure_shape(v, [None]) for k, v in e.items()})
    converter = feature_converter(layout, pack=pack, tokens=tokens)
    found = converter(dataset, {"inputs": inputs, "targets": targets}).as_numpy_iterator()
    return [{k: v.tolist() for k, v in row.items()} for row in found]


def test_the_names_are_those_of_the_config():
    from t5x_lite.data.layouts.live import LAYOUTS

    assert (*LAYOUTS, "encoder", "pairs", "labelled") == LAYOUT_NAMES


def test_packed_examples_share_a_row_with_their_segments_and_positions():
    assert rows("seq2seq", pack=True) == [
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
    assert rows("seq2seq", pack=False) == [
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


PREFIX_LM = {
    "decoder_target_tokens": [7, 8, 5, 1, 3, 9, 1, 8, 4, 9, 3, 1, 4, 1, 0],
    "decoder_input_tokens": [0, 7, 8, 5, 1, 3, 9, 0, 8, 4, 9, 3, 1, 4, 0],
    "decoder_loss_weights": [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0],
    "decoder_causal_attention": [1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0],
    "decoder_segment_ids": [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 0],
    "decoder_positions": [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0],
}


def test_targets_follow_their_inputs_in_the_row_of_a_prefix_language_model():
    assert rows("prefix_lm", pack=True, inputs=8) == [PREFIX_LM]


def test_unpacked_rows_of_a_prefix_language_model():
    assert rows("prefix_lm", pack=False, inputs=5, targets=4)[0] == {
        "decoder_target_tokens": [7, 8, 5, 1, 3, 9, 1, 0, 0],
        "decoder_input_tokens": [0, 7, 8, 5, 1, 3, 9, 1, 0],
        "decoder_loss_weights": [0, 0, 0, 0, 1, 1, 1, 0, 0],
        "decoder_causal_attention": [1, 1, 1, 1, 1, 0, 0, 0, 0],
    }


def test_a_causal_language_model_may_learn_the_inputs_too():
    expected = {**PREFIX_LM, "decoder_loss_weights": [1] * 14 + [0]}
    del expected["decoder_causal_attention"]
    assert rows("concat_lm", pack=True, inputs=8) == [expected]


def test_rows_of_a_language_model_hold_targets_only():
    assert rows("lm", pack=True, examples=TARGETS) == [
        {
            "decoder_target_tokens": [3, 9, 1, 4, 1, 0, 0],
            "decoder_input_tokens": [0, 3, 9, 0, 4, 0, 0],
            "decoder_loss_weights": [1, 1, 1, 1, 1, 0, 0],
            "decoder_segment_ids": [1, 1, 1, 2, 2, 0, 0],
            "decoder_positions": [0, 1, 2, 0, 1, 0, 0],
        }
    ]
    assert rows("lm", pack=False, examples=TARGETS)[1] == {
        "decoder_target_tokens": [4, 1, 0, 0, 0, 0, 0],
        "decoder_input_tokens": [0, 4, 1, 0, 0, 0, 0],
        "decoder_loss_weights": [1, 1, 0, 0, 0, 0, 0],
    }


def tokens_of_bytes():
    """Ids 3, 7, 8 and 9 are bytes that are no letters; EOS is 1."""
    from t5x_lite.vocabulary.byte_level import Bytes
    from t5x_lite.vocabulary.encoder_tokens import encoder_tokens

    return encoder_tokens(Bytes())


@pytest.mark.parametrize("examples", [DOCUMENTS, [{"inputs": [7, 8, 1]}] * 2])
def test_documents_of_an_encoder(examples):
    [row] = rows("encoder", pack=True, examples=examples, tokens=tokens_of_bytes())
    sizes = [len(example["inputs"]) for example in examples]
    rest = [0] * (10 - sum(sizes))
    assert row["encoder_input_tokens"] == [*examples[0]["inputs"], *examples[1]["inputs"], *rest]
    assert row["encoder_segment_ids"] == [1] * sizes[0] + [2] * sizes[1] + rest
    assert row["encoder_positions"] == [*range(sizes[0]), *range(sizes[1]), *rest]
    assert row["encoder_word_ids"] == [
        *[1] * (sizes[0] - 1),
        *[0, *[2] * (sizes[1] - 1), 0],
        *rest,
    ]
    apart = rows("encoder", pack=False, examples=examples, tokens=tokens_of_bytes())
    assert [found["encoder_segment_ids"] for found in apart] == [
        [1] * size + [0] * (10 - size) for size in sizes
    ]


def test_words_are_found_in_tokens_that_carry_their_epoch():
    marked = [{"inputs": [7 + (2 << 24), 8 + (2 << 24), 1 + (2 << 24)]}]
    [row] = rows("encoder", pack=True, examples=marked, inputs=4, tokens=tokens_of_bytes())
    assert row["encoder_input_tokens"] == [*marked[0]["inputs"], 0]
    assert row["encoder_word_ids"] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("layout", "examples", "message"),
    [
        ("pairs", EXAMPLES, "'pairs' shows queries and passages, and the task gives inputs and"),
        ("encoder", EXAMPLES, "'encoder' shows inputs only, and the task gives inputs and targets"),
        ("encoder", TARGETS, "'encoder' shows inputs only, and the task gives targets: use a task"),
        ("lm", DOCUMENTS, "'lm' shows targets, but the task gives inputs only: use encoder"),
        ("lm", EXAMPLES, "'lm' shows targets only, but the task gives inputs too: use prefix_lm"),
        ("prefix_lm", TARGETS, "'prefix_lm' shows inputs and targets, but the task gives targets"),
        ("seq2seq", TARGETS, "'seq2seq' shows inputs and targets, but the task gives targets"),
    ],
)
def test_a_layout_that_does_not_fit_the_task_is_refused(layout, examples, message):
    with pytest.raises(InputError, match=message):
        rows(layout, pack=True, examples=examples)


def test_an_unknown_layout_is_refused():
    from t5x_lite.data.layouts.live import feature_converter

    with pytest.raises(InputError, match=r"unknown data.layout 'seq2sec': did you mean seq2seq"):
        feature_converter("seq2sec", pack=True)
