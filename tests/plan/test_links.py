"""Bytes and seconds on the links, by hand."""

import pytest

from t5x_lite.plan.hlo import Collective, Moved, RingTime, lines, moved, ring_bytes, ring_time

TRAFFIC = (
    Collective("all-reduce", 2, 64_000_000, 4, looped=True, gathered=16_000_000),
    Collective("reduce-scatter", 1, 8_000_000, 8),
    Collective("all-gather", 3, 2_000_000, 2, asynchronous=True),
)


@pytest.mark.parametrize(
    ("kind", "devices", "expected"),
    [
        ("all-gather", 4, 75.0),
        ("reduce-scatter", 4, 75.0),
        ("all-reduce", 4, 150.0),
        ("all-to-all", 4, 75.0),
        ("all-reduce", 1, 0.0),
        ("collective-permute", 4, 100.0),
    ],
)
def test_bytes_round_a_ring(kind, devices, expected):
    assert ring_bytes(Collective(kind, 1, 100, devices)) == expected
    assert ring_bytes(Collective(kind, 3, 100, devices)) == 3 * expected


def test_what_is_moved():
    assert moved(TRAFFIC) == Moved(
        synchronous=136_000_000,
        asynchronous=6_000_000,
        reduce_scattered=8_000_000,
        gathered_by_reduction=32_000_000,
    )


def test_the_least_time():
    found = ring_time(TRAFFIC, 200e9)
    # 2 runs * 2 * 64 MB * 3/4, 8 MB * 7/8; beside other work 3 * 2 MB / 2.
    assert found.synchronous == pytest.approx((192 + 7) * 1e6 / 200e9)
    assert found.asynchronous == pytest.approx(3 * 1e6 / 200e9)


def test_what_waits_is_added_and_what_does_not_is_hidden():
    assert RingTime(synchronous=1.0, asynchronous=2.0).added_to(5.0) == 6.0
    assert RingTime(synchronous=1.0, asynchronous=2.0).added_to(1.5) == 3.0


def test_lines():
    assert lines(TRAFFIC) == [
        "  136.0 MB synchronous, 6.0 MB beside other work; 8.0 MB reduce-scattered",
        "  32.0 MB of all-reduce gather shards among zeros, at twice the cost of all-gather",
    ]
    assert lines(()) == []
