"""Queries with passages that answer them and passages that do not, as JSON objects.

{"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.errors import InputError


class Pairs(NamedTuple):
    """A query, the passages that answer it, and others that do not."""

    query: str
    positives: Sequence[str]
    negatives: Sequence[str] = ()


def from_json(text: str) -> Pairs:
    """What `checked` gave."""
    record = json.loads(text)
    return Pairs(record["query"], record["pos"], record["neg"])


def to_json(pairs: Pairs) -> str:
    """What `from_json` reads."""
    record = {"query": pairs.query, "pos": [*pairs.positives], "neg": [*pairs.negatives]}
    return json.dumps(record)


def same_text(text: str) -> Pairs:
    """A text that answers itself."""
    return Pairs(text, [text])


def checked(record: Mapping[str, Any], where: str) -> str:
    """An object of a file of pairs, as `to_json` writes it.

    Args:
      record: the object.
      where: its place, "file:line".

    Raises:
      InputError: it has no query, or lists that are none of strings, or nothing that answers.
    """
    if not isinstance(record.get("query"), str):
        raise InputError(
            f'{where}: must have "query", a string; it has {sorted(record) or "nothing"}'
        )
    lists = {name: record.get(name, []) for name in ("pos", "neg")}
    for name, found in lists.items():
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise InputError(f'{where}: "{name}" must be a list of strings')
    if not lists["pos"]:
        raise InputError(f'{where}: "pos" must have a passage that answers the query')
    return to_json(Pairs(record["query"], lists["pos"], lists["neg"]))
