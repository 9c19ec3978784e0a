import math

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import pairs
from t5x_lite.data.formats.pairs import Pairs, without_answers


def test_objects_of_a_file():
    record = {"query": "q", "pos": ["a", "b"], "neg": ["c"], "id": 3}
    assert pairs.from_json(pairs.checked(record, "f:1")) == Pairs("q", ["a", "b"], ["c"])
    assert pairs.from_json(pairs.checked({"query": "q", "pos": ["é"]}, "f:1")) == Pairs(
        "q", ["é"], []
    )
    assert pairs.same_text("t") == Pairs("t", ["t"])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, 'f:1: must have "query", a string; it has nothing'),
        ({"query": 1, "pos": ["a"]}, "must have \"query\", a string; it has ['pos', 'query']"),
        ({"query": "q"}, 'f:1: "pos" must have a passage that answers the query'),
        ({"query": "q", "pos": "a"}, 'f:1: "pos" must be a list of strings'),
        ({"query": "q", "pos": ["a"], "neg": [1]}, 'f:1: "neg" must be a list of strings'),
    ],
)
def test_an_object_that_is_no_pair_is_refused(record, message):
    with pytest.raises(InputError) as caught:
        pairs.checked(record, "f:1")
    assert message in str(caught.value)


def test_a_teachers_scores_go_with_the_passages():
    record = {"query": "q", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [1]}
    read = pairs.from_json(pairs.checked({**record, "neg_scores": [0.5, None]}, "f:1"))
    assert (read.positive_scores, read.negative_scores[0]) == ([1.0], 0.5)
    assert math.isnan(read.negative_scores[1])
    assert pairs.from_json(pairs.checked(record, "f:1")).negative_scores is None


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([1.0, 2.0], 'f:1: "pos_scores" must be a list of 1 numbers, one for each passage'),
        (1.0, "must be a list of 1 numbers"),
        (["1"], "must contain only numbers or null, got '1'"),
        ([math.inf], "must contain only numbers or null, got inf"),
        ([True], "must contain only numbers or null, got True"),
    ],
)
def test_wrong_scores_are_refused(scores, message):
    with pytest.raises(InputError, match=message):
        pairs.checked({"query": "q", "pos": ["a"], "pos_scores": scores}, "f:1")


def test_ids_and_prompts():
    record = {"query": "q", "pos": ["a"], "neg": ["b"], "pos_ids": [7], "neg_ids": ["x"]}
    read = pairs.from_json(pairs.checked({**record, "prompt": "ask: "}, "f:1"))
    assert (read.query, read.positive_ids, read.negative_ids) == ("ask: q", ["7"], ["x"])
    assert pairs.from_json(pairs.to_json(read)) == read
    for wrong, message in (
        ({"pos_ids": ["a", "b"]}, 'f:1: "pos_ids" must be a list of 1 ids, one for each passage'),
        (
            {"neg_ids": [None]},
            'f:1: "neg_ids" must contain only strings or whole numbers, got None',
        ),
        ({"prompt": 1}, 'f:1: "prompt" must be a string, got 1'),
    ):
        with pytest.raises(InputError, match=message):
            pairs.checked({**record, **wrong}, "f:1")


@pytest.mark.parametrize("kind", ["normal", "symmetric_class", "only_1neg", None, "symmetric_sts"])
def test_passages_of_symmetric_types_have_the_prompt(kind):
    record = {"query": "q", "pos": ["a"], "neg": ["b"], "prompt": "sts: ", "type": kind}
    read = pairs.from_json(pairs.checked(record, "f:1"))
    before = "sts: " if kind == "symmetric_sts" else ""
    assert read == Pairs("sts: q", [f"{before}a"], [f"{before}b"])
    with pytest.raises(InputError, match='f:1: "type" must be a string, got 3'):
        pairs.checked({**record, "type": 3}, "f:1")


@pytest.mark.parametrize(
    ("pairs", "negatives", "scores", "ids"),
    [
        (Pairs("q", ["An answer."], ["other", "an  answer. "]), ["other"], None, None),
        (
            Pairs("q", ["a"], ["b", "a", "c"], [9.0], [1.0, 8.0, 2.0], ["p1"], ["p2", "p3", "p1"]),
            ["b"],
            [1.0],
            ["p2"],
        ),
        (Pairs("q", ["a"], ["b"], None, None, ["p1"], ["p2"]), ["b"], None, ["p2"]),
        (Pairs("q", ["a"]), [], None, None),
    ],
)
def test_a_negative_that_is_an_answer_is_dropped(pairs, negatives, scores, ids):
    kept = without_answers(pairs)
    assert [*kept.negatives] == negatives
    assert kept.negative_scores == scores
    assert kept.negative_ids == ids
    assert kept.positives == pairs.positives
