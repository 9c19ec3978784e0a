"""Questions with choices, as a seqio task: what the head "choice" on an encoder answers.

    {"choices": [CLS] question [SEP] a [SEP] [CLS] question [SEP] b [SEP], "labels": [right + 1, 0]}

A choice that is too long with its question is cut as a pair of texts is (`labelled`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.data import labels
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.layouts.choices import Choices
from t5x_lite.data.tasks.encoder import check_lengths
from t5x_lite.data.tasks.labelled import Labelled, encode_texts, with_form
from t5x_lite.vocabulary.encoder_tokens import encoder_tokens

_AT_A_TIME = 64

Encode = Callable[[Sequence[str], Sequence[str]], list[list[int]]]
"""(questions, choices), of equal number -> rows, each [CLS] question [SEP] choice [SEP]."""


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
