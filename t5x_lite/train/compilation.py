"""How programs are compiled: a run's own options of XLA, and the persistent compilation cache.

compiler_options(("xla_tpu_enable_latency_hiding_scheduler=true",))
{"xla_tpu_enable_latency_hiding_scheduler": True}
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from t5x_lite.errors import InputError
from t5x_lite.remote import is_remote
from t5x_lite.sharding import replicated

CompilerOptions = Mapping[str, str | bool]

_DISABLED = "xla_disable_hlo_passes"
_ALL_REDUCE_MOTION = "while-loop-all-reduce-code-motion"


def compiler_options(pairs: Sequence[str]) -> dict[str, str | bool]:
    """Options of XLA's compiler, as `jax.jit` takes them.

    Args:
      pairs: of the form KEY=VALUE; dashes before the key, as in XLA_FLAGS, may stay.

    Raises:
      InputError: a pair of another form, or a key that comes twice.
    """
    options: dict[str, str | bool] = {}
    for pair in pairs:
        key, equals, value = pair.lstrip("-").partition("=")
        if not key or not equals:
            raise InputError(f"xla must be KEY=VALUE, such as xla_dump_to=dumps, got {pair!r}")
        if key in options:
            raise InputError(f"xla: {key} is given twice; give it once")
        # Some platforms want a Python bool, and all take one.
        options[key] = {"true": True, "false": False}.get(value.lower(), value)
    return options


def without_all_reduce_motion(options: CompilerOptions) -> dict[str, str | bool]:
    """The options, with the pass off that moves reductions out of loops.

    It miscompiles gradients that a loop's body scatters, such as those of an embedding
    (openxla/xla issue 49143; mended there in September 2026, after JAX 0.11.2).
    """
    disabled = options.get(_DISABLED)
    both = f"{disabled},{_ALL_REDUCE_MOTION}" if disabled else _ALL_REDUCE_MOTION
    return {**options, _DISABLED: both}


def check_compiler_options(options: CompilerOptions, mesh: Mesh) -> None:
    """Compiles a tiny program with the options, so that a wrong one is refused at the start.

    Args:
      options: from `compiler_options`.
      mesh: the devices, which need not be attached.

    Raises:
      InputError: the compiler of these devices does not know a key, or does not take its value.
    """
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
            f"--xla: the compiler for {kind} says: {reason}; keys and values are those of "
            "XLA_FLAGS and LIBTPU_INIT_ARGS, without dashes"
        ) from error


def matmul_precision(name: str) -> AbstractContextManager[None]:
    """Traces with this precision of matrix products; "default" is JAX's own setting.

    Args:
      name: "default", "high" or "highest".
    """
    if name == "default":
        return contextlib.nullcontext()
    return jax.default_matmul_precision(name)


def use_compilation_cache(directory: str) -> None:
    """Keeps what is compiled from here on, for this run's restarts and for others.

    JAX keeps programs that took more than a second to compile, by a key of the program, its
    options, the devices and the versions. Without a directory its own settings stand, such as the
    environment variable JAX_COMPILATION_CACHE_DIR.

    Args:
      directory: made if it is missing; it may be in a bucket (gs://), and several hosts may share
        it. "" changes nothing.
    """
    if not directory:
        return
    if not is_remote(directory):
        directory = os.path.abspath(os.path.expanduser(directory))
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()  # whatever was compiled before had fixed "no cache"
