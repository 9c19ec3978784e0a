"""`t5x-lite extend`: an encoder that reads longer texts, by more rows in its table of positions.

    table of 512 + 2 rows, 8,194 wanted:   row 2 + i of the new table = row 2 + (i mod 512)

The rows of the checkpoint stay, so that texts of the old length have the states that they had.
How BGE-M3's authors began the new rows of XLM-R is not published; "random" draws them.
"""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from t5x_lite import trees
from t5x_lite.checkpoints import manifest, orbax_params
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config.json import to_json
from t5x_lite.errors import InputError
from t5x_lite.interop.directories import new_directory
from t5x_lite.interop.encoder_families import is_encoder
from t5x_lite.learner import views_of
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.delta_files import goes_along
from t5x_lite.run.loading import learner_of, read_experiment
from t5x_lite.trees import LazyArray

NewRows = Literal["repeat", "random"]

_TABLE = "model/embedding/position"

_logger = logging.getLogger(__name__)


def extend(
    checkpoint: str,
    destination: str | Path,
    *,
    positions: int,
    new_rows: NewRows = "repeat",
    seed: int = 0,
    step: Step = None,
) -> Path:
    """Writes a step directory of the same encoder with a longer table of positions.

    Args:
      checkpoint: a work directory or a step directory.
      destination: a new directory.
      positions: tokens of a text at most, from now on.
      new_rows: "repeat" the rows that there are, or "random", as a fresh model's.
      seed: of random rows.
      step: of a work directory: its number, "best", or None for the newest.

    Returns:
      The directory that was made.

    Raises:
      InputError: the checkpoint has no table of positions, one that is as long already, or modules;
        or the destination exists.
    """
    if new_rows not in get_args(NewRows):
        raise InputError(f"new rows are repeat or random: got {new_rows!r}")
    source = Path(find_step(checkpoint, step=step))
    manifest.verify(source, "params", "files")
    files = checkpointing.step_files(source)
    experiment = read_experiment(source, files)
    model: Any = experiment.model
    if not is_encoder(model) or not model.position_rows:
        raise InputError(f"checkpoint {source}: has no table of positions that could be longer")
    first, rows = model.first_position, model.position_rows
    if positions + first <= rows:
        raise InputError(
            f"checkpoint {source}: reads texts of {rows - first} tokens already, and {positions} "
            "are asked for"
        )
    if experiment.adapters.modules or views_of(model, experiment.objective):
        raise InputError(
            f"checkpoint {source} has modules or shared arrays: merge the modules by `t5x-lite "
            "merge`, or export and import the model"
        )
    longer = dataclasses.replace(
        experiment,
        model=model.replace(max_positions=positions + first),
        init=type(experiment.init)(),
    )
    shapes = {p: tuple(x.shape) for p, x in trees.flatten(learner_of(longer).shapes).items()}
    arrays = checkpointing.lazy_params(source)
    changed = [path for path, shape in shapes.items() if shape != arrays[path].shape]
    if changed != [_TABLE]:
        raise InputError(f"checkpoint {source}: more than the table changes: {', '.join(changed)}")
    old, rng = arrays[_TABLE], np.random.default_rng(seed)
    stddev = model.initializer_stddev

    def table() -> np.ndarray:
        return extended(
            old.read(),
            positions + first,
            first=first,
            draw=None
            if new_rows == "repeat"
            else lambda shape: stddev * rng.standard_normal(shape).astype(np.float32),
        )

    arrays = {**arrays, _TABLE: LazyArray(shapes[_TABLE], old.dtype, table)}
    with new_directory(destination) as directory:
        contents = {
            **{name: content for name, content in files.items() if goes_along(name)},
            checkpointing.CONFIG_FILE: to_json(longer).encode(),
        }
        for name, content in contents.items():
            path = directory / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        orbax_params.write_params(directory / "params", {p: arrays[p] for p in shapes})
        manifest.write(directory)
    _logger.info(
        "%s: texts of %d tokens, %d before (new rows: %s)",
        *(destination, positions, rows - first, new_rows),
    )
    return Path(destination)


def extended(
    table: Float[np.ndarray, "R D"],
    rows: int,
    *,
    first: int,
    draw: Callable[[tuple[int, int]], np.ndarray] | None = None,
) -> Float[np.ndarray, "S D"]:
    """A table of positions with more rows.

    Args:
      table: the one that there is.
      rows: of the new one.
      first: the row of a text's first token; those before it are as they were.
      draw: makes new rows of a shape; None repeats the rows from `first` on.
    """
    num = rows - len(table)
    if draw is not None:
        return np.concatenate([table, draw((num, table.shape[1])).astype(table.dtype)])
    places = first + np.arange(len(table) - first, rows - first) % (len(table) - first)
    return np.concatenate([table, table[places]])
