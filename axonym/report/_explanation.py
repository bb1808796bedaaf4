"""`Explanation` and its parts, and `LeafReport`: how arrays are sharded and why, as data and as printed tables."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from jax.sharding import PartitionSpec as P

from .._ground.formats import format_axes, format_count
from ..named._stages import PipelineSchedule
from ..partitioning._shard import get_sharded_axes
from ._format import format_costs, format_path
from ._table import Note, Row, Table, TabularReport


Decision: TypeAlias = Literal[
    "mapping",
    "rule",
    "sharding",
    "spec",
    "not in the mapping",
    "None",
    "uneven",
    "size 1",
    "manual",
    "no rule",
    "no mapping",
    "refused",
]
"""What decided about an axis."""


@dataclass(frozen=True, slots=True)
class AxisExplanation:
    """How an axis of an array is sharded, and what decided that.

    Attributes:
        name: Its name, None for an axis of a plain array.
        size: Its size.
        mesh_axes: The mesh axes it is sharded over, none if it is replicated.
        parts: The number of parts it is sharded into.
        decision: What decided: `"mapping"`, `"rule"` (the fallback rule), `"sharding"` (the array's own), `"spec"` (a
            given one), or for an axis that is not sharded `"not in the mapping"`, `"None"` (so mapped), `"uneven"`,
            `"manual"` (its mesh axes are Manual here), `"no rule"` (for plain arrays) or `"no mapping"`; `"size 1"` if
            it or its mesh axes have size 1, `"refused"` if `shard` raises an error because of it.
        why: The same in words.
        near_miss: A name in the mapping that was perhaps meant.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> nym.explain(nym.ones({"batch": 8}), {"batch": "data"}, mesh).leaves[0].axes[0]
        AxisExplanation(name='batch', size=8, mesh_axes=('data',), parts=4, decision='mapping', \
why="'batch': 'data'", near_miss=None)
    """

    name: str | None
    size: int
    mesh_axes: tuple[str, ...]
    parts: int
    decision: Decision
    why: str
    near_miss: str | None = None


@dataclass(frozen=True, slots=True)
class LeafExplanation:
    """How an array of a tree is sharded, axis by axis, and what that costs.

    Attributes:
        path: Its key path.
        dtype: Its element type.
        shape: Its shape.
        kind: `"named"`, `"field"` (plain, its axes declared with `axonym.field`) or `"plain"`.
        axes: An explanation of each axis.
        spec: Its spec, with one entry for each axis; None if `shard` raises an error.
        bytes: Its size.
        bytes_per_device: The bytes of it on each device; all of them if it is replicated.
        replicated_bytes: The bytes on all devices together beyond one copy.
        now: Where it is now, if that is somewhere else.
        error: The error that `shard` raises because of it.
        gradient: Over which mesh axes its gradient is added up, and how, if `compute_mapping` is given and there are
            any.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> leaf = nym.explain(nym.ones({"batch": 8}), {"batch": "data"}, mesh).leaves[0]
        >>> leaf.spec, leaf.bytes, leaf.bytes_per_device, leaf.replicated_bytes
        (P('data',), 32, 8, 32)
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    kind: Literal["named", "field", "plain"]
    axes: tuple[AxisExplanation, ...]
    spec: P | None
    bytes: int
    bytes_per_device: int
    replicated_bytes: int
    now: str | None = None
    error: str | None = None
    gradient: str | None = None


@dataclass(frozen=True, repr=False)
class ShardedTree(TabularReport):
    """Base class of `Explanation` and `ShardingReport`: the arrays of a tree on a mesh, and the totals of all."""

    leaves: tuple[LeafExplanation, ...]
    mesh: Mapping[str, int] = field(hash=False)
    devices: int
    bytes: int
    bytes_per_device: int
    replicated_bytes: int

    @property
    def share(self) -> float:
        """The bytes on the fullest device as a share of all: 1 if nothing is sharded, 1/devices if everything is."""
        return self.bytes_per_device / self.bytes if self.bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings, numbers and None, for tests and for files."""
        return {**to_plain(self), "share": self.share}

    def _make_total_row(self, device: str = "the fullest device") -> Row:
        return Row(f"{format_count(len(self.leaves), 'array')}, {self.share:.1%} on {device}", "", format_costs(self))


@dataclass(frozen=True, repr=False)
class Explanation(ShardedTree):
    """How the arrays of a tree are sharded and why: printed, a table; in a notebook, one as HTML.

    Attributes:
        leaves: An explanation of each array, in the order of the tree.
        mesh: The sizes of the mesh axes; empty if no array is on a mesh and none is given.
        mapping: The entries of the mapping, None if there is none.
        options: Options of the mapping: its fallback rule, and how it treats uneven axes.
        devices: The number of devices; devices that differ in Manual mesh axes alone count once.
        bytes: The size of all arrays.
        bytes_per_device: The bytes on the fullest device.
        replicated_bytes: The bytes on all devices together beyond one copy of each array.
        unused_entries: The entries of the mapping for names that no array has.
        unknown_entries: The entries that name a mesh axis which the mesh does not have, and these mesh axes.
        unused_mesh_axes: The mesh axes that no array is sharded over.
        pipelines: The schedule of each layer axis whose layers are the stages of a pipeline.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> found = nym.explain(nym.ones({"batch": 8}), {"batch": "data", "mlp": "model"}, mesh)
        >>> found.problems, found.unused_entries, found.unused_mesh_axes
        ((), {'mlp': ('model',)}, ('model',))
    """

    mapping: Mapping[str, tuple[str, ...]] | None = field(hash=False)
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    unused_entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    unknown_entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    unused_mesh_axes: tuple[str, ...] = ()
    pipelines: Mapping[str, PipelineSchedule] = field(default_factory=dict, hash=False)

    @property
    def problems(self) -> tuple[LeafExplanation, ...]:
        """The leaves for which `shard` raises an error, each with its `error`."""
        return tuple(leaf for leaf in self.leaves if leaf.error is not None)

    @property
    def near_misses(self) -> Mapping[str, str]:
        """The names of axes that are not in the mapping, and for each a name in it that was perhaps meant."""
        axes = [axis for leaf in self.leaves for axis in leaf.axes]
        return {axis.name: axis.near_miss for axis in axes if axis.name is not None and axis.near_miss is not None}

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings, numbers and None, for tests and for files."""
        problems = {leaf.path: leaf.error for leaf in self.problems}
        pipelines = {name: dataclasses.asdict(schedule) for name, schedule in self.pipelines.items()}
        fields = {"problems": problems, "near_misses": dict(self.near_misses), "pipelines": pipelines}
        return {**super().to_dict(), **fields}

    def _make_table(self) -> Table:
        mesh = format_mesh_title(self.mesh, self.devices)
        options = "".join(f", {key}={value}" for key, value in self.options.items())
        if self.mapping is None:
            title, device = f"{mesh}; no mapping: the arrays' own shardings", "the fullest device"
        else:
            entries = ", ".join(format_entry(*entry) for entry in self.mapping.items())
            title, device = f"{mesh}; mapping {{{entries}}}{options}", "each device"
        return Table(
            title, [*map(make_leaf_row, self.leaves)], self._make_total_row(device), [*_list_explanation_notes(self)]
        )


def to_plain(value: Any) -> Any:
    """Returns a result as plain values; an entry of a spec is a list of mesh axes, or `"unconstrained"`."""
    if isinstance(value, P):
        entries = value.partitions
        return ["unconstrained" if entry is P.UNCONSTRAINED else [*get_sharded_axes(entry)] for entry in entries]
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    return [*map(to_plain, value)] if isinstance(value, tuple) else value


def format_mesh_title(mesh: Mapping[str, int], devices: int, several: bool = False) -> str:
    """Returns a mesh and its devices in words; `several` if there is no mesh because there are several."""
    count = format_count(devices, "device")
    if not mesh:
        return f"{'several meshes' if several else 'no mesh'}, {count}"
    manual = " outside the Manual mesh axes" if devices != math.prod(mesh.values()) else ""
    return f"mesh {format_axes(tuple(mesh), tuple(mesh.values()))}, {count}{manual}"


def format_entry(name: str, axes: tuple[str, ...]) -> str:
    """Returns an entry of a mapping as it is written."""
    return f"{name!r}: {(axes[0] if len(axes) == 1 else axes)!r}"


def make_leaf_row(leaf: LeafExplanation) -> Row:
    kind = {"named": "", "field": ", field(axis_names=...)", "plain": ", plain"}[leaf.kind]
    suffix = "" if leaf.now is None else f"; now {leaf.now}"
    axes = [_format_axis_cells(axis) for axis in leaf.axes]
    if leaf.gradient is not None:
        axes.append(("gradient", "", "", leaf.gradient))
    return Row(format_path(leaf.path), f"{leaf.dtype}{kind}{suffix}", format_costs(leaf), axes, leaf.error is not None)


def _format_axis_cells(axis: AxisExplanation) -> tuple[str, str, str, str]:
    mesh_axes = " x ".join(axis.mesh_axes) + f" ({axis.parts})" if axis.mesh_axes else "-"
    return axis.name or "-", str(axis.size), mesh_axes, "error, see below" if axis.decision == "refused" else axis.why


def _list_explanation_notes(explanation: Explanation) -> Iterator[Note]:
    """Yields the notes below the table, errors first."""
    if explanation.problems:
        count = f"{len(explanation.problems)} of {format_count(len(explanation.leaves), 'array')}"
        errors = [*dict.fromkeys(leaf.error or "" for leaf in explanation.problems)]
        yield Note(f"`shard` raises an error for {count}:", errors, True)
    if explanation.unknown_entries:
        pairs = [f"{name!r}: {', '.join(map(repr, axes))}" for name, axes in explanation.unknown_entries.items()]
        yield Note("Mapping entries with a mesh axis that the mesh does not have:", pairs, True)
    if explanation.near_misses:
        pairs = [
            f"{name!r}: did you mean {near_miss!r}?" for name, near_miss in sorted(explanation.near_misses.items())
        ]
        yield Note("Axis names that are close to one in the mapping:", pairs, True)
    if explanation.unused_entries:
        entries = [format_entry(*entry) for entry in explanation.unused_entries.items()]
        yield Note("Mapping entries for axes that no array has:", entries)
    if explanation.unused_mesh_axes:
        yield Note("Mesh axes that no array is sharded over:", [repr(axis) for axis in explanation.unused_mesh_axes])
    for name, schedule in explanation.pipelines.items():
        title, *lines = str(schedule).split("\n")
        yield Note(f"Layers along {name!r} are a pipeline of {title}:", lines, has_lines=True)


@dataclass(frozen=True, slots=True)
class LeafReport(LeafExplanation):
    """What an array of a tree costs on each device, and why.

    It has all attributes of `LeafExplanation`; `error` lists the problems of its spec.

    Attributes:
        unused: The mesh axes that the array is not sharded over, each with the reason.
        place: Where it is if that is not the mesh of the report, as `"one device"`, `"the host"` or
            `"mesh (stage: 2)"`; None if it is on that mesh, or if its spec is given.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> weight = jax.ShapeDtypeStruct((8, 5), "float32")
        >>> leaf = analyzer.sharding_report(weight, P("data")).leaves[0]
        >>> leaf.bytes, leaf.bytes_per_device, leaf.unused["model"]
        (160, 40, "unused; it could shard dimension 0 along with 'data'")
    """

    unused: Mapping[str, str] = field(default_factory=dict, hash=False)
    place: str | None = None
