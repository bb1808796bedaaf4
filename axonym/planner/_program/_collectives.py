"""The collectives of an optimized program: what they send, how often, along which axes, and what they are for."""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from ...named._axis_layout import get_entry_axes
from . import _xla_text as xla
from ._arguments import ArgumentArray
from ._hlo_program import HloArray, HloInstruction, HloProgram, parse_arrays, split_tuple
from ._origin import Origin, Pass, find_origin, join_origins


MeshAxes: TypeAlias = tuple[str, ...]
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
        ...     total = nym.planner.communication_report(lambda x: nym.sum(x), x).collectives[0]
        >>> total.kind, total.group_size, total.result_bytes, total.sent_bytes, total.cause
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
        mesh_axes = " and ".join(self.mesh_axes) or "the devices"
        names = ", ".join(self.axes) or "an axis"
        if self.kind == "reduce-scatter":
            return f"adds up over {names}, sharded over {mesh_axes}; each device keeps its part"
        if self.kind == "all-reduce":
            return f"adds up over {names}, sharded over {mesh_axes}; each device keeps all of it"
        if self.kind == "all-gather" and self.operation.startswith("gather("):
            return f"gathers a parameter, stored with {names} sharded over {mesh_axes}, for its use"
        if self.kind == "all-gather":
            return f"makes {names}, sharded over {mesh_axes}, whole for {self.operation or 'what follows'}"
        if self.kind == "collective-permute" and self.operation.startswith(("ppermute", "send(")):
            return f"sends arrays from each part of {mesh_axes} to another, as the program says"
        return f"moves {names} between the parts of {mesh_axes}: an array is needed in another sharding than it has"


@dataclass(frozen=True)
class ArgumentAxes:
    """The named axes of the arguments of a program.

    Attributes:
        sharded: The names of the axes that are sharded over each mesh axis.
        sizes: The largest size of each axis.
        data: The names that no parameter has.
    """

    sharded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    data: frozenset[str] = frozenset()


class SliceGroups(NamedTuple):
    """The groups of devices that have the same place in each slice of a mesh, all of which are taken to exchange.

    Attributes:
        mesh_axes: The mesh axes along which the members of a group differ.
        size: The number of slices.
    """

    mesh_axes: tuple[str, ...] = ()
    size: int = 1


def find_slice_groups(mesh: Mesh | AbstractMesh | None) -> SliceGroups:
    """Returns the groups of devices of a mesh that exchange data between slices."""
    if not isinstance(mesh, Mesh):  # an abstract mesh has no devices
        return SliceGroups()
    slices = np.vectorize(lambda device: getattr(device, "slice_index", None) or 0, otypes=[int])(mesh.devices)
    mesh_axes = [name for dim, name in enumerate(mesh.axis_names) if (slices != slices.take([0], dim)).any()]
    return SliceGroups(tuple(mesh_axes), len(np.unique(slices)))


def list_collectives(
    hlo: HloProgram, mesh: Mapping[str, int], devices: int, axes: ArgumentAxes, slices: SliceGroups
) -> list[Collective]:
    """Returns the collectives of a program, in the order of its text, and after them what slices exchange.

    A pair of start and done is one collective. On TPUs a reduce-scatter is a fusion of an all-reduce and slices, and a
    collective that runs beside other work is written in each fusion that it is spread over: these share a channel. What
    slices exchange is written as a `send` and a `recv`, apart from what is exchanged within them.

    Args:
        hlo: The program.
        mesh: The sizes of the mesh axes; empty if not known.
        devices: The number of devices of the program.
        axes: The named axes of its arguments.
        slices: The devices that exchange data between slices.
    """
    collectives: list[Collective] = []
    for instruction, kind, results in find_collectives(hlo):
        if instruction.opcode == "send":
            mesh_axes, group_size = slices
        else:
            groups = read_replica_groups(instruction.attributes, devices)
            group_size = 0 if groups is None else groups.shape[1]
            mesh_axes = () if groups is None else find_group_axes(groups, mesh)
        result_bytes = sum(result.bytes for result in results)
        origin = _find_collective_origin(hlo, instruction, kind)
        gathered_sizes: set[int] = set()
        if kind == "all-gather" and (dim := xla.GATHERED_DIMENSION.search(instruction.attributes)):
            gathered_sizes = {result.shape[int(dim[1])] for result in results}
        collectives.append(
            Collective(
                kind=kind,
                runs=hlo.count_runs(instruction.computation),
                result_bytes=result_bytes,
                sent_bytes=count_sent_bytes(kind, result_bytes, group_size),
                group_size=group_size,
                mesh_axes=mesh_axes,
                axes=infer_logical_axes(kind, origin, mesh_axes, results[0], gathered_sizes, axes),
                layer=origin.layer,
                operation=origin.operation,
                run_in=origin.run_in,
                source=origin.source,
                is_async=_is_async(hlo, instruction),
                name=instruction.name,
            )
        )
    return collectives


def find_collectives(hlo: HloProgram) -> list[tuple[HloInstruction, CollectiveKind, tuple[HloArray, ...]]]:
    """Returns each collective once: its first instruction, its kind, and the arrays that a device has from it."""
    collectives: dict[object, tuple[HloInstruction, CollectiveKind, tuple[HloArray, ...]]] = {}
    sends: dict[str, HloInstruction] = {}  # between slices; they say where the exchange comes from
    receipts: dict[str, tuple[CollectiveKind, tuple[HloArray, ...]]] = {}
    for instruction in hlo.instructions:
        if is_collective(instruction):
            kind, results = read_exchange(hlo, instruction)
            computation = instruction.computation
            is_started_whole = any(call.opcode == "async-start" for call in hlo.find_calls(computation))
            is_fused = not is_started_whole and ("async" in computation or "fused" in computation)
            if instruction.channel and is_fused:
                # One collective is written in each fusion that it is spread over.
                key = kind, instruction.channel, hlo.count_runs(computation)
            else:
                key = computation, instruction.name
            collectives.setdefault(key, (instruction, kind, results))
        elif instruction.opcode in ("send", "recv") and (transfer := read_slice_transfer(instruction)):
            key, kind = transfer
            if instruction.opcode == "send":
                sends[key] = instruction
            else:
                receipts[key] = kind, instruction.results[:1]
    for key, (kind, results) in receipts.items():
        if key in sends:
            collectives[key] = sends[key], kind, results
    return list(collectives.values())


def read_slice_transfer(instruction: HloInstruction) -> tuple[str, CollectiveKind] | None:
    """Returns what a `send` and a `recv` between slices have in common, and the kind of the collective; else None."""
    transfer = xla.SLICE_TRANSFER.search(instruction.attributes)
    if transfer is None:
        return None
    kind = transfer[2].lower().replace("_", "-")
    return transfer[1], "collective-permute" if kind == "one-to-one" else kind  # pyright: ignore[reportReturnType]


def is_collective(instruction: HloInstruction) -> bool:
    """Returns whether an instruction is a collective or the start of one."""
    return instruction.opcode.removesuffix("-start") in COLLECTIVE_KINDS


def read_exchange(hlo: HloProgram, instruction: HloInstruction) -> tuple[CollectiveKind, tuple[HloArray, ...]]:
    """Returns the kind of a collective, and the arrays that a device has from it."""
    if instruction.computation.startswith(xla.ALL_REDUCE_SCATTER):
        # The root of the fusion is the slice of the sum that a device keeps.
        return "reduce-scatter", hlo.by_computation[instruction.computation][-1].results
    opcode = instruction.opcode
    kind: CollectiveKind = opcode.removesuffix("-start")  # pyright: ignore[reportAssignmentType]
    elements = split_tuple(instruction.shape)
    if opcode.endswith("-start") and len(elements) > 1:
        # The first are the operands, and contexts may follow. A sum may have its results alone.
        if kind != "all-reduce" or elements[0].startswith("("):
            return kind, parse_arrays(elements[1])
    return kind, instruction.results


def count_sent_bytes(kind: str, result_bytes: int, group_size: int) -> int:
    """Returns the bytes that a device sends in a collective over a ring of devices.

    With results of R bytes on each of n devices: (n - 1) / n R for an all-gather and an all-to-all, (n - 1) R for a
    reduce-scatter, 2 (n - 1) / n R for an all-reduce, which is both in turn, and R for a permutation or a broadcast.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
    """
    peers = max(group_size - 1, 0)  # a size of 0 is unknown
    if kind in ("collective-permute", "collective-broadcast"):
        return result_bytes
    if kind == "reduce-scatter":
        return peers * result_bytes
    rounds = 2 if kind == "all-reduce" else 1
    return rounds * peers * result_bytes // max(group_size, 1)


def _find_collective_origin(hlo: HloProgram, instruction: HloInstruction, kind: str) -> Origin:
    """Returns where a collective comes from; of a sum of several arrays, where each of them does."""
    origin, operands = find_origin(hlo, instruction), hlo.find_operands(instruction)
    if kind not in ("all-reduce", "reduce-scatter"):
        users = hlo.find_users(instruction) if xla.IS_INSERTED in instruction.attributes else []
        user = next((user for user in users if user.op_name), None)
        return origin if user is None or "(" in origin.operation else find_origin(hlo, user)
    if len(operands) < 2 or " + " in origin.operation:
        return origin
    return join_origins([origin, *(find_origin(hlo, operand) for operand in operands)])


def _is_async(hlo: HloProgram, instruction: HloInstruction) -> bool:
    calls = hlo.find_calls(instruction.computation)
    return (
        instruction.opcode.endswith("-start")
        or "async_collective" in instruction.attributes
        or "async" in instruction.computation
        or instruction.opcode == "send"
        or any(call.opcode.endswith("-start") for call in calls)
    )


def read_replica_groups(attributes: str, devices: int) -> np.ndarray | None:
    """Returns the groups of devices of a collective, by their places in the mesh.

    XLA writes lists (`{{0,1},{2,3}}`), a range that is reshaped and transposed (`[4,2]<=[2,4]T(1,0)`), or axes of a
    mesh of its own (`mesh['axis_0'=2,'axis_1'=4] {'axis_0'}`), of which it may take a part (`'axis_1':(2)2`). No
    groups, or an empty list of them, mean all devices. The pairs of a permutation are groups of two: from and to.

    Args:
        attributes: What follows the operands of the instruction.
        devices: The number of devices of the program.

    Returns:
        Integers of shape (groups, members); None if the form is unknown or the groups differ in size.
    """
    if match := xla.PERMUTATION.search(attributes):
        return np.array(xla.PERMUTATION_PAIR.findall(match[1]), int).reshape(-1, 2)
    if match := xla.GROUP_LISTS.search(attributes):
        groups = [_read_numbers(members) for members in xla.GROUP_MEMBERS.findall(match[1])]
        if len({len(group) for group in groups}) > 1:
            return None
        return np.array(groups) if groups else np.arange(devices)[None]
    if match := xla.GROUP_RANGE.search(attributes):
        return _make_range(match[2], match[3]).reshape(_read_numbers(match[1]))
    if match := xla.GROUP_MESH.search(attributes):
        order = _make_range(match[2], match[3]) if match[2] else None
        return _read_mesh_groups(match[1], order, match[4])
    return None if "replica_groups=" in attributes else np.arange(devices)[None]


def find_group_axes(groups: np.ndarray, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which the members of a group differ.

    Args:
        groups: As `read_replica_groups` returns them.
        mesh: The sizes of the mesh axes.
    """
    if not mesh or not groups.size or groups.max() >= math.prod(mesh.values()):
        return ()
    places = np.stack(np.unravel_index(groups, tuple(mesh.values())))  # (mesh axes, groups, members)
    varies = (places != places[:, :, :1]).any(axis=(1, 2))
    return tuple(axis for axis, is_along in zip(mesh, varies, strict=True) if is_along)


def _read_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _make_range(sizes: str, order: str | None) -> np.ndarray:
    """Returns the numbers from 0 on in an array of these sizes, its dimensions in this order, flat."""
    shape = _read_numbers(sizes)
    return np.arange(math.prod(shape)).reshape(shape).transpose(_read_numbers(order) if order else None).ravel()


def _read_mesh_groups(mesh: str, devices: np.ndarray | None, axes: str) -> np.ndarray | None:
    """Returns the groups along axes, or parts of axes, of a mesh.

    A part `(before)size` of an axis is a dimension of that size, with `before` as the product of the sizes that come
    before it in the axis. So each axis is split where some part starts or ends.
    """
    sizes = {name: int(size) for name, size in xla.MESH_AXIS.findall(mesh)}
    parts = [  # the name of an axis, and where a part of it starts and ends
        (name, int(before or 1), int(before or 1) * int(size or sizes.get(name, 0)))
        for name, before, size in xla.GROUP_AXIS.findall(axes)
    ]
    if not all(name in sizes for name, _, _ in parts):
        return None
    dims: list[tuple[str, int, int]] = []
    for name, size in sizes.items():
        cuts = {1, size}.union(*((start, end) for axis, start, end in parts if axis == name))
        dims += [(name, start, end) for start, end in itertools.pairwise(sorted(cuts))]
    shape = [end // start for _, start, end in dims]
    inner = [
        dim
        for dim, (name, start, end) in enumerate(dims)
        if any(axis == name and part_start <= start and end <= part_end for axis, part_start, part_end in parts)
    ]
    outer = [dim for dim in range(len(dims)) if dim not in inner]
    places = np.arange(math.prod(shape)) if devices is None else devices
    members = math.prod(shape[dim] for dim in inner)
    return places.reshape(shape).transpose([*outer, *inner]).reshape(-1, members)


def list_argument_axes(arrays: Iterable[ArgumentArray]) -> ArgumentAxes:
    """Returns the named axes of arguments."""
    sharded: dict[str, dict[str, None]] = {}
    sizes: dict[str, int] = {}
    state_names: set[str] = set()
    for array in arrays:
        names = array.names or ()
        if array.group not in ("cache", "inputs"):
            state_names.update(names)
        for name, size in zip(names, array.shape, strict=False):
            sizes[name] = max(size, sizes.get(name, 0))
        spec = array.sharding.spec if isinstance(array.sharding, NamedSharding) else ()
        for name, entry in zip(names, spec, strict=False):
            for mesh_axis in get_entry_axes(entry):
                sharded.setdefault(mesh_axis, {})[name] = None
    return ArgumentAxes(
        sharded={mesh_axis: tuple(names) for mesh_axis, names in sharded.items()},
        sizes=sizes,
        data=frozenset(sizes.keys() - state_names),
    )


def infer_logical_axes(
    kind: str,
    origin: Origin,
    mesh_axes: Sequence[str],
    result: HloArray,
    gathered_sizes: Collection[int],
    axes: ArgumentAxes,
) -> tuple[str, ...]:
    """Returns the named axes that a collective gathers, adds up or moves.

    Candidates are the names that are sharded over its mesh axes. Of an all-gather, they are those with a size that it
    makes whole: of each size the axes of the operation, or else all of them. The gradient of a weight is added up over
    an axis of the data that the operation does not have, and the gradient of what is multiplied with the weight over an
    axis of the operation's result.
    """
    names = tuple(dict.fromkeys(name for axis in mesh_axes for name in axes.sharded.get(axis, ())))
    gathered: set[str] = set()
    for size in gathered_sizes:
        same_size = [name for name in names if axes.sizes[name] == size]
        gathered.update([name for name in same_size if name in origin.axes] or same_size)
    if gathered:
        return tuple(name for name in names if name in gathered)
    in_operation = tuple(name for name in names if name in origin.axes)
    outside = tuple(name for name in names if name not in origin.axes)
    if kind not in ("all-reduce", "reduce-scatter") or origin.run_in != "backward" or not origin.axes:
        return in_operation or names
    result_names = {name for results in xla.RESULT_AXES.findall(origin.operation) for name in results.split(", ")}
    summed = tuple(name for name in in_operation if name in result_names)
    data = tuple(name for name in outside if name in axes.data)
    if summed and not (data and _is_weight(result, [axes.sizes.get(name, 0) for name in origin.axes])):
        return summed
    return data or outside or in_operation


def _is_weight(result: HloArray, sizes: Sequence[int]) -> bool:
    """Returns whether a result has the shape of a part of an array with axes of these sizes."""
    shape = [size for size in result.shape if size > 1]
    return any(
        all(size % part == 0 for size, part in zip(permuted, shape, strict=True))
        for permuted in itertools.permutations(sizes, len(shape))
    )
