"""Questions with candidates, each a row of its own, for a head that says yes or no: ReCoRD.

    {"inputs": [CLS] passage [SEP] query with a candidate [SEP], "labels": [yes + 1, 0]}

A record has any number of candidates. Each stands once in the second text, in place of a mark, and
is right if it is one of the answers: these rows are trained, and have the held-out loss. For
metrics and submissions `questions` puts the rows of a record together again, so that a limit of
examples counts questions and divides none. The likeliest candidate is the answer:
`evaluate.heads.CandidateAnswers` gives its number, and `CandidateText` its text.

Source: the BERT baseline of SuperGLUE (Wang et al. 2019, arXiv:1905.00537), which "evaluate[s] the
probability of each candidate independent of other candidates".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from t5x_lite.data.labels import of_class
from t5x_lite.data.preprocess.classification import UNKNOWN
from t5x_lite.errors import InputError

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
    from t5x_lite.data.elements import as_numpy, deterministic
    from t5x_lite.data.quiet_tensorflow import tf
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
