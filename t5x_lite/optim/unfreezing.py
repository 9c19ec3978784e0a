"""Gradual unfreezing: layers begin to train one after the other, from the top down.

Raffel et al. 2020, arXiv:1910.10683, section 3.5.1, after Howard and Ruder 2018, arXiv:1801.06146.
Of a model of N layers and S steps, episode n = 1..N covers the steps from floor((n-1) S/N) up to
floor(n S/N), and in it layers N-n+1..N train, of the encoder and the decoder alike. With N = 3 and
S = 10:

    steps   0 1 2 | 3 4 5 | 6 7 8 9
    layer 3   x       x        x
    layer 2           x        x
    layer 1                    x        and the tables of relative positions that all layers share

A layer that is still frozen does not move, has no decay and keeps its optimizer's state; its
statistics and Adam's correction of the bias begin when it does. Its gradient counts in no norm. The
token embeddings, an output layer, the final norms and heads train throughout, about which the
paper says nothing but for the embeddings. A stack of fewer layers unfreezes at the nearest equal
fraction: of 2 beside 4 the lower one with the second layer of the 4 (episode 3). Modules in the
slots of a layer train with their layer.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_lite import trees
from t5x_lite.errors import InputError
from t5x_lite.optim import adafactor
from t5x_lite.types import Array, Axes, Params

Starts = Callable[[Params], Any]
"""parameters -> for each the step at which it begins: int32, [N] where it is of N layers."""

_LAYERED = ("model/", "adapters/", "towers/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradual:
    """When layers begin to train.

    Attributes:
      total_steps: steps over which all layers unfreeze, those of the run; 0 freezes none.
      episodes: groups in which they do; None is one for each layer of the highest stack.
    """

    total_steps: int = 0
    episodes: int | None = None

    def __post_init__(self) -> None:
        if self.total_steps < 0:
            raise InputError(f"unfreezing.total_steps must be at least 0: got {self.total_steps}")
        if self.episodes is not None and self.episodes < 1:
            raise InputError(f"unfreezing.episodes must be at least 1: got {self.episodes}")
        if self.episodes is not None and not self.total_steps:
            raise InputError("unfreezing.episodes needs unfreezing.total_steps, the run's steps")

    def first_steps(self, layers: int, *, depth: int) -> tuple[int, ...]:
        """The step at which each layer of a stack begins, the lowest first.

        Args:
          layers: of the stack.
          depth: layers of the highest stack.
        """
        episodes = self.episodes or depth
        found = []
        for above in range(layers - 1, -1, -1):
            place = math.floor(above * depth / layers + 0.5)
            episode = place * episodes // depth
            found.append(episode * self.total_steps // episodes)
        return tuple(found)

    def starts(self, axes: Axes, *, depth: int) -> Starts:
        """For parameters with these logical axes, by their paths from "model/" on."""
        names = trees.flatten(axes)

        def start(path: str, leaf: Any, layers: dict[str, int]) -> np.ndarray:
            if not path.startswith(_LAYERED):
                return np.zeros((), np.int32)
            if adafactor.is_stacked(names[path]):
                return np.asarray(self.first_steps(leaf.shape[0], depth=depth), np.int32)
            if "relpos_buckets" in names[path]:
                own = layers.get(_stack(path), depth)
                return np.asarray(self.first_steps(own, depth=depth)[0], np.int32)
            return np.zeros((), np.int32)

        def of(params: Params) -> Any:
            leaves = trees.flatten(params)
            layers = {
                _stack(path): leaf.shape[0]
                for path, leaf in leaves.items()
                if path.startswith(_LAYERED) and adafactor.is_stacked(names[path])
            }
            return jax.tree_util.tree_map_with_path(
                lambda keys, leaf: start(_path(keys), leaf, layers), params
            )

        return of


def _path(keys: Sequence[Any]) -> str:
    return trees.SEPARATOR.join(key.key for key in keys)


def _stack(path: str) -> str:
    """Beginning of the paths of a stack: model/encoder."""
    return trees.SEPARATOR.join(path.split(trees.SEPARATOR)[:2])


def live(tree: Any, count: Array, starts: Starts) -> Any:
    """A tree of the parameters' structure, such as a gradient, with 0 for what is frozen.

    Args:
      tree: the arrays.
      count: steps that are done.
      starts: says when each begins.
    """
    return jax.tree.map(
        lambda leaf, start: _chosen(count >= start, leaf, jnp.zeros_like(leaf)), tree, starts(tree)
    )


def unfreezing(
    inner: optax.GradientTransformation, starts: Starts, axes: Axes
) -> optax.GradientTransformation:
    """The transformation of what has begun; the rest has an update of 0, and its state stays.

    Args:
      inner: whose state is a nested dict, {"count": steps, KIND: {path: arrays}}; it is given the
        gradients of what has begun, and 0 for the rest.
      starts: says when each parameter begins.
      axes: their logical axes.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        count = state["count"]
        begun = jax.tree.map(lambda start: count >= start, starts(updates))
        steps, moved = inner.update(live(updates, count, starts), state, params)
        steps = jax.tree.map(
            lambda flag, step: _chosen(flag, step, jnp.zeros_like(step)), begun, steps
        )

        def kept(_: Sequence[Any], flag: Array, new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: _chosen(flag, n, o), new, old)

        new: Any = moved
        return steps, {
            kind: part
            if kind == "count"
            else adafactor.map_axes(kept, axes, begun, part, state[kind])
            for kind, part in new.items()
        }

    return optax.GradientTransformation(inner.init, update)


def _chosen(flag: Array, yes: Any, no: Any) -> Array:
    """The one where the flag is up, one flag for all or one a layer, else the other."""
    return jnp.where(flag.reshape(*flag.shape, *[1] * (yes.ndim - flag.ndim)), yes, no)
