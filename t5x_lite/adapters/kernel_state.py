"""What a composition makes of a kernel or a bias, for merging and for fused decoding.

`t5x_lite.adapters.evaluation` has the states of a batch.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

import jax.numpy as jnp

from t5x_lite.adapters.composition import Block
from t5x_lite.adapters.weighted import weighted_sum_of_some
from t5x_lite.errors import InputError
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True)
class KernelState:
    """Kernel or bias of a layer that gives the same without modules; for merging."""

    kernel: Array | None
    bias: Array | None
    has_bias: bool

    @property
    def num_rows(self) -> int:
        """There are none.

        Raises:
          InputError: always: rows that differ have no kernel in common.
        """
        raise InputError("modules of rows cannot be merged: rows have no kernel in common")

    def check_ids(self, block: Block) -> None:
        """Refuses rows, by an InputError."""
        _ = self.num_rows

    def read(self) -> NoReturn:
        """Refuses what tokens choose, by an InputError."""
        raise InputError("a Route cannot be merged: tokens have no kernel in common")

    def after(self, module: Any, name: str) -> "KernelState":
        """After one module."""
        kernel = None if self.kernel is None else module.of_kernel(self.kernel)
        bias = module.of_bias(self.bias) if self.has_bias else None
        return KernelState(kernel, bias, self.has_bias)

    def where(self, kept: Array, other: "KernelState") -> "KernelState":
        """The other state where it is kept: in one layer, or in some of all."""

        def chosen(ours: Array | None, theirs: Array | None) -> Array | None:
            if theirs is ours or theirs is None:
                return theirs
            mask = kept.reshape(kept.shape + (1,) * (theirs.ndim - kept.ndim))
            return jnp.where(mask, theirs, 0.0 if ours is None else ours)

        kernel, bias = chosen(self.kernel, other.kernel), chosen(self.bias, other.bias)
        return KernelState(kernel, bias, self.has_bias)

    def mean(self, states: Sequence["KernelState"], weights: Sequence[float]) -> "KernelState":
        """The weighted sum."""
        kernel = weighted_sum_of_some([state.kernel for state in states], weights)
        bias = weighted_sum_of_some([state.bias for state in states], weights)
        return KernelState(kernel, bias, self.has_bias)
