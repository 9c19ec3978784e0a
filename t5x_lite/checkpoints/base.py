"""Base of a checkpoint that stores only the trained parameters.

A run that freezes parameters from the checkpoint of `init` does not save them again. This other
checkpoint is the base. files/base.json lists the frozen arrays, each with a digest of its values:

    {"version": 1,
     "checkpoint": "/runs/t5/checkpoints/2000",         # absolute path of the base at that time
     "relative": "../../../t5/checkpoints/2000",        # path relative to this checkpoint directory
     "digest": "5d41402a...",                           # digest of all arrays below
     "arrays": {"model/encoder/...": {"path": "model/encoder/...", "digest": "9f86d0818c5e2a11"}}}

Digests are computed from the float32 values. So the base may have another dtype or device layout,
and it may be imported again. A reader looks for the base at the recorded path, or at a link `base`
in the work directory or next to the checkpoint directory. A base may itself have a base.
"""

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32

from t5x_lite.core import remote, renames, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.trees import Array

BASE_FILE = "base.json"
LINK = "base"
"""Name of a link to a base checkpoint that was moved, in a work directory or next to a
checkpoint."""

_VERSION = 1

_elsewhere: contextvars.ContextVar[str | None] = contextvars.ContextVar("base", default=None)


@contextlib.contextmanager
def base_at(directory: str | None) -> Iterator[None]:
    """Return a context in which every checkpoint's base is read from a directory (`--base DIR`).

    If `directory` is None, bases are read from their recorded paths.
    """
    if directory is not None and not remote.open_path(directory).is_dir():
        raise InputError(f"base {directory}: no such directory")
    token = _elsewhere.set(directory)
    try:
        yield
    finally:
        _elsewhere.reset(token)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Frozen array that a checkpoint does not store, but takes from its base checkpoint.

    Attributes:
      path: path of the array in the base.
      digest: digest of the float32 values, 16 hexadecimal digits; see `digests`.
    """

    path: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Base:
    """Record of the base checkpoint that a checkpoint takes its frozen arrays from.

    Attributes:
      checkpoint: checkpoint directory of the base when the run started.
      relative: path of the base relative to a checkpoint directory of the run; "" if impossible.
      arrays: frozen arrays, by their paths in this checkpoint.
    """

    checkpoint: str
    relative: str
    arrays: Mapping[str, Leaf]

    @classmethod
    def of(
        cls, params: Mapping[str, Any], sources: Mapping[str, str], *, base: AnyPath, steps: AnyPath
    ) -> "Base":
        """Return the record of a base, with a digest of each array that a run takes from it."""
        flat = trees.flatten(params)
        found = digests({path: flat[path] for path in sources})
        where = os.fspath(base) if remote.is_remote(base) else os.path.abspath(base)
        relative = ""
        if not (remote.is_remote(base) or remote.is_remote(steps)):
            relative = os.path.relpath(where, os.path.abspath(steps / "0"))
        arrays = {ours: Leaf(theirs, found[ours]) for ours, theirs in sources.items()}
        return cls(where, relative, arrays)

    @classmethod
    def read(cls, files: Mapping[str, bytes], *, where: object) -> "Base | None":
        """Parse base.json from a checkpoint's files; return None if the checkpoint has no base."""
        if BASE_FILE not in files:
            return None
        try:
            content = json.loads(files[BASE_FILE])
            if content["version"] != _VERSION:
                raise ValueError(
                    f"format version {content['version']} is not supported, only {_VERSION}"
                )
            leaves = {str(path): leaf for path, leaf in content["arrays"].items()}
            theirs = {path: str(leaf["path"]) for path, leaf in leaves.items()}
            ours, today = (renames.current_paths(paths) for paths in (leaves, theirs.values()))
            arrays = {
                ours[path]: Leaf(today[theirs[path]], str(leaf["digest"]))
                for path, leaf in leaves.items()
            }
            return cls(str(content["checkpoint"]), str(content["relative"]), arrays)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f"checkpoint {where}: files/{BASE_FILE} is damaged ({error})"
            ) from error

    def content(self) -> bytes:
        """Return the bytes of base.json."""
        leaves = {path: dataclasses.asdict(leaf) for path, leaf in sorted(self.arrays.items())}
        return json.dumps(
            {
                "version": _VERSION,
                "checkpoint": self.checkpoint,
                "relative": self.relative,
                "digest": self.digest,
                "arrays": leaves,
            },
            indent=1,
        ).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the paths and digests of all arrays; equal bases have equal digests."""
        lines = (f"{path} {leaf.digest}\n" for path, leaf in sorted(self.arrays.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def rest(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameter tree without the arrays that the base checkpoint stores."""
        return trees.partition(tree, lambda path, _: path not in self.arrays)[0]

    def candidates(self, step_directory: AnyPath) -> Iterator[AnyPath]:
        """Yield the directories where the base checkpoint may be, in order of priority.

        A candidate in a work directory is the recorded step, or else the newest step. If `base_at`
        sets a directory, it is the only candidate, except for checkpoints inside this directory.
        """
        elsewhere = _elsewhere.get()
        if elsewhere is not None and not _is_inside(step_directory, elsewhere):
            yield remote.open_path(elsewhere)
            return
        step, is_local = step_directory, not remote.is_remote(step_directory)
        if is_local:
            step = remote.open_path(os.path.abspath(step_directory))
        number = os.path.basename(self.checkpoint)
        for link in (step.parent / LINK, step.parent.parent / LINK):
            yield from (link / "checkpoints" / number, link / number, link)
        yield remote.open_path(self.checkpoint)
        if self.relative and is_local:
            yield remote.open_path(os.path.normpath(step / self.relative))

    def missing(self, step_directory: AnyPath) -> InputError:
        """Return the error for a base that was not found."""
        elsewhere = _elsewhere.get()
        if elsewhere is not None and not _is_inside(step_directory, elsewhere):
            return InputError(
                f"checkpoint {step_directory} holds only the trained parameters, but "
                f"{elsewhere} holds no checkpoint; pass --base with a copy of the base "
                f"checkpoint {self.checkpoint}"
            )
        work = step_directory.parent
        work = work.parent if work.name == "checkpoints" else work
        return InputError(
            f"checkpoint {step_directory} holds only the trained parameters, but its base "
            f"checkpoint {self.checkpoint} is missing; restore the base, or put a copy or a "
            f"link at {work / LINK}"
        )

    def other(self, found: Mapping[str, Any]) -> str | None:
        """Return the path of the base's first array with a wrong digest, or None."""
        for path, digest in digests(found).items():
            if digest != self.arrays[path].digest:
                return self.arrays[path].path
        return None


def _is_inside(step_directory: AnyPath, directory: str) -> bool:
    step, above = os.fspath(step_directory), directory
    if remote.is_remote(step_directory) != remote.is_remote(remote.open_path(directory)):
        return False
    if not remote.is_remote(step_directory):
        step, above = os.path.realpath(step), os.path.realpath(above)
    above = above.rstrip("/")
    return step == above or step.startswith(f"{above}/")


def digests(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return a 64-bit digest of each array, computed from its float32 values, indices and shape.

    Digests are sums of hashes, so they do not depend on the sharding. They detect mistakes, not
    attacks.
    """
    lanes = jax.device_get(_all_lanes(list(arrays.values())))
    found = {}
    for path, lane in zip(arrays, lanes, strict=True):
        content = repr(tuple(arrays[path].shape)).encode() + np.asarray(lane).tobytes()
        found[path] = hashlib.sha256(content).hexdigest()[:16]
    return found


@jax.jit
def _all_lanes(arrays: list[Array]) -> list[Array]:
    return [_lanes(array.astype(jnp.float32)) for array in arrays]


def _lanes(array: Float[Array, "*axes"]) -> UInt32[Array, " 2"]:
    """Return two 32-bit checksums of an array: sums of hashes of each value's bits and index."""
    bits = jax.lax.bitcast_convert_type(array, jnp.uint32)
    place, stride = jnp.zeros((), jnp.uint32), 1
    for axis in reversed(range(array.ndim)):
        counted = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
        place = place + counted * np.uint32(stride % 2**32)
        stride *= array.shape[axis]
    first = _mixed(bits ^ _mixed(place + np.uint32(0x9E3779B9)))
    second = _mixed(first + place * np.uint32(0x85EBCA77) + np.uint32(0xC2B2AE3D))
    return jnp.stack([jnp.sum(first, dtype=jnp.uint32), jnp.sum(second, dtype=jnp.uint32)])


def _mixed(x: UInt32[Array, "*axes"]) -> UInt32[Array, "*axes"]:
    """Apply the last step of MurmurHash3, 32 bits (Appleby 2011)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
