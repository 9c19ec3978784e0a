"""Directories with deltas (changes of a base model), and checkpoints read as deltas.

    work/abc/
      params/               arrays of the changes: parts/0/a, parts/0/b, ...; extra/heads/...
      files/delta.json      path and kind of each change, and the configs of adapters
      files/base.json       path of the base model, and a digest of each of its arrays
      files/merged/         config.json, vocabulary/ and huggingface/ of the merged checkpoint
      manifest.json

A checkpoint of a run is also read as a delta: adapters that can be merged become changes of
kernels, and trained model arrays become differences from the base.
"""

import dataclasses
import functools
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.delta import Delta, Identity, difference
from t5x_lite.adapters.delta_parts import (
    Dense,
    Dora,
    Fastfood,
    LowRank,
    Mask,
    Part,
    Replace,
    Scale,
    Several,
    Sparse,
    Subspace,
)
from t5x_lite.adapters.grammar import write_module
from t5x_lite.checkpoints import items, reading
from t5x_lite.checkpoints.init import BASE_FILE, Base, Init, Leaf, digests
from t5x_lite.checkpoints.reading import DELTA_FILE
from t5x_lite.config import Experiment
from t5x_lite.config.file import encode, from_json, to_json
from t5x_lite.core import renames, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import new_directory, plain_json
from t5x_lite.core.remote import local_path
from t5x_lite.core.trees import LazyArray
from t5x_lite.inference.loading import Step, find_step, learner_of, read_experiment, using
from t5x_lite.objectives.learner import Learner

MERGED = "merged/"
"""Folder below files/ with the files of the merged checkpoint (base plus changes)."""

_VERSION = 1
_MODEL = ("model/", "towers/")
_KINDS: Mapping[str, type[Part]] = {
    kind.__name__.lower(): kind
    for kind in (Dense, Sparse, LowRank, Scale, Dora, Replace, Several, Mask, Fastfood)
}

_logger = logging.getLogger(__name__)

Arrays = Mapping[str, LazyArray]
Stored = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Opened:
    """Opened delta (changes of a base model), with a function that reads its base model.

    Attributes:
      directory: checkpoint directory of the delta.
      delta: changes of the base model.
      files: files of the model with the delta applied, such as config.json; {} uses the base's
        files.
      base: function that returns the base's directory and its arrays by path.
    """

    directory: Path
    delta: Delta
    files: Mapping[str, bytes]
    base: Callable[[], tuple[Path, Arrays]]


def load(
    directory: str | os.PathLike[str],
    *,
    step: Step = None,
    base: str | os.PathLike[str] | None = None,
    allow_other_base: bool = False,
) -> Delta:
    """Read a delta (changes of a base model) from a directory.

    Args:
      directory: output of `save` or `t5x-lite compose`; or a work directory or checkpoint directory
        of a run. Without `base`, the run must have trained adapters or only some model arrays.
      step: step number in a work directory, "best", or None for the newest checkpoint.
      base: checkpoint that the delta changes; None uses the recorded base.
      allow_other_base: True to only log a warning if the base is not the recorded base.

    Raises:
      InputError: if the directory is damaged or not a delta, or the base is missing or is not the
        recorded base.
    """
    return open_delta(directory, step=step, base=base, allow_other_base=allow_other_base).delta


def save(
    delta: Delta,
    directory: str | os.PathLike[str],
    *,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a delta (changes of a base model) as a new directory, atomically.

    Args:
      delta: delta with arrays on the host or on devices.
      directory: output directory, which must not exist.
      files: config.json and vocabulary/... of the model with the delta applied; None: the base's
        files.

    Raises:
      InputError: if the directory exists or cannot be written.
    """
    target = Path(directory)
    with new_directory(target) as made:
        contents = {MERGED + name: content for name, content in (files or {}).items()}
        contents[DELTA_FILE] = json.dumps(_described(delta), indent=1).encode()
        if delta.base is not None:
            contents[BASE_FILE] = _base_file(delta.base, target).content()
        arrays = {
            f"parts/{number}/{name}": array
            for number, path in enumerate(sorted(delta.parts))
            for name, array in delta.parts[path].arrays().items()
        } | {f"extra/{path}": array for path, array in delta.extra.items()}
        # Orbax writes no tree without arrays.
        arrays = arrays or {"empty": np.zeros(1, np.float32)}
        items.write_step(made, contents, {p: _lazy(x) for p, x in arrays.items()})


def open_delta(
    directory: str | os.PathLike[str],
    *,
    step: Step = None,
    base: str | os.PathLike[str] | None = None,
    use: str | None = None,
    allow_other_base: bool = False,
) -> Opened:
    """Open a saved delta (changes of a base model), or a checkpoint with trained adapters."""
    source = Path(find_step(local_path(os.fspath(directory), what="checkpoint"), step=step))
    items.verify(source, "params", "files")
    other = None if base is None else _base_at(base)
    is_delta = (source / "files" / DELTA_FILE).is_file()
    if is_delta and use is not None:
        raise InputError(
            f"checkpoint {source} is a delta, so its adapters cannot be chosen one by one; give "
            "the checkpoint of the run that trained the adapters"
        )
    opened = _of_delta(source, other) if is_delta else _of_run(source, other, use)
    if other is not None:
        where, _ = other
        arrays = opened.base()[1]
        check_base(opened, arrays, where, allowed=allow_other_base)
    return opened


def _base_at(base: str | os.PathLike[str]) -> tuple[Path, Arrays]:
    where = Path(find_step(local_path(os.fspath(base), what="checkpoint")))
    items.verify(where, "params", "files")
    return where, reading.lazy_params(where)


def check_base(opened: Opened, arrays: Arrays, where: Path, *, allowed: bool) -> None:
    """Raise InputError (or warn, if `allowed`) if a base model differs from the recorded one."""
    recorded = opened.delta.base
    if recorded is None:
        return
    known = {path: array for path, array in arrays.items() if path in recorded.arrays}
    other = Identity(os.path.abspath(where), digests_of(known))
    wrong = sorted(p for p in recorded.arrays if recorded.arrays[p] != other.arrays.get(p))
    if not wrong:
        return
    text = (
        f"{where} is not the base model of {opened.directory}: the array {wrong[0]} differs "
        f"(digest {other.digest[:16]}, but the recorded base has {recorded.digest[:16]})"
    )
    if not allowed:
        raise InputError(
            f"wrong base model: {text}; give the recorded base model, or set --allow-other-base"
        )
    _logger.warning(
        "using a base model that differs from the recorded base model, because --allow-other-base "
        "is set: %s",
        text,
    )


def digests_of(arrays: Arrays) -> dict[str, str]:
    """Return a digest of each array of a base model in float32, by path of the array."""
    return {
        path: digests({path: array.read().astype(np.float32)})[path]
        for path, array in arrays.items()
    }


def _of_delta(source: Path, other: tuple[Path, Arrays] | None) -> Opened:
    files = items.read_files(source / "files")
    arrays = items.lazy_params(source / "params")
    try:
        content = plain_json(files[DELTA_FILE])
        if content["version"] != _VERSION:
            raise ValueError(f"the format version is {content['version']}, but must be {_VERSION}")
        parts = {
            str(path): _part_of(described, arrays, f"parts/{number}/")
            for number, (path, described) in enumerate(sorted(content["parts"].items()))
        }
        named = [json.dumps(module) for module in content["modules"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"delta {source}: files/{DELTA_FILE} is damaged ({error})") from error
    where = f"{source}/files/{DELTA_FILE}"
    config = tuple(from_json(text, source=where) for text in named)
    start = "extra/"
    extra = {p.removeprefix(start): a.read() for p, a in arrays.items() if p.startswith(start)}
    today = renames.current_paths([*parts, *extra])
    parts = {today[path]: part for path, part in parts.items()}
    extra = {today[path]: array for path, array in extra.items()}
    recorded = Base.read(files, where=source)
    identity = None if recorded is None else _identity(recorded)
    delta = Delta(parts, extra, identity, config)
    merged = {
        name.removeprefix(MERGED): text for name, text in files.items() if name.startswith(MERGED)
    }
    reader = functools.partial(_base_of, source, identity, other)
    return Opened(source, delta, merged, reader)


def _of_run(source: Path, other: tuple[Path, Arrays] | None, use: str | None) -> Opened:
    files = reading.step_files(source)
    experiment = read_experiment(source, files)
    own: Arrays = items.lazy_params(source / "params")
    if use is not None:
        experiment = using(experiment, use, where=source)
        names = tuple(f"{ADAPTERS}{each.name}/" for each in experiment.adapters.modules)
        own = {p: a for p, a in own.items() if not p.startswith(ADAPTERS) or p.startswith(names)}
    learner = learner_of(experiment)
    recorded = Base.read(files, where=source)
    if recorded is None and other is None:
        if not learner.adapters:
            raise InputError(
                f"checkpoint {source} is a full model, not a delta; pass --base DIR to use its "
                "difference from that base"
            )
        # Adapters next to a model that was saved whole: the model is the base.
        other = source, {p: a for p, a in own.items() if not p.startswith(ADAPTERS)}
        own = {p: a for p, a in own.items() if not p.startswith(_MODEL)}
    identity = None if recorded is None else _identity(recorded)
    reader = functools.partial(_base_of, source, identity, other)
    delta = _delta_of_run(source, learner, own, identity, reader)
    kept = {name: content for name, content in files.items() if goes_along(name)}
    config = plain(experiment, delta.config)
    kept[reading.CONFIG_FILE] = to_json(config).encode()
    return Opened(source, delta, kept, reader)


def _delta_of_run(
    source: Path,
    learner: Learner,
    own: Arrays,
    identity: Identity | None,
    reader: Callable[[], tuple[Path, Arrays]],
) -> Delta:
    parts: dict[str, Part] = {}
    rest: tuple[Adapter, ...] = ()
    if learner.adapters:
        below = () if identity is None else identity.arrays
        if any(path.startswith(ADAPTERS) for path in below):  # modules that the base had, frozen
            own = {**{p: a for p, a in reader()[1].items() if p.startswith(ADAPTERS)}, **own}
        named = {
            p.removeprefix(ADAPTERS): a.read() for p, a in own.items() if p.startswith(ADAPTERS)
        }
        parts, rest = learner.delta_form(trees.unflatten(named))
        _check_stored(source, learner, parts)
    stay = tuple(f"{ADAPTERS}{adapter.name}/" for adapter in rest)
    extra, trained = {}, []
    for path, array in own.items():
        if path.startswith(_MODEL):
            trained.append(path)
        elif not path.startswith(ADAPTERS) or path.startswith(stay):
            extra[path] = array.read()
    if identity is not None and not trained:
        return Delta(parts, extra, identity, rest)
    where, base = reader()
    compared = {p: a for p, a in base.items() if p.startswith(_MODEL)}
    if identity is not None:
        compared = {p: a for p, a in compared.items() if p not in identity.arrays}
    whole = Identity(os.path.abspath(where), digests_of(compared))
    for path in trained:
        if path not in base:
            raise InputError(
                f"checkpoint {source}: the base model {where} has no array {path}, so the change "
                "of this array cannot be computed"
            )
        if (part := difference(path, own[path].read(), base[path].read())) is not None:
            parts[path] = part.then(parts[path]) if path in parts else part
    if identity is not None:
        arrays = {**identity.arrays, **whole.arrays}
        whole = Identity(identity.checkpoint, arrays, identity.sources)
    return Delta(parts, extra, whole, rest)


def _check_stored(source: Path, learner: Learner, parts: Mapping[str, Part]) -> None:
    """Raise InputError if an adapter changes an array that layers share."""
    stored = trees.flatten(learner.shapes)
    for path in parts:
        if path not in stored or any(view.mentions(path) for view in learner.views):
            raise InputError(
                f"checkpoint {source}: an adapter changes the array {path}, which is shared with "
                "another array; a delta cannot store a change of a shared array"
            )


def _base_of(
    source: Path, identity: Identity | None, other: tuple[Path, Arrays] | None
) -> tuple[Path, Arrays]:
    if other is None:
        recorded = reading.base_directory(source)
        if recorded is None:
            raise InputError(f"delta {source} does not record its base model; give --base DIR")
        where = Path(recorded)
        arrays: Arrays = reading.lazy_params(where)
    else:
        where, arrays = other
    if identity is None or not identity.sources:
        return where, arrays
    renamed = set(identity.sources.values())
    kept = {p: a for p, a in arrays.items() if p not in renamed or p in identity.arrays}
    ours = {p: arrays[theirs] for p, theirs in identity.sources.items() if theirs in arrays}
    return where, {**kept, **ours}


def _identity(base: Base) -> Identity:
    arrays = {path: leaf.digest for path, leaf in base.arrays.items()}
    sources = {path: leaf.path for path, leaf in base.arrays.items() if leaf.path != path}
    return Identity(base.checkpoint, arrays, sources)


def goes_along(name: str) -> bool:
    """Return True if a file of a checkpoint, such as its vocabulary, is copied when merging."""
    return name.startswith((f"{reading.VOCABULARY_DIRECTORY}/", "huggingface/"))


def _base_file(identity: Identity, target: Path) -> Base:
    leaves = {
        path: Leaf(identity.sources.get(path, path), digest)
        for path, digest in identity.arrays.items()
    }
    relative = ""
    if os.path.isabs(identity.checkpoint):
        relative = os.path.relpath(identity.checkpoint, os.path.abspath(target))
    return Base(identity.checkpoint, relative, leaves)


def plain(experiment: Experiment, modules: Sequence[Any]) -> Experiment:
    """Return a run's config with the given adapters, and with defaults for `train` and `init`."""
    adapters = Adapters(add=tuple(map(write_module, modules)))
    return dataclasses.replace(experiment, adapters=adapters, train=(), init=Init())


def _described(delta: Delta) -> dict[str, Any]:
    parts = {path: _description(part) for path, part in sorted(delta.parts.items())}
    modules = [encode(module, where=module.name) for module in delta.config]
    return {"version": _VERSION, "parts": parts, "modules": modules}


def _description(part: Part) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": type(part).__name__.lower()}
    match part:
        case Several(parts=parts):
            described["parts"] = [_description(one) for one in parts]
        case Dora(scale=scale, relative=relative):
            described |= {"scale": float(scale), "relative": relative}
        case LowRank(scale=scale):
            described["scale"] = float(scale)
        case Scale(axis=axis):
            described["axis"] = axis
        case Sparse(size=size) | Mask(size=size):
            described["shape"] = list(size)
        case Fastfood(of=space):
            described["of"] = {**dataclasses.asdict(space), "shape": list(space.shape)}
    return described


def _part_of(described: Mapping[str, Any], arrays: Arrays, prefix: str) -> Part:
    kind = _KINDS[described["kind"]]
    if kind is Several:
        return Several(
            tuple(
                _part_of(one, arrays, f"{prefix}{number}_")
                for number, one in enumerate(described["parts"])
            )
        )
    start = len(prefix)
    own = {p[start:]: a.read() for p, a in arrays.items() if p.startswith(prefix)}
    options: dict[str, Any] = {
        n: described[n] for n in ("scale", "axis", "relative") if n in described
    }
    if kind in (Sparse, Mask):
        options["size"] = tuple(int(size) for size in described["shape"])
    if kind is Fastfood:
        space = described["of"]
        options["of"] = Subspace(**{**space, "shape": tuple(map(int, space["shape"]))})
    return kind(**own, **options)


def _lazy(array: Any) -> LazyArray:
    host = np.asarray(array)
    return LazyArray(host.shape, host.dtype, lambda: host)


def recorded_base(opened: Opened, *, by_option: bool) -> tuple[Path, Arrays]:
    """Return the checkpoint directory of a delta's base model, and its arrays by path.

    Args:
      opened: opened delta.
      by_option: True if the base was given by an option, and so is already checked.

    Raises:
      InputError: if the base model at the recorded path has changed.
    """
    where, arrays = opened.base()
    if not by_option and where != opened.directory:
        check_base(opened, arrays, where, allowed=False)
    return where, arrays


def materialised(opened: Opened, *, by_option: bool) -> Delta:
    """Return the delta with each change as a dense difference from the base model's array."""
    delta, (where, arrays) = opened.delta, recorded_base(opened, by_option=by_option)
    changed = {path: arrays[path].read() for path in delta.parts if path in arrays}
    made = delta.materialise(trees.unflatten(changed))
    if not by_option:
        return made
    recorded = delta.base or Identity("", dict.fromkeys(delta.parts, ""))
    known = {path: arrays[path] for path in recorded.arrays if path in arrays}
    identity = Identity(os.path.abspath(where), digests_of(known), recorded.sources)
    return dataclasses.replace(made, base=identity)


def files_for(made: Delta, opened: Sequence[Opened]) -> Mapping[str, bytes]:
    """Return the config and vocabulary files for a composed delta."""
    heads = _heads(made)
    chosen = next((one for one in opened if _equal(_heads(one.delta), heads)), opened[0])
    if not chosen.files:
        return {}
    files = dict(chosen.files)
    config = plain(_merged_config(chosen.directory, files), made.config)
    return {**files, reading.CONFIG_FILE: to_json(config).encode()}


def _heads(delta: Delta) -> dict[str, np.ndarray]:
    return {p: np.asarray(x) for p, x in delta.extra.items() if not p.startswith(ADAPTERS)}


def _equal(one: Mapping[str, np.ndarray], two: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(x, two[path]) for path, x in one.items())


def _merged_config(directory: Path, files: Mapping[str, bytes]) -> Any:
    return read_experiment(directory / "files" / MERGED, files)


def base_files(where: Path, delta: Delta) -> dict[str, bytes]:
    """Return the files of a base model, with a delta's adapters added to config.json."""
    files = reading.step_files(where)
    left = ("data/", reading.METRICS_FILE, BASE_FILE)
    kept = {name: content for name, content in files.items() if not name.startswith(left)}
    config = plain(read_experiment(where, files), delta.config)
    return {**kept, reading.CONFIG_FILE: to_json(config).encode()}


class Rounding:
    """Sum of the rounding errors when changed arrays are stored in a smaller data type."""

    def __init__(self) -> None:
        self._error = self._change = self._weight = 0.0

    def add(self, before: np.ndarray, exact: np.ndarray, stored: np.ndarray) -> None:
        """Add the rounding error of one array."""
        self._error += float(np.sum(np.square(stored - exact, dtype=np.float64)))
        self._change += float(np.sum(np.square(exact - before, dtype=np.float64)))
        self._weight += float(np.sum(np.square(exact, dtype=np.float64)))

    def summary(self) -> str:
        """Return the relative rounding error as a phrase for the log."""
        if not self._change:
            return "the delta changes no array"
        error = math.sqrt(self._error)
        return (
            "in bfloat16, the changed arrays have a relative rounding error of "
            f"{error / (math.sqrt(self._weight) or 1.0):.2g}, which is "
            f"{error / math.sqrt(self._change):.2g} of the change"
        )


def merged(
    opened: Opened, arrays: Arrays, files: Mapping[str, bytes], *, dtype: Stored, loss: Rounding
) -> dict[str, LazyArray]:
    """Return the arrays of the merged checkpoint: the base model with the delta's changes.

    Raises:
      InputError: if an array is missing, has a wrong shape, or is not defined by the config.
    """
    return _that_config_has(opened, files, _merged(opened, arrays, dtype, loss))


def _merged(opened: Opened, arrays: Arrays, dtype: Stored, loss: Rounding) -> dict[str, LazyArray]:
    delta = opened.delta
    for path in delta.parts:
        if path not in arrays:
            raise InputError(
                f"delta {opened.directory} changes the array {path}, but its base model has no "
                "such array"
            )
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


def _that_config_has(
    opened: Opened, files: Mapping[str, bytes], arrays: Mapping[str, LazyArray]
) -> dict[str, LazyArray]:
    shapes = trees.flatten(learner_of(_merged_config(opened.directory, files)).shapes)
    if homeless := sorted(opened.delta.extra.keys() - shapes.keys()):
        raise InputError(
            f"delta {opened.directory} has the parameter {homeless[0]}, but the config of the "
            "delta does not define this parameter; remove heads by `without_heads(NAME)` in "
            "`t5x-lite compose`"
        )
    if missing := sorted(shapes.keys() - arrays.keys()):
        raise InputError(
            f"the config of delta {opened.directory} has the parameter {missing[0]}, but neither "
            "the delta nor its base model contains this parameter"
        )
    for path, wanted in shapes.items():
        if tuple(arrays[path].shape) != tuple(wanted.shape):
            raise InputError(
                f"delta {opened.directory}: the array {path} has the shape "
                f"{tuple(arrays[path].shape)}, but the config requires the shape "
                f"{tuple(wanted.shape)}"
            )
    return {path: arrays[path] for path in shapes}
