"""The one Flax seam: a module to nested dicts of arrays and back.

Outside nn/, models/, objectives/ and adapters/ parameters are a plain nested dict; `bind` makes a
module of them again inside a traced function, at no run-time cost.

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
    """Take a module apart.

    Returns:
      graphdef: its static structure.
      params: a nested dict of arrays.
      axes: a nested dict of the same structure, with each array's logical axis names.
    """
    graphdef, state = nnx.split(module)
    axes = jax.tree.map(
        lambda variable: tuple(variable.get_metadata()["logical"]),
        state,
        is_leaf=lambda node: isinstance(node, nnx.Variable),
    )
    return graphdef, nnx.to_pure_dict(state), nnx.to_pure_dict(axes)


def bind(graphdef: GraphDef, params: Params) -> Any:
    """Put a module together from its structure and a nested dict of arrays."""
    return nnx.merge(graphdef, params)


def cast(params: Params, dtype: Any) -> Params:
    """Return the parameters in the compute dtype; integer arrays stay as they are."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, params
    )


def shapes(build: Callable[[nnx.Rngs], nnx.Module]) -> tuple[GraphDef, Any, Axes]:
    """Return `split(build(rngs))` with shapes instead of arrays, without allocating memory.

    Returns:
      graphdef, a nested dict of jax.ShapeDtypeStruct, axes.
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
    """Return only the initial parameters; a pure function of the key, to jit with out_shardings."""
    return split(build(nnx.Rngs(params=key)))[1]


def stacked(build: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs, *, num: int) -> Any:
    """Build `num` modules of one structure as one, each parameter with a leading "layers" axis.

    Each layer is initialized from its own key, like a separate module.

    Raises:
      ValueError: num is less than 1.
    """
    if num < 1:
        raise ValueError(f"a stack needs at least one layer: got {num}")
    graphdef, _, _ = shapes(build)
    params = jax.vmap(lambda key: init(build, key))(jax.random.split(rngs.params(), num))
    module = bind(graphdef, params)
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable):
            node.set_metadata(logical=("layers", *node.get_metadata()["logical"]))
    return module
