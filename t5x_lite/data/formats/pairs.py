"""Pairs of a query and a passage: JSON objects, triplets, and those of natural language inference.

Queries with passages that answer them and passages that do not, as JSON objects.

{"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

A teacher's scores of the passages may stand beside them: "pos_scores": [9.5, 7.0], "neg_scores":
[0.25]. null is none. So may ids, "pos_ids": ["p7", "p9"] and "neg_ids", by which a passage that
answers is known where it stands among the negatives of another row. A "prompt" begins the query, as
instructions do; and each passage, too, where "type" says that both are texts of one kind, by a name
of FlagEmbedding: "symmetric_sts" or "symmetric_clustering". Its other types, such as "normal",
"symmetric_class" and "only_1neg", change nothing: data.layout.negatives says how many there are.

Triplets of a query, a passage that answers it and one that does not, a line with tabs each.

    who wrote Emma TAB Jane Austen wrote Emma. TAB Emma Stone is an actress.

That is the form of MS MARCO's triples.train.small.tsv. Lines of one query are rows of their own. A
line of column names, such as query TAB positive TAB negative, is a header and makes no row.

Source: the README of microsoft/MSMARCO-Passage-Ranking.

Natural language inference as pairs: what a premise entails answers it, what contradicts it not.

    {"gold_label": "entailment", "sentence1": "A man plays.", "sentence2": "Someone plays."}
    {"gold_label": "contradiction", "sentence1": "A man plays.", "sentence2": "Nobody plays."}

become {"query": "A man plays.", "pos": ["Someone plays."], "neg": ["Nobody plays."]}. That is the
JSON of SNLI 1.0 and MultiNLI 1.0. Neutral sentences and those without a majority ("-") are left
out, and so is a premise that entails nothing; the order is that of the first sentence of each.

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
        """Read the lines once; 8 bytes of each query, text and id are kept."""
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
    """Drop each negative that has the id of a positive, or its text up to case and whitespace."""
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
    """An object of a file of pairs, as `to_json` writes it."""
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


_POSITIVE = r"pos(itive)?([-_ ]\w+)?|passage|\w+[-_ ]pos(itive)?"
_NEGATIVE = r"neg(ative)?([-_ ]\w+)?|\w+[-_ ]neg(ative)?"
_HEADER = re.compile(
    rf'"?(query|question|anchor)([-_ ]text)?"?\t"?({_POSITIVE})"?\t"?({_NEGATIVE})"?', re.IGNORECASE
)


def checked_triplet(line: str, where: str) -> str:
    """A line as `pairs.from_json` reads it; "" for a header."""
    texts = [text.strip() for text in line.split("\t")]
    if _HEADER.fullmatch("\t".join(texts)):
        return ""
    if len(texts) != 3 or not all(texts):
        raise InputError(
            f"{where}: must be a query, a passage that answers it and one that does not, with tabs "
            f"between them, got {line[:60]!r}"
        )
    query, positive, negative = texts
    return to_json(Pairs(query, [positive], [negative]))


LABELS = ("entailment", "neutral", "contradiction", "-")
_EXPECTED = (
    '*train*.jsonl of SNLI or MultiNLI, objects with "gold_label", "sentence1" and "sentence2"'
)


def nli_splits(directory: str) -> tuple[str, ...]:
    """The splits that have files; see `split_files`."""
    return tuple(split_files(directory))


def read_nli_pairs(directory: str, split: str) -> list[Pairs]:
    """The premises of a split; see `pairs_of`."""
    return pairs_of(split_files(directory)[split])


def split_files(directory: str) -> dict[str, list[DataPath]]:
    """The files of each split; see `named_splits`."""
    return table_splits.split_files(directory, suffix=".jsonl", expected=_EXPECTED)


def pairs_of(files: Sequence[DataPath]) -> list[Pairs]:
    """The premises of files that entail something; all files are one list of sentences."""
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
        raise InputError(f"{', '.join(map(str, files))}: no premise entails anything")
    _logger.info("%d premises, %d of which entail nothing", len(answers), len(answers) - len(found))
    return found
