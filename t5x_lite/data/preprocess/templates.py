"""Text with places for the fields of a record.

    fill("sst2 sentence: {sentence}", {"sentence": "it 's charming ."})
    # "sst2 sentence: it 's charming ."

A place is a field's name in braces, and any name will do ("{#1 String}"); "{{" and "}}" are braces.
What a field holds is text and is never read as a template.
"""

import functools
import re
from collections.abc import Mapping

from t5x_lite.errors import InputError

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def fill(template: str, fields: Mapping[str, object]) -> str:
    """The template with the fields in their places.

    Raises:
      InputError: a place names no field, or a brace is not closed.
    """
    return _PLACE.sub(functools.partial(_value, template=template, fields=fields), template)


def _value(match: re.Match[str], *, template: str, fields: Mapping[str, object]) -> str:
    """The text of one place: the field that it names, or a brace."""
    place = match.group()
    if place in ("{{", "}}"):
        return place[0]
    if place in ("{", "}"):
        raise InputError(f"the template {template!r} has a single {place}: write {place * 2}")
    name = match.group(1)
    if name not in fields:
        raise InputError(
            f"the template {template!r} names {name!r}; the fields are {', '.join(fields)}"
        )
    return str(fields[name])


def places(template: str) -> tuple[str, ...]:
    """The names of the fields in a template, in its order, each once."""
    found = (match.group(1) for match in _PLACE.finditer(template))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def prompt(task: str, fields: Mapping[str, str]) -> str:
    """One line of a task's name and its fields, in their order."""
    return " ".join([task, *(f"{key}: {value}" for key, value in fields.items())])


def rewrite(record: Mapping[str, object], *, inputs: str, targets: str) -> dict[str, str]:
    """A record as two templates: summaries, translations, and anything of one's own.

    T5's are "summarize: {article}", and "translate English to German: {en}".
    """
    return {"inputs": fill(inputs, record), "targets": fill(targets, record)}
