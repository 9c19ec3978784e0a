"""Encoder pretraining on documents, as a seqio task: the text alone, as no mask is made here.

    text -> sentences -> tokens -> pieces that fit a row -> CacheDatasetPlaceholder -> [SEP]

Each piece is an example {"inputs": [CLS] ... [SEP]} of one document, of at most inputs_length
tokens; data.layout Encoder() puts one or several of them in a row. Which of their tokens are masked
is drawn on the device, from the step's key.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.sentences import fill, split_sentences
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import (
    EncoderTokens,
    encoder_tokens,
    without_special,
)
from t5x_lite.vocabulary.loading import Vocabulary

SHORTEST_ROW = 8
"""Tokens of the shortest rows that are of any use."""
_AT_A_TIME = 32

Cut = Callable[[Sequence[str]], Sequence[Sequence[Sequence[int]]]]
"""From texts to examples, each the tokens of every feature, without the last [SEP]."""


def encoder_task(name: str, arguments: TaskArguments, *, source: Any) -> Any:
    """A seqio.Task of the pieces of documents.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      source: a seqio source of examples with "text".

    Raises:
      InputError: the rows are too short, or the vocabulary has no [CLS].
    """
    tokens = encoder_tokens(arguments.vocabulary)
    options = {"tokens": tokens, "length": arguments.inputs_length}

    def cut(texts: Sequence[str]) -> list[list[list[int]]]:
        return [[piece] for piece in pieces(texts, vocabulary=arguments.vocabulary, **options)]

    lengths = {"inputs": arguments.inputs_length}
    return task_of_examples(name, arguments, source=source, cut=cut, lengths=lengths)


def pieces(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens, length: int
) -> list[list[int]]:
    """The pieces of documents, in order; each is of one document and begins with [CLS].

    A sentence that is not a document's first is encoded with the space before it. Special tokens
    that a text spells out are unknown: a row has one [CLS] and one [SEP], and no [MASK].

    Args:
      texts: documents.
      vocabulary: of the tokens.
      tokens: the vocabulary's.
      length: of a row: a piece has at most one token less, which [SEP] takes.
    """
    documents = [split_sentences(text) for text in texts]
    spaced = [
        f" {sentence}" if place else sentence
        for sentences in documents
        for place, sentence in enumerate(sentences)
    ]
    encoded = iter(vocabulary.encode_batch(spaced))
    return [
        [tokens.cls_id, *piece]
        for sentences in documents
        for piece in fill((without_special(next(encoded), tokens) for _ in sentences), length - 2)
    ]


def check_lengths(arguments: TaskArguments, fields: Sequence[str]) -> None:
    """Refuses rows of an encoder that are too short for any text.

    Raises:
      InputError: naming the field of `Data`.
    """
    for field in fields:
        if getattr(arguments, field) < SHORTEST_ROW:
            raise InputError(
                f"data.{field} must be at least {SHORTEST_ROW} for rows of an encoder: got "
                f"{getattr(arguments, field)}"
            )


def task_of_examples(
    name: str, arguments: TaskArguments, *, source: Any, cut: Cut, lengths: Mapping[str, int]
) -> Any:
    """A seqio.Task of what a function makes of texts.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      source: a seqio source of examples with "text".
      cut: a pure function of each text, so that iterators can be saved.
      lengths: the features of an example, in the order of `cut`, and their tokens at most.

    Raises:
      InputError: the rows are too short.
    """
    from t5x_lite.data.quiet_tensorflow import seqio
    from t5x_lite.data.tasks import stages

    check_lengths(arguments, ("inputs_length",))
    feature = stages.features(arguments.vocabulary)["inputs"]
    features: dict[str, Any] = dict.fromkeys(lengths, feature)
    return seqio.Task(
        name,
        source=source,
        preprocessors=[
            partial(_cut_texts, cut=cut, lengths=lengths),
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=features,
    )


def _cut_texts(dataset: Any, *, cut: Cut, lengths: Mapping[str, int]) -> Any:
    """Examples of int32 tokens [_] of each feature, without the last [SEP]."""
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.tasks import stages

    def rows(block: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        examples = cut([text.decode() for text in block["text"]])
        found = {}
        for place, (name, length) in enumerate(lengths.items()):
            padded = np.zeros((len(examples), length), np.int32)
            for row, example in zip(padded, examples, strict=True):
                row[: len(example[place])] = example[place]
            sizes = [len(example[place]) for example in examples]
            found |= {name: padded, f"{name}_size": np.array(sizes, np.int32)}
        return found

    spec = {}
    for name, length in lengths.items():
        spec[name] = tf.TensorSpec([None, length], tf.int32)
        spec[f"{name}_size"] = tf.TensorSpec([None], tf.int32)
    texts = dataset.map(lambda example: {"text": example["text"]}).batch(_AT_A_TIME)
    made = stages.map_numpy(texts, rows, spec).unbatch()
    return made.map(lambda row: {name: row[name][: row[f"{name}_size"]] for name in lengths})
