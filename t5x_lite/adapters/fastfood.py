"""Training in a random low-dimensional subspace, to measure a task's intrinsic dimension.

    fastfood(d=1000)       theta_0 + P(z), z [1000] from 0
    said(d=1000)           theta_0 + lambda_i P_i(z): a lambda for each layer of each array, from 1

A run of `said` trains d numbers in total: m lambdas, and d - m numbers of z. The intrinsic
dimension d_90 is the smallest d with 90 % of the score of full fine-tuning;
`scripts/bench/intrinsic_study.py` measures it. `t5x_lite.adapters.delta_parts` defines P.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_lite.adapters import delta_parts as deltas
from t5x_lite.adapters.base import Modules
from t5x_lite.adapters.delta_parts import Part, Projection, Subspace, padded, project_all
from t5x_lite.adapters.whole_arrays import MODEL, ArrayAdapter, ArrayModule, ArrayModules, Leaf
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Whole
from t5x_lite.core.trees import Array, Key

_LARGEST_MATRIX = 1 << 28


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fastfood(ArrayAdapter):
    """Configuration that trains a vector of d numbers, projected to the model's arrays.

    Attributes:
      d: total number of trained values, without heads.
      lambdas: True to also train a factor ("lambda") for each layer of each array; d includes the
        number of factors.
      seed: random seed of the subspace.
      fold: True to sum the chunks of a vector z that is longer than an array; False to raise
        InputError for such an array.
      projection: "fastfood", or "dense", a dense matrix for few and small arrays.
    """

    name: str = "fastfood"
    d: Count = 1000
    lambdas: bool = False
    seed: Whole = 0
    fold: bool = False
    projection: Projection = "fastfood"

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the trained vector z, which starts as 0, and the factors, which start as 1.

        Raises:
          InputError: if d does not exceed the number of factors, or z is longer than an array.
        """
        leaves = self.leaves(model)
        num = sum(leaf.rows[0] for leaf in leaves.values()) if self.lambdas else 0
        size = self.d - num
        if size < 1:
            raise InputError(
                f"adapter {self.name!r}: d {self.d} must be above {num}, the number of lambdas "
                "(one for each layer of each array)"
            )
        spaces = {path: self._space(path, leaf, size=size) for path, leaf in leaves.items()}
        return FastfoodModules(leaves, spaces, size=size, lambdas=self.lambdas)

    def _space(self, path: str, leaf: Leaf, *, size: int) -> Subspace:
        space = Subspace(MODEL + path, leaf.shape, leaf.is_stacked, self.seed, self.projection)
        _, entries = space.rows
        if self.projection == "dense" and entries * size > _LARGEST_MATRIX:
            raise InputError(
                f"adapter {self.name!r}: a dense projection matrix for {space.path} would have "
                f"{entries} x {size} entries, but the maximum is {_LARGEST_MATRIX}; set "
                "projection='fastfood'"
            )
        if self.projection == "fastfood" and not self.fold and size > padded(entries):
            raise InputError(
                f"adapter {self.name!r}: z has {size} values, but {space.path} has only {entries} "
                "per layer; exclude the array with targets, or set fold=True"
            )
        return space


def said(*, name: str = "said", **changes: Any) -> Fastfood:
    """Return the config for structure-aware intrinsic dimension (SAID, arXiv:2012.13255)."""
    return Fastfood(**{"name": name, "lambdas": True, **changes})


class Projected(ArrayModule):
    """Adapter module that adds a random projection of a trained vector z to one array.

    Args:
      space: projection from z to the array.
      has_lambda: True if each layer has a trained factor.
    """

    def __init__(self, space: Subspace, *, has_lambda: bool):
        self.space, self.has_lambda = space, has_lambda
        if has_lambda:
            ones = jnp.ones((space.rows[0],), jnp.float32)
            self.factor = nnx.Param(ones, logical=("layers",) if space.stacked else (None,))

    @property
    def scale(self) -> Array:
        """Trained factor of each layer of the array."""
        return self.factor[...] if self.has_lambda else jnp.ones((self.space.rows[0],), jnp.float32)


class FastfoodModules(ArrayModules):
    """Adapter modules of several arrays that share one trained vector z of few dimensions.

    Args:
      leaves: path in the model -> shape and axes of the array.
      spaces: path -> projection from z to the array.
      size: number of dimensions of z.
      lambdas: True if each layer has a trained factor.
    """

    def __init__(
        self,
        leaves: Mapping[str, Leaf],
        spaces: Mapping[str, Subspace],
        *,
        size: int,
        lambdas: bool,
    ):
        super().__init__(
            leaves,
            lambda path, leaf: Projected(spaces[path], has_lambda=lambdas),
            exclusive=False,
        )
        self.z = nnx.Param(jnp.zeros((size,), jnp.float32), logical=(None,))

    def read(self, model: Mapping[str, Array], *, key: Key | None = None) -> dict[str, Array]:
        """Return the model arrays plus the random projections of z, by path, in float32."""
        del key
        z, each = self.z[...].astype(jnp.float32), {p: self._projected(p) for p in self.arrays}
        scales = {path: one.scale.astype(jnp.float32) for path, one in each.items()}
        moved = project_all({path: one.space for path, one in each.items()}, z, scales)
        return {path: model[path].astype(jnp.float32) + x for path, x in moved.items()}

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        z = np.asarray(self.z[...], np.float32)
        each = {path: self._projected(path) for path in self.arrays}
        return {p: deltas.Fastfood(z, np.asarray(x.scale), x.space) for p, x in each.items()}

    def _projected(self, path: str) -> Projected:
        module = self.of(path)
        assert isinstance(module, Projected)
        return module
