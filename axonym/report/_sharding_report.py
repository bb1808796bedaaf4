"""`ShardingReport`: bytes, groups, mesh axes and advice for a tree of arrays, printed, saved and drawn."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ..named._format import format_value
from ._explanation import ShardedTree, format_mesh_title, make_leaf_row
from ._html_page import Fact, save_html_page
from ._leaf_report import LeafReport, Padding, format_paddings, list_padding_choices
from ._lock_file import make_lock, save_lock
from ._table import Note, Table, check_count, format_bytes, format_path, shorten_list
from ._treemap import make_treemap


_MOST_NOTES = 5
_MOST_GROUPS = 10
_LEAST_SAVED = 0.001

Source: TypeAlias = Literal["specs", "shardings"]


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
    """What the arrays of a tree cost on each device and what would change that: printed, a table; in a notebook, HTML.

    Attributes:
        leaves: A report on each array, in the order of the tree.
        mesh: The sizes of the mesh axes; empty if no array is on a mesh and none is given.
        devices: The number of devices; devices that differ in Manual mesh axes alone count once.
        source: What the report is about: `"specs"`, or `"shardings"`, the arrays' own.
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
    source: Source
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
        found = [leaf for leaf in self.leaves if leaf.replicated_bytes]
        return tuple(sorted(found, key=lambda leaf: -leaf.replicated_bytes)[:n])

    def to_html(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Writes a page with a treemap, a search box and a table of the arrays; it loads nothing from anywhere.

        The area of an array is its bytes on each device, its colour the mesh axes that it is sharded over. Text after
        `#q=` in the page's address is searched for. The file is written completely or not at all.

        Args:
            path: The file; an existing one is replaced.
            title: The heading of the page; `"Sharding report"`, with the rule that it is by, if None.

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
        """Writes the mesh, and of each array shape, axes and spec, to a file for `assert_sharding_lock`.

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
    """Returns in words what the shardings of a report are from."""
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
    paddings = _list_best_paddings(report)
    if paddings:
        yield Note("Padding that would help:", paddings, True)


def _make_unused_note(report: ShardingReport) -> Note:
    items = [f"{axis!r}: {why}" for axis, why in report.unused_mesh_axes.items()]
    is_bad = any(report.mesh[axis] > 1 for axis in report.unused_mesh_axes)
    return Note("Mesh axes that no array is sharded over:", items, is_bad)


def _list_best_paddings(report: ShardingReport) -> list[str]:
    """Returns the paddings that save most, of invalid specs and of arrays that cannot be sharded further as they are.

    What saves less than a thousandth of the bytes on a device is left out, except if a spec is invalid without it.
    """
    found: list[tuple[int, LeafReport, tuple[Padding, ...]]] = []
    for leaf in report.leaves:
        if leaf.padding:
            saved = leaf.bytes_per_device - leaf.padding[0].bytes_per_device
            if leaf.error or (saved > _LEAST_SAVED * report.bytes_per_device and _has_stuck_axis(leaf, report.mesh)):
                found.append((saved, leaf, list_padding_choices(leaf)[0]))
    found.sort(key=lambda one: -one[0])
    return [
        f"{format_path(leaf.path)}: {format_paddings(leaf, paddings)}, {format_bytes(leaf.bytes_per_device)} -> "
        f"{format_bytes(paddings[0].bytes_per_device)} on each device"
        for _, leaf, paddings in found[:_MOST_NOTES]
    ]


def _has_stuck_axis(leaf: LeafReport, mesh: Mapping[str, int]) -> bool:
    """Returns whether no dimension of the shard on a device is divisible by some unused mesh axis."""
    return any(all((axis.size // axis.parts) % mesh[unused] for axis in leaf.axes) for unused in leaf.unused)
