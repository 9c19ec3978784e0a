"""Which entries of several arrays a sparse module trains, or a pruned model keeps, by their scores.

    choose(scores, 100)                   path -> sorted flat indices; exactly 100 entries in all

Ties go by path, then by flat index (`t5x_lite.deltas.selection`). Arrays of scores are made one
after the other, and float32 scores are at least 0.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from t5x_lite.deltas.selection import Lazy, largest
from t5x_lite.errors import InputError

Numbers = int | Mapping[str, int]
"""Of all arrays together, or of each."""
Chosen = dict[str, np.ndarray]
"""Path -> sorted flat indices; paths of which there are none are left out."""


def numbers_of(
    sizes: Mapping[str, int], density: float, *, scope: Literal["global", "per_tensor"]
) -> Numbers:
    """How many entries are chosen: round(density * entries), of all arrays or of each.

    Raises:
      InputError: none would be chosen.
    """
    total = round(density * sum(sizes.values()))
    each = {path: round(density * size) for path, size in sizes.items()}
    if not (total if scope == "global" else sum(each.values())):
        raise InputError(
            f"density {density:g} of {sum(sizes.values())} entries chooses none: make it higher"
        )
    return total if scope == "global" else each


def share(numbers: Numbers, part: int, of: int) -> Numbers:
    """The entries that are chosen after some of several rounds: round(number * part / of)."""
    if isinstance(numbers, int):
        return round(numbers * part / of)
    return {path: round(number * part / of) for path, number in numbers.items()}


def choose(
    scores: Lazy, numbers: Numbers, *, taken: Mapping[str, np.ndarray] | None = None
) -> Chosen:
    """The entries of highest score, besides those that are taken already.

    Args:
      scores: path -> what makes its scores.
      numbers: how many are chosen when those that are taken are counted, too.
      taken: path -> sorted flat indices; all of them are among the result.
    """
    had = dict(taken or {})
    if isinstance(numbers, int):
        return _chosen(scores, numbers, had)
    picked: Chosen = {}
    for path, number in numbers.items():
        own = {path: had[path]} if path in had else {}
        picked |= _chosen({path: scores[path]}, number, own)
    return picked


def _chosen(scores: Lazy, number: int, had: Mapping[str, np.ndarray]) -> Chosen:
    left = {path: _without(make, had.get(path)) for path, make in scores.items()}
    more = number - sum(map(len, had.values()))
    picked = dict(had)
    for path, _, places in largest(left, more):
        if not places.size:
            continue
        if path in had:
            places = _among(scores[path]().size, had[path])[places]
        picked[path] = np.union1d(had[path], places) if path in had else places
    return picked


def _without(make: Callable[[], np.ndarray], had: np.ndarray | None) -> Callable[[], np.ndarray]:
    """What makes the scores that are left."""
    return make if had is None else lambda: np.delete(make().reshape(-1), had)


def _among(size: int, had: np.ndarray) -> np.ndarray:
    """The flat indices that are not taken."""
    free = np.ones(size, bool)
    free[had] = False
    return np.flatnonzero(free)


def kept(
    scores: Lazy,
    density: float,
    *,
    scope: Literal["global", "per_tensor"],
    before: Mapping[str, np.ndarray] | None = None,
    structure: Literal["entries", "rows", "columns"] = "entries",
) -> dict[str, np.ndarray]:
    """The masks of the entries, or rows or columns, of highest score among those that are left.

    Args:
      scores: path -> what makes its scores.
      density: share of all entries that is left.
      scope: of all arrays together, or of each.
      before: booleans by path of what was left; None is all.
      structure: of rows and columns the norm of their scores counts.
    """
    groups = {path: _grouped(make, structure) for path, make in scores.items()}
    shapes = {path: make().shape for path, make in groups.items()}
    left = {
        path: np.ones(shape, bool) if before is None else _any(before[path], structure)
        for path, shape in shapes.items()
    }
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    numbers = numbers_of(sizes, density, scope=scope)
    # What is dropped has no score, and one that is left has one above 0.
    alive = {
        path: (lambda path=path, make=make: np.where(left[path], make() + _TINY, np.float32(0)))
        for path, make in groups.items()
    }
    chosen = choose(alive, numbers)
    masks = {}
    for path, make in scores.items():
        flat = np.zeros(sizes[path], bool)
        flat[chosen.get(path, np.zeros(0, np.int64))] = True
        mask = flat.reshape(shapes[path]) & left[path]
        masks[path] = np.broadcast_to(_spread(mask, structure), make().shape)
    return masks


_TINY = np.float32(1e-30)
_AXES = {"rows": -1, "columns": -2}


def _grouped(make: Callable[[], np.ndarray], structure: str) -> Callable[[], np.ndarray]:
    if structure == "entries":
        return make
    return lambda: np.linalg.norm(make(), axis=_AXES[structure]).astype(np.float32)


def _any(mask: np.ndarray, structure: str) -> np.ndarray:
    return mask if structure == "entries" else np.asarray(mask.any(axis=_AXES[structure]))


def _spread(mask: np.ndarray, structure: str) -> np.ndarray:
    return mask if structure == "entries" else np.expand_dims(mask, _AXES[structure])
