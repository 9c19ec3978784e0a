"""The persistent compilation cache: a program that was compiled once is read from disk."""

import os

import jax
from jax.experimental.compilation_cache import compilation_cache

from t5x_lite.remote import is_remote


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
