"""`t5x-lite cache`: runs a config's task once and writes its tokens, to be read without it.

Of a mixture, each task that is trained on has a cache of its own, OUTPUT/glue_cola and so on, which
training mixes again: --data.cache OUTPUT/glue_cola OUTPUT/glue_rte.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from t5x_lite.buckets.paths import data_path
from t5x_lite.config import Experiment
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import truncation_of
from t5x_lite.data.mixtures import find_mixture
from t5x_lite.errors import InputError
from t5x_lite.options import suggesting
from t5x_lite.progress import print_result
from t5x_lite.run.beam import load_driver
from t5x_lite.vocabulary.loading import load_vocabulary


@suggesting
def cache(
    experiment: Experiment,
    *,
    output: str,
    splits: Sequence[str] | None = None,
    num_workers: int = 1,
    bake: bool = False,
    runner: str = "local",
    beam_options: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Write the cache of a config's task, and print its splits.

    Of a mixture, the caches of all tasks that are trained on. The splits are a table on a terminal,
    and a line of JSON for each cache elsewhere.

    Args:
      experiment: its data are used, and its seed where randomness comes before the placeholder or
        the corruption is baked in.
      output: a new directory, here or in a bucket.
      splits: those to write; None writes all of the task that have an example.
      num_workers: processes that run the task, of the runner local.
      bake: whether whole examples are written, corrupted once and for all; by the runner local.
      runner: "local", or one of Apache Beam.
      beam_options: of Beam, such as "--project=P".

    Returns:
      What is printed, a dict for each cache.

    Raises:
      InputError: the task, its files, the vocabulary or `output` are wrong.
    """
    write: Callable[..., Any] = partial(write_cache, bake=bake, num_workers=num_workers)
    if runner != "local":
        if bake or num_workers != 1:
            raise InputError(f"--runner {runner} can have neither --bake nor --num-workers")
        for name in truncation_of(experiment.data):
            raise InputError(
                f"--runner {runner} writes the files of a task side by side, and data.{name} needs "
                "their order: leave out one of them"
            )
        driver = load_driver("t5x_lite.data.cache.making_beam", runner=runner, extras="data,beam")
        write = partial(driver.write_cache, runner=runner, options=beam_options)
    vocabulary = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    caches = {output: experiment.data}
    if find_mixture(experiment.data) is not None:
        from t5x_lite.data.live.members import trained_members  # now: TensorFlow takes seconds

        # Before anything is written: the others would have to be written anew.
        trained = trained_members(experiment.data, vocabulary, seed=experiment.seed)
        caches = {str(data_path(output) / one.member.name): one.data for one in trained}
    made = []
    for directory, data in caches.items():
        write(data, vocabulary, directory, splits=splits, seed=experiment.seed)
        made.append(summary(Cache(directory)))
        _print(made[-1])
    return made


def verify(directory: str) -> None:
    """Compare all files of a cache with their checksums, and print its splits.

    Raises:
      InputError: naming the first file that differs.
    """
    opened = Cache(directory)
    opened.verify()
    _print(summary(opened))


def _print(found: dict[str, Any]) -> None:
    """Print a cache: a table of its splits on a terminal, a line of JSON elsewhere."""
    rows = [{"split": name, **split} for name, split in found["splits"].items()]
    if sys.stdout.isatty():
        print(f"{found['cache']}: {found['task']}")
    print_result(found, rows, indent=None)


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
