"""SQuAD 2.0's metrics: literals, and the official script beside ours."""

import collections
import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.metrics.benchmarks import task_score
from t5x_lite.metrics.text import best_threshold, squad_v2


def answer(value, null_odds=0.0):
    return {"value": value, "null_odds": null_odds}


def test_with_and_without_answers():
    targets = [["the Eiffel Tower", "tower"], ["red apple pie"], [""], [""]]
    predictions = [
        answer("Eiffel tower!", -4.0),
        answer("a green apple", -1.0),  # one of 3 and 2 words is shared: 2 * 1 / 5
        answer("", 2.0),
        answer("Paris", -2.0),
    ]
    # The best thresholds: first no answer is taken, 2 of 4 are right; with that at -4, 3 are. -2
    # takes an answer to a question without one, and -1 gives no exact match, and an F1 of 0.4.
    assert squad_v2(targets, predictions) == {
        "exact": 0.5,
        "f1": pytest.approx((1 + 0.4 + 1 + 0) / 4),
        "HasAns_exact": 0.5,
        "HasAns_f1": pytest.approx(0.7),
        "NoAns_exact": 0.5,
        "NoAns_f1": 0.5,
        "best_exact": 0.75,
        "best_exact_thresh": -4.0,
        "best_f1": 0.75,
        "best_f1_thresh": -4.0,
    }


def test_no_answer_is_right_where_there_is_none_alone():
    found = squad_v2([[""], ["rain"], ["the"]], [answer("the"), answer(""), answer("an")])
    # What has no words is no answer; and the answer "the" has none either.
    assert (found["NoAns_exact"], found["NoAns_f1"]) == (1.0, 1.0)
    assert (found["HasAns_exact"], found["HasAns_f1"]) == (0.5, 0.5)
    alone = squad_v2([["rain"]], [answer("rain", -3.0)])
    assert (alone["exact"], alone["NoAns_exact"], alone["NoAns_f1"]) == (1.0, 0.0, 0.0)
    assert (alone["best_f1"], alone["best_f1_thresh"]) == (1.0, -3.0)


def test_answers_with_the_least_odds_are_taken_first():
    assert best_threshold([1.0, -1.0, 1.0], [0.5, -2.0, -3.0], num_without=1) == (2 / 3, -3.0)
    assert best_threshold([1.0, 1.0, -1.0], [0.5, -3.0, -2.0], num_without=1) == (2 / 3, -3.0)
    assert best_threshold([1.0, 1.0, 0.0], [0.5, -3.0, 2.0], num_without=1) == (1.0, 0.5)
    assert best_threshold([-1.0, 0.0], [-1.0, -1.0], num_without=2) == (1.0, 0.0)


def test_parts_and_thresholds_are_no_part_of_the_score():
    found = squad_v2([["rain"], [""]], [answer("rain fell", -7.0), answer("", 1.0)])
    assert task_score(found) == pytest.approx((found["exact"] + found["f1"]) / 2)
    assert task_score({"best_of": 0.5}) == 0.5


def test_refuses_nothing_and_unequal_lengths():
    with pytest.raises(ValueError, match="empty"):
        squad_v2([], [])
    with pytest.raises(ValueError, match="there are 1 targets and 0 predictions"):
        squad_v2([[""]], [])


def official(gold, preds, na_probs):
    """evaluate-v2.0.py with --na-prob-file: by question, {id: answers}, {id: text}, {id: odds}."""

    def normalize_answer(s):
        s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
        return " ".join(re.compile(r"\b(a|an|the)\b", re.UNICODE).sub(" ", s).split())

    def get_tokens(s):
        return normalize_answer(s).split() if s else []

    def compute_f1(a_gold, a_pred):
        gold_toks, pred_toks = get_tokens(a_gold), get_tokens(a_pred)
        num_same = sum((collections.Counter(gold_toks) & collections.Counter(pred_toks)).values())
        if len(gold_toks) == 0 or len(pred_toks) == 0:
            return int(gold_toks == pred_toks)
        if num_same == 0:
            return 0
        precision, recall = num_same / len(pred_toks), num_same / len(gold_toks)
        return (2 * precision * recall) / (precision + recall)

    exact, f1 = {}, {}
    for qid, answers in gold.items():
        gold_answers = [a for a in answers if normalize_answer(a)] or [""]
        exact[qid] = max(
            int(normalize_answer(a) == normalize_answer(preds[qid])) for a in gold_answers
        )
        f1[qid] = max(compute_f1(a, preds[qid]) for a in gold_answers)

    def find_best_thresh(scores):
        cur_score = sum(1 for k in gold if not gold[k])
        best_score, best_thresh = cur_score, 0.0
        for qid in sorted(na_probs, key=lambda k: na_probs[k]):
            diff = scores[qid] if gold[qid] else (-1 if preds[qid] else 0)
            cur_score += diff
            if cur_score > best_score:
                best_score, best_thresh = cur_score, na_probs[qid]
        return best_score / len(scores), best_thresh

    found = {}
    for name, scores in (("exact", exact), ("f1", f1)):
        found[name] = np.mean(list(scores.values()))
        for kind, has in (("HasAns", True), ("NoAns", False)):
            chosen = [value for qid, value in scores.items() if bool(gold[qid]) == has]
            found[f"{kind}_{name}"] = np.mean(chosen) if chosen else 0.0
        found[f"best_{name}"], found[f"best_{name}_thresh"] = find_best_thresh(scores)
    return found


TEXT = st.lists(st.sampled_from(["the", "A", "cat.", "Cat", "'s", "ü", "--"]), max_size=3).map(
    " ".join
)
QUESTION = st.tuples(
    st.lists(TEXT.filter(bool), max_size=2), TEXT, st.sampled_from([-4.0, -1.5, 0.0, 0.5])
)


@given(st.lists(QUESTION, min_size=1, max_size=6))
def test_it_is_the_official_script(questions):
    gold, preds, odds = ({i: q[part] for i, q in enumerate(questions)} for part in range(3))
    found = squad_v2(
        [answers or [""] for answers in gold.values()],
        [answer(preds[i], odds[i]) for i in preds],
    )
    assert found == pytest.approx(official(gold, preds, odds))
