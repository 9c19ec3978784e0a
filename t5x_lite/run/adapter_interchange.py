"""`t5x-lite import adapter` and `t5x-lite export adapter`: modules of PEFT, in and out.

An imported directory is a step directory that holds the module, and leaves the rest to its base:

    params/                  adapters/NAME/..., and the head that came along
    files/config.json        the base's Experiment, with the module
    files/base.json          the base: where it is, and a digest of each of its arrays
    files/vocabulary/        the base's; huggingface/ too
    files/peft/              adapter_config.json of the source
    manifest.json            checksums of all of these, written last
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.grammar import write_module
from t5x_lite.checkpoints import manifest as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.base import BASE_FILE, Base, digests
from t5x_lite.checkpoints.orbax_params import write_params
from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.config import Experiment
from t5x_lite.config.json import to_json
from t5x_lite.errors import InputError
from t5x_lite.heads.base import HEADS, Head
from t5x_lite.interop import hf_config
from t5x_lite.interop.directories import new_directory
from t5x_lite.interop.module_hosts import Hosts, hosts_of, refuse_views
from t5x_lite.interop.peft import Site, read_peft, to_module
from t5x_lite.interop.peft_config import CONFIG
from t5x_lite.interop.peft_heads import head_of
from t5x_lite.interop.peft_writing import write_peft
from t5x_lite.learner import heads_of, views_of
from t5x_lite.objectives.of_heads import objective_for
from t5x_lite.options import did_you_mean
from t5x_lite.remote import local_path
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.loading import learner_of, read_experiment
from t5x_lite.trees import LazyArray
from t5x_lite import trees

Format = Literal["peft"]

_PEFT = "peft"
_HUGGINGFACE = f"huggingface/{hf_config.CONFIG}"
_MODEL = "model/"


def import_adapter(
    source: str | Path,
    destination: str | Path,
    *,
    base: str | Path,
    step: Step = None,
    name: str = "adapter",
) -> None:
    """Imports a directory of PEFT.

    Args:
      source: adapter_config.json and adapter_model.safetensors or adapter_model.bin.
      destination: a new directory.
      base: the model that it was trained on: a work directory or a step directory.
      step: of a work directory: its number, "best", or None for the newest.
      name: of the module.

    Raises:
      InputError: the source is incomplete, damaged, of another base, or holds what no module of
        ours can do; the base has modules itself or is damaged; or the destination exists. Nothing
        is left behind then.
    """
    file = read_peft(Path(source))
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
    kind = _model_type(files)
    heads = heads_of(experiment.objective, experiment.heads)
    head = head_of(
        file.config_file,
        file.config,
        file.kept(),
        model=experiment.model,
        model_type=kind,
        heads=heads,
    )
    hosts = hosts_of(experiment.model, head, model_type=kind, where=where)
    params = lazy_params(where)
    module = to_module(
        file, hosts, name=name, norms=functools.partial(_norms, params, where, experiment)
    )
    made = _with_head(experiment, head)
    made = dataclasses.replace(made, adapters=Adapters(add=(write_module(module.adapter),)))
    with new_directory(destination) as directory:
        left = _left(made, module.arrays, params, where=where)
        there = Base.of({}, {}, base=where, steps=directory.parent)
        leaves = {path: _leaf(path, params[path]) for path in left}
        contents = {
            **{key: value for key, value in files.items() if _is_kept(key)},
            checkpointing.CONFIG_FILE: to_json(made).encode(),
            BASE_FILE: dataclasses.replace(there, arrays=leaves).content(),
            f"{_PEFT}/{CONFIG}": file.config_file.read_bytes(),
        }
        for key, content in contents.items():
            path = directory / "files" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        write_params(directory / "params", {p: _lazy(array) for p, array in module.arrays.items()})
        checkpoint_manifest.write(directory)
