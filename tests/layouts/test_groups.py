import math

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.layouts.base import BEGINS, CONTINUES, KEY, SPECIAL
from tests.layouts.laying_out import encoder_tokens

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
        ({"negatives": -1}, r"data\.layout\.negatives must be at least 0: got -1"),
        (
            {"negatives": 8, "negatives_top": 7},
            "top is 7, but must be at least .* 8",
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


def test_a_schedule_goes_by_the_longest_of_all_texts():
    lengths = {"query": np.array([3, 9])}
    assert layouts.Groups().longest_stored(np.array([5, 6]), lengths).tolist() == [5, 9]


def test_a_row_is_as_long_as_the_longest_passage_that_is_drawn():
    layout = layouts.Groups(negatives=1)
    assert layout.longest(example(positives=[(5, 6)], negatives=[(4,)])) == 4
    assert layout.longest(example(negatives=[(4, 5, 6, 7)])) == 6
    pool = [(4,) * size for size in (1, 5, 9)]
    found = {layout.longest(example(negatives=pool, epoch=epoch)) for epoch in range(20)}
    assert found == {3, 7, 11}


def test_rows_have_the_names_of_passages():
    layout = layouts.Groups(negatives=2, known_positives=2)
    names = {"passage_ids": [[1] * 4, [2] * 4, [3, 0, 0, 0]], "positive_ids": [[1] * 4]}
    names = {name: np.array(value, np.int32).reshape(-1) for name, value in names.items()}
    lengths = layout.lengths(inputs=4, targets=3)
    assert lengths["positive_ids"] == 8
    found = layout.lay_out(
        [example(negatives=[(4,), (7,)], **names)],
        np.array([1]),
        num_rows=2,
        lengths=lengths,
        pack=False,
        tokens=TOKENS,
    )
    order = [1 + (5, 4, 7).index(int(text[1])) for text in found["passage_tokens"][1]]
    of = {1: [1] * 4, 2: [2] * 4, 3: [3, 0, 0, 0]}
    assert found["passage_ids"][1].tolist() == [of[place] for place in order]
    assert found["positive_ids"].tolist() == [[[0] * 4] * 2, [[1] * 4, [0] * 4]]
    assert not found["passage_ids"][0].any()
    with pytest.raises(InputError, match="the task or its cache has no passage ids"):
        layout.of_task(layout.features)
    assert layout.of_task((*layout.features, *names)) == layout


def test_segments_of_a_positive_are_shuffled_between_words():
    # Even pieces begin words, odd ones go on with them.
    special = encoder_tokens(
        cls_id=2, sep_id=3, pad_id=1, kinds=[SPECIAL] * 4 + [BEGINS, CONTINUES] * 50
    )
    words = [(4 + 2 * i, 5 + 2 * i) for i in range(12)]
    inner = tuple(token for word in words for token in word)
    layout = layouts.Groups(shuffle_segments=0.5)
    options = {"lengths": layout.lengths(inputs=4, targets=26), "pack": False, "tokens": special}
    seen = []
    for epoch in range(40):
        one = [example(positives=[inner], epoch=epoch)]
        found = layout.lay_out(one, np.array([0]), num_rows=1, **options)
        row = found["passage_tokens"][0, 0].tolist()
        again = layout.lay_out(one, np.array([0]), num_rows=1, **options)
        assert again["passage_tokens"][0, 0].tolist() == row
        assert (row[0], row[-1], sorted(row[1:-1])) == (2, 3, sorted(inner))
        pieces = [tuple(row[i : i + 2]) for i in range(1, 25, 2)]
        assert set(pieces) == set(words)
        seen.append([words.index(piece) for piece in pieces])
    changed = [order for order in seen if order != list(range(12))]
    assert 8 <= len(changed) <= 28  # half of them, and of these one in six stays
    for order in changed:
        breaks = [i for i in range(1, 12) if order[i] != order[i - 1] + 1]
        assert 1 <= len(breaks) <= 2
        assert all(place % 4 == 0 for place in breaks)
    short = [example(positives=[inner[:20]])]
    whole = layouts.Groups(shuffle_segments=1.0)
    found = whole.lay_out(short, np.array([0]), num_rows=1, **options)
    assert found["passage_tokens"][0, 0, 1:21].tolist() == list(inner[:20])


def test_rows_of_t5_begin_with_no_cls():
    layout = layouts.Groups(begins_with_cls=False)
    options = {"lengths": layout.lengths(inputs=4, targets=3), "pack": False, "tokens": TOKENS}
    found = layout.lay_out([example()], np.array([0]), num_rows=1, **options)
    assert found["query_tokens"].tolist() == [[6, 3, 1, 1]]
    assert found["passage_tokens"].tolist() == [[[5, 3, 1]]]


def test_positions_of_before_fit_as_long_as_nothing_new_is_asked_for():
    before = {
        "layout": "groups",
        "negatives": 0,
        "negatives_top": 200,
        "positives": "each",
        "teacher": False,
    }
    assert layouts.Groups().identity() == before
    assert layouts.Groups(known_positives=3).identity() == {**before, "known_positives": 3}


def test_a_model_and_a_cache_of_other_rows_are_refused():
    layouts.Groups().check_model(begins_with_cls=True)
    with pytest.raises(InputError, match=r"begins_with_cls is True, but rows of this model do not"):
        layouts.Groups().check_model(begins_with_cls=False)
    with pytest.raises(InputError, match=r"begins_with_cls is False.*begins-with-cls True"):
        layouts.Groups(begins_with_cls=False).check_model(begins_with_cls=True)
    layout = layouts.Groups(known_positives=3)
    layout.check_fixed(layout.fixed())
    with pytest.raises(
        InputError, match=r"known_positives is 3, .* stores the names of 2 positives"
    ):
        layout.check_fixed({**layout.fixed(), "known_positives": 2})
    with pytest.raises(InputError, match="stores the names of 0 positives"):
        layout.check_fixed(layouts.Groups().fixed())
