"""What changed from one report to another: arrays that moved, came and went, and the bytes on each device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec as P

from ._explanation import mesh_in_words, plain_spec
from ._leaf import LeafReport
from ._report import ShardingReport, decided_by
from ._table import Note, Row, Table, Tabled, format_bytes, some_problems


_FREE = "left to the compiler"


@dataclass(frozen=True, slots=True)
class LeafChange:
    """An array of which two reports say different things.

    Attributes:
        path: Its key path.
        before: What the first report says.
        after: What the second says.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> weight = jax.ShapeDtypeStruct((8, 4), "float32")
        >>> reports = [analyzer.sharding_report(weight, spec) for spec in (P("data"), P("model"))]
        >>> change = analyzer.compare(*reports).moved[0]
        >>> change.before.spec, change.after.spec
        (P('data', None), P('model', None))
    """

    path: str
    before: LeafReport
    after: LeafReport


@dataclass(frozen=True, repr=False)
class ReportComparison(Tabled):
    """What changed from one report to another: printed, a table.

    Arrays are the same if their paths are. One has moved if its spec, shape or element type is another, its bytes on
    each device are, or its spec is refused in one report alone. Entries of specs count by the mesh axes that divide
    something, so those of size 1 are no change.

    Attributes:
        before: The first report.
        after: The second.
        moved: The arrays that changed, in the order of the second.
        added: The arrays that the second has alone.
        removed: The arrays that the first has alone.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> weight = {"weight": jax.ShapeDtypeStruct((8, 4), "float32")}
        >>> reports = [analyzer.sharding_report(weight, spec) for spec in (P("data"), P(("data", "model")))]
        >>> print(analyzer.compare(*reports))
        mesh (data: 4, model: 2), 8 devices; both by the specs given
        <BLANKLINE>
        array                                   bytes    per device        copies
          axis  size  mesh axes     why
        -------------------------------------------------------------------------
        ['weight']  float32                     128 B  32 B -> 16 B  128 B -> 0 B
          0        8  data x model  was data
        -------------------------------------------------------------------------
        1 of 1 arrays moved                     128 B  32 B -> 16 B  128 B -> 0 B
    """

    before: ShardingReport
    after: ShardingReport
    moved: tuple[LeafChange, ...]
    added: tuple[LeafReport, ...]
    removed: tuple[LeafReport, ...]

    @property
    def same(self) -> bool:
        """Whether nothing changed: no array, and not the mesh."""
        alike = self.before.mesh == self.after.mesh and self.before.devices == self.after.devices
        return alike and not (self.moved or self.added or self.removed)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything that changed as dictionaries, lists, strings, numbers and None."""
        return {
            "mesh": {"before": dict(self.before.mesh), "after": dict(self.after.mesh)},
            "devices": {"before": self.before.devices, "after": self.after.devices},
            "bytes": {"before": self.before.bytes, "after": self.after.bytes},
            "bytes_per_device": {"before": self.before.bytes_per_device, "after": self.after.bytes_per_device},
            "replicated_bytes": {"before": self.before.replicated_bytes, "after": self.after.replicated_bytes},
            "moved": {one.path: {"before": _plain(one.before), "after": _plain(one.after)} for one in self.moved},
            "added": {leaf.path: _plain(leaf) for leaf in self.added},
            "removed": {leaf.path: _plain(leaf) for leaf in self.removed},
        }

    def _table(self, limit: int | None) -> Table:
        """Returns what is shown: the first arrays, and totals and notes of all."""
        return _table(self, limit)


def compared(before: ShardingReport, after: ShardingReport) -> ReportComparison:
    """Returns what changed from one report to another."""
    ones = {leaf.path: leaf for leaf in before.leaves}
    others = {leaf.path: leaf for leaf in after.leaves}
    return ReportComparison(
        before=before,
        after=after,
        moved=tuple(
            LeafChange(path, ones[path], leaf)
            for path, leaf in others.items()
            if path in ones and _what_counts(ones[path], before.mesh) != _what_counts(leaf, after.mesh)
        ),
        added=tuple(leaf for path, leaf in others.items() if path not in ones),
        removed=tuple(leaf for path, leaf in ones.items() if path not in others),
    )


def _what_counts(leaf: LeafReport, mesh: Mapping[str, int]) -> Any:
    """Returns what of an array is compared."""
    entries = None if leaf.spec is None else [_entry(leaf, at, mesh) for at in range(len(leaf.shape))]
    return leaf.shape, leaf.dtype, leaf.bytes_per_device, leaf.replicated_bytes, leaf.place, entries


def _entry(leaf: LeafReport, at: int, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns an entry of the spec of an array such that all ways to write it are one."""
    if leaf.spec is not None and leaf.spec[at] is P.UNCONSTRAINED:
        return (_FREE,)
    return tuple(axis for axis in leaf.axes[at].mesh_axes if mesh.get(axis) != 1)


def _plain(leaf: LeafReport) -> dict[str, Any]:
    return {
        "shape": list(leaf.shape),
        "dtype": leaf.dtype,
        "spec": plain_spec(leaf),
        "bytes": leaf.bytes,
        "bytes_per_device": leaf.bytes_per_device,
        "replicated_bytes": leaf.replicated_bytes,
        "place": leaf.place,
    }


def _table(of: ReportComparison, limit: int | None) -> Table:
    """Returns what is shown of a comparison: a row for each array that changed, and what came and went below."""
    shown = of.moved[:limit]
    one, other = of.before, of.after
    mesh, then = (mesh_in_words(each.mesh, each.devices, each.several_meshes) for each in (one, other))
    first, second = decided_by(one), decided_by(other)
    by = f"both by {first}" if first == second else f"from {first} to {second}"
    moved = f"{len(of.moved)} of {len(other.leaves)} arrays moved"
    return Table(
        title=f"{mesh if mesh == then else f'{mesh} -> {then}'}; {by}",
        rows=[Row(change.path or "(the array itself)", *_cells(change, one.mesh, other.mesh)) for change in shown],
        more=len(of.moved) - len(shown),
        total=Row(moved, "", *_costs(one, other), []),
        notes=list(_notes(of, limit)),
    )


def _cells(
    change: LeafChange, mesh: Mapping[str, int], then: Mapping[str, int]
) -> tuple[str, str, str, str, list[tuple[str, str, str, str]]]:
    """Returns what is shown of an array that moved: its type, its bytes, and each dimension that changed."""
    one, other = change.before, change.after
    kind = other.dtype if one.dtype == other.dtype else f"{one.dtype} -> {other.dtype}"
    rows: list[tuple[str, str, str, str]] = []
    if one.spec is None or other.spec is None or len(one.shape) != len(other.shape):
        rows.append(("-", "-", "-", f"{_whole(one)} -> {_whole(other)}"))
    else:
        for at, (axis, after) in enumerate(zip(one.axes, other.axes, strict=True)):
            was, now = _entry(one, at, mesh), _entry(other, at, then)
            if axis.size != after.size or was != now:
                size = str(after.size) if axis.size == after.size else f"{axis.size} -> {after.size}"
                rows.append((after.name or str(at), size, _over(now), f"was {_over(was)}"))
    if one.place != other.place or not rows:
        rows.append(("-", "-", "-", _otherwise(one, other)))
    kind += "; now whole" if _is_divided(one, mesh) and other.spec is not None and not _is_divided(other, then) else ""
    return kind, *_costs(one, other), rows


def _otherwise(one: LeafReport, other: LeafReport) -> str:
    """Returns what changed of an array beside its axes."""
    if one.place != other.place:
        return f"{one.place or 'the mesh'} -> {other.place or 'the mesh'}"
    if one.dtype != other.dtype:
        return f"{one.dtype} -> {other.dtype}"
    return "the number of devices that hold it"


def _is_divided(leaf: LeafReport, mesh: Mapping[str, int]) -> bool:
    return leaf.spec is not None and any(_entry(leaf, at, mesh) for at in range(len(leaf.shape)))


def _whole(leaf: LeafReport) -> str:
    return f"{leaf.shape} refused" if leaf.spec is None else f"{leaf.shape} {leaf.spec}"


def _over(axes: tuple[str, ...]) -> str:
    return " x ".join(axes) or "whole"


def _costs(one: LeafReport | ShardingReport, other: LeafReport | ShardingReport) -> tuple[str, str, str]:
    pairs = (
        (one.bytes, other.bytes),
        (one.bytes_per_device, other.bytes_per_device),
        (one.replicated_bytes, other.replicated_bytes),
    )
    cells = [(format_bytes(was), format_bytes(now)) for was, now in pairs]
    first, second, third = (now if was == now else f"{was} -> {now}" for was, now in cells)
    return first, second, third


def _notes(of: ReportComparison, limit: int | None) -> Iterator[Note]:
    for heading, leaves in (("Added:", of.added), ("Removed:", of.removed)):
        if leaves:
            shown = [
                f"{leaf.path or '(the array itself)'} {format_bytes(leaf.bytes_per_device)} on each device"
                for leaf in leaves[:limit]
            ]
            more = [f"{len(leaves) - len(shown)} more"] if len(leaves) > len(shown) else []
            yield Note(heading, shown + more, False)
    problems = [problem for problem in of.after.problems if problem not in of.before.problems]
    if problems:
        yield Note("New problems:", some_problems(problems, "`report.problems`"), True)
