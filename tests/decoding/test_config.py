import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.decoding.sampling import Decoding


def test_greedy_is_the_default():
    assert (Decoding().num_beams, Decoding().temperature, Decoding().num_return) == (1, 0.0, 1)


def test_the_penalty_is_the_rules_unless_given():
    assert Decoding(num_beams=4).penalty == 0.6
    assert Decoding(num_beams=4, length_rule="hf").penalty == 1.0
    assert Decoding(num_beams=4, length_penalty=0.0).penalty == 0.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_length": 8}, "max_length has been renamed; use max_decode_length"),
        ({"max_decode_length": 0}, "max_decode_length must be at least 1: got 0"),
        ({"num_beams": 0}, "num_beams must be at least 1"),
        ({"num_return": 0}, "num_return must be at least 1"),
        ({"temperature": -0.5}, "temperature must be 0, or finite and at least 1e-06, got -0.5"),
        (
            {"temperature": float("nan")},
            "temperature must be 0, or finite and at least 1e-06, got nan",
        ),
        (
            {"temperature": float("inf")},
            "temperature must be 0, or finite and at least 1e-06, got inf",
        ),
        ({"temperature": 1e-40}, "temperature must be 0, or finite and at least 1e-06, got 1e-40"),
        ({"length_penalty": float("nan")}, "length_penalty must be finite, got nan"),
        ({"length_penalty": float("-inf")}, "length_penalty must be finite, got -inf"),
        ({"seed": -1}, "seed must be from 0 to 4294967295, got -1"),
        ({"seed": 2**32}, "seed must be from 0 to 4294967295, got 4294967296"),
        ({"seed": 2**70}, "seed must be from 0 to 4294967295, got 1180591620717411303424"),
        ({"min_length": 65}, "min_length 65 is above max_decode_length 64"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram must be at least 0"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"temperature": 1.0, "min_p": 1.5}, r"min_p must be in \[0, 1\]"),
        ({"temperature": 1.0, "num_beams": 2}, "beam search does not support sampling"),
        ({"top_k": 5}, "set temperature above 0"),
        ({"num_return": 2}, "num_return 2 is above num_beams 1"),
        ({"num_beams": 4, "num_return": 5}, "num_return 5 is above num_beams 4"),
        ({"num_beams": 4, "early_stopping": True}, 'early_stopping requires length_rule "hf"'),
    ],
)
def test_contradictions_are_refused(fields, words):
    with pytest.raises(InputError, match=words):
        Decoding(**fields)


def test_what_goes_together():
    Decoding(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, num_return=8)
    Decoding(num_beams=4, num_return=4, length_rule="hf", early_stopping="never")
    Decoding(min_length=64)
    Decoding(temperature=1e-6, seed=2**32 - 1)
