"""Hard negatives: which candidate is dropped by which rule, and which ones are taken."""

import hypothesis
import hypothesis.strategies as st
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import Passage
from t5x_lite.retrieval.mining import Candidate, Known, Rules, choose
from t5x_lite.retrieval.refresh_search import Pool, digest

TEXTS = ["the answer", "The answer!", "who asks", "far", "near", "Near.", "low", "more", "most"]
POOL = Pool.of(Passage(f"f:{i}", f"d{i}", "", text) for i, text in enumerate(TEXTS))
KNOWN = Known(
    frozenset({0}), frozenset({digest("the answer")}), frozenset({digest("who asks?")}), 0.5
)
RANKING = [Candidate(i, (9 - i) / 10) for i in range(9)]
ALL = {"first": 0, "last": 9, "take": "top", "negatives": 9}


def chosen(known=KNOWN, ranking=RANKING, **rules):
    found = choose("q", ranking, known, POOL, Rules(**{**ALL, **rules}))
    return found.numbers, dict(found.dropped)


def test_what_a_query_never_gets():
    texts = {"answer": 1, "words of an answer": 1, "words of the query": 1, "duplicate": 1}
    assert chosen() == ([3, 4, 6, 7, 8], texts)


@pytest.mark.parametrize(
    ("rules", "numbers"),
    [
        ({"margin": 0.0}, [4, 6, 7, 8]),  # 0.5, 0.3, 0.2, 0.1; the answer has 0.5
        ({"margin": 0.2}, [6, 7, 8]),
        ({"relative_margin": 0.5}, [7, 8]),
        ({"min_score": 0.25}, [3, 4, 6]),
        ({"max_score": 0.25}, [7, 8]),
        ({"first": 4}, [4, 6, 7, 8]),
        ({"first": 5, "last": 7}, [5, 6]),
        ({"negatives": 2}, [3, 4]),
    ],
)
def test_rules(rules, numbers):
    assert chosen(**rules)[0] == numbers


def test_no_candidate_is_below_an_answer_that_was_not_found():
    known = KNOWN._replace(lowest=None)
    assert chosen(known, margin=0.1)[0] == []
    assert chosen(known, max_score=0.3)[0] == [6, 7, 8]


def test_a_share_of_a_negative_score_is_no_rule():
    assert chosen(KNOWN._replace(lowest=-1.0), relative_margin=0.1)[0] == [3, 4, 6, 7, 8]


def test_samples_are_functions_of_seed_query_and_passage():
    def sampled(query, seed):
        rules = Rules(first=0, last=9, negatives=2, seed=seed)
        return choose(query, RANKING, KNOWN, POOL, rules).numbers

    assert sampled("q", 0) == [7, 8]
    assert sampled("r", 0) == [3, 8]
    assert len({tuple(sampled("q", seed)) for seed in range(20)}) > 5


def test_too_few_are_filled_up_with_passages_outside_of_the_ranking():
    rules = Rules(first=0, last=4, negatives=4, fill="random")
    found = choose("q", RANKING, KNOWN, POOL, rules)
    assert (found.numbers[:1], found.filled, found.scores) == ([3], 3, [0.6, None, None, None])
    assert {*found.numbers[1:]} <= {4, 5, 6, 7, 8}
    assert len({*found.numbers} & {4, 5}) < 2  # duplicates of each other
    assert found == choose("q", RANKING, KNOWN, POOL, rules)
    few = choose("q", RANKING, KNOWN, POOL, Rules(first=0, last=4, negatives=99, fill="random"))
    assert len(few.numbers) == 5
    assert {3, 6, 7, 8} < {*few.numbers}


@hypothesis.given(
    order=st.permutations(range(9)),
    answers=st.sets(st.integers(0, 8), min_size=1, max_size=4),
    take=st.sampled_from(["top", "sample"]),
    fill=st.sampled_from(["none", "random"]),
    negatives=st.integers(1, 9),
)
@hypothesis.settings(deadline=None)
def test_no_answer_is_ever_a_negative(order, answers, take, fill, negatives):
    known = Known(
        frozenset(answers), frozenset(digest(TEXTS[a]) for a in answers), frozenset(), None
    )
    rules = Rules(first=0, last=9, negatives=negatives, take=take, fill=fill)
    found = choose("q", [Candidate(i, None) for i in order], known, POOL, rules)
    words = {digest(TEXTS[answer]) for answer in answers}
    taken = [digest(TEXTS[number]) for number in found.numbers]
    assert not {*taken} & words
    assert len({*taken}) == len(taken) <= negatives


def test_wrong_rules():
    with pytest.raises(InputError, match=r"--first must be below --last, .*, got 5 and 5"):
        Rules(first=5, last=5)
