"""Pairs of a query and passages: JSON objects, triplets, and natural language inference.

Queries with positive and negative passages, as JSON objects:

{"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

Optional fields are a teacher's scores of the passages, "pos_scores": [9.5, 7.0] and "neg_scores":
[0.25], where null is a missing score, and ids, "pos_ids": ["p7", "p9"] and "neg_ids". Ids identify
a positive among the negatives of another row. A "prompt" is prepended to the query, like an
instruction. It is also prepended to each passage if "type" is one of FlagEmbedding's symmetric
types, "symmetric_sts" or "symmetric_clustering". Other types, such as "normal", "symmetric_class"
and "only_1neg", have no effect: data.layout.negatives sets the number of negatives.

Triplets of a query, a positive and a negative passage, one per line, separated by tabs:

    who wrote Emma TAB Jane Austen wrote Emma. TAB Emma Stone is an actress.

This is the form of MS MARCO's triples.train.small.tsv. Each line is a separate row, even for the
same query. A line of column names, such as query TAB positive TAB negative, is a header and makes
no row.

Source: the README of microsoft/MSMARCO-Passage-Ranking.

Natural language inference, with entailed sentences as positives and contradictions as negatives:

    {"gold_label": "entailment", "sentence1": "A man plays.", "sentence2": "Someone plays."}
    {"gold_label": "contradiction", "sentence1": "A man plays.", "sentence2": "Nobody plays."}

become {"query": "A man plays.", "pos": ["Someone plays."], "neg": ["Nobody plays."]}. The input is
the JSON of SNLI 1.0 and MultiNLI 1.0. Neutral sentences, sentences without a majority ("-") and
premises that entail nothing are skipped. Premises are in the order of their first sentence.

Source: Gao et al. 2021, "SimCSE", section 4; Bowman et al. 2015 and Williams et al. 2018 for files.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import DataPath
from t5x_lite.data.formats import table_splits
from t5x_lite.data.formats.lines import read_examples
from t5x_lite.data.formats.passages import Passage

_logger = logging.getLogger(__name__)

SCORES = ("pos_scores", "neg_scores")
"""JSON fields with a teacher's scores of the positives and of the negatives."""
IDS = ("pos_ids", "neg_ids")
"""JSON fields with the ids of the positives and of the negatives."""

_PROMPTED = ("symmetric_sts", "symmetric_clustering")
"""Values of the field "type" for which the prompt is also prepended to passages."""

_LARGEST = 3e38  # about the largest float32


class Pairs(NamedTuple):
    """Query with its positive and negative passages.

    Attributes:
      query: text of the query, with its prompt.
      positives: passages that answer the query.
      negatives: passages that do not answer the query.
      positive_scores: a teacher's scores of the positives, NaN if missing; None without scores.
      negative_scores: a teacher's scores of the negatives, NaN if missing; None without scores.
      positive_ids: ids of the positives; None if unknown.
      negative_ids: ids of the negatives; None if unknown.
    """

    query: str
    positives: Sequence[str]
    negatives: Sequence[str] = ()
    positive_scores: Sequence[float] | None = None
    negative_scores: Sequence[float] | None = None
    positive_ids: Sequence[str] | None = None
    negative_ids: Sequence[str] | None = None


def from_json(text: str) -> Pairs:
    """Parse the JSON that `to_json` returns."""
    record = json.loads(text)
    positive, negative = (_scores(record.get(name)) for name in SCORES)
    ids = [record.get(name) for name in IDS]
    return Pairs(record["query"], record["pos"], record["neg"], positive, negative, *ids)


def _scores(found: Sequence[Any] | None) -> list[float] | None:
    return None if found is None else [math.nan if x is None else float(x) for x in found]


def to_json(pairs: Pairs) -> str:
    """Return a query and its passages as JSON for `from_json`."""
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
    """Index of the positives of each query, over all lines with the same query text.

    The positives of a query may be on several lines of a file. A negative on one line may then be a
    positive on another line.
    """

    def __init__(self, lines: Iterable[Pairs]):
        """Read the lines once; 8 bytes are kept for each query, text and id."""
        self._known: dict[bytes, set[bytes]] = {}
        for one in lines:
            known = self._known.setdefault(_digest(_folded(one.query)), set())
            known.update(_digest(f"text {_folded(text)}") for text in one.positives)
            known.update(_digest(f"id {name}") for name in one.positive_ids or ())

    def of(self, pairs: Pairs) -> Callable[[str, str | None], bool]:
        """Return a function that tests if a passage is a positive of the query, by text or id."""
        known = self._known.get(_digest(_folded(pairs.query)), set())

        def is_answer(text: str, name: str | None) -> bool:
            is_named = name is not None and _digest(f"id {name}") in known
            return is_named or _digest(f"text {_folded(text)}") in known

        return is_answer


def without_answers(pairs: Pairs, answers: Answers | None = None) -> Pairs:
    """Drop the negatives that equal a positive of the query in id, or in text.

    Texts are compared without differences in case and white space.

    Args:
      pairs: query with its passages.
      answers: positives of all queries; None to use only the positives of `pairs`.
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
    """Return the lines without negatives that are positives of the same query on any line."""
    lines = [*lines]
    answers = Answers(lines)
    return [without_answers(one, answers) for one in lines]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def titled(passage: Passage) -> str:
    """Return a passage's title as query and its text as positive, in JSON; "" if one is missing.

    The title is removed from the start of the text.
    """
    title = passage.title.strip()
    text = passage.text.strip().removeprefix(title).strip()
    return to_json(Pairs(title, [text])) if title and text else ""


def same_text(text: str) -> Pairs:
    """Return a pair with a text as both query and positive."""
    return Pairs(text, [text])


def checked(record: Mapping[str, Any], where: str) -> str:
    """Check a JSON object of a file of pairs, and return it in the format of `to_json`."""
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
    """Return the checked ids of the passages as strings, or None if the object has no ids."""
    found = record.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != len(texts):
        raise InputError(
            f'{where}: "{name}" must be a list of {len(texts)} ids, one for each passage'
        )
    for one in found:
        if type(one) not in (str, int):
            raise InputError(
                f'{where}: "{name}" must contain only strings or whole numbers, got {one!r}'
            )
    return [str(one) for one in found]


def _checked_scores(
    record: Mapping[str, Any], name: str, texts: Sequence[str], where: str
) -> list[float] | None:
    """Return the checked teacher's scores of the passages, or None if the object has no scores."""
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
            raise InputError(f'{where}: "{name}" must contain only numbers or null, got {score!r}')
    return _scores(found)


_POSITIVE = r"pos(itive)?([-_ ]\w+)?|passage|\w+[-_ ]pos(itive)?"
_NEGATIVE = r"neg(ative)?([-_ ]\w+)?|\w+[-_ ]neg(ative)?"
_HEADER = re.compile(
    rf'"?(query|question|anchor)([-_ ]text)?"?\t"?({_POSITIVE})"?\t"?({_NEGATIVE})"?', re.IGNORECASE
)


def checked_triplet(line: str, where: str) -> str:
    """Convert a line of query, positive and negative to JSON for `from_json`; "" for a header."""
    texts = [text.strip() for text in line.split("\t")]
    if _HEADER.fullmatch("\t".join(texts)):
        return ""
    if len(texts) != 3 or not all(texts):
        raise InputError(
            f"{where}: must be query TAB positive passage TAB negative passage, got {line[:60]!r}"
        )
    query, positive, negative = texts
    return to_json(Pairs(query, [positive], [negative]))


LABELS = ("entailment", "neutral", "contradiction", "-")
_EXPECTED = (
    '*train*.jsonl of SNLI or MultiNLI, objects with "gold_label", "sentence1" and "sentence2"'
)


def nli_splits(directory: str) -> tuple[str, ...]:
    """Return the splits of an NLI directory that have files."""
    return tuple(split_files(directory))


def read_nli_pairs(directory: str, split: str) -> list[Pairs]:
    """Return the premises of an NLI split that entail a sentence, with positives and negatives."""
    return pairs_of(split_files(directory)[split])


def split_files(directory: str) -> dict[str, list[DataPath]]:
    """Return the JSON Lines files of each split of an NLI directory."""
    return table_splits.split_files(directory, suffix=".jsonl", expected=_EXPECTED)


def pairs_of(files: Sequence[DataPath]) -> list[Pairs]:
    """Return the premises of NLI files that entail a sentence, merged over all files."""
    answers: dict[str, tuple[list[str], list[str]]] = {}
    for file in files:
        for line in read_examples(str(file), fields=("gold_label", "sentence1", "sentence2")):
            label, premise, other = (
                line.record[name] for name in ("gold_label", "sentence1", "sentence2")
            )
            if label not in LABELS:
                raise InputError(
                    f'{line.where}: "gold_label" must be one of {", ".join(LABELS)}: got {label!r}'
                )
            if label in ("entailment", "contradiction"):
                both = answers.setdefault(premise, ([], []))
                own = both[label == "contradiction"]
                if other not in own:
                    own.append(other)
    found = [
        Pairs(premise, entailed, [text for text in against if text not in entailed])
        for premise, (entailed, against) in answers.items()
        if entailed
    ]
    if not found:
        raise InputError(f"{', '.join(map(str, files))}: no premise entails a sentence")
    _logger.info(
        "read %d premises, %d of them without an entailed sentence, which are skipped",
        len(answers),
        len(answers) - len(found),
    )
    return found
