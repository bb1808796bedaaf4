"""`ProgramTimeline`: what a device spends its time on in a compiled program, in the order of the program."""

import collections
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from jax.sharding import Mesh

from ._collectives import is_collective, read_exchange
from ._hlo_program import HOST_SPACE, HloInstruction, HloProgram, parse_arrays, split_tuple
from ._link_model import LinkModel
from ._replica_groups import find_group_axes, read_replica_groups


Links: TypeAlias = tuple[str, ...]  # mesh axes that something is sent along, or one of the two below
TO_HOST: Links = ("to the memory of the host",)
FROM_HOST: Links = ("from the memory of the host",)

_HOST = f"S({HOST_SPACE})"
_STORED = re.compile(r"\b[a-z]\w*\[[\d,]*\](?:\{[^{}]*\})?")
_BETWEEN_SLICES = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)".*_xla_megascale_transfer_type="([^"]*)"')
_ONE_TO_ONE = "collective-permute"
_PRODUCTS = ("convolution", "dot", "fusion")


@dataclass
class TimeSpent:
    """What a device spends its time on, in seconds.

    Attributes:
        compute: Computing.
        attention: Kernels of attention.
        waiting: By what is sent along, the time in which nothing but that happens.
        busy: By what is sent along, the time that sending takes.
    """

    compute: float = 0.0
    attention: float = 0.0
    waiting: dict[Links, float] = field(default_factory=lambda: collections.defaultdict(float))
    busy: dict[Links, float] = field(default_factory=lambda: collections.defaultdict(float))

    @property
    def total(self) -> float:
        """The seconds from start to end."""
        return self.compute + self.attention + sum(self.waiting.values())

    def add(self, other: "TimeSpent", times: int) -> None:
        """Adds what happens a number of times."""
        self.compute += times * other.compute
        self.attention += times * other.attention
        for own, others in ((self.waiting, other.waiting), (self.busy, other.busy)):
            for links, seconds in others.items():
                own[links] += times * seconds


class InstructionTime(NamedTuple):
    """When an instruction runs, in seconds from the start of its computation.

    `links` are what it sends along, and empty if it computes; `waited` are the last seconds of it, in which nothing
    else happens; `is_attention` says whether a kernel of attention takes most of it.
    """

    instruction: HloInstruction
    links: Links
    start: float
    end: float
    waited: float = 0.0
    is_attention: bool = False


class _Clock:
    """The time of one computation: what is spent, until when links are in use, and what is still on its way."""

    def __init__(self, is_timed: bool) -> None:
        self.spent = TimeSpent()
        self.times: list[InstructionTime] = []
        self._is_timed = is_timed
        self._free: dict[str, float] = {}
        self.pending: dict[str, InstructionTime] = {}

    def compute(self, one: HloInstruction, compute: float, attention: float) -> None:
        """Runs an instruction that computes."""
        start = self.spent.total
        self.spent.compute += compute
        self.spent.attention += attention
        if compute or attention:
            self.times.append(InstructionTime(one, (), start, self.spent.total, is_attention=attention > compute))

    def call(self, one: HloInstruction, called: "_Clock", times: int = 1) -> None:
        """Runs another computation a number of times."""
        start = self.spent.total
        self.spent.add(called.spent, times)
        if times == 1:
            self.times += [time._replace(start=start + time.start, end=start + time.end) for time in called.times]
        else:
            self.times.append(InstructionTime(one, (), start, self.spent.total))

    def start(self, key: str, one: HloInstruction, links: Links, seconds: float) -> None:
        """Starts to send, as soon as what is sent along the same links has arrived."""
        end = max([self.spent.total, *(self._free.get(link, 0.0) for link in links)]) + seconds
        if self._is_timed:
            self._free.update(dict.fromkeys(links, end))
        self.pending[key] = InstructionTime(one, links, end - seconds, end)
        self.spent.busy[links] += seconds

    def wait(self, key: str) -> None:
        """Waits until something has arrived."""
        time = self.pending.pop(key)
        waited = max(time.end - self.spent.total, 0.0)
        self.spent.waiting[time.links] += waited
        if time.end > time.start:  # groups of one device send nothing
            self.times.append(time._replace(waited=waited))


class ProgramTimeline:
    """Goes through the instructions of a scheduled program in their order, and tells what a device spends its time on.

    What the program starts and ends in two places, as collectives and transfers to the memory of the host, runs beside
    all that is between; at its end the device waits for the rest. What is sent along the same mesh axis is sent in
    turn. A collective fused into a product takes as long as the longer of the two. A loop takes as long as each of its
    turns, at the beginning and end of which nothing is on its way.

    Args:
        program: The program.
        mesh: Its mesh of described devices.
        host_bandwidth: Bytes a second to and from the memory of the host.
        measure: Gives the seconds of computing of an instruction, and those of a kernel of attention.
        is_timed: Whether `measure` gives these. If not, what runs beside computing is not waited for.
    """

    def __init__(
        self,
        program: HloProgram,
        mesh: Mesh,
        host_bandwidth: float,
        measure: Callable[[HloInstruction], tuple[float, float]],
        is_timed: bool = True,
    ) -> None:
        self._program, self._mesh, self._links = program, mesh, LinkModel(mesh)
        self._host_bandwidth, self._measure, self._is_timed = host_bandwidth, measure, is_timed
        self._clocks: dict[str, _Clock] = {}
        self._received = _find_received(program)

    def run(self, computation: str) -> TimeSpent:
        """Returns what is spent in one run of a computation."""
        return self._run_computation(computation).spent

    def list_times(self, computation: str) -> list[InstructionTime]:
        """Returns when instructions of a computation run that take time, with those of what it calls once."""
        return self._run_computation(computation).times

    def _run_computation(self, computation: str) -> _Clock:
        if computation not in self._clocks:
            clock = _Clock(self._is_timed)
            for one in self._program.by_computation.get(computation, ()):
                self._run_instruction(one, clock)
            for key in [*clock.pending]:
                self._end(key, clock)
            self._clocks[computation] = clock
        return self._clocks[computation]

    def _run_instruction(self, one: HloInstruction, clock: _Clock) -> None:
        called = self._program.find_called(one)
        if one.opcode == "while":
            clock.call(one, self._run_computation(self._program.find_body(one)), self._program.count_trips(one))
        elif one.opcode == "conditional":
            branches = [self._run_computation(name) for name in called] or [_Clock(self._is_timed)]
            clock.call(one, max(branches, key=lambda branch: branch.spent.total))
        elif one.opcode == "call":
            for name in called:
                clock.call(one, self._run_computation(name))
        elif one.opcode.endswith("-done"):
            self._end(self._find_start(one, clock), clock)
        elif one.opcode.endswith("-start") and _HOST in one.shape:
            size, links = _read_transfer(one)
            clock.start(one.name, one, links, size / self._host_bandwidth)
        elif one.opcode == "send" and (found := _BETWEEN_SLICES.search(one.rest)):
            self._start_between_slices(one, found[1], found[2], clock)
        elif is_collective(one):
            self._exchange(one, [one], clock)
        else:
            inside = [other for name in called for other in self._program.by_computation[name] if is_collective(other)]
            if inside and one.opcode.endswith(("fusion", "-start")):
                self._exchange(one, inside, clock)
            else:
                clock.compute(one, *self._measure(one))

    def _exchange(self, one: HloInstruction, inside: list[HloInstruction], clock: _Clock) -> None:
        """Runs collectives: an instruction that is one, or that starts some, or that has some fused into it."""
        beside = self._program.by_computation[inside[0].computation]
        if one.opcode.endswith("-start"):
            for at, other in enumerate(inside):
                clock.start(f"{one.name}/{at}", other, *self._estimate(other))
            return
        if one in inside:
            clock.start(one.name, one, *self._estimate(one))
            clock.wait(one.name)
            return
        attributes = "".join(other.rest for other in beside)
        is_start, is_end = "AsyncCollectiveStart" in attributes, "AsyncCollectiveDone" in attributes
        keys = {_name_channel(other): other for other in inside}
        new = {} if is_end else {key: other for key, other in keys.items() if key not in clock.pending}
        for key, other in new.items():
            clock.start(key, other, *self._estimate(other))
        clock.compute(one, *self._measure(one))
        for key in () if is_start else keys if is_end else new:
            if self._is_timed or is_end or any(other.opcode in _PRODUCTS for other in beside):
                self._end(key, clock)
            else:
                clock.wait(key)

    def _end(self, key: str, clock: _Clock) -> None:
        """Waits for what an instruction has started, unless that is not known or there is no time to compare with."""
        for name in [name for name in clock.pending if name == key or name.startswith(f"{key}/")]:
            if self._is_timed:
                clock.wait(name)
            else:
                clock.pending.pop(name)

    def _find_start(self, one: HloInstruction, clock: _Clock) -> str:
        """Returns the key of what an instruction ends."""
        for _ in range(8):  # updates may be between a start and its end
            operands = self._program.find_operands(one)
            if not operands:
                break
            one = operands[0]
            found = _BETWEEN_SLICES.search(one.rest)
            key = found[1] if found and one.opcode == "recv" else one.name
            if any(name.partition("/")[0] == key for name in clock.pending):
                return key
        return one.name

    def _estimate(self, one: HloInstruction) -> tuple[Links, float]:
        """Returns the mesh axes that a collective goes along, and its seconds."""
        kind, results = read_exchange(self._program, one)
        groups = read_replica_groups(one.rest, self._mesh.size)
        axes = self._mesh.axis_names if groups is None else find_group_axes(groups, dict(self._mesh.shape))
        return axes, self._links.estimate_seconds(kind, sum(result.bytes for result in results), axes)

    def _start_between_slices(self, one: HloInstruction, key: str, kind: str, clock: _Clock) -> None:
        kind = kind.lower().replace("_", "-")
        size = self._received.get(key, one.results[0].bytes)
        seconds = self._links.estimate_slice_seconds(_ONE_TO_ONE if kind == "one-to-one" else kind, size)
        clock.start(key, one, self._links.slice_axes, seconds)


def _find_received(program: HloProgram) -> Mapping[str, int]:
    """Returns the bytes that come from other slices, by what they are called."""
    received = [(one, _BETWEEN_SLICES.search(one.rest)) for one in program.instructions if one.opcode == "recv"]
    return {found[1]: one.results[0].bytes for one, found in received if found}


def _name_channel(one: HloInstruction) -> str:
    return f"channel {one.channel}" if one.channel else one.name


def _read_transfer(one: HloInstruction) -> tuple[int, Links]:
    """Returns the bytes that go to or from the memory of the host, and which of the two."""
    sizes = [array.bytes for text in _STORED.findall(one.shape) if _HOST not in text for array in parse_arrays(text)]
    parts = split_tuple(one.shape)
    target = parts[0 if one.opcode == "copy-start" else min(1, len(parts) - 1)]
    return max(sizes, default=0), TO_HOST if _HOST in target else FROM_HOST
