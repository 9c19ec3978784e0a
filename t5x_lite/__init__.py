"""t5x_lite: text-to-text and encoder pretraining in JAX and Flax.

    model = t5x_lite.load("work/sst2")      # see t5x_lite.api

The import is fast: JAX is imported only by `load`.
"""

import os
import sys


def _drop_current_directory() -> None:
    """Remove the current directory, which `python -m t5x_lite` adds, from sys.path.

    A file such as typing.py in that directory must not replace a Python module. The directory moves
    to the end of sys.path instead if it is a checkout of t5x_lite that is not installed.
    """
    if sys.flags.safe_path:
        return
    directory = sys.path.pop(0)
    checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if directory == checkout and directory not in sys.path:
        sys.path.append(directory)


def _runs_as_module() -> bool:
    """Return True if this process is `python -m t5x_lite` or `python -m t5x_lite.MODULE`."""
    # sys.argv[0] is "-m" until Python has found the module to run; the other arguments follow.
    if sys.argv[:1] != ["-m"] or len(sys.orig_argv) <= len(sys.argv):
        return False
    word = sys.orig_argv[-len(sys.argv)]  # "t5x_lite", or joined: "-mt5x_lite"
    module = word.partition("m")[2] if word.startswith("-") else word
    return module.partition(".")[0] == __name__


def _end_at_signals() -> None:
    """Make Ctrl-C and SIGTERM end this process with one line, also while modules are imported."""
    from t5x_lite.core import signals

    signals.at_start()


if _as_module := _runs_as_module():
    _drop_current_directory()
if _as_module or os.path.basename(sys.argv[0] if sys.argv else "") == "t5x-lite":
    _end_at_signals()

from typing import TYPE_CHECKING, Any  # noqa: E402


class _FormerNames:
    """Import hook that finds renamed modules by their earlier names."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(f"{__name__}."):
            return None
        from t5x_lite.core import renames

        return renames.former_spec(name)


sys.meta_path.append(_FormerNames)

if TYPE_CHECKING:
    from t5x_lite.api import load

__all__ = ["__version__", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "load":
        from t5x_lite.api import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
