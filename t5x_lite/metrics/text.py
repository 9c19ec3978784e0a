"""Metrics of answers as text: exact match, and SQuAD's exact match and F1.

exact_match(["to be"], ["to be"])                       # {"exact_match": 1.0}
sequence_accuracy(["to be"], ["to be"])                 # {"sequence_accuracy": 1.0}
squad([["The Eiffel Tower"]], ["eiffel tower!"])        # {"exact_match": 1.0, "f1": 1.0}
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from t5x_lite.metrics.classification import check_lengths

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TRIVIA = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


def exact_match(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns {"exact_match": the fraction of predictions that are their target, to the letter}.

    Raises:
      ValueError: there are no targets, or not as many predictions.
    """
    check_lengths(targets, predictions)
    equal = [t == p for t, p in zip(targets, predictions, strict=True)]
    return {"exact_match": sum(equal) / len(equal)}


def sequence_accuracy(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns {"sequence_accuracy"}: `exact_match` under the name that T5 has for whole sequences.

    Raises:
      ValueError: there are no targets, or not as many predictions.
    """
    return {"sequence_accuracy": exact_match(targets, predictions)["exact_match"]}


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns SQuAD v1.1's {"exact_match", "f1"} after normalisation, the best over the answers.

    F1 is of the words that prediction and answer share, counted with repetition (Rajpurkar et al.
    2016, arXiv:1606.05250, and its evaluation script).

    Args:
      targets: the accepted answers of each question, at least one.
      predictions: one answer a question.

    Raises:
      ValueError: there are no targets, not as many predictions, or a question has no answer.
    """
    return _best_answers(targets, predictions, normalize_answer)


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns {"exact_match", "f1"} as `squad`, after TriviaQA's normalization.

    Punctuation, curly quotation marks among it, becomes a space (Joshi et al. 2017,
    arXiv:1705.03551, and its evaluation script).

    Args:
      targets: the accepted answers of each question, at least one.
      predictions: one answer a question.

    Raises:
      ValueError: there are no targets, not as many predictions, or a question has no answer.
    """
    return _best_answers(targets, predictions, normalize_trivia_answer)


def _best_answers(
    targets: Sequence[Sequence[str]],
    predictions: Sequence[str],
    normalize: Callable[[str], str],
) -> dict[str, float]:
    """Exact match and F1, the best over the answers of each question."""
    check_lengths(targets, predictions)
    exact, overlap = 0.0, 0.0
    for answers, prediction in zip(targets, predictions, strict=True):
        if isinstance(answers, str) or not answers:
            raise ValueError(f"targets must be sequences of answers; got {answers!r}")
        got = normalize(prediction)
        wanted = [normalize(answer) for answer in answers]
        exact += got in wanted
        overlap += max(word_f1(answer.split(), got.split()) for answer in wanted)
    return {"exact_match": exact / len(targets), "f1": overlap / len(targets)}


def normalize_answer(text: str) -> str:
    """Lower-cases, and takes out ASCII punctuation, the words a, an, the, and extra white space."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def normalize_trivia_answer(text: str) -> str:
    """Lower-case; make spaces of punctuation; take out a, an, the, and extra white space."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_TRIVIA)).split())


def word_f1(wanted: Sequence[str], got: Sequence[str]) -> float:
    """Returns 2 * shared / (wanted + got) words, of words with repetition; 0 if none is shared."""
    shared = (Counter(wanted) & Counter(got)).total()
    return 2 * shared / (len(wanted) + len(got)) if shared else 0.0
