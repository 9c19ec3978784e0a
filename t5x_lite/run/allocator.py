"""Memory that training on CPU frees is kept for its next step.

XLA's CPU backend asks malloc for a step's buffers and frees them after it. glibc gives blocks that
large back to the kernel at once, and each step then pays for a fresh, zeroed page every 4 KiB: with
9M parameters and an embedding of 16M a fifth of the step's time (docs/benchmarks.md).

What is kept is more than a step needs: a small block that stays where a large one lay keeps the
next one from fitting there (T5 1.1 small: 3.3 GB at the first step, 5.4 from the second on, 7.4
after 50). So memory is kept only while the process takes less than a third of the machine's.
"""

import ctypes
import glob
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from t5x_lite import memory

P = ParamSpec("P")
R = TypeVar("R")

_logger = logging.getLogger(__name__)

# glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")


def keep_freed_memory() -> bool:
    """Makes malloc keep what is freed; before JAX starts its threads, where it runs on CPU.

    One arena, because blocks of the others cannot grow beyond 64 MiB, and no block of its own from
    the kernel. The process then stays as large as it was at most. It changes nothing where there is
    an accelerator, whose host may run hundreds of threads, nor without glibc.

    Returns:
      Whether it was done.
    """
    return _set({_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1})


def give_back() -> bool:
    """Ends `keep_freed_memory`: the kernel gets what is free, and from now on large blocks at once.

    But those that fit into a hole between others, which it gets with the next call.

    Returns:
      Whether it was done.
    """
    largest = 32 << 20  # what glibc goes up to by itself
    settings = {_M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: largest, _M_TRIM_THRESHOLD: 2 * largest}
    done = _set(settings)
    if done:
        ctypes.CDLL(None).malloc_trim(0)
    return done


def within_memory(step: Callable[P, R], *, share: float = 1 / 3) -> Callable[P, R]:
    """The same function, but freed memory is given back whenever the process takes too much.

    Then the result is waited for, as a step in progress has its buffers still.

    Args:
      step: called again and again, such as a train step.
      share: of the machine's memory that the process may take, or of its container's, where there
        are cgroups of version 2 and it sees its own.
    """
    if not sys.platform.startswith("linux") or not _on_cpu():
        return step
    limit, told = share * memory.of_host(), False

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal limit, told
        result = step(*args, **kwargs)
        if (resident := _resident()) > limit:
            import jax  # late: malloc's options are set before

            jax.block_until_ready(result)
            if give_back() and not told:
                told, gib = True, resident / 2**30
                _logger.info("%.1f GiB are resident: freed memory goes back to the kernel", gib)
            # What is in use may be beyond the limit itself: wait for more than that.
            limit = max(limit, 1.1 * _resident())
        return result

    return call


def _set(settings: dict[int, int]) -> bool:
    """Sets options of malloc, where there is glibc and JAX will run on CPU."""
    if not sys.platform.startswith("linux") or not _on_cpu():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in settings.items())


def _resident() -> int:
    """Bytes of the process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _on_cpu() -> bool:
    """Whether JAX will run on CPU; it is not asked, as the answer would start it."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms == "cpu"
    return not any(glob.glob(pattern) for pattern in _ACCELERATORS)
