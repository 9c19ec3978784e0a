"""Conversion of Flax modules to nested dicts of arrays and back.

Outside nn/, models/, objectives/ and adapters/, parameters are plain nested dicts. `bind` rebuilds
the module inside a traced function, at no run-time cost.

    graphdef, params, axes = split(T5Config().build(rngs=nnx.Rngs(0)))
    model = bind(graphdef, cast(params, jnp.bfloat16))
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_lite.core.trees import Axes, Key, Params

GraphDef = nnx.GraphDef


def split(module: nnx.Module) -> tuple[GraphDef, Params, Axes]:
    """Split a module into its structure, its parameters and their logical axes.

    Returns:
      graphdef: static structure of the module.
      params: nested dict of arrays.
      axes: nested dict of the same structure, with the logical axis names of each array.
    """
    graphdef, state = nnx.split(module)
    axes = jax.tree.map(
        lambda variable: tuple(variable.get_metadata()["logical"]),
        state,
        is_leaf=lambda node: isinstance(node, nnx.Variable),
    )
    return graphdef, nnx.to_pure_dict(state), nnx.to_pure_dict(axes)


def bind(graphdef: GraphDef, params: Params) -> Any:
    """Build a module from its structure and a nested dict of arrays."""
    return nnx.merge(graphdef, params)


def cast(params: Params, dtype: Any) -> Params:
    """Cast floating-point parameters to a dtype; integer arrays are unchanged."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, params
    )


def shapes(build: Callable[[nnx.Rngs], nnx.Module]) -> tuple[GraphDef, Any, Axes]:
    """Return `split(build(rngs))` with shapes instead of arrays, without allocating memory.

    Returns:
      The graphdef, a nested dict of `jax.ShapeDtypeStruct`, and the axes.
    """
    static: list[tuple[GraphDef, Axes]] = []

    def init(key: Key) -> Params:
        graphdef, params, axes = split(build(nnx.Rngs(params=key)))
        static.append((graphdef, axes))
        return params

    abstract = jax.eval_shape(init, jax.random.key(0))
    graphdef, axes = static[0]
    return graphdef, abstract, axes


def init(build: Callable[[nnx.Rngs], nnx.Module], key: Key) -> Params:
    """Return a module's initial parameters; a pure function of the key, for `jax.jit`."""
    return split(build(nnx.Rngs(params=key)))[1]


def stacked(build: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs, *, num: int) -> Any:
    """Build `num` modules of the same structure as one module with stacked parameters.

    Each parameter gets a leading "layers" axis. Each layer is initialized from its own random key.
    """
    if num < 1:
        raise ValueError(f"a stack needs at least one layer, but num is {num}")
    graphdef, _, _ = shapes(build)
    params = jax.vmap(lambda key: init(build, key))(jax.random.split(rngs.params(), num))
    module = bind(graphdef, params)
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable):
            node.set_metadata(logical=("layers", *node.get_metadata()["logical"]))
    return module
