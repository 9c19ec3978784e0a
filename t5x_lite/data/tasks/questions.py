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
from t5x_lite.data.tasks.encoder import Raw, divided_examples, example_task, row_options
from t5x_lite.data.tasks.labelled import (
    IMPOSSIBLE,
    NULL,
    READ,
    SHOWN,
    Labelled,
    encode_texts,
    extras,
    offsets_of,
    raw_labels,
    shown,
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
"""The classes of a row: the second is that of a candidate that is right."""
KINDS: Mapping[str, type] = {"question": str, "candidates": list, "answers": list}
"""Fields of a record's example: a text that shows it, all candidates, and those that are right."""


def candidate_rows(example: Mapping[str, Any], *, mark: str) -> list[dict[str, Any]]:
    """The fields of the row of each candidate of an example; see `expanded`."""
    asked, candidates, answers = (example[name] for name in ("second", "candidates", "answers"))
    if not candidates or mark not in asked:
        raise InputError(f"{asked[:60]!r} needs {mark} and candidates that stand in its place")
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

    def make(raw: Raw) -> list[list[dict[str, Any]]]:
        return [candidate_rows(one, mark=mark) for one in raw]

    return divided_examples(
        dataset, make=make, fields={"second": str, "label": int, "targets": str}
    )


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
    """A seqio.Task of questions with choices, of a form with choices; else as `labelled_task`."""
    how = row_options(arguments)

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        asked = [one["inputs"] for one in raw for _ in one["choices"]]
        choices = [choice for one in raw for choice in one["choices"]]
        none = np.zeros((len(asked), labelled.WIDTH), np.int32)
        rows = iter(encode_texts(asked, choices, none, is_pair=True, **how)[0])
        for one in raw:
            own = [[*next(rows), how["tokens"].sep_id] for _ in one["choices"]]
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
        others=SHOWN,
        drops=(*READ, "choices"),
        ended=(),
        postprocess=postprocess,
        metrics=metrics,
    )
    return with_form(task, form)


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


class Row(NamedTuple):
    """The tokens of a window without its last [SEP], and its label."""

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
    """A seqio.Task of the windows of questions, of a form with spans; else as `labelled_task`.

    The data.layout of its arguments is `Windows`.
    """
    layout, how = arguments.layout, row_options(arguments)
    assert isinstance(layout, Windows)

    def make(raw: Raw) -> Iterator[list[dict[str, Any]]]:
        asked, contexts = ([one[name] for one in raw] for name in ("inputs", "second"))
        made = window_rows(
            asked,
            contexts,
            raw_labels(raw),
            doc_stride=layout.doc_stride,
            query_length=layout.query_length,
            **how,
        )
        for one, rows in zip(raw, made, strict=True):
            yield [
                {"inputs": row.tokens, "labels": row.label, WINDOW: [place], **shown(one)}
                for place, row in enumerate(rows)
            ]

    task = example_task(
        name,
        arguments,
        source=source,
        make=make,
        features=dict.fromkeys(Windows.features, np.int32),
        others=SHOWN,
        drops=(*READ, "second"),
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
