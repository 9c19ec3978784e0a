"""Seqio tasks of questions with candidates, with choices, and with contexts in windows.

Questions with candidates (ReCoRD), with one row per candidate for a binary classifier:

    {"inputs": [CLS] passage [SEP] query with a candidate [SEP], "labels": [yes + 1, 0]}

A record has any number of candidates. Each row replaces a marker in the second text by one
candidate, which is correct if it is one of the answers. Training and the held-out loss use these
rows. For metrics and submissions, `questions` joins the rows of a record again, so that a limit on
examples counts complete questions. The most probable candidate is the answer:
`inference.head_answers.CandidateAnswers` returns its number, and `CandidateText` its text.

Source: the BERT baseline of SuperGLUE (Wang et al. 2019, arXiv:1905.00537), which "evaluate[s] the
probability of each candidate independent of other candidates".

Questions with choices, for the head "choice":

    {"choices": [CLS] question [SEP] a [SEP] [CLS] question [SEP] b [SEP], "labels": [right + 1, 0]}

A question and choice that are too long together are truncated like a pair of texts (`labelled`).

Questions with contexts divided into windows:

    [CLS] question [SEP] window [SEP]       labels: positions of the answer's ends, or of [CLS]

A window has as many tokens as fit in a row after the question, and windows begin doc_stride tokens
apart. Each window is an example. Its label is the answer if the window holds the complete answer,
and [CLS], no answer, otherwise. This holds for SQuAD 1.1 and 2.0. An unknown answer has no label in
any window. Source: google-research/bert run_squad.py, convert_examples_to_features.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.released_files import NUM_CHOICES
from t5x_lite.data.postprocess import ClassIndex
from t5x_lite.data.preprocessors import UNKNOWN, fill, label_text
from t5x_lite.data.tasks.encoder import Raw, example_task, make_examples, row_options
from t5x_lite.data.tasks.labelled import (
    IMPOSSIBLE,
    NULL,
    RAW_FIELDS,
    TEXT_FIELDS,
    Labelled,
    encode_texts,
    extras,
    offsets_of,
    raw_labels,
    text_fields,
    with_form,
)
from t5x_lite.data.tasks.names import mark
from t5x_lite.data.vocabularies.encoder_tokens import separators, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts import labelled
from t5x_lite.layouts.base import EncoderTokens
from t5x_lite.layouts.labelled import WINDOW, Choices, Windows, of_class
from t5x_lite.metrics.classification import accuracy

LABELS = ("False", "True")
"""Classes of a candidate's row; the second class means that the candidate is correct."""
KINDS: Mapping[str, type] = {"question": str, "candidates": list, "answers": list}
"""Types of a record's fields: question for display, all candidates, and correct candidates."""


def candidate_rows(example: Mapping[str, Any], *, mark: str) -> list[dict[str, Any]]:
    """Return one row for each candidate answer of an example."""
    asked, candidates, answers = (example[name] for name in ("second", "candidates", "answers"))
    if not candidates or mark not in asked:
        raise InputError(
            f"the text {asked[:60]!r} must contain the placeholder {mark} and have candidate "
            "answers for it"
        )
    classes = [int(one in answers) if answers else -1 for one in candidates]
    return [
        {
            "second": asked.replace(mark, one),
            "label": of_class(index)[0],
            "targets": (*LABELS, UNKNOWN)[index],
        }
        for one, index in zip(candidates, classes, strict=True)
    ]


def expanded(dataset: Any, *, mark: str) -> Any:
    """Convert each example to several examples, one for each candidate answer.

    Args:
      dataset: examples with the fields of `KINDS`, and with "second", a text that contains the
        marker.
      mark: marker that a candidate replaces.

    Returns:
      One example for each candidate, with the candidate in "second", and with "label" and
        "targets".

    Raises:
      InputError: if an example has no candidates or no marker. For a stream, it is raised during
        reading.
    """

    def make(raw: Raw) -> list[list[dict[str, Any]]]:
        return [candidate_rows(one, mark=mark) for one in raw]

    fields = {"second": str, "label": int, "targets": str}
    return make_examples(dataset, make=make, fields=fields, drop=())


def questions(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Join the tokenized rows of each question's candidate answers into one example.

    Args:
      rows: tokenized rows, one per candidate answer, in order.

    Yields:
      One example per question, with the concatenated rows as "inputs", and with the texts of the
        question and of its first answer.
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
    """Postprocessor that converts the index of a candidate answer, such as "3", to its text.

    Attributes:
      postprocess: postprocessor of the text, which returns the value that metrics compare.
      labels: classes of a candidate: wrong or correct.
    """

    postprocess: Callable[..., Any]
    labels: ClassVar[tuple[str, ...]] = LABELS

    def __call__(
        self, text: str, example: Mapping[str, Any] | None = None, is_target: bool = False
    ) -> Any:
        """Return the value for metrics, given the index or the text of a candidate answer."""
        assert example is not None
        candidates = example["candidates"]
        if not is_target and text.isdecimal() and int(text) < len(candidates):
            chosen = candidates[int(text)]
            text = chosen.decode() if isinstance(chosen, bytes) else chosen
        return self.postprocess(text, example=example, is_target=is_target)

    def is_answer(self, text: str) -> bool:
        """Return True, because every prediction is a candidate."""
        del text
        return True


NAMES = tuple(f"choice{number}" for number in range(1, NUM_CHOICES + 1))
"""Names of the choices of RACE and SWAG in the text-to-text form."""


def choice_task(
    name: str,
    arguments: TaskArguments,
    form: Labelled,
    *,
    source: Any,
    postprocess: Callable[..., Any] | None,
    metrics: Sequence[Callable[..., Any]],
) -> Any:
    """Make a seqio.Task of questions with several choices, for an encoder."""
    options = row_options(arguments)

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        asked = [one["inputs"] for one in raw for _ in one["choices"]]
        choices = [choice for one in raw for choice in one["choices"]]
        none = np.zeros((len(asked), labelled.WIDTH), np.int32)
        rows = iter(encode_texts(asked, choices, none, is_pair=True, **options)[0])
        for one in raw:
            own = [[*next(rows), options["tokens"].sep_id] for _ in one["choices"]]
            yield [
                {
                    "choices": [*itertools.chain(*own)],
                    "labels": (one["label"], one["label_end"]),
                    "inputs_pretokenized": f"{one['inputs']} {' | '.join(one['choices'])}",
                    "targets_pretokenized": one["targets"],
                }
            ]

    task = example_task(
        name,
        arguments,
        source=source,
        make=make,
        features=dict.fromkeys(Choices.features, np.int32),
        extras=TEXT_FIELDS,
        drop=(*RAW_FIELDS, "choices"),
        add_eos=(),
        postprocess=postprocess,
        metrics=metrics,
    )
    return with_form(task, form)


# Questions with four choices.


def choice_form(question: str, names: tuple[str, ...]) -> Labelled:
    """Return the description of a multiple-choice task for encoders."""
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
    """Make a task of questions with four choices, for an encoder or as text-to-text.

    Args:
      name: name of the task.
      arguments: arguments of the task function.
      wording: prefix and template of the text-to-text inputs.
      splits: names of the existing splits.
      records: function from a split to its questions, with the text "first", a text "second" for
        each choice, and "label".

    Raises:
      InputError: if data.layout is neither text-to-text nor `Choices` with four choices.
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
            f"tasks.choices:{name} requires data.layout choices with data.layout.num "
            f"{NUM_CHOICES}, or data.layout seq2seq, but data.layout is {shown}"
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


class Row(NamedTuple):
    """Row of tokens for one window of a long context, with the row's label."""

    tokens: list[int]
    label: labelled.Label


def window_task(
    name: str,
    arguments: TaskArguments,
    form: Labelled,
    *,
    source: Any,
    postprocess: Callable[..., Any] | None,
    metrics: Sequence[Callable[..., Any]],
) -> Any:
    """Make a seqio.Task of questions with long contexts that are divided into windows.

    The layout in data.layout must be `Windows`.
    """
    layout, options = arguments.layout, row_options(arguments)
    assert isinstance(layout, Windows)

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        asked, contexts = ([one[name] for one in raw] for name in ("inputs", "second"))
        made = window_rows(
            asked,
            contexts,
            raw_labels(raw),
            doc_stride=layout.doc_stride,
            query_length=layout.query_length,
            **options,
        )
        for one, rows in zip(raw, made, strict=True):
            yield [
                {"inputs": row.tokens, "labels": row.label, WINDOW: [place], **text_fields(one)}
                for place, row in enumerate(rows)
            ]

    task = example_task(
        name,
        arguments,
        source=source,
        make=make,
        features=dict.fromkeys(Windows.features, np.int32),
        extras=TEXT_FIELDS,
        drop=(*RAW_FIELDS, "second"),
        postprocess=postprocess,
        metrics=metrics,
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
    """Divide each question's context into windows, and return their token rows in order.

    A context without tokens gives one row without context tokens.

    Args:
      questions: texts of the questions; a question that is too long is truncated at its end.
      contexts: one context per question.
      given: character span of each answer in its context, end excluded, int64 [n, 2]. Two equal
        numbers mean an unknown answer; `labelled.IMPOSSIBLE` means that the question has no answer.
      vocabulary: tokenizer that supports character offsets.
      tokens: special tokens of the vocabulary.
      length: maximum tokens of a row.
      doc_stride: number of tokens from one window to the next.
      query_length: maximum tokens of a question, but no more than half a row.
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
    """Return token ranges that cover a text: windows that begin at equal steps.

    Args:
      size: number of tokens of the text. An empty text has one empty window.
      room: maximum tokens of a window.
      stride: number of tokens from one window to the next. If `room` is less, windows are adjacent.
    """
    windows = [range(min(room, size))]
    while windows[-1].stop < size:
        start = windows[-1].start + min(room, stride)
        windows.append(range(start, min(start + room, size)))
    return windows


def _places(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    inside = [place for place, (a, b) in enumerate(offsets) if a < stop and b > start]
    return (inside[0], inside[-1]) if start < stop and inside else None
