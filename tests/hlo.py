"""What a compiled program sends between devices, and what its loops hold, read from the text of its optimized HLO."""

from collections.abc import Iterable
from typing import NamedTuple

from axonym.planner._program._collectives import find_collectives
from axonym.planner._program._hlo_program import HloArray, HloInstruction, HloProgram


__all__ = ["Collective", "Program", "Total", "table", "totals"]


class Collective(NamedTuple):
    """One exchange between devices; several arrays if the compiler combined that many."""

    kind: str
    times: int  # how often it runs: the product of the trip counts of the loops that it is in
    in_loop: bool
    results: tuple[HloArray, ...]
    computation: str
    name: str


class Program(HloProgram):
    """A compiled program, from the text of its optimized HLO."""

    def in_loop(self, computation: str) -> bool:
        return any(one.opcode == "while" or self.in_loop(one.computation) for one in self.find_calls(computation))

    def collectives(self) -> list[Collective]:
        """Returns all exchanges, in the order of the text."""
        return [
            Collective(
                kind,
                self.count_runs(one.computation),
                self.in_loop(one.computation),
                results,
                one.computation,
                one.name,
            )
            for one, kind, results in find_collectives(self)
        ]

    def users(self, name: str) -> list[HloInstruction]:
        """Returns the instructions that take what one gives, through the parts of tuples and changes of shape."""
        found = []
        for one in self.instructions:
            if name in one.operands:
                passing = one.opcode in ("get-tuple-element", "bitcast", "copy")
                found += self.users(one.name) if passing else [one]
        return found


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


def merge_scatters(found: dict[tuple[str, str], Total]) -> dict[tuple[str, str], Total]:
    """Returns totals in which reduce-scatters count as all-reduces, by their arrays and bytes.

    On Explicit mesh axes a gradient is scattered, where the same program by hand adds all of it up in one of a few
    instructions that XLA has joined.
    """
    merged = {key: total for key, total in found.items() if key[0] != "reduce-scatter"}
    for (kind, place), total in found.items():
        if kind == "reduce-scatter":
            key = "all-reduce", place
            sums = merged.get(key, Total(0, 0, 0))
            merged[key] = sums._replace(arrays=sums.arrays + total.arrays, bytes=sums.bytes + total.bytes)
    return merged


def table(title: str, found: dict[tuple[str, str], Total]) -> str:
    """Shows totals, one line each."""
    lines = [f"{kind:20}{where:10}{t.instructions:6}{t.arrays:8}{t.bytes:10}" for (kind, where), t in found.items()]
    return "\n".join([title, f"{'':30}{'instr':>6}{'arrays':>8}{'bytes':>10}", *lines])
