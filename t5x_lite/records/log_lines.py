"""Imports of what imports TensorFlow, without the log lines of its C++."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

from t5x_lite.signals import standard_errors

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
        standard_errors.append(saved)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            standard_errors.remove(saved)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Around an import that may be TensorFlow's first: it reads its level of logging only then.

    Importing JAX sets TF_CPP_MIN_LOG_LEVEL to 1, which shows warnings: TensorFlow then tells each
    error of the data over many lines before we raise it.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with without_log_lines():
        yield
