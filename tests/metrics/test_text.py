import re
import string
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.metrics.text import exact_match, normalize_answer, sequence_accuracy, squad, trivia_qa


def test_exact_match_is_to_the_letter():
    assert exact_match(["to be", "or not"], ["to be", "Or not"]) == {"exact_match": 0.5}


def test_sequence_accuracy_is_exact_match_by_t5_s_name():
    assert sequence_accuracy(["a b", "c"], ["a b", "c "]) == {"sequence_accuracy": 0.5}


def test_normalize_answer():
    assert normalize_answer("  The Eiffel-Tower, in  a Park! ") == "eiffeltower in park"
    assert normalize_answer("theatre") == "theatre"


def test_squad_takes_the_best_answer():
    targets = [["The Eiffel Tower"], ["in 1889", "1889"], ["red apple pie"]]
    predictions = ["eiffel tower!", "1889", "the green apple"]
    # Third: one of 3 and 2 words shared, 2 * 1 / 5.
    assert squad(targets, predictions) == {"exact_match": 2 / 3, "f1": pytest.approx(2.4 / 3)}


def test_squad_refuses_a_bare_string():
    with pytest.raises(ValueError, match="sequence of answers"):
        squad(["1889"], ["1889"])


def test_trivia_qa_makes_spaces_of_punctuation():
    targets = [["AC/DC", "A.C.D.C."], ["Rock ‘n’ Roll"]]
    predictions = ["ac dc", "the_rock n roll!"]
    assert trivia_qa(targets, predictions) == {"exact_match": 1.0, "f1": 1.0}
    assert squad(targets, predictions)["exact_match"] == 0.0
    assert trivia_qa([["a b"]], ["b c"]) == {"exact_match": 0.0, "f1": pytest.approx(2 / 3)}


def official_squad(answers, prediction):
    """Exact match and F1 of one question, as SQuAD v1.1's evaluation script defines them."""

    def normalized(text):
        kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())

    def f1(answer):
        got, wanted = normalized(prediction).split(), normalized(answer).split()
        same = sum((Counter(got) & Counter(wanted)).values())
        if same == 0:
            return 0.0
        precision, recall = same / len(got), same / len(wanted)
        return 2 * precision * recall / (precision + recall)

    exact = max(float(normalized(prediction) == normalized(answer)) for answer in answers)
    return exact, max(f1(answer) for answer in answers)


TEXT = st.lists(st.sampled_from(["the", "A", "an", "cat.", "Cat", "'s", "ü", "--", "7"])).map(
    " ".join
)


@given(st.lists(st.tuples(st.lists(TEXT, min_size=1, max_size=3), TEXT), min_size=1, max_size=5))
def test_squad_equals_the_official_definition(questions):
    answers, predictions = ([question[i] for question in questions] for i in (0, 1))
    each = [official_squad(a, p) for a, p in questions]
    exact, f1 = (sum(values) / len(each) for values in zip(*each, strict=True))
    got = squad(answers, predictions)
    assert got == {"exact_match": pytest.approx(exact), "f1": pytest.approx(f1)}


@pytest.mark.parametrize("metric", [exact_match, sequence_accuracy, squad, trivia_qa])
def test_refuses_nothing_and_unequal_lengths(metric):
    with pytest.raises(ValueError, match="empty"):
        metric([], [])
    with pytest.raises(ValueError, match="there are 1 targets and 0 predictions"):
        metric(["a"], [])


def test_metrics_load_neither_jax_nor_tensorflow():
    code = (
        "import sys, t5x_lite.metrics.classification, t5x_lite.metrics.text;"
        "import t5x_lite.metrics.text, t5x_lite.metrics.text, t5x_lite.metrics.benchmarks;"
        "sys.exit(bool({'jax', 'tensorflow', 'seqio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
