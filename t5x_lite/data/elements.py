"""Elements of a tf.data.Dataset, in Python: in one order, and with the errors of the user's files.

An InputError, or a BucketError, of NumPy code inside tf.data comes out of it as an error of
TensorFlow's, whose text holds its own between two marks.
"""

import re
import traceback
from collections.abc import Generator, Iterator
from typing import Any

from t5x_lite.buckets.asking import BucketError
from t5x_lite.data.open_iterators import closed_at_exit
from t5x_lite.data.quiet_tensorflow import tf
from t5x_lite.errors import InputError

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
