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

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.files import check_temporary_directory
from t5x_lite.records.log_lines import quiet_import

__all__ = ["seqio", "tf"]

check_temporary_directory()
with quiet_import():
    try:
        import seqio
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"reading text needs TensorFlow and seqio ({error}): {install_command('data')}"
        ) from error
    with contextlib.suppress(RuntimeError):  # the user's own TensorFlow code already runs
        tf.config.set_visible_devices([], "GPU")

# seqio warns of every uncached source, and of every feature that packing drops.
_SEQIO = os.path.dirname(seqio.__file__)
logging.getLogger("absl").addFilter(
    lambda record: record.levelno >= logging.ERROR or not record.pathname.startswith(_SEQIO)
)
