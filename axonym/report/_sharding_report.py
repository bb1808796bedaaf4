"""`ShardingReport`: bytes, groups and mesh axes of a tree of arrays, printed, saved and drawn."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from .._ground.formats import format_bytes, format_value, shorten_list
from ..named._axis_layout import MeshLike
from ..partitioning._leaves import Load, get_fullest_device_bytes, sum_device_bytes
from ..partitioning._shard import get_own_sharding, is_same_mesh
from ._explain import (
    ExplainedLeaf,
    MatchedSpec,
    UnusedAxis,
    describe_place,
    explain_by_spec,
    explain_own_sharding,
    find_common_mesh,
    find_unused_axes,
    list_arrays,
    sum_leaves,
    summarize_unused_axis,
)
from ._explanation import (
    LeafReport,
    ShardedTree,
    format_mesh_title,
    make_leaf_row,
    to_plain,
)
from ._format import check_count, format_costs, format_path
from ._html_page import Fact, make_treemap, save_html_page
from ._lock_file import make_lock, save_lock
from ._table import Note, Row, Table, TabularReport


_MOST_NOTES = 5
_FEWEST_GROUPS, _MOST_GROUPS = 3, 10  # so many are taken in at a glance
_FREE = "left to the compiler"
_COMPARED = ("shape", "dtype", "spec", "bytes", "bytes_per_device", "replicated_bytes", "place")


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Totals of the arrays in one part of a tree.

    Attributes:
        arrays: The number of arrays.
        bytes: Their size.
        bytes_per_device: The bytes of them on the fullest device.
        replicated_bytes: The bytes of them on all devices together beyond one copy.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> tree = {"embed": jax.ShapeDtypeStruct((8, 4), "float32"), "head": jax.ShapeDtypeStruct((4,), "float32")}
        >>> analyzer.sharding_report(tree, {"embed": P("data"), "head": P()}).groups["['embed']"]
        GroupReport(arrays=1, bytes=128, bytes_per_device=32, replicated_bytes=128)
    """

    arrays: int
    bytes: int
    bytes_per_device: int
    replicated_bytes: int


@dataclass(frozen=True, repr=False)
class ShardingReport(ShardedTree):
    """What the arrays of a tree cost on each device: printed, a table; in a notebook, HTML.

    Attributes:
        leaves: A report on each array, in the order of the tree.
        mesh: The sizes of the mesh axes; empty if no array is on a mesh and none is given.
        devices: The number of devices; devices that differ in Manual mesh axes alone count once.
        source: What the report is about: `"specs"`, or `"shardings"` for the arrays' own.
        bytes: The size of all arrays, elements of less than a byte by their bits, random keys by their data.
        bytes_per_device: The bytes on the fullest device.
        replicated_bytes: The bytes on all devices together beyond one copy of each array.
        groups: Totals of the parts of the tree, by the first keys of the paths.
        imbalance: The bytes on the fullest device, divided by the mean of all: 1 if all have the same.
        share_whole: The share of the bytes in arrays that are not sharded, from 0 to 1.
        unused_mesh_axes: The mesh axes that no array is sharded over, each with the reason.
        problems: The problems of the specs, as `ShardingAnalyzer.validate_partition_specs` returns them. An array whose
            spec is invalid counts at full size, and so does a dimension that is left to the compiler.
        device_ids: The ids of the devices in the order of the mesh; None if it is abstract or there is none.
        several_meshes: Whether the arrays are on more than one mesh and none is given, so that `mesh` is empty.
        rule: The type of the rule that the specs are from, None if they are not from a rule.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> tree = {"bias": jax.ShapeDtypeStruct((6,), "float32"), "weight": jax.ShapeDtypeStruct((8, 6), "float32")}
        >>> report = analyzer.sharding_report(tree, {"bias": None, "weight": P("data")})
        >>> report.bytes, report.bytes_per_device, report.unused_mesh_axes
        (216, 72, {'model': 'unused; it could shard 2 of 2 arrays'})
    """

    leaves: tuple[LeafReport, ...]
    source: Literal["specs", "shardings"]
    groups: Mapping[str, GroupReport] = field(hash=False)
    imbalance: float
    share_whole: float
    unused_mesh_axes: Mapping[str, str] = field(hash=False)
    problems: tuple[str, ...] = ()
    device_ids: tuple[int, ...] | None = None
    several_meshes: bool = False
    rule: str | None = None

    def largest_replicated(self, n: int = 5) -> tuple[LeafReport, ...]:
        """Returns the arrays with the most bytes beyond one copy, the largest first.

        Args:
            n: The largest number of arrays to return.

        Raises:
            TypeError: If `n` is not an integer.
            ValueError: If `n` is negative.
        """
        check_count("n", n, "the number of arrays to return")
        leaves = [leaf for leaf in self.leaves if leaf.replicated_bytes]
        return tuple(sorted(leaves, key=lambda leaf: -leaf.replicated_bytes)[:n])

    def to_html(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Writes a page with a treemap, a search box and a table of the arrays; it loads nothing from anywhere.

        The area of an array is its bytes on each device, its colour the mesh axes that it is sharded over. Text after
        `#q=` in the page's address is searched for. The file is written completely or not at all.

        Args:
            path: The file; an existing one is replaced.
            title: The heading of the page; if None, `"Sharding report"`, and the rule that chose the specs if one did.

        Returns:
            The path of the file.

        Raises:
            FileNotFoundError: If its folder does not exist.
            IsADirectoryError: If it is a folder.
        """
        if title is not None and not isinstance(title, str):
            raise TypeError(f"`title` is the heading of the page, a string, not {format_value(title)}.")
        title = title or f"Sharding report{f': {self.rule}' if self.rule else ''}"
        notes = [Note(f"Problems: {len(self.problems)}", self.problems, True)] if self.problems else []
        if self.unused_mesh_axes:
            notes.append(_make_unused_note(self))
        treemap = make_treemap(self.leaves, tuple(self.mesh))
        return save_html_page(path, title, _format_source(self).replace("`", ""), _list_facts(self), notes, treemap)

    def save_lock(self, path: str | os.PathLike[str]) -> None:
        """Writes the mesh, and the shape, axes and spec of each array, to a file for `assert_sharding_lock`.

        Args:
            path: The file; an existing one is replaced, completely or not at all.

        Raises:
            OSError: If it cannot be written.
            ValueError: If the specs have problems.
        """
        save_lock(make_lock(self.leaves, self.mesh, self.problems), path)

    def _make_table(self) -> Table:
        rows = [*map(make_leaf_row, self.leaves)]
        share = f"{self.share_whole:.1%} of the bytes unsharded; imbalance {self.imbalance:.2f}"
        return Table(f"{_format_source(self)}; {share}", rows, self._make_total_row(), [*_list_report_notes(self)])


def format_rule(report: ShardingReport) -> str:
    """Returns in words where the shardings of a report come from."""
    if report.rule is not None:
        return f"`{report.rule}`"
    return "the given specs" if report.source == "specs" else "the arrays' own shardings"


def _format_source(report: ShardingReport) -> str:
    return f"{format_mesh_title(report.mesh, report.devices, report.several_meshes)}; by {format_rule(report)}"


def _list_facts(report: ShardingReport) -> list[Fact]:
    """Returns the totals at the top of the page, each with what it means."""
    problems, share = len(report.problems), report.share_whole
    unsharded = "< 0.1%" if 0 < share < 0.0005 else f"{share:.1%}"
    return [
        Fact("Arrays", str(len(report.leaves)), format_bytes(report.bytes)),
        Fact("On the fullest device", format_bytes(report.bytes_per_device), f"{report.share:.1%} of all bytes"),
        Fact("In copies", format_bytes(report.replicated_bytes), "on all devices together"),
        Fact("In unsharded arrays", unsharded, "of all bytes"),
        Fact("Imbalance", f"{report.imbalance:.2f}", "fullest device / mean"),
        Fact("Problems", str(problems), "see below" if problems else "none found", problems > 0),
    ]


def _list_report_notes(report: ShardingReport) -> Iterator[Note]:
    """Yields the notes below the table, problems first."""
    if report.problems:
        problems = shorten_list(report.problems, source="`report.problems`")
        yield Note(f"Problems ({len(report.problems)}):", problems, True)
    if len(report.groups) > 1:
        groups = sorted(report.groups.items(), key=lambda item: -item[1].bytes_per_device)
        parts = [f"{key} {format_bytes(group.bytes_per_device)}" for key, group in groups]
        yield Note("Bytes on each device by part:", shorten_list(parts, _MOST_GROUPS))
    largest = report.largest_replicated(_MOST_NOTES)
    if largest and report.devices > 1:
        copies = [f"{format_path(leaf.path)} {format_bytes(leaf.replicated_bytes)}" for leaf in largest]
        yield Note("Most in copies:", copies)
    if report.unused_mesh_axes:
        yield _make_unused_note(report)


def _make_unused_note(report: ShardingReport) -> Note:
    items = [f"{axis!r}: {why}" for axis, why in report.unused_mesh_axes.items()]
    is_bad = any(report.mesh[axis] > 1 for axis in report.unused_mesh_axes)
    return Note("Mesh axes that no array is sharded over:", items, is_bad)


def report_specs(
    matched: Sequence[MatchedSpec], problems: Sequence[str], mesh: MeshLike, depth: int | None, rule: str | None
) -> ShardingReport:
    """Returns the report on arrays sharded by specs; `rule` is the name of the rule that chose them, if one did."""
    explained = [explain_by_spec(*match, mesh) for match in matched]
    return _make_report(explained, mesh, depth, source="specs", problems=tuple(problems), rule=rule)


def report_own_shardings(tree: Any, mesh: MeshLike | None, depth: int | None = None) -> ShardingReport:
    """Returns the report on the shardings that the arrays of a tree have; without one, they count as replicated."""
    arrays = list_arrays(tree)
    target = find_common_mesh(arrays) if mesh is None else mesh
    is_on_mesh = any(isinstance(get_own_sharding(leaf), NamedSharding) for leaf, _ in arrays)
    explained = [explain_own_sharding(leaf, info, target) for leaf, info in arrays]
    return _make_report(explained, target, depth, source="shardings", several_meshes=target is None and is_on_mesh)


def _make_report(
    explained: list[ExplainedLeaf], mesh: MeshLike | None, depth: int | None, **fields: Any
) -> ShardingReport:
    unused = [_find_unused_axes(leaf, mesh) for leaf in explained]
    shared_bytes, bytes_by_device = sum_device_bytes(leaf.load for leaf in explained)
    totals = sum_leaves(explained, mesh)
    total, fullest, devices = totals["bytes"], totals["bytes_per_device"], totals["devices"]
    # Devices of other meshes count as well as those of this one.
    mean = shared_bytes + sum(bytes_by_device.values()) / max(devices, len(bytes_by_device))
    unsharded = sum(leaf.load.bytes for leaf in explained if leaf.load.per_device == leaf.load.bytes)
    is_planned = fields["source"] == "specs"
    unused_mesh_axes: dict[str, str] = {}
    unused_lists = [axes for axes in unused if axes is not None]
    if mesh is not None:
        for axis in mesh.axis_names:
            if all(axis in [unused_axis.axis for unused_axis in axes] for axes in unused_lists):
                unused_mesh_axes[axis] = summarize_unused_axis(axis, mesh, unused_lists)
    pairs = zip(explained, unused, strict=True)
    return ShardingReport(
        leaves=tuple(_make_leaf_report(leaf, unused_axes, is_planned) for leaf, unused_axes in pairs),
        **totals,
        groups=_make_groups(explained, depth),
        imbalance=fullest / mean if mean else 1.0,
        share_whole=unsharded / total if total else 0.0,
        unused_mesh_axes=unused_mesh_axes,
        device_ids=tuple(map(int, mesh.device_ids.flat)) if isinstance(mesh, Mesh) else None,
        **fields,
    )


def _find_unused_axes(explained: ExplainedLeaf, mesh: MeshLike | None) -> list[UnusedAxis] | None:
    """Returns the mesh axes that an array is not sharded over, None if it is on another mesh than the report."""
    if mesh is None or explained.mesh is None or not is_same_mesh(explained.mesh, mesh):
        return None
    return find_unused_axes(
        explained.leaf.shape, explained.info.names_of(explained.leaf.shape), explained.leaf.spec, mesh
    )


def _make_leaf_report(explained: ExplainedLeaf, unused: list[UnusedAxis] | None, is_planned: bool) -> LeafReport:
    """Returns the report on an array; `is_planned` if the report is on specs, not on current shardings."""
    is_on_mesh = unused is not None and isinstance(get_own_sharding(explained.array), NamedSharding)
    place = None if is_planned or is_on_mesh else describe_place(explained.array)
    explanation = {entry.name: getattr(explained.leaf, entry.name) for entry in dataclasses.fields(explained.leaf)}
    return LeafReport(
        **explanation,
        unused={unused_axis.axis: unused_axis.why for unused_axis in unused or ()},
        place=place,
    )


def _make_groups(explained: list[ExplainedLeaf], depth: int | None) -> dict[str, GroupReport]:
    """Returns the totals of the parts of a tree, by the first keys of the paths."""
    depth = _choose_depth([leaf.info.path for leaf in explained]) if depth is None else depth
    parts: dict[str, list[Load]] = {}
    for leaf in explained:
        parts.setdefault(jax.tree_util.keystr(leaf.info.path[:depth]), []).append(leaf.load)
    groups: dict[str, GroupReport] = {}
    for key, loads in parts.items():
        fullest = get_fullest_device_bytes(*sum_device_bytes(loads))
        total, copies = sum(load.bytes for load in loads), sum(load.replicated for load in loads)
        groups[key] = GroupReport(len(loads), total, fullest, copies)
    return groups


def _choose_depth(paths: Sequence[tuple[Any, ...]]) -> int:
    """Returns the least depth with 3 to 10 groups; if there is none, the depth with most groups up to 10."""
    best, best_count = 1, 0
    for depth in range(1, max(map(len, paths), default=0) + 1):
        number = len({path[:depth] for path in paths})
        if number == len(paths) and best_count > 1:
            return best  # a group for each array would repeat the rows of the table
        if number > _MOST_GROUPS:
            return best if best_count > 1 else depth
        if number > best_count:
            best, best_count = depth, number
        if number >= _FEWEST_GROUPS:
            break
    return best


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
            "moved": {
                change.path: {"before": _to_dict(change.before), "after": _to_dict(change.after)}
                for change in self.moved
            },
            "added": {leaf.path: _to_dict(leaf) for leaf in self.added},
            "removed": {leaf.path: _to_dict(leaf) for leaf in self.removed},
        }

    def _make_table(self) -> Table:
        before, after = self.before, self.after
        meshes = [format_mesh_title(report.mesh, report.devices, report.several_meshes) for report in (before, after)]
        rules = [format_rule(report) for report in (before, after)]
        source = f"both by {rules[0]}" if rules[0] == rules[1] else f"from {rules[0]} to {rules[1]}"
        return Table(
            title=f"{_format_change(*meshes)}; {source}",
            rows=[_make_change_row(change, before.mesh, after.mesh) for change in self.moved],
            total=Row(
                f"{len(self.moved)} of {len(after.leaves)} arrays moved", "", _format_cost_changes(before, after)
            ),
            notes=[*_list_comparison_notes(self)],
        )


def compare_reports(before: ShardingReport, after: ShardingReport) -> ReportComparison:
    leaves_before = {leaf.path: leaf for leaf in before.leaves}
    leaves_after = {leaf.path: leaf for leaf in after.leaves}
    moved = [
        LeafChange(path, leaves_before[path], leaf)
        for path, leaf in leaves_after.items()
        if path in leaves_before and _get_key(leaves_before[path], before.mesh) != _get_key(leaf, after.mesh)
    ]
    return ReportComparison(
        before=before,
        after=after,
        moved=tuple(moved),
        added=tuple(leaf for path, leaf in leaves_after.items() if path not in leaves_before),
        removed=tuple(leaf for path, leaf in leaves_before.items() if path not in leaves_after),
    )


def _to_dict(leaf: LeafReport) -> dict[str, Any]:
    return {key: to_plain(getattr(leaf, key)) for key in _COMPARED}


def _get_key(leaf: LeafReport, mesh: Mapping[str, int]) -> Any:
    return [getattr(leaf, key) for key in _COMPARED if key != "spec"], _get_compared_entries(leaf, mesh)


def _get_compared_entries(leaf: LeafReport, mesh: Mapping[str, int]) -> list[tuple[str, ...]] | None:
    """Returns the entries of a spec without mesh axes of size 1; None if it is invalid."""
    if leaf.spec is None:
        return None
    return [
        (_FREE,)
        if entry is P.UNCONSTRAINED
        else tuple(mesh_axis for mesh_axis in axis.mesh_axes if mesh.get(mesh_axis) != 1)
        for entry, axis in zip(leaf.spec.partitions, leaf.axes, strict=True)
    ]


def _make_change_row(change: LeafChange, mesh_before: Mapping[str, int], mesh_after: Mapping[str, int]) -> Row:
    """Returns the row of an array that moved: its type, its bytes, and each dimension that changed."""
    before, after = change.before, change.after
    entries_before = _get_compared_entries(before, mesh_before)
    entries_after = _get_compared_entries(after, mesh_after)
    kind = _format_change(before.dtype, after.dtype)
    cells: list[tuple[str, str, str, str]] = []
    if entries_before is None or entries_after is None or len(entries_before) != len(entries_after):
        cells.append(("-", "-", "-", f"{_format_array(before)} -> {_format_array(after)}"))
    else:
        kind += "; now replicated" if any(entries_before) and not any(entries_after) else ""
        for dim, (axes_before, axes_after) in enumerate(zip(entries_before, entries_after, strict=True)):
            if before.shape[dim] != after.shape[dim] or axes_before != axes_after:
                name = after.axes[dim].name or str(dim)
                size = _format_change(str(before.shape[dim]), str(after.shape[dim]))
                cells.append((name, size, _format_mesh_axes(axes_after), f"was {_format_mesh_axes(axes_before)}"))
    if before.place != after.place:
        cells.append(("-", "-", "-", f"{before.place or 'the mesh'} -> {after.place or 'the mesh'}"))
    elif not cells:
        is_same_dtype = before.dtype == after.dtype
        cells.append(("-", "-", "-", "the number of devices that hold it" if is_same_dtype else kind))
    return Row(format_path(change.path), kind, _format_cost_changes(before, after), cells)


def _format_change(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def _format_array(leaf: LeafReport) -> str:
    return f"{leaf.shape} {'invalid spec' if leaf.spec is None else leaf.spec}"


def _format_mesh_axes(axes: tuple[str, ...]) -> str:
    return " x ".join(axes) or "replicated"


def _format_cost_changes(before: Any, after: Any) -> tuple[str, str, str]:
    first, second, third = map(_format_change, format_costs(before), format_costs(after))
    return first, second, third


def _list_comparison_notes(comparison: ReportComparison) -> Iterator[Note]:
    for heading, leaves in (("Added:", comparison.added), ("Removed:", comparison.removed)):
        if leaves:
            pairs = ((format_path(leaf.path), format_bytes(leaf.bytes_per_device)) for leaf in leaves)
            yield Note(heading, shorten_list([f"{path} {size} on each device" for path, size in pairs]))
    problems = [problem for problem in comparison.after.problems if problem not in comparison.before.problems]
    if problems:
        yield Note("New problems:", shorten_list(problems, source="`report.problems`"), True)
