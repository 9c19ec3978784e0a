import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError

EXAMPLES = [
    {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]},
    {"inputs": [8, 4, 9, 3, 1], "targets": [4, 1]},
]
TARGETS = [{"targets": example["targets"]} for example in EXAMPLES]
DOCUMENTS = [{"inputs": example["inputs"]} for example in EXAMPLES]


def rows(layout, *, pack, examples=EXAMPLES, inputs=10, targets=7, tokens=None, epochs=None):
    from t5x_lite.data.elements import tf
    from t5x_lite.data.live import rows as live

    columns = {k: tf.ragged.constant([e[k] for e in examples], tf.int32) for k in examples[0]}
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    dataset = dataset.map(lambda e: {k: tf.ensure_shape(v, [None]) for k, v in e.items()})
    if epochs is not None:
        numbers = tf.data.Dataset.from_tensor_slices(np.array(epochs, np.int64))
        dataset = tf.data.Dataset.zip(dataset, numbers)
        dataset = dataset.map(lambda e, epoch: {**e, "epoch_of_example": epoch})
    lengths = layout.lengths(inputs=inputs, targets=targets)
    made = live.rows(
        dataset, layout, features=tuple(examples[0]), lengths=lengths, pack=pack, tokens=tokens
    )
    return [{k: v.tolist() for k, v in row.items()} for row in made.as_numpy_iterator()]


def test_packed_examples_share_a_row_with_their_segments_and_positions():
    assert rows(layouts.Seq2Seq(), pack=True) == [
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
    assert rows(layouts.Seq2Seq(), pack=False) == [
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
    assert rows(layouts.PrefixLM(), pack=True, inputs=8) == [PREFIX_LM]


def test_unpacked_rows_of_a_prefix_language_model():
    assert rows(layouts.PrefixLM(), pack=False, inputs=5, targets=4)[0] == {
        "decoder_target_tokens": [7, 8, 5, 1, 3, 9, 1, 0, 0],
        "decoder_input_tokens": [0, 7, 8, 5, 1, 3, 9, 1, 0],
        "decoder_loss_weights": [0, 0, 0, 0, 1, 1, 1, 0, 0],
        "decoder_causal_attention": [1, 1, 1, 1, 1, 0, 0, 0, 0],
    }


@pytest.mark.slow
def test_a_causal_language_model_may_learn_the_inputs_too():
    expected = {**PREFIX_LM, "decoder_loss_weights": [1] * 14 + [0]}
    del expected["decoder_causal_attention"]
    assert rows(layouts.ConcatLM(), pack=True, inputs=8) == [expected]
    alone = {**expected, "decoder_loss_weights": PREFIX_LM["decoder_loss_weights"]}
    assert rows(layouts.ConcatLM(loss_on_inputs=False), pack=True, inputs=8) == [alone]


def test_rows_of_a_language_model_hold_targets_only():
    assert rows(layouts.LM(), pack=True, examples=TARGETS) == [
        {
            "decoder_target_tokens": [3, 9, 1, 4, 1, 0, 0],
            "decoder_input_tokens": [0, 3, 9, 0, 4, 0, 0],
            "decoder_loss_weights": [1, 1, 1, 1, 1, 0, 0],
            "decoder_segment_ids": [1, 1, 1, 2, 2, 0, 0],
            "decoder_positions": [0, 1, 2, 0, 1, 0, 0],
        }
    ]
    assert rows(layouts.LM(), pack=False, examples=TARGETS)[1] == {
        "decoder_target_tokens": [4, 1, 0, 0, 0, 0, 0],
        "decoder_input_tokens": [0, 4, 1, 0, 0, 0, 0],
        "decoder_loss_weights": [1, 1, 0, 0, 0, 0, 0],
    }


def tokens_of_bytes():
    """Ids 3, 7, 8 and 9 are bytes that are no letters; EOS is 1."""
    from t5x_lite.data.vocabularies.byte_level import Bytes
    from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens

    return encoder_tokens(Bytes())


@pytest.mark.parametrize("examples", [DOCUMENTS, [{"inputs": [7, 8, 1]}] * 2])
def test_documents_of_an_encoder(examples):
    [row] = rows(layouts.Encoder(), pack=True, examples=examples, tokens=tokens_of_bytes())
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
    apart = rows(layouts.Encoder(), pack=False, examples=examples, tokens=tokens_of_bytes())
    assert [found["encoder_segment_ids"] for found in apart] == [
        [1] * size + [0] * (10 - size) for size in sizes
    ]


def test_rows_carry_the_latest_epoch_of_their_examples():
    examples = [{"inputs": [7, 8, 1]}, {"inputs": [7, 1]}, {"inputs": [8, 1]}]
    found = rows(
        layouts.Encoder(),
        pack=True,
        examples=examples,
        inputs=6,
        tokens=tokens_of_bytes(),
        epochs=[0, 2, 1],
    )
    assert [[token % (1 << 24) for token in row["encoder_input_tokens"]] for row in found] == [
        [7, 8, 1, 7, 1, 0],
        [8, 1, 0, 0, 0, 0],
    ]
    assert [max(row["encoder_input_tokens"]) >> 24 for row in found] == [2, 1]
    assert [row["encoder_word_ids"] for row in found] == [[1, 1, 0, 2, 0, 0], [1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("layout", "examples", "message"),
    [
        (
            layouts.Groups(),
            EXAMPLES,
            "groups shows query and positives and negatives, and",
        ),
        (
            layouts.Encoder(),
            EXAMPLES,
            "encoder shows inputs, and the task gives inputs and",
        ),
        (layouts.Encoder(), TARGETS, "gives targets: use lm or a task such as tasks.encoder:docum"),
        (layouts.LM(), DOCUMENTS, "lm shows targets, and the task gives inputs: use encoder or a"),
        (layouts.LM(), EXAMPLES, "inputs and targets: use concat_lm or prefix_lm or seq2seq or a"),
        (layouts.PrefixLM(), TARGETS, "prefix_lm shows inputs and targets, and the task gives tar"),
        (layouts.Seq2Seq(), TARGETS, "seq2seq shows inputs and targets, and the task gives target"),
    ],
)
def test_a_layout_that_does_not_fit_the_task_is_refused(layout, examples, message):
    with pytest.raises(InputError, match=message):
        rows(layout, pack=True, examples=examples)
