"""A task whose tokens are written: what one process and the workers of a cluster do alike.

job = load_job(data, vocabulary, splits=None, seed=0, bake=False)
dataset = job.task.preprocess_precache(raw, seed=job.seed)
for features in stored_examples(job, dataset): ...
index = index_of(job, {"train": written})
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t5x_lite.data.cache.files import DTYPES, Index, SplitIndex
from t5x_lite.data.cache.recipe import Recipe, as_numbers
from t5x_lite.data.cache.task_recipe import recipe_of
from t5x_lite.data.config import Data, words_of_inputs
from t5x_lite.data.layouts.base import Layout, longest_joined
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.loading import Vocabulary

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A task that is run once.

    Attributes:
      data: the data config.
      vocabulary: of inputs and targets.
      task: the seqio.Task.
      recipe: what the records hold.
      seed: of randomness before the placeholder and, baked, of the corruption.
      bake: whether whole examples are written.
    """

    data: Data
    vocabulary: Vocabulary
    task: Any
    recipe: Recipe
    seed: int
    bake: bool

    @property
    def dtype(self) -> str:
        """Of the tokens on the disk."""
        return DTYPES[0] if self.vocabulary.size <= 1 << 16 else DTYPES[1]


def load_job(
    data: Data, vocabulary: Vocabulary, *, splits: Sequence[str] | None, seed: int, bake: bool
) -> Job:
    """Loads the task, and looks whether it can be cached.

    Args:
      data: the data config; task, directory and lengths are used.
      vocabulary: of inputs and targets.
      splits: those to write; None for those of the task.
      seed: of randomness before the placeholder and, baked, of the corruption.
      bake: whether whole examples are written.

    Raises:
      InputError: the task or a split is wrong, or the task cannot be cached so.
    """
    # Now, because TensorFlow takes seconds.
    from t5x_lite.data.live import tasks as live_tasks
    from t5x_lite.data.live.truncation import truncated

    if not data.task:
        raise InputError("which task is cached? give --data.task module:function")
    task = live_tasks.load_task(data, vocabulary, seed=seed)
    for split in splits or ():
        live_tasks.check_split(data, task, split=split)
    recipe = recipe_of(data, vocabulary, task, bake=bake)
    task = truncated(data, task, seed=seed)
    return Job(data=data, vocabulary=vocabulary, task=task, recipe=recipe, seed=seed, bake=bake)


def stored_examples(job: Job, dataset: Any) -> Iterator[list[np.ndarray]]:
    """The stored features of the examples that a task gives at its placeholder or, baked, ends in.

    Raises:
      InputError: they are no sequences of token ids, or lost their order behind `stages.number`.
    """
    from t5x_lite.data import elements

    names = features_of(dataset, job.recipe, job.data.task)
    needed = [name for name in dataset.element_spec if name in (*names, "index")]
    dataset = dataset.map(lambda example: {name: example[name] for name in needed})
    for number, example in enumerate(elements.as_numpy(elements.deterministic(dataset))):
        if example.get("index", number) != number:
            raise InputError(
                f"data.task {job.data.task!r} drops or reorders examples behind stages.number, "
                "which must come right before the CacheDatasetPlaceholder"
            )
        yield [as_stored(example[name]) for name in names]


def as_stored(values: np.ndarray) -> np.ndarray:
    """A feature as a record holds it: whole numbers."""
    return as_numbers(values) if np.issubdtype(values.dtype, np.floating) else values


def features_of(dataset: Any, recipe: Recipe, task: str) -> tuple[str, ...]:
    """The stored features, after a look whether they are sequences of token ids."""
    there = dataset.element_spec
    for name in recipe.stored:
        if name not in there:
            raise InputError(
                f"data.task {task!r} gives {', '.join(there)} at its CacheDatasetPlaceholder, and "
                f"not {name}: put the placeholder after its tokenization"
            )
        is_float = name in recipe.floats
        right = there[name].dtype.is_floating if is_float else there[name].dtype.is_integer
        if not right or there[name].shape.rank != 1:
            raise InputError(
                f"data.task {task!r}: {name} must be a sequence of token ids at the "
                f"CacheDatasetPlaceholder, and is {there[name].dtype.name} of shape "
                f"{there[name].shape}"
            )
    return recipe.stored


def longest_of(recipe: Recipe, layout: Layout) -> Callable[[Sequence[np.ndarray]], int] | None:
    """Tokens of the longest text of an example, where a row has several (`SplitWriter`)."""
    if not layout.joined or recipe.corruption:
        return None
    return lambda features: longest_joined(layout, dict(zip(recipe.stored, features, strict=True)))


def goes_without(job: Job, split: str, *, asked: bool) -> None:
    """Says that a cache goes without a split that has no example.

    Raises:
      InputError: it was asked for, or is "train".
    """
    if asked or split == "train":
        where = f" in {job.data.directory}" if job.data.directory else ""
        raise InputError(f"data.task {job.data.task!r} found no example for split {split!r}{where}")
    _logger.warning("split %s has no example: the cache goes without it", split)


def index_of(job: Job, splits: Mapping[str, SplitIndex]) -> Index:
    """The index of the splits that were written."""
    return Index(
        task=job.data.task,
        vocabulary={
            "digest": job.vocabulary.digest,
            "extra_ids": job.vocabulary.extra_ids,
            "size": job.vocabulary.size,
        },
        dtype=job.dtype,
        recipe=job.recipe,
        splits=splits,
        has_metrics=bool(job.task.predict_metric_fns),
        baked=job.seed if job.bake else None,
        documents=job.data.first_documents,
        wording=words_of_inputs(job.data),
    )
