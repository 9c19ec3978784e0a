"""Checkpoints of adapters with random values, over the base of another checkpoint."""

import dataclasses
import zlib
from pathlib import Path

import numpy as np

from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import items
from t5x_lite.config.file import to_json
from t5x_lite.core import trees
from t5x_lite.core.trees import LazyArray
from t5x_lite.inference.loading import Loaded, learner_of


def write_adapter(base: Path, directory: Path, line: str) -> Path:
    """A step directory of a base with one adapter.

    Args:
      base: a step directory without adapters.
      directory: where the step directory is written.
      line: the adapter, such as "rte = lora(r=2)"; its name seeds the random values.
    """
    loaded = Loaded.from_checkpoint(str(base), step=None)
    experiment = dataclasses.replace(
        loaded.experiment,
        adapters=Adapters(add=(line,)),
        data=dataclasses.replace(loaded.experiment.data, pack=False),
    )
    own = trees.flatten(loaded.params)
    rng = np.random.default_rng(zlib.crc32(line.partition(" ")[0].encode()))
    arrays = {}
    for path, leaf in trees.flatten(learner_of(experiment).shapes).items():
        value = np.asarray(own[path]) if path in own else rng.normal(scale=0.7, size=leaf.shape)
        value = value.astype(np.float32)
        arrays[path] = LazyArray(value.shape, value.dtype, lambda value=value: value)
    files = directory / "files"
    files.mkdir(parents=True)
    (files / "config.json").write_text(to_json(experiment))
    for name, content in loaded.vocabulary.files().items():
        (files / "vocabulary" / name).parent.mkdir(parents=True, exist_ok=True)
        (files / "vocabulary" / name).write_bytes(content)
    items.write_params(directory / "params", arrays)
    items.write(directory)
    return directory
