"""What a compiled program sends between devices, and what its loops hold, read from the text of its optimized HLO."""

import collections
import math
import re
from collections.abc import Iterable
from typing import NamedTuple


KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
BITS = {"pred": 8, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64}

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)$")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_CONSTANT = re.compile(r"^(\d+)\)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CHANNEL = re.compile(r"channel_id=(\d+)")


class Array(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return BITS[self.dtype] * math.prod(self.shape) // 8


class Instruction(NamedTuple):
    """One instruction: the name of what it gives, its results on one device, and what it takes, as text."""

    computation: str
    name: str
    results: tuple[Array, ...]
    op: str
    rest: str


class Collective(NamedTuple):
    """One exchange between devices; several arrays if the compiler combined that many."""

    kind: str
    times: int  # how often it runs: the product of the trip counts of the loops that it is in
    in_loop: bool
    results: tuple[Array, ...]
    computation: str
    name: str


class Program:
    """A compiled program.

    Args:
        text: Its optimized HLO, of `compiled.as_text()`.
    """

    def __init__(self, text: str) -> None:
        self.instructions: list[Instruction] = []
        self._called: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)  # by whom, and how often
        self._loops: set[str] = set()
        computation = ""
        self._limits = _find_limits(text)
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                computation = found[1]
            elif found := _INSTRUCTION.match(line):
                results = tuple(
                    Array(dtype, tuple(map(int, sizes.split(","))) if sizes else ())
                    for dtype, sizes in _ARRAY.findall(re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", found[2]))
                )
                self.instructions.append(Instruction(computation, found[1], results, found[3], found[4]))
                self._note_calls(computation, line)

    def _note_calls(self, computation: str, line: str) -> None:
        for how, names in _CALLED.findall(line):
            for name in re.findall(r"[\w.\-]+", names):
                if how == "body":
                    self._loops.add(name)
                self._called[name].append((computation, self._find_trips(line) if how == "body" else 1))

    def _find_trips(self, line: str) -> int:
        """Returns how often a loop runs; for TPUs the text has only its condition, and loops of JAX start at 0."""
        if known := _TRIPS.search(line):
            return int(known[1])
        condition = _CONDITION.search(line)
        return self._limits.get(condition[1], 1) if condition else 1

    def times(self, computation: str) -> int:
        """Returns how often a computation runs; a loop counts once if the text does not say how often it runs."""
        callers = self._called.get(computation)
        return sum(trips * self.times(caller) for caller, trips in callers) if callers else 1

    def in_loop(self, computation: str) -> bool:
        callers = self._called.get(computation, [])
        return computation in self._loops or any(self.in_loop(caller) for caller, _ in callers)

    def collectives(self) -> list[Collective]:
        """Returns all exchanges, in the order of the text.

        On TPUs a reduce-scatter is a fusion of an all-reduce with what cuts it, and one that runs beside other work is
        written in each of the fusions that it is spread over; each counts once.
        """
        found: dict[object, Collective] = {}
        for one in self.instructions:
            kind = one.op.removesuffix("-start")
            if one.op == "fusion" and "calls=%all-reduce-scatter" in one.rest:
                kind = "reduce-scatter"
            if kind not in KINDS or one.computation.startswith("all-reduce-scatter"):
                continue
            results = one.results
            if one.op == "all-gather-start":  # which has the operands first
                results = results[len(results) // 2 :]
            channel = _CHANNEL.search(one.rest) if "async" in one.computation or "fused" in one.computation else None
            times, in_loop = self.times(one.computation), self.in_loop(one.computation)
            key = (kind, channel[1]) if channel else one.name
            found.setdefault(key, Collective(kind, times, in_loop, results, one.computation, one.name))
        return list(found.values())

    def users(self, name: str) -> list[Instruction]:
        """Returns the instructions that take what one gives, through the parts of tuples and changes of shape."""
        operand = re.compile(rf"%{re.escape(name)}[,)]")
        found = []
        for one in self.instructions:
            if operand.search(one.rest):
                passing = one.op in ("get-tuple-element", "bitcast", "copy")
                found += self.users(one.name) if passing else [one]
        return found


def _find_limits(text: str) -> dict[str, int]:
    """Returns the number with which each computation of one comparison and one number compares."""
    numbers, comparisons = collections.defaultdict(list), collections.Counter()
    computation = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            computation = found[1]
        elif (found := _INSTRUCTION.match(line)) and found[2].startswith("s32[]") and found[3] == "constant":
            numbers[computation] += [int(number) for number in _CONSTANT.findall(found[4])]
        elif found and found[3] == "compare" and "direction=LT" in found[4]:
            comparisons[computation] += 1
    return {name: found[0] for name, found in numbers.items() if len(found) == 1 and comparisons[name] == 1}


class Total(NamedTuple):
    """How many instructions, how many arrays in them, and how many bytes they give on one device in all."""

    instructions: int
    arrays: int
    bytes: int


def totals(collectives: Iterable[Collective]) -> dict[tuple[str, str], Total]:
    """Returns the totals of each kind, inside loops and outside; bytes inside loops count as often as they run."""
    found: dict[tuple[str, str], Total] = {}
    for one in collectives:
        key = (one.kind, "in loops" if one.in_loop else "once")
        before = found.get(key, Total(0, 0, 0))
        size = one.times * sum(array.bytes for array in one.results)
        found[key] = Total(before.instructions + 1, before.arrays + len(one.results), before.bytes + size)
    return dict(sorted(found.items()))


def table(title: str, found: dict[tuple[str, str], Total]) -> str:
    """Shows totals, one line each."""
    lines = [f"{kind:20}{where:10}{t.instructions:6}{t.arrays:8}{t.bytes:10}" for (kind, where), t in found.items()]
    return "\n".join([title, f"{'':30}{'instr':>6}{'arrays':>8}{'bytes':>10}", *lines])
