"""Memory that training on CPU frees is kept for its next step.

XLA's CPU backend asks malloc for a step's buffers and frees them after it. glibc gives blocks that
large back to the kernel at once, and each step then pays for a fresh, zeroed page every 4 KiB: with
9M parameters and an embedding of 16M a fifth of the step's time (docs/benchmarks.md).
"""

import ctypes
import glob
import os
import sys

# glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")


def keep_freed_memory() -> bool:
    """Makes malloc keep what is freed; before JAX starts its threads, where it runs on CPU.

    One arena, because blocks of the others cannot grow beyond 64 MiB, and no block of its own from
    the kernel. The process then stays as large as it was at most, and that is more than a step
    needs: a small block that stays where a large one lay keeps the next one from fitting there (T5
    1.1 small: 3.3 GB at the first step, 5.4 from the second on). It changes nothing where there is
    an accelerator, whose host may run hundreds of threads, nor without glibc.

    Returns:
      Whether it was done.
    """
    if not sys.platform.startswith("linux") or not _on_cpu():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    settings = {_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
    return all(mallopt(name, value) == 1 for name, value in settings.items())


def _on_cpu() -> bool:
    """Whether JAX will run on CPU; it is not asked, as the answer would start it."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms == "cpu"
    return not any(glob.glob(pattern) for pattern in _ACCELERATORS)
