from t5x_lite.data import layouts
from tests.data.layouts.laying_out import EXAMPLES, made


def test_rows_in_any_order_and_rows_without_an_example():
    assert made(layouts.LM(), [2, 0], num_rows=3, pack=False, targets=4) == {
        "decoder_target_tokens": [[4, 1, 0, 0], [0, 0, 0, 0], [3, 9, 1, 0]],
        "decoder_input_tokens": [[0, 4, 1, 0], [0, 0, 0, 0], [0, 3, 9, 1]],
        "decoder_loss_weights": [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]],
    }


def test_a_prefix_is_read_and_learned_or_not():
    prefix = made(layouts.PrefixLM(), [0], examples=EXAMPLES[:1], inputs=5, targets=4, pack=False)
    assert prefix["decoder_target_tokens"] == [[7, 8, 5, 1, 3, 9, 1, 0, 0]]
    assert prefix["decoder_loss_weights"] == [[0, 0, 0, 0, 1, 1, 1, 0, 0]]
    assert prefix.pop("decoder_causal_attention") == [[1, 1, 1, 1, 1, 0, 0, 0, 0]]
    both = made(layouts.ConcatLM(), [0], examples=EXAMPLES[:1], inputs=5, targets=4, pack=False)
    assert both == {**prefix, "decoder_loss_weights": [[1, 1, 1, 1, 1, 1, 1, 0, 0]]}
