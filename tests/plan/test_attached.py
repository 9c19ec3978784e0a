"""An attached slice beside the one that is meant, of stubs of devices."""

from types import SimpleNamespace

import pytest

from t5x_lite.plan.program import Slice, described, difference, less_memory, memory

GIB = 2**30


def devices(*shape, kind="TPU v5 lite", limit=None):
    stats = None if limit is None else {"bytes_limit": limit}
    return [
        SimpleNamespace(
            device_kind=kind, coords=(x, y, 0), slice_index=0, memory_stats=lambda: stats
        )
        for x in range(shape[0])
        for y in range(shape[1])
    ]


def test_described():
    found = described(devices(8, 4))
    assert found == Slice("TPU v5 lite", 32, (8, 4), 1)
    assert str(found) == "32 x TPU v5 lite, 8x4 chips in 1 slice(s)"


def test_devices_without_coordinates():
    gpus = [SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3") for _ in range(8)]
    assert described(gpus) == Slice("NVIDIA H100 80GB HBM3", 8, (), 1)
    assert str(described(gpus)) == "8 x NVIDIA H100 80GB HBM3 in 1 slice(s)"


def test_the_same_slice_turned_is_the_same():
    meant = described(devices(4, 8))
    assert difference(described(devices(8, 4)), meant, name="v5e:4x8") is None


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (
            devices(2, 4),
            "the attached devices are 8 x TPU v5 lite, 2x4 chips in 1 slice(s), but v5e:8x8 has "
            "64 x TPU v5 lite, 8x8 chips in 1 slice(s); run the command on all hosts of the "
            "slice at the same time, or omit --topology",
        ),
        (
            devices(16, 4),
            "the attached devices are 64 x TPU v5 lite, 16x4 chips in 1 slice(s), but v5e:8x8 "
            "has 64 x TPU v5 lite, 8x8 chips in 1 slice(s); omit --topology to plan for the "
            "attached devices",
        ),
        (
            devices(8, 8, kind="TPU v6 lite"),
            "the attached devices are 64 x TPU v6 lite, 8x8 chips in 1 slice(s), but v5e:8x8 "
            "has 64 x TPU v5 lite, 8x8 chips in 1 slice(s); omit --topology to plan for the "
            "attached devices",
        ),
    ],
)
def test_another_slice_is_one_line(there, message):
    assert difference(described(there), described(devices(8, 8)), name="v5e:8x8") == message


def test_memory():
    assert memory(devices(1, 2, limit=15 * GIB) + devices(1, 1, limit=14 * GIB)) == 14 * GIB
    assert memory(devices(1, 2)) is None


def test_less_memory():
    assert less_memory(15 * GIB, int(15.75 * GIB)) == (
        "a device offers only 15.00 of its 15.75 GiB of memory; another process may use memory, or "
        "XLA_PYTHON_CLIENT_MEM_FRACTION may limit it"
    )
    assert less_memory(int(15.7 * GIB), int(15.75 * GIB)) is None
    assert less_memory(None, GIB) is None
    assert less_memory(GIB, None) is None
