"""Questions whose contexts are divided into windows, as a seqio task for a head on an encoder.

    [CLS] question [SEP] window [SEP]       labels: the places of the answer's two ends, or of [CLS]

Windows have the tokens that the question leaves in a row, and begin doc_stride tokens apart. Each
is an example. It has the answer's label where the whole answer lies in it, and else that of no
answer, [CLS], in SQuAD 1.1 as in 2.0. An answer that is not known has no label in any window.
Source: google-research/bert run_squad.py, convert_examples_to_features.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.data import labels
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.layouts.windows import WINDOW, Windows
from t5x_lite.data.tasks.encoder import check_lengths
from t5x_lite.data.tasks.labelled import Labelled, with_form
from t5x_lite.data.tasks.spans import IMPOSSIBLE, NULL, offsets_of
from t5x_lite.vocabulary.encoder_tokens import (
    EncoderTokens,
    encoder_tokens,
    separators,
    without_special,
)
from t5x_lite.vocabulary.loading import Vocabulary

_AT_A_TIME = 32


class Row(NamedTuple):
    """The tokens of a window without its last [SEP], and its label."""

    tokens: list[int]
    label: labels.Label


Encode = Callable[[Sequence[str], Sequence[str], np.ndarray], list[list[Row]]]
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
    from t5x_lite.data.quiet_tensorflow import seqio, tf
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
            partial(_encode, encode=encode, length=length),
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
            label = labels.NONE
            if tuple(span) == IMPOSSIBLE:
                label = NULL
            elif places is not None:
                inside = places[0] >= window.start and places[1] < window.stop
                shift = len(before) - window.start
                label = labels.of_span(places[0] + shift, places[1] + shift) if inside else NULL
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


def _encode(dataset: Any, *, encode: Encode, length: int) -> Any:
    """Examples of int32 "inputs" without the last [SEP], "labels" and "window"; others stay."""
    from t5x_lite.data.quiet_tensorflow import tf
    from t5x_lite.data.tasks import stages

    def rows(block: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        first, second = ([t.decode() for t in block[name]] for name in ("inputs", "second"))
        made = encode(first, second, np.stack([block["label"], block["label_end"]], axis=1))
        shape = (len(made), max(map(len, made)))
        tokens = np.zeros((*shape, length), np.int32)
        sizes, given = np.zeros(shape, np.int32), np.zeros((*shape, labels.WIDTH), np.int32)
        for number, windows in enumerate(made):
            for place, row in enumerate(windows):
                tokens[number, place, : len(row.tokens)] = row.tokens
                sizes[number, place], given[number, place] = len(row.tokens), row.label
        counts = np.array(list(map(len, made)), np.int64)
        return {"inputs": tokens, "sizes": sizes, "labels": given, "num": counts}

    spec = {
        "inputs": tf.TensorSpec([None, None, length], tf.int32),
        "sizes": tf.TensorSpec([None, None], tf.int32),
        "labels": tf.TensorSpec([None, None, labels.WIDTH], tf.int32),
        "num": tf.TensorSpec([None], tf.int64),
    }
    names = ("inputs", "second", "label", "label_end")
    raw = dataset.map(lambda example: {name: example[name] for name in names}).batch(_AT_A_TIME)
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
