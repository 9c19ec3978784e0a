import pytest

from t5x_lite.core.accelerators import Chip, chip


def test_chips():
    assert chip("TPU v5 lite") == Chip(
        peak=197e12, hbm=int(15.75 * 2**30), clock=1.5e9, bandwidth=819e9, links=200e9
    )
    assert chip("TPU v6 lite").clock is None
    assert chip("cpu") == Chip()


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("TPU7x", 1153.5),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.5),
    ],
)
def test_peaks(kind, tera):
    assert chip(kind).peak == tera * 1e12


@pytest.mark.parametrize(
    ("kind", "giga"),
    [("TPU v4", 300), ("TPU v5 lite", 200), ("TPU v5", 600), ("TPU v6 lite", 400), ("TPU7x", 300)],
)
def test_links(kind, giga):
    assert chip(kind).links == giga * 1e9


@pytest.mark.parametrize(
    "kind", ["cpu", "TPU v9", "NVIDIA H1000", "NVIDIA GH200 480GB", "Tesla T4"]
)
def test_other_devices_have_no_known_peak(kind):
    assert chip(kind).peak is None
