"""Checkpoints of a few numbers, for the tests that damage, find and restore them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.checkpoints.reading import Checkpoints, saved_steps

FILES = {
    "config.json": b'{"steps": 3}',
    "vocabulary/sentencepiece.model": b"\x00pieces\xff",
    "data/process_0": b"position",
}


def params(value=0.0):
    return {
        "model": {"kernel": jnp.arange(6, dtype=jnp.float32).reshape(2, 3) + value},
        "objective": {},
    }


def optimizer(step):
    return {"step": jnp.int32(step), "state": {"mean": jnp.full((2, 3), 0.1, jnp.float32)}}


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def save(manager, step, **metrics):
    manager.save(
        step,
        params=params(step),
        optimizer=optimizer(step),
        files=FILES,
        metrics=metrics or None,
    )


def write(workdir, *steps):
    with Checkpoints(workdir, keep=len(steps)) as manager:
        for step in steps:
            save(manager, step)


def assert_restores(manager, step):
    got, state = manager.restore(step, params=abstract(params()), optimizer=abstract(optimizer(0)))
    np.testing.assert_array_equal(got["model"]["kernel"], params(step)["model"]["kernel"])
    assert int(state["step"]) == step
    np.testing.assert_array_equal(state["state"]["mean"], optimizer(step)["state"]["mean"])
    assert manager.files(step) == FILES


def steps(workdir):
    return saved_steps(Path(workdir) / "checkpoints")


def files_of(directory):
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def truncate(path):
    """Cuts the last byte; of an empty file, adds one."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] if content else b"?")


def flip(path):
    """Flips one bit in the middle; of an empty file, adds a byte."""
    content = bytearray(path.read_bytes() or b"?")
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def delete(path):
    path.unlink()


DAMAGES = (truncate, flip, delete)
