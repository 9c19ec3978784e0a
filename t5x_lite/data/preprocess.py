"""From fields to text: the pure str functions that tasks share.

T5 reads every task as "<task> <key>: <value> ..." and writes its label as a word:

    prompt("sst2", {"sentence": "it 's charming ."})   -> "sst2 sentence: it 's charming ."
    class_index("positive", ("negative", "positive"))  -> 1

Source: t5/data/preprocessors.py (glue) and postprocessors.py (string_label_to_class_id).
"""

from collections.abc import Mapping, Sequence


def prompt(task: str, fields: Mapping[str, str]) -> str:
    """One line of a task's name and its fields, in their order."""
    return " ".join([task, *(f"{key}: {value}" for key, value in fields.items())])


def class_index(text: str, labels: Sequence[str]) -> int:
    """The index of a label's text; -1, which no metric counts as right, for any other text."""
    return labels.index(text) if text in labels else -1
