"""The first documents or tokens of a cache, to be repeated (Raffel et al. 2020, table 9).

    data = Data(cache="caches/c4", first_tokens=2**23, ...)
    (source,) = truncated(data, open_sources(data, vocabulary, split="train"))
    source.size                                          # 16416 examples of 511 tokens

The examples of a cache have the order of the task's, so these are the ones that the task has on the
fly (`live.truncation`). Every epoch permutes them as a whole, by arithmetic.
"""

import dataclasses
import logging

import numpy as np

from t5x_lite.data.cache.stream import Source
from t5x_lite.data.config import Data, truncation_of
from t5x_lite.errors import InputError

_logger = logging.getLogger(__name__)


def truncated(data: Data, sources: list[Source]) -> list[Source]:
    """The caches of training examples, of which the first alone are read.

    Args:
      data: the data config; where it sets neither first_documents nor first_tokens, nothing
        changes.
      sources: its caches.

    Raises:
      InputError: there are several; or it does not know documents; or the first example has more
        tokens.
    """
    for name, number in truncation_of(data).items():
        if len(sources) > 1:
            raise InputError(
                f"data.{name} leaves the first of one task's data, and data.cache mixes several: "
                "give one, or unset it"
            )
        (source,) = sources
        first = _documents(source, number) if name == "first_documents" else _tokens(source, number)
        return [dataclasses.replace(source, first=first)]
    return sources


def _documents(source: Source, number: int) -> int:
    index = source.cache.index
    if index.documents == number:
        return source.split.size
    if index.recipe.corruption or index.recipe.lengths is not None or index.baked is not None:
        raise InputError(
            f"cache {source.cache.directory} does not say which of its examples are of the first "
            f"{number} documents: write one of them with t5x-lite cache ... --data.first-documents "
            f"{number}, or set --data.first-tokens"
        )
    there = source.split.size
    if number > there:
        _logger.warning("data.first_documents is %d, and there are %d", number, there)
    return min(number, there)


def _tokens(source: Source, number: int) -> int:
    first = source.split.first_with(number, floats=source.recipe.floats)
    if not first:
        raise InputError(
            f"data.first_tokens {number} is less than the first example of cache "
            f"{source.cache.directory} has"
        )
    there = source.cache.index.splits["train"].tokens
    if first == source.split.size and number >= there + _longest(source):
        _logger.warning("data.first_tokens is %d, and the cache has %d", number, there)
    return first


def _longest(source: Source) -> int:
    """Tokens of the longest of some examples: a cache that was cut off lacks fewer."""
    some = np.arange(min(source.split.size, 1000))
    return int(source.split.counts(some).sum(1).max())
