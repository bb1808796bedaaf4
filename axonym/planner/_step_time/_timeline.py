"""`Timeline`: what a device computes, sends and waits for in one turn of a loop, such as that over the layers."""

import collections
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .._program._collectives import is_collective, read_exchange
from .._program._hlo_program import HloInstruction, HloProgram
from .._program._origin import Pass, find_origin
from .._program._xla_text import CUBLAS_CALL, CUDNN_CONVOLUTION
from ._program_timeline import InstructionTime, ProgramTimeline


_SHORT_SHARE = 1 / 200  # of a turn: neighbors that both compute for less than this are drawn as one
_LEAST_SHARE = 1 / 10  # of a step: loops that take less are not drawn
_MOST_LOOPS = 2  # one forward and one backward


class TimelineEvent(NamedTuple):
    """What a device does for some time.

    Attributes:
        name: The instruction of the program; of several short ones that follow one another, the longest of them.
        kind: `"product"`, `"attention"`, `"loop"` for all turns of an inner loop, or `"other"`; of what is sent, the
            kind of collective, `"send"` between slices, or `"copy"` to or from the memory of the host.
        links: The mesh axes that it sends along, or the direction of a transfer to or from the memory of the host;
            empty if it computes.
        start: Seconds from the start of the turn.
        end: The same.
        waited: The seconds before its end in which the device does nothing but wait for it.
        layer: The scopes that it is in, such as `Stacked/up`; empty if the program does not say.
        operation: The operation that it is for, such as `dot(embed -> mlp)`; empty if the program does not say.
        run_in: `"forward"`, `"backward"`, or `"recomputed"` for what `jax.checkpoint` did not save.

    Example:
        >>> import axonym as nym
        >>> where = "Stacked/up", "gather(mlp)", "forward"
        >>> gather = nym.planner.TimelineEvent("all-gather.2", "all-gather", ("data",), 0.25, 1.5, 0.5, *where)
        >>> gather.seconds, gather.waited
        (1.25, 0.5)
    """

    name: str
    kind: str
    links: tuple[str, ...]
    start: float
    end: float
    waited: float
    layer: str
    operation: str
    run_in: Pass

    @property
    def seconds(self) -> float:
        """The seconds from start to end."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """What a device computes, sends and waits for in one turn of a loop, as the compiler has scheduled it.

    Attributes:
        name: The layer and the pass, such as `Stacked, backward`; `whole step` for a program without loops.
        turns: How often it runs in a step.
        seconds: The time of a turn.
        events: What the device does, by the time that it starts. What is computed follows one another.

    Example:
        >>> import axonym as nym
        >>> product = nym.planner.TimelineEvent("dot.1", "product", (), 0.0, 2e-3, 0.0, "Stacked", "", "forward")
        >>> gather = product._replace(name="gather.2", kind="all-gather", links=("data",), end=2.5e-3, waited=0.5e-3)
        >>> nym.planner.Timeline("Stacked, forward", 32, 2.5e-3, (product, gather)).waited
        0.0005
    """

    name: str
    turns: int
    seconds: float
    events: tuple[TimelineEvent, ...]

    @property
    def waited(self) -> float:
        """The seconds of a turn in which the device does nothing but wait for what is sent."""
        return sum(event.waited for event in self.events)


def make_timelines(scheduled: ProgramTimeline) -> tuple[Timeline, ...]:
    """Returns a turn of each of the heaviest loops, in the order of the program; the whole program if it has none."""
    entry = scheduled.hlo.entry
    total = scheduled.run(entry).spent.total
    if not total:
        return ()
    loops = [*_list_loops(scheduled)]
    heaviest = sorted(loops, key=lambda loop: -loop[2])[:_MOST_LOOPS]
    heavy_loops = [loop for loop in loops if loop in heaviest and loop[2] >= _LEAST_SHARE * total]
    if not heavy_loops:
        return (_make_timeline(scheduled, entry, 1),)
    return tuple(_make_timeline(scheduled, body, turns) for body, turns, _ in heavy_loops)


def _list_loops(scheduled: ProgramTimeline) -> Iterator[tuple[str, int, float]]:
    """Yields the computation of each loop, how often it runs, and the seconds of all that, without inner loops."""
    hlo = scheduled.hlo
    for instruction in hlo.instructions:
        if instruction.opcode == "while" and hlo.count_trips(instruction) > 1:
            body = hlo.find_body(instruction)
            clock = scheduled.run(body)
            inner_seconds = sum(time.end - time.start for time in clock.times if time.instruction.opcode == "while")
            turns = hlo.count_runs(body)
            yield body, turns, turns * (clock.spent.total - inner_seconds)


def _make_timeline(scheduled: ProgramTimeline, computation: str, turns: int) -> Timeline:
    hlo = scheduled.hlo
    clock = scheduled.run(computation)
    seconds = clock.spent.total
    times = sorted(clock.times, key=lambda time: (time.start, time.end))
    computing = _group_short([time for time in times if not time.links], _SHORT_SHARE * seconds)
    groups = [*computing, *([time] for time in times if time.links)]
    events = sorted((_make_event(hlo, group) for group in groups), key=lambda event: (event.start, event.end))
    name = "whole step" if computation == hlo.entry else _name_loop(events)
    return Timeline(name, turns, seconds, tuple(events))


def _group_short(times: Sequence[InstructionTime], short: float) -> list[list[InstructionTime]]:
    """Returns instructions that compute, in groups: neighbors that take less than some seconds are in one."""
    groups: list[list[InstructionTime]] = []
    for time in times:
        previous = groups[-1][-1] if groups else None
        if (
            previous
            and max(time.end - time.start, previous.end - previous.start) < short
            and math.isclose(time.start, previous.end, abs_tol=1e-12)  # with nothing between
        ):
            groups[-1].append(time)
        else:
            groups.append([time])
    return groups


def _make_event(hlo: HloProgram, group: Sequence[InstructionTime]) -> TimelineEvent:
    """Returns the event of an instruction, or of several short ones."""
    longest = max(group, key=lambda time: time.end - time.start)
    kinds: dict[str, float] = collections.defaultdict(float)
    for time in group:
        kinds[_find_event_kind(hlo, time)] += time.end - time.start
    origin = find_origin(hlo, longest.instruction)
    if is_collective(longest.instruction) and (count := len(read_exchange(hlo, longest.instruction)[1])) > 1:
        origin = origin._replace(layer="", operation=f"{count} arrays")  # the compiler has combined them
    return TimelineEvent(
        name=longest.instruction.name,
        kind=max(kinds, key=kinds.__getitem__),
        links=longest.links,
        start=round(group[0].start, 9),  # nanoseconds are enough, and short in a file
        end=round(group[-1].end, 9),
        waited=round(longest.waited, 9),
        layer=origin.layer,
        operation=origin.operation,
        run_in=origin.run_in,
    )


def _find_event_kind(hlo: HloProgram, time: InstructionTime) -> str:
    instruction = time.instruction
    if is_collective(instruction) and time.links:
        return read_exchange(hlo, instruction)[0]
    if time.links:
        return "send" if instruction.opcode == "send" else "copy"
    if time.is_attention:
        return "attention"
    if instruction.opcode == "while":
        return "loop"
    return "product" if _has_product(hlo, [instruction]) else "other"


def _has_product(hlo: HloProgram, instructions: Iterable[HloInstruction]) -> bool:
    """Returns whether there is a product among instructions and what they call."""
    return any(
        instruction.opcode in ("convolution", "dot")
        or CUBLAS_CALL in instruction.attributes
        or CUDNN_CONVOLUTION.search(instruction.attributes)
        or any(_has_product(hlo, hlo.by_computation[name]) for name in hlo.find_called(instruction))
        for instruction in instructions
    )


def _name_loop(events: Sequence[TimelineEvent]) -> str:
    """Returns the outermost scope and the pass of most of what a loop does."""
    layers: dict[str, float] = collections.defaultdict(float)
    passes: dict[str, float] = collections.defaultdict(float)
    for event in events:
        if layer := event.layer.partition("/")[0]:
            layers[layer] += event.seconds
        passes["forward" if event.run_in == "forward" else "backward"] += event.seconds
    return f"{max(layers, key=layers.__getitem__, default='loop')}, {max(passes, key=passes.__getitem__)}"
