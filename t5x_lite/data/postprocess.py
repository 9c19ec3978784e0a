"""Postprocessors of seqio tasks, which convert the text of answers to values for metrics.

    class_index("positive", ("negative", "positive"))      # 1
    string_to_float("3.4")                                 # 3.4
    wsc_simple("the fuzzy bunny", {"targets_pretokenized": "bunny"})   # 1: it is the referent

All postprocessors are called as (text, example=, is_target=); is_target is True for the text of a
target, and False for a prediction. `example` has all fields of the example; its texts may be str,
or bytes as in TensorFlow.

A task with a fixed set of answers uses `ClassIndex`, and can then also be evaluated by ranking the
answers (`loading.task_labels`):

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
    """Return the index of the label that equals a text, or -1 if no label does.

    White space around texts is ignored.
    """
    if text in labels:
        return labels.index(text)
    bare, wanted = [label.strip() for label in labels], text.strip()
    return bare.index(wanted) if wanted in bare else -1


@dataclass(frozen=True)
class ClassIndex:
    """Postprocessor that converts the text of a label to its index with `class_index`.

    Attributes:
      labels: texts of all labels, in the order of the class indices.
    """

    labels: tuple[str, ...]

    def __call__(self, text: str, **_: Any) -> int:
        return class_index(text, self.labels)


def string_to_float(text: str, *, default: float = -1.0, **_: Any) -> float:
    """Convert a text to a float; return `default` if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return default


class Number:
    """Postprocessor that parses a text as a number with `string_to_float`."""

    def __call__(self, text: str, **_: Any) -> float:
        return string_to_float(text)

    def is_answer(self, text: str) -> bool:
        """Return whether a text is a finite number."""
        return math.isfinite(string_to_float(text, default=math.nan))


class Similarity(Number):
    """Postprocessor for STS-B, which parses a text as a number from 0 to 5.

    Attributes:
      labels: the 26 numbers that T5 is trained to write, for ranking.
    """

    labels: tuple[str, ...] = tuple(f"{fifths / 5:.1f}" for fifths in range(26))

    def is_answer(self, text: str) -> bool:
        """Return whether a text is a finite number of at least 0."""
        return super().is_answer(text) and self(text) >= 0.0


any_number, similarity = Number(), Similarity()


def is_answer(postprocess: Any, text: str) -> bool | None:
    """Return True if a text is a valid answer of a task; None if every text is valid.

    `postprocess` defines valid answers by its method `is_answer` or its attribute `labels`.
    """
    own = getattr(postprocess, "is_answer", None)
    if own is not None:
        return own(text)
    labels = getattr(postprocess, "labels", None)
    return None if labels is None else class_index(text, labels) >= 0


def is_known(text: str, target: Any) -> bool:
    """Return False if a target is a placeholder, as in test splits without labels.

    Args:
      text: text of the target; "<unk>" is a placeholder.
      target: postprocessed target; -1 and an empty list of answers are placeholders.
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
    """Postprocessor for MultiRC, which converts an answer to a label index.

    Attributes:
      labels: texts of both labels.
    """

    labels: tuple[str, ...] = ("False", "True")

    def __call__(
        self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
    ) -> dict[str, Any]:
        """Return {"value": label index}; targets also have "group", the number of the question."""
        value: dict[str, Any] = {"value": class_index(text, self.labels)}
        if is_target:
            assert example is not None
            value["group"] = int(example["idx/question"])
        return value


multirc = MultiRc()


def record(
    text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> dict[str, Any]:
    """Return {"value": prediction} for ReCoRD; for targets, "value" has all answers."""
    if not is_target:
        return {"value": text}
    assert example is not None
    group = (int(example["idx/passage"]), int(example["idx/query"]))
    return {"value": _texts(example["answers"]), "group": group}


def qa(
    text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | list[str]:
    """Return the prediction unchanged for SQuAD; for a target, return all answers."""
    if not is_target:
        return text
    assert example is not None
    return _texts(example["answers"])


def wsc_simple(text: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> int:
    """Return 1 if a WSC or WNLI prediction is the example's noun, 0 if not, -1 if it is empty.

    For a target, return the label: whether the example's noun is the referent of the pronoun. Upper
    case and determiners are ignored. A prediction is the noun if one of them contains all words of
    the other, and both or neither have an apostrophe: "Bob" is not "Bob's hat".
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
