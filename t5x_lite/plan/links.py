"""How long the collectives of a step take at least on the links between the chips of a slice.

A collective over n devices runs round a ring: of B bytes that are gathered or scattered a device
sends B * (n - 1) / n, of B that are reduced for all twice as many.

    all-reduce of 64 MB over 4 devices at 200 GB/s: 2 * 64 MB * 3 / 4 / 200 GB/s = 0.48 ms

That is a bound from below. All links of a chip are taken to be busy at once and in both directions,
which a group of devices along one side of the slice cannot do, nor any group of a slice that is no
closed torus; the time of a first byte is left out, and slices are taken to be joined by such links
too.
"""

import dataclasses
from collections.abc import Iterable

from t5x_lite.plan.hlo import Collective

_ROUNDS = {"all-reduce": 2}


@dataclasses.dataclass(frozen=True)
class Moved:
    """What the collectives of a step move on one device, and how.

    Attributes:
      synchronous: bytes of collectives that the device waits for.
      asynchronous: bytes of those that run beside other work.
      reduce_scattered: bytes, of both, that are reduced to shards.
      gathered_by_reduction: bytes of all-reduces that only gather shards, among zeros.
    """

    synchronous: int
    asynchronous: int
    reduce_scattered: int
    gathered_by_reduction: int


@dataclasses.dataclass(frozen=True)
class RingTime:
    """Seconds on the links, at least.

    Attributes:
      synchronous: of collectives that a device waits for.
      asynchronous: of those that run beside other work.
    """

    synchronous: float
    asynchronous: float

    def added_to(self, work: float) -> float:
        """Seconds of a step whose other work takes so many."""
        return max(work, self.asynchronous) + self.synchronous


def moved(traffic: Iterable[Collective]) -> Moved:
    """Sums up the collectives of a step."""
    traffic = tuple(traffic)
    waited = [one for one in traffic if not one.asynchronous]
    return Moved(
        synchronous=_bytes(waited),
        asynchronous=_bytes(traffic) - _bytes(waited),
        reduce_scattered=_bytes(one for one in traffic if one.kind == "reduce-scatter"),
        gathered_by_reduction=sum(one.count * one.gathered for one in traffic),
    )


def ring_time(traffic: Iterable[Collective], links: float) -> RingTime:
    """The least time of the collectives of a step.

    Args:
      traffic: the collectives.
      links: bytes a second that a device sends over all its links.
    """
    seconds = {True: 0.0, False: 0.0}
    for one in traffic:
        seconds[one.asynchronous] += ring_bytes(one) / links
    return RingTime(synchronous=seconds[False], asynchronous=seconds[True])


def ring_bytes(one: Collective) -> float:
    """Bytes that a device sends in all runs of a collective."""
    share = 1.0 if one.kind == "collective-permute" else (one.devices - 1) / one.devices
    return one.count * one.bytes * share * _ROUNDS.get(one.kind, 1)


def _bytes(traffic: Iterable[Collective]) -> int:
    return sum(one.count * one.bytes for one in traffic)


def lines(traffic: Iterable[Collective]) -> list[str]:
    """How the collectives of a step run, for a person."""
    sums = moved(traffic)
    if not sums.synchronous + sums.asynchronous:
        return []
    text = [
        f"  {sums.synchronous / 1e6:.1f} MB synchronous, {sums.asynchronous / 1e6:.1f} MB beside "
        f"other work; {sums.reduce_scattered / 1e6:.1f} MB reduce-scattered"
    ]
    if sums.gathered_by_reduction:
        text.append(
            f"  {sums.gathered_by_reduction / 1e6:.1f} MB of all-reduce gather shards among zeros, "
            "at twice the cost of all-gather"
        )
    return text
