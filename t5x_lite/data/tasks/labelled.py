"""A text, or a pair of texts, with a label, as a seqio task: what a head on an encoder answers.

    {"inputs": [CLS] a [SEP] b [SEP], "labels": [class + 1, 0]}        data.layout is Labelled()

A pair that is too long loses tokens of its longer text, one after the other (google-research/bert
run_classifier.py, _truncate_seq_pair). Of vocabularies whose rows begin with <s>, those of RoBERTa
and XLM-R, a pair is <s> a </s></s> b </s>. The tasks of GLUE are these where data.layout says so:
the same files, labels and metrics as text to text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from t5x_lite.data import labels
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.preprocess.templates import fill
from t5x_lite.data.tasks.encoder import check_lengths
from t5x_lite.data.tasks.spans import encode_spans
from t5x_lite.vocabulary.encoder_tokens import (
    EncoderTokens,
    encoder_tokens,
    separators,
    without_special,
)
from t5x_lite.vocabulary.loading import Vocabulary

_FORM = "labelled_form"
_AT_A_TIME = 64
_RAW = {"second": str, "label": int, "label_end": int}
"""Fields of an example that are not yet tokens."""

Record = Mapping[str, Any]
Text = str | Callable[[Record], str]
"""A field of a record, a template, or a function of the record."""
Encode = Callable[[Sequence[str], Sequence[str], np.ndarray], tuple[list[list[int]], Any]]
"""(first texts, second texts, raw labels [n, 2]) -> (rows without their last [SEP], labels)."""


@runtime_checkable
class Form(Protocol):
    """How a task's records are shown to an encoder."""

    @property
    def head(self) -> str:
        """The name of the head that answers."""
        ...

    @property
    def nulls(self) -> bool:
        """Whether there may be no answer."""
        ...

    @property
    def candidates(self) -> str:
        """What a candidate stands in place of, in a row of its own; "" where there are none."""
        ...


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """How the records of a benchmark are shown to an encoder.

    Attributes:
      texts: the one or two fields that it reads, in their order; or templates, "{word}: {text}"; or
        functions of the record. Of a task of choices the question, and then each choice.
      label: of a record, as in `labels`; of a span, its first character and the one behind it.
      score: of a record of regression, NaN where it has none; None of other tasks.
      target: of a record, the text of its label: what the task's postprocess_fn reads.
      spans: whether the labels are spans of the second text.
      nulls: whether a span may be missing, as the second text does not have it; the answer is "".
      choices: whether the label is the number of a choice, and a row has all of them.
      candidates: what of the second text each candidate of a record stands in place of, in a row of
        its own (`candidates`); the second text is then cut last. "" of other tasks.
      fields: of a record, what stands in place of the fields that its form as text has.
      kinds: of `fields`, if these are all and no form as text is made; None: that one's, too.
      postprocess: in place of that of the task as text; None is that one.
      clean: what is read of a text.
      columns: fields of the record that may still have the files' names, and these.
      words: field -> value in a file -> what is read in its place.
    """

    texts: Sequence[Text]
    label: Callable[[Record], labels.Label]
    target: Callable[[Record], str]
    score: Callable[[Record], float] | None = None
    spans: bool = False
    nulls: bool = False
    choices: bool = False
    candidates: str = ""
    fields: Callable[[Record], Mapping[str, Any]] = lambda record: {}
    kinds: Mapping[str, type] | None = None
    postprocess: Callable[..., Any] | None = None
    clean: Callable[[str], str] = str
    columns: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """The name of the head that answers."""
        if self.choices:
            return "choice"
        return "span" if self.spans else "classifier"

    def example(self, record: Record, others: Mapping[str, Any]) -> dict[str, Any]:
        """A record with the fields of `others`, as a source of `labelled_task` yields it."""
        own = {name: record[old] for name, old in self.columns.items() if old in record}
        record = {**record, **own}
        record |= {
            name: values.get(record[name], record[name]) for name, values in self.words.items()
        }
        first, *rest = (self.clean(_text(text, record)) for text in self.texts)
        label, end = self.label(record)
        others_read = {"choices": rest} if self.choices else {"second": rest[0] if rest else ""}
        texts = {"inputs": first, **others_read, "targets": self.target(record)}
        others = {**others, **self.fields(record)}
        score = {} if self.score is None else {"score": float(self.score(record))}
        return {**others, **texts, "label": label, "label_end": end, **score}


def _text(text: Text, record: Record) -> str:
    """What one of `Labelled.texts` is of a record."""
    if not isinstance(text, str):
        return text(record)
    return fill(text, record) if "{" in text else record[text]


def extras(others: Mapping[str, type], form: Labelled) -> dict[str, type]:
    """The kinds of an example's fields beside inputs and targets."""
    if form.choices:
        return {**others, "choices": list, "label": int, "label_end": int}
    return {**others, **_RAW, **({} if form.score is None else {"score": float})}


def labelled_task(
    name: str,
    arguments: TaskArguments,
    form: Labelled,
    *,
    source: Any,
    postprocess: Callable[..., Any] | None,
    metrics: Sequence[Callable[..., Any]],
) -> Any:
    """A seqio.Task of texts with labels.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      form: how records become examples.
      source: a seqio source of the examples that `Labelled.example` makes.
      postprocess: (text, example=, is_target=) -> what the metrics compare.
      metrics: functions (targets, predictions) -> {name: value}.

    Raises:
      InputError: the rows are too short, or the vocabulary has no [CLS].
    """
    from t5x_lite.data.quiet_tensorflow import seqio, tf
    from t5x_lite.data.seqio_vocabularies import seqio_vocabulary

    vocabulary, length = arguments.vocabulary, arguments.inputs_length
    tokens = encoder_tokens(vocabulary)
    check_lengths(arguments, ("inputs_length",))
    options = {"vocabulary": vocabulary, "tokens": tokens, "length": length}
    encode: Encode
    if form.spans:
        encode = partial(encode_spans, **options)
    else:
        is_pair, whole = len(form.texts) > 1, bool(form.candidates)
        encode = partial(encode_texts, is_pair=is_pair, whole=whole, **options)
    ids = seqio_vocabulary(vocabulary)
    features: dict[str, Any] = {
        "inputs": seqio.Feature(vocabulary=ids, add_eos=True, dtype=tf.int32),
        "labels": seqio.Feature(vocabulary=ids, add_eos=False, dtype=tf.int32),
    }
    if form.score is not None:
        features["scores"] = seqio.Feature(vocabulary=ids, add_eos=False, dtype=tf.float32)
    task = seqio.Task(
        name,
        source=source,
        preprocessors=[
            partial(_encode, encode=encode, length=length, scored=form.score is not None),
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=features,
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )
    return with_form(task, form)


def with_form(task: Any, form: Form) -> Any:
    """The task, which says by `task_form` how its records are shown."""
    setattr(task, _FORM, form)
    return task


def task_form(task: Any) -> Form | None:
    """How a task's records are shown; None of a task that has no form for a head."""
    return getattr(task, _FORM, None)


def encode_texts(
    first: Sequence[str],
    second: Sequence[str],
    given: np.ndarray,
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    length: int,
    is_pair: bool,
    whole: bool = False,
) -> tuple[list[list[int]], np.ndarray]:
    """Rows of texts or of pairs, whose labels are as they are given; see `Encode`."""
    encoded = vocabulary.encode_batch([*first, *(second if is_pair else ())])
    plain = [without_special(ids, tokens) for ids in encoded]
    parts = [plain[: len(first)], plain[len(first) :]] if is_pair else [plain]
    options = {"tokens": tokens, "length": length, "separators": separators(vocabulary)}
    return [join(row, whole=whole, **options) for row in zip(*parts, strict=True)], given


def join(
    parts: Sequence[Sequence[int]],
    *,
    tokens: EncoderTokens,
    length: int,
    separators: int = 1,
    whole: bool = False,
) -> list[int]:
    """[CLS] a, or [CLS] a [SEP] b: a row that still lacks its last [SEP].

    Args:
      parts: the tokens of one text or of two.
      tokens: the vocabulary's.
      length: of the row at most, the last [SEP] included.
      separators: between two texts.
      whole: whether the second text is cut only where it does not fit alone.
    """
    if len(parts) == 1:
        return [tokens.cls_id, *parts[0][: length - 2]]
    room = length - 2 - separators
    sizes = cut_longest(len(parts[0]), len(parts[1]), room=room)
    if whole:
        second = min(len(parts[1]), room)
        sizes = room - second, second
    between = [tokens.sep_id] * separators
    return [tokens.cls_id, *parts[0][: sizes[0]], *between, *parts[1][: sizes[1]]]


def cut_longest(first: int, second: int, *, room: int) -> tuple[int, int]:
    """Sizes of two texts that fit: the longer one loses tokens, of equal ones the second."""
    if first + second <= room:
        return first, second
    half = (room + 1) // 2
    if first <= half:
        return first, room - first
    if second <= room - half:
        return room - second, second
    return half, room - half


def _encode(dataset: Any, *, encode: Encode, length: int, scored: bool) -> Any:
    """Examples of int32 "inputs" without the last [SEP], "labels" and "scores"; others stay."""
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.tasks import stages

    def rows(block: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        first, second = ([t.decode() for t in block[name]] for name in ("inputs", "second"))
        given = np.stack([block["label"], block["label_end"]], axis=1)
        made, found = encode(first, second, given)
        padded = np.zeros((len(made), length), np.int32)
        for row, ids in zip(padded, made, strict=True):
            row[: len(ids)] = ids
        sizes = np.array([len(ids) for ids in made], np.int32)
        return {"inputs": padded, "size": sizes, "labels": np.asarray(found, np.int32)}

    spec = {
        "inputs": tf.TensorSpec([None, length], tf.int32),
        "size": tf.TensorSpec([None], tf.int32),
        "labels": tf.TensorSpec([None, labels.WIDTH], tf.int32),
    }
    names = ("inputs", *_RAW)
    raw = dataset.map(lambda example: {name: example[name] for name in names}).batch(_AT_A_TIME)
    encoded = stages.map_numpy(raw, rows, spec).unbatch()

    def labelled(example: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        read = (*names, "targets")
        shown = tf.strings.join([example["inputs"], example["second"]], separator=" ")
        return {
            **{name: value for name, value in example.items() if name not in (*read, "score")},
            "inputs": row["inputs"][: row["size"]],
            "labels": row["labels"],
            **({"scores": tf.cast(example["score"], tf.float32)[None]} if scored else {}),
            "inputs_pretokenized": tf.strings.strip(shown),
            "targets_pretokenized": example["targets"],
        }

    return tf.data.Dataset.zip((dataset, encoded)).map(labelled)
