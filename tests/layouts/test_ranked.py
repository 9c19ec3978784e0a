import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.layouts.base import KEY, SPECIAL
from t5x_lite.layouts.groups import joined
from tests.layouts.laying_out import encoder_tokens

TOKENS = encoder_tokens(cls_id=2, sep_id=3, pad_id=1, kinds=[SPECIAL] * 300)


def example(query, positive, negatives=()):
    return {
        "query": np.array([2, *query, 3], np.int32),
        "positives": np.array([2, *positive, 3], np.int32),
        "negatives": np.array([t for text in negatives for t in (2, *text, 3)], np.int32),
        KEY: np.array([0, 0, 0], np.int64),
    }


def test_rows():
    layout = layouts.Ranked(negatives=1, teacher=True)
    found = layout.lay_out(
        [
            {**example([5], [6], [[7, 8, 9, 10]]), "scores": np.array([4.0, 1.0], np.float32)},
            example([11, 12], [13]),
        ],
        np.array([1, 0]),
        num_rows=3,
        lengths=layout.lengths(inputs=4, targets=7),
        pack=False,
        tokens=TOKENS,
    )
    assert found["encoder_input_tokens"].tolist() == [
        [[2, 11, 12, 3, 13, 3, 1], [1] * 7],
        [[2, 5, 3, 6, 3, 1, 1], [2, 5, 3, 7, 8, 9, 3]],
        [[1] * 7] * 2,
    ]
    assert found["encoder_token_types"].tolist() == [
        [[0, 0, 0, 0, 1, 1, 0], [0] * 7],
        [[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1]],
        [[0] * 7] * 2,
    ]
    assert found["encoder_segment_ids"][1].tolist() == [[1] * 5 + [0] * 2, [1] * 7]
    np.testing.assert_array_equal(
        found["teacher_scores"], np.float32([[np.nan] * 2, [4, 1], [np.nan] * 2])
    )


def test_the_passage_alone_is_cut_and_roberta_has_two_separators():
    query, passage = np.array([2, 5, 6, 3]), np.array([2, 7, 8, 9, 3])
    assert joined(query, passage, size=8).tolist() == [2, 5, 6, 3, 7, 8, 9, 3]
    assert joined(query, passage, size=6).tolist() == [2, 5, 6, 3, 7, 3]
    assert joined(query, passage, size=8, separators=2).tolist() == [2, 5, 6, 3, 3, 7, 8, 3]


def test_it_is_a_layout_of_pairs_with_rows_of_its_own():
    layout = layouts.Ranked(negatives=3)
    assert layout.name == "ranked"
    assert layout.identity()["layout"] == "ranked"
    assert layout.text_lengths(inputs=8, targets=16) == {}
    assert layout.longest(example([5], [6, 7], [[8, 9, 10]])) == 7
    lengths = {"query": np.array([3, 4])}
    assert layout.longest_stored(np.array([5, 6]), lengths).tolist() == [7, 9]
    with pytest.raises(InputError, match=r"data\.targets_length 10 must be at least 3 more"):
        layout.lengths(inputs=8, targets=10)
    with pytest.raises(InputError, match="its rows are"):
        layouts.Ranked(begins_with_cls=False)
