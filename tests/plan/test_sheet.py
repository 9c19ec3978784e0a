import dataclasses
import json

import pytest

from t5x_lite.core.accelerators import Chip
from t5x_lite.plan.hlo import Collective, Kernel, Operation, Reading, Traffic
from t5x_lite.plan.program import Estimate, Memory, Sheet, Sheets

GIB = 2**30
MEMORY = Memory(
    parameters=GIB, optimizer=GIB // 2, batch=0, temporaries=4 * GIB, results=0, program=0,
    peak=6 * GIB,
)  # fmt: skip
READING = Reading({"all-reduce": Traffic(3, 2_000_000)}, cycles=3_000_000, unknown_loops=0)


def sheet(**changes):
    fields = {
        "model": "T5Config",
        "num_parameters": 247_577_856,
        "compute_dtype": "bfloat16",
        "devices": ("TPU v5 lite", "v5e:4x4"),
        "num_devices": 16,
        "mesh": {"replica": 1, "data": 8, "fsdp": 2, "sequence": 1, "tensor": 1},
        "rows": 256,
        "lengths": {"encoder_input_tokens": 512, "decoder_target_tokens": 114},
        "microbatches": 1,
        "chip": Chip(200e12, hbm=8 * GIB, clock=1.5e9),
        "flops": int(1.6e12),
        "memory": MEMORY,
        "needed": 6 * GIB,
        "reading": READING,
        "trace_seconds": 5.0,
        "compile_seconds": 61.0,
    }
    return Sheet(**{**fields, **changes})


def test_the_text():
    assert (
        sheet().text()
        == """\
T5Config, 247,577,856 parameters, bfloat16
16 x TPU v5 lite (v5e:4x4), mesh: data 8, fsdp 2
batch of 256 rows of 512 / 114 tokens

memory of a device, GiB
  parameters                                1.00
  optimizer state                           0.50
  batch                                     0.00
  temporaries (activations, gradients)      4.00
  results                                   0.00
  program                                   0.00
  peak, with padding                        6.00
  fits: 2.00 GiB of 8.00 are left

FLOPs of a step            1.600e+12 (analytic: matrix products, no rematerialisation)
collectives of a device in a step
  all-reduce                      2.0 MB in 3
compile time               61 s, after 5 s of tracing
estimated step time        2.0 ms, estimated MFU 0.25
  an ESTIMATE: the compiler's cycles at 1.50 GHz, without waiting for collectives; nothing was run\
"""
    )


LINKED = dataclasses.replace(
    READING,
    traffic=(
        Collective("all-reduce", 3, 400_000, 16, looped=True),
        Collective("all-gather", 1, 800_000, 16, asynchronous=True),
    ),
)


def test_the_least_time_of_links_is_added():
    one = sheet(chip=Chip(200e12, hbm=8 * GIB, clock=1.5e9, links=1e9), reading=LINKED)
    assert one.with_links == pytest.approx(2e-3 + 2.25e-3)  # 3 * 2 * 0.4 MB * 15 / 16 at 1 GB/s
    lines = one.text().splitlines()
    assert lines[-2:] == [
        "and waiting for links      4.2 ms, with 2.2 ms of synchronous collectives, and 0.8 ms "
        "beside other work",
        "  at least: by rings over all links of a device at once, 1 GB/s each way",
    ]
    assert lines[17] == "  1.2 MB synchronous, 0.8 MB beside other work; 0.0 MB reduce-scattered"
    record = json.loads(json.dumps(one.record()))
    assert record["estimated_step_seconds_with_links"] == pytest.approx(4.25e-3)
    assert record["least_link_seconds"]["asynchronous"] == pytest.approx(0.75e-3)
    assert record["collective_bytes"]["synchronous"] == 1_200_000


def test_of_a_chip_without_a_clock_the_links_alone_are_known():
    one = sheet(chip=Chip(200e12, links=1e9), reading=LINKED)
    assert (one.estimate, one.with_links) == (None, None)
    assert one.text().splitlines()[-2].startswith("and waiting for links      2.2 ms of synchron")
    assert sheet(reading=LINKED).rings is None
    assert sheet(chip=Chip(links=1e9)).rings is None


def test_warnings_stand_at_the_head():
    one = sheet(warnings=("axis 'embed' is cut",))
    assert one.text().splitlines()[3] == "warning: axis 'embed' is cut"
    assert one.record()["warnings"] == ["axis 'embed' is cut"]


def test_settings_that_replaced_auto_are_printed():
    line = "model: attention pallas (TPU v5), unroll True (12 layers)"
    one = sheet(choices=(line,))
    assert one.text().splitlines()[3] == line
    assert one.record()["choices"] == [line]


def test_a_small_model_is_measured_in_mib():
    memory = dataclasses.replace(MEMORY, parameters=1 << 18, peak=GIB - 1)
    lines = sheet(memory=memory).text().splitlines()
    assert lines[4:6] == [
        "memory of a device, MiB",
        "  parameters                                0.25",
    ]
    assert lines[11] == "  peak, with padding                     1024.00"


def test_the_record_has_the_same_numbers_and_is_json():
    record = json.loads(json.dumps(sheet().record()))
    assert record["fits"] is True
    assert record["memory_bytes"]["temporaries"] == 4 * GIB
    assert record["memory_bytes_available"] == 8 * GIB
    assert record["collectives"] == {"all-reduce": {"count": 3, "bytes": 2_000_000}}
    assert record["estimated_step_seconds"] == pytest.approx(2e-3)
    assert record["estimated_mfu"] == pytest.approx(0.25)
    assert record["mesh"]["data"] == 8


@pytest.mark.parametrize(
    ("changes", "estimate"),
    [
        ({}, Estimate(seconds=2e-3, mfu=0.25)),
        ({"flops": None}, Estimate(seconds=2e-3, mfu=None)),
        ({"chip": Chip(hbm=8 * GIB, clock=1.5e9)}, Estimate(seconds=2e-3, mfu=None)),
        ({"chip": Chip(hbm=GIB)}, None),
        ({"reading": Reading({}, cycles=None, unknown_loops=0)}, None),
        ({"reading": None}, None),
    ],
)
def test_the_estimate(changes, estimate):
    assert sheet(**changes).estimate == estimate


def test_the_costliest_operations_are_listed():
    many = tuple(Operation(f"jit(step)/{name}", 12, 1_500_000) for name in ("dot", "exp", "add"))
    reading = dataclasses.replace(READING, operations=many)
    two = sheet(reading=reading, operations=2)
    assert two.text().endswith(
        "nothing was run\n"
        "       1.00 ms in   12  jit(step)/dot\n"
        "       1.00 ms in   12  jit(step)/exp"
    )
    assert two.record()["operations"] == [
        {"source": f"jit(step)/{name}", "count": 12, "seconds": 1e-3} for name in ("dot", "exp")
    ]
    assert sheet(reading=reading).record()["operations"] == []
    assert sheet(reading=reading, operations=2, chip=Chip(hbm=GIB)).record()["operations"] == []


def test_memory_that_is_not_known():
    unknown = sheet(chip=Chip(), devices=("cpu", "cpu:8"))
    assert unknown.fits is None
    assert "the memory size of a cpu device is unknown" in unknown.text()


def test_a_step_that_did_not_compile():
    full = sheet(
        memory=None, needed=25 * GIB, reading=None, trace_seconds=None,
        remedies=("--model.remat full", "--microbatches 2"),
    )  # fmt: skip
    assert full.fits is False
    assert full.over == 17 * GIB
    assert full.verdict() == (
        "does not fit by 17.00 GiB: 25.00 GiB are needed and a TPU v5 lite has 8.00. Try "
        "--model.remat full; --microbatches 2"
    )
    assert full.verdict() in full.text()
    assert full.record()["memory_bytes"] is None


def test_a_step_that_compiled_and_is_too_large():
    full = sheet(chip=Chip(hbm=5 * GIB), remedies=("more or larger devices",))
    assert full.fits is False
    assert full.verdict().startswith("does not fit by 1.00 GiB: 6.00 GiB are needed and a TPU v5")


def test_an_overflow_of_unknown_size():
    full = sheet(memory=None, needed=None, reading=None, remedies=("--microbatches 2",))
    assert full.over is None
    assert full.verdict() == "does not fit. Try --microbatches 2"
    assert json.dumps(full.record())


def test_kernels_count_by_the_chip_s_rates():
    kernels = (Kernel(2, flops=10**11, bytes=10**6), Kernel(1, flops=10**6, bytes=10**9))
    reading = dataclasses.replace(READING, kernels=kernels)
    plan = sheet(reading=reading, chip=Chip(200e12, hbm=8 * GIB, clock=1.5e9, bandwidth=1e12))
    # Twice 0.5 ms at 200 TFLOP/s, and 1 ms at 1 TB/s, besides the 2 ms of before.
    assert plan.estimate is not None
    assert plan.estimate.seconds == pytest.approx(4e-3)
    assert plan.estimate.mfu == pytest.approx(0.125)
    text = plan.text()
    assert "  3 runs, 2.000e+11 FLOPs, 1002.0 MB from and to HBM" in text
    assert "cycles at 1.50 GHz and the kernels at the chip's rates (2.0 ms), without" in text
    assert plan.record()["kernels"][0] == {"count": 2, "flops": 10**11, "bytes": 10**6}
    assert sheet(reading=reading).estimate == sheet().estimate  # no bandwidth is known


def test_one_shape_is_planned_as_before():
    one = Sheets(sheets=(sheet(),))
    assert (one.text(), one.record()) == (sheet().text(), sheet().record())
    assert one.verdict() == sheet().verdict()


def test_several_shapes_are_a_table_and_the_largest():
    small = sheet(rows=2048, needed=5 * GIB, compile_seconds=42.0, flops=None)
    two = Sheets(sheets=(small, sheet()), lengths=(128, 512))
    assert two.largest == sheet()
    assert two.verdict() == sheet().verdict()
    assert (
        two.text()
        == f"""\
batches of 2 shapes, each a program of its own
    rows  tokens   peak, GiB       FLOPs  compiled in    estimate   MFU
    2048     128        5.00           -         42 s      2.0 ms     -
     256     512        6.00   1.600e+12         61 s      2.0 ms  0.25

the one that needs the most memory:
{sheet().text()}"""
    )
    record = json.loads(json.dumps(two.record()))
    shapes = record.pop("shapes")
    assert record == json.loads(json.dumps(sheet().record()))
    assert [(one["length"], one["rows"], one["memory_bytes_needed"]) for one in shapes] == [
        (128, 2048, 5 * GIB),
        (512, 256, 6 * GIB),
    ]


def test_a_shape_that_did_not_compile_is_the_largest():
    failed = sheet(memory=None, needed=None, reading=None, trace_seconds=None)
    two = Sheets(sheets=(failed, sheet()), lengths=(128, 512))
    assert two.largest == failed
    assert "   not known" in two.text()
    assert two.largest.fits is False
