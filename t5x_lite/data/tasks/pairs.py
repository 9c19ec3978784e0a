"""Queries and passages, as a seqio task: what a contrastive objective compares.

    {"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

Each passage that answers makes an example of its own: {"query", "passages"}, where the passages are
the one that answers and the first data.negatives others, one behind the other, each [CLS] ...
[SEP]. Of a further answer the others begin where those of the one before end. A text that is too
long is cut; data.layout "pairs" says what a batch is.

The same text may be query and passage (SimCSE): the encoder's dropout makes two views of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.encoder import task_of_examples
from t5x_lite.records.pairs import Pairs, from_json
from t5x_lite.vocabulary.encoder_tokens import (
    EncoderTokens,
    encoder_tokens,
    without_special,
)
from t5x_lite.vocabulary.loading import Vocabulary


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
        ids = without_special(next(encoded), tokens)
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
