"""`t5x-lite import sft` and `export adapter --format sft`: composable-sft's files, in and out.

An imported directory is a step directory that holds a `sparse` module, and names its base, as
`run.adapter_interchange` writes one. What is exported is any delta whose parts are sparse sums.
"""

import dataclasses
import logging
from pathlib import Path

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.grammar import write_module
from t5x_lite.adapters.sparse import INDICES, VALUES, SparseTuning
from t5x_lite.checkpoints import manifest as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.base import BASE_FILE, Base
from t5x_lite.checkpoints.init import Init
from t5x_lite.checkpoints.orbax_params import write_params
from t5x_lite.config.json import to_json
from t5x_lite.deltas.parts import Sparse
from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS
from t5x_lite.inference.best_step import Step, find_step
from t5x_lite.inference.loading import read_experiment
from t5x_lite.interop.directories import new_directory
from t5x_lite.interop.module_hosts import refuse_views
from t5x_lite.interop.sft import read_sft, table_of, write_sft
from t5x_lite.learner import views_of
from t5x_lite.models.towers import TOWERS
from t5x_lite.remote import local_path
from t5x_lite.run.adapter_interchange import head_for_export, leaf_of, left_to_base, model_type_of
from t5x_lite.run.delta_files import goes_along, open_delta
from t5x_lite.trees import LazyArray

_MODEL = "model/"

_logger = logging.getLogger(__name__)


def import_sft(
    source: str | Path,
    destination: str | Path,
    *,
    base: str | Path,
    step: Step = None,
    name: str = "sft",
) -> Path:
    """Imports a sparse difference that composable-sft saved.

    Args:
      source: a directory with pytorch_diff.bin.
      destination: a new directory.
      base: the model that it is a difference from: a work directory or a step directory.
      step: of a work directory: its number, "best", or None for the newest.
      name: of the module.

    Returns:
      The directory that was made.

    Raises:
      InputError: the file is missing, damaged, or of another base; the base has modules itself; or
        the destination exists. Nothing is left behind then.
    """
    where = Path(find_step(local_path(base, what="base"), step=step))
    checkpoint_manifest.verify(where, "params", "files")
    files = checkpointing.step_files(where)
    experiment = read_experiment(where, files)
    if experiment.adapters.modules:
        raise InputError(
            f"checkpoint {where} has modules itself: merge them by `t5x-lite merge` and give what "
            "that writes"
        )
    refuse_views(where, views_of(experiment.model, experiment.objective))
    if experiment.objective.more_towers():
        raise InputError(
            f"checkpoint {where} has two towers, and {source} changes one encoder; give a base "
            "with one encoder"
        )
    head = head_for_export(experiment, where=where)
    shapes, table = table_of(experiment.model, head, model_type=model_type_of(files), where=where)
    parts, heads = read_sft(local_path(source, what="directory"), shapes, table)
    if not parts:
        raise InputError(f"{source}: it changes no tensor of the model")
    sizes = {path.removeprefix(_MODEL): len(part.indices) for path, part in parts.items()}
    total = sum(int(np.prod(shape)) for path, shape in shapes.items() if path.startswith(_MODEL))
    adapter = SparseTuning(
        name=name,
        density=round(sum(sizes.values()) / total, 6) or 1e-6,
        entries=tuple(sorted(sizes.items())),
    )
    arrays = dict(heads)
    for path, part in parts.items():
        stem = f"{ADAPTERS}{name}/{path.removeprefix(_MODEL)}/"
        arrays |= {stem + INDICES: part.indices, stem + VALUES: part.values}
    made = dataclasses.replace(
        experiment,
        adapters=Adapters(add=(write_module(adapter),)),
        init=Init(checkpoint=str(where.absolute())),
        train=(),
    )
    params = checkpointing.lazy_params(where)
    with new_directory(destination) as directory:
        left = left_to_base(made, arrays, params, source=Path(source), where=where)
        empty = Base.of({}, {}, base=where, steps=directory.parent)
        leaves = {path: leaf_of(path, params[path]) for path in left}
        contents = {
            **{name: content for name, content in files.items() if goes_along(name)},
            checkpointing.CONFIG_FILE: to_json(made).encode(),
            BASE_FILE: dataclasses.replace(empty, arrays=leaves).content(),
        }
        for file, content in contents.items():
            path = directory / "files" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        write_params(directory / "params", {path: _lazy(array) for path, array in arrays.items()})
        checkpoint_manifest.write(directory)
    return Path(destination)


def export_sft(
    checkpoint: str | Path, destination: str | Path, *, step: Step = None, head: bool = True
) -> Path:
    """Exports a sparse delta as composable-sft's SFT.apply reads it.

    It goes on the model that `t5x-lite export hf` writes of its base.

    Args:
      checkpoint: what `compose` wrote, or a work directory or a step directory.
      destination: a new directory.
      step: of a work directory: its number, "best", or None for the newest.
      head: whether the head that trained with it comes along, whole.

    Returns:
      The directory that was made.

    Raises:
      InputError: a part is no sparse sum, the checkpoint is damaged, or the destination exists.
    """
    opened = open_delta(checkpoint, step=step)
    delta, where = opened.delta, opened.directory
    if any(path.startswith(TOWERS) for path in delta.parts):
        raise InputError(
            f"checkpoint {where} has two towers, and a file of sft changes one encoder; "
            "`t5x-lite export hf` writes both merged"
        )
    sparse: dict[str, Sparse] = {}
    for path, part in delta.parts.items():
        if not isinstance(part, Sparse):
            raise InputError(
                f"{where}: {path} is changed by a {type(part).__name__} part, and the file has "
                "sparse sums: `t5x-lite compose 'sparsify(a, density=0.005)'` makes such, or "
                "`t5x-lite export hf` writes the merged model"
            )
        sparse[path] = part
    if delta.config:
        raise InputError(f"{where}: the module {delta.config[0].name} is no sparse sum")
    files = {**checkpointing.step_files(opened.base()[0]), **opened.files}
    experiment = read_experiment(where, files)
    own = head_for_export(experiment, where=where)
    _, table = table_of(experiment.model, own, model_type=model_type_of(files), where=where)
    heads = (
        {}
        if own is None or not head
        else {
            path: np.asarray(array, np.float32)
            for path, array in delta.extra.items()
            if path.startswith(f"{HEADS}{own.name}/")
        }
    )
    with new_directory(destination) as directory:
        write_sft(directory, sparse, heads, table)
    number = sum(len(part.indices) for part in sparse.values())
    _logger.info("%s: %d entries of %d arrays", destination, number, len(sparse))
    return Path(destination)


def _lazy(array: np.ndarray) -> LazyArray:
    host = np.asarray(array)
    return LazyArray(host.shape, host.dtype, lambda: host)
