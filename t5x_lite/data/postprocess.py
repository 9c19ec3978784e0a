"""Conversion of an answer's text for metrics: the postprocessors of the t5 library, for seqio.

    class_index("positive", ("negative", "positive"))      # 1
    string_to_float("3.4")                                 # 3.4
    wsc_simple("the fuzzy bunny", {"targets_pretokenized": "bunny"})   # 1: it is the referent

All are called as (text, example=, is_target=), with is_target True for a target's text and False
for a prediction. `example` holds all fields of the text's example. Its text may be bytes, as
TensorFlow gives it, or str.

A task with a fixed set of answers lists them with `ClassIndex`, and can then also be answered by
ranking them (`loading.task_labels` reads them):

    seqio.Task(..., postprocess_fn=ClassIndex(("negative", "positive")), metric_fns=[accuracy])

Source: t5 0.9.4, t5/data/postprocessors.py.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t5x_lite.data.preprocessors import UNKNOWN

_DETERMINERS = """
a an few her his each every many much my our some that the their these this those which whose your
"""
DETERMINERS = frozenset(_DETERMINERS.split())
"""Words that are ignored when answers of WSC are compared."""


def class_index(text: str, labels: Sequence[str]) -> int:
    """Return the index of a label's text; -1, which every metric counts as wrong, for other texts.

    White space around a text is ignored, as in a submission.
    """
    if text in labels:
        return labels.index(text)
    bare, wanted = [label.strip() for label in labels], text.strip()
    return bare.index(wanted) if wanted in bare else -1


@dataclass(frozen=True)
class ClassIndex:
    """Callable from a label's text to its index, by `class_index`.

    Attributes:
      labels: the texts of all labels, in the order of the class indices.
    """

    labels: tuple[str, ...]

    def __call__(self, text: str, **_: Any) -> int:
        """Return the index of a text; seqio's `example` and `is_target` are ignored."""
        return class_index(text, self.labels)


def string_to_float(text: str, *, default: float = -1.0, **_: Any) -> float:
    """Return the number in a text, by Python's float; `default` for any other text."""
    try:
        return float(text)
    except ValueError:
        return default


class Number:
    """Postprocessor that parses a text as a number with `string_to_float`."""

    def __call__(self, text: str, **_: Any) -> float:
        """Return the number; -1 for any other text."""
        return string_to_float(text)

    def is_answer(self, text: str) -> bool:
        """Return whether a text is a finite number."""
        return math.isfinite(string_to_float(text, default=math.nan))


class Similarity(Number):
    """`Number` for STS-B, with values from 0 to 5.

    Attributes:
      labels: the 26 numbers that T5 is trained to write, for ranking.
    """

    labels: tuple[str, ...] = tuple(f"{fifths / 5:.1f}" for fifths in range(26))

    def is_answer(self, text: str) -> bool:
        """Return whether a text is a finite number of at least 0, not only one of the 26."""
        return super().is_answer(text) and self(text) >= 0.0


any_number, similarity = Number(), Similarity()


def is_answer(postprocess: Any, text: str) -> bool | None:
    """Return whether a prediction is a valid answer; None if a task accepts any text.

    Valid answers are the postprocessor's `labels`, or the texts that its `is_answer` accepts.
    """
    own = getattr(postprocess, "is_answer", None)
    if own is not None:
        return own(text)
    labels = getattr(postprocess, "labels", None)
    return None if labels is None else class_index(text, labels) >= 0


def is_known(text: str, target: Any) -> bool:
    """Return whether a target is an answer, not the placeholder of a test split without labels.

    Args:
      text: the target's text; "<unk>" is a placeholder.
      target: the postprocessed target; -1, or an empty list of answers, is a placeholder.
    """
    value = target["value"] if isinstance(target, Mapping) else target
    if text == UNKNOWN or (isinstance(value, list) and not value):
        return False
    return not (isinstance(value, int | float) and value == -1)


def lower_text(text: str, **_: Any) -> str:
    """Return the text in lower case."""
    return text.lower()


@dataclass(frozen=True)
class MultiRc:
    """Callable for MultiRC: {"value": label index}, and for targets "group": question number.

    Attributes:
      labels: the texts of both labels.
    """

    labels: tuple[str, ...] = ("False", "True")

    def __call__(
        self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
    ) -> dict[str, Any]:
        """Return the values that the metrics compare."""
        value: dict[str, Any] = {"value": class_index(text, self.labels)}
        if is_target:
            assert example is not None
            value["group"] = int(example["idx/question"])
        return value


multirc = MultiRc()


def record(
    text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> dict[str, Any]:
    """Return ReCoRD's {"value": prediction}; for a target all answers, and its "group"."""
    if not is_target:
        return {"value": text}
    assert example is not None
    group = (int(example["idx/passage"]), int(example["idx/query"]))
    return {"value": _texts(example["answers"]), "group": group}


def qa(
    text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | list[str]:
    """Return SQuAD's prediction unchanged; for a target all answers."""
    if not is_target:
        return text
    assert example is not None
    return _texts(example["answers"])


def wsc_simple(text: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> int:
    """Return for WSC and WNLI whether the predicted noun is the example's: 1, 0, or -1 if empty.

    Capital letters and determiners are ignored. The words of one noun phrase must be a subset of
    the other's, and both or neither must have an apostrophe: "Bob" is not "Bob's hat". For a target
    the label is returned: whether the example's noun is correct.
    """
    assert example is not None
    if is_target:
        return int(example["label"])
    prediction = _clean(text)
    if not prediction:
        return -1  # not 0, which would be correct if the example's noun is wrong
    referent = _clean(_text(example["targets_pretokenized"]))
    if ("'" in prediction) != ("'" in referent):
        return 0
    predicted, wanted = set(prediction.split(" ")), set(referent.split(" "))
    return int(predicted <= wanted or wanted <= predicted)


def _clean(text: str) -> str:
    words = text.strip().lower().split(" ")
    return " ".join(word for word in words if word not in DETERMINERS)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _texts(values: Iterable[str | bytes]) -> list[str]:
    return [_text(value) for value in values]
