"""The rows that each process of a TPU slice feeds, against those that JAX takes them for.

JAX knows a process's rows by their places in the whole batch, in order; a process reads one part of
the batch, and processes that hold the same rows read the same part. Here JAX's own function places
the rows of every process of a slice that is not attached, and the places are put together.
"""

import importlib.util
import itertools
import json
import subprocess
import sys

import pytest

TOPOLOGIES = (
    *("v4:2x2x1", "v4:2x2x4", "v4:4x4x4", "v4:4x4x8"),
    *("v5e:2x4", "v5e:4x4", "v5e:8x8", "v5e:8x16", "v5e:16x16", "2@v5e:4x8"),
    *("v5p:2x2x2", "v5p:4x4x4", "2@v5p:2x2x4"),
    *("v6e:4x8", "v6e:16x16"),
)
MESHES = (
    {},
    {"fsdp": 2},
    {"fsdp": 4},
    {"data": 1, "fsdp": -1},
    {"data": 2, "fsdp": -1},
    {"data": 4, "fsdp": -1},
    {"replica": 2},
    {"replica": 2, "fsdp": 2},
    {"tensor": 2},
    {"tensor": 4},
    {"tensor": 8},
    {"data": 1, "fsdp": -1, "tensor": 2},
    {"sequence": 2},
    {"sequence": 4, "tensor": 2},
    {"replica": 2, "fsdp": 2, "sequence": 2, "tensor": 2},
)

PROGRAM = """
import json, sys
from unittest import mock
import jax, numpy as np
from jax.sharding import NamedSharding
from t5x_lite.core import sharding
from t5x_lite.core.errors import InputError
from t5x_lite.plan.program import topology_devices

class Placed(Exception): "What stands in for the array."

def of_process(process):
    def indices(self, shape):
        all_of_them = self.devices_indices_map(shape).items()
        return {d: index for d, index in all_of_them if d.process_index == process}
    return indices

def placed(mesh, process, rows, length):
    "Place of a cell -> the value that this process's devices get there, and the process's part."
    where = {}
    def take(shape, layout, value):
        for device, index in layout.addressable_devices_indices_map(shape).items():
            cells = np.ix_(*(range(*one.indices(size)) for one, size in zip(index, shape)))
            for place, number in zip(zip(*(x.ravel() for x in np.broadcast_arrays(*cells))),
                                     np.asarray(value(index)).ravel()):
                assert where.setdefault(place, number) == number
    sharding.batch_part.cache_clear()
    indices = of_process(process)
    with (mock.patch("jax.process_index", lambda: process),
          mock.patch("jax._src.xla_bridge.process_count", lambda: 2),
          mock.patch("jax._src.array.make_array_from_callback", take),
          mock.patch.object(NamedSharding, "addressable_devices_indices_map", indices)):
        part, parts = sharding.batch_part(mesh)
        own = np.arange(rows * length).reshape(rows, length)
        own = own.reshape(parts, -1, length)[part]
        sharding.put_batch({"tokens": own}, mesh)
    return where, part, parts

for topology, sizes in json.loads(sys.argv[1]):
    devices = topology_devices(topology)
    known = np.prod([size for size in sizes.values() if size != -1], dtype=int)
    if len(devices) % known:
        continue
    mesh = sharding.make_mesh(sharding.MeshConfig(**sizes), devices=devices)
    rows, length = 2 * sharding.data_parallelism(mesh), mesh.shape["sequence"]
    whole, all_parts, scattered = {}, set(), False
    processes = sorted({device.process_index for device in devices})
    for process in processes:
        where, part, parts = placed(mesh, process, rows, length)
        all_parts.add(part)
        for place, number in where.items():
            assert whole.setdefault(place, number) == number, (topology, sizes, place)
        mine = [where[place] for place in sorted(where)]
        assert mine == sorted(mine), (topology, sizes, "not in order")
        places = sorted({row for row, _ in where})
        scattered = scattered or places != list(range(places[0], places[-1] + 1))
    assert all_parts == set(range(parts))
    assert len(whole) == rows * length
    assert sorted(whole.values()) == list(range(rows * length)), (topology, sizes)
    print(json.dumps([topology, sizes, len(processes), int(parts), scattered]))
"""


def checked(pairs):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(pairs)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`"
)


@pytest.mark.slow  # it is not, but the extra is there with the slow ones alone
@needs_libtpu
def test_rows_of_some_slices():
    pairs = [
        ("v5e:4x4", {}),
        ("v4:2x2x4", {"data": 2, "fsdp": -1}),
        ("v5p:2x2x2", {"tensor": 8}),
        ("2@v5e:4x8", {"replica": 2, "fsdp": 2}),
        ("v6e:4x8", {"sequence": 4, "tensor": 2}),
    ]
    found = checked(pairs)
    assert [line[:2] for line in found] == [list(pair) for pair in pairs]
    assert [line[2:4] for line in found] == [[4, 4], [4, 4], [2, 1], [16, 16], [8, 4]]
    assert found[0][-1] is True  # the rows of a process do not follow each other


@pytest.mark.slow
@pytest.mark.exhaustive
@needs_libtpu
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rows_of_every_mesh(topology):
    assert len(TOPOLOGIES) == len(MESHES) == 15
    found = checked(list(itertools.product([topology], MESHES)))
    assert len(found) >= 10
