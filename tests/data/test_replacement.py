import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.denoising import drop, invert, replace_spans, replace_tokens

TOKENS = np.arange(10, 18, dtype=np.int32)


def mask(bits):
    return np.array([bit == "1" for bit in bits], bool)


def lists(example):
    assert all(side.dtype == np.int32 for side in example.values())
    return example["inputs"].tolist(), example["targets"].tolist()


@pytest.mark.parametrize(
    ("bits", "inputs", "targets"),
    [
        ("00110001", [10, 11, 99, 14, 15, 16, 98], [99, 12, 13, 98, 17]),
        ("10011000", [99, 11, 12, 98, 15, 16, 17], [10, 99, 13, 14, 98]),
        ("10000001", [99, 11, 12, 13, 14, 15, 16, 98], [10, 99, 17]),
        ("01010101", [10, 99, 12, 98, 14, 97, 16, 96], [99, 11, 98, 13, 97, 15, 96, 17]),
        ("00000000", [10, 11, 12, 13, 14, 15, 16, 17], [99]),
        ("11111111", [99], [10, 11, 12, 13, 14, 15, 16, 17]),
    ],
)
def test_spans_become_sentinels(bits, inputs, targets):
    example = replace_spans(TOKENS, mask(bits), 99)
    assert lists(example) == (inputs, targets)
    assert invert(example["inputs"], example["targets"], 99).tolist() == TOKENS.tolist()
    assert TOKENS.tolist() == list(range(10, 18))


@pytest.mark.parametrize(
    ("bits", "targets"),
    [
        ("00110001", [99, 12, 13, 98, 17, 97]),
        ("10011000", [10, 99, 13, 14, 98]),
        ("10000001", [10, 99, 17, 98]),
        ("01010101", [99, 11, 98, 13, 97, 15, 96, 17, 95]),
        ("00000000", [99]),
        ("11111111", [10, 11, 12, 13, 14, 15, 16, 17, 99]),
    ],
)
def test_targets_end_in_a_final_sentinel(bits, targets):
    example = replace_spans(TOKENS, mask(bits), 99, final_sentinel=True)
    assert lists(example) == (lists(replace_spans(TOKENS, mask(bits), 99))[0], targets)
    assert invert(example["inputs"], example["targets"], 99).tolist() == TOKENS.tolist()


def test_nothing_becomes_nothing():
    assert lists(replace_spans(TOKENS[:0], mask(""), 99)) == ([], [])
    assert lists(replace_spans(TOKENS[:0], mask(""), 99, final_sentinel=True)) == ([], [])
    assert lists(drop(TOKENS[:0], mask(""))) == ([], [])
    assert lists(replace_tokens(TOKENS[:0], mask(""), 99)) == ([], [])


def test_noise_is_dropped():
    assert lists(drop(TOKENS, mask("00110001"))) == ([10, 11, 14, 15, 16], [12, 13, 17])


def test_noise_is_replaced_token_by_token():
    bits, text = mask("00110001"), TOKENS.tolist()
    assert lists(replace_tokens(TOKENS, bits, 99)) == ([10, 11, 99, 99, 14, 15, 16, 99], text)
    others = np.arange(50, 58)
    assert lists(replace_tokens(TOKENS, bits, others)) == ([10, 11, 52, 53, 14, 15, 16, 57], text)


def slow_replace_spans(tokens, mask, sentinel_start):
    """The definition, token by token."""
    sides = {False: [], True: []}
    sentinels = {False: sentinel_start, True: sentinel_start}
    before = None
    for token, cut in zip(tokens, mask, strict=True):
        sides[cut].append(token)
        if cut != before:
            sides[not cut].append(sentinels[not cut])
            sentinels[not cut] -= 1
        before = cut
    return sides[False], sides[True]


@given(bits=st.lists(st.booleans(), max_size=40))
def test_any_mask_equals_the_definition_and_inverts(bits):
    tokens = np.arange(100, 100 + len(bits), dtype=np.int32)
    example = replace_spans(tokens, np.array(bits, bool), 999)
    assert lists(example) == slow_replace_spans(tokens.tolist(), bits, 999)
    assert invert(example["inputs"], example["targets"], 999).tolist() == tokens.tolist()
    ended = replace_spans(tokens, np.array(bits, bool), 999, final_sentinel=True)
    assert invert(ended["inputs"], ended["targets"], 999).tolist() == tokens.tolist()
    dropped = drop(tokens, np.array(bits, bool))
    assert sorted(np.concatenate(list(dropped.values())).tolist()) == tokens.tolist()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            [10, 99],
            [12, 99],
            "must begin with sentinel 99, but neither of them do",
        ),
        (
            [99, 10],
            [99, 12],
            "must begin with sentinel 99, but both of them do",
        ),
        ([10, 99], [99, 12, 98, 13], "sentinels are 1 and 2, but the numbers of spans are 2 and 1"),
    ],
)
def test_inversion_refuses_what_does_not_fit(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        invert(np.array(inputs), np.array(targets), 99)
