"""A program for test_checkpoint_hosts.py: saves or restores one array from several processes.

python tests/e2e/hosts_checkpoint.py save|restore WORKDIR PORT COUNT INDEX

It writes one JSON object on standard output.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.checkpoints.reading import Checkpoints

VALUE = np.arange(64, dtype=np.float32).reshape(16, 4)


def main(job, workdir, port, count, index):
    if int(count) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", int(count), int(index))
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    with Checkpoints(workdir) as checkpoints:
        if job == "save":
            array = jax.make_array_from_callback(VALUE.shape, rows, lambda part: VALUE[part])
            step = jax.make_array_from_callback((), everywhere, lambda part: np.int32(3))
            for number in (3, 6):
                checkpoints.save(
                    number,
                    params={"w": array},
                    optimizer={"step": step},
                    files={"config.json": b"{}"},
                    own_files={f"data/process_{index}": f"here {index}".encode()},
                )
            told = {}
        else:
            step, rejected = checkpoints.resume_point()
            params, optimizer = checkpoints.restore(
                step,
                params={"w": jax.ShapeDtypeStruct(VALUE.shape, jnp.float32, sharding=rows)},
                optimizer={"step": jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)},
            )
            for shard in params["w"].addressable_shards:
                np.testing.assert_array_equal(shard.data, VALUE[shard.index])
            told = {
                "step": step,
                "rejected": [found.reason for found in rejected],
                "aside": [text.split("/")[-1] for text in checkpoints.set_aside(rejected)],
                "files": {k: v.decode() for k, v in checkpoints.files(step).items()},
                "saved_step": int(optimizer["step"]),
                "devices": jax.device_count(),
            }
    print(json.dumps(told))


main(*sys.argv[1:])
