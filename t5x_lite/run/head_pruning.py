"""`t5x-lite heads`: which attention heads a model needs least, and a module that masks them.

work/pruned/params/adapters/heads/...   masks of 0 and 1, float32 [N, H]; the base stays where it is
work/pruned/files/heads.json            importance of each head of each layer, examples, share kept
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite import trees
from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import manifest, orbax_params
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.base import BASE_FILE, Base
from t5x_lite.checkpoints.init import Init
from t5x_lite.config.json import to_json
from t5x_lite.data.shapes import Fixed
from t5x_lite.data.sources import batch_source
from t5x_lite.errors import InputError
from t5x_lite.evaluate.head_importance import head_importance, pruned
from t5x_lite.interop.directories import new_directory
from t5x_lite.interop.module_hosts import refuse_views
from t5x_lite.learner import Learner
from t5x_lite.progress import counting
from t5x_lite.run.best_step import Step
from t5x_lite.run.delta_files import goes_along
from t5x_lite.run.loading import Loaded, learner_of, read_experiment
from t5x_lite.trees import LazyArray

_NAME = "heads"

_logger = logging.getLogger(__name__)


def heads(
    checkpoint: str,
    destination: str | Path,
    *,
    examples: int = 1024,
    keep: float = 1.0,
    step: Step = None,
) -> None:
    """Measures the importance of attention heads, and writes a module that keeps the highest.

    Args:
      checkpoint: a work directory or a step directory, without modules.
      destination: a new directory.
      examples: drawn from the checkpoint's training data as training draws them, with its seed.
      keep: the share of heads whose mask is 1, above 0; that of the others is 0.
      step: of a work directory: its number, "best", or None for the newest.

    Raises:
      InputError: there is no such checkpoint, it has modules or shared arrays, its data are not
        there, or keep is no share; or the destination exists. Nothing is left behind then.
    """
    with new_directory(destination) as directory:
        loaded = Loaded.from_checkpoint(checkpoint, step=step)
        where, learner = loaded.directory, loaded.learner
        if learner.adapters:
            raise InputError(
                f"checkpoint {where} has modules itself: merge them by `t5x-lite merge` and give "
                "what that writes"
            )
        refuse_views(where, learner.views)
        files = checkpointing.step_files(where)
        made = dataclasses.replace(
            read_experiment(where, files),
            adapters=Adapters(add=(f"{_NAME} = heads()",)),
            init=Init(checkpoint=str(where)),
            train=(),
        )
        importance = _importance(loaded, learner_of(made), examples=examples)
        masks = pruned(importance, keep=keep)
        left = list(trees.flatten(loaded.params))
        base = Base.of(
            loaded.params, dict(zip(left, left, strict=True)), base=where, steps=directory.parent
        )
        told = {
            "checkpoint": str(where),
            "examples": examples,
            "keep": keep,
            "importance": {p.removesuffix("/mask"): x.tolist() for p, x in importance.items()},
        }
        contents = {
            **{name: content for name, content in files.items() if goes_along(name)},
            checkpointing.CONFIG_FILE: to_json(made).encode(),
            BASE_FILE: base.content(),
            "heads.json": json.dumps(told, indent=1).encode(),
        }
        _write(directory, contents, masks)
    total = sum(mask.size for mask in masks.values())
    kept = round(sum(float(mask.sum()) for mask in masks.values()))
    _logger.info("%s: %d of %d heads, by %d examples", destination, kept, total, examples)


def _importance(loaded: Loaded, learner: Learner, *, examples: int) -> dict[str, np.ndarray]:
    """The importance of each head on training data; the learner is the one with masks."""
    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), learner.shapes["adapters"])
    data = dataclasses.replace(loaded.experiment.data, batch_size=1, pack=False, batches=Fixed())
    rows = batch_source(data).train_batches(data, loaded.vocabulary, seed=loaded.experiment.seed)
    params = {**loaded.params, "adapters": ones}
    with counting("measuring", unit="examples", total=examples, steps=True):
        return head_importance(learner.loss, params, itertools.islice(rows, examples), name=_NAME)


def _write(directory: Path, files: Mapping[str, bytes], masks: Mapping[str, np.ndarray]) -> None:
    """A step directory of these files and masks."""
    for name, content in files.items():
        path = directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    arrays = {
        f"{ADAPTERS}{_NAME}/{path}": LazyArray(mask.shape, mask.dtype, lambda mask=mask: mask)
        for path, mask in masks.items()
    }
    orbax_params.write_params(directory / "params", arrays)
    manifest.write(directory)
