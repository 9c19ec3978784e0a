"""What is no negative: padding, answers by text and by id, and duplicates."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_lite.objectives.contrastive import asking, candidates, others, text_keys
from tests.objectives.encoder_rows import CLS, SEP, groups

QUERY, OTHER = [CLS, 10, SEP], [CLS, 11, SEP]


def shown(mask):
    return ["".join(map(str, row)) for row in np.asarray(mask).astype(int)]


def test_padding_and_what_answers_the_query_are_no_negatives():
    batch = groups(
        [[CLS, 10], [CLS, 11], [CLS, 13]],
        [[[CLS, 20], [CLS, 22]], [[CLS, 23], [CLS, 26]], [[CLS, 27], []]],
    )
    assert shown(candidates(batch)) == ["111110"] * 3
    twice = groups(
        [QUERY, QUERY, OTHER],
        [[[CLS, 20], [CLS, 30]], [[CLS, 21], [CLS, 31]], [[CLS, 21], [CLS, 20]]],
    )
    # 20 and 21 both answer the first two queries, wherever they stand; of the third query 20 is a
    # negative that stands there twice, and counts once.
    assert shown(candidates(twice)) == ["110100", "011100", "110110"]


@pytest.mark.slow
def test_passages_that_the_data_name_as_answers_are_no_negatives():
    batch = groups([QUERY, OTHER], [[[CLS, 20], [CLS, 30]], [[CLS, 21], [CLS, 31]]])
    name = {"a": [1, 0, 0, 2], "b": [3, 4, 5, 6], "c": [7, 0, 0, 0], "": [0] * 4}
    batch["passage_ids"] = jnp.array([[name["a"], name[""]], [name["b"], name["c"]]])
    # Of the first query "a" is an answer, which is its own, and "b", which another row holds.
    batch["positive_ids"] = jnp.array([[name["a"], name["b"]], [name[""], name[""]]])
    assert shown(candidates(batch)) == ["1101", "1111"]
    assert shown(asking(batch)) == ["11", "01"]


def test_a_passage_that_stands_there_twice_counts_once():
    batch = groups([QUERY, OTHER], [[[CLS, 20], [CLS, 30]], [[CLS, 21], [CLS, 30]]])
    assert shown(candidates(batch)) == ["1110", "1110"]
    assert shown(candidates(batch, "group")) == ["1100", "0011"]
    assert shown(others(batch)) == ["0010", "1000"]


def test_rows_with_negatives_of_their_own_are_apart():
    passages = [[[CLS, 20], [CLS, 30]], [[CLS, 21], [CLS, 31]], [[CLS, 22], [CLS, 32]]]
    batch = groups([QUERY, OTHER, [CLS, 12, SEP]], passages)
    batch["own_negatives"] = jnp.array([0, 1, 0])
    assert shown(candidates(batch)) == ["110011", "001100", "110011"]
    assert shown(asking(batch)) == ["101", "010", "101"]
    assert shown(others(batch)) == ["000011", "000000", "110000"]
    batch["own_negatives"] = jnp.ones(3, jnp.int32)
    np.testing.assert_array_equal(candidates(batch), candidates(batch, "group"))


@pytest.mark.slow
def test_a_query_that_stands_there_twice_counts_once():
    batch = groups([QUERY, OTHER, OTHER], [[[CLS, 20]], [[CLS, 21]], [[CLS, 22]]])
    # What answers the other query in one row answers it in both.
    assert shown(asking(batch)) == ["110", "110", "101"]


texts = st.lists(st.integers(5, 6), min_size=1, max_size=2)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(texts, min_size=3, max_size=3),
    st.lists(st.lists(texts, min_size=2, max_size=2), min_size=3, max_size=3),
)
def test_no_text_of_an_answer_is_a_negative_and_none_comes_twice(queries, passages):
    found = np.asarray(candidates(groups(queries, passages)))
    flat = [text for row in passages for text in row]
    for i, query in enumerate(queries):
        answers = [row[0] for q, row in zip(queries, passages, strict=True) if q == query]
        negatives = [flat[j] for j in range(6) if found[i, j] and j != 2 * i]
        assert found[i, 2 * i]
        expected = {tuple(text) for text in flat if text not in answers}
        assert sorted(map(tuple, negatives)) == sorted(expected)


def test_keys_tell_texts_apart_by_tokens_and_places():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50, (500, 8)).astype(np.int32)
    segments = (np.arange(8) < rng.integers(1, 9, (500, 1))).astype(np.int32)
    read = [jnp.asarray(x) for x in (tokens, segments)]
    keys = {tuple(key) for key in np.asarray(text_keys(*read)).tolist()}
    assert len(keys) == len({tuple(t[s > 0]) for t, s in zip(tokens, segments, strict=True)})
    padded = jnp.where(read[1] > 0, read[0], 99)
    np.testing.assert_array_equal(text_keys(padded, read[1]), text_keys(*read))


@pytest.mark.parametrize("scope", ["block:2", "batch"])
def test_blocks_are_of_rows_that_follow_each_other(scope):
    rows = [[CLS, 10 + i] for i in range(4)]
    batch = groups(rows, [[[CLS, 20 + i]] for i in range(4)])
    expected = ["1100", "1100", "0011", "0011"] if scope == "block:2" else ["1111"] * 4
    assert shown(candidates(batch, scope)) == expected
