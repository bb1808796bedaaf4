"""`ProgramTimeline`: what a device spends its time on in a compiled program, in the order of the program."""

import collections
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from .._compiler._compiled_program import CompiledProgram
from .._program import _xla_text as xla
from .._program._collectives import (
    find_group_axes,
    is_collective,
    read_exchange,
    read_replica_groups,
    read_slice_transfer,
)
from .._program._hlo_program import HOST_SPACE, HloInstruction, parse_arrays, split_tuple
from ._link_model import LinkModel
from ._nccl import find_speed_beside_collectives


# Returns how many seconds an instruction computes outside of attention kernels, and how many within them.
Measure: TypeAlias = Callable[[CompiledProgram, HloInstruction], tuple[float, float]]
Links: TypeAlias = tuple[str, ...]  # mesh axes that something is sent along, or one of the two below
TO_HOST: Links = ("to the memory of the host",)
FROM_HOST: Links = ("from the memory of the host",)
_HOST_LAYOUT = f"S({HOST_SPACE})"  # in the layout of an array in the memory of the host
_PRODUCTS = ("convolution", "dot", "fusion")
_MOST_UPDATES = 8  # instructions between the start of a collective and its end
_OVERLAP_LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"  # XLA's option, 1 by itself


@dataclass
class TimeSpent:
    """What a device spends its time on, in seconds.

    Attributes:
        compute: Computing outside of attention kernels.
        attention: Attention kernels.
        waiting: The time in which the device does nothing but wait for what is sent, for each tuple of links.
        busy: The time that sending takes, for each tuple of links.
    """

    compute: float = 0.0
    attention: float = 0.0
    waiting: dict[Links, float] = field(default_factory=lambda: collections.defaultdict(float))
    busy: dict[Links, float] = field(default_factory=lambda: collections.defaultdict(float))

    @property
    def total(self) -> float:
        """The seconds from start to end."""
        return self.compute + self.attention + sum(self.waiting.values())

    def add(self, other: "TimeSpent", count: int) -> None:
        """Adds the time of something that happens `count` times."""
        self.compute += count * other.compute
        self.attention += count * other.attention
        for links, seconds in other.waiting.items():
            self.waiting[links] += count * seconds
        for links, seconds in other.busy.items():
            self.busy[links] += count * seconds


class InstructionTime(NamedTuple):
    """When an instruction runs, in seconds from the start of its computation.

    `links` are what it sends along, and empty if it computes; `waited` is how many of its last seconds the device does
    nothing but wait for it; `is_attention` says whether attention kernels take most of it.
    """

    instruction: HloInstruction
    links: Links
    start: float
    end: float
    waited: float = 0.0
    is_attention: bool = False


class Overlap(NamedTuple):
    """What collectives beside computing do: how fast kernels compute then, and whether only one is sent at a time."""

    speed: float = 1.0
    is_single: bool = False


class Clock:
    """The clock of one computation: the time spent, until when links are in use, and what is still being sent.

    Args:
        is_timed: Whether computing is timed.
        overlap: What collectives beside computing do.

    Attributes:
        spent: What the time is spent on.
        times: When each instruction that takes time runs, including those in computations that are called once.
        pending: What is still being sent, by the key to wait for it with.
    """

    def __init__(self, is_timed: bool, overlap: Overlap) -> None:
        self.spent = TimeSpent()
        self.times: list[InstructionTime] = []
        self._is_timed, self._overlap = is_timed, overlap
        self._sent_until = 0.0  # when the last collective ends
        self._free: dict[str, float] = {}
        self.pending: dict[str, InstructionTime] = {}

    def compute(self, instruction: HloInstruction, compute: float, attention: float) -> None:
        """Runs an instruction that computes, more slowly while collectives are sent."""
        start, speed = self.spent.total, self._overlap.speed
        seconds, beside = compute + attention, max(self._sent_until - start, 0.0)
        if seconds:
            stretch = 1 + (1 - speed) * min(1 / speed, beside / seconds)
            self.spent.compute += stretch * compute
            self.spent.attention += stretch * attention
        if compute or attention:
            is_attention = attention > compute
            self.times.append(InstructionTime(instruction, (), start, self.spent.total, is_attention=is_attention))

    def call(self, instruction: HloInstruction, called: "Clock", count: int = 1) -> None:
        """Runs another computation `count` times."""
        start = self.spent.total
        self.spent.add(called.spent, count)
        if count == 1:
            self.times += [time._replace(start=start + time.start, end=start + time.end) for time in called.times]
        else:
            self.times.append(InstructionTime(instruction, (), start, self.spent.total))

    def start(self, key: str, instruction: HloInstruction, links: Links, seconds: float) -> None:
        """Starts to send, as soon as what is sent along the same links has arrived."""
        is_collective = links not in (TO_HOST, FROM_HOST)
        queues = ("collectives",) if is_collective and self._overlap.is_single else links
        end = max([self.spent.total, *(self._free.get(queue, 0.0) for queue in queues)]) + seconds
        if self._is_timed:
            self._free.update(dict.fromkeys(queues, end))
            if is_collective:
                self._sent_until = max(self._sent_until, end)
        self.pending[key] = InstructionTime(instruction, links, end - seconds, end)
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

    Some collectives, and transfers to and from the memory of the host, start at one place in the program and end at
    another. They run beside all that is between, and at their end the device waits until they are done. What is sent
    along the same mesh axis is sent in turn. On GPUs all collectives are, since XLA runs one at a time, and kernels
    compute more slowly beside one. A collective fused into a product takes as long as the longer of the two. A loop
    takes as long as all of its turns, at the beginning and end of which nothing is on its way.

    Args:
        program: The program.
        measure: Returns how many seconds an instruction computes outside of attention kernels, and within them.
        is_timed: Whether `measure` gives these. If not, what runs beside computing is not waited for.

    Attributes:
        hlo: Its instructions.
    """

    def __init__(self, program: CompiledProgram, measure: Measure, is_timed: bool) -> None:
        self.hlo = program.hlo
        self._program, self._measure, self._is_timed = program, measure, is_timed
        self._links = LinkModel(program.mesh)
        self._overlap = Overlap()
        if program.hardware.platform == "gpu":
            limit = int(program.compiler_options.get(_OVERLAP_LIMIT, 1))
            self._overlap = Overlap(find_speed_beside_collectives(program.hardware), is_single=limit < 2)
        self._clocks: dict[str, Clock] = {}
        self._received: dict[str, int] = {}  # the bytes that come from other slices, by the key of the transfer
        for instruction in self.hlo.instructions:
            if instruction.opcode == "recv" and (transfer := read_slice_transfer(instruction)):
                self._received[transfer[0]] = instruction.results[0].bytes

    def run(self, computation: str) -> Clock:
        """Returns the clock after one run of a computation, which has begun at 0."""
        if computation not in self._clocks:
            clock = self._make_clock()
            for instruction in self.hlo.by_computation.get(computation, ()):
                self._run_instruction(instruction, clock)
            for key in [*clock.pending]:  # what has no end in the text of the program
                self._end(key, clock)
            self._clocks[computation] = clock
        return self._clocks[computation]

    def _make_clock(self) -> Clock:
        return Clock(self._is_timed, self._overlap)

    def _run_instruction(self, instruction: HloInstruction, clock: Clock) -> None:
        hlo, opcode = self.hlo, instruction.opcode
        called = hlo.find_called(instruction)
        if opcode == "while":
            turn = self.run(hlo.find_body(instruction))
            clock.call(instruction, turn, hlo.count_trips(instruction))
        elif opcode == "conditional":
            branches = [self.run(name) for name in called] or [self._make_clock()]
            clock.call(instruction, max(branches, key=lambda branch: branch.spent.total))
        elif opcode == "call":
            for name in called:
                clock.call(instruction, self.run(name))
        elif opcode.endswith("-done"):
            self._end(self._find_start(instruction, clock), clock)
        elif opcode.endswith("-start") and _HOST_LAYOUT in instruction.shape:
            size, links = _read_host_transfer(instruction)
            clock.start(instruction.name, instruction, links, size / self._program.hardware.host_bandwidth)
        elif opcode == "send" and (transfer := read_slice_transfer(instruction)):
            key, kind = transfer
            seconds = self._links.estimate_slice_seconds(kind, self._received.get(key, instruction.results[0].bytes))
            clock.start(key, instruction, self._links.slice_axes, seconds)
        elif is_collective(instruction):
            self._run_collectives(instruction, [instruction], clock)
        else:
            collectives = [inner for name in called for inner in hlo.by_computation[name] if is_collective(inner)]
            if collectives and opcode.endswith(("fusion", "-start")):
                self._run_collectives(instruction, collectives, clock)
            else:
                clock.compute(instruction, *self._measure(self._program, instruction))

    def _run_collectives(self, instruction: HloInstruction, collectives: list[HloInstruction], clock: Clock) -> None:
        """Runs the collectives that an instruction is, starts, or has fused into it."""
        if instruction.opcode.endswith("-start"):
            for number, collective in enumerate(collectives):
                clock.start(f"{instruction.name}/{number}", collective, *self._estimate(collective))
            return
        if instruction in collectives:
            clock.start(instruction.name, instruction, *self._estimate(instruction))
            clock.wait(instruction.name)
            return
        # A fusion of libtpu. It may have the whole collective, or its start, a middle part, or its end.
        fused = self.hlo.by_computation[collectives[0].computation]
        attributes = "".join(inner.attributes for inner in fused)
        is_start, is_end = "AsyncCollectiveStart" in attributes, "AsyncCollectiveDone" in attributes
        by_key = {
            f"channel {collective.channel}" if collective.channel else collective.name: collective
            for collective in collectives
        }
        new = {} if is_end else {key: collective for key, collective in by_key.items() if key not in clock.pending}
        for key, collective in new.items():
            clock.start(key, collective, *self._estimate(collective))
        clock.compute(instruction, *self._measure(self._program, instruction))
        if is_start:
            return
        for key in by_key if is_end else new:
            if self._is_timed or is_end or any(inner.opcode in _PRODUCTS for inner in fused):
                self._end(key, clock)
            else:
                clock.wait(key)

    def _end(self, key: str, clock: Clock) -> None:
        """Waits for what an instruction has started, if anything; if computing is not timed, drops it instead."""
        # An instruction that starts several collectives has a key with a number for each: `start.1/0`.
        for name in [name for name in clock.pending if name == key or name.startswith(f"{key}/")]:
            if self._is_timed:
                clock.wait(name)
            else:
                clock.pending.pop(name)

    def _find_start(self, instruction: HloInstruction, clock: Clock) -> str:
        """Returns the key of what an instruction ends."""
        # The operand of an `async-done` may be an update, whose operand is the update before it or the start.
        for _ in range(_MOST_UPDATES):
            operands = self.hlo.find_operands(instruction)
            if not operands:
                break
            instruction = operands[0]
            transfer = read_slice_transfer(instruction)
            key = instruction.name
            if transfer and instruction.opcode == "recv":  # the matching `send` was started under this key
                key, _ = transfer
            if any(name.partition("/")[0] == key for name in clock.pending):
                return key
        return instruction.name

    def _estimate(self, collective: HloInstruction) -> tuple[Links, float]:
        """Returns the mesh axes that a collective goes along, and its seconds."""
        mesh = self._program.mesh
        kind, results = read_exchange(self.hlo, collective)
        groups = read_replica_groups(collective.attributes, mesh.size)
        result_bytes = sum(result.bytes for result in results)
        if groups is None:
            return mesh.axis_names, self._links.estimate_seconds(kind, result_bytes, mesh.axis_names)
        axes = find_group_axes(groups, dict(mesh.shape))
        is_part = kind != "collective-permute" and groups.shape[1] < math.prod(mesh.shape[axis] for axis in axes)
        group = tuple(groups[0].tolist()) if is_part else None
        return axes, self._links.estimate_seconds(kind, result_bytes, axes, group)


def _read_host_transfer(start: HloInstruction) -> tuple[int, Links]:
    """Returns the bytes that go to or from the memory of the host, and which of the two."""
    texts = [text for text in xla.ARRAY_WITH_LAYOUT.findall(start.shape) if _HOST_LAYOUT not in text]
    sizes = [array.bytes for text in texts for array in parse_arrays(text)]
    elements = split_tuple(start.shape)
    target = elements[0 if start.opcode == "copy-start" else min(1, len(elements) - 1)]
    return max(sizes, default=0), TO_HOST if _HOST_LAYOUT in target else FROM_HOST
