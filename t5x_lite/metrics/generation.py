"""Metrics of written text: BLEU for translations, ROUGE for summaries.

    bleu(["Das ist gut."], ["Das ist gut."])        # {"bleu": 1.0}
    rouge(["the cat sat"], ["the cat"])             # {"rouge1": 0.8, "rouge2": 2/3, "rougeLsum"...}

They need the extra `metrics`: sacrebleu and rouge-score. T5's own `rouge` is the middle of a random
bootstrap; here it is the mean over the examples, which that middle estimates, so equal texts have
equal values. `bootstrap.interval` gives the interval, by a seed.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.metrics.classification import check_lengths

ROUGE_TYPES = ("rouge1", "rouge2", "rougeLsum")


def bleu(targets: Sequence[str | Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns {"bleu": in [0, 1]}: sacreBLEU's corpus score with the international tokenisation.

    As t5/evaluation/metrics.py (bleu): exponential smoothing, case kept, tokenize "intl" (Papineni
    et al. 2002; Post 2018, arXiv:1804.08771).

    Args:
      targets: the reference of each example, or several.
      predictions: as many texts.

    Raises:
      ValueError: there are no targets, not as many predictions, or an example has no reference.
      InputError: sacrebleu is not installed.
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
    """Returns {"rouge1", "rouge2", "rougeLsum"}: means of the F-measures of all examples.

    As T5 reckons an example: no stemming, and " . " ends a sentence for ROUGE-Lsum, as do newlines
    (Lin 2004; t5/evaluation/metrics.py).

    Args:
      targets: the reference of each example.
      predictions: as many texts.

    Raises:
      ValueError: there are no targets, or not as many predictions.
      InputError: rouge-score is not installed.
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
            f"this metric needs the package {package}: {install_command('metrics')}"
        ) from error
