"""Text metrics: exact match, SQuAD, answer recall of passages, BLEU, ROUGE, MultiRC and ReCoRD.

exact_match(["to be"], ["to be"])                       # {"exact_match": 1.0}
sequence_accuracy(["to be"], ["to be"])                 # {"sequence_accuracy": 1.0}
squad([["The Eiffel Tower"]], ["eiffel tower!"])        # {"exact_match": 1.0, "f1": 1.0}

`squad_v2` is for questions without an answer (Rajpurkar et al. 2018, arXiv:1806.03822):

    targets = [["Rain"], [""]]                              # the second question has no answer
    predictions = [{"value": "rain", "null_odds": -3.0}, {"value": "snow", "null_odds": -1.0}]
    squad_v2(targets, predictions)["exact"]                 # 0.5
    squad_v2(targets, predictions)["best_exact_thresh"]     # -3.0: "" where the odds are above it

Names and values match the official evaluate-v2.0.py with --na-prob-file; values are divided by 100.
If all questions or no questions have an answer, NoAns_* or HasAns_* are 0; the script omits them.

`top_k` measures open-domain retrieval by the passages that contain an answer:

    has_answer(["Café de Flore"], "Le café  de flore,")     # True
    top_k({"q": ["Rome"]}, {"q": ["Oslo", "In Rome"]}, [1, 2])      # {"top@1": 0.0, "top@2": 1.0}

Text is normalized to NFD and lower case. Its tokens are sequences of letters, digits and marks, and
single other characters except white space and control characters. A passage contains an answer if
the answer's tokens are consecutive tokens of the passage. No passage contains an answer without
tokens.

Quotation marks, dashes, primes, slashes and the ellipsis are first replaced by ASCII characters.

Sources: Karpukhin et al. 2020, arXiv:2004.04906 (facebookresearch/DPR dpr/data/qa_validation.py);
MKQA: Longpre et al. 2021; BGE-M3's evaluation of it.

`bleu` is for translations, and `rouge` for summaries:

    bleu(["Das ist gut."], ["Das ist gut."])        # {"bleu": 1.0}
    rouge(["the cat sat"], ["the cat"])             # {"rouge1": 0.8, "rouge2": 2/3, "rougeLsum"...}

Both need the extra `metrics` (sacrebleu and rouge-score). T5's `rouge` is the middle of a random
bootstrap; here it is the mean over the examples, which that middle estimates, and which is not
random. `statistics.interval` computes a bootstrap interval.

`multirc_f1`, `multirc_exact_match` and `record` are for groups of examples: MultiRC's answers to a
question, and ReCoRD's copies of a question.

Targets are {"group", "value"} and predictions {"value"}, as returned by T5's postprocessors:

    targets = [{"group": 0, "value": 1}, {"group": 0, "value": 0}, {"group": 1, "value": 1}]
    predictions = [{"group": 0, "value": 1}, {"group": 0, "value": 0}, {"group": 1, "value": 0}]
    multirc_f1(targets, predictions)                # {"f1": 2 / 3}: of all answers
    multirc_exact_match(targets, predictions)       # {"exact_match": 0.5}: the first question

Source: t5/evaluation/metrics.py (multirc_f1_over_all_answers, mean_group_metric(all_match),
deduplicate_metric(squad)); SuperGLUE (Wang et al. 2019, arXiv:1905.00537, section 3).
"""

import functools
import importlib
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError, install_command
from t5x_lite.metrics.classification import check_lengths, f1

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TRIVIA = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


def exact_match(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Return {"exact_match": fraction of predictions that are exactly equal to their targets}."""
    check_lengths(targets, predictions)
    equal = [t == p for t, p in zip(targets, predictions, strict=True)]
    return {"exact_match": sum(equal) / len(equal)}


def sequence_accuracy(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Return {"sequence_accuracy"}, T5's name of `exact_match` for complete sequences."""
    return {"sequence_accuracy": exact_match(targets, predictions)["exact_match"]}


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Return SQuAD 1.1's {"exact_match", "f1"}, the means over the questions.

    For each question, the normalized prediction is compared with each accepted answer, and the best
    value counts. F1 is over words, counted with repetition (Rajpurkar et al. 2016,
    arXiv:1606.05250, and its evaluation script).

    Args:
      targets: accepted answers of each question, at least one.
      predictions: predicted answer of each question.

    Raises:
      ValueError: if the lengths differ or are 0, or a question has no answer.
    """
    return _best_answers(targets, predictions, normalize_answer)


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Return TriviaQA's {"exact_match", "f1"}, the means over the questions.

    In answers, punctuation such as curly quotation marks becomes a space (Joshi et al. 2017,
    arXiv:1705.03551, and its evaluation script).

    Args:
      targets: accepted answers of each question, at least one.
      predictions: predicted answer of each question.

    Raises:
      ValueError: if the lengths differ or are 0, or a question has no answer.
    """
    return _best_answers(targets, predictions, normalize_trivia_answer)


def _best_answers(
    targets: Sequence[Sequence[str]],
    predictions: Sequence[str],
    normalize: Callable[[str], str],
) -> dict[str, float]:
    check_lengths(targets, predictions)
    exact, overlap = 0.0, 0.0
    for answers, prediction in zip(targets, predictions, strict=True):
        if isinstance(answers, str) or not answers:
            raise ValueError(f"each target must be a sequence of answers, but one is {answers!r}")
        got = normalize(prediction)
        wanted = [normalize(answer) for answer in answers]
        exact += got in wanted
        overlap += max(word_f1(answer.split(), got.split()) for answer in wanted)
    return {"exact_match": exact / len(targets), "f1": overlap / len(targets)}


def normalize_answer(text: str) -> str:
    """Normalize a SQuAD answer: lower case, without ASCII punctuation and a, an, the."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def normalize_trivia_answer(text: str) -> str:
    """Normalize a TriviaQA answer: lower case, spaces for punctuation, without a, an, the."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_TRIVIA)).split())


def word_f1(wanted: Sequence[str], got: Sequence[str]) -> float:
    """Return the F1 of two lists of words: 2 * shared / (wanted + got), counted with repetition."""
    shared = (Counter(wanted) & Counter(got)).total()
    return 2 * shared / (len(wanted) + len(got)) if shared else 0.0


def squad_v2(
    targets: Sequence[Sequence[str]], predictions: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return SQuAD 2.0's exact match and F1 for questions with and without an answer.

    Args:
      targets: accepted answers of each question; [""] if the question has no answer.
      predictions: {"value": answer, or "" for no answer; "null_odds": odds of no answer} for each
        question.

    Returns:
      "exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact" and "NoAns_f1"; and "best_exact",
      "best_exact_thresh", "best_f1" and "best_f1_thresh", the scores if predictions with odds above
      the best threshold are replaced by "". A prediction "" is kept at every threshold.
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
    """Return the best score over all thresholds of the odds, and the threshold.

    Answers are accepted in ascending order of odds, as in find_best_thresh of SQuAD's script.

    Args:
      gains: score of each predicted answer minus the score of the answer "" to its question.
      odds: odds of no answer, for each question.
      num_without: number of questions without an answer, for which "" has a score of 1.
    """
    order = np.argsort(odds, kind="stable")
    sums = num_without + np.concatenate([[0.0], np.cumsum(np.asarray(gains, np.float64)[order])])
    place = int(np.argmax(sums))
    return float(sums[place]) / len(sums[1:]), float(odds[order[place - 1]]) if place else 0.0


def _accepted(answers: Sequence[str]) -> list[str]:
    return [text for answer in answers if (text := normalize_answer(answer))] or [""]


def _exact(answers: Sequence[str], text: str) -> float:
    return float(normalize_answer(text) in _accepted(answers))


def _f1(answers: Sequence[str], text: str) -> float:
    got = normalize_answer(text).split()
    return max(
        word_f1(wanted.split(), got) if wanted and got else float(wanted.split() == got)
        for wanted in _accepted(answers)
    )


_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u2035\u0060\u00b4\u02b9\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u2036\u02ba", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2044\u2215\u29f8\uff0f", "/"),
        "\u2026": "...",
        "\u00ad": None,
    }
)


def tokens(text: str) -> list[str]:
    """Split a text into lower-case tokens, to find answers in passages."""
    plain = unicodedata.normalize("NFD", text.translate(_PLAIN)).lower()
    return _pattern().findall(plain)


def has_answer(answers: Iterable[str], text: str) -> bool:
    """Return whether a text contains one of the answers."""
    found = tokens(text)
    return any(_is_part(tokens(answer), found) for answer in answers)


def _is_part(part: Sequence[str], whole: Sequence[str]) -> bool:
    size = len(part)
    if not size:
        return False
    starts = (i for i in range(len(whole) - size + 1) if whole[i] == part[0])
    return any(whole[i : i + size] == part for i in starts)


def top_k(
    answers: Mapping[str, Sequence[str]],
    passages: Mapping[str, Sequence[str]],
    cuts: Sequence[int],
) -> dict[str, float]:
    """Return the fraction of questions for which one of the first k passages contains an answer.

    Args:
      answers: question -> answers, for at least one question.
      passages: question -> texts of passages, best first; a question may be missing.
      cuts: values of k.

    Returns:
      {"top@k": fraction} for each k.
    """
    firsts = {
        question: first_answer(found, passages.get(question, ()))
        for question, found in answers.items()
    }
    return {
        f"top@{cut}": sum(0 < first <= cut for first in firsts.values()) / len(firsts)
        for cut in cuts
    }


def first_answer(answers: Sequence[str], passages: Iterable[str]) -> int:
    """Return the rank, from 1, of the first passage that contains an answer, or 0."""
    wanted = [found for answer in answers if (found := tokens(answer))]
    for rank, passage in enumerate(passages, start=1):
        whole = tokens(passage)
        if any(_is_part(part, whole) for part in wanted):
            return rank
    return 0


@functools.cache
def _pattern() -> re.Pattern[str]:
    r"""Return the pattern [\p{L}\p{N}\p{M}]+|[^\p{L}\p{N}\p{M}\p{Z}\p{C}]."""
    spans: dict[str, list[str]] = {"word": [], "no": []}
    kinds = []
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        kinds.append("word" if category[0] in "LNM" else "no" if category[0] in "ZC" else "")
    for kind, inside in spans.items():
        marks = "".join("1" if found == kind else "0" for found in kinds)
        inside += [f"\\U{m.start():08x}-\\U{m.end() - 1:08x}" for m in re.finditer("1+", marks)]
    word, none = ("".join(inside) for inside in spans.values())
    return re.compile(f"[{word}]+|[^{word}{none}]")


ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")


def bleu(targets: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Return {"bleu": sacreBLEU's corpus score in [0, 1]}, with international tokenization.

    Settings are the same as in t5/evaluation/metrics.py: exponential smoothing, case-sensitive,
    tokenize "intl" (Papineni et al. 2002; Post 2018, arXiv:1804.08771).

    Args:
      targets: reference text of each example, or several references.
      predictions: predicted text of each example.

    Raises:
      ValueError: if the lengths differ or are 0, or an example has no reference.
      InputError: if sacrebleu is not installed.
    """
    check_lengths(targets, predictions)
    references = [[t] if isinstance(t, str) else list(t) for t in targets]
    if not all(references):
        raise ValueError("BLEU needs at least one reference for each prediction")
    most = max(len(texts) for texts in references)
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    score = _library("sacrebleu").corpus_bleu(
        list(predictions),
        streams,
        smooth_method="exp",
        force=False,
        lowercase=False,
        tokenize="intl",
        use_effective_order=False,
    )
    return {"bleu": score.score / 100}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Return {"rouge1", "rouge2", "rougeLsum"}, the mean F-measures over all examples.

    As in T5, words are not stemmed, and " . " and newlines end a sentence for ROUGE-Lsum (Lin 2004;
    t5/evaluation/metrics.py).

    Args:
      targets: reference text of each example.
      predictions: predicted text of each example.

    Raises:
      ValueError: if the lengths differ or are 0.
      InputError: if rouge-score is not installed.
    """
    check_lengths(targets, predictions)
    scorer = _library("rouge_score.rouge_scorer").RougeScorer(list(ROUGE_TYPES))
    totals = dict.fromkeys(ROUGE_TYPES, 0.0)
    for target, prediction in zip(targets, predictions, strict=True):
        scores = scorer.score(target=_by_sentence(target), prediction=_by_sentence(prediction))
        for name in ROUGE_TYPES:
            totals[name] += scores[name].fmeasure
    return {name: total / len(targets) for name, total in totals.items()}


def _by_sentence(text: str) -> str:
    return text.replace(" . ", " .\n")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(
            f"this metric needs {package}, which is not installed; run {install_command('metrics')}"
        ) from error


Member = Mapping[str, Any]
"""Type {"group": hashable key of the group, "value": compared value}."""


def multirc_f1(targets: Sequence[Member], predictions: Sequence[Member]) -> dict[str, float]:
    """Return {"f1": F1 over all answers of all questions}, MultiRC's metric F1a.

    Args:
      targets: {"group": question, "value": label 0 or 1} of each answer.
      predictions: {"value": predicted label} of each answer; labels except 0 and 1 are wrong.
    """
    check_lengths(targets, predictions)
    return f1([t["value"] for t in targets], [p["value"] for p in predictions])


def multirc_exact_match(
    targets: Sequence[Member], predictions: Sequence[Member]
) -> dict[str, float]:
    """Return {"exact_match": fraction of questions with correct labels for all answers}.

    Args:
      targets: {"group": question, "value": label 0 or 1} of each answer.
      predictions: {"value": predicted label} of each answer.
    """
    check_lengths(targets, predictions)
    right: dict[Hashable, bool] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        right[group] = right.get(group, True) and bool(target["value"] == prediction["value"])
    return {"exact_match": sum(right.values()) / len(right)}


def record(targets: Sequence[Member], predictions: Sequence[Member]) -> dict[str, float]:
    """Return ReCoRD's {"exact_match", "f1"}, the means over the questions.

    If several examples have the same question, only the first counts. Its prediction is compared
    with each accepted answer, and the best value counts.

    Args:
      targets: {"group": question, "value": list of accepted answers} of each example.
      predictions: {"value": predicted text} of each example.

    Raises:
      ValueError: if the lengths differ or are 0, or a question has no answer.
    """
    check_lengths(targets, predictions)
    first: dict[Hashable, tuple[Sequence[str], str]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (target["value"], prediction["value"]))
    answers, texts = zip(*first.values(), strict=True)
    return squad(answers, texts)
