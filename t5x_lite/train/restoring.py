"""The work directory of a run, and its initial state: its newest checkpoint or other weights.

Work directory of a run.

    config.json  run.json  vocabulary/  checkpoints/  metrics.jsonl  samples.jsonl  tensorboard/

Objects in a bucket (gs://bucket/run) cannot be appended to. So growing files (metrics.jsonl,
samples.jsonl, classes.jsonl, TensorBoard's events) are written to a temporary local directory, and
copied to the bucket at every checkpoint and at the end.

Initial state of a run: the newest complete checkpoint, the weights of `init`, or random weights.

A checkpoint also has the position in the data. For a cache, all processes share one position,
data/position, so any number of processes can resume. For data that are read on the fly, each
process has its own position, data/process_0 and so on, so the number of processes must stay the
same.
"""

import contextlib
import dataclasses
import fcntl
import functools
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from t5x_lite import config
from t5x_lite import config as configs
from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import BASE_FILE, Base, InitRules, part_of, summary
from t5x_lite.checkpoints.reading import Checkpoints
from t5x_lite.config import Experiment
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core import remote, tied_parameters, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.tracking import RUN_FILE, add_start
from t5x_lite.core.trees import Params
from t5x_lite.data.vocabularies.added_tokens import (
    BYTES_NAME,
    LAYOUT_NAME,
    MODEL_NAME,
    SPM_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    WORDPIECE_NAME,
)
from t5x_lite.data.vocabularies.byte_level import read_spm
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.inference import loading
from t5x_lite.inference.loading import find_step, learner_of, read_experiment, with_float32_base
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import is_encoder
from t5x_lite.models.heads import HEADS, as_before, by_name
from t5x_lite.models.vector_heads import TOWERS, as_model, in_tower
from t5x_lite.nn.slots import bind, split
from t5x_lite.objectives.learner import Learner
from t5x_lite.train.step import TrainState

_logger = logging.getLogger(__name__)


PHASES = "phases"
"""Directory name for the work directories of earlier phases (`train.phases`)."""

_APPENDED = ("metrics.jsonl", "samples.jsonl", "classes.jsonl")
_VOCABULARY_FILES = (
    MODEL_NAME,
    BYTES_NAME,
    WORDPIECE_NAME,
    TOKENIZER_NAME,
    TOKENIZER_CONFIG_NAME,
)


@dataclasses.dataclass(frozen=True)
class WorkDirectory:
    """Work directory of a run.

    Attributes:
      path: the work directory, a local path or a path in a bucket.
      local: local directory with the files of the run; equal to `path` if `path` is local.
      sizes: file name -> size in bytes when the local file was last copied to the bucket.
      locks: file descriptors of the lock that excludes other runs.
    """

    path: AnyPath
    local: Path
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    locks: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def open(cls, workdir: str) -> "Iterator[WorkDirectory]":
        """Open a work directory for the `with` block; it need not exist yet."""
        if not workdir:
            raise InputError("no work directory is set; pass --workdir DIR")
        path = remote.open_path(workdir)
        if isinstance(path, Path):
            found = cls(path, path)
            try:
                yield found
            finally:
                for descriptor in found.locks:
                    os.close(descriptor)
            return
        with tempfile.TemporaryDirectory(prefix="t5x_lite-") as directory:
            found = cls(path, Path(directory))
            for name in _APPENDED:
                if (path / name).exists():
                    (found.local / name).write_bytes((path / name).read_bytes())
            try:
                yield found
            except BaseException:
                found.copy()
                raise
            found.copy(last=True)

    def copy(self, *, last: bool = False) -> None:
        """Copy changed files of the work directory to its bucket; do nothing if it is local.

        If a file cannot be written, a warning is logged, and the file is copied again at the next
        checkpoint.
        """
        if self.path == self.local or jax.process_index():
            return
        for name in remote.files_below(self.local):
            content = (self.local / name).read_bytes()
            if self.sizes.get(name) == len(content):
                continue
            try:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).write_bytes(content)
            except Exception as error:  # the store's client can raise any exception
                said = f"{self.path / name} could not be written ({' '.join(str(error).split())})"
                if last:
                    raise RuntimeError(
                        f"the upload of the work directory is incomplete: {said}; checkpoints "
                        "that were saved are kept"
                    ) from error
                _logger.warning(
                    "the upload of the work directory is incomplete: %s; retrying at the next "
                    "checkpoint",
                    said,
                )
                continue
            self.sizes[name] = len(content)

    def check(self, experiment: Experiment) -> None:
        """Raise InputError unless the directory is new or has a run of the same experiment."""
        self.lock()
        saved = self.path / checkpointing.CONFIG_FILE
        earlier = self.earlier()
        if earlier is not None:
            configs.check_same_experiment(earlier, experiment, str(self.path))
        elif self.path.exists() and not self.path.is_dir():
            raise InputError(f"workdir {self.path} is not a directory")
        # A run that was killed while writing its first file leaves a hidden temporary file.
        elif self.path.exists() and any(
            p.name[:1] != "." and p.name != PHASES for p in self.path.iterdir()
        ):
            raise InputError(
                f"workdir {self.path} has other files but no {saved.name}; use an empty directory"
            )

    def earlier(self) -> Experiment | None:
        """Return the experiment of the run in this directory, or None for a new directory."""
        saved = self.path / checkpointing.CONFIG_FILE
        if not saved.exists():
            return None
        # Not loaded as a config, which would make the project around it importable.
        try:
            text = saved.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"file {saved} cannot be read: {error}") from error
        return from_json(text, source=str(saved))

    def check_vocabulary(self, vocabulary: Vocabulary) -> Vocabulary:
        """Return the vocabulary of the run; raise InputError if its file has changed."""
        saved = self.path / checkpointing.VOCABULARY_DIRECTORY
        if not holds_another(saved, vocabulary):
            return vocabulary
        if vocabulary.model_path.name == SPM_NAME:
            earlier = read_spm(vocabulary.model_path, compose=False)
            if not holds_another(saved, earlier):
                return earlier
        raise InputError(
            f"workdir {self.path} was created with a vocabulary that differs from "
            f"{vocabulary.model_path}; restore the old vocabulary ({saved} is a copy), or use "
            "another --workdir"
        )

    def write(self, experiment: Experiment, vocabulary: Vocabulary) -> None:
        """Create the directory, and write its config and vocabulary."""
        if jax.process_index():
            return
        files = {
            f"{checkpointing.VOCABULARY_DIRECTORY}/{n}": c for n, c in vocabulary.files().items()
        }
        content = {checkpointing.CONFIG_FILE: to_json(experiment).encode(), **files}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            for name, data in content.items():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                remote.write_whole(self.path / name, data)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise InputError(f"workdir {self.path} cannot be written ({reason})") from error

    def add_start(self, *, step: int, devices: str) -> None:
        """Record this start of the run in run.json; only warn if that fails."""
        if jax.process_index():
            return
        try:
            content = add_start(self.path, step=step, devices=devices)
            remote.write_whole(self.path / RUN_FILE, content)
        except OSError as error:
            _logger.warning("file %s cannot be written (%s)", self.path / RUN_FILE, error)

    def lock(self) -> None:
        """Lock a local directory against other runs, until this run ends."""
        if self.locks or jax.process_index() or self.path != self.local or not self.path.is_dir():
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise InputError(
                f"workdir {self.path} is in use by another training process; wait until it ends, "
                "or use another --workdir"
            ) from error
        except OSError as error:
            _logger.debug("using %s without a lock, because locking failed: %s", self.path, error)
        self.locks.append(descriptor)


def holds_another(directory: AnyPath, vocabulary: Vocabulary) -> bool:
    """Return True if a directory has a vocabulary that differs from `vocabulary`."""
    paths = [directory / name for name in _VOCABULARY_FILES]
    there = {path.name: path.read_bytes() for path in paths if path.exists()}
    own = {name: content for name, content in vocabulary.files().items() if name != LAYOUT_NAME}
    if not there:
        return False
    if there != own:
        is_same_file = there.get(WORDPIECE_NAME) == getattr(vocabulary, "model_bytes", None)
        if not isinstance(vocabulary, Tokenizer) or not is_same_file:
            return True
        return not vocabulary.has_the_ids_of(Tokenizer(str(directory / WORDPIECE_NAME)))
    # Added tokens have ids; the layout only affects how special tokens are read.
    saved = directory / LAYOUT_NAME
    saved_reading = _reading(saved.read_bytes() if saved.exists() else b"{}")
    return saved_reading != _reading(vocabulary.files().get(LAYOUT_NAME, b"{}"))


def _reading(content: bytes) -> object:
    try:
        return {name: value for name, value in json.loads(content).items() if name != "layout"}
    except (ValueError, AttributeError, RecursionError):
        return content


_SAME_RUN = ("model", "objective", "heads", "adapters", "train", "optimizer", "seed")
"""Fields of an Experiment that must be equal in all checkpoints of a run."""
_POSITION = "data/position"


def check_init(experiment: Experiment, vocabulary: Vocabulary) -> AnyPath:
    """Return the initial checkpoint of a run; raise InputError if its vocabulary differs."""
    step = find_step(experiment.init.checkpoint, step=experiment.init.step)
    trained = read_experiment(step, checkpointing.step_files(step))
    _check_family(experiment, trained.model, where=step)
    saved = step / "files" / checkpointing.VOCABULARY_DIRECTORY
    if holds_another(saved, vocabulary):
        raise InputError(
            f"the vocabulary {experiment.data.vocabulary} differs from the vocabulary of "
            f"checkpoint {step}; use --data.vocabulary {saved}"
        )
    extra_ids = trained.data.extra_ids
    # A tokenizer has no sentinels, even if its config has extra_ids.
    if not isinstance(vocabulary, Tokenizer) and extra_ids != vocabulary.extra_ids:
        raise InputError(
            f"data.extra_ids is {vocabulary.extra_ids}, but {extra_ids} in checkpoint {step}; set "
            f"--data.extra-ids {extra_ids}"
        )
    return step


def _check_family(experiment: Experiment, model: ModelConfig, *, where: AnyPath) -> None:
    ours, init = experiment.model, experiment.init
    if init.rename or init.take or init.fresh or not (is_encoder(ours) or is_encoder(model)):
        return
    if isinstance(model, type(ours)) or isinstance(ours, type(model)):
        return
    theirs, own = type(model).__name__, type(ours).__name__
    remedy = (
        "pass --model init to take the checkpoint's family and sizes"
        if is_encoder(ours) and is_encoder(model)
        else f"use a config for a {theirs}, or `t5x-lite glue` or `t5x-lite finetune`, which "
        "take any checkpoint"
    )
    raise InputError(
        f"checkpoint {where} is a {theirs}, but the config's model is a {own}; {remedy}"
    )


def with_initial(
    state: TrainState,
    experiment: Experiment,
    learner: Learner,
    vocabulary: Vocabulary,
    abstract: Any,
    *,
    step: AnyPath | None = None,
    steps: AnyPath | None = None,
) -> tuple[TrainState, Base | None]:
    """Load the initial checkpoint into a train state; also return the source of frozen arrays."""
    step = check_init(experiment, vocabulary) if step is None else step
    saved = learner_of(with_float32_base(read_experiment(step, checkpointing.step_files(step))))
    bare = [HEADS + name for one in (saved, learner) for name in one.heads if not one.head(name)]
    rules = experiment.init.rules(bare)
    whole = tied_parameters.in_float32(abstract)
    if learner.views or saved.views:
        params = _through_views(state.params, step, saved, learner, whole, rules)
    else:
        initial = checkpointing.restore_params(step, whole, rules=rules)
        params = trees.overlaid(state.params, initial)
    adapters = experiment.adapters
    loaded = {name: where for name, where in adapters.loaded.items() if name in adapters.used}
    sources = _tell(step, saved, learner, rules, loaded=loaded)
    base = None
    if (
        steps is not None
        and not experiment.checkpoints.whole
        and not (learner.views or saved.views)
    ):
        left = {path: theirs for path, theirs in sources.items() if learner.holds_still(path)}
        base = Base.of(params, left, base=step, steps=steps) if left else None
    params = loading.with_loaded_params(params, experiment, whole)
    check_int8(abstract, base)
    params = tied_parameters.in_dtypes_of(params, abstract)
    return dataclasses.replace(state, params=params), base


def check_int8(params: Params, base: Base | None) -> None:
    """Raise InputError if a checkpoint would store int8 arrays, because no base has them."""
    for path, leaf in trees.flatten(params).items():
        if leaf.dtype == "int8" and (base is None or path not in base.arrays):
            raise InputError(
                "adapters.base_dtype int8 needs frozen arrays that only the base stores, but "
                f"{path} would be in the run's checkpoints; pass --init with a checkpoint that has "
                "the array, without --checkpoints.whole, or use --adapters.base-dtype bfloat16"
            )


def with_start(state: TrainState, learner: Learner) -> TrainState:
    """Initialize adapter parameters that depend on the base model's parameters, as in PiSSA."""
    if not any(adapter.has_frozen for adapter in learner.adapters):
        return state

    def start(params: Params) -> dict[str, Any]:
        seen, found = trees.flatten(learner.read(params)), {}
        towers = {path: array for path, array in seen.items() if path.startswith(TOWERS)}
        for name in ("", *learner.objective.more_towers()):
            own = trees.unflatten({**towers, **as_model(seen, name)})
            bound = bind(learner.graphdef, own)
            bound.adapters.set_starts(bound.model)
            for path, array in trees.flatten({"adapters": split(bound.adapters)[1]}).items():
                found[in_tower(path, name) if name else path] = array
        return found

    flat = trees.flatten(state.params)
    layout = {path: flat[path].sharding for path in jax.eval_shape(start, state.params)}
    found = jax.jit(start, out_shardings=layout)(state.params)
    params = trees.overlaid(state.params, trees.unflatten(found))
    return dataclasses.replace(state, params=params)


def with_arrays(state: TrainState, arrays: Mapping[str, Any]) -> TrainState:
    """Return a train state with some parameters replaced, but with their old shardings."""
    flat = trees.flatten(state.params)
    placed = {
        path: jax.device_put(np.asarray(array, flat[path].dtype), flat[path].sharding)
        for path, array in arrays.items()
    }
    params = trees.overlaid(state.params, trees.unflatten(placed))
    return dataclasses.replace(state, params=params)


def _tell(
    step: AnyPath, saved: Learner, ours: Learner, rules: InitRules, *, loaded: Mapping[str, str]
) -> dict[str, str]:
    """Log which arrays of a checkpoint are loaded or skipped; return each array's source path."""
    theirs, wanted = trees.flatten(saved.seen), trees.flatten(ours.seen)
    copies = tied_parameters.copies(ours.views, wanted)
    sources = checkpointing.sources_of(step, theirs, wanted, rules, optional=copies)
    others = tuple(f"{ADAPTERS}{name}/" for name in loaded)
    own = [path for path in wanted if path not in copies and not path.startswith(others)]
    told = [summary(theirs, own, sources)]
    told += [f"{ADAPTERS}{name} comes from {where}" for name, where in loaded.items()]
    if any(told) and jax.process_index() == 0:
        _logger.info("init: %s", "; ".join(filter(None, told)))
    begins = any(part_of(path) == "objective" for path in wanted if path not in sources)
    warning = ours.objective.anew(saved.objective) if begins else ""
    if warning and jax.process_index() == 0:
        _logger.warning("init: %s", warning)
    return sources


def with_kept_heads(
    experiment: Experiment, workdir: WorkDirectory, *, step: AnyPath | None
) -> Experiment:
    """Add the other heads of the earlier run or the initial checkpoint to the experiment."""
    if (earlier := workdir.earlier()) is not None:
        return dataclasses.replace(experiment, heads=as_before(experiment.heads, earlier.heads))
    if step is None:
        return experiment
    saved = learner_of(read_experiment(step, checkpointing.step_files(step)))
    named = by_name(experiment.heads)
    others = tuple(
        head
        for name, head in saved.heads.items()
        if name not in named and experiment.init.keeps(HEADS + name, saved.head(name))
    )
    return dataclasses.replace(experiment, heads=(*experiment.heads, *others))


def _through_views(
    params: Params, step: AnyPath, saved: Learner, ours: Learner, abstract: Params, rules: InitRules
) -> Params:
    """Load a checkpoint's parameters into this model, if one of the two has tied arrays."""
    theirs, wanted, own = map(trees.flatten, (saved.seen, ours.seen, abstract))
    sources = checkpointing.sources_of(
        step, theirs, wanted, rules, optional=wanted.keys() - own.keys()
    )
    _check_copies(step, sources, saved, ours)
    meant = tied_parameters.mentioned(ours.views, own)
    if saved.views == ours.views and all(sources.get(path) == path for path in meant):
        as_stored = checkpointing.restore_params(step, abstract, rules=rules)
        return trees.overlaid(params, as_stored)
    places = {source: own[path].sharding for path, source in sources.items() if path in own}
    stored = checkpointing.restore_params(step, _placed(saved.shapes, places, own))

    def written(params: Params, stored: Params) -> dict[str, Any]:
        seen = trees.flatten(saved.read(stored))
        given = {path: seen[source] for path, source in sources.items()}
        new = ours.write(trees.unflatten({**trees.flatten(ours.read(params)), **given}))
        # The other arrays keep their initial values, even if they are stored as differences.
        return {path: leaf for path, leaf in trees.flatten(new).items() if path in given}

    layout = {path: own[path].sharding for path in sources if path in own}
    new = jax.jit(written, out_shardings=layout)(params, stored)
    return trees.overlaid(params, trees.unflatten(new))


def _check_copies(step: AnyPath, sources: Mapping[str, str], saved: Learner, ours: Learner) -> None:
    """Raise InputError or warn if a checkpoint has separate arrays that this model ties."""
    dropped = []
    for copy, owner in tied_parameters.copies(ours.views, trees.flatten(ours.seen)).items():
        if copy not in sources:
            continue
        if owner not in sources:
            raise InputError(
                f"checkpoint {step}: the array {sources[copy]} would be loaded as {copy}, but "
                f"this model ties {copy} to {owner}; rename {sources[copy]} to {owner} with "
                "--init.rename"
            )
        if sources[copy] in trees.flatten(saved.shapes):
            dropped.append(sources[copy])
    if dropped and jax.process_index() == 0:
        _logger.warning(
            "checkpoint %s: not loading %d arrays, because this model ties these arrays to other "
            "arrays: %s",
            *(step, len(dropped), ", ".join(dropped[:3])),
        )


def _placed(shapes: Params, places: Mapping[str, Any], own: Mapping[str, Any]) -> Params:
    one = next(iter(own.values())).sharding
    elsewhere = NamedSharding(one.mesh, PartitionSpec()) if isinstance(one, NamedSharding) else one
    return trees.unflatten(
        {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=places.get(path, elsewhere))
            for path, leaf in trees.flatten(shapes).items()
        }
    )


def resume(
    checkpoints: Checkpoints, experiment: Experiment, start: TrainState, batches: Any
) -> tuple[TrainState | None, Base | None]:
    """Load the newest complete checkpoint, and continue the batches at its position in the data.

    Newer incomplete checkpoints are set aside with a warning.
    """
    step, rejected = checkpoints.resume_point(
        foreign=functools.partial(_another_run, experiment=experiment)
    )
    state = base = None
    if step is not None:
        position = _position(checkpoints, step)
        where = checkpoints.directory(step)
        base = Base.read(checkpoints.files(step), where=where)
        wanted = start.params if base is None else base.rest(start.params)
        params, optimizer = checkpoints.restore(
            step, params=wanted, optimizer={"step": start.step, "state": start.optimizer}
        )
        if base is not None:
            flat = trees.flatten(tied_parameters.in_float32(start.params))
            frozen = {path: flat[path] for path in base.arrays if path in flat}
            frozen = checkpointing.restore_base(base, where, frozen)
            both = trees.unflatten({**trees.flatten(params), **frozen})
            params = trees.overlaid(start.params, both)
            params = tied_parameters.in_dtypes_of(params, start.params)
        batches.restore(position)
        if jax.process_index() == 0 and checkpoints.is_hurried(step):
            _logger.warning(
                "checkpoint %s has no checksums, because a signal ended the run; only file sizes "
                "were verified",
                where,
            )
        state = TrainState(optimizer["step"], params, optimizer["state"])
    told = checkpoints.set_aside(rejected)
    if told and jax.process_index() == 0:
        then = "starts over" if step is None else f"resumes from step {step}"
        _logger.warning("%s; training %s", "; ".join(told), then)
    return state, None if experiment.checkpoints.whole else base


def _another_run(files: Mapping[str, bytes], *, experiment: Experiment) -> str:
    """Return the reason that a checkpoint belongs to another run, or "" for the same run.

    The task must be the same, but the path of the data may differ.
    """
    try:
        saved: Experiment = from_json(
            files[checkpointing.CONFIG_FILE].decode(), source=checkpointing.CONFIG_FILE
        )
    except (KeyError, ValueError):  # reported elsewhere: the work directory's config was read
        return ""
    found = config.differences(saved, experiment, fields=_SAME_RUN)
    if saved.data.task != experiment.data.task:
        found.append(f"data.task is {saved.data.task!r} there and {experiment.data.task!r} here")
    return f"it is of another experiment: {', '.join(found)}" if found else ""


def _position(checkpoints: Checkpoints, step: int) -> bytes:
    """Return the saved position in the data, or raise an error if it is missing."""
    files = checkpoints.files(step)
    former = sorted(path for path in files if re.fullmatch(r"data/process_\d+", path))
    name = _POSITION if _POSITION in files or not former else former[0]
    if name not in files:
        raise checkpoints.damaged(step, f"files/{name} is missing")
    return files[name]


def saver(
    checkpoints: Checkpoints,
    experiment: Experiment,
    vocabulary: Vocabulary,
    workdir: WorkDirectory,
    *,
    base: Base | None = None,
    saved: Callable[[int, str], None] | None = None,
) -> Callable[..., None]:
    """Return a function that saves checkpoints, and calls `saved` when a checkpoint is complete."""
    constant = {
        checkpointing.CONFIG_FILE: to_json(experiment).encode(),
        **{
            f"{checkpointing.VOCABULARY_DIRECTORY}/{name}": content
            for name, content in vocabulary.files().items()
        },
        **({} if base is None else {BASE_FILE: base.content()}),
    }

    def save(
        state: TrainState,
        position: bytes,
        metrics: Mapping[str, float] | None,
        *,
        hurried: bool = False,
    ) -> None:
        # First, so that the record holds every evaluation up to this step.
        workdir.copy()
        checkpoints.save(
            int(state.step),
            params=state.params if base is None else base.rest(state.params),
            optimizer={"step": state.step, "state": state.optimizer},
            files={**constant, _POSITION: position},
            metrics=metrics,
            hurried=hurried,
        )
        if saved is not None:
            checkpoints.wait()
            saved(int(state.step), str(checkpoints.directory(int(state.step))))

    return save
