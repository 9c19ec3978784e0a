"""What the system said when an error began there."""

import errno
import os

from t5x_lite.core.errors import line_of_file, system_reason


def raised_from(error, cause):
    error.__cause__ = cause
    return error


def test_the_systems_own_words():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "work/run/metrics.jsonl")
    assert system_reason(full) == "No space left on device"
    assert system_reason(raised_from(RuntimeError("lost"), full)) == "No space left on device"
    of_tensorstore = ValueError(
        'RESOURCE_EXHAUSTED: Error writing "/a": Failed to write 205 bytes to file 11: No space '
        "left on device [tensorstore_spec='{}'] [os_error_code='28']"
    )
    assert system_reason(of_tensorstore) == "No space left on device"
    assert system_reason(ValueError("a shape")) is None
    assert system_reason(OSError("no number")) is None


def test_a_line_about_a_file():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "work/run/metrics.jsonl")
    assert line_of_file(full) == "work/run/metrics.jsonl: No space left on device"
    assert line_of_file(OSError(errno.EACCES, os.strerror(errno.EACCES), b"a")) == (
        "a: Permission denied"
    )
    assert line_of_file(OSError(errno.EIO, os.strerror(errno.EIO))) is None
    assert line_of_file(ValueError("a")) is None
