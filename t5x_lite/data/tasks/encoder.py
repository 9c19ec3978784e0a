"""Encoder pretraining on documents, and on spans of documents, as tasks.

Encoder pretraining on documents, as a seqio task: the text alone, as no mask is made here.

    text -> sentences -> tokens -> pieces that fit a row -> CacheDatasetPlaceholder -> [SEP]

Each piece is an example {"inputs": [CLS] ... [SEP]} of one document, of at most inputs_length
tokens; data.layout Encoder() puts one or several of them in a row. Which of their tokens are masked
is drawn on the device, from the step's key.

Documents as lists of spans, as a seqio task: what coCondenser draws two of in each epoch.

    text -> spans -> tokens -> CacheDatasetPlaceholder -> (seed, epoch, index)

    {"spans": [CLS] ... [SEP] [CLS] ... [SEP]}       one example for each document

A text is a document, and its spans are cut here, of whole sentences that fill a row without overlap
(`data.tasks.encoder`); or it is a list of spans, each of any length. Spans of a document that are
shorter than `SHORTEST` tokens are left out, and so are documents with fewer than two spans, which
have no pair. Which two stand in a row is drawn by the layout (`layouts.spans`), so that a cache
holds all.

Sentences of documents, and how they are put together to pieces of a length.

    split_sentences("Mr. Fox ran. Why? He said.")   -> ["Mr. Fox ran.", "Why?", "He said."]
    fill([[1, 2], [3, 4], [5], [6, 7, 8, 9, 10]], 4)
        -> [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]

A piece is filled with whole sentences while they fit, as RetroMAE's and BERT's pretraining data
are. A sentence that is longer than a piece must be cut, and so it fills what room there is; nothing
is lost.

Sentences end at a line's end, and where a terminator stands before space and no small letter, and
after no abbreviation or initial. It is a rule for filling, not for counting: where it errs, a piece
is cut inside a sentence.

Source: RetroMAE examples/pretrain/preprocess.py (create_wiki_data).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.documents import ABBREVIATIONS
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import EncoderTokens
from t5x_lite.layouts.text import NUM, Spans

_END = re.compile(
    r"[.!?…]+[\"'”’»)\]]*(?=\s+[\"'“‘«(\[¿¡]*[^\W_a-z])"  # of scripts with spaces
    r"|[。！？]+[”’」』）]*"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, stripped; none is empty."""
    return [sentence for line in text.splitlines() for sentence in _of_line(line)]


def _of_line(line: str) -> list[str]:
    found, start = [], 0
    for match in _END.finditer(line):
        if match[0] == "." and _is_abbreviated(line, match.start()):
            continue
        found.append(line[start : match.end()])
        start = match.end()
    found.append(line[start:])
    return [sentence for part in found if (sentence := part.strip())]


def _is_abbreviated(line: str, end: int) -> bool:
    """Whether the word before `end` is known to have a period, or is an initial."""
    begin = max(line.rfind(" ", 0, end), line.rfind("(", 0, end)) + 1
    word = line[begin:end].lower()
    return word in ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word != "i")


def fill(sentences: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    """Pieces of at most `length` tokens, of whole sentences where these fit.

    Args:
      sentences: the tokens of each.
      length: at least 1.

    Returns:
      Pieces in order; put together they are the sentences put together. None is empty.
    """
    pieces: list[list[int]] = []
    piece: list[int] = []
    for sentence in sentences:
        left = list(sentence)
        if len(piece) + len(left) > length >= len(left):
            pieces.append(piece)
            piece = []
        while len(piece) + len(left) > length:
            room = length - len(piece)
            pieces.append(piece + left[:room])
            piece, left = [], left[room:]
        piece = piece + left
    return [*pieces, piece] if piece else pieces


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
    from t5x_lite.data.elements import seqio
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
    from t5x_lite.data.elements import tf
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


SHORTEST = 16
"""Tokens of the shortest span that is cut; [CLS] and [SEP] do not count."""

_Tokens = Sequence[int]

CutSpans = Callable[[Sequence[str]], list[list[_Tokens]]]
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
    from t5x_lite.data.elements import seqio, tf
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


def _examples(dataset: Any, *, cut: CutSpans, tokens: EncoderTokens) -> Any:
    """Examples {"spans": int32 [_]} of the documents that have two."""
    from t5x_lite.data.elements import tf
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
