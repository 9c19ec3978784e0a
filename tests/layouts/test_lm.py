import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import Bytes
from tests.layouts.laying_out import EXAMPLES, made


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


def test_a_causal_model_may_learn_the_targets_alone():
    alone = layouts.ConcatLM(loss_on_inputs=False)
    found = made(alone, [0, 0], inputs=8)
    assert found["decoder_loss_weights"] == [[0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]]
    both = made(layouts.ConcatLM(), [0, 0], inputs=8)
    assert found == {**both, "decoder_loss_weights": found["decoder_loss_weights"]}


def test_inputs_end_in_words_or_in_eos():
    vocabulary = Bytes()
    words = [*vocabulary.encode(" target: ")]
    assert layouts.PrefixLM().ending(vocabulary, length=1) == (1,)
    assert layouts.Seq2Seq().ending(vocabulary) == (1,)
    assert layouts.LM().ending(vocabulary) == ()
    layout = layouts.PrefixLM(separator=" target: ")
    assert layout.ending(vocabulary) == layout.ending(vocabulary, length=10) == (*words,)
    with pytest.raises(InputError) as error:
        layout.ending(vocabulary, length=9)
    assert str(error.value) == (
        "data.layout.separator ' target: ' has 9 tokens, which leaves no room for "
        "text in inputs of at most 9 tokens; increase data.inputs_length"
    )


def test_a_separator_without_words_is_refused(tiny_vocabulary):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    vocabulary = load_vocabulary(tiny_vocabulary)
    target = [*vocabulary.encode("target:")]
    assert layouts.ConcatLM(separator=" target: ").ending(vocabulary) == (*target,)
    with pytest.raises(InputError, match=r"separator ' ' has no tokens in this vocabulary; set"):
        layouts.ConcatLM(separator=" ").ending(vocabulary)
    with pytest.raises(
        InputError,
        match=r"separator 'a <pad>' contains the padding token; set it to words",
    ):
        layouts.ConcatLM(separator="a <pad>").ending(load_vocabulary("bytes-hf"))


def test_what_a_position_holds():
    assert layouts.PrefixLM().identity() == {"layout": "prefix_lm"}
    assert layouts.ConcatLM().identity() == {"layout": "concat_lm"}
    layout = layouts.ConcatLM(separator=" target:", loss_on_inputs=False)
    assert layout.identity() == {
        "layout": "concat_lm",
        "separator": " target:",
        "loss_on_inputs": False,
    }


def test_what_a_cache_is_made_with():
    plain, words = layouts.PrefixLM(), layouts.ConcatLM(separator=" target:", loss_on_inputs=False)
    assert plain.fixed() == {}
    assert words.fixed() == {"separator": " target:"}
    plain.check_fixed({})
    layouts.PrefixLM(separator=" target:").check_fixed(words.fixed())
    for layout, fixed, message in [
        (
            words,
            {},
            "separator is ' target:', but the cache was made with data.layout.separator ''; set ",
        ),
        (
            plain,
            words.fixed(),
            "made with data.layout.separator ' target:'; set --data.layout.separator ' ",
        ),
        (
            layouts.Seq2Seq(),
            words.fixed(),
            "data.layout seq2seq has no field separator, but the cache",
        ),
    ]:
        with pytest.raises(InputError) as error:
            layout.check_fixed(fixed)
        assert message in str(error.value)
