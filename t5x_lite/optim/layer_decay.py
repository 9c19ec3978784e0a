"""Learning rates that fall from layer to layer, from the top down, for fine-tuning.

The last of N layers has `decay` times the rate, the first one decay ** N times, and what is below
the layers (tables, their norm and projection) decay ** (N + 1) times; what is above them, such as
a head, adapters and a final norm, has the whole rate. With N = 2 and decay 0.5:

    heads/classifier  1      layer 1  0.5      layer 0  0.25      model/embedding  0.125

Of several stacks, each counts its own layers, and the tables are below the highest. The weight
decay of AdamW, which is part of an update, falls with it. Sources: Howard and Ruder 2018,
arXiv:1801.06146, section 3.2; google-research/electra model/optimization.py, where all of the
encoder has one factor more (its 0.8 for the top layer is 0.64).
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t5x_lite import trees
from t5x_lite.optim import adafactor
from t5x_lite.types import Axes

_START = re.compile(r"model/|towers/[^/]+/")
"""Beginning of the paths that have layers: of the model, or of a second encoder."""


def decayed_by_layer(
    inner: optax.GradientTransformation,
    decay: float,
    axes: Axes,
    below: Sequence[str],
    *,
    depth: int | None = None,
) -> optax.GradientTransformation:
    """The transformation with its updates scaled by the layers that they are of.

    Args:
      inner: gives the updates; its state stays as it is.
      decay: the factor of a layer, in (0, 1].
      axes: the parameters' logical axes, by their paths from "model/" on.
      below: paths, within model/, of what is below all layers (`ModelConfig.below`).
      depth: layers of the highest stack, of which not all may be trained; None is that of these.
    """
    names = trees.flatten(axes)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        found = inner.update(updates, state, params)
        steps: Any = found[0]
        stacks = [
            len(leaf)
            for path, leaf in trees.flatten(steps).items()
            if path.startswith("model/") and adafactor.is_stacked(names[path])
        ]

        def scaled(keys: Sequence[Any], leaf: Any) -> Any:
            path = trees.SEPARATOR.join(key.key for key in keys)
            most = max(stacks, default=0) if depth is None else depth
            return leaf * _factor(path, leaf, decay, depth=most, names=names[path], below=below)

        return jax.tree_util.tree_map_with_path(scaled, steps), found[1]

    return optax.GradientTransformation(inner.init, update)


def _factor(
    path: str, leaf: Any, decay: float, *, depth: int, names: Any, below: Sequence[str]
) -> Any:
    """What the update of a parameter is multiplied with: a number, or one for each layer."""
    start = _START.match(path)
    if start is None:
        return 1.0
    if adafactor.is_stacked(names):
        num = len(leaf)
        powers = decay ** jnp.arange(num, 0, -1, dtype=jnp.float32)
        return powers.reshape(num, *[1] * (leaf.ndim - 1))
    inside = f"{path[start.end() :]}/"
    is_below = any(inside.startswith(f"{part}/") for part in below)
    return decay ** (depth + 1) if is_below else 1.0
