"""How the collectives of real steps run on TPU slices, as libtpu compiles them."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.models.t5 import T5Config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs extra `plan`"),
]

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import dataclasses, json, sys
from t5x_lite import config
from t5x_lite.plan.program import topology_devices
from t5x_lite.train import planning
from t5x_lite.train import step

path, topology, how = sys.argv[1:4]
if how == "as XLA does it":
    step.without_all_reduce_motion = lambda options: options
if how == "not compiled":
    def overflow(*_, **__):
        raise planning.OutOfMemory(None, None, seconds=0.0)
    planning.compile_step = overflow
(sheet,) = planning.make_sheets(
    config.load(path, sys.argv[4:]), topology_devices(topology), asked=topology
).sheets
traffic = sheet.reading.traffic if sheet.reading else ()
print(json.dumps({**sheet.record(), "traffic": [dataclasses.asdict(one) for one in traffic]}))
"""


def planned(path, topology, *overrides, how="compiled"):
    """A plan's record with each collective, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), topology, how, *overrides],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def in_parts(tiny_experiment, tmp_path):
    """The path of a config whose batches come in two parts."""
    model = T5Config(
        vocab_size=4096,
        d_model=128,
        d_kv=64,
        d_ff=256,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout_rate=0.0,
    )
    data = dataclasses.replace(tiny_experiment.data, batch_size=16)
    experiment = dataclasses.replace(tiny_experiment, model=model, data=data, microbatches=2)
    config.save(experiment, tmp_path / "config.json")
    return tmp_path / "config.json"


def of_the_table(record, *, parts):
    """Reductions as large as a part of the embedding: whether each is in a loop."""
    size = 4096 * 128 * 4 // parts
    return [
        one["looped"]
        for one in record["traffic"]
        if one["kind"] in ("all-reduce", "reduce-scatter") and one["bytes"] >= size
    ]


@pytest.mark.gate("mesh2")
@pytest.mark.parametrize(
    "mesh", [MeshConfig(data=4), MeshConfig(data=1, fsdp=4), MeshConfig(data=2, tensor=2)]
)
def test_what_parts_scatter_is_reduced_in_their_loop(in_parts, mesh):
    sizes = [f"--mesh.{name}={getattr(mesh, name)}" for name in ("data", "fsdp", "tensor")]
    reductions = of_the_table(planned(in_parts, "v5e:2x2", *sizes), parts=mesh.tensor)
    assert reductions
    assert all(reductions)


def test_xla_would_move_it_out(in_parts):
    record = planned(in_parts, "v5e:2x2", "--mesh.data=4", how="as XLA does it")
    assert not all(of_the_table(record, parts=1))


LAYERS = ("--model.num-encoder-layers=2", "--model.num-decoder-layers=2")
PRETRAINING = {"xl": ("v5e:8x8", 2048), "xxl": ("v5p:4x4x4", 4096)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", PRETRAINING)
def test_large_models_gather_and_scatter_as_they_should(size):
    topology, d_model = PRETRAINING[size]
    loop = "--model.unroll=1"  # as for all layers; `auto` unrolls these two
    record = planned(f"configs/pretrain/t5_1_1_{size}.py", topology, *LAYERS, loop)
    assert record["warnings"] == []
    assert sum(one["gathered"] for one in record["traffic"] if one["looped"]) == 0
    of_layers = record["parameters"] - 2 * 32128 * d_model  # without table and logits
    scattered = [
        one["count"] * one["bytes"]
        for one in record["traffic"]
        if one["looped"] and one["kind"] == "reduce-scatter"
    ]
    assert sum(scattered) > 0.99 * 4 * of_layers
    assert record["estimated_step_seconds_with_links"] > record["estimated_step_seconds"]


@pytest.mark.parametrize("size", PRETRAINING)
def test_shards_over_all_chips_are_warned_of(size):
    topology, d_model = PRETRAINING[size]
    path, fsdp = f"configs/pretrain/t5_1_1_{size}.py", d_model // 128
    assert planned(path, topology, how="not compiled")["warnings"] == []
    everywhere = ("--mesh.data=1", "--mesh.fsdp=64")
    assert planned(path, topology, *everywhere, how="not compiled")["warnings"] == [
        f"axis 'embed' of size {d_model} is split over fsdp 64 into shards of {d_model // 64}, "
        "narrower than a tile of 128, so complete gradients are all-reduced; "
        f"set --mesh.data {64 // fsdp} --mesh.fsdp {fsdp}"
    ]
