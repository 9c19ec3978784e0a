import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.layouts.base import KEY
from tests.layouts.laying_out import BERT

LAYOUT = layouts.Spans()


def example(*spans, seed=0, epoch=0, index=0):
    tokens = [token for span in spans for token in (2, *span, 3)]
    return {
        "spans": np.array(tokens, np.int32),
        KEY: np.array([seed, epoch, index], np.int64),
    }


def lay_out(examples, rows, *, num_rows, length, tokens=BERT):
    return LAYOUT.lay_out(
        examples,
        np.array(rows, np.int64),
        num_rows=num_rows,
        lengths=LAYOUT.lengths(inputs=length, targets=0),
        pack=False,
        tokens=tokens,
    )


def test_rows():
    found = lay_out([example([5], [4]), example([5, 7], [4])], [2, 0], num_rows=3, length=5)
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(
        [
            "encoder_input_tokens",
            "encoder_segment_ids",
            "encoder_positions",
            "encoder_word_ids",
        ],
        (3, 2, 5),
    )
    tokens = found["encoder_input_tokens"].tolist()
    assert tokens[1] == [[0] * 5] * 2
    assert sorted(tokens[0]) == [[2, 4, 3, 0, 0], [2, 5, 7, 3, 0]]
    assert sorted(tokens[2]) == [[2, 4, 3, 0, 0], [2, 5, 3, 0, 0]]
    at = tokens[0].index([2, 5, 7, 3, 0])
    assert found["encoder_word_ids"][0, at].tolist() == [0, 1, 1, 0, 0]
    assert found["encoder_segment_ids"][0, at].tolist() == [1, 1, 1, 1, 0]
    assert found["encoder_positions"][0, at].tolist() == [0, 1, 2, 3, 0]


def test_the_features_are_known_without_examples():
    found = lay_out([], [], num_rows=1, length=7, tokens=None)
    assert {value.shape for value in found.values()} == {(1, 2, 7)}


def words(layout_drawn):
    return [int(span[1]) for span in layout_drawn]


def test_two_different_spans_and_others_in_every_epoch():
    pool = [(10 + place,) for place in range(9)]
    rows = [words(LAYOUT.drawn(example(*pool, epoch=epoch))) for epoch in range(200)]
    assert all(len({*row}) == 2 for row in rows)
    counts = np.bincount([word - 10 for row in rows for word in row], minlength=9)
    assert counts.min() > 25  # 44 on average
    assert counts.max() < 65
    assert len({tuple(row) for row in rows}) > 50  # of 72


def test_a_draw_is_a_function_of_seed_epoch_and_index():
    pool = [(10 + place,) for place in range(200)]
    first = words(LAYOUT.drawn(example(*pool)))
    assert words(LAYOUT.drawn(example(*pool))) == first
    others = [
        words(LAYOUT.drawn(example(*pool, **{name: 1}))) for name in ("seed", "epoch", "index")
    ]
    assert len({tuple(row) for row in [first, *others]}) == 4


def test_a_long_span_has_one_window_for_its_tokens_and_its_words():
    """Condenser's code draws two windows: its words are those of another crop than its tokens."""
    long = [10 + place for place in range(100)]
    starts = set()
    for epoch in range(60):
        of_row = example(long, long, epoch=epoch)
        found = lay_out([of_row], [0], num_rows=1, length=12, tokens=None)
        for tokens in found["encoder_input_tokens"][0].tolist():
            assert (tokens[0], tokens[-1]) == (2, 3)
            assert tokens[1:-1] == list(range(tokens[1], tokens[1] + 10))
            starts.add(tokens[1] - 10)
    assert min(starts) < 10
    assert max(starts) > 80
    # Words are numbered from the tokens of the row: 5 begins a word, 7 goes on with it.
    row = example([5, 7, 7, 7, 5, 7, 7, 7], [5, 7, 7, 7, 5, 7, 7, 7])
    found = lay_out([row], [0], num_rows=1, length=6)
    for tokens, ids in zip(
        found["encoder_input_tokens"][0], found["encoder_word_ids"][0], strict=True
    ):
        assert ids.tolist() == BERT.word_ids(tokens).tolist()


def test_a_span_that_fits_is_not_cut():
    (first, second) = LAYOUT.drawn(example([5, 6], [5, 6]), length=4)
    assert first.tolist() == second.tolist() == [2, 5, 6, 3]


def test_a_document_of_one_span_is_refused():
    with pytest.raises(
        InputError, match="a document has 1 spans, but a row needs 2; remove the document"
    ):
        LAYOUT.drawn(example([5]))


def test_its_task_is_told_by_its_feature():
    assert LAYOUT.fits(["spans"])
    assert not layouts.Encoder().fits(["spans"])
    assert LAYOUT.identity() == {"layout": "spans"}
    with pytest.raises(
        InputError, match=r"data\.layout spans needs the features spans.* use encoder or"
    ):
        LAYOUT.check(["inputs"])
