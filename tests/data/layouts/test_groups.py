import math

import numpy as np
import pytest

from t5x_lite.data import layouts
from t5x_lite.data.layouts.base import KEY
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import SPECIAL
from tests.data.layouts.laying_out import encoder_tokens

TOKENS = encoder_tokens(cls_id=2, sep_id=3, pad_id=1, kinds=[SPECIAL] * 300)


def example(*, positives=((5,),), negatives=(), epoch=0, index=0, seed=0, **others):
    def joined(texts):
        return np.array([token for text in texts for token in (2, *text, 3)], np.int32)

    return {
        "query": np.array([2, 6, 3], np.int32),
        "positives": joined(positives),
        "negatives": joined(negatives),
        KEY: np.array([seed, epoch, index], np.int64),
        **others,
    }


def drawn(layout, **of):
    """The words of the passages of a row; each has one."""
    passages, _ = layout.drawn(example(**of))
    return [int(passage[1]) for passage in passages]


def test_rows():
    layout = layouts.Groups(negatives=1)
    examples = [example(negatives=[(4,)]), example(positives=[(7,)])]
    found = layout.lay_out(
        examples,
        np.array([2, 0]),
        num_rows=3,
        lengths=layout.lengths(inputs=4, targets=3),
        pack=False,
        tokens=TOKENS,
    )
    assert {name: value.tolist() for name, value in found.items()} == {
        "query_tokens": [[2, 6, 3, 1], [1] * 4, [2, 6, 3, 1]],
        "query_segment_ids": [[1, 1, 1, 0], [0] * 4, [1, 1, 1, 0]],
        "passage_tokens": [[[2, 7, 3], [1] * 3], [[1] * 3] * 2, [[2, 5, 3], [2, 4, 3]]],
        "passage_segment_ids": [[[1] * 3, [0] * 3], [[0] * 3] * 2, [[1] * 3] * 2],
    }


def test_the_features_are_known_without_examples():
    layout = layouts.Groups(negatives=2, teacher=True)
    lengths = layout.lengths(inputs=10, targets=7)
    found = layout.lay_out([], np.zeros(0, np.int64), num_rows=1, lengths=lengths, pack=False)
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        "query_tokens": ((1, 10), np.int32),
        "query_segment_ids": ((1, 10), np.int32),
        "passage_tokens": ((1, 3, 7), np.int32),
        "passage_segment_ids": ((1, 3, 7), np.int32),
        "teacher_scores": ((1, 3), np.float32),
    }


POOL = [(10 + place,) for place in range(200)]


def test_other_negatives_in_every_epoch_and_none_twice_in_a_row():
    layout = layouts.Groups(negatives=7)
    seen = [drawn(layout, negatives=POOL, epoch=epoch)[1:] for epoch in range(200)]
    assert all(len(set(row)) == 7 for row in seen)
    # 1400 draws of 200 leave out 200 (1 - 7/200)^200, that is 0.16 of them, on average.
    assert len({word for row in seen for word in row}) >= 198
    counts = np.bincount([word - 10 for row in seen for word in row], minlength=200)
    assert counts.max() < 20  # 7 on average


def test_a_draw_is_a_function_of_seed_epoch_and_index():
    layout = layouts.Groups(negatives=3)
    first = drawn(layout, negatives=POOL)
    assert drawn(layout, negatives=POOL) == first
    others = [drawn(layout, negatives=POOL, **{name: 1}) for name in ("seed", "epoch", "index")]
    assert len({tuple(row) for row in [first, *others]}) == 4


def test_only_the_first_of_a_pool_are_drawn_and_a_short_pool_is_drawn_whole():
    layout = layouts.Groups(negatives=3, negatives_top=4)
    rows = [drawn(layout, negatives=POOL, epoch=epoch)[1:] for epoch in range(30)]
    assert {word for row in rows for word in row} == {10, 11, 12, 13}
    assert sorted(drawn(layout, negatives=POOL[:2])[1:]) == [10, 11]
    assert drawn(layout) == [5]


def test_one_of_several_positives_is_drawn():
    layout = layouts.Groups(positives="sample")
    rows = [drawn(layout, positives=POOL[:3], epoch=epoch) for epoch in range(40)]
    assert {word for (word,) in rows} == {10, 11, 12}


def test_a_teachers_scores_go_with_their_passages():
    layout = layouts.Groups(negatives=2, teacher=True, positives="sample")
    scores = np.array([0.5, 1.5, -1.0, np.nan, -3.0], np.float32)
    for epoch in range(20):
        one = example(positives=POOL[:2], negatives=POOL[10:13], epoch=epoch, scores=scores)
        passages, found = layout.drawn(one)
        known = {10: 0.5, 11: 1.5, 20: -1.0, 21: math.nan, 22: -3.0}
        expected = [known[int(passage[1])] for passage in passages]
        np.testing.assert_array_equal(found, np.array(expected, np.float32))
    with pytest.raises(InputError, match=r"set --data\.layout\.teacher False"):
        layout.of_task(["query", "positives", "negatives"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"negatives": -1}, r"data\.layout\.negatives must not be negative, got -1"),
        (
            {"negatives": 8, "negatives_top": 7},
            r"top must be at least .* 8, and 1: got 7",
        ),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        layouts.Groups(**options)


def test_an_identity_says_all_that_decides_what_is_drawn():
    assert layouts.Groups(negatives=2).identity() == {
        "layout": "groups",
        "negatives": 2,
        "negatives_top": 200,
        "positives": "each",
        "teacher": False,
    }


def test_a_row_is_as_long_as_the_longest_passage_that_is_drawn():
    layout = layouts.Groups(negatives=1)
    assert layout.longest(example(positives=[(5, 6)], negatives=[(4,)])) == 4
    assert layout.longest(example(negatives=[(4, 5, 6, 7)])) == 6
    pool = [(4,) * size for size in (1, 5, 9)]
    found = {layout.longest(example(negatives=pool, epoch=epoch)) for epoch in range(20)}
    assert found == {3, 7, 11}
