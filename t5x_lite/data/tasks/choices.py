"""Questions with choices, as a seqio task: what the head "choice" on an encoder answers.

    {"choices": [CLS] question [SEP] a [SEP] [CLS] question [SEP] b [SEP], "labels": [right + 1, 0]}

A choice that is too long with its question is cut as a pair of texts is (`labelled`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.data import labels
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.labels import of_class
from t5x_lite.data.layouts.choices import Choices
from t5x_lite.data.postprocess import ClassIndex
from t5x_lite.data.preprocess.classification import label_text
from t5x_lite.data.preprocess.templates import fill
from t5x_lite.data.tasks.encoder import check_lengths
from t5x_lite.data.tasks.labelled import Labelled, encode_texts, extras, with_form
from t5x_lite.data.tasks.wording import mark
from t5x_lite.errors import InputError
from t5x_lite.metrics.classification import accuracy
from t5x_lite.records.released_files import NUM_CHOICES
from t5x_lite.vocabulary.encoder_tokens import encoder_tokens

_AT_A_TIME = 64

Encode = Callable[[Sequence[str], Sequence[str]], list[list[int]]]
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
    from t5x_lite.data.quiet_tensorflow import seqio, tf
    from t5x_lite.data.seqio_vocabularies import seqio_vocabulary

    check_lengths(arguments, ("inputs_length",))
    vocabulary, tokens = arguments.vocabulary, encoder_tokens(arguments.vocabulary)

    def encode(questions: Sequence[str], choices: Sequence[str]) -> list[list[int]]:
        none = np.zeros((len(questions), labels.WIDTH), np.int32)
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
        preprocessors=[partial(_encode, encode=encode), seqio.CacheDatasetPlaceholder()],
        output_features=features,
        postprocess_fn=postprocess,
        metric_fns=list(metrics),
    )
    return with_form(task, form)


def _encode(dataset: Any, *, encode: Encode) -> Any:
    """Examples of int32 "choices" and "labels"; other fields stay."""
    from t5x_lite.data.quiet_tensorflow import tf
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
        "labels": tf.TensorSpec([None, labels.WIDTH], tf.int32),
    }
    names = ("inputs", "choices", "label", "label_end")
    raw = dataset.map(lambda example: {name: example[name] for name in names})
    blocks = raw.ragged_batch(_AT_A_TIME).map(flat)
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
    from t5x_lite.data.quiet_tensorflow import seqio
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
