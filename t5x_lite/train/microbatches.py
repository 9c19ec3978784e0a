"""A batch in parts that are run one after the other: how many there are, and which rows they have.

    batch of 4 rows on 2 devices, 2 parts: rows 0 1 | 2 3
    the first part has rows 0 | 2, the second 1 | 3: every row stays on its device

`Parts` says how many: a number, or tokens that a device may have at a time, which gives a number
for each static shape of the batches. A loss of which rows meet all others of the batch
(`objectives.base`) runs its parts "cached" or by "recompute": `train.step` has both.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax.numpy as jnp
from jax.sharding import Mesh

from t5x_lite.errors import InputError
from t5x_lite.sharding import constrain, data_parallelism
from t5x_lite.types import Array, Batch

Mode = Literal["cached", "recompute"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """How a batch is divided.

    Attributes:
      count: parts of it.
      tokens: that a device has in one part at most; the parts are as few as that allows. None goes
        by `count`.
      mode: of a loss in two stages: "cached" keeps the rows of all parts and runs each part again
        for its gradient, "recompute" differentiates through the loop and runs a part again when its
        gradient is asked for. The gradient is the same.
    """

    count: int = 1
    tokens: int | None = None
    mode: Mode = "cached"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"microbatches must be a whole number of at least 1, got {self.count}")
        if self.mode not in get_args(Mode):
            raise InputError(
                f"microbatch_mode must be {' or '.join(get_args(Mode))}, got {self.mode!r}"
            )
        if self.tokens is None:
            return
        if self.tokens < 1:
            raise InputError(
                f"tokens_per_part must be a whole number of at least 1, got {self.tokens}"
            )
        if self.count > 1:
            raise InputError(
                f"microbatches {self.count} and tokens_per_part {self.tokens} both say how many "
                "parts a batch has: give one of them"
            )

    @property
    def may_be_several(self) -> bool:
        """Whether a batch may have more parts than one."""
        return self.count > 1 or self.tokens is not None

    def of(self, batch: Mapping[str, Any], mesh: Mesh) -> int:
        """The parts of a batch.

        Args:
          batch: features [B, ...], or their shapes.
          mesh: the devices.

        Raises:
          InputError: its rows do not divide among devices and parts, or one row has more tokens
            than a part may have.
        """
        rows = next(iter(batch.values())).shape[0]
        if self.tokens is None:
            check_microbatches(rows, self.count, mesh)
            return self.count
        devices = data_parallelism(mesh)
        check_microbatches(rows, 1, mesh)
        each, own = tokens_of_row(batch), rows // devices
        if each > self.tokens:
            raise InputError(
                f"tokens_per_part {self.tokens} is less than the {each} tokens of one row: set "
                f"--tokens-per-part to {each} or more"
            )
        return next(n for n in range(1, own + 1) if own % n == 0 and own // n * each <= self.tokens)


def tokens_of_row(batch: Mapping[str, Any]) -> int:
    """Tokens of a row, padding included, of all texts that a model reads.

    Args:
      batch: features [B, ...], or their shapes; those that hold tokens end in "_tokens", and those
        that are only predicted in "_target_tokens".
    """
    read = [name for name in batch if name.endswith("_tokens") and "_target_" not in name]
    return sum(math.prod(batch[name].shape[1:]) for name in read)


def check_microbatches(
    batch_size: int, microbatches: int, mesh: Mesh, *, named: str | None = None
) -> None:
    """Refuses a batch whose microbatches cannot be divided among the devices.

    Args:
      batch_size: rows of the global batch.
      microbatches: parts of it.
      mesh: the devices.
      named: what the message calls it; None is data.batch_size.

    Raises:
      InputError: with the sizes.
    """
    devices = data_parallelism(mesh)
    if batch_size % (devices * microbatches):
        raise InputError(
            f"microbatches {microbatches} * {devices} devices that share a batch do not divide "
            f"{named or f'data.batch_size {batch_size}'}; change --microbatches, "
            f"{'--data.batches.shapes' if named else '--data.batch-size'} or --mesh.*"
        )


def split_batch(batch: Batch, microbatches: int, mesh: Mesh) -> dict[str, Array]:
    """Microbatches [microbatches, B / microbatches, ...] of arrays [B, ...], inside a jit.

    Number i has the rows i, i + microbatches, i + 2 * microbatches and so on: those of one device
    stay on it.

    Raises:
      InputError: see `check_microbatches`.
    """
    check_microbatches(len(next(iter(batch.values()))), microbatches, mesh)

    def split(x: Array) -> Array:
        parts = jnp.reshape(x, (len(x) // microbatches, microbatches, *x.shape[1:]))
        return constrain(jnp.swapaxes(parts, 0, 1), None, "batch", *_columns(x, mesh))

    return {name: split(value) for name, value in batch.items()}


def together(x: Array) -> Array:
    """An array [B, ...] of its microbatches; the inverse of `split_batch`."""
    whole = jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])
    return constrain(whole, "batch", *[None] * (whole.ndim - 1))


def _columns(x: Array, mesh: Mesh) -> tuple[str | None, ...]:
    rest: list[str | None] = [None] * (x.ndim - 1)
    if rest and mesh.shape["sequence"] > 1:
        rest[0] = "length"
    return tuple(rest)
