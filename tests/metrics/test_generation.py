import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_lite.core.errors import InputError
from t5x_lite.metrics.text import bleu, rouge

WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "on", ".", "Das", "„gut“", "1.5"])).map(
    " ".join
)
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6)


def test_bleu():
    pytest.importorskip("sacrebleu")
    assert bleu(["Das ist gut."], ["Das ist gut."]) == {"bleu": pytest.approx(1.0)}
    assert bleu(["Das ist gut.", "Ja."], ["", ""]) == {"bleu": 0.0}
    assert bleu(["a b c d"], ["e f g h"]) == {"bleu": 0.0}
    # The international tokenisation takes the quotes off the words; 13a leaves them.
    assert bleu(["„gut“ ist das"], ["„ gut “ ist das"]) == {"bleu": pytest.approx(1.0)}
    # Precisions 3/4, 2/3, 1/2 and, smoothed, 1/2 of 1/1; as long as its reference.
    expected = (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25
    assert bleu(["a b c d"], ["a b c e"]) == {"bleu": pytest.approx(expected)}


def test_bleu_of_several_references():
    pytest.importorskip("sacrebleu")
    targets = [["a b c d", "x y z w"], ["one two three four"]]
    predictions = ["x y z w", "one two three four"]
    assert bleu(targets, predictions) == {"bleu": pytest.approx(1.0)}
    with pytest.raises(ValueError, match="at least one reference"):
        bleu([[]], ["a"])


@settings(max_examples=40)
@given(PAIRS)
def test_bleu_equals_sacrebleu(pairs):
    sacrebleu = pytest.importorskip("sacrebleu")
    targets, predictions = ([pair[i] for pair in pairs] for i in (0, 1))
    expected = sacrebleu.BLEU(tokenize="intl").corpus_score(predictions, [targets]).score
    assert bleu(targets, predictions) == {"bleu": pytest.approx(expected / 100)}


def test_rouge():
    pytest.importorskip("rouge_score")
    got = rouge(["the cat sat", "a"], ["the cat", "b"])
    # First: 2 of 2 and 3 words, 1 of 1 and 2 pairs, a subsequence of 2; second: nothing.
    assert list(got) == ["rouge1", "rouge2", "rougeLsum"]
    assert got["rouge1"] == pytest.approx(0.8 / 2)
    assert got["rouge2"] == pytest.approx(2 / 3 / 2)
    assert got["rougeLsum"] == pytest.approx(0.8 / 2)
    assert set(rouge(["a"], [""]).values()) == {0.0}
    assert set(rouge(["a b", "c d"], ["a b", "c d"]).values()) == {1.0}


def test_rouge_lsum_is_by_sentence():
    pytest.importorskip("rouge_score")
    target, swapped = "a b . c d .", "c d . a b ."
    # Each sentence is found whole, in whatever order; as one sequence only half would be.
    assert rouge([target], [swapped])["rougeLsum"] == 1.0


@settings(max_examples=30)
@given(PAIRS)
def test_rouge_is_the_mean_of_rouge_score_s_values(pairs):
    scoring = pytest.importorskip("rouge_score.rouge_scorer")
    targets, predictions = ([pair[i] for pair in pairs] for i in (0, 1))
    scorer = scoring.RougeScorer(["rouge1", "rouge2"])
    each = [scorer.score(t, p) for t, p in zip(targets, predictions, strict=True)]
    got = rouge(targets, predictions)
    for name in ("rouge1", "rouge2"):
        expected = sum(scores[name].fmeasure for scores in each) / len(each)
        assert got[name] == pytest.approx(expected)


@pytest.mark.parametrize("metric", [bleu, rouge])
def test_refuses_nothing_and_unequal_lengths(metric):
    with pytest.raises(ValueError, match="empty"):
        metric([], [])
    with pytest.raises(ValueError, match="there are 1 targets and 0 predictions"):
        metric(["a"], [])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(
        InputError, match=r"needs sacrebleu, which is not installed; run pip install .*\[metrics\]"
    ):
        bleu(["a"], ["a"])
