"""Queries and passages, as a seqio task: what a contrastive objective compares.

    {"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

Each passage that answers makes an example of its own: {"query", "passages"}, where the passages are
the one that answers and the first data.negatives others, one behind the other, each [CLS] ...
[SEP]. Of a further answer the others begin where those of the one before end. A text that is too
long is cut; data.layout "pairs" says what a batch is.

The same text may be query and passage (SimCSE): the encoder's dropout makes two views of it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.encoder_task import task_of_examples
from t5x_lite.data.encoder_tokens import EncoderTokens, encoder_tokens
from t5x_lite.data.vocabulary import Vocabulary
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


def pair_task(
    name: str, arguments: TaskArguments, *, source: Any, read: Callable[[str], Pairs] = from_json
) -> Any:
    """A seqio.Task of queries and passages.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      source: a seqio source of examples with "text".
      read: a pure function of a text.

    Raises:
      InputError: the rows are too short, or the vocabulary has no [CLS].
    """
    tokens = encoder_tokens(arguments.vocabulary)

    def cut(texts: Sequence[str]) -> list[list[list[int]]]:
        return examples(
            [read(text) for text in texts],
            vocabulary=arguments.vocabulary,
            tokens=tokens,
            lengths=(arguments.inputs_length, arguments.targets_length),
            negatives=arguments.negatives,
        )

    lengths = {
        "query": arguments.inputs_length,
        "passages": arguments.targets_length * (1 + arguments.negatives),
    }
    return task_of_examples(name, arguments, source=source, cut=cut, lengths=lengths)


def examples(
    pairs: Sequence[Pairs],
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    lengths: tuple[int, int],
    negatives: int,
) -> list[list[list[int]]]:
    """The tokens of query and passages of each example, without the last [SEP] of both.

    Args:
      pairs: queries.
      vocabulary: of the tokens.
      tokens: the vocabulary's.
      lengths: tokens of a query and of a passage at most, [CLS] and [SEP] included.
      negatives: passages of an example that do not answer, at most.
    """
    chosen = [
        [one.query, answer, *_negatives(one.negatives, number, negatives)]
        for one in pairs
        for number, answer in enumerate(one.positives)
    ]
    encoded = iter(vocabulary.encode_batch([text for texts in chosen for text in texts]))

    def row(length: int) -> list[int]:
        # [CLS] says where a passage begins: a text may not hold it.
        ids = [tokens.unk_id if i == tokens.cls_id else i for i in next(encoded)]
        return [tokens.cls_id, *ids[: length - 2], tokens.sep_id]

    found = []
    for texts in chosen:
        query = row(lengths[0])
        passages = [token for _ in texts[1:] for token in row(lengths[1])]
        found.append([query[:-1], passages[:-1]])
    return found


def _negatives(texts: Sequence[str], number: int, count: int) -> list[str]:
    """`count` of the texts for the answer of this number, or all where there are fewer."""
    first = number * count
    return [texts[(first + i) % len(texts)] for i in range(min(count, len(texts)))]
