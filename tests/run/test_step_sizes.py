import dataclasses

import pytest

from t5x_lite.data.config import Data
from t5x_lite.models.base import ModelConfig
from t5x_lite.run.step_sizes import row_lengths, row_shapes, step_flops


def data(**fields):
    return Data(task="a:b", vocabulary="v", inputs_length=8, targets_length=5, **fields)


DECODER = ("target_tokens", "input_tokens", "loss_weights")
IDS = ("segment_ids", "positions")


@pytest.mark.parametrize(
    ("layout", "pack", "length", "more"),
    [
        ("seq2seq", True, 5, {f"encoder_{name}": 8 for name in ("input_tokens", *IDS)}),
        ("seq2seq", False, 5, {"encoder_input_tokens": 8}),
        ("lm", True, 5, {}),
        ("prefix_lm", True, 13, {"decoder_causal_attention": 13}),
        ("concat_lm", False, 13, {}),
    ],
)
def test_row_lengths(layout, pack, length, more):
    names = (*DECODER, *IDS) if pack else DECODER
    expected = {f"decoder_{name}": length for name in names} | more
    assert row_lengths(data(layout=layout, pack=pack)) == expected


def test_pairs_have_several_passages_a_row():
    pairs = data(layout="pairs", pack=False, negatives=2)
    assert row_shapes(pairs)["query_tokens"] == (8,)
    assert row_shapes(pairs)["passage_tokens"] == (3, 5)
    assert row_lengths(pairs)["passage_tokens"] == 5


def test_step_flops(tiny_experiment):
    # One layer each of d_model 16, joined 16, d_ff 32 (gated), vocabulary 400; 4 rows of 32 and 16.
    layer = 4 * 16 * 16 + 3 * 16 * 32
    encoder = 32 * layer + 2 * 32 * 32 * 16
    decoder = 16 * layer + 2 * 16 * 16 * 16 + 2 * (32 + 16) * 16 * 16 + 2 * 32 * 16 * 16
    assert step_flops(tiny_experiment) == 3 * 4 * 2 * (encoder + decoder + 16 * 16 * 400)


def test_a_model_that_is_not_counted(tiny_experiment):
    other = dataclasses.replace(tiny_experiment, model=ModelConfig(vocab_size=400))
    assert step_flops(other) is None
