"""Questions with candidates, with choices, and with contexts in windows, as tasks.

Questions with candidates, each a row of its own, for a head that says yes or no: ReCoRD.

    {"inputs": [CLS] passage [SEP] query with a candidate [SEP], "labels": [yes + 1, 0]}

A record has any number of candidates. Each stands once in the second text, in place of a mark, and
is right if it is one of the answers: these rows are trained, and have the held-out loss. For
metrics and submissions `questions` puts the rows of a record together again, so that a limit of
examples counts questions and divides none. The likeliest candidate is the answer:
`inference.head_answers.CandidateAnswers` gives its number, and `CandidateText` its text.

Source: the BERT baseline of SuperGLUE (Wang et al. 2019, arXiv:1905.00537), which "evaluate[s] the
probability of each candidate independent of other candidates".

Questions with choices, as a seqio task: what the head "choice" on an encoder answers.

    {"choices": [CLS] question [SEP] a [SEP] [CLS] question [SEP] b [SEP], "labels": [right + 1, 0]}

A choice that is too long with its question is cut as a pair of texts is (`labelled`).

Questions whose contexts are divided into windows, as a seqio task for a head on an encoder.

    [CLS] question [SEP] window [SEP]       labels: the places of the answer's two ends, or of [CLS]

Windows have the tokens that the question leaves in a row, and begin doc_stride tokens apart. Each
is an example. It has the answer's label where the whole answer lies in it, and else that of no
answer, [CLS], in SQuAD 1.1 as in 2.0. An answer that is not known has no label in any window.
Source: google-research/bert run_squad.py, convert_examples_to_features.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.released_files import NUM_CHOICES
from t5x_lite.data.postprocess import ClassIndex
from t5x_lite.data.preprocessors import UNKNOWN, fill, label_text
from t5x_lite.data.tasks.encoder import check_lengths
from t5x_lite.data.tasks.labelled import (
    IMPOSSIBLE,
    NULL,
    Labelled,
    encode_texts,
    extras,
    offsets_of,
    with_form,
)
from t5x_lite.data.tasks.names import mark
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, separators, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts import labelled
from t5x_lite.layouts.base import EncoderTokens
from t5x_lite.layouts.labelled import WINDOW, Choices, Windows, of_class
from t5x_lite.metrics.classification import accuracy

LABELS = ("False", "True")
"""The classes of a row: the second is that of a candidate that is right."""
KINDS: Mapping[str, type] = {"question": str, "candidates": list, "answers": list}
"""Fields of a record's example: a text that shows it, all candidates, and those that are right."""


def expanded(dataset: Any, *, mark: str) -> Any:
    """Examples of rows, one for each candidate of each example.

    Args:
      dataset: examples with the fields `KINDS`, and with "second", a text that holds the mark.
      mark: what a candidate stands in place of.

    Returns:
      The same examples, each as often as it has candidates, with one of them in "second", and its
      "label" and "targets". They are not known where there are no answers. What is in memory can be
      permuted as a whole, with a table of its rows.

    Raises:
      InputError: an example has no candidates or no mark; of a stream, while it is read.
    """
    from t5x_lite.data.elements import as_numpy, deterministic, tf
    from t5x_lite.data.tasks import shuffling, stages

    datasets: Any = tf.data.Dataset

    def rows(example: Mapping[str, Any]) -> dict[str, np.ndarray]:
        asked = example["second"].decode()
        candidates = [text.decode() for text in example["candidates"].tolist()]
        if not candidates or mark not in asked:
            raise InputError(f"{asked[:60]!r} needs {mark} and candidates that stand in its place")
        answers = example["answers"].tolist()
        classes = [int(one in answers) if answers else -1 for one in example["candidates"].tolist()]
        return {
            "second": np.array([asked.replace(mark, one).encode() for one in candidates], object),
            "label": np.array([of_class(index)[0] for index in classes], np.int64),
            "targets": np.array([(*LABELS, UNKNOWN)[index].encode() for index in classes], object),
        }

    @tf.autograph.experimental.do_not_convert
    def read(example: Mapping[str, Any]) -> dict[str, Any]:
        return {name: example[name] for name in ("second", "candidates", "answers")}

    @tf.autograph.experimental.do_not_convert
    def of_one(example: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        return datasets.from_tensor_slices(own).map(lambda row: {**example, **row})

    @tf.autograph.experimental.do_not_convert
    def of_table(number: Any, own: Mapping[str, Any]) -> dict[str, Any]:
        return {**tf.data.experimental.at(dataset, number), **own}

    spec = {
        "second": tf.TensorSpec([None], tf.string),
        "label": tf.TensorSpec([None], tf.int64),
        "targets": tf.TensorSpec([None], tf.string),
    }
    made = stages.map_numpy(dataset.map(read), rows, spec)
    if not shuffling.can_be_permuted(dataset):
        return datasets.zip((dataset, made)).flat_map(of_one)
    own = [*as_numpy(deterministic(made))]
    numbers = np.repeat(np.arange(len(own)), [len(one["label"]) for one in own])
    columns = {
        name: tf.constant(np.concatenate([one[name] for one in own]), kind.dtype)
        for name, kind in spec.items()
    }
    return datasets.from_tensor_slices((numbers, columns)).map(of_table)


def questions(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """An example of each question, from those of its candidates.

    Args:
      rows: the examples of `expanded`, tokenised, in order.

    Yields:
      The fields that a question's rows have in common; "inputs", int32 [_], of all its rows, one
      behind the other; and as texts the question and its first answer.
    """
    found: list[np.ndarray] = []
    for row in rows:
        found.append(row["inputs"])
        if len(found) < len(row["candidates"]):
            continue
        answers = row["answers"]
        yield {
            **row,
            "inputs": np.concatenate(found),
            "inputs_pretokenized": row["question"],
            "targets_pretokenized": answers[0] if len(answers) else UNKNOWN.encode(),
        }
        found = []


@dataclass(frozen=True)
class CandidateText:
    """From the number of a candidate, "3", to its text; then a postprocessor of texts.

    Attributes:
      postprocess: what metrics compare, from the text.
      labels: the classes of a row.
    """

    postprocess: Callable[..., Any]
    labels: ClassVar[tuple[str, ...]] = LABELS

    def __call__(
        self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
    ) -> Any:
        """What the metrics compare; a text that is no number of a candidate stays as it is."""
        assert example is not None
        candidates = example["candidates"]
        if not is_target and text.isdecimal() and int(text) < len(candidates):
            chosen = candidates[int(text)]
            text = chosen.decode() if isinstance(chosen, bytes) else chosen
        return self.postprocess(text, example=example, is_target=is_target)

    def is_answer(self, text: str) -> bool:
        """True: a candidate is always chosen."""
        del text
        return True


_CHOICES_AT_A_TIME = 64

EncodeChoices = Callable[[Sequence[str], Sequence[str]], list[list[int]]]
"""(questions, choices), of equal number -> rows, each [CLS] question [SEP] choice [SEP]."""


NAMES = tuple(f"choice{number}" for number in range(1, NUM_CHOICES + 1))
"""The choices of RACE and SWAG as text to text."""


def choice_task(
    name: str,
    arguments: TaskArguments,
    form: Labelled,
    *,
    source: Any,
    postprocess: Callable[..., Any] | None,
    metrics: Sequence[Callable[..., Any]],
) -> Any:
    """A seqio.Task of questions with choices.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      form: how records become examples.
      source: a seqio source of the examples that `Labelled.example` makes of a form with choices.
      postprocess: (text, example=, is_target=) -> what the metrics compare.
      metrics: functions (targets, predictions) -> {name: value}.

    Raises:
      InputError: the rows are too short, or the vocabulary has no [CLS].
    """
    from t5x_lite.data.elements import seqio, tf
    from t5x_lite.data.seqio_vocabularies import seqio_vocabulary

    check_lengths(arguments, ("inputs_length",))
    vocabulary, tokens = arguments.vocabulary, encoder_tokens(arguments.vocabulary)

    def encode(questions: Sequence[str], choices: Sequence[str]) -> list[list[int]]:
        none = np.zeros((len(questions), labelled.WIDTH), np.int32)
        options = {"tokens": tokens, "length": arguments.inputs_length, "is_pair": True}
        rows, _ = encode_texts(questions, choices, none, vocabulary=vocabulary, **options)
        return [[*row, tokens.sep_id] for row in rows]

    ids = seqio_vocabulary(vocabulary)
    features: dict[str, Any] = {
        feature: seqio.Feature(vocabulary=ids, add_eos=False, dtype=tf.int32)
        for feature in Choices.features
    }
    task = seqio.Task(
        name,
        source=source,
        preprocessors=[partial(_encode_choices, encode=encode), seqio.CacheDatasetPlaceholder()],
        output_features=features,
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )
    return with_form(task, form)


def _encode_choices(dataset: Any, *, encode: EncodeChoices) -> Any:
    """Examples of int32 "choices" and "labels"; other fields stay."""
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    def rows(block: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        ends = block["ends"]
        counts = np.diff(ends, prepend=0)
        questions = [text.decode() for text in np.repeat(block["inputs"], counts)]
        made = encode(questions, [text.decode() for text in block["choices"]])
        joined = [
            np.array([token for row in made[end - count : end] for token in row], np.int32)
            for end, count in zip(ends.tolist(), counts.tolist(), strict=True)
        ]
        padded, sizes = stages.padded(joined)
        given = np.stack([block["label"], block["label_end"]], axis=1)
        return {"choices": padded, "size": sizes, "labels": given.astype(np.int32)}

    @tf.autograph.experimental.do_not_convert
    def flat(block: Mapping[str, Any]) -> dict[str, Any]:
        choices: Any = block["choices"]
        if isinstance(choices, tf.Tensor):  # all of one number
            ragged: Any = tf.RaggedTensor
            choices = ragged.from_tensor(choices)
        return {**block, "choices": choices.flat_values, "ends": choices.row_limits()}

    spec = {
        "choices": tf.TensorSpec([None, None], tf.int32),
        "size": tf.TensorSpec([None], tf.int32),
        "labels": tf.TensorSpec([None, labelled.WIDTH], tf.int32),
    }
    names = ("inputs", "choices", "label", "label_end")
    raw = dataset.map(lambda example: {name: example[name] for name in names})
    blocks = raw.ragged_batch(_CHOICES_AT_A_TIME).map(flat)
    encoded = stages.map_numpy(blocks, rows, spec).unbatch()

    @tf.autograph.experimental.do_not_convert
    def finished(example: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        read = (*names, "targets")
        choices = tf.strings.reduce_join(example["choices"], separator=" | ")
        shown = tf.strings.join([example["inputs"], choices], separator=" ")
        return {
            **{name: value for name, value in example.items() if name not in read},
            "choices": row["choices"][: row["size"]],
            "labels": row["labels"],
            "inputs_pretokenized": shown,
            "targets_pretokenized": example["targets"],
        }

    return tf.data.Dataset.zip((dataset, encoded)).map(finished)


# Questions with four choices.


def choice_form(question: str, names: tuple[str, ...]) -> Labelled:
    """How an encoder reads a record: one field, and one for each choice."""
    return Labelled(
        texts=(question, *names),
        label=lambda record: of_class(record["label"]),
        target=lambda record: label_text(record["label"], names),
        choices=True,
    )


def question_task(
    name: str,
    arguments: TaskArguments,
    wording: Any,
    splits: tuple[str, ...],
    records: Callable[[str], Iterable[Mapping[str, Any]]],
) -> Any:
    """A task of questions with four choices, for an encoder or as text to text.

    Args:
      name: of the task.
      arguments: of the data config.
      wording: of the inputs as text to text.
      splits: that exist.
      records: the questions of a split, with "first", the "second" text of each choice and "label".

    Raises:
      InputError: data.layout is for neither.
    """
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import stages

    if "labels" not in arguments.layout.features:
        inputs = wording.changed(arguments).inputs

        def example(record: Mapping[str, Any]) -> dict[str, Any]:
            targets = label_text(record["label"], NAMES)
            return {"inputs": fill(inputs, record), "targets": targets, "id": record["id"]}

        return mark(
            seqio.Task(
                name,
                source=_source(splits, records, example, {"id": str}),
                preprocessors=stages.SUPERVISED_PREPROCESSORS,
                output_features=stages.features(arguments.vocabulary),
                postprocess_fn=ClassIndex(NAMES),
                metric_fns=[accuracy],
            )
        )
    layout = arguments.layout
    if not isinstance(layout, Choices) or layout.num != NUM_CHOICES:
        shown = f"{layout.name} of {layout.num}" if isinstance(layout, Choices) else layout.name
        raise InputError(
            f"tasks.choices:{name} needs data.layout choices with data.layout.num {NUM_CHOICES}, "
            f"or seq2seq; got {shown}"
        )
    form = choice_form("first", NAMES)

    def read(record: Mapping[str, Any]) -> dict[str, Any]:
        texts = dict(zip(NAMES, record["second"], strict=True))
        return form.example({**record, **texts}, {"id": record["id"]})

    return choice_task(
        name,
        arguments,
        form,
        source=_source(splits, records, read, extras({"id": str}, form)),
        postprocess=ClassIndex(NAMES),
        metrics=(accuracy,),
    )


def _source(
    splits: tuple[str, ...],
    records: Callable[[str], Iterable[Mapping[str, Any]]],
    example: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    kinds: Mapping[str, type],
) -> Any:
    from t5x_lite.data.tasks import benchmarks, stages

    def dataset(split: str) -> Any:
        return benchmarks.in_memory([*map(example, records(split))], kinds)

    return stages.source(splits, dataset, one_to_one=True)


_WINDOWS_AT_A_TIME = 32


class Row(NamedTuple):
    """The tokens of a window without its last [SEP], and its label."""

    tokens: list[int]
    label: labelled.Label


EncodeWindows = Callable[[Sequence[str], Sequence[str], np.ndarray], list[list[Row]]]
"""(questions, contexts, characters of the answers [n, 2]) -> the windows of each question."""


def window_task(
    name: str,
    arguments: TaskArguments,
    form: Labelled,
    *,
    source: Any,
    postprocess: Callable[..., Any] | None,
    metrics: Sequence[Callable[..., Any]],
) -> Any:
    """A seqio.Task of the windows of questions, whose data.layout is `Windows`.

    Args:
      name: the task's, for messages of seqio.
      arguments: of the task.
      form: how records become examples; its labels are spans of characters.
      source: a seqio source of the examples that `Labelled.example` makes.
      postprocess: (text, example=, is_target=) -> what the metrics compare.
      metrics: functions (targets, predictions) -> {name: value}.

    Raises:
      InputError: the rows are too short, or the vocabulary has no [CLS].
    """
    from t5x_lite.data.elements import seqio, tf
    from t5x_lite.data.seqio_vocabularies import seqio_vocabulary

    assert isinstance(arguments.layout, Windows)
    check_lengths(arguments, ("inputs_length",))
    vocabulary, length = arguments.vocabulary, arguments.inputs_length
    encode = partial(
        window_rows,
        vocabulary=vocabulary,
        tokens=encoder_tokens(vocabulary),
        length=length,
        doc_stride=arguments.layout.doc_stride,
        query_length=arguments.layout.query_length,
    )
    ids = seqio_vocabulary(vocabulary)
    features: dict[str, Any] = {
        feature: seqio.Feature(vocabulary=ids, add_eos=feature == "inputs", dtype=tf.int32)
        for feature in Windows.features
    }
    task = seqio.Task(
        name,
        source=source,
        preprocessors=[
            partial(_encode_windows, encode=encode, length=length),
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=features,
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )
    return with_form(task, form)


def window_rows(
    questions: Sequence[str],
    contexts: Sequence[str],
    given: np.ndarray,
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    length: int,
    doc_stride: int,
    query_length: int,
) -> list[list[Row]]:
    """The windows of each question, in order; one without tokens where a context has none.

    Args:
      questions: the questions; one that is too long is cut at its end.
      contexts: as many contexts.
      given: of each answer in its context, the first character and the one behind the last; two
        equal numbers are an answer that is not known, or `spans.IMPOSSIBLE`.
      vocabulary: a tokenizer, which knows the characters of its tokens.
      tokens: the vocabulary's.
      length: of a row at most.
      doc_stride: see `Windows`.
      query_length: see `Windows`; half a row at most.
    """
    num = separators(vocabulary)
    encoded = vocabulary.encode_batch(questions)
    found = []
    for question, (ids, offsets), span in zip(
        encoded, offsets_of(vocabulary, contexts), given.tolist(), strict=True
    ):
        asked = without_special(question, tokens)[: min(query_length, length // 2)]
        before = [tokens.cls_id, *asked, *[tokens.sep_id] * num]
        read = without_special(ids, tokens)
        places = _places(offsets, *span)
        rows = []
        for window in divided(len(read), room=length - 1 - len(before), stride=doc_stride):
            label = labelled.NONE
            if tuple(span) == IMPOSSIBLE:
                label = NULL
            elif places is not None:
                inside = places[0] >= window.start and places[1] < window.stop
                shift = len(before) - window.start
                label = labelled.of_span(places[0] + shift, places[1] + shift) if inside else NULL
            rows.append(Row([*before, *read[window.start : window.stop]], label))
        found.append(rows)
    return found


def divided(size: int, *, room: int, stride: int) -> list[range]:
    """The windows of a text: ranges of its tokens, which cover it and begin in equal steps.

    Args:
      size: tokens of the text; of an empty one there is one window, which is empty.
      room: tokens of a window at most.
      stride: tokens from one window to the next; `room`, if that is less.
    """
    windows = [range(min(room, size))]
    while windows[-1].stop < size:
        start = windows[-1].start + min(room, stride)
        windows.append(range(start, min(start + room, size)))
    return windows


def _places(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """The first and the last token that have a character of a span; None where no token has."""
    inside = [place for place, (a, b) in enumerate(offsets) if a < stop and b > start]
    return (inside[0], inside[-1]) if start < stop and inside else None


def _encode_windows(dataset: Any, *, encode: EncodeWindows, length: int) -> Any:
    """Examples of int32 "inputs" without the last [SEP], "labels" and "window"; others stay."""
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    def rows(block: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        first, second = ([t.decode() for t in block[name]] for name in ("inputs", "second"))
        made = encode(first, second, np.stack([block["label"], block["label_end"]], axis=1))
        shape = (len(made), max(map(len, made)))
        tokens = np.zeros((*shape, length), np.int32)
        sizes, given = np.zeros(shape, np.int32), np.zeros((*shape, labelled.WIDTH), np.int32)
        for number, windows in enumerate(made):
            for place, row in enumerate(windows):
                tokens[number, place, : len(row.tokens)] = row.tokens
                sizes[number, place], given[number, place] = len(row.tokens), row.label
        counts = np.array(list(map(len, made)), np.int64)
        return {"inputs": tokens, "sizes": sizes, "labels": given, "num": counts}

    spec = {
        "inputs": tf.TensorSpec([None, None, length], tf.int32),
        "sizes": tf.TensorSpec([None, None], tf.int32),
        "labels": tf.TensorSpec([None, None, labelled.WIDTH], tf.int32),
        "num": tf.TensorSpec([None], tf.int64),
    }
    names = ("inputs", "second", "label", "label_end")
    raw = dataset.map(lambda example: {name: example[name] for name in names}).batch(
        _WINDOWS_AT_A_TIME
    )
    encoded = stages.map_numpy(raw, rows, spec).unbatch()

    @tf.autograph.experimental.do_not_convert
    def windows(example: Mapping[str, Any], made: Mapping[str, Any]) -> Any:
        read = (*names, "targets")
        shown = tf.strings.join([example["inputs"], example["second"]], separator=" ")
        others = {
            **{name: value for name, value in example.items() if name not in read},
            "inputs_pretokenized": tf.strings.strip(shown),
            "targets_pretokenized": example["targets"],
        }

        @tf.autograph.experimental.do_not_convert
        def window(place: Any) -> dict[str, Any]:
            return {
                **others,
                "inputs": made["inputs"][place][: made["sizes"][place]],
                "labels": made["labels"][place],
                WINDOW: tf.cast(place, tf.int32)[None],
            }

        return tf.data.Dataset.range(made["num"]).map(window)

    both: Any = tf.data.Dataset.zip((dataset, encoded))
    return both.flat_map(windows)
