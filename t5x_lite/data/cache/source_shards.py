"""A task run on its source shard by shard, as the workers of a cluster do.

    count = len(shards_of(job, "train"))      # its files, in the source's order
    check_shards(job, "train", count)         # whether the task gives the same for each alone
    dataset = shard_dataset(job, "train", 3, count)   # the fourth, as it is at the placeholder

What comes before the placeholder begins anew with each shard. So it may look at one example at a
time or at groups of neighbours, as `stages.chunk_documents` does, and must not count examples over
all of the source: `stages.number` right before the placeholder may, for a cache numbers its
examples by their place in it.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_lite.data.cache.job import Job, features_of
from t5x_lite.errors import InputError

_LOCAL = "write the cache without --runner"
_SEED_OF_SHARD = 1_000_003
"""Between the seeds of two shards: far from the few that one shard uses."""
_building = threading.Lock()
"""While a dataset is built: seqio holds the next seed in a global variable."""

# Classes of tf.data that look at one example at a time, or at groups of neighbours.
_IN_ORDER = {
    "DatasetV1Adapter",
    "_BatchDataset",
    "_DenseToRaggedDataset",
    "_FilterDataset",
    "_FlatMapDataset",
    "_IgnoreErrorsDataset",
    "_InterleaveDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_PaddedBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelInterleaveDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RandomDataset",
    "_RestructuredDataset",
    "_UnbatchDataset",
    "_ZipDataset",
}
_NUMBERS = {"_RangeDataset", "_VariantDataset"}
"""What `enumerate` zips with; the second is a range, too, after TensorFlow rewrote it."""


def shards_of(job: Job, split: str) -> Sequence[str]:
    """The shards of a split, in the source's order; none where there is nothing.

    Raises:
      InputError: the source has no shards, or cannot be read.
    """
    from t5x_lite.data import elements
    from t5x_lite.data.tasks import stages

    source = job.task.source
    try:
        if isinstance(source, stages.FileSource):
            return source.files(split)
        return source.list_shards(split)
    except (NotImplementedError, AttributeError) as error:
        raise InputError(
            f"data.task {job.data.task!r} has a source without shards, {type(source).__name__}: "
            f"{_LOCAL}, or make it a stages.FileSource or one of seqio's sources of files"
        ) from error
    except InputError:
        raise
    except Exception as error:
        raise elements.input_error(error) from error


def shard_dataset(job: Job, split: str, number: int, count: int) -> Any:
    """What the task gives at its placeholder for one shard of its source, as a tf.data.Dataset.

    Args:
      job: the task.
      split: of its source.
      number: of the shard.
      count: of shards.

    Raises:
      InputError: the shard cannot be read.
    """
    return _from_raw(job, split, number, count)[1]


def _from_raw(job: Job, split: str, number: int, count: int) -> tuple[Any, Any]:
    """The raw examples of a shard, and what becomes of them."""
    from t5x_lite.data.quiet_tensorflow import seqio

    shard = seqio.ShardInfo(number, count) if count > 1 else None
    with _building:
        raw = job.task.source.get_dataset(split=split, shuffle=False, shard_info=shard)
        # The first shard has the seed of a source of one shard, which is what one process runs.
        seed = job.seed + number * _SEED_OF_SHARD
        return raw, job.task.preprocess_precache(raw, seed=seed)


def check_shards(job: Job, split: str, count: int) -> None:
    """Looks, without reading examples, whether a task can be run on each shard alone.

    Raises:
      InputError: it counts over the whole source, or gives no sequences of token ids.
    """
    from t5x_lite.data.quiet_tensorflow import seqio
    from t5x_lite.data.tasks import stages

    raw, dataset = _from_raw(job, split, 0, count)
    features_of(dataset, job.recipe, job.data.task)
    if count == 1:
        return
    steps = list(job.task.preprocessors)
    end = next(i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder))
    numbers_last = end > 0 and steps[end - 1] is stages.number
    counting = sorted(_counting(dataset, raw, may_number=numbers_last))
    if stages.number in steps[: max(end - 1, 0)]:
        counting = ["stages.number"]
    if counting:
        raise InputError(
            f"data.task {job.data.task!r} counts its examples over the whole source "
            f"({', '.join(counting)}), of which a worker sees one of {count} shards: {_LOCAL}, or "
            "have nothing but stages.number count, right before the CacheDatasetPlaceholder"
        )


def _counting(dataset: Any, raw: Any, *, may_number: bool) -> set[str]:
    """The steps between raw examples and a dataset that see more than neighbours, in words."""
    found, numbered = set(), 0
    for node in _nodes(dataset, raw):
        name = type(node).__name__
        if name in _NUMBERS:
            numbered += 1
        elif name not in _IN_ORDER:
            found.add(name.strip("_").removesuffix("Dataset").lower())
    if numbered > may_number:
        found.add("enumerate")
    return found


def _nodes(dataset: Any, raw: Any) -> Iterator[Any]:
    """A dataset and those that it is made of, down to `raw`, which is left out."""
    if dataset is raw:
        return
    yield dataset
    for part in dataset._inputs():  # TensorFlow has no public name for it
        yield from _nodes(part, raw)
