"""Text that a vocabulary cannot spell, told before it costs a run.

    tell("glue_stsb", [{"inputs": [5, 8, 1], "targets": [2, 9, 2, 1]}], vocabulary)
    # glue_stsb: 100% of targets have unknown tokens (50% of their tokens), such as " ⁇ . ⁇ "; ...

A vocabulary of a few novels has no piece for digits: the targets of STS-B are then all alike, and
no training can tell them apart. A look at the first examples of a task shows it.
"""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.vocabulary.loading import Vocabulary

FIRST = 200
"""Examples that are looked at."""
_FEATURES = ("targets", "inputs")
_SHARE = 0.01
"""Of the examples, and a tenth of it of the tokens: what is rarer is not told."""
_SHOWN = 40

_logger = logging.getLogger(__name__)


def tell(name: str, examples: Iterable[Mapping[str, Any]], vocabulary: Vocabulary) -> None:
    """Warns of a task whose inputs or targets have unknown tokens.

    Args:
      name: the task's.
      examples: with the tokens of "inputs" and "targets", or of one of them; the first are read.
      vocabulary: of the tokens.
    """
    rows: dict[str, list[np.ndarray]] = {feature: [] for feature in _FEATURES}
    for example in itertools.islice(examples, FIRST):
        for feature in _FEATURES:
            if feature in example:
                rows[feature].append(np.asarray(example[feature]))
    told = [text for feature, found in rows.items() if (text := _told(feature, found, vocabulary))]
    if told:
        _logger.warning(
            "%s: %s; train a vocabulary on such text with `t5x-lite vocab`, or set "
            "--data.vocabulary bytes",
            name,
            "; ".join(told),
        )


def _told(feature: str, rows: Sequence[np.ndarray], vocabulary: Vocabulary) -> str:
    """What is told of the rows of a feature; "" where there is nothing to tell."""
    unknown = [int((ids == vocabulary.unk_id).sum()) for ids in rows]
    in_examples = sum(map(bool, unknown)) / max(1, len(rows))
    in_tokens = sum(unknown) / max(1, sum(ids.size for ids in rows))
    if in_examples < _SHARE or in_tokens < _SHARE / 10:
        return ""
    first = rows[next(i for i, number in enumerate(unknown) if number)]
    shown = vocabulary.decode(first.tolist())[:_SHOWN]
    return (
        f"{_percent(in_examples)} of {feature} have unknown tokens ({_percent(in_tokens)} of their "
        f"tokens), such as {shown!r}"
    )


def _percent(share: float) -> str:
    """A share in percent; at least one digit of it that is not 0."""
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"
