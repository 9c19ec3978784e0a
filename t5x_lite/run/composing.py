"""`t5x-lite compose` and `t5x-lite merge`: deltas from directories to directories."""

import dataclasses
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from t5x_lite import trees
from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.union import Union
from t5x_lite.checkpoints import manifest, orbax_params
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.base import BASE_FILE
from t5x_lite.config.json import to_json
from t5x_lite.deltas.delta import Delta, Identity, Module
from t5x_lite.deltas.expression import Names, check, evaluate, names_in
from t5x_lite.errors import InputError
from t5x_lite.interop.directories import new_directory
from t5x_lite.options import did_you_mean
from t5x_lite.remote import local_path
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.delta_files import (
    MERGED,
    Arrays,
    Opened,
    check_base,
    digests_of,
    open_delta,
    plain,
    save,
)
from t5x_lite.run.loading import learner_of, read_experiment
from t5x_lite.trees import LazyArray

Stored = Literal["float32", "bfloat16"]

_logger = logging.getLogger(__name__)


def compose(
    expression: str,
    destination: str | Path,
    *,
    deltas: Sequence[str],
    fishers: Sequence[str] = (),
    base: str | None = None,
    allow_other_base: bool = False,
) -> None:
    """Writes the delta that an expression of others means.

    Args:
      expression: see `t5x_lite.deltas.expression`.
      destination: a new directory.
      deltas: "NAME=DIR" of each name in the expression; see `delta_files.load`.
      fishers: the same of Fisher diagonals, which `t5x-lite fisher` writes.
      base: of all deltas; None is what each recorded.
      allow_other_base: whether it may be another one than was recorded.

    Raises:
      InputError: the expression is wrong, with the column; a directory is; the bases differ; or
        the destination exists.
    """
    places = named(deltas, option="--delta")
    check(expression, places)
    if unused := sorted(places.keys() - set(names_in(expression))):
        raise InputError(f"--delta {unused[0]} is not in the expression {expression!r}")
    fisher_places = named(fishers, option="--fisher")
    if unknown := [name for name in fisher_places if name not in places]:
        raise InputError(
            f"--fisher {unknown[0]}: no --delta is called so{did_you_mean(unknown[0], places)}"
        )
    diagonals = {name: _diagonal(where) for name, where in fisher_places.items()}
    _refuse_existing(destination)
    opened = {
        name: open_delta(where, base=base, allow_other_base=allow_other_base)
        for name, where in places.items()
    }

    def materialised(name: str) -> Delta:
        return _materialised(opened[name], by_option=base is not None)

    names = Names({name: one.delta for name, one in opened.items()}, diagonals, materialised)
    made = evaluate(expression, names)
    save(made, destination, files=_files_for(made, list(opened.values())))
    _logger.info("wrote %s: %s, %s", destination, _contents(made), _in_bytes(made.nbytes))


def _contents(delta: Delta) -> str:
    """What a delta changes, in words."""
    number, named = len(delta.parts), ", ".join(_titled(module) for module in delta.config)
    arrays = f"{number:,} changed array{'' if number == 1 else 's'}"
    return f"{arrays} and the adapter{'s' * (len(delta.config) > 1)} {named}" if named else arrays


def _titled(module: Module) -> str:
    """An adapter's name, and its kind; the methods of a union."""
    members = module.members if isinstance(module, Union) else ()
    kinds = " and ".join(type(each).__name__ for each in members) or type(module).__name__
    return f"{module.name} ({kinds})"


def _in_bytes(number: int) -> str:
    """A size with three digits, in the largest unit that leaves it at 1 or more."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"


def _materialised(opened: Opened, *, by_option: bool) -> Delta:
    """A delta as sums with its base, of which it is a change then, be it another one or not."""
    delta, (where, arrays) = opened.delta, opened.base()
    _check_recorded(opened, arrays, where, skipped=by_option)
    changed = {path: arrays[path].read() for path in delta.parts if path in arrays}
    made = delta.materialise(trees.unflatten(changed))
    if not by_option:
        return made
    recorded = delta.base or Identity("", dict.fromkeys(delta.parts, ""))
    known = {path: arrays[path] for path in recorded.arrays if path in arrays}
    identity = Identity(os.path.abspath(where), digests_of(known), recorded.sources)
    return dataclasses.replace(made, base=identity)


def named(pairs: Sequence[str], *, option: str) -> dict[str, str]:
    """NAME=DIR pairs as a dict.

    Raises:
      InputError: one is no such pair, or a name comes twice.
    """
    places: dict[str, str] = {}
    for pair in pairs:
        name, equals, directory = pair.partition("=")
        if not (equals and name.isidentifier() and directory):
            raise InputError(f"{option} is NAME=DIR, such as a=work/a: got {pair!r}")
        if name in places:
            raise InputError(f"{option} {name} is given twice")
        places[name] = directory
    return places


def _refuse_existing(destination: str | Path) -> None:
    """Raises an InputError before deltas are read; `new_directory` is what decides."""
    target = Path(destination)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{destination} exists and is not empty; give another name")


def _diagonal(where: str) -> Mapping[str, Any]:
    """A Fisher diagonal by path."""
    source = Path(find_step(local_path(where, what="Fisher diagonal")))
    manifest.verify(source, "params", "files")
    arrays = orbax_params.lazy_params(source / "params")
    start = "fisher/"
    diagonal = {p.removeprefix(start): a.read() for p, a in arrays.items() if p.startswith(start)}
    if not diagonal:
        raise InputError(f"{where} holds no Fisher diagonal: `t5x-lite fisher` writes one")
    return diagonal


def _files_for(made: Delta, opened: Sequence[Opened]) -> Mapping[str, bytes]:
    """The config and the vocabulary of the delta that has the result's heads, else of the first."""
    heads = _heads(made)
    chosen = next((one for one in opened if _equal(_heads(one.delta), heads)), opened[0])
    if not chosen.files:
        return {}
    files = dict(chosen.files)
    config = plain(_config(chosen.directory, files), made.config)
    return {**files, checkpointing.CONFIG_FILE: to_json(config).encode()}


def _heads(delta: Delta) -> dict[str, np.ndarray]:
    """The arrays of heads, by path."""
    return {p: np.asarray(x) for p, x in delta.extra.items() if not p.startswith(ADAPTERS)}


def _equal(one: Mapping[str, np.ndarray], two: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(x, two[path]) for path, x in one.items())


def _config(directory: Path, files: Mapping[str, bytes]) -> Any:
    return read_experiment(directory / "files" / MERGED, files)


def merge(
    source: str | Path,
    destination: str | Path,
    *,
    step: Step = None,
    base: str | None = None,
    use: str | None = None,
    dtype: Stored = "float32",
    allow_other_base: bool = False,
) -> None:
    """Writes the checkpoint that a base and a delta are together; every command takes it.

    Modules that no kernel can hold stay modules of it. Without a change of any array, the base's
    are written as they are.

    Args:
      source: as for `delta_files.load`.
      destination: a new directory.
      step: of a work directory: its number, "best", or None for the newest.
      base: the checkpoint that it is a change of; None is the recorded one.
      use: of a run, the names of the modules, with commas between; None is all of its own.
      dtype: of the weights; the log says what bfloat16 loses.
      allow_other_base: whether `base` may be another one than was recorded.

    Raises:
      InputError: the source or its base is missing, damaged or another one, or the destination
        exists; nothing is left behind then.
    """
    with new_directory(destination) as directory:
        opened = open_delta(
            source, step=step, base=base, use=use, allow_other_base=allow_other_base
        )
        where, arrays = opened.base()
        _check_recorded(opened, arrays, where, skipped=base is not None)
        files = opened.files or _base_files(where, opened.delta)
        loss = _Rounding()
        merged = _wanted(opened, files, _merged(opened, arrays, dtype, loss))
        for name, content in files.items():
            path = directory / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        orbax_params.write_params(directory / "params", merged)
        manifest.write(directory)
    if opened.delta.config:
        _logger.info(
            "no kernel can hold %s; it stays an adapter of %s, beside the merged weights",
            ", ".join(_titled(module) for module in opened.delta.config),
            destination,
        )
    _logger.info("wrote %s: %s with %s", destination, where, _contents(opened.delta))
    if dtype == "bfloat16":
        _logger.info("%s: %s", destination, loss.summary())


def _check_recorded(opened: Opened, arrays: Arrays, where: Path, *, skipped: bool) -> None:
    """Refuses a base that was found where it was recorded and has other numbers."""
    if not skipped and where != opened.directory:
        check_base(opened, arrays, where, allowed=False)


def _base_files(where: Path, delta: Delta) -> dict[str, bytes]:
    """A base's files but its position in the data and its own base; the config has the modules."""
    files = checkpointing.step_files(where)
    left = ("data/", checkpointing.METRICS_FILE, BASE_FILE)
    kept = {name: content for name, content in files.items() if not name.startswith(left)}
    config = plain(read_experiment(where, files), delta.config)
    return {**kept, checkpointing.CONFIG_FILE: to_json(config).encode()}


def _merged(
    opened: Opened, arrays: Arrays, dtype: Stored, loss: "_Rounding"
) -> dict[str, LazyArray]:
    """All arrays by path, each made when it is written."""
    delta = opened.delta
    for path in delta.parts:
        if path not in arrays:
            raise InputError(f"the base of {opened.directory} has no array {path}")
    keeps = dtype == "float32" and not delta.parts
    wanted = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32)

    def made(path: str, array: LazyArray) -> LazyArray:
        kind = array.dtype if keeps else wanted

        def read() -> np.ndarray:
            before = array.read()
            if path not in delta.parts:
                return before.astype(kind, copy=False)
            exact = np.asarray(delta.changed(path, before, keep_float32=True))
            stored = exact.astype(kind, copy=False)
            loss.add(before.astype(np.float32), exact, stored.astype(np.float32))
            return stored

        return LazyArray(array.shape, kind, read)

    extra = {path: np.asarray(array) for path, array in delta.extra.items()}
    own = {
        path: LazyArray(x.shape, wanted, lambda x=x: x.astype(wanted)) for path, x in extra.items()
    }
    base = {p: a for p, a in arrays.items() if not p.startswith(ADAPTERS)}
    return {**{path: made(path, array) for path, array in base.items()}, **own}


def _wanted(
    opened: Opened, files: Mapping[str, bytes], arrays: Mapping[str, LazyArray]
) -> dict[str, LazyArray]:
    """The arrays that the config's model, heads and objective have.

    Raises:
      InputError: one is missing or of another shape, or the delta has one that has no place.
    """
    shapes = trees.flatten(learner_of(_config(opened.directory, files)).shapes)
    if homeless := sorted(opened.delta.extra.keys() - shapes.keys()):
        raise InputError(
            f"{opened.directory} holds {homeless[0]}, which its config has no place for: leave "
            "heads out by `without_heads(NAME)`"
        )
    if missing := sorted(shapes.keys() - arrays.keys()):
        raise InputError(
            f"{opened.directory} and its base lack {missing[0]}, which their config asks for"
        )
    for path, wanted in shapes.items():
        if tuple(arrays[path].shape) != tuple(wanted.shape):
            raise InputError(
                f"{opened.directory}: {path} has shape {tuple(arrays[path].shape)}, and its config "
                f"says {tuple(wanted.shape)}"
            )
    return {path: arrays[path] for path in shapes}


class _Rounding:
    """What storing in fewer bits loses, over all arrays that a delta changes."""

    def __init__(self) -> None:
        self._error = self._change = self._weight = 0.0

    def add(self, before: np.ndarray, exact: np.ndarray, stored: np.ndarray) -> None:
        """One array, before the change, after it, and as it is stored."""
        self._error += float(np.sum(np.square(stored - exact, dtype=np.float64)))
        self._change += float(np.sum(np.square(exact - before, dtype=np.float64)))
        self._weight += float(np.sum(np.square(exact, dtype=np.float64)))

    def summary(self) -> str:
        """One phrase for the log."""
        if not self._change:
            return "no array is changed"
        error = math.sqrt(self._error)
        return (
            f"in bfloat16 the changed arrays have a relative error of "
            f"{error / (math.sqrt(self._weight) or 1.0):.2g}, which is "
            f"{error / math.sqrt(self._change):.2g} of the delta"
        )
