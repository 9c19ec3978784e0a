"""A disk that is full, for this process alone: no file may grow beyond some bytes."""

import contextlib
import resource
from collections.abc import Iterator

MESSAGE = "File too large"
"""Why writing fails; on a disk that is full it is "No space left on device"."""


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Within the block a file has so many bytes at most; Python ignores the signal that says so."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
