"""Examples of a task as text, to be shown in front of its questions (`evaluate.few_shot`).

demonstrations(data, vocabulary, split="train", pool=None)
# [Demonstration(inputs="sst2 sentence: a gem", targets="positive"), ...]
"""

import itertools
import logging
from dataclasses import dataclass
from typing import Any

from t5x_lite.data.config import Data
from t5x_lite.data.live.pipeline import text_of
from t5x_lite.data.live.tasks import examples_of, load_task
from t5x_lite.data.preprocess.classification import UNKNOWN
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.loading import Vocabulary

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An example with its answer, whole, as the task writes both."""

    inputs: str
    targets: str


def demonstrations(
    data: Data, vocabulary: Vocabulary, *, split: str, pool: int | None
) -> list[Demonstration]:
    """The examples of a split with different inputs and known answers, in the split's order.

    Args:
      data: the config of one task.
      vocabulary: its decoding stands in where a task has tokens only.
      split: the task's split.
      pool: how many of its first examples are read; None is all. A line says if there are more.

    Raises:
      InputError: there is no such split, its file is missing or wrong, or no answer is known.
    """
    task = load_task(data, vocabulary)
    examples = examples_of(data, task, split=split)
    found: dict[str, Demonstration] = {}
    for fields in itertools.islice(examples, pool):
        raw: dict[str, Any] = {
            k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()
        }
        inputs, targets = (text_of(name, raw, vocabulary) for name in ("inputs", "targets"))
        if targets != UNKNOWN:
            found.setdefault(inputs, Demonstration(inputs, targets))
    if not found:
        raise InputError(f"data.task {data.task!r} has no labels in split {split!r} to be shown")
    if pool is not None and next(examples, None) is not None:
        _logger.info(
            "examples of %s are drawn from the first %s of its split %s; "
            "--evaluation.few-shot.pool changes it",
            task.name,
            f"{pool:,}",
            split,
        )
    return list(found.values())
