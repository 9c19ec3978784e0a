"""Devices for JAX: their memory, an allocator for CPUs, options of the compiler.

A size that does not fit would otherwise make XLA wait forever, or end the process without a
message. A caller estimates the minimum bytes that a device must hold, only from shapes, and calls
`check_fits`:

    check_fits({"parameters": 256e9, "gradients": 256e9}, devices, remedy="reduce a size")
    # InputError: parameters (238.4 GiB) and gradients (238.4 GiB) need 476.8 GiB on a cpu device,
    # which has 23.4 GiB; reduce a size

Memory that training on CPU frees is kept for its next step.

XLA's CPU backend asks malloc for a step's buffers and frees them after it. glibc returns blocks of
this size to the kernel at once, and each step then needs a new, zeroed page every 4 KiB: with 9M
parameters and an embedding of 16M a fifth of the step's time (docs/benchmarks.md).

Kept memory is more than a step needs. A small block that remains where a large one was prevents the
next large one from fitting there (T5 1.1 small: 3.3 GB at the first step, 5.4 from the second on,
7.4 after 50). So memory is kept only while the process uses less than a third of the machine's.

Programs are compiled with a run's options of XLA, and a persistent compilation cache.

compiler_options(("xla_tpu_enable_latency_hiding_scheduler=true",))
{"xla_tpu_enable_latency_hiding_scheduler": True}
"""

import contextlib
import ctypes
import glob
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from t5x_lite.core.accelerators import GIB, chip
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import is_remote
from t5x_lite.core.sharding import replicated

_logger = logging.getLogger(__name__)

LARGEST = 2**31 - 1
"""Maximum of a size: shapes and indices of JAX have 32 bits."""
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files that hold the limit of the process's container, of cgroups 2 and 1."""


def of_host() -> int:
    """Return the bytes of memory that the process can use: the machine's, or its container's."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _LIMITS:
        try:
            found = min(found, int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found


def of_device(device: Any) -> int | None:
    """Return the bytes of memory of one device; None if they are not known."""
    if device.platform == "cpu":
        return of_host()
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except Exception:  # a device of another process, or a runtime without statistics
        limit = None
    return limit or chip(device.device_kind).hbm


def check_fits(needs: Mapping[str, int], devices: Sequence[Any], *, remedy: str) -> None:
    """Raise InputError if a device of this process has less memory than is needed."""
    import jax

    own = [device for device in devices if device.process_index == jax.process_index()]
    if not own:
        return
    there, kind = of_device(own[0]), own[0].device_kind
    sharing = len(own) if own[0].platform == "cpu" else 1
    needed = sum(needs.values()) * sharing
    if there is None or needed <= there:
        return
    parts = [
        f"{name} ({gib(size * sharing)})" for name, size in needs.items() if size * 50 > needed
    ]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    where = f"a {kind} device" if sharing == 1 else f"{sharing} {kind} devices"
    raise InputError(
        f"{listed} need at least {gib(needed)} on {where}, which ha{'s' if sharing == 1 else 've'} "
        f"{gib(there)}; {remedy}"
    )


def check_host(needed: int, what: str, *, remedy: str) -> None:
    """Raise InputError if `what` needs more bytes than the host has."""
    if needed > (there := of_host()):
        raise InputError(f"{what} needs {gib(needed)}, and this machine has {gib(there)}; {remedy}")


def gib(size: int) -> str:
    """Return a number of bytes in GiB, as an error shows it."""
    return f"{size / GIB:,.1f} GiB" if size < 1 << 60 else f"{float(size):.1e} bytes"


P = ParamSpec("P")
R = TypeVar("R")


# glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory; call it before JAX starts its threads.

    It sets a single arena, because blocks of other arenas cannot grow beyond 64 MiB, and disables
    blocks that are mapped separately. The process then never shrinks below its maximum size.
    Without glibc, or with an accelerator (its host may run hundreds of threads), nothing changes.
    """
    return _set({_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1})


def give_back() -> bool:
    """End `keep_freed_memory`: return free memory to the kernel, and later large blocks at once.

    Large blocks that fit into a gap between others are returned with the next call.
    """
    largest = 32 << 20  # glibc's own maximum of the threshold
    settings = {_M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: largest, _M_TRIM_THRESHOLD: 2 * largest}
    done = _set(settings)
    if done:
        ctypes.CDLL(None).malloc_trim(0)
    return done


def within_memory(step: Callable[P, R], *, share: float = 1 / 3) -> Callable[P, R]:
    """Wrap a function so that freed memory is returned when the process uses too much.

    It then waits for the result, because a running step still holds its buffers.
    """
    if not sys.platform.startswith("linux") or not _on_cpu():
        return step
    limit, told = share * of_host(), False

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal limit, told
        result = step(*args, **kwargs)
        if (resident := _resident()) > limit:
            import jax  # imported late, after malloc's options are set

            jax.block_until_ready(result)
            if give_back() and not told:
                told, gib = True, resident / 2**30
                _logger.info(
                    "%.1f GiB of memory are resident; returning freed memory to the kernel", gib
                )
            # The memory in use may itself exceed the limit: wait until it grows beyond that.
            limit = max(limit, 1.1 * _resident())
        return result

    return call


def _set(settings: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux") or not _on_cpu():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in settings.items())


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _on_cpu() -> bool:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms == "cpu"
    return not any(glob.glob(pattern) for pattern in _ACCELERATORS)


CompilerOptions = Mapping[str, str | bool]

_DISABLED = "xla_disable_hlo_passes"
_ALL_REDUCE_MOTION = "while-loop-all-reduce-code-motion"


def compiler_options(pairs: Sequence[str]) -> dict[str, str | bool]:
    """Return options of XLA's compiler, as `jax.jit` takes them."""
    options: dict[str, str | bool] = {}
    for pair in pairs:
        key, equals, value = pair.lstrip("-").partition("=")
        if not key or not equals:
            raise InputError(f"xla must be KEY=VALUE, such as xla_dump_to=dumps, got {pair!r}")
        if key in options:
            raise InputError(f"xla: {key} is given twice; give it once")
        # Some platforms need a Python bool, and all accept one.
        options[key] = {"true": True, "false": False}.get(value.lower(), value)
    return options


def without_all_reduce_motion(options: CompilerOptions) -> dict[str, str | bool]:
    """Return the options with the pass disabled that moves reductions out of loops.

    It miscompiles gradients that a loop's body scatters, such as gradients of an embedding
    (openxla/xla issue 49143; fixed there in September 2026, after JAX 0.11.2).
    """
    disabled = options.get(_DISABLED)
    both = f"{disabled},{_ALL_REDUCE_MOTION}" if disabled else _ALL_REDUCE_MOTION
    return {**options, _DISABLED: both}


def check_compiler_options(options: CompilerOptions, mesh: Mesh) -> None:
    """Compile a tiny program with the options, so that a wrong one is rejected at the start."""
    if not options:
        return
    everywhere = replicated(mesh)
    program = jax.jit(
        jnp.negative,
        in_shardings=everywhere,
        out_shardings=everywhere,
        compiler_options=dict(options),
    )
    lowered = program.lower(jax.ShapeDtypeStruct((), jnp.float32))
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("INVALID_ARGUMENT"):
            raise
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").rstrip(": ")
        kind = mesh.devices.flat[0].device_kind
        raise InputError(
            f"--xla: the compiler for {kind} reports: {reason}; use keys and values of XLA_FLAGS "
            "and LIBTPU_INIT_ARGS, without dashes"
        ) from error


def matmul_precision(name: str) -> contextlib.AbstractContextManager[None]:
    """Trace with this precision of matrix products; "default" is JAX's own setting."""
    if name == "default":
        return contextlib.nullcontext()
    return jax.default_matmul_precision(name)


def use_compilation_cache(directory: str) -> None:
    """Keep programs that are compiled from here on, for this run's restarts and for others.

    JAX keeps programs that took more than a second to compile, by a key of the program, its
    options, the devices and the versions. Without a directory JAX's own settings apply, such as the
    environment variable JAX_COMPILATION_CACHE_DIR.
    """
    if not directory:
        return
    if not is_remote(directory):
        directory = os.path.abspath(os.path.expanduser(directory))
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()  # an earlier compilation would have fixed "no cache"
