"""The collectives of an optimized program: what they send, how often, along which mesh axes, and what they are for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ._hlo_program import HloArray, HloInstruction, HloProgram, parse_arrays, split_tuple
from ._logical_axes import ArgumentAxes, infer_logical_axes
from ._origin import Origin, Pass, find_origin, join_origins
from ._replica_groups import find_group_axes, read_replica_groups


CollectiveKind: TypeAlias = Literal[
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
]
COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = CollectiveKind.__args__

_DIMENSION = re.compile(r"\bdimensions=\{(\d+)\}")
_SCATTERED = "all-reduce-scatter"  # libtpu's name for the fusion of an all-reduce with the slices of its result


@dataclass(frozen=True, slots=True)
class Collective:
    """An exchange between devices in a compiled program.

    Attributes:
        kind: Its kind, in XLA's words.
        runs: How often it runs, trip counts of loops included.
        result_bytes: The bytes that a device has from it after one run.
        sent_bytes: The bytes that a device sends in one run if it is done over a ring.
        group_size: The number of devices that exchange data with one another; 0 if the program does not tell.
        mesh_axes: The mesh axes along which these devices differ; empty if the mesh is not known.
        axes: The named axes that are gathered, added up or moved, as far as scopes and shardings tell.
        layer: The scopes that it is in, such as `Stacked/up`.
        operation: The operation that it is for, such as `dot(mlp -> embed)`.
        run_in: `"forward"`, `"backward"`, or `"recomputed"` for what `jax.checkpoint` did not save.
        source: The line of the user's program, as `file:line`.
        is_async: Whether the program does other work between its start and its end.
        name: The name of the instruction.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 8}))
        ...     one = nym.planner.communication_report(lambda x: nym.sum(x), x).collectives[0]
        >>> one.kind, one.group_size, one.result_bytes, one.sent_bytes, one.cause
        ('all-reduce', 8, 4, 7, 'adds up over batch, sharded over data; each device keeps all of it')
    """

    kind: CollectiveKind
    runs: int
    result_bytes: int
    sent_bytes: int
    group_size: int
    mesh_axes: tuple[str, ...]
    axes: tuple[str, ...]
    layer: str
    operation: str
    run_in: Pass
    source: str
    is_async: bool
    name: str

    @property
    def bytes(self) -> int:
        """The bytes that a device has from all runs of it."""
        return self.runs * self.result_bytes

    @property
    def cause(self) -> str:
        """Why the compiler has put it there, in words."""
        return describe_cause(self)


def list_collectives(
    program: HloProgram, mesh: Mapping[str, int], devices: int, axes: ArgumentAxes
) -> list[Collective]:
    """Returns the collectives of a program, in the order of its text.

    A pair of start and done is one collective. On TPUs a reduce-scatter is a fusion of an all-reduce and slices, and a
    collective that runs beside other work is written in each fusion that it is spread over: these share a channel.

    Args:
        program: The program.
        mesh: The sizes of the mesh axes; empty if not known.
        devices: The number of devices of the program.
        axes: The named axes of its arguments.
    """
    return [_make_collective(program, *one, mesh, devices, axes) for one in find_collectives(program)]


def find_collectives(program: HloProgram) -> list[tuple[HloInstruction, str, tuple[HloArray, ...]]]:
    """Returns each collective once: its first instruction, its kind, and the arrays that a device has from it."""
    found: dict[object, tuple[HloInstruction, str, tuple[HloArray, ...]]] = {}
    for one in program.instructions:
        if is_collective(one):
            kind, results = read_exchange(program, one)
            found.setdefault(_make_key(program, one, kind), (one, kind, results))
    return list(found.values())


def is_collective(one: HloInstruction) -> bool:
    """Returns whether an instruction is a collective or the start of one."""
    return one.opcode.removesuffix("-start") in COLLECTIVE_KINDS


def read_exchange(program: HloProgram, one: HloInstruction) -> tuple[str, tuple[HloArray, ...]]:
    """Returns the kind of a collective, and the arrays that a device has from it."""
    if one.computation.startswith(_SCATTERED):
        return "reduce-scatter", program.by_computation[one.computation][-1].results
    return one.opcode.removesuffix("-start"), _get_results(one)


def count_sent_bytes(kind: str, result_bytes: int, group_size: int) -> int:
    """Returns the bytes that a device sends in a collective over a ring of devices.

    With results of R bytes on each of n devices: (n - 1) / n R for an all-gather and an all-to-all, (n - 1) R for a
    reduce-scatter, 2 (n - 1) / n R for an all-reduce, which is both in turn, and R for a permutation or a broadcast.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
    """
    others = max(group_size - 1, 0)  # a size of 0 is unknown
    if kind in ("collective-permute", "collective-broadcast"):
        return result_bytes
    if kind == "reduce-scatter":
        return others * result_bytes
    return (2 if kind == "all-reduce" else 1) * others * result_bytes // max(group_size, 1)


def describe_cause(one: Collective) -> str:
    """Returns in words why the compiler has put a collective into a program."""
    over = " and ".join(one.mesh_axes) or "the devices"
    names = ", ".join(one.axes) or "an axis"
    if one.kind in ("all-reduce", "reduce-scatter"):
        result = "each device keeps its part" if one.kind == "reduce-scatter" else "each device keeps all of it"
        return f"adds up over {names}, sharded over {over}; {result}"
    if one.kind == "all-gather" and one.operation.startswith("gather("):
        return f"gathers a parameter, stored with {names} sharded over {over}, for its use"
    if one.kind == "all-gather":
        return f"makes {names}, sharded over {over}, whole for {one.operation or 'what follows'}"
    return f"moves {names} between the parts of {over}: an array is needed in another sharding than it has"


def _get_results(one: HloInstruction) -> tuple[HloArray, ...]:
    """Returns the arrays that a collective gives; the shape of a start has operands and contexts as well."""
    parts = split_tuple(one.shape)
    has_operands = one.opcode.endswith("-start") and one.opcode != "all-reduce-start" and len(parts) > 1
    return parse_arrays(parts[1]) if has_operands else one.results


def _make_collective(
    program: HloProgram,
    one: HloInstruction,
    kind: str,
    results: tuple[HloArray, ...],
    mesh: Mapping[str, int],
    devices: int,
    axes: ArgumentAxes,
) -> Collective:
    groups = read_replica_groups(one.rest, devices)
    members = 0 if groups is None else groups.shape[1]
    mesh_axes = () if groups is None else find_group_axes(groups, mesh)
    size, origin = sum(result.bytes for result in results), _find_origin_of_all(program, one, kind)
    return Collective(
        kind=kind,  # pyright: ignore[reportArgumentType]
        runs=program.count_runs(one.computation),
        result_bytes=size,
        sent_bytes=count_sent_bytes(kind, size, members),
        group_size=members,
        mesh_axes=mesh_axes,
        axes=infer_logical_axes(kind, origin, mesh_axes, results[0], _list_gathered_sizes(kind, one, results), axes),
        layer=origin.layer,
        operation=origin.operation,
        run_in=origin.run_in,
        source=origin.source,
        is_async=one.opcode.endswith("-start")
        or "async_collective" in one.rest
        or "async" in one.computation
        or any(call.opcode.endswith("-start") for call in program.find_calls(one.computation)),
        name=one.name,
    )


def _find_origin_of_all(program: HloProgram, one: HloInstruction, kind: str) -> Origin:
    """Returns where a collective comes from, for sums of several arrays with where each of these comes from."""
    origin, sent = find_origin(program, one), program.find_operands(one)
    if kind not in ("all-reduce", "reduce-scatter") or len(sent) < 2 or " + " in origin.operation:
        return origin
    return join_origins([origin, *(find_origin(program, operand) for operand in sent)])


def _list_gathered_sizes(kind: str, one: HloInstruction, results: Sequence[HloArray]) -> frozenset[int]:
    """Returns the sizes that the dimensions have which an all-gather makes whole; none for other collectives."""
    found = _DIMENSION.search(one.rest) if kind == "all-gather" else None
    return frozenset(result.shape[int(found[1])] for result in results) if found else frozenset()


def _make_key(program: HloProgram, one: HloInstruction, kind: str) -> object:
    """Returns what is the same for all places in which one collective is written."""
    if one.channel and ("async" in one.computation or "fused" in one.computation):
        return kind, one.channel, program.count_runs(one.computation)
    return one.computation, one.name
