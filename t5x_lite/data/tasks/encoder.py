"""Encoder tasks: functions of raw examples, tasks over documents, and pairs for retrieval.

Encoder tasks: seqio tasks from a function of raw examples, and tasks over documents.

`example_task` makes a seqio task of a pure function. The function takes dicts of Python strings and
lists and returns dicts of arrays and strings. This module handles tf.data, padding and seqio.

    raw examples -> make -> CacheDatasetPlaceholder -> [SEP], or (seed, epoch, index)

Documents for pretraining (`encoder_task`), without masks:

    text -> sentences -> tokens -> segments that fit a row

Each segment is an example {"inputs": [CLS] ... [SEP]} from one document, with at most inputs_length
tokens. data.layout Encoder() packs one or several segments into a row. The masked tokens are
sampled on the device, from the step's key.

Documents as lists of spans (`span_task`); coCondenser samples two spans in each epoch:

    {"spans": [CLS] ... [SEP] [CLS] ... [SEP]}       one example for each document

A text is either a document or a list of spans of any length. A document is divided into spans of
whole sentences that fill a row without overlap. Spans of a document with fewer than `SHORTEST`
tokens are dropped, and so are documents with fewer than two spans, which have no pair. The layout
(`layouts.text.Spans`) samples the two spans of a row, so a cache holds all spans.

Sentences of documents, and their combination into segments of a given length:

    split_sentences("Mr. Fox ran. Why? He said.")   -> ["Mr. Fox ran.", "Why?", "He said."]
    fill([[1, 2], [3, 4], [5], [6, 7, 8, 9, 10]], 4)
        -> [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]

A segment is filled with whole sentences while they fit, as in the pretraining data of RetroMAE and
BERT. A sentence longer than a segment is split across segments, so no token is lost.

A sentence ends at the end of a line. It also ends at a terminator that is followed by a space and
no lower-case letter, and that does not follow an abbreviation or an initial. If the rule errs, a
segment ends inside a sentence.

Source: RetroMAE examples/pretrain/preprocess.py (create_wiki_data).

Seqio task of queries and passages, for contrastive objectives.

    {"query": "who wrote Emma", "pos": ["Jane Austen ...", "Emma is ..."], "neg": ["Emma S. ..."]}

An example holds the query, its positive passages and its pool of negatives. A negative with the
text or the id of a positive is dropped, even if the positive is on another line of the same query.
In files of more than 64 MiB, only the positives of the same line are compared.

    text -> tokens of all texts -> CacheDatasetPlaceholder -> (seed, epoch, index)

With data.layout.positives "each", every positive makes a separate example. The layout
(`layouts.groups`) samples the passages of a row, so a cache holds the pool. Texts that are too long
are truncated. Names of passages are hashes of their ids.

The same text may be query and passage (SimCSE): the encoder's dropout makes two views of it.
"""

import functools
import hashlib
import itertools
import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.documents import ABBREVIATIONS
from t5x_lite.data.formats.pairs import Answers, Pairs, from_json, without_answers
from t5x_lite.data.tasks import text_source
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import EncoderTokens
from t5x_lite.layouts.groups import ID_WIDTH, IDS, MOST_POSITIVES, Groups
from t5x_lite.layouts.text import NUM, Spans

_logger = logging.getLogger(__name__)


SHORTEST_ROW = 8
"""Minimum length of a row, in tokens."""
_AT_A_TIME = 64

Raw = list[dict[str, Any]]
"""Raw examples as dicts: a text is a str; several texts or numbers are a list."""
Make = Callable[[Raw], Iterable[Sequence[Mapping[str, Any]]]]
"""Function from raw examples to the examples of each raw example: zero, one or several."""


def example_task(
    name: str,
    arguments: TaskArguments,
    *,
    source: Any,
    make: Make,
    features: Mapping[str, type] | None = None,
    extras: Mapping[str, type] | None = None,
    drop: Collection[str] | None = None,
    add_eos: Collection[str] = ("inputs",),
    keyed: bool = False,
    postprocess: Callable[..., Any] | None = None,
    metrics: Sequence[Callable[..., Any]] = (),
) -> Any:
    r"""Make a seqio.Task from a source of raw examples and a function that makes examples of them.

    The following custom encoder task makes rows of two neighboring lines of a dialogue:

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

    The function `make` takes blocks of raw examples, because a tokenizer encodes many texts at a
    time. `make` must be pure, because a saved iterator calls it again. Its examples must not depend
    on the size of a block.

    Args:
      name: the name of the task, for messages of seqio.
      arguments: the arguments of the task function.
      source: a seqio source of raw examples, flat dicts of texts, numbers and lists of these.
      make: function from raw examples to examples. Each example has all `features` and `extras`.
      features: the arrays that the layout reads, with their dtypes, np.int32 or np.float32; by
        default {"inputs": np.int32}.
      extras: further fields of an example, for metrics. str, int and float are one value, list is
        several texts, and a NumPy dtype is an array [n]. "inputs_pretokenized" and
        "targets_pretokenized" are the texts of an example.
      drop: fields of a raw example that its examples do not keep. If None, all fields are dropped.
      add_eos: features that are trimmed to their length and end in [SEP].
      keyed: True to number the examples, for a layout that samples by (seed, epoch, index).
      postprocess: (text, example=, is_target=) -> the value that metrics compare.
      metrics: functions (targets, predictions) -> {name: value}.
    """
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import stages
    from t5x_lite.data.tasks.names import seqio_vocabulary

    check_lengths(arguments, ("inputs_length",))
    features = {"inputs": np.int32} if features is None else features
    ids = seqio_vocabulary(arguments.vocabulary)
    steps: list[Any] = [
        partial(make_examples, make=make, fields={**features, **(extras or {})}, drop=drop)
    ]
    if keyed:
        steps.append(stages.number)
    steps.append(seqio.CacheDatasetPlaceholder())
    if add_eos:
        steps.append(seqio.preprocessors.append_eos_after_trim)
    if keyed:
        steps += [stages.count_epochs, partial(stages.keyed, seed=arguments.seed)]
    return seqio.Task(
        name,
        source=source,
        preprocessors=steps,
        output_features={
            feature: seqio.Feature(
                vocabulary=ids, add_eos=feature in add_eos, dtype=_spec(kind).dtype
            )
            for feature, kind in features.items()
        },
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )


def check_lengths(arguments: TaskArguments, fields: Sequence[str]) -> None:
    """Raise InputError if one of the given length options is too short for an encoder's rows."""
    for field in fields:
        if getattr(arguments, field) < SHORTEST_ROW:
            raise InputError(
                f"data.{field} must be at least {SHORTEST_ROW} for rows of an encoder: got "
                f"{getattr(arguments, field)}"
            )


def row_options(arguments: TaskArguments) -> dict[str, Any]:
    """Return the vocabulary, special tokens and row length of an encoder, as keyword arguments."""
    return {
        "vocabulary": arguments.vocabulary,
        "tokens": encoder_tokens(arguments.vocabulary),
        "length": arguments.inputs_length,
    }


def make_examples(
    dataset: Any,
    *,
    make: Make,
    fields: Mapping[str, type],
    drop: Collection[str] | None = None,
) -> Any:
    """Return a tf.data.Dataset of the examples that `make` returns for the given raw examples."""
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    raw_spec: dict[str, Any] = dict(dataset.element_spec)
    for name, one in raw_spec.items():
        if one.shape.rank not in (0, 1):
            raise InputError(
                f"the field {name!r} of raw examples has the shape {one.shape}, but an encoder's "
                "task reads only texts, numbers and lists of these"
            )
    lists = [name for name, one in raw_spec.items() if one.shape.rank]
    scalars = [name for name in raw_spec if name not in lists]
    kept = {} if drop is None else {name: raw_spec[name] for name in raw_spec if name not in drop}
    spec = {**kept, **{name: _spec(kind) for name, kind in fields.items()}}
    arrays = [name for name, one in spec.items() if one.shape.rank]

    def block_of_examples(block: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raw = _raw_examples(block, raw_spec)
        made = zip(raw, make(raw), strict=True)
        examples = [{**one, **example} for one, some in made for example in some]
        columns = {}
        for name, one in spec.items():
            values, dtype = [example[name] for example in examples], one.dtype.as_numpy_dtype
            if one.dtype == tf.string:
                values = [_encoded(value) for value in values]
            if name in arrays:
                columns[name], columns[f"{name}/size"] = _padded(values, dtype)
            else:
                columns[name] = np.array(values, dtype)
        return columns

    @tf.autograph.experimental.do_not_convert
    def unpadded(row: Mapping[str, Any]) -> dict[str, Any]:
        cut = {name: row[name][: row[f"{name}/size"]] for name in arrays}
        return {name: cut.get(name, row[name]) for name in spec}

    signature = {name: tf.TensorSpec([None, *one.shape], one.dtype) for name, one in spec.items()}
    for name in arrays:
        signature[name] = tf.TensorSpec([None, None], spec[name].dtype)
        signature[f"{name}/size"] = tf.TensorSpec([None], tf.int32)
    blocks = stages.in_blocks(dataset, lists, _AT_A_TIME, scalars=scalars)
    return stages.map_numpy(blocks, block_of_examples, signature).unbatch().map(unpadded)


def _raw_examples(block: Mapping[str, np.ndarray], fields: Iterable[str]) -> Raw:
    columns: dict[str, list[Any]] = {}
    for name in fields:
        values = block[name].tolist()
        if block[name].dtype == object:
            values = [text.decode() for text in values]
        if f"{name}/ends" in block:
            ends = block[f"{name}/ends"].tolist()
            values = [values[a:b] for a, b in itertools.pairwise([0, *ends])]
        columns[name] = values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _spec(kind: type) -> Any:
    from t5x_lite.data.elements import tf

    dtypes: Any = {str: tf.string, list: tf.string, int: tf.int64, float: tf.float32}
    return tf.TensorSpec([] if kind in (str, int, float) else [None], dtypes.get(kind, kind))


def _encoded(text: str | list[str]) -> bytes | list[bytes]:
    return text.encode() if isinstance(text, str) else [one.encode() for one in text]


def _padded(values: list[Any], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    from t5x_lite.data.tasks import stages

    rows, sizes = stages.padded([np.asarray(value, dtype) for value in values or [[]]])
    if rows.dtype == object:  # texts
        rows[np.arange(rows.shape[1]) >= sizes[:, None]] = b""
    return rows[: len(values)], sizes[: len(values)]


# Documents.


def encoder_task(name: str, arguments: TaskArguments, *, source: Any) -> Any:
    """Make a seqio.Task that divides documents into token segments for an encoder."""
    options = row_options(arguments)

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        for document in _filled([one["text"] for one in raw], **options):
            yield [{"inputs": [options["tokens"].cls_id, *piece]} for piece in document]

    return example_task(name, arguments, source=source, make=make)


def pieces(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens, length: int
) -> list[list[int]]:
    """Tokenize documents, and divide each document into segments that begin with [CLS].

    Each sentence except a document's first is encoded with the space before it. Special tokens in
    the text of a document become unknown tokens. A segment has at most `length` - 1 tokens, so that
    [SEP] fits into a row of `length` tokens.
    """
    documents = _filled(texts, vocabulary=vocabulary, tokens=tokens, length=length)
    return [[tokens.cls_id, *piece] for own in documents for piece in own]


def _filled(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens, length: int
) -> list[list[list[int]]]:
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
"""Minimum tokens of a span of a document, without [CLS] and [SEP]."""

_Tokens = Sequence[int]


def span_task(name: str, arguments: TaskArguments, *, source: Any, listed: bool) -> Any:
    """Make a seqio.Task of text spans from documents, for the layout `Spans`.

    Args:
      name: name of the task, for messages of seqio.
      arguments: arguments of the task function.
      source: seqio source of examples with "text".
      listed: True if each text is a list of spans in JSON; False if each text is a document.
    """
    if not isinstance(arguments.layout, Spans):
        arguments.layout.check(Spans.features)
        raise InputError(
            "the task requires a data.layout that samples spans, but data.layout is "
            f"{arguments.layout.name}; set data.layout to Spans()"
        )
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
        add_eos=(),
        keyed=True,
    )


def cut_spans(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens, length: int
) -> list[list[_Tokens]]:
    """Divide each document into spans of complete sentences with at most `length` tokens."""
    shortest = min(SHORTEST, length - 2)
    return [
        [span for span in spans if len(span) >= shortest]
        for spans in _filled(texts, vocabulary=vocabulary, tokens=tokens, length=length)
    ]


def listed_spans(
    texts: Sequence[str], *, vocabulary: Vocabulary, tokens: EncoderTokens
) -> list[list[_Tokens]]:
    """Tokenize lists of text spans in JSON; spans without a token are dropped."""
    lists = [json.loads(text) for text in texts]
    encoded = iter(vocabulary.encode_batch([span for spans in lists for span in spans]))
    return [
        [ids for _ in spans if len(ids := without_special(next(encoded), tokens))]
        for spans in lists
    ]


def checked(record: Mapping[str, Any], where: str) -> str:
    """Return the list "spans" of a JSON object as JSON text; raise InputError if it is invalid."""
    spans = record.get("spans")
    if not isinstance(spans, list) or not all(isinstance(span, str) for span in spans):
        has = sorted(record) or "nothing"
        raise InputError(f'{where}: must have "spans", a list of strings; it has {has}')
    return json.dumps(spans)


# Sentences.

_END = re.compile(
    r"[.!?…]+[\"'”’»)\]]*(?=\s+[\"'“‘«(\[¿¡]*[^\W_a-z])"  # scripts with spaces
    r"|[。！？]+[”’」』）]*"
)


def split_sentences(text: str) -> list[str]:
    """Split a text into stripped sentences; empty sentences are dropped."""
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
    begin = max(line.rfind(" ", 0, end), line.rfind("(", 0, end)) + 1
    word = line[begin:end].lower()
    return word in ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word != "i")


def fill(sentences: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    """Combine sentences into segments of at most `length` tokens; split only longer sentences.

    Args:
      sentences: tokens of each sentence.
      length: maximum tokens of a segment, at least 1.

    Returns:
      Nonempty segments in order. Their concatenation equals the concatenation of the sentences.
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


MORE = "more_positives"
"""Feature with the positives after the first `MOST_POSITIVES`, which are never sampled."""


def lines_of(
    files: Mapping[str, Sequence[Any]], make: Callable[[bytes, str], bytes]
) -> Callable[[], Iterable[Pairs]] | None:
    """Return a function that yields the queries in all files; None if the files are too large."""
    every = list(dict.fromkeys(path for paths in files.values() for path in paths))
    if not text_source.fit_in_memory(every):
        return None
    return lambda: map(from_json, text_source.texts_of_files(every, make))


def pair_task(
    name: str,
    arguments: TaskArguments,
    *,
    source: Any,
    read: Callable[[str], Pairs] = from_json,
    one_to_one: bool = False,
    lines: Callable[[], Iterable[Pairs]] | None = None,
) -> Any:
    """Make a seqio.Task of queries with positive and negative passages.

    Args:
      name: name of the task, for messages of seqio.
      arguments: arguments of the task function.
      source: seqio source of examples with "text".
      read: pure function from a text to a query with its passages.
      one_to_one: True if each text of the source makes one example.
      lines: function that yields the queries of all lines, so that a query's positives on other
        lines are not used as negatives. If None, other lines are not considered.
    """
    layout, vocabulary = arguments.layout, arguments.vocabulary
    if not isinstance(layout, Groups):
        layout.check(Groups.features)
        raise InputError(
            "the task requires a data.layout that samples groups of a query and passages, but "
            f"data.layout is {layout.name}; set data.layout to Groups()"
        )
    check_lengths(arguments, ("inputs_length", "targets_length"))
    if one_to_one or layout.positives == "sample":
        source.one_to_one = True
    tokens = encoder_tokens(vocabulary)
    lengths = (arguments.inputs_length, arguments.targets_length)

    reading = threading.Lock()

    @functools.cache
    def known() -> Answers | None:
        return Answers(lines()) if lines is not None and layout.negatives else None

    def make(raw: Raw) -> list[list[dict[str, np.ndarray]]]:
        with reading:
            answers = known()
        found = [without_answers(read(one["text"]), answers) for one in raw]
        if not layout.negatives and any(one.negatives for one in found):
            with reading:
                _warn_of_unused_negatives()
        return examples_of_each(
            found,
            vocabulary=vocabulary,
            tokens=tokens,
            lengths=lengths,
            layout=layout,
        )

    features: dict[str, type] = dict.fromkeys(layout.features, np.int32)
    if layout.positives == "sample":
        features[MORE] = np.int32
    if layout.teacher:
        features["scores"] = np.float32
    if layout.known_positives:
        features |= dict.fromkeys(IDS, np.int32)
    return example_task(
        name, arguments, source=source, make=make, features=features, add_eos=(), keyed=True
    )


@functools.cache
def _warn_of_unused_negatives() -> None:
    _logger.warning(
        "ignoring the negatives of the training pairs, because data.layout.negatives is 0; set "
        "--data.layout.negatives N for N negatives in each row"
    )


def examples(pairs: Sequence[Pairs], **options: Any) -> list[dict[str, np.ndarray]]:
    """Return the examples of all queries in one list, in order."""
    return [one for own in examples_of_each(pairs, **options) for one in own]


def examples_of_each(
    pairs: Sequence[Pairs],
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    lengths: tuple[int, int],
    layout: Groups,
) -> list[list[dict[str, np.ndarray]]]:
    """Return the examples of each query, with each query and passage as tokens [CLS] ... [SEP].

    Args:
      pairs: queries with their passages.
      vocabulary: vocabulary of the tokens.
      tokens: special tokens of the vocabulary.
      lengths: maximum tokens of a query and of a passage, [CLS] and [SEP] included.
      layout: the layout; its fields `positives` and `negatives_top` select the passages.

    Returns:
      For each query, a list of examples: int32 "query"; int32 "positives", "negatives" and `MORE`
        (further positives), each a concatenation of texts; float32 "scores" of positives and
        negatives, NaN if unknown; and `layouts.groups.IDS`, hashes of the passages' ids, 0 if
        unknown.
    """
    most = None if layout.positives == "each" else MOST_POSITIVES
    pools = [
        (
            one,
            one.positives[:most],
            one.negatives[: layout.negatives_top],
            [] if most is None else one.positives[most:],
        )
        for one in pairs
    ]
    every = [text for one, *texts in pools for text in (one.query, *itertools.chain(*texts))]
    encoded = iter(vocabulary.encode_batch(every))

    def row(length: int) -> np.ndarray:
        ids = without_special(next(encoded), tokens)
        return np.array([tokens.cls_id, *ids[: length - 2], tokens.sep_id], np.int32)

    made: list[list[dict[str, np.ndarray]]] = []
    for one, positives, negatives, more in pools:
        query = row(lengths[0])
        answers = [row(lengths[1]) for _ in positives]
        others = [row(lengths[1]) for _ in negatives]
        undrawn = [row(lengths[1]) for _ in more]
        right, wrong = _scores(one, len(answers), len(others))
        named, unnamed = _names(one, len(one.positives[:most]), len(others))
        made.append([])
        parts = [slice(None)] if layout.positives == "sample" else None
        for of in parts or [slice(place, place + 1) for place in range(len(answers))]:
            made[-1].append(
                {
                    "query": query,
                    "positives": _joined(answers[of]),
                    "negatives": _joined(others),
                    MORE: _joined(undrawn),
                    "scores": np.concatenate([right[of], wrong]),
                    "passage_ids": np.concatenate([named[of], unnamed]).reshape(-1),
                    "positive_ids": named[: layout.known_positives].reshape(-1),
                }
            )
    return made


def _joined(texts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *texts])


def _scores(pairs: Pairs, positives: int, negatives: int) -> Iterator[np.ndarray]:
    for scores, count in ((pairs.positive_scores, positives), (pairs.negative_scores, negatives)):
        given = [np.nan] * count if scores is None else scores[:count]
        yield np.array(given, np.float32)


def _names(pairs: Pairs, positives: int, negatives: int) -> Iterator[np.ndarray]:
    for ids, count in ((pairs.positive_ids, positives), (pairs.negative_ids, negatives)):
        known = [] if ids is None else ids[:count]
        found = np.zeros((count, ID_WIDTH), np.int32)
        for row, one in enumerate(known):
            digest = hashlib.blake2b(one.encode(), digest_size=2 * ID_WIDTH).digest()
            found[row] = np.frombuffer(digest, "<u2")
        yield found
