"""Text with places for the fields of a record.

    fill("sst2 sentence: {sentence}", {"sentence": "it 's charming ."})
    # "sst2 sentence: it 's charming ."

A place is a field's name in braces, and any name will do ("{#1 String}"); "{{" and "}}" are braces.
What a field holds is text and is never read as a template.
"""

from collections.abc import Mapping

from t5x_lite.records.documents import fill, places

__all__ = ["fill", "places", "prompt", "rewrite"]


def prompt(task: str, fields: Mapping[str, str]) -> str:
    """One line of a task's name and its fields, in their order."""
    return " ".join([task, *(f"{key}: {value}" for key, value in fields.items())])


def rewrite(record: Mapping[str, object], *, inputs: str, targets: str) -> dict[str, str]:
    """A record as two templates: summaries, translations, and anything of one's own.

    T5's are "summarize: {article}", and "translate English to German: {en}".
    """
    return {"inputs": fill(inputs, record), "targets": fill(targets, record)}
