"""A program for test_checkpoint_store.py: two processes save to a store and resume from it.

python tests/e2e/store_checkpoint.py save|resume WORKDIR PORT COUNT INDEX

`save` saves the steps 3 and 6, and is killed after Orbax has written step 9. Each process writes
one JSON object on standard output.
"""

import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.reading import Checkpoints
from t5x_lite.core import remote
from t5x_lite.core.sharding import first_told
from tests import fake_store

VALUE = np.random.default_rng(0).normal(size=(1 << 10, 1 << 10)).astype(np.float32)


def tell(**told):
    print(json.dumps({**told, "counts": dict(fake_store.counts)}), flush=True)


def save(checkpoints, step, arrays, index):
    checkpoints.save(
        step,
        params={"w": arrays[0]},
        optimizer={"step": arrays[1]},
        files={"config.json": b"{}"},
        own_files={f"data/process_{index}": f"here {index}".encode()},
    )


def write(directory, **options):
    """The manifest of a step, and what it takes; of step 9 the end of the process."""
    if directory.name == "9":
        tell(manifests=manifests, read=fake_store.array_bytes_read())
        # Not before the other is as far: the first process serves the barriers of both.
        gone = Path(os.environ["FAKE_STORE"], "gone")
        if options["process"]:
            gone.touch()
        while not gone.exists():
            time.sleep(0.01)
        os._exit(137)
    before = fake_store.counts.copy()
    written(directory, **options)
    manifests.append(dict(fake_store.counts - before))


manifests, written = [], items.write


def main(job, workdir, port, count, index):
    fake_store.use()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    with Checkpoints(remote.open_path(workdir)) as checkpoints:
        if job == "save":
            items.write = write
            array = jax.make_array_from_callback(VALUE.shape, rows, lambda part: VALUE[part])
            step = jax.make_array_from_callback((), everywhere, lambda part: np.int32(3))
            for number in (3, 6, 9):
                save(checkpoints, number, (array, step), index)
            checkpoints.wait()
            raise AssertionError("not killed")
        step, rejected = checkpoints.resume_point()
        before = fake_store.array_bytes_read()
        params, optimizer = checkpoints.restore(
            step,
            params={"w": jax.ShapeDtypeStruct(VALUE.shape, jnp.float32, sharding=rows)},
            optimizer={"step": jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)},
        )
        for shard in params["w"].addressable_shards:
            np.testing.assert_array_equal(shard.data, VALUE[shard.index])
        told = {
            "step": step,
            "rejected": [[found.step, found.unfinished] for found in rejected],
            "read_before": before,
            "read": fake_store.array_bytes_read(),
            "files": {k: v.decode() for k, v in checkpoints.files(step).items()},
        }
        checkpoints.set_aside(rejected)
        save(checkpoints, 9, (params["w"], optimizer["step"]), index)
        checkpoints.wait()
        first_told("")  # the manifest is the first process's
        told["latest"] = checkpoints.latest()
        tell(**told)


main(*sys.argv[1:])
