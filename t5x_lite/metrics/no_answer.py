"""SQuAD 2.0: questions some of which have no answer (Rajpurkar et al. 2018, arXiv:1806.03822).

    targets = [["Rain"], [""]]                              # the second question has no answer
    predictions = [{"value": "rain", "null_odds": -3.0}, {"value": "snow", "null_odds": -1.0}]
    squad_v2(targets, predictions)["exact"]                 # 0.5
    squad_v2(targets, predictions)["best_exact_thresh"]     # -3.0: "" where the odds are above it

Names and values are those of the official evaluate-v2.0.py with --na-prob-file, divided by 100.
Without questions of a kind, HasAns_* or NoAns_* are 0, which the script leaves out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.metrics.classification import check_lengths
from t5x_lite.metrics.text import normalize_answer, word_f1


def squad_v2(
    targets: Sequence[Sequence[str]], predictions: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Returns exact match and F1: of all questions, of those with and without answer, at the best.

    Args:
      targets: the accepted answers of each question; [""] where it has none.
      predictions: as many of {"value": an answer, "" for none; "null_odds": the larger, the less is
        there an answer}.

    Returns:
      "exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", and "best_exact",
      "best_exact_thresh", "best_f1" and "best_f1_thresh": what predictions would score that are ""
      where their odds are above a threshold, the one that is best for these questions. An answer
      that is "" already stays so, as in the script: no threshold above its odds brings it back.

    Raises:
      ValueError: there are no targets, or not as many predictions.
    """
    check_lengths(targets, predictions)
    texts = [prediction["value"] for prediction in predictions]
    has_answer = np.array([any(answers) for answers in targets])
    pairs = list(zip(targets, texts, strict=True))
    scores = {
        "exact": np.array([_exact(answers, text) for answers, text in pairs]),
        "f1": np.array([_f1(answers, text) for answers, text in pairs]),
    }
    found = {name: float(np.mean(values)) for name, values in scores.items()}
    for kind, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
        for name, values in scores.items():
            found[f"{kind}_{name}"] = float(np.mean(values[chosen])) if chosen.any() else 0.0
    odds = [float(prediction["null_odds"]) for prediction in predictions]
    for name, values in scores.items():
        gains = np.where(has_answer, values, [-1.0 if text else 0.0 for text in texts])
        best, threshold = best_threshold(gains, odds, num_without=int(np.sum(~has_answer)))
        found |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return found


def best_threshold(
    gains: Sequence[float] | np.ndarray, odds: Sequence[float], *, num_without: int
) -> tuple[float, float]:
    """The best score over thresholds, and the first threshold that has it (find_best_thresh).

    Answers are taken one after the other, those with the least odds first; of equal odds the first.

    Args:
      gains: what each answer adds to the sum of scores, if it is taken in place of none.
      odds: of each.
      num_without: questions without an answer, which all count 1 while no answer is taken.
    """
    order = np.argsort(odds, kind="stable")
    sums = num_without + np.concatenate([[0.0], np.cumsum(np.asarray(gains, np.float64)[order])])
    place = int(np.argmax(sums))
    return float(sums[place]) / len(sums[1:]), float(odds[order[place - 1]]) if place else 0.0


def _accepted(answers: Sequence[str]) -> list[str]:
    """The answers as they are compared; [""] where none has a word that counts."""
    return [text for answer in answers if (text := normalize_answer(answer))] or [""]


def _exact(answers: Sequence[str], text: str) -> float:
    return float(normalize_answer(text) in _accepted(answers))


def _f1(answers: Sequence[str], text: str) -> float:
    """The best F1 over the answers; of an empty one it is 1 if both are empty, and 0 else."""
    got = normalize_answer(text).split()
    return max(
        word_f1(wanted.split(), got) if wanted and got else float(wanted.split() == got)
        for wanted in _accepted(answers)
    )
