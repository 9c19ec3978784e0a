"""The answer of several windows: which tokens count, and BERT's own search beside ours."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.inference.head_answers import Window, best_answer, best_span, in_most_context


@pytest.mark.parametrize(
    ("first", "last", "longest", "expected"),
    [
        ([0.0, 3.0, 0.0], [0.0, 0.0, 2.0], 3, (1, 2, 5.0)),
        ([0.0, 3.0, 0.0], [4.0, 0.0, 2.0], 1, (0, 0, 4.0)),  # the end is not before the beginning
        ([0.0, 0.0, 3.0], [4.0, 0.0, 0.0], 3, (0, 0, 4.0)),
        ([1.0, 1.0], [0.0, 0.0], 2, (0, 0, 1.0)),
        ([], [], 2, (0, 0, -np.inf)),
    ],
)
def test_the_best_span(first, last, longest, expected):
    assert best_span(np.array(first), np.array(last), longest=longest) == expected


@pytest.mark.parametrize(
    ("sizes", "stride", "expected"),
    [
        ([4, 4, 3], 2, [[0, 1, 2], [3, 4], [5, 6]]),
        ([4, 2], 4, [[0, 1, 2, 3], [4, 5]]),
        ([4, 2], 9, [[0, 1, 2, 3], [4, 5]]),  # a window begins where the one before ends, at last
        # Both have one token before 3: the longer window counts, and of equal ones the first.
        ([5, 4], 2, [[0, 1, 2, 3], [4, 5]]),
        ([6, 6], 3, [[0, 1, 2, 3, 4], [5, 6, 7, 8]]),
        ([3], 1, [[0, 1, 2]]),
        ([0], 1, [[]]),
        ([], 1, []),
    ],
)
def test_a_token_counts_where_it_has_most_context(sizes, stride, expected):
    found = in_most_context(sizes, stride=stride)
    assert [(start + np.flatnonzero(counts)).tolist() for start, counts in found] == expected


def window(first, last, null=0.0):
    return Window(np.float32(first), np.float32(last), null)


def test_an_answer_begins_where_its_token_counts():
    # Token 3 has its largest logit, 9, at the edge of the first window, and counts in the second.
    windows = [window([0, 0, 0, 9], [0, 0, 5, 0]), window([0, 3, 0, 0], [0, 0, 4, 0])]
    assert best_answer(windows, stride=2, longest=3) == (3, 4, 7.0)
    # A span may end where its last token does not count: 2 begins, and 3 ends it, at the edge.
    windows = [window([0, 0, 3, 0], [0, 0, 0, 6]), window([0, 0, 0, 0], [0, 1, 4, 0])]
    assert best_answer(windows, stride=2, longest=3) == (2, 3, 9.0)
    assert best_answer(windows, stride=2, longest=1) == (4, 4, 4.0)
    assert best_answer([window([], [])], stride=2, longest=3) is None


def berts(windows, starts, longest):
    """google-research/bert run_squad.py: write_predictions with all tokens as its n_best_size."""
    spans = [
        collections.namedtuple("DocSpan", ["start", "length"])(start, len(one.first))
        for start, one in zip(starts, windows, strict=True)
    ]

    def is_max_context(cur_span_index, position):
        best_score, best_span_index = None, None
        for span_index, doc_span in enumerate(spans):
            end = doc_span.start + doc_span.length - 1
            if position < doc_span.start or position > end:
                continue
            num_left_context = position - doc_span.start
            num_right_context = end - position
            score = min(num_left_context, num_right_context) + 0.01 * doc_span.length
            if best_score is None or score > best_score:
                best_score, best_span_index = score, span_index
        return cur_span_index == best_span_index

    found = []
    for number, (one, start) in enumerate(zip(windows, starts, strict=True)):
        for start_index in range(len(one.first)):
            for end_index in range(len(one.last)):
                if not is_max_context(number, start + start_index) or end_index < start_index:
                    continue
                if end_index - start_index + 1 > longest:
                    continue
                score = float(one.first[start_index]) + float(one.last[end_index])
                found.append((score, start + start_index, start + end_index))
    return found


@given(st.data())
def test_it_is_what_bert_finds(data):
    room = data.draw(st.integers(1, 6))
    size, stride = data.draw(st.integers(1, 14)), data.draw(st.integers(1, 8))
    starts = [0]
    while starts[-1] + room < size:
        starts.append(starts[-1] + min(room, stride))
    logit = st.floats(-9, 9, width=32)
    windows = []
    for start in starts:
        num = min(room, size - start)
        logits = data.draw(st.lists(logit, min_size=2 * num, max_size=2 * num))
        windows.append(window(logits[:num], logits[num:]))
    longest = data.draw(st.integers(1, 5))
    expected = berts(windows, starts, longest)
    best = best_answer(windows, stride=stride, longest=longest)
    assert best.score == max(expected)[0]
    assert (best.score, best.first, best.last) in expected
