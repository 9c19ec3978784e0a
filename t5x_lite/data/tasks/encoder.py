"""Tasks of encoders: a function from raw examples to examples, and the tasks of documents.

`example_task` makes a seqio task of a pure function. The function gets dicts of Python's texts and
lists and gives dicts of arrays and texts; tf.data, padding and seqio are here alone.

    raw examples -> make -> CacheDatasetPlaceholder -> [SEP], or (seed, epoch, index)

Documents for pretraining (`encoder_task`). The text alone, because no mask is made here.

    text -> sentences -> tokens -> pieces that fit a row

Each piece is an example {"inputs": [CLS] ... [SEP]} of one document, of at most inputs_length
tokens; data.layout Encoder() puts one or several of them in a row. Which of their tokens are masked
is drawn on the device, from the step's key.

Documents as lists of spans (`span_task`). coCondenser draws two of them in each epoch.

    {"spans": [CLS] ... [SEP] [CLS] ... [SEP]}       one example for each document

A text is a document, and its spans are cut here, of whole sentences that fill a row without
overlap; or it is a list of spans, each of any length. Spans of a document that are shorter than
`SHORTEST` tokens are left out, and so are documents with fewer than two spans, which have no pair.
Which two stand in a row is drawn by the layout (`layouts.text.Spans`), so that a cache holds all.

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

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

SHORTEST_ROW = 8
"""Tokens of the shortest rows that are of any use."""
_AT_A_TIME = 64
_NUMBER = "number of a raw example"

Raw = list[dict[str, Any]]
"""Raw examples: a text is a str, and a list of texts or numbers is a list."""
Make = Callable[[Raw], Iterable[Sequence[Mapping[str, Any]]]]
"""From raw examples to the examples of each: one, several or none."""


def example_task(
    name: str,
    arguments: TaskArguments,
    *,
    source: Any,
    make: Make,
    features: Mapping[str, type] | None = None,
    others: Mapping[str, type] | None = None,
    drops: Collection[str] | None = None,
    ended: Collection[str] = ("inputs",),
    keyed: bool = False,
    postprocess: Callable[..., Any] | None = None,
    metrics: Sequence[Callable[..., Any]] = (),
) -> Any:
    r"""Make a seqio.Task of a source and of a function from raw examples to examples.

    A custom task for an encoder is a source and such a function. This task shows two neighbouring
    lines of a dialogue in each row:

        def lines(arguments: TaskArguments) -> Any:
            vocabulary, length = arguments.vocabulary, arguments.inputs_length
            tokens = encoder_tokens(vocabulary)

            def make(raw):
                for dialogue in raw:
                    encoded = vocabulary.encode_batch(dialogue["text"].splitlines())
                    turns = [without_special(ids, tokens) for ids in encoded]
                    rows = [join(pair, tokens=tokens, length=length) for pair in pairwise(turns)]
                    yield [{"inputs": row} for row in rows]

            source = document_source(arguments.directory, columns=arguments.columns, blocks=True)
            return example_task("dialogues", arguments, source=source, make=make)

        a raw example     {"text": "The dog\nDogs run\nRunning"}
        make gives        [{"inputs": [2, 5, 6, 3, 6, 7, 8]}, {"inputs": [2, 6, 7, 8, 3, 8, 9]}]
        the task gives    {"inputs": [2, 5, 6, 3, 6, 7, 8, 3]}, {"inputs": [2, 6, 7, 8, 3, 8, 9, 3]}

    The function gets blocks of raw examples, because a tokenizer encodes many texts at a time. It
    must be pure, and its examples must not depend on how blocks are divided: a saved iterator calls
    it again.

    Args:
      name: the name of the task, for messages of seqio.
      arguments: the arguments of the task function.
      source: a seqio source of raw examples, flat dicts of texts, numbers and lists of these.
      make: the function. Each of its examples has all `features` and `others`.
      features: the arrays that the layout reads, with their dtypes, np.int32 or np.float32; by
        default {"inputs": np.int32}.
      others: further fields of an example, for metrics. str, int and float are one value, list is
        several texts, a dtype of NumPy is an array [n]. "inputs_pretokenized" and
        "targets_pretokenized" are the texts of an example.
      drops: fields of a raw example that its examples do not have; they have all others. If None,
        they have none of them.
      ended: features that end in [SEP], after they are trimmed to their length.
      keyed: whether examples are numbered, for a layout that draws by (seed, epoch, index).
      postprocess: (text, example=, is_target=) -> what the metrics compare.
      metrics: functions (targets, predictions) -> {name: value}.

    Raises:
      InputError: if data.inputs_length is below `SHORTEST_ROW`.
    """
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.seqio_vocabularies import seqio_vocabulary
    from t5x_lite.data.tasks import stages

    check_lengths(arguments, ("inputs_length",))
    features = {"inputs": np.int32} if features is None else features
    fields = {**features, **(others or {})}
    ids = seqio_vocabulary(arguments.vocabulary)
    end = [seqio.preprocessors.append_eos_after_trim] if ended else []
    key = [stages.count_epochs, partial(stages.keyed, seed=arguments.seed)] if keyed else []
    return seqio.Task(
        name,
        source=source,
        preprocessors=[
            partial(made_examples, make=make, fields=fields, drops=drops),
            *([stages.number] if keyed else []),
            seqio.CacheDatasetPlaceholder(),
            *end,
            *key,
        ],
        output_features={
            feature: seqio.Feature(
                vocabulary=ids, add_eos=feature in ended, dtype=_spec(dtype).dtype
            )
            for feature, dtype in features.items()
        },
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )


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


def row_options(arguments: TaskArguments) -> dict[str, Any]:
    """Return what functions that make rows ask for: the vocabulary, its tokens and the length."""
    return {
        "vocabulary": arguments.vocabulary,
        "tokens": encoder_tokens(arguments.vocabulary),
        "length": arguments.inputs_length,
    }


def made_examples(
    dataset: Any,
    *,
    make: Make,
    fields: Mapping[str, type],
    drops: Collection[str] | None = None,
) -> Any:
    """Return the examples that a function makes of those of a tf.data.Dataset, in order.

    Args:
      dataset: raw examples.
      make: as of `example_task`.
      fields: its `features` and `others`.
      drops: as of `example_task`.

    Raises:
      InputError: if a raw example has a field of another kind.
    """
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    raw: dict[str, Any] = dict(dataset.element_spec)
    for name, one in raw.items():
        if one.shape.rank not in (0, 1):
            raise InputError(
                f"the field {name!r} of raw examples has the shape {one.shape}; an encoder's task "
                "reads texts, numbers and lists of these"
            )
    texts = [name for name, one in raw.items() if one.dtype == tf.string]
    lists = [name for name, one in raw.items() if one.shape.rank]
    kept = {} if drops is None else {name: raw[name] for name in raw if name not in drops}
    spec = {**kept, **{name: _spec(kind) for name, kind in fields.items()}}
    arrays = [name for name, one in spec.items() if one.shape.rank]

    def rows(block: Mapping[str, np.ndarray]) -> dict[str, Any]:
        columns = {name: block[name].tolist() for name in raw}
        for name in texts:
            columns[name] = [text.decode() for text in columns[name]]
        for name in lists:
            ends = block[f"{name}/ends"].tolist()
            columns[name] = [columns[name][a:b] for a, b in itertools.pairwise([0, *ends])]
        given = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        made = [{**one, **row} for one, own in zip(given, make(given), strict=True) for row in own]
        found: dict[str, Any] = {}
        for name, one in spec.items():
            values, dtype = [row[name] for row in made], one.dtype.as_numpy_dtype
            if one.dtype == tf.string:
                values = [_encoded(value) for value in values]
            if name in arrays:
                found[name], found[f"{name}/size"] = _padded(values, dtype)
            else:
                found[name] = np.array(values, dtype)
        return found

    @tf.autograph.experimental.do_not_convert
    def flat(block: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = dict(block)
        for name in lists:
            ragged: Any = tf.RaggedTensor
            values = found[name]
            if isinstance(values, tf.Tensor):  # lists of one length
                values = ragged.from_tensor(values)
            found |= {name: values.flat_values, f"{name}/ends": values.row_limits()}
        return found

    @tf.autograph.experimental.do_not_convert
    def unpadded(row: Mapping[str, Any]) -> dict[str, Any]:
        cut = {name: row[name][: row[f"{name}/size"]] for name in arrays}
        return {name: cut.get(name, row[name]) for name in spec}

    signature = {
        **{
            name: tf.TensorSpec([None] * (1 + one.shape.rank), one.dtype)
            for name, one in spec.items()
        },
        **{f"{name}/size": tf.TensorSpec([None], tf.int32) for name in arrays},
    }
    blocks = dataset.ragged_batch(_AT_A_TIME).map(flat)
    return stages.map_numpy(blocks, rows, signature).unbatch().map(unpadded)


def divided_examples(dataset: Any, *, make: Make, fields: Mapping[str, type]) -> Any:
    """Return raw examples, each as often as a function makes examples of it, with their fields.

    What is in memory stays so that it can be permuted as a whole: as a table of the made fields.

    Args:
      dataset: raw examples.
      make: as of `example_task`.
      fields: the fields that it gives, each one value: str, int or float.
    """
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import shuffling

    if not shuffling.can_be_permuted(dataset):
        return made_examples(dataset, make=make, fields=fields, drops=())

    @tf.autograph.experimental.do_not_convert
    def numbered(number: Any, example: Mapping[str, Any]) -> dict[str, Any]:
        return {**example, _NUMBER: number}

    @tf.autograph.experimental.do_not_convert
    def of_table(row: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: row[name] for name in fields}
        return {**tf.data.experimental.at(dataset, row[_NUMBER]), **own}

    table = made_examples(
        dataset.enumerate().map(numbered), make=make, fields=fields, drops=dataset.element_spec
    )
    columns: Any = shuffling.columns_of(table)
    return tf.data.Dataset.from_tensor_slices(columns).map(of_table)


def _spec(kind: type) -> Any:
    """The tf.TensorSpec of a field of `example_task`."""
    from t5x_lite.data.elements import tf

    dtypes: Any = {str: tf.string, list: tf.string, int: tf.int64, float: tf.float32}
    return tf.TensorSpec([] if kind in (str, int, float) else [None], dtypes.get(kind, kind))


def _encoded(text: str | list[str]) -> bytes | list[bytes]:
    return text.encode() if isinstance(text, str) else [one.encode() for one in text]


def _padded(values: list[Any], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one length, and the lengths; there may be none."""
    from t5x_lite.data.tasks import stages

    rows, sizes = stages.padded([np.asarray(value, dtype) for value in values or [[]]])
    if rows.dtype == object:  # of texts
        rows[np.arange(rows.shape[1]) >= sizes[:, None]] = b""
    return rows[: len(values)], sizes[: len(values)]


# Documents.


def encoder_task(name: str, arguments: TaskArguments, *, source: Any) -> Any:
    """A seqio.Task of the pieces of documents.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      source: a seqio source of examples with "text".

    Raises:
      InputError: the rows are too short, or the vocabulary has no [CLS].
    """
    how = row_options(arguments)

    def make(raw: Raw) -> list[list[dict[str, Any]]]:
        documents = _filled([one["text"] for one in raw], **how)
        return [[{"inputs": [how["tokens"].cls_id, *piece]} for piece in own] for own in documents]

    return example_task(name, arguments, source=source, make=make)


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
    documents = _filled(texts, vocabulary=vocabulary, tokens=tokens, length=length)
    return [[tokens.cls_id, *piece] for own in documents for piece in own]


def _filled(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens, length: int
) -> list[list[list[int]]]:
    """The pieces of each document, which have two tokens less than a row, for [CLS] and [SEP]."""
    documents = [split_sentences(text) for text in texts]
    spaced = [
        f" {sentence}" if place else sentence
        for sentences in documents
        for place, sentence in enumerate(sentences)
    ]
    encoded = iter(vocabulary.encode_batch(spaced))
    return [
        fill((without_special(next(encoded), tokens) for _ in sentences), length - 2)
        for sentences in documents
    ]


SHORTEST = 16
"""Tokens of the shortest span that is cut; [CLS] and [SEP] do not count."""

_Tokens = Sequence[int]


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
    if not isinstance(arguments.layout, Spans):
        arguments.layout.check(Spans.features)
        raise InputError(f"data.layout {arguments.layout.name} draws no spans: use Spans()")
    tokens = encoder_tokens(arguments.vocabulary)
    cut = listed_spans if listed else partial(cut_spans, length=arguments.inputs_length)

    def make(raw: Raw) -> list[list[dict[str, Any]]]:
        texts = [one["text"] for one in raw]
        documents = cut(texts, vocabulary=arguments.vocabulary, tokens=tokens)
        return [
            [{"spans": [i for span in spans for i in (tokens.cls_id, *span, tokens.sep_id)]}]
            if len(spans) >= NUM
            else []
            for spans in documents
        ]

    return example_task(
        name,
        arguments,
        source=source,
        make=make,
        features={"spans": np.int32},
        ended=(),
        keyed=True,
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
    shortest = min(SHORTEST, length - 2)
    return [
        [span for span in spans if len(span) >= shortest]
        for spans in _filled(texts, vocabulary=vocabulary, tokens=tokens, length=length)
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


# Sentences.

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
