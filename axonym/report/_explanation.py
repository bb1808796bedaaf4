"""What `explain` returns: where each axis of each array goes and why, with totals, as text, HTML and plain values."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from jax.sharding import PartitionSpec as P

from ..named._axis import format_axes
from ._table import Note, Row, Table, Tabled, format_bytes


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
    """Where an axis of an array goes, and what decided that.

    Attributes:
        name: Its name, None for an axis of a plain array.
        size: Its size.
        mesh_axes: The mesh axes it is divided over, none if it is whole.
        parts: Into how many parts it is divided.
        decision: What decided: `"mapping"`, `"rule"` (the fallback rule), `"sharding"` (the array's own), `"spec"` (one
            that is given), or for an axis that stays whole `"not in the mapping"`, `"None"` (so mapped), `"uneven"`,
            `"manual"` (its mesh axes are Manual here), `"no rule"` (for plain arrays) or `"no mapping"`; `"size 1"` if
            its mesh axes have but one device, `"refused"` if `shard` raises an error because of it.
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
    """Where an array of a tree goes, axis by axis, and what that costs.

    Attributes:
        path: Its key path.
        dtype: Its element type.
        shape: Its shape.
        kind: `"named"`, `"field"` (plain, its axes declared with `axonym.field`) or `"plain"`.
        axes: What becomes of each axis.
        spec: The spec it gets, one entry for each axis; None if `shard` refuses it.
        bytes: Its size.
        bytes_per_device: What each device holds of it; all of it if nothing divides it.
        replicated_bytes: What all devices together hold of it beyond one copy.
        now: Where it lies now, if that is somewhere else.
        error: The error that `shard` raises because of it.

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


@dataclass(frozen=True, repr=False)
class Explanation(Tabled):
    """Where the arrays of a tree go and why: printed, a table; in a notebook, one as HTML.

    Attributes:
        leaves: What is said of each array, in the order of the tree.
        mesh: The sizes of the mesh axes; empty if no array lies on a mesh and none is given.
        mapping: What the mapping says, None if there is none.
        options: What else the mapping says: its fallback rule, and what becomes of uneven axes.
        devices: The number of devices; those that differ in Manual mesh axes alone count once.
        bytes: The size of all arrays.
        bytes_per_device: What the fullest device holds.
        replicated_bytes: What all devices together hold beyond one copy of each array.
        unused_entries: The entries of the mapping for names that no array has.
        unknown_entries: The entries that name a mesh axis which the mesh does not have, and these mesh axes.
        unused_mesh_axes: The mesh axes over which no array is divided.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> found = nym.explain(nym.ones({"batch": 8}), {"batch": "data", "mlp": "model"}, mesh)
        >>> found.problems, found.unused_entries, found.unused_mesh_axes
        ((), {'mlp': ('model',)}, ('model',))
    """

    leaves: tuple[LeafExplanation, ...]
    mesh: Mapping[str, int] = field(hash=False)
    mapping: Mapping[str, tuple[str, ...]] | None = field(hash=False)
    devices: int
    bytes: int
    bytes_per_device: int
    replicated_bytes: int
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    unused_entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    unknown_entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    unused_mesh_axes: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[LeafExplanation, ...]:
        """The leaves that `shard` refuses, each with its `error`."""
        return tuple(leaf for leaf in self.leaves if leaf.error is not None)

    @property
    def near_misses(self) -> Mapping[str, str]:
        """The names of axes that are not in the mapping, and for each a name in it that was perhaps meant."""
        axes = [axis for leaf in self.leaves for axis in leaf.axes]
        return {axis.name: axis.near_miss for axis in axes if axis.name is not None and axis.near_miss is not None}

    @property
    def share(self) -> float:
        """What the fullest device holds, as a share of all: 1 if nothing is divided, 1/devices if everything is."""
        return self.bytes_per_device / self.bytes if self.bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings, numbers and None, for tests and for files."""
        return {
            "mesh": dict(self.mesh),
            "devices": self.devices,
            "mapping": None if self.mapping is None else _plain(self.mapping),
            "options": dict(self.options),
            "leaves": [plain_leaf(leaf) for leaf in self.leaves],
            "bytes": self.bytes,
            "bytes_per_device": self.bytes_per_device,
            "replicated_bytes": self.replicated_bytes,
            "share": self.share,
            "problems": {leaf.path: leaf.error for leaf in self.problems},
            "near_misses": dict(sorted(self.near_misses.items())),
            "unused_entries": _plain(self.unused_entries),
            "unknown_entries": _plain(self.unknown_entries),
            "unused_mesh_axes": list(self.unused_mesh_axes),
        }

    def _table(self, limit: int | None) -> Table:
        """Returns what is shown: the first arrays, and totals and notes of all."""
        return _table(self, limit)


def _plain(entries: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    return {name: list(axes) for name, axes in sorted(entries.items())}


def plain_spec(leaf: LeafExplanation) -> list[Any] | None:
    """Returns a spec as lists of mesh axes, and `"unconstrained"` for an axis that is left to the compiler."""
    if leaf.spec is None:
        return None
    free = [at < len(leaf.spec) and leaf.spec[at] is P.UNCONSTRAINED for at in range(len(leaf.axes))]
    return ["unconstrained" if one else [*axis.mesh_axes] for one, axis in zip(free, leaf.axes, strict=True)]


def plain_leaf(leaf: LeafExplanation) -> dict[str, Any]:
    """Returns what is said of an array as plain values."""
    axes = [
        {
            "name": axis.name,
            "size": axis.size,
            "mesh_axes": list(axis.mesh_axes),
            "parts": axis.parts,
            "decision": axis.decision,
            "why": axis.why,
            "near_miss": axis.near_miss,
        }
        for axis in leaf.axes
    ]
    return {
        "path": leaf.path,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "kind": leaf.kind,
        "axes": axes,
        "spec": plain_spec(leaf),
        "bytes": leaf.bytes,
        "bytes_per_device": leaf.bytes_per_device,
        "replicated_bytes": leaf.replicated_bytes,
        "now": leaf.now,
        "error": leaf.error,
    }


def mesh_in_words(mesh: Mapping[str, int], devices: int, several: bool = False) -> str:
    """Returns a mesh and its devices in words; `several` if there is none because there are more than one."""
    count = f"{devices} device{'s' if devices != 1 else ''}"
    if not mesh:
        return f"{'several meshes' if several else 'no mesh'}, {count}"
    beside = " beside the Manual mesh axes" if devices != math.prod(mesh.values()) else ""
    return f"mesh {format_axes(tuple(mesh), tuple(mesh.values()))}, {count}{beside}"


def entry_shown(name: str, axes: tuple[str, ...]) -> str:
    """Returns an entry of a mapping as it is written."""
    return f"{name!r}: {(axes[0] if len(axes) == 1 else axes)!r}"


def _table(of: Explanation, limit: int | None) -> Table:
    """Returns what is shown of an explanation: its first leaves, and totals and notes of all."""
    shown = of.leaves[:limit]
    where = "each device" if of.mapping is not None else "the fullest device"
    count = f"{len(of.leaves)} array{'s' if len(of.leaves) != 1 else ''}"
    return Table(
        title=_title(of),
        rows=[leaf_row(leaf) for leaf in shown],
        more=len(of.leaves) - len(shown),
        total=Row(f"{count}, {of.share:.1%} on {where}", "", *costs_shown(of), []),
        notes=list(_notes(of)),
    )


def _title(of: Explanation) -> str:
    mesh = mesh_in_words(of.mesh, of.devices)
    if of.mapping is None:
        return f"{mesh}; no mapping, so these are the arrays' own shardings"
    options = "".join(f", {key}={value}" for key, value in of.options.items())
    return f"{mesh}; mapping {{{', '.join(entry_shown(*entry) for entry in of.mapping.items())}}}{options}"


def leaf_row(leaf: LeafExplanation) -> Row:
    """Returns the rows of an array in a table."""
    return Row(*_label(leaf), *costs_shown(leaf), [*map(_cells, leaf.axes)], leaf.error is not None)


def _label(leaf: LeafExplanation) -> tuple[str, str]:
    kind = {"named": "", "field": ", field(axis_names=...)", "plain": ", plain"}[leaf.kind]
    now = "" if leaf.now is None else f"; now {leaf.now}"
    return leaf.path or "(the array itself)", f"{leaf.dtype}{kind}{now}"


def costs_shown(of: Any) -> tuple[str, str, str]:
    """Returns the bytes of something as people read them: all, on each device, and in copies."""
    return format_bytes(of.bytes), format_bytes(of.bytes_per_device), format_bytes(of.replicated_bytes)


def _cells(axis: AxisExplanation) -> tuple[str, str, str, str]:
    over = " x ".join(axis.mesh_axes) + f" ({axis.parts})" if axis.mesh_axes else "-"
    why = "refused, see below" if axis.decision == "refused" else axis.why
    return axis.name or "-", str(axis.size), over, why


def _notes(of: Explanation) -> Iterator[Note]:
    """Returns what else is to be said of an explanation, the errors first."""
    if of.problems:
        count = f"{len(of.problems)} of {len(of.leaves)} arrays"
        yield Note(f"`shard` refuses {count}:", [*dict.fromkeys(leaf.error or "" for leaf in of.problems)], True)
    if of.unknown_entries:
        pairs = [f"{name!r}: {', '.join(map(repr, axes))}" for name, axes in of.unknown_entries.items()]
        yield Note("Entries that name a mesh axis which the mesh does not have:", pairs, True)
    if of.near_misses:
        pairs = [f"{name!r}: did you mean {known!r}?" for name, known in sorted(of.near_misses.items())]
        yield Note("Names that are nearly in the mapping:", pairs, True)
    if of.unused_entries:
        entries = [entry_shown(*entry) for entry in of.unused_entries.items()]
        yield Note("Entries of the mapping for axes that no array has:", entries, False)
    if of.unused_mesh_axes:
        yield Note("Mesh axes over which no array is divided:", [repr(axis) for axis in of.unused_mesh_axes], False)
