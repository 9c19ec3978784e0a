"""From fields to text: the pure str functions that tasks share.

T5 reads every task as "<task> <key>: <value> ..." and writes its label as a word:

    prompt("sst2", {"sentence": "it 's charming ."})   -> "sst2 sentence: it 's charming ."
    class_index("positive", ("negative", "positive"))  -> 1

A task whose answer is one of a few words says so by its postprocessor, and can then be answered by
ranking them, too (`pipeline.task_labels` reads them):

    seqio.Task(..., postprocess_fn=ClassIndex(("negative", "positive")), metric_fns=[accuracy])

Source: t5/data/preprocessors.py (glue) and postprocessors.py (string_label_to_class_id).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def prompt(task: str, fields: Mapping[str, str]) -> str:
    """One line of a task's name and its fields, in their order."""
    return " ".join([task, *(f"{key}: {value}" for key, value in fields.items())])


def class_index(text: str, labels: Sequence[str]) -> int:
    """The index of a label's text; -1, which no metric counts as right, for any other text."""
    return labels.index(text) if text in labels else -1


@dataclass(frozen=True)
class ClassIndex:
    """A postprocessor of seqio: from a label's text to its index, by `class_index`.

    Attributes:
      labels: the texts of all labels, in the order of the class indices.
    """

    labels: tuple[str, ...]

    def __call__(self, text: str, **_: Any) -> int:
        """The index of a text; seqio's `example` and `is_target` do not matter."""
        return class_index(text, self.labels)
