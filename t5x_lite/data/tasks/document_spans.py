"""Documents as lists of spans, as a seqio task: what coCondenser draws two of in each epoch.

    text -> spans -> tokens -> CacheDatasetPlaceholder -> (seed, epoch, index)

    {"spans": [CLS] ... [SEP] [CLS] ... [SEP]}       one example for each document

A text is a document, and its spans are cut here, of whole sentences that fill a row without overlap
(`data.tasks.sentences`); or it is a list of spans, each of any length. Spans of a document that are
shorter than `SHORTEST` tokens are left out, and so are documents with fewer than two spans, which
have no pair. Which two stand in a row is drawn by the layout (`layouts.spans`), so that a cache
holds all.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.layouts.spans import NUM, Spans
from t5x_lite.data.tasks.encoder import check_lengths
from t5x_lite.data.tasks.sentences import fill, split_sentences
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens, encoder_tokens, without_special
from t5x_lite.vocabulary.loading import Vocabulary

SHORTEST = 16
"""Tokens of the shortest span that is cut; [CLS] and [SEP] do not count."""

_AT_A_TIME = 32
_Tokens = Sequence[int]

Cut = Callable[[Sequence[str]], list[list[_Tokens]]]
"""From texts to the spans of each, without [CLS] and [SEP]."""


def span_task(name: str, arguments: TaskArguments, *, source: Any, listed: bool) -> Any:
    """A seqio.Task of the spans of documents.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      source: a seqio source of examples with "text".
      listed: whether a text is a list of spans (`checked`), and no document.

    Raises:
      InputError: the layout shows no spans, the rows are too short, or the vocabulary has no [CLS].
    """
    from t5x_lite.data.quiet_tensorflow import seqio, tf
    from t5x_lite.data.seqio_vocabularies import seqio_vocabulary
    from t5x_lite.data.tasks import stages

    if not isinstance(arguments.layout, Spans):
        arguments.layout.check(Spans.features)
        raise InputError(f"data.layout {arguments.layout.name} draws no spans: use Spans()")
    check_lengths(arguments, ("inputs_length",))
    tokens = encoder_tokens(arguments.vocabulary)
    options = {"vocabulary": arguments.vocabulary, "tokens": tokens}
    cut = partial(listed_spans, **options)
    if not listed:
        cut = partial(cut_spans, **options, length=arguments.inputs_length)
    ids = seqio_vocabulary(arguments.vocabulary)
    return seqio.Task(
        name,
        source=source,
        preprocessors=[
            partial(_examples, cut=cut, tokens=tokens),
            stages.number,
            seqio.CacheDatasetPlaceholder(),
            stages.count_epochs,
            partial(stages.keyed, seed=arguments.seed),
        ],
        output_features={"spans": seqio.Feature(vocabulary=ids, add_eos=False, dtype=tf.int32)},
    )


def cut_spans(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens, length: int
) -> list[list[_Tokens]]:
    """The spans of documents: whole sentences, as many as fit.

    Args:
      texts: documents.
      vocabulary: of the tokens.
      tokens: the vocabulary's.
      length: of a row: a span has two tokens less, for [CLS] and [SEP].
    """
    documents = [split_sentences(text) for text in texts]
    spaced = [
        f" {sentence}" if place else sentence
        for sentences in documents
        for place, sentence in enumerate(sentences)
    ]
    encoded = iter(vocabulary.encode_batch(spaced))
    shortest = min(SHORTEST, length - 2)
    return [
        [
            span
            for span in fill((without_special(next(encoded), tokens) for _ in each), length - 2)
            if len(span) >= shortest
        ]
        for each in documents
    ]


def listed_spans(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens
) -> list[list[_Tokens]]:
    """The spans of lists that `checked` wrote; those without a token are left out."""
    lists = [json.loads(text) for text in texts]
    encoded = iter(vocabulary.encode_batch([span for spans in lists for span in spans]))
    return [
        [ids for _ in spans if len(ids := without_special(next(encoded), tokens))]
        for spans in lists
    ]


def checked(record: Mapping[str, Any], where: str) -> str:
    """The spans of an object of a file, as JSON.

    Args:
      record: the object.
      where: its place, "file:line".

    Raises:
      InputError: it has no list of strings "spans".
    """
    spans = record.get("spans")
    if not isinstance(spans, list) or not all(isinstance(span, str) for span in spans):
        has = sorted(record) or "nothing"
        raise InputError(f'{where}: must have "spans", a list of strings; it has {has}')
    return json.dumps(spans)


def _examples(dataset: Any, *, cut: Cut, tokens: EncoderTokens) -> Any:
    """Examples {"spans": int32 [_]} of the documents that have two."""
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.tasks import stages

    def joined(spans: list[_Tokens]) -> np.ndarray:
        return np.array(
            [token for span in spans for token in (tokens.cls_id, *span, tokens.sep_id)], np.int32
        )

    def rows(block: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        documents = cut([text.decode() for text in block["text"]])
        pairs = [joined(spans) for spans in documents if len(spans) >= NUM]
        padded, sizes = stages.padded(pairs or [np.zeros(0, np.int32)])
        return {"spans": padded[: len(pairs)], "size": sizes[: len(pairs)]}

    spec = {"spans": tf.TensorSpec([None, None], tf.int32), "size": tf.TensorSpec([None], tf.int32)}
    texts = dataset.map(lambda example: {"text": example["text"]}).batch(_AT_A_TIME)
    made = stages.map_numpy(texts, rows, spec).unbatch()
    return made.map(lambda row: {"spans": row["spans"][: row["size"]]})
