"""`ReportComparison`: what changed from one report to another, arrays that moved and the bytes on each device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec as P

from ._explanation import format_mesh_title, to_plain
from ._leaf_report import LeafReport
from ._sharding_report import ShardingReport, format_rule
from ._table import Note, Row, Table, TabularReport, format_bytes, format_costs, format_path, shorten_list


_FREE = "left to the compiler"
_COMPARED = ("shape", "dtype", "spec", "bytes", "bytes_per_device", "replicated_bytes", "place")


@dataclass(frozen=True, slots=True)
class LeafChange:
    """An array that differs between two reports.

    Attributes:
        path: Its key path.
        before: The report on it before.
        after: The report on it after.

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
class ReportComparison(TabularReport):
    """What changed from one report to another: printed, a table.

    Arrays are matched by their paths. An array has moved if its spec, shape, element type, place or bytes on each
    device have changed, or if its spec is invalid in one report only. Mesh axes of size 1 in a spec do not count.

    Attributes:
        before: The first report.
        after: The second.
        moved: The arrays that changed, in the order of the second.
        added: The arrays in the second report only.
        removed: The arrays in the first report only.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> weight = {"weight": jax.ShapeDtypeStruct((8, 4), "float32")}
        >>> reports = [analyzer.sharding_report(weight, spec) for spec in (P("data"), P(("data", "model")))]
        >>> print(analyzer.compare(*reports))
        mesh (data: 4, model: 2), 8 devices; both by the given specs
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
        """Whether nothing changed: neither an array nor the mesh."""
        alike = self.before.mesh == self.after.mesh and self.before.devices == self.after.devices
        return alike and not (self.moved or self.added or self.removed)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything that changed as dictionaries, lists, strings, numbers and None."""
        numbers = ("mesh", "devices", "bytes", "bytes_per_device", "replicated_bytes")
        before, after = self.before, self.after
        return {
            **{key: to_plain({"before": getattr(before, key), "after": getattr(after, key)}) for key in numbers},
            "moved": {one.path: {"before": _to_dict(one.before), "after": _to_dict(one.after)} for one in self.moved},
            "added": {leaf.path: _to_dict(leaf) for leaf in self.added},
            "removed": {leaf.path: _to_dict(leaf) for leaf in self.removed},
        }

    def _make_table(self) -> Table:
        one, other = self.before, self.after
        mesh, then = (format_mesh_title(each.mesh, each.devices, each.several_meshes) for each in (one, other))
        first, second = format_rule(one), format_rule(other)
        by = f"both by {first}" if first == second else f"from {first} to {second}"
        total = Row(f"{len(self.moved)} of {len(other.leaves)} arrays moved", "", _format_cost_changes(one, other))
        rows = [_make_change_row(change, one.mesh, other.mesh) for change in self.moved]
        return Table(f"{_format_leaf_change(mesh, then)}; {by}", rows, total, [*_list_comparison_notes(self)])


def compare_reports(before: ShardingReport, after: ShardingReport) -> ReportComparison:
    ones = {leaf.path: leaf for leaf in before.leaves}
    others = {leaf.path: leaf for leaf in after.leaves}
    changes = [LeafChange(path, ones[path], leaf) for path, leaf in others.items() if path in ones]
    return ReportComparison(
        before=before,
        after=after,
        moved=tuple(one for one in changes if _get_key(one.before, before.mesh) != _get_key(one.after, after.mesh)),
        added=tuple(leaf for path, leaf in others.items() if path not in ones),
        removed=tuple(leaf for path, leaf in ones.items() if path not in others),
    )


def _to_dict(leaf: LeafReport) -> dict[str, Any]:
    return {key: to_plain(getattr(leaf, key)) for key in _COMPARED}


def _get_key(leaf: LeafReport, mesh: Mapping[str, int]) -> Any:
    return [getattr(leaf, key) for key in _COMPARED if key != "spec"], _get_compared_entries(leaf, mesh)


def _get_compared_entries(leaf: LeafReport, mesh: Mapping[str, int]) -> list[tuple[str, ...]] | None:
    """Returns the entries of the spec of an array, however it is written; None if it is invalid."""
    if leaf.spec is None:
        return None
    return [
        (_FREE,) if entry is P.UNCONSTRAINED else tuple(one for one in axis.mesh_axes if mesh.get(one) != 1)
        for entry, axis in zip(leaf.spec.partitions, leaf.axes, strict=True)
    ]


def _make_change_row(change: LeafChange, mesh: Mapping[str, int], then: Mapping[str, int]) -> Row:
    """Returns the row of an array that moved: its type, its bytes, and each dimension that changed."""
    one, other = change.before, change.after
    before, after = _get_compared_entries(one, mesh), _get_compared_entries(other, then)
    kind = _format_leaf_change(one.dtype, other.dtype)
    cells: list[tuple[str, str, str, str]] = []
    if before is None or after is None or len(before) != len(after):
        cells.append(("-", "-", "-", f"{_format_array(one)} -> {_format_array(other)}"))
    else:
        kind += "; now replicated" if any(before) and not any(after) else ""
        for at, (was, now) in enumerate(zip(before, after, strict=True)):
            size, name = _format_leaf_change(str(one.shape[at]), str(other.shape[at])), other.axes[at].name
            if one.shape[at] != other.shape[at] or was != now:
                cells.append((name or str(at), size, _format_mesh_axes(now), f"was {_format_mesh_axes(was)}"))
    if one.place != other.place:
        cells.append(("-", "-", "-", f"{one.place or 'the mesh'} -> {other.place or 'the mesh'}"))
    elif not cells:
        is_same_dtype = one.dtype == other.dtype
        cells.append(("-", "-", "-", "the number of devices that hold it" if is_same_dtype else kind))
    return Row(format_path(change.path), kind, _format_cost_changes(one, other), cells)


def _format_leaf_change(was: str, now: str) -> str:
    return now if was == now else f"{was} -> {now}"


def _format_array(leaf: LeafReport) -> str:
    return f"{leaf.shape} {'invalid spec' if leaf.spec is None else leaf.spec}"


def _format_mesh_axes(axes: tuple[str, ...]) -> str:
    return " x ".join(axes) or "replicated"


def _format_cost_changes(one: Any, other: Any) -> tuple[str, str, str]:
    first, second, third = map(_format_leaf_change, format_costs(one), format_costs(other))
    return first, second, third


def _list_comparison_notes(found: ReportComparison) -> Iterator[Note]:
    for heading, leaves in (("Added:", found.added), ("Removed:", found.removed)):
        if leaves:
            pairs = ((format_path(leaf.path), format_bytes(leaf.bytes_per_device)) for leaf in leaves)
            yield Note(heading, shorten_list([f"{path} {held} on each device" for path, held in pairs]))
    problems = [problem for problem in found.after.problems if problem not in found.before.problems]
    if problems:
        yield Note("New problems:", shorten_list(problems, source="`report.problems`"), True)
