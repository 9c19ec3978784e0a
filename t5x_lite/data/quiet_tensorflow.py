"""TensorFlow and seqio without their chatter, and TensorFlow without the accelerator.

    from t5x_lite.data.quiet_tensorflow import seqio, tf

is how the package imports both, and the only place where it does. TensorFlow's C++ writes log lines
to standard error while it is imported, whatever TF_CPP_MIN_LOG_LEVEL says, and later a traceback
for every error that it also raises; it takes all memory of a GPU; seqio warns of things that are
meant here. TF_CPP_MIN_LOG_LEVEL 0 or 2 in the environment is a person's choice and stands.
"""

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from t5x_lite.errors import InputError

__all__ = ["seqio", "tf"]

_LOG_LINE = re.compile(
    rb"[IWE]\d{4} \d\d:\d\d:|WARNING: All log messages before absl::InitializeLog"
)


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Holds back what is written to file descriptor 2; passes on all but C++ log lines."""
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:  # standard error is closed: nothing to hold back
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


# Importing JAX sets 1, which shows warnings: TensorFlow then tells each error of the data over many
# lines before we raise it. It reads the level once, so this comes before its import.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
with without_log_lines():
    try:
        import seqio
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"reading text needs TensorFlow and seqio ({error}): pip install 't5x_lite[data]'"
        ) from error
    with contextlib.suppress(RuntimeError):  # the user's own TensorFlow code already runs
        tf.config.set_visible_devices([], "GPU")

# seqio warns of every uncached source, and of every feature that packing drops.
_SEQIO = os.path.dirname(seqio.__file__)
logging.getLogger("absl").addFilter(
    lambda record: record.levelno >= logging.ERROR or not record.pathname.startswith(_SEQIO)
)
