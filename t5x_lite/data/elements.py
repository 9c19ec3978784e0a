"""Elements of a tf.data.Dataset, in Python: in one order, and with the errors of the user's files.

An InputError of NumPy code inside tf.data comes out of it as an error of TensorFlow's, whose text
holds that of the InputError between two marks.
"""

from collections.abc import Generator, Iterator
from typing import Any

from t5x_lite.data.open_iterators import closed_at_exit
from t5x_lite.data.quiet_tensorflow import tf
from t5x_lite.errors import InputError

BEGIN, END = "<input error>", "</input error>"
"""The marks around the text of an InputError inside an error of tf.data."""


def input_error(error: Exception) -> Exception:
    """The InputError inside an error that tf.data raised, or that error where the fault is ours."""
    message = str(getattr(error, "message", error))
    if BEGIN in message:
        return InputError(message.split(BEGIN, 1)[1].split(END, 1)[0])
    unreadable = (
        tf.errors.NotFoundError,
        tf.errors.PermissionDeniedError,
        tf.errors.DataLossError,
        tf.errors.FailedPreconditionError,
    )
    if isinstance(error, unreadable):
        return InputError(f"cannot read the data: {message.splitlines()[0]}")
    return error


def as_numpy(dataset: tf.data.Dataset) -> Iterator[dict[str, Any]]:
    """Elements as NumPy values; what was wrong with the user's files is raised as InputError."""
    return closed_at_exit(_as_numpy(dataset))


def _as_numpy(dataset: tf.data.Dataset) -> Generator[dict[str, Any]]:
    elements: Any = dataset.as_numpy_iterator()
    try:
        yield from elements
    except tf.errors.OpError as error:
        raise input_error(error) from error


def deterministic(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset with its elements in the same order in every run."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)
