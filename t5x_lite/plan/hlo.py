"""What the text of a compiled program (HLO) says: bytes of collectives, and estimated cycles.

    %body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
      %all-reduce.1 = f32[8]{0} all-reduce(%x), channel_id=1, to_apply=%add
      ...
    }
    ENTRY %main (p: f32[8]) -> f32[8] {
      %while.1 = (s32[], f32[8]) while(%t), condition=%cond, body=%body,
          backend_config={"known_trip_count":{"n":"12"}}
    }

    read(text).collectives      {"all-reduce": Traffic(count=12, bytes=384)}
    read(text).operations       what the estimated cycles are of, the costliest first

A loop's body counts as often as it runs: the compiler's own cost analysis counts it once. How often
is known, or is the constant that the loop's condition compares its counter with.

Of a kernel (Pallas) the compiler estimates nothing: it has the FLOPs and bytes that its code says.
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
"""Of the types whose name does not end with their width."""

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
_KERNEL = re.compile(r'custom_call_target="tpu_custom_call"')
_FLOPS = re.compile(r'"flops": ?"?(\d+)')
_BYTES = re.compile(r'"bytes_accessed": ?"?(\d+)')
_SOURCE = re.compile(r'\bop_name="([^"]*)"')
_CONSTANT = re.compile(r"= s(?:32|64)\[\]\S* constant\((\d+)\)")

_UNKNOWN_CYCLES = 1 << 62
"""Estimates near 2^63 mean that there is none."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What the collectives of one kind move, on one device in one run of the program.

    Attributes:
      count: how often they run.
      bytes: the size of what is reduced, or of what is gathered: the larger of operand and result.
    """

    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel in one place of the program, on one device.

    Attributes:
      count: how often it runs.
      flops: of one run, as its code says; 0 where it says nothing.
      bytes: from and to HBM in one run; likewise.
    """

    count: int
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Operation:
    """What takes time, on one device: all that was made of one operation of the source.

    Attributes:
      source: JAX's name of it, "jit(step)/jvp()/while/body/dot_general"; of a fusion that of its
        last operation, and the opcode where the compiler made it.
      count: how often it runs.
      cycles: of all its runs.
    """

    source: str
    count: int
    cycles: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a program says.

    Attributes:
      collectives: kind -> what it moves; only kinds that there are.
      cycles: the sum of the estimates; None where the program has none, as on CPU.
      unknown_loops: loops whose number of runs is not found; they count once.
      kernels: whose cycles are not estimated.
      operations: what the cycles are of, the costliest first.
    """

    collectives: Mapping[str, Traffic]
    cycles: int | None
    unknown_loops: int
    kernels: tuple[Kernel, ...] = ()
    operations: tuple[Operation, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str


def read(text: str) -> Reading:
    """Reads the text of a compiled program."""
    return _Program(text).reading()


def array_bytes(shape: str) -> int:
    """Bytes of a shape's text, such as "(f32[8,128]{1,0:T(8,128)}, bf16[4])"."""
    total = 0
    for dtype, dims in _ARRAY.findall(shape):
        width = re.search(r"\d+", dtype)
        bits = _BITS[dtype] if dtype in _BITS else int(width.group()) if width else 0
        size = math.prod(int(dim) for dim in dims.split(",") if dim)
        total += math.ceil(size * bits / 8)
    return total


class _Program:
    """The computations of a program by name, and what runs how often."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[_Instruction]] = {}
        self._constants: dict[str, list[int]] = {}
        self._shapes: dict[str, str] = {}
        self._entry = ""
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
                self._shapes[parsed.name] = parsed.shape
                self._constants[name] += [int(n) for n in _CONSTANT.findall(line)]

    def reading(self) -> Reading:
        traffic: dict[str, Traffic] = {}
        for kind, runs, size in self._collectives(self._entry):
            before = traffic.get(kind, Traffic(0, 0))
            traffic[kind] = Traffic(before.count + runs, before.bytes + runs * size)
        operations = self._operations(self._entry, runs=1)
        kernels = tuple(self._kernels(self._entry, runs=1))
        return Reading(
            traffic,
            _cycles(operations) if operations else None,
            len(self._unknown),
            kernels,
            _by_source(operations),
        )

    def _collectives(self, name: str) -> Iterator[tuple[str, int, int]]:
        """(kind, runs, bytes) of the collectives of a computation and of all that it runs."""
        seen: set[str] = set()
        for instruction in self._straight(name):
            kind = _kind(instruction.opcode)
            channel = _CHANNEL.search(instruction.rest)
            if instruction.opcode == "while":
                trips = self._trips(instruction)
                for found, runs, size in self._collectives(_first(_BODY, instruction.rest)):
                    yield found, trips * runs, size
            # An asynchronous collective stands in each of the fusions that it runs beside.
            elif kind is not None and (channel is None or channel.group() not in seen):
                seen |= {channel.group()} if channel else set()
                yield kind, 1, self._moved(kind, instruction)

    def _kernels(self, name: str, *, runs: int) -> Iterator[Kernel]:
        """The kernels of a computation that runs so often, and of all that it runs."""
        for instruction in self._straight(name):
            if instruction.opcode == "while":
                body = _first(_BODY, instruction.rest)
                yield from self._kernels(body, runs=runs * self._trips(instruction))
            elif instruction.opcode == "custom-call" and _KERNEL.search(instruction.rest):
                flops, size = (_first(of, instruction.rest) or "0" for of in (_FLOPS, _BYTES))
                yield Kernel(runs, int(flops), int(size))

    def _straight(self, name: str) -> Iterator[_Instruction]:
        """The instructions of a computation, with those inside of fusions and calls."""
        for instruction in self._lines.get(name, ()):
            if instruction.opcode in _CALLERS:
                for called in _called(instruction):
                    yield from self._straight(called)
            else:
                yield instruction

    def _moved(self, kind: str, instruction: _Instruction) -> int:
        operands = instruction.rest.partition(")")[0]
        given = array_bytes(operands) or sum(
            array_bytes(self._shapes.get(name, "")) for name in _OPERAND.findall(operands)
        )
        result = array_bytes(instruction.shape)
        if kind == "all-gather" and instruction.opcode.endswith("-start"):
            return result - given  # its result holds the operand too
        return result if kind in ("all-gather", "collective-broadcast") else given

    def _operations(self, name: str, *, runs: int) -> list[Operation]:
        """What has an estimate, of a computation that runs so often and of all that it runs."""
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
        """How often a loop's body runs; 1 where that is not found."""
        known = _TRIPS.search(loop.rest)
        if known is not None:
            return int(known.group(1))
        constants = self._constants.get(_first(_CONDITION, loop.rest), [])
        if len(constants) == 1:
            return constants[0]
        self._unknown.add(loop.name)
        return 1


def _cycles(operations: Iterable[Operation]) -> int:
    return sum(operation.cycles for operation in operations)


def _by_source(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """One for each source, the costliest first."""
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
    """The collective that an instruction is; the end of an asynchronous one is none."""
    kind = opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else None


def _called(instruction: _Instruction) -> list[str]:
    """The computations that a fusion, a call or a conditional runs."""
    if instruction.opcode != "conditional":
        return _CALLED.findall(instruction.rest)
    branches = _BRANCHES.search(instruction.rest)
    groups = [group for group in branches.groups() if group] if branches else []
    return [name.strip().lstrip("%") for group in groups for name in group.split(",")]


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""
