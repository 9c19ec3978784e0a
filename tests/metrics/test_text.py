import subprocess
import sys

import pytest

from t5x_lite.metrics.text import exact_match, normalize_answer, squad


def test_exact_match_is_to_the_letter():
    assert exact_match(["to be", "or not"], ["to be", "Or not"]) == {"exact_match": 0.5}


def test_normalize_answer():
    assert normalize_answer("  The Eiffel-Tower, in  a Park! ") == "eiffeltower in park"
    assert normalize_answer("theatre") == "theatre"


def test_squad_takes_the_best_answer():
    targets = [["The Eiffel Tower"], ["in 1889", "1889"], ["red apple pie"]]
    predictions = ["eiffel tower!", "1889", "the green apple"]
    # Third: one of 3 and 2 words shared, 2 * 1 / 5.
    assert squad(targets, predictions) == {"exact_match": 2 / 3, "f1": pytest.approx(2.4 / 3)}


def test_squad_refuses_a_bare_string():
    with pytest.raises(ValueError, match="sequences of answers"):
        squad(["1889"], ["1889"])


@pytest.mark.parametrize("metric", [exact_match, squad])
def test_refuses_nothing_and_unequal_lengths(metric):
    with pytest.raises(ValueError, match="empty"):
        metric([], [])
    with pytest.raises(ValueError, match="got 1 targets and 0 predictions"):
        metric(["a"], [])


def test_metrics_load_neither_jax_nor_tensorflow():
    code = (
        "import sys, t5x_lite.metrics.classification, t5x_lite.metrics.text;"
        "sys.exit(bool({'jax', 'tensorflow', 'seqio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
