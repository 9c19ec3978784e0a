"""Import of TensorFlow and seqio without log output, and iteration over tf.data datasets.

The package imports TensorFlow and seqio only through this module, without log output and without
access to the accelerator:

    from t5x_lite.data.elements import seqio, tf

Without this module TensorFlow writes log lines to standard error during the import, for any
TF_CPP_MIN_LOG_LEVEL, and later a traceback for every error that it also raises. It reserves all
memory of a GPU, and seqio warns of intended settings. A TF_CPP_MIN_LOG_LEVEL of 0 or 2 that the
user set in the environment is kept.

If NumPy code inside tf.data raises an InputError or a BucketError, tf.data raises a TensorFlow
error with the original text between two marks. `input_error` converts the TensorFlow error back.

Iterators of tf.data are closed before the interpreter ends:

    examples = closed_at_exit(read(dataset))       # a generator, or any object with close()

When an iterator is deleted, tf.data waits for its threads, and a thread that runs NumPy code waits
for the interpreter. If a program keeps an iterator in a global variable, the iterator is deleted
while the interpreter shuts down, and both would wait for each other: a script or a notebook would
never end.
"""

import atexit
import contextlib
import logging
import os
import re
import traceback
import weakref
from collections.abc import Generator, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

from t5x_lite.core import object_store
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.files import check_temporary_directory
from t5x_lite.core.object_store import BucketError
from t5x_lite.core.signals import quiet_import

__all__ = ["seqio", "tf"]

check_temporary_directory()
with quiet_import():
    try:
        import seqio
        import tensorflow as tf
    except ImportError as error:
        raise InputError(
            f"reading text needs TensorFlow and seqio, but importing them failed ({error}); "
            f"{install_command('data')}"
        ) from error
    with contextlib.suppress(RuntimeError):  # the user's own TensorFlow code already runs
        tf.config.set_visible_devices([], "GPU")

# seqio warns of every uncached source, and of every feature that packing drops.
_SEQIO = os.path.dirname(seqio.__file__)
logging.getLogger("absl").addFilter(
    lambda record: record.levelno >= logging.ERROR or not record.pathname.startswith(_SEQIO)
)


@runtime_checkable
class _Closes(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closes)
_open: "weakref.WeakSet[_Closes]" = weakref.WeakSet()


def closed_at_exit(iterator: _T) -> _T:
    """Register an iterator to be closed when the program ends, and return the iterator."""
    _open.add(iterator)
    return iterator


@atexit.register
def _close() -> None:
    object_store.stop()  # else the exit would wait for a thread that waits for a bucket
    for iterator in list(_open):
        with contextlib.suppress(ValueError):  # a generator that is running in a thread
            iterator.close()


_OF_TENSORFLOW = re.compile(r"\{\{function_node .*?\}\} ?| ?\[Op:.*")
"""Regular expression for the parts of a tf.data error message that do not help users."""

BEGIN, END = "<input error>", "</input error>"
"""Marks around the text of an InputError inside an error of tf.data."""
BEGIN_BUCKET = "<bucket error>"
"""Mark before the text of a BucketError inside an error of tf.data; `END` follows the text."""


def input_error(error: Exception) -> Exception:
    """Return the InputError or BucketError that caused a tf.data error; else the tf.data error."""
    message = str(getattr(error, "message", error))
    if BEGIN in message:
        return InputError(message.split(BEGIN, 1)[1].split(END, 1)[0])
    if BEGIN_BUCKET in message:
        return BucketError(message.split(BEGIN_BUCKET, 1)[1].split(END, 1)[0])
    unreadable = (
        tf.errors.NotFoundError,
        tf.errors.PermissionDeniedError,
        tf.errors.DataLossError,
        tf.errors.FailedPreconditionError,
    )
    if isinstance(error, unreadable):
        return InputError(
            f"cannot read the data: {_OF_TENSORFLOW.sub('', message.splitlines()[0])}"
        )
    return error


def let_go(error: Exception) -> Exception:
    """Return the InputError or BucketError that caused a tf.data error; else the tf.data error.

    The traceback of a BucketError is cleared, because a reference to a tf.data iterator could make
    the program hang when it ends.
    """
    found = input_error(error)
    if isinstance(found, BucketError):
        traceback.clear_frames(error.__traceback__)
    return found


def as_numpy(dataset: tf.data.Dataset) -> Iterator[dict[str, Any]]:
    """Return the elements of a dataset as NumPy values; raise InputError for unreadable files."""
    return closed_at_exit(_as_numpy(dataset))


def _as_numpy(dataset: tf.data.Dataset) -> Generator[dict[str, Any]]:
    elements: Any = dataset.as_numpy_iterator()
    try:
        yield from elements
    except tf.errors.OpError as error:
        elements = None
        raise let_go(error) from error


def deterministic(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a tf.data.Dataset with its elements in the same order in every run."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)
