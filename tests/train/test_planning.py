"""Plans of a tiny T5 for CPU devices, and of one for a TPU slice where libtpu is installed."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

from t5x_lite import config, layouts
from t5x_lite.config.batches import step_flops
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.core.tracking import recorded
from t5x_lite.data.config import Bucketed
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.plan.program import OutOfMemory
from t5x_lite.train import planning
from t5x_lite.train.planning import DoesNotFit, plan
from t5x_lite.train.training import train

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
sys.modules.update(dict.fromkeys(["tensorflow", "seqio", "tasks"]))
from t5x_lite import config
from t5x_lite.train.planning import plan
plan(config.load(sys.argv[1]), as_json=True, **json.loads(sys.argv[2]))
"""


def run(experiment, tmp_path, **options):
    """Plans in a process of its own, without TensorFlow; gives the JSON."""
    config.save(experiment, tmp_path / "config.json")
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "config.json"), json.dumps(options)],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.exhaustive
def test_eight_cpu_devices(tiny_experiment, tmp_path):
    experiment = dataclasses.replace(
        tiny_experiment,
        data=dataclasses.replace(tiny_experiment.data, batch_size=16),
        mesh=MeshConfig(data=4, fsdp=2),
    )
    found = run(experiment, tmp_path, devices="cpu:8", hbm=1.0)
    assert (found["num_devices"], found["devices"], found["device_kind"]) == (8, "cpu:8", "cpu")
    assert found["mesh"] == {"replica": 1, "data": 4, "fsdp": 2, "sequence": 1, "tensor": 1}
    assert found["fits"] is True
    memory = found["memory_bytes"]
    # Of float32 numbers every second one, and the norms' scales and biases whole.
    assert 4 * found["parameters"] / 2 < memory["parameters"] < 4 * found["parameters"] * 0.6
    features = 3 * 32 + 5 * 16
    assert memory["batch"] == 2 * 4 * features
    assert memory["peak"] >= memory["parameters"] + memory["temporaries"] > 0
    assert found["flops"] == step_flops(experiment)
    assert found["collectives"]["all-reduce"]["count"] > 0
    assert found["estimated_step_seconds"] is None


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_a_tpu_slice(tiny_experiment, tmp_path):
    experiment = dataclasses.replace(
        tiny_experiment,
        model=tiny_experiment.model.replace(d_model=128, d_kv=64, d_ff=256, num_encoder_layers=3),
        data=dataclasses.replace(tiny_experiment.data, inputs_length=64, targets_length=64),
        compute_dtype="bfloat16",
    )
    found = run(experiment, tmp_path, topology="v5e:2x2")
    assert (found["num_devices"], found["device_kind"]) == (4, "TPU v5 lite")
    assert found["fits"] is True
    assert found["memory_bytes_available"] == int(15.75 * 2**30)
    assert found["memory_bytes"]["parameters"] == 4 * found["parameters"]
    assert found["collectives"]["all-reduce"]["bytes"] >= 2 * found["parameters"]
    assert found["loops_of_unknown_length"] == 0
    assert 1e-5 < found["estimated_step_seconds"] < 1e-1
    assert 0 < found["estimated_mfu"] < 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
@pytest.mark.parametrize(
    "topology", ["v5e:2x2", pytest.param("v5p:2x2x1", marks=pytest.mark.exhaustive)]
)
def test_the_attention_kernel_for_a_tpu(tiny_experiment, tmp_path, topology):
    experiment = dataclasses.replace(
        tiny_experiment,
        model=tiny_experiment.model.replace(d_model=128, d_kv=64, d_ff=256, attention="pallas"),
        data=dataclasses.replace(tiny_experiment.data, inputs_length=160, targets_length=64),
        compute_dtype="bfloat16",
        mesh=MeshConfig(data=2, tensor=2),
    )
    found = run(experiment, tmp_path, topology=topology)
    # Self-attention of both stacks and across, each forwards and backwards; one head a device.
    assert len(found["kernels"]) == 6
    assert all(kernel["flops"] > 0 and kernel["bytes"] > 0 for kernel in found["kernels"])
    assert found["estimated_step_seconds"] > 0


@pytest.fixture
def one_device(monkeypatch):
    """The only CPU device; planning must not change the settings of this process."""
    monkeypatch.setattr(planning, "_devices", lambda *_: (jax.devices()[:1], "cpu:1"))


def test_what_does_not_fit_is_printed_and_raised(tiny_experiment, one_device, monkeypatch, capsys):
    def compile_step(*_, **__):
        raise OutOfMemory(3 * 2**30, 2 * 2**30, seconds=1.0)

    monkeypatch.setattr(planning, "compile_step", compile_step)
    with pytest.raises(DoesNotFit) as raised:
        plan(tiny_experiment, devices="cpu:1")
    assert str(raised.value) == (
        "does not fit by 1.00 GiB: 3.00 GiB are needed and a cpu has 2.00. Try --model.remat "
        "dots_no_batch or --model.remat products or --model.remat full; --microbatches 2; "
        "--objective.logits-chunk 16; --data.batch-size 2; more or larger devices"
    )
    assert str(raised.value) in capsys.readouterr().out
    with pytest.raises(DoesNotFit):
        plan(tiny_experiment, devices="cpu:1", as_json=True)
    record = json.loads(capsys.readouterr().out)
    assert (record["fits"], record["memory_bytes_over"]) == (False, 2**30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass either --topology"),
        ({"topology": "v5e:2x2", "devices": "cpu:8"}, "pass either --topology"),
        ({"devices": "gpu:8"}, "--devices is 'gpu:8', but must be cpu:N"),
        ({"devices": "cpu:0"}, "--devices is 'cpu:0', but must be cpu:N"),
        ({"topology": "v9:2x2"}, "unknown topology 'v9:2x2'; use"),
    ],
)
def test_devices_that_are_none(tiny_experiment, options, message):
    with pytest.raises(InputError, match=message):
        plan(tiny_experiment, **options)


def test_options_reach_the_compiler_and_the_trace(tiny_experiment, one_device, monkeypatch):
    seen = []

    def compile_step(step, *_, **__):
        seen.append(jax.config.jax_default_matmul_precision)
        raise OutOfMemory(None, None, seconds=1.0)

    monkeypatch.setattr(planning, "compile_step", compile_step)
    make = planning.make_train_step
    monkeypatch.setattr(
        planning, "make_train_step", lambda *a, **k: seen.append(k["options"]) or make(*a, **k)
    )
    experiment = dataclasses.replace(
        tiny_experiment, matmul_precision="highest", xla=("xla_cpu_enable_fast_math=false",)
    )
    with pytest.raises(DoesNotFit):
        plan(experiment, devices="cpu:1")
    assert seen == [{"xla_cpu_enable_fast_math": False}, "highest"]
    assert jax.config.jax_default_matmul_precision != "highest"
    with pytest.raises(
        InputError, match=r"^--xla: the compiler for cpu rejects an option \(No such compile"
    ):
        plan(dataclasses.replace(tiny_experiment, xla=("xla_nonsense=1",)), devices="cpu:1")


def stub(kind, place, **more):
    return types.SimpleNamespace(
        device_kind=kind, platform="tpu", coords=(place % 2, place // 2, 0), slice_index=0,
        process_index=0, memory_stats=lambda: {"bytes_limit": 14 * 2**30}, **more,
    )  # fmt: skip


def test_an_attached_slice_is_held_against_the_topology(monkeypatch, caplog):
    there = [stub("TPU v5 lite", place) for place in range(4)]
    monkeypatch.setattr(planning.topologies, "topology_devices", lambda _: list(there))
    assert planning._attached("v5e:2x2", None, there) == (there, "v5e:2x2")
    name = "attached: 4 x TPU v5 lite, 2x2 chips in 1 slice(s)"
    assert planning._attached(None, None, there) == (there, name)
    with pytest.raises(InputError, match=r"^--attached: the attached devices are 2 x .* on all"):
        planning._attached("v5e:2x2", None, there[:2])
    assert planning._own_memory(there, None) == 14.0
    assert "a device offers only 14.00 of its 15.75 GiB" in caplog.text
    assert planning._own_memory(there, 8.0) == 8.0


def test_what_is_not_attached_is_refused(tiny_experiment):
    with pytest.raises(InputError, match="--attached needs an accelerator, but JAX finds none"):
        plan(tiny_experiment, attached=True)
    with pytest.raises(InputError, match="remove --devices"):
        plan(tiny_experiment, attached=True, devices="cpu:1")


def test_a_batch_that_does_not_divide(tiny_experiment, one_device):
    with pytest.raises(InputError, match=r"is not divisible by microbatches 3"):
        plan(dataclasses.replace(tiny_experiment, microbatches=3), devices="cpu:1")


@pytest.mark.slow
def test_every_shape_of_batches_is_compiled(tiny_experiment, one_device, monkeypatch, capsys):
    experiment = dataclasses.replace(
        tiny_experiment,
        model=BertConfig(vocab_size=400, d_model=8, d_ff=8, num_heads=1, num_layers=1),
        objective=MaskedLM(),
        data=dataclasses.replace(
            tiny_experiment.data,
            layout=layouts.Encoder(),
            batches=Bucketed({8: 8, 16: 2}),
            batch_size=2,
            inputs_length=16,
            pack=False,
        ),
    )
    plan(experiment, devices="cpu:1", as_json=True)
    record = json.loads(capsys.readouterr().out)
    assert [(one["length"], one["rows"]) for one in record["shapes"]] == [(8, 8), (16, 2)]
    assert [one["lengths"]["encoder_input_tokens"] for one in record["shapes"]] == [8, 16]
    needs = [one["memory_bytes_needed"] for one in record["shapes"]]
    assert needs[0] != needs[1]
    assert record["memory_bytes_needed"] == max(needs)
    batches = [one["memory_bytes"]["batch"] for one in record["shapes"]]
    assert batches == [4 * 4 * 8 * 8, 4 * 4 * 16 * 2]
    plan(experiment, devices="cpu:1")
    assert "batches of 2 shapes, each a program of its own" in capsys.readouterr().out

    def compile_step(*_, **__):
        raise OutOfMemory(3 * 2**30, 2 * 2**30, seconds=1.0)

    monkeypatch.setattr(planning, "compile_step", compile_step)
    with pytest.raises(DoesNotFit, match=r"fewer rows in data\.batches of 2 rows of 16 tokens"):
        plan(experiment, devices="cpu:1")
    with pytest.raises(InputError, match=r"data\.batches of 8 rows of 8 tokens is not divisible"):
        plan(dataclasses.replace(experiment, microbatches=3), devices="cpu:1")


def test_auto_is_chosen_by_the_longest_rows(tiny_experiment, one_device, monkeypatch, capsys):
    """The plan of each shape has the attention that a run of all shapes has."""
    model = BertConfig(
        vocab_size=400, d_model=8, d_ff=8, num_heads=1, num_layers=1, max_positions=4096,
        attention="auto",
    )  # fmt: skip
    experiment = dataclasses.replace(
        tiny_experiment,
        model=model,
        objective=MaskedLM(),
        data=dataclasses.replace(
            tiny_experiment.data,
            layout=layouts.Encoder(),
            batches=Bucketed({8: 8, 4096: 2}),
            batch_size=2,
            inputs_length=4096,
            pack=False,
        ),
    )
    taken, make = [], planning.learner_of

    def learner_of(experiment):
        taken.append(experiment.model.attention)
        return make(experiment)

    def compile_step(*_, **__):
        raise OutOfMemory(3 * 2**30, 2 * 2**30, seconds=1.0)

    monkeypatch.setattr(planning, "learner_of", learner_of)
    monkeypatch.setattr(planning, "compile_step", compile_step)
    with pytest.raises(DoesNotFit):
        plan(experiment, devices="cpu:1")
    assert taken == ["blocked", "blocked"]
    assert "does not fit" in capsys.readouterr().out


def test_microbatches_are_doubled_until_the_step_fits(tiny_experiment, monkeypatch, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    tried = []

    def make_sheets(experiment, devices, *, asked, hbm):
        tried.append((experiment.microbatches, hbm))
        fits = experiment.microbatches >= least
        return types.SimpleNamespace(
            largest=types.SimpleNamespace(fits=fits), verdict=lambda: "does not fit by 1.00 GiB"
        )

    monkeypatch.setattr(planning, "make_sheets", make_sheets)
    monkeypatch.setattr(planning, "of_device", lambda device: 2**30 * len(jax.local_devices()))
    open_one = dataclasses.replace(tiny_experiment, find_batch_size=True)
    least = 2
    found = planning.with_microbatches(open_one, earlier=None)
    assert found == dataclasses.replace(open_one, microbatches=2)
    assert tried == [(1, 1.0), (2, 1.0)]
    assert "find_batch_size: using 2 microbatches" in caplog.messages
    # A run that resumes keeps its number.
    earlier = dataclasses.replace(open_one, microbatches=4)
    assert planning.with_microbatches(open_one, earlier=earlier).microbatches == 4
    assert len(tried) == 2
    least = 8
    with pytest.raises(InputError, match=r"find_batch_size: does not fit by 1\.00 GiB"):
        planning.with_microbatches(open_one, earlier=None)
    with pytest.raises(InputError, match="unset tokens_per_part"):
        planning.with_microbatches(dataclasses.replace(open_one, tokens_per_part=99), earlier=None)


@pytest.mark.slow
def test_a_run_finds_its_microbatches_and_has_the_same_losses(
    tiny_experiment, tmp_path, monkeypatch, compile_once
):
    """The memory of two microbatches and not of one, by the compiler's own numbers."""
    experiment = dataclasses.replace(
        tiny_experiment,
        model=dataclasses.replace(tiny_experiment.model, dropout_rate=0.0),
        steps=2,
        log_period=1,
        evaluation=dataclasses.replace(tiny_experiment.evaluation, max_batches=1),
        workdir=str(tmp_path / "one"),
    )
    one_device = jax.devices()[:1]
    needs = [
        planning.make_sheets(
            dataclasses.replace(experiment, microbatches=number), one_device, asked="cpu"
        ).largest.needed
        for number in (1, 2)
    ]
    assert needs[1] < needs[0]
    train(experiment)
    monkeypatch.setattr(planning, "of_device", lambda device: needs[1])
    monkeypatch.setattr(jax, "devices", lambda *_: one_device)
    monkeypatch.setattr(jax, "local_devices", lambda *_: one_device)
    train(dataclasses.replace(experiment, find_batch_size=True, workdir=str(tmp_path / "two")))
    saved = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (saved["find_batch_size"], saved["microbatches"]) == (True, 2)
    losses = [
        [line["loss"] for line in recorded(tmp_path / name) if "loss" in line]
        for name in ("one", "two")
    ]
    assert len(losses[0]) == 2
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
