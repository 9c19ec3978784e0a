"""t5x_lite: text-to-text and encoder pretraining in JAX and Flax.

    model = t5x_lite.load("work/sst2")      # see t5x_lite.api

Importing the package costs nothing: JAX comes with `load`.
"""

import os
import sys


def _drop_current_directory() -> None:
    """Takes the current directory off sys.path, where `python -m t5x_lite` has put it.

    A command runs in directories of strangers, whose typing.py is not to be imported below. A
    checkout that is not installed is found there itself: it goes last, as if it were installed.
    """
    if sys.flags.safe_path:
        return
    directory = sys.path.pop(0)
    checkout = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if directory == checkout and directory not in sys.path:
        sys.path.append(directory)


def _runs_as_module() -> bool:
    """Whether this process is `python -m t5x_lite` or one of its modules."""
    # Until the module to run is found, sys.argv[0] is "-m"; it stands before the other arguments.
    if sys.argv[:1] != ["-m"] or len(sys.orig_argv) <= len(sys.argv):
        return False
    word = sys.orig_argv[-len(sys.argv)]  # "t5x_lite", or joined: "-mt5x_lite"
    module = word.partition("m")[2] if word.startswith("-") else word
    return module.partition(".")[0] == __name__


def _end_at_signals() -> None:
    """Ends this process by one line at Ctrl-C and SIGTERM, also while its modules are imported."""
    from t5x_lite.core import signals

    signals.at_start()


if _as_module := _runs_as_module():
    _drop_current_directory()
if _as_module or os.path.basename(sys.argv[0] if sys.argv else "") == "t5x-lite":
    _end_at_signals()

from typing import TYPE_CHECKING, Any  # noqa: E402


class _FormerNames:
    """Imports modules by the names that they had in earlier versions; asked after all others."""

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
