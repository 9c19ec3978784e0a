"""t5x_lite: text-to-text and encoder pretraining in JAX and Flax.

    model = t5x_lite.load("work/sst2")      # see t5x_lite.api

Importing the package costs nothing: JAX comes with `load`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t5x_lite.api import load

__all__ = ["__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "load":
        from t5x_lite.api import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
