"""From an answer's text to what metrics compare: seqio's postprocessors, those of the t5 library.

    class_index("positive", ("negative", "positive"))      # 1
    string_to_float("3.4")                                 # 3.4
    wsc_simple("the fuzzy bunny", {"targets_pretokenized": "bunny"})   # 1: it is the referent

All are called (text, example=, is_target=): a target's text with is_target True, a prediction's
with False. `example` holds all fields of the example that the text belongs to; its text may be
bytes, as TensorFlow gives it, or str.

A task whose answer is one of a few words says so by `ClassIndex`, and can then be answered by
ranking them, too (`live.tasks.task_labels` reads them):

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
"""Words that the answers of WSC may have or not."""


def class_index(text: str, labels: Sequence[str]) -> int:
    """The index of a label's text; -1, which no metric counts as right, for any other text.

    White space around a text does not matter, as it does not in a submission.
    """
    if text in labels:
        return labels.index(text)
    bare, wanted = [label.strip() for label in labels], text.strip()
    return bare.index(wanted) if wanted in bare else -1


@dataclass(frozen=True)
class ClassIndex:
    """From a label's text to its index, by `class_index`.

    Attributes:
      labels: the texts of all labels, in the order of the class indices.
    """

    labels: tuple[str, ...]

    def __call__(self, text: str, **_: Any) -> int:
        """The index of a text; seqio's `example` and `is_target` do not matter."""
        return class_index(text, self.labels)


def string_to_float(text: str, *, default: float = -1.0, **_: Any) -> float:
    """The number that a text is, by Python's float; `default` for any other text."""
    try:
        return float(text)
    except ValueError:
        return default


class Number:
    """From the text of a number to that number, by `string_to_float`."""

    def __call__(self, text: str, **_: Any) -> float:
        """The number; -1 for any other text."""
        return string_to_float(text)

    def is_answer(self, text: str) -> bool:
        """Whether a text is a finite number."""
        return math.isfinite(string_to_float(text, default=math.nan))


class Similarity(Number):
    """The same of STS-B, whose numbers are from 0 to 5.

    Attributes:
      labels: the texts that T5 is trained to write: 26 numbers, to be ranked.
    """

    labels: tuple[str, ...] = tuple(f"{fifths / 5:.1f}" for fifths in range(26))

    def is_answer(self, text: str) -> bool:
        """Whether a text is a finite number from 0: any, not the 26 alone."""
        return super().is_answer(text) and self(text) >= 0.0


any_number, similarity = Number(), Similarity()


def is_answer(postprocess: Any, text: str) -> bool | None:
    """Whether a prediction is an answer at all; None where a task takes any text.

    It is one of the postprocessor's `labels`, or what its own `is_answer` takes for one.
    """
    own = getattr(postprocess, "is_answer", None)
    if own is not None:
        return own(text)
    labels = getattr(postprocess, "labels", None)
    return None if labels is None else class_index(text, labels) >= 0


def is_known(text: str, target: Any) -> bool:
    """Whether a target is an answer, and not what stands for none in a test split without labels.

    Args:
      text: the target's text; "<unk>" is none.
      target: what a postprocessor made of it: class or number -1, or no answer at all, is none.
    """
    value = target["value"] if isinstance(target, Mapping) else target
    if text == UNKNOWN or (isinstance(value, list) and not value):
        return False
    return not (isinstance(value, int | float) and value == -1)


def lower_text(text: str, **_: Any) -> str:
    """The text in lower case."""
    return text.lower()


@dataclass(frozen=True)
class MultiRc:
    """MultiRC: {"value": the label's index, "group": the number of the question, of targets only}.

    Attributes:
      labels: the texts of both labels.
    """

    labels: tuple[str, ...] = ("False", "True")

    def __call__(
        self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
    ) -> dict[str, Any]:
        """What the metrics compare."""
        value: dict[str, Any] = {"value": class_index(text, self.labels)}
        if is_target:
            assert example is not None
            value["group"] = int(example["idx/question"])
        return value


multirc = MultiRc()


def record(
    text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> dict[str, Any]:
    """ReCoRD: {"value": a prediction}; of a target all answers, "group" passage and query."""
    if not is_target:
        return {"value": text}
    assert example is not None
    group = (int(example["idx/passage"]), int(example["idx/query"]))
    return {"value": _texts(example["answers"]), "group": group}


def qa(
    text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> str | list[str]:
    """SQuAD: a prediction as it is; of a target all answers."""
    if not is_target:
        return text
    assert example is not None
    return _texts(example["answers"])


def wsc_simple(text: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> int:
    """WSC and WNLI: is the predicted noun that of the example? 1 or 0, and -1 if nothing is said.

    Capital letters and determiners do not matter. The words of one must be among those of the
    other, and both or neither must have an apostrophe: "Bob" is not "Bob's hat". A target is the
    label: whether the example's noun is the right one.
    """
    assert example is not None
    if is_target:
        return int(example["label"])
    prediction = _clean(text)
    if not prediction:
        return -1  # not 0, which would be right where the example's noun is wrong
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
