"""`t5x-lite cache`: runs a config's task once and writes its tokens, to be read without it."""

import json
from collections.abc import Sequence

from t5x_lite.config import Experiment
from t5x_lite.data.cache_files import Cache
from t5x_lite.data.caching import write_cache
from t5x_lite.data.vocabulary import load_vocabulary


def cache(
    experiment: Experiment,
    *,
    output: str,
    splits: Sequence[str] | None = None,
    num_workers: int = 1,
    bake: bool = False,
) -> None:
    """Writes the cache of a config's task, and prints what is in it as one line of JSON.

    Args:
      experiment: its data are used, and its seed where randomness comes before the placeholder or
        the corruption is baked in.
      output: a new directory.
      splits: those to write; None writes all of the task that have an example.
      num_workers: processes that run the task.
      bake: whether whole examples are written, corrupted once and for all.

    Raises:
      InputError: the task, its files, the vocabulary or `output` are wrong.
    """
    vocabulary = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    write_cache(
        experiment.data,
        vocabulary,
        output,
        splits=splits,
        seed=experiment.seed,
        bake=bake,
        num_workers=num_workers,
    )
    print(json.dumps(summary(Cache(output))))


def verify(directory: str) -> None:
    """Compares all files of a cache with their checksums, and prints what is in it.

    Raises:
      InputError: naming the first file that differs.
    """
    opened = Cache(directory)
    opened.verify()
    print(json.dumps(summary(opened)))


def summary(opened: Cache) -> dict:
    """What a cache holds, for people: splits with their examples, tokens, shards and bytes."""
    splits = {
        name: {
            "examples": split.examples,
            "tokens": split.tokens,
            "shards": len(split.shards),
            "bytes": sum(shard.size for shard in split.shards) + split.lengths.size,
        }
        for name, split in opened.index.splits.items()
    }
    return {"cache": str(opened.directory), "task": opened.index.task, "splits": splits}
