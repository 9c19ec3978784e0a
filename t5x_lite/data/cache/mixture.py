"""Several caches without rates: mixed by the numbers of their training examples.

    Data(cache=("caches/glue_cola", "caches/glue_rte"), mixing=Mixing(maximum=65536), ...)

Caches are mixed by exact arithmetic (mixing.py), so the rates are rounded to ten-thousandths. Names
are those of the tasks that the caches were made of; no task is imported. Several caches of one
task, as of one language each, are mixed by their own numbers. Where data.task names a mixture that
has these tasks, its constant rates, limits and shared examples count here, too.
data.mixing.unlabelled needs no such name: caches say whether they hold unlabelled text.
"""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from t5x_lite.data.cache.files import Cache
from t5x_lite.data.config import Data, names_of
from t5x_lite.data.mixing import parse_sources, split_rate
from t5x_lite.data.mixtures import Member, Mixture, mixture_named
from t5x_lite.data.rates import CACHE_PERIOD, Mixing, cache_rates
from t5x_lite.errors import InputError


def each_cache(data: Data, *, split: str) -> dict[str, Data]:
    """The data of each cache alone, of those that have a split, by the name of its directory.

    Args:
      data: with data.cache.
      split: that is read.

    Raises:
      InputError: there is no data.cache, it is damaged, or two directories have one name.
    """
    texts = [data.cache] if isinstance(data.cache, str) else list(data.cache)
    if not data.cache:
        raise InputError(
            "evaluation.loss_of_each_cache needs the caches of --data.cache: data.task "
            f"{data.task} has none"
        )
    found: dict[str, Data] = {}
    for text in texts:
        directory, _ = split_rate(text)
        _, name = names_of(directory)
        if name in found:
            raise InputError(
                f"two caches are called {name}, {found[name].cache} and {directory}: "
                "evaluation.loss_of_each_cache has one name for both"
            )
        if split in Cache(directory).index.splits:
            found[name] = dataclasses.replace(data, cache=directory, mixing=Mixing())
    return found


def mixed_sources(data: Data) -> list[tuple[str, Fraction]]:
    """The caches that data.cache names, each with its share of the examples.

    Returns:
      (directory, rate) in the order given; the rates add up to 1.

    Raises:
      InputError: as `mixing.parse_sources`; or rates are given and data.mixing is set, too; or a
        cache has no training examples.
    """
    texts = [data.cache] if isinstance(data.cache, str) else list(data.cache)
    if len(texts) < 2 or any(split_rate(text)[1] is not None for text in texts):
        if data.mixing != Mixing():
            raise InputError(
                "data.mixing mixes several caches that are given without rates: take the rates out "
                "of data.cache, or leave data.mixing alone"
            )
        return parse_sources(data.cache)
    if len({text.rstrip("/") for text in texts}) < len(texts):
        raise InputError("data.cache names a directory twice: name it once")
    caches = [Cache(directory) for directory in texts]
    for cache in caches:
        if "train" not in cache.index.splits:
            raise InputError(
                f"cache {cache.directory} has no training examples, and can have no rate"
            )
    members = _members(data, texts, caches)
    found = {
        member.name: (text, cache.index.splits["train"].examples)
        for member, text, cache in zip(members, texts, caches, strict=True)
    }
    left = Mixture(members=members).without(data.mixing.leave_out)
    left = left.with_unlabelled(data.mixing.unlabelled)
    rates = cache_rates(left.rates(data.mixing, count=lambda member: found[member.name][1]))
    return [
        (found[member.name][0], Fraction(rate, CACHE_PERIOD))
        for member, rate in zip(left.members, rates, strict=True)
    ]


def _members(data: Data, texts: Sequence[str], caches: Sequence[Cache]) -> tuple[Member, ...]:
    """The tasks of caches, as the mixture has them that data.task names; their sizes are theirs."""
    tasks = [cache.index.task for cache in caches]
    named = mixture_named(data.task) if data.task and data.task not in tasks else None
    known = {} if named is None else {m.task: m for m in named.members}
    members: list[Member] = []
    for text, cache in zip(texts, caches, strict=True):
        task = cache.index.task
        several = tasks.count(task) > 1
        alone = Member(
            task=task, unlabelled=_is_unlabelled(cache), cache=text.rstrip("/") if several else ""
        )
        if several and task in known:
            raise InputError(
                f"data.task {data.task} has one rate for {task}, and {tasks.count(task)} caches "
                "are of that task: give each cache a rate, as DIRECTORY=RATE"
            )
        member = known.get(task, alone)
        members.append(dataclasses.replace(member, examples=None) if member.is_trained else alone)
    return tuple(members)


def _is_unlabelled(cache: Cache) -> bool:
    """Whether it was made of unlabelled text: that is corrupted, or has no inputs."""
    recipe = cache.index.recipe
    return bool(recipe.corruption) or tuple(recipe.outputs) == ("targets",)
