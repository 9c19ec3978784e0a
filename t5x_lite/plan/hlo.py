"""Analysis of a compiled program (HLO text): bytes, cycles, and time of collectives.

    %body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
      %all-reduce.1 = f32[8]{0} all-reduce(%x), channel_id=1, to_apply=%add
      ...
    }
    ENTRY %main (p: f32[8]) -> f32[8] {
      %while.1 = (s32[], f32[8]) while(%t), condition=%cond, body=%body,
          backend_config={"known_trip_count":{"n":"12"}}
    }

    read(text).traffic          [Collective("all-reduce", count=12, bytes=32, devices=8, ...)]
    read(text).collectives      {"all-reduce": Traffic(count=12, bytes=384)}
    read(text).operations       operations with estimated cycles, the costliest first

A loop's body counts once for each iteration; the compiler's own cost analysis counts it only once.
The number of iterations is the known trip count, or the constant in the loop's condition.

The compiler has no estimate for a Pallas kernel; its FLOPs and bytes are declared in its code.

Lower bound of the time of a step's collectives on the links between the chips of a slice:

A collective over n devices runs around a ring. To gather or scatter B bytes, a device sends B * (n
- 1) / n bytes; to all-reduce B bytes, it sends twice as many.

    all-reduce of 64 MB over 4 devices at 200 GB/s: 2 * 64 MB * 3 / 4 / 200 GB/s = 0.48 ms

This is a lower bound. It assumes that all links of a chip are busy at once and in both directions.
Groups of devices along one side of the slice cannot reach this, and neither can groups in a slice
without a closed torus. The latency of the first byte is omitted, and slices are assumed to be
joined by the same links.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-broadcast",
    "collective-permute",
)

_CALLERS = ("fusion", "call", "async-start", "conditional")

_BITS = {"pred": 8, "bf16": 16, "token": 0}
"""Bits per element of HLO types with names that do not end with their width."""

_ENTRY = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|[\s)}\]])([a-z][a-z0-9\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.\-]+)")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations=\{([^}]*)\}|true_computation=%?([\w.\-]+), "
    r"false_computation=%?([\w.\-]+))"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_MESH_GROUPS = re.compile(r"\breplica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_IOTA_GROUPS = re.compile(r"\breplica_groups=\[\d+,(\d+)\]")
_LISTED_GROUPS = re.compile(r"\breplica_groups=\{\{([\d, ]*)\}")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_GROUPED_AXIS = re.compile(r"'(\w+)'(?::\(\d+\)(\d+))?")
_KERNEL = re.compile(r'custom_call_target="tpu_custom_call"')
_FLOPS = re.compile(r'"flops": ?"?(\d+)')
_BYTES = re.compile(r'"bytes_accessed": ?"?(\d+)')
_SOURCE = re.compile(r'\bop_name="([^"]*)"')
_CONSTANT = re.compile(r"= s(?:32|64)\[\]\S* constant\((\d+)\)")

_UNKNOWN_CYCLES = 1 << 62
"""Threshold of cycle estimates; the compiler writes values near 2^63 if it has no estimate."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Number and bytes of one kind of collective on one device, per execution of the program.

    Attributes:
      count: number of executions.
      bytes: total bytes, where each collective counts the larger of its operand and result.
    """

    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation in a compiled program, on one device.

    Attributes:
      kind: kind of the collective, one of `COLLECTIVES`; "reduce-scatter" includes an all-reduce if
        each device keeps only its shard of the result.
      count: number of executions.
      bytes: bytes of one execution: the larger of operand and result.
      devices: number of participating devices.
      asynchronous: True if other operations run between its start and its end.
      looped: True if the collective is in the body of a loop.
      gathered: bytes of an all-reduce's operands that are shards padded with zeros, else 0.
      source: name of the JAX operation; "" if the compiler added the collective.
    """

    kind: str
    count: int
    bytes: int
    devices: int
    asynchronous: bool = False
    looped: bool = False
    gathered: int = 0
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One Pallas kernel call in a compiled program, on one device.

    Attributes:
      count: number of executions.
      flops: FLOPs of one execution, as declared in the kernel's code; 0 if missing.
      bytes: bytes from and to HBM in one execution, as declared in the kernel's code; 0 if missing.
    """

    count: int
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Operation:
    """Cost of one JAX operation in a compiled program, on one device.

    Attributes:
      source: name of the JAX operation, such as "jit(step)/jvp()/while/body/dot_general"; for a
        fusion, the name of its last operation; for an operation that the compiler added, its
        opcode.
      count: number of executions.
      cycles: cycles of all executions.
    """

    source: str
    count: int
    cycles: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """Collectives, kernels and costs that `read` extracts from the text of a compiled program.

    Attributes:
      collectives: traffic of each kind of collective.
      cycles: sum of the cycle estimates; None without estimates, as on CPU.
      unknown_loops: number of loops with an unknown number of iterations; they count once.
      kernels: Pallas kernels, which have no cycle estimates.
      operations: operations with cycle estimates, most expensive first.
      traffic: individual collectives.
    """

    collectives: Mapping[str, Traffic]
    cycles: int | None
    unknown_loops: int
    kernels: tuple[Kernel, ...] = ()
    operations: tuple[Operation, ...] = ()
    traffic: tuple[Collective, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str


def read(text: str) -> Reading:
    """Parse the HLO text of a compiled program."""
    return _Program(text).reading()


def array_bytes(shape: str) -> int:
    """Return the bytes of an HLO shape, such as "(f32[8,128]{1,0:T(8,128)}, bf16[4])"."""
    total = 0
    for dtype, dims in _ARRAY.findall(shape):
        width = re.search(r"\d+", dtype)
        bits = _BITS[dtype] if dtype in _BITS else int(width.group()) if width else 0
        size = math.prod(int(dim) for dim in dims.split(",") if dim)
        total += math.ceil(size * bits / 8)
    return total


class _Program:
    """Parsed computations (functions) of an HLO program, by name."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[_Instruction]] = {}
        self._constants: dict[str, list[int]] = {}
        self._made: dict[str, _Instruction] = {}
        self._fused: set[str] = set()
        self._entry = ""
        self._partitions = int(_first(_PARTITIONS, text.partition("\n")[0]) or "1")
        self._unknown: set[str] = set()
        name = ""
        for line in text.splitlines():
            if header := _ENTRY.match(line):
                name = header.group(2)
                self._lines[name], self._constants[name] = [], []
                if header.group(1):
                    self._entry = name
            elif name and (parsed := _instruction(line)) is not None:
                self._lines[name].append(parsed)
                self._made[parsed.name] = parsed
                if parsed.opcode == "fusion":
                    self._fused.update(_called(parsed))
                self._constants[name] += [int(n) for n in _CONSTANT.findall(line)]

    def reading(self) -> Reading:
        traffic = tuple(self._collectives(self._entry, runs=1, looped=False))
        operations = self._operations(self._entry, runs=1)
        kernels = tuple(self._kernels(self._entry, runs=1))
        return Reading(
            _by_kind(traffic),
            _cycles(operations) if operations else None,
            len(self._unknown),
            kernels,
            _by_source(operations),
            traffic,
        )

    def _collectives(self, name: str, *, runs: int, looped: bool) -> list[Collective]:
        collectives: list[Collective] = []
        channels: dict[str, int] = {}
        for within, instruction in self._straight(name):
            kind = _kind(instruction.opcode)
            if instruction.opcode == "while":
                body, trips = _first(_BODY, instruction.rest), self._trips(instruction)
                collectives += self._collectives(body, runs=trips * runs, looped=True)
                continue
            if kind is None:
                continue
            channel = _first(_CHANNEL, instruction.rest)
            if channel in channels:  # it occurs in each of the fusions that it overlaps with
                place = channels[channel]
                collectives[place] = dataclasses.replace(collectives[place], asynchronous=True)
                continue
            if channel:
                channels[channel] = len(collectives)
            operands = self._operands(instruction)
            collectives.append(
                Collective(
                    "reduce-scatter" if self._is_scattered(within, instruction) else kind,
                    runs,
                    self._moved(kind, instruction),
                    self._devices(instruction.rest),
                    asynchronous=instruction.opcode.endswith("-start"),
                    looped=looped,
                    gathered=sum(map(self._padded, operands)) if kind == "all-reduce" else 0,
                    source=_first(_SOURCE, instruction.rest),
                )
            )
        return collectives

    def _is_scattered(self, name: str, reduction: _Instruction) -> bool:
        if name not in self._fused or reduction.opcode != "all-reduce":
            return False
        users = [one for one in self._lines[name] if reduction.name in self._operands(one)]
        return bool(users) and all(one.opcode == "dynamic-slice" for one in users)

    def _padded(self, name: str) -> int:
        """Return the bytes of an array if it is a shard padded with zeros, else 0."""
        made = self._made.get(name)
        root = made
        while root is not None and root.opcode == "fusion":
            fused = self._lines.get(_first(_CALLED, root.rest))
            root = fused[-1] if fused else None  # a computation's last line is its root
        is_update = root is not None and root.opcode == "dynamic-update-slice"
        return array_bytes(made.shape) if made is not None and is_update else 0

    def _devices(self, rest: str) -> int:
        if mesh := _MESH_GROUPS.search(rest):
            sizes = dict(_AXIS.findall(mesh.group(1)))
            axes = _GROUPED_AXIS.findall(mesh.group(2))
            return math.prod(int(part or sizes[axis]) for axis, part in axes)
        if iota := _IOTA_GROUPS.search(rest):
            return int(iota.group(1))
        listed = _first(_LISTED_GROUPS, rest)
        return len(listed.split(",")) if listed else self._partitions

    def _operands(self, instruction: _Instruction) -> list[str]:
        return _OPERAND.findall(instruction.rest.partition(")")[0])

    def _kernels(self, name: str, *, runs: int) -> Iterator[Kernel]:
        for _, instruction in self._straight(name):
            if instruction.opcode == "while":
                body = _first(_BODY, instruction.rest)
                yield from self._kernels(body, runs=runs * self._trips(instruction))
            elif instruction.opcode == "custom-call" and _KERNEL.search(instruction.rest):
                flops, size = (_first(of, instruction.rest) or "0" for of in (_FLOPS, _BYTES))
                yield Kernel(runs, int(flops), int(size))

    def _straight(self, name: str) -> Iterator[tuple[str, _Instruction]]:
        for instruction in self._lines.get(name, ()):
            if instruction.opcode in _CALLERS:
                for called in _called(instruction):
                    yield from self._straight(called)
            else:
                yield name, instruction

    def _moved(self, kind: str, instruction: _Instruction) -> int:
        given = array_bytes(instruction.rest.partition(")")[0]) or sum(
            array_bytes(self._made[name].shape)
            for name in self._operands(instruction)
            if name in self._made
        )
        result = array_bytes(instruction.shape)
        if kind == "all-gather" and instruction.opcode.endswith("-start"):
            return result - given  # its result holds the operand too
        return result if kind in ("all-gather", "collective-broadcast") else given

    def _operations(self, name: str, *, runs: int) -> list[Operation]:
        found: list[Operation] = []
        for instruction in self._lines.get(name, ()):
            estimate = _CYCLES.search(instruction.rest)
            if estimate is not None and int(estimate.group(1)) < _UNKNOWN_CYCLES:
                source = _first(_SOURCE, instruction.rest) or instruction.opcode
                found.append(Operation(source, runs, runs * int(estimate.group(1))))
            elif instruction.opcode == "while":
                body = _first(_BODY, instruction.rest)
                found += self._operations(body, runs=runs * self._trips(instruction))
            elif instruction.opcode == "conditional":
                branches = [self._operations(each, runs=runs) for each in _called(instruction)]
                found += max(branches, key=_cycles, default=[])
            elif instruction.opcode == "call":
                for each in _called(instruction):
                    found += self._operations(each, runs=runs)
        return found

    def _trips(self, loop: _Instruction) -> int:
        known = _TRIPS.search(loop.rest)
        if known is not None:
            return int(known.group(1))
        constants = self._constants.get(_first(_CONDITION, loop.rest), [])
        if len(constants) == 1:
            return constants[0]
        self._unknown.add(loop.name)
        return 1


def _by_kind(traffic: Iterable[Collective]) -> dict[str, Traffic]:
    kinds: dict[str, Traffic] = {}
    for one in traffic:
        before = kinds.get(one.kind, Traffic(0, 0))
        moved = before.bytes + one.count * one.bytes
        kinds[one.kind] = Traffic(before.count + one.count, moved)
    return kinds


def _cycles(operations: Iterable[Operation]) -> int:
    return sum(operation.cycles for operation in operations)


def _by_source(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    counts: dict[str, list[int]] = {}
    for operation in operations:
        total = counts.setdefault(operation.source, [0, 0])
        total[0] += operation.count
        total[1] += operation.cycles
    found = (Operation(source, *total) for source, total in counts.items())
    return tuple(sorted(found, key=lambda operation: -operation.cycles))


def _instruction(line: str) -> _Instruction | None:
    parsed = _INSTRUCTION.match(line)
    opcode = _OPCODE.search(parsed.group(2)) if parsed else None
    if parsed is None or opcode is None:
        return None
    text = parsed.group(2)
    return _Instruction(
        parsed.group(1), text[: opcode.start(1)], opcode.group(1), text[opcode.end() :]
    )


def _kind(opcode: str) -> str | None:
    kind = opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else None


def _called(instruction: _Instruction) -> list[str]:
    if instruction.opcode != "conditional":
        return _CALLED.findall(instruction.rest)
    branches = _BRANCHES.search(instruction.rest)
    groups = [group for group in branches.groups() if group] if branches else []
    return [name.strip().lstrip("%") for group in groups for name in group.split(",")]


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""


_ROUNDS = {"all-reduce": 2}


@dataclasses.dataclass(frozen=True)
class Moved:
    """Total bytes of all collectives of a train step, on one device.

    Attributes:
      synchronous: bytes of collectives that the device waits for.
      asynchronous: bytes of collectives that overlap with other operations.
      reduce_scattered: bytes of reduce-scatters, both synchronous and asynchronous.
      gathered_by_reduction: bytes of all-reduce operands that are shards padded with zeros.
    """

    synchronous: int
    asynchronous: int
    reduce_scattered: int
    gathered_by_reduction: int


@dataclasses.dataclass(frozen=True)
class RingTime:
    """Minimum time of all collectives of a train step on the links between chips, in seconds.

    Attributes:
      synchronous: seconds of collectives that a device waits for.
      asynchronous: seconds of collectives that overlap with other operations.
    """

    synchronous: float
    asynchronous: float

    def added_to(self, work: float) -> float:
        """Return the time of a step with these collectives and `work` seconds of computation."""
        return max(work, self.asynchronous) + self.synchronous


def moved(traffic: Iterable[Collective]) -> Moved:
    """Return the total bytes of the collectives of a train step."""
    traffic = tuple(traffic)
    waited = [one for one in traffic if not one.asynchronous]
    return Moved(
        synchronous=_bytes(waited),
        asynchronous=_bytes(traffic) - _bytes(waited),
        reduce_scattered=_bytes(one for one in traffic if one.kind == "reduce-scatter"),
        gathered_by_reduction=sum(one.count * one.gathered for one in traffic),
    )


def ring_time(traffic: Iterable[Collective], links: float) -> RingTime:
    """Return the minimum time of collectives for a link speed (`links`) in bytes per second."""
    seconds = {True: 0.0, False: 0.0}
    for one in traffic:
        seconds[one.asynchronous] += ring_bytes(one) / links
    return RingTime(synchronous=seconds[False], asynchronous=seconds[True])


def ring_bytes(one: Collective) -> float:
    """Return the number of bytes that a device sends in all executions of one collective."""
    share = 1.0 if one.kind == "collective-permute" else (one.devices - 1) / one.devices
    return one.count * one.bytes * share * _ROUNDS.get(one.kind, 1)


def _bytes(traffic: Iterable[Collective]) -> int:
    return sum(one.count * one.bytes for one in traffic)


def lines(traffic: Iterable[Collective]) -> list[str]:
    """Return a text summary of the collectives of a train step, as lines."""
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
