"""Devices for JAX: their memory, and compiler options.

If an array does not fit into memory, XLA may wait forever or end the process without a message.
`check_fits` raises an error first. Its caller estimates the minimum bytes per device from shapes:

    check_fits({"parameters": 256e9, "gradients": 256e9}, devices, remedy="reduce a size")
    # InputError: parameters (238.4 GiB) and gradients (238.4 GiB) need 476.8 GiB on a cpu device,
    # which has 23.4 GiB; reduce a size

On CPU, training commands keep freed memory for reuse (`t5x_lite.core.accelerators`). Kept memory
grows beyond the need of a step, because small blocks fragment it (T5 1.1 small: 3.3 GB at step 1,
5.4 GB at step 2, 7.4 GB at step 50). So `within_memory` returns it once the process uses a third of
the machine's memory.

`compiler_options` parses XLA options, and `use_compilation_cache` sets a persistent compilation
cache:

compiler_options(("xla_tpu_enable_latency_hiding_scheduler=true",))
{"xla_tpu_enable_latency_hiding_scheduler": True}
"""

import contextlib
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

from t5x_lite.core.accelerators import GIB, chip, give_back, without_accelerator
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import is_remote
from t5x_lite.core.sharding import replicated

_logger = logging.getLogger(__name__)

LARGEST = 2**31 - 1
"""Maximum size of an array's axis: shapes and indices of JAX have 32 bits."""
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files with the memory limit of the process's container, for cgroups 2 and 1."""


def of_host() -> int:
    """Return the memory in bytes that the process can use on this machine or in its container."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _LIMITS:
        try:
            found = min(found, int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found


def of_device(device: Any) -> int | None:
    """Return the memory of one device in bytes, or None if it is unknown."""
    if device.platform == "cpu":
        return of_host()
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except Exception:  # a device of another process, or a runtime without statistics
        limit = None
    return limit or chip(device.device_kind).hbm


def check_fits(needs: Mapping[str, int], devices: Sequence[Any], *, remedy: str) -> None:
    """Raise InputError if the needed bytes exceed the memory of a local device.

    Args:
      needs: bytes per device, by purpose, such as "parameters".
      devices: devices of the run; only devices of this process are checked.
      remedy: advice at the end of the message.
    """
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
    """Raise InputError if `needed` bytes exceed the memory of this machine or container."""
    if needed > (there := of_host()):
        raise InputError(
            f"{what} needs {gib(needed)} of memory, but this machine has {gib(there)}; {remedy}"
        )


def gib(size: int) -> str:
    """Format a number of bytes in GiB, such as "23.4 GiB"."""
    return f"{size / GIB:,.1f} GiB" if size < 1 << 60 else f"{float(size):.1e} bytes"


P = ParamSpec("P")
R = TypeVar("R")


def within_memory(step: Callable[P, R], *, share: float = 1 / 3) -> Callable[P, R]:
    """Wrap a training step so that it returns freed memory to the kernel above a memory limit.

    Args:
      step: function to wrap; above the limit, the wrapper waits for the step's result.
      share: limit, as a fraction of the memory of this machine.
    """
    if not sys.platform.startswith("linux") or not without_accelerator():
        return step
    limit, told = share * of_host(), False

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal limit, told
        result = step(*args, **kwargs)
        if (resident := _resident()) > limit:
            jax.block_until_ready(result)
            if give_back() and not told:
                told, gib = True, resident / 2**30
                _logger.info(
                    "the process uses %.1f GiB of memory; returning freed memory to the kernel", gib
                )
            # The memory in use may itself exceed the limit: wait until it grows beyond that.
            limit = max(limit, 1.1 * _resident())
        return result

    return call


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


CompilerOptions = Mapping[str, str | bool]

_DISABLED = "xla_disable_hlo_passes"
_ALL_REDUCE_MOTION = "while-loop-all-reduce-code-motion"


def compiler_options(pairs: Sequence[str]) -> dict[str, str | bool]:
    """Parse KEY=VALUE pairs into the `compiler_options` argument of `jax.jit`."""
    options: dict[str, str | bool] = {}
    for pair in pairs:
        key, equals, value = pair.lstrip("-").partition("=")
        if not key or not equals:
            raise InputError(
                f"--xla takes KEY=VALUE pairs, such as xla_dump_to=dumps, but got {pair!r}"
            )
        if key in options:
            raise InputError(f"--xla sets {key} twice; set it once")
        # Some platforms need a Python bool, and all accept one.
        options[key] = {"true": True, "false": False}.get(value.lower(), value)
    return options


def without_all_reduce_motion(options: CompilerOptions) -> dict[str, str | bool]:
    """Return the options without XLA's pass that moves all-reduces out of loops.

    The pass miscompiles gradients by scatter operations in loops, such as embedding gradients
    (openxla/xla issue 49143; fixed in September 2026, after JAX 0.11.2).
    """
    disabled = options.get(_DISABLED)
    both = f"{disabled},{_ALL_REDUCE_MOTION}" if disabled else _ALL_REDUCE_MOTION
    return {**options, _DISABLED: both}


def check_compiler_options(options: CompilerOptions, mesh: Mesh) -> None:
    """Raise InputError if XLA rejects the options when it compiles a tiny program."""
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
            f"--xla: the compiler for {kind} rejects an option ({reason}); use keys and values of "
            "XLA_FLAGS and LIBTPU_INIT_ARGS, without dashes"
        ) from error


def matmul_precision(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context that sets JAX's precision of matrix products; "default" changes nothing."""
    if name == "default":
        return contextlib.nullcontext()
    return jax.default_matmul_precision(name)


def use_compilation_cache(directory: str) -> None:
    """Store compiled programs in a directory, so that later starts of a run need not compile again.

    JAX stores programs that took more than a second to compile. A stored program is reused
    only with the same options, devices and library versions. If the directory is "", JAX's own
    settings apply, such as the environment variable JAX_COMPILATION_CACHE_DIR.
    """
    if not directory:
        return
    if not is_remote(directory):
        directory = os.path.abspath(os.path.expanduser(directory))
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()  # an earlier compilation would have fixed "no cache"
