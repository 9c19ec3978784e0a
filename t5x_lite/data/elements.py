"""tf.data in Python: imports without chatter, elements in order, iterators that are closed.

TensorFlow and seqio without their chatter, and TensorFlow without the accelerator.

    from t5x_lite.data.elements import seqio, tf

is how the package imports both, and the only place where it does. TensorFlow's C++ writes log lines
to standard error while it is imported, whatever TF_CPP_MIN_LOG_LEVEL says, and later a traceback
for every error that it also raises; it takes all memory of a GPU; seqio warns of things that are
meant here. TF_CPP_MIN_LOG_LEVEL 0 or 2 in the environment is a person's choice and stands.

Elements of a tf.data.Dataset, in Python: in one order, and with the errors of the user's files.

An InputError, or a BucketError, of NumPy code inside tf.data comes out of it as an error of
TensorFlow's, whose text holds its own between two marks.

Iterators of tf.data that are closed before the interpreter ends.

    examples = closed_at_exit(read(dataset))       # a generator, or any object with close()

Where an iterator is let go of, tf.data waits for its threads; one of them may run NumPy code, and
waits for the interpreter. In a program that keeps an iterator in a global variable, the interpreter
would be ending by then, and neither would go on: a script or a notebook that never ends.
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
            f"reading text needs TensorFlow and seqio ({error}): {install_command('data')}"
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
    """The same iterator; if it is still there at the end of the program, it is closed."""
    _open.add(iterator)
    return iterator


@atexit.register
def _close() -> None:
    object_store.stop()  # a thread that waits for a bucket would be waited for
    for iterator in list(_open):
        with contextlib.suppress(ValueError):  # a generator that runs at this moment, in a thread
            iterator.close()


_OF_TENSORFLOW = re.compile(r"\{\{function_node .*?\}\} ?| ?\[Op:.*")
"""Of a message of tf.data, what says nothing to those who read it."""

BEGIN, END = "<input error>", "</input error>"
"""The marks around the text of an InputError inside an error of tf.data."""
BEGIN_BUCKET = "<bucket error>"
"""The first of them, around that of a BucketError."""


def input_error(error: Exception) -> Exception:
    """The InputError inside an error that tf.data raised, or that error where the fault is ours."""
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
    """The `input_error` of an error; of a bucket's, what its frames held is let go of.

    Other threads of tf.data wait for the bucket then, in Python. An iterator that lived in the
    error's frames until the interpreter ends would wait for them, and they for the interpreter.
    """
    found = input_error(error)
    if isinstance(found, BucketError):
        traceback.clear_frames(error.__traceback__)
    return found


def as_numpy(dataset: tf.data.Dataset) -> Iterator[dict[str, Any]]:
    """Elements as NumPy values; what was wrong with the user's files is raised as InputError."""
    return closed_at_exit(_as_numpy(dataset))


def _as_numpy(dataset: tf.data.Dataset) -> Generator[dict[str, Any]]:
    elements: Any = dataset.as_numpy_iterator()
    try:
        yield from elements
    except tf.errors.OpError as error:
        elements = None
        raise let_go(error) from error


def deterministic(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset with its elements in the same order in every run."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)
