"""Deltas (changes of a model by training, such as LoRA or a task vector) and their arithmetic.

    from t5x_lite import deltas

    a, b = deltas.load("work/a"), deltas.load("work/b")
    c = deltas.merge([a, b], deltas.Ties(density=0.2)) - 0.5 * a
    deltas.save(c, "work/c")

The classes of changes are in `adapters.delta_parts`, the arithmetic in `adapters.delta`, the merge
methods in `adapters.delta_merging`, and the expressions of `t5x-lite compose` in
`adapters.expression`. `load` and `save` read and write checkpoints and adapters; they are imported
on first use from `t5x_lite.inference.delta_files`.
"""

from typing import TYPE_CHECKING, Any

from t5x_lite.adapters.delta import Delta, Identity
from t5x_lite.adapters.delta_merging import (
    AverageFactors,
    Dare,
    Fisher,
    Linear,
    PeftLinear,
    Svd,
    Ties,
    Zhang,
    merge,
)
from t5x_lite.adapters.delta_parts import (
    Dense,
    Dora,
    Fastfood,
    LowRank,
    Mask,
    Replace,
    Scale,
    Several,
    Sparse,
)

if TYPE_CHECKING:
    from t5x_lite.inference.delta_files import load, save

__all__ = [
    "AverageFactors",
    "Dare",
    "Delta",
    "Dense",
    "Dora",
    "Fastfood",
    "Fisher",
    "Identity",
    "Linear",
    "LowRank",
    "Mask",
    "PeftLinear",
    "Replace",
    "Scale",
    "Several",
    "Sparse",
    "Svd",
    "Ties",
    "Zhang",
    "load",
    "merge",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in ("load", "save"):
        from t5x_lite.inference import delta_files

        return getattr(delta_files, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
