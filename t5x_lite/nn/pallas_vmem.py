"""Which blocks of the attention kernel fit the vector memory (VMEM) of a chip.

    fitting(layout_of, 512, kind="TPU v4", itemsize=2)     # a Layout with blocks of 256

The estimate (`Cost.vmem`) of the backward kernel, which needs the more, was beside the compiler's
own figure 17.48 and 17.55, 18.20 and 18.25, 23.28 and 23.25, 28.05 and 27.77 MiB (libtpu 0.0.42).
"""

import functools
import logging
from collections.abc import Callable

import jax

from t5x_lite.errors import InputError
from t5x_lite.nn.pallas_blocks import LANES, Layout, backward_cost, forward_cost

_logger = logging.getLogger(__name__)

MIB = 2**20

_VMEM = {
    "TPU v4": 16,
    "TPU v5 lite": 128,
    "TPU v5e": 128,
    "TPU v5": 64,
    "TPU v5p": 64,
    "TPU v6 lite": 128,
    "TPU v6e": 128,
    "TPU7x": 64,
}
"""Device kind -> MiB of a core (docs.jax.dev, Pallas, "TPU Hardware Reference")."""

_MARGIN = MIB // 8
"""By how much the estimate may be too low."""


def fitting(layout_of: Callable[[int], Layout], block: int, *, kind: str, itemsize: int) -> Layout:
    """The division of the work with the block that is asked for, or halves of it, until it fits.

    A line of the log says that it is a smaller one.

    Args:
      layout_of: gives the division with a block.
      block: keys and queries of a block.
      kind: of the chip; of one whose VMEM is not known all fit.
      itemsize: bytes of a number.

    Raises:
      InputError: none fits.
    """
    asked = layout = layout_of(block)
    if kind not in _VMEM:
        return asked
    room = _VMEM[kind] * MIB - _MARGIN
    while _needed(layout, itemsize) > room and block > LANES:
        block = -(-block // 2 // LANES) * LANES
        layout = layout_of(block)
    said = (
        f"rows of {max(asked.num_queries, asked.num_keys)} in blocks of {{}} need "
        f"{{:.1f}} of the {_VMEM[kind]} MiB of VMEM of a {kind}"
    )
    needed = _needed(layout, itemsize) / MIB
    if _needed(layout, itemsize) > room:
        raise InputError(
            f"the attention kernel does not fit: {said.format(layout.key_block, needed)}; "
            "set --model.attention blocked"
        )
    if layout != asked:
        needed = _needed(asked, itemsize) / MIB
        tell(
            f"the attention kernel takes blocks of {layout.key_block}: "
            f"{said.format(asked.key_block, needed)}"
        )
    return layout


def _needed(layout: Layout, itemsize: int) -> int:
    costs = (cost(layout, batch=1, itemsize=itemsize) for cost in (forward_cost, backward_cost))
    return max(cost.vmem for cost in costs)


@functools.cache
def tell(message: str) -> None:
    """Logs a line once, on the first process: a program is traced several times."""
    if jax.process_index() == 0:
        _logger.warning("%s", message)
