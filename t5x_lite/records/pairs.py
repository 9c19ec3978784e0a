"""Queries with passages that answer them and passages that do not, as JSON objects.

{"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

A teacher's scores of the passages may stand beside them: "pos_scores": [9.5, 7.0], "neg_scores":
[0.25]. null is none. So may ids, "pos_ids": ["p7", "p9"] and "neg_ids", by which a passage that
answers is known where it stands among the negatives of another row. A "prompt" begins the query, as
instructions do; and each passage, too, where "type" says that both are texts of one kind, by a name
of FlagEmbedding: "symmetric_sts" or "symmetric_clustering". Its other types, such as "normal",
"symmetric_class" and "only_1neg", change nothing: data.layout.negatives says how many there are.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.errors import InputError
from t5x_lite.records.passages import Passage

SCORES = ("pos_scores", "neg_scores")
"""Fields of a teacher's scores."""
IDS = ("pos_ids", "neg_ids")
"""Fields of the passages' ids."""

_PROMPTED = ("symmetric_sts", "symmetric_clustering")
"""Types whose passages begin with the prompt, too."""

_LARGEST = 3e38  # of float32


class Pairs(NamedTuple):
    """A query, the passages that answer it, and others that do not.

    Attributes:
      query: the text, with its prompt.
      positives: passages that answer it.
      negatives: passages that do not.
      positive_scores: a teacher's scores of the positives; NaN where it has none.
      negative_scores: those of the negatives.
      positive_ids: names of the positives; None is not known.
      negative_ids: those of the negatives.
    """

    query: str
    positives: Sequence[str]
    negatives: Sequence[str] = ()
    positive_scores: Sequence[float] | None = None
    negative_scores: Sequence[float] | None = None
    positive_ids: Sequence[str] | None = None
    negative_ids: Sequence[str] | None = None


def from_json(text: str) -> Pairs:
    """What `checked` gave."""
    record = json.loads(text)
    positive, negative = (_scores(record.get(name)) for name in SCORES)
    ids = [record.get(name) for name in IDS]
    return Pairs(record["query"], record["pos"], record["neg"], positive, negative, *ids)


def _scores(found: Sequence[Any] | None) -> list[float] | None:
    return None if found is None else [math.nan if x is None else float(x) for x in found]


def to_json(pairs: Pairs) -> str:
    """What `from_json` reads."""
    record: dict[str, Any] = {
        "query": pairs.query,
        "pos": [*pairs.positives],
        "neg": [*pairs.negatives],
    }
    for name, scores in zip(SCORES, (pairs.positive_scores, pairs.negative_scores), strict=True):
        if scores is not None:
            record[name] = [None if math.isnan(score) else score for score in scores]
    for name, ids in zip(IDS, (pairs.positive_ids, pairs.negative_ids), strict=True):
        if ids is not None:
            record[name] = [*ids]
    return json.dumps(record)


class Answers:
    """The positives of each query, over all lines that have its text.

    A file may give the answers of a query on several lines, one on each. A negative of one line may
    then be the positive of another line.
    """

    def __init__(self, lines: Iterable[Pairs]):
        """Read the lines once; 8 bytes of each query, text and id are kept.

        Args:
          lines: queries with their positives.
        """
        self._known: dict[bytes, set[bytes]] = {}
        for one in lines:
            known = self._known.setdefault(_digest(_folded(one.query)), set())
            known.update(_digest(f"text {_folded(text)}") for text in one.positives)
            known.update(_digest(f"id {name}") for name in one.positive_ids or ())

    def of(self, pairs: Pairs) -> Callable[[str, str | None], bool]:
        """Return the test of a passage, its text and its id or None, for the query of a line."""
        known = self._known.get(_digest(_folded(pairs.query)), set())

        def is_answer(text: str, name: str | None) -> bool:
            is_named = name is not None and _digest(f"id {name}") in known
            return is_named or _digest(f"text {_folded(text)}") in known

        return is_answer


def without_answers(pairs: Pairs, answers: Answers | None = None) -> Pairs:
    """Drop each negative that has the id of a positive, or its text up to case and whitespace.

    Args:
      pairs: a line.
      answers: the positives of all lines; None is only this line.
    """
    if not pairs.negatives:
        return pairs
    is_answer = (answers or Answers([pairs])).of(pairs)
    ids = pairs.negative_ids or [None] * len(pairs.negatives)
    kept = [
        place
        for place, (text, name) in enumerate(zip(pairs.negatives, ids, strict=True))
        if not is_answer(text, name)
    ]
    if len(kept) == len(pairs.negatives):
        return pairs
    scores, named = pairs.negative_scores, pairs.negative_ids
    return pairs._replace(
        negatives=[pairs.negatives[place] for place in kept],
        negative_scores=None if scores is None else [scores[place] for place in kept],
        negative_ids=None if named is None else [named[place] for place in kept],
    )


def without_any_answers(lines: Iterable[Pairs]) -> list[Pairs]:
    """Lines without the negatives that any of them has as a positive of the same query."""
    lines = [*lines]
    answers = Answers(lines)
    return [without_answers(one, answers) for one in lines]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def titled(passage: Passage) -> str:
    """A passage's title and what its text says besides, as JSON; "" without one of the two."""
    title = passage.title.strip()
    text = passage.text.strip().removeprefix(title).strip()
    return to_json(Pairs(title, [text])) if title and text else ""


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
    prompt = record.get("prompt")
    if not isinstance(prompt, str | None):
        raise InputError(f'{where}: "prompt" must be a string, got {prompt!r}')
    positive, negative = (
        _checked_scores(record, name, texts, where)
        for name, texts in zip(SCORES, lists.values(), strict=True)
    )
    named, unnamed = (
        _checked_ids(record, name, texts, where)
        for name, texts in zip(IDS, lists.values(), strict=True)
    )
    kind = record.get("type")
    if not isinstance(kind, str | None):
        raise InputError(f'{where}: "type" must be a string, got {kind!r}')
    before = prompt or ""
    texts = [lists["pos"], lists["neg"]]
    if kind in _PROMPTED:
        texts = [[before + text for text in each] for each in texts]
    return to_json(Pairs(before + record["query"], *texts, positive, negative, named, unnamed))


def _checked_ids(
    record: Mapping[str, Any], name: str, texts: Sequence[str], where: str
) -> list[str] | None:
    """Ids of texts, strings or whole numbers; None where there are none."""
    found = record.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != len(texts):
        raise InputError(
            f'{where}: "{name}" must be a list of {len(texts)} ids, one for each passage'
        )
    for one in found:
        if type(one) not in (str, int):
            raise InputError(f'{where}: "{name}" must be of strings or whole numbers: got {one!r}')
    return [str(one) for one in found]


def _checked_scores(
    record: Mapping[str, Any], name: str, texts: Sequence[str], where: str
) -> list[float] | None:
    """A teacher's scores of texts, a finite number or null of each; None where there are none."""
    found = record.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != len(texts):
        raise InputError(
            f'{where}: "{name}" must be a list of {len(texts)} numbers, one for each passage'
        )
    for score in found:
        right = type(score) in (int, float) and abs(score) < _LARGEST
        if score is not None and not right:
            raise InputError(f'{where}: "{name}" must be of numbers, or null: got {score!r}')
    return _scores(found)
