"""What `ShardingAnalyzer.sharding_report` returns: bytes, groups, mesh axes and advice, printed, saved and drawn."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ._explanation import costs_shown, leaf_row, mesh_in_words, plain_leaf
from ._leaf import LeafReport, Padding, padding_choices, padding_shown
from ._lock import lock_of, save_lock
from ._page import save_page
from ._table import Note, Row, Table, Tabled, format_bytes, some_problems


_MOST_NOTES = 5
_MOST_GROUPS = 10
_LEAST_SAVED = 0.001

Source: TypeAlias = Literal["specs", "shardings"]


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What the arrays of one part of a tree cost.

    Attributes:
        arrays: How many there are.
        bytes: Their size.
        bytes_per_device: What the device that holds most of them holds.
        replicated_bytes: What all devices together hold of them beyond one copy.

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
class ShardingReport(Tabled):
    """What the arrays of a tree cost on each device and what would change that: printed, a table; in a notebook, HTML.

    Attributes:
        leaves: What is said of each array, in the order of the tree.
        mesh: The sizes of the mesh axes; empty if no array lies on a mesh and none is given.
        devices: How many devices there are; those that differ in Manual mesh axes alone count once.
        source: What the report goes by: `"specs"`, or `"shardings"`, the arrays' own.
        bytes: The size of all arrays, elements of less than a byte by their bits, random keys by their data.
        bytes_per_device: What the fullest device holds.
        replicated_bytes: What all devices together hold beyond one copy of each array.
        groups: What the parts of the tree cost, by the first keys of the paths.
        imbalance: What the fullest device holds, divided by the mean of all: 1 if all hold the same.
        share_whole: The share of the bytes that is in arrays that nothing divides, from 0 to 1.
        unused_mesh_axes: The mesh axes over which no array is divided, each with the reason.
        problems: What is wrong with the specs, as `ShardingAnalyzer.validate_partition_specs` says it. An array whose
            spec is refused counts whole, and so does a dimension that is left to the compiler.
        device_ids: The ids of the devices in the order of the mesh; None if it is abstract or there is none.
        several_meshes: Whether the arrays lie on more than one mesh and none is given, so that `mesh` is empty.
        rule: The type of the rule that the specs are from, None if it is none.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> tree = {"bias": jax.ShapeDtypeStruct((6,), "float32"), "weight": jax.ShapeDtypeStruct((8, 6), "float32")}
        >>> report = analyzer.sharding_report(tree, {"bias": None, "weight": P("data")})
        >>> report.bytes, report.bytes_per_device, report.unused_mesh_axes
        (216, 72, {'model': 'nothing asks for it; it could divide 2 of 2 arrays'})
    """

    leaves: tuple[LeafReport, ...]
    mesh: Mapping[str, int] = field(hash=False)
    devices: int
    source: Source
    bytes: int
    bytes_per_device: int
    replicated_bytes: int
    groups: Mapping[str, GroupReport] = field(hash=False)
    imbalance: float
    share_whole: float
    unused_mesh_axes: Mapping[str, str] = field(hash=False)
    problems: tuple[str, ...] = ()
    device_ids: tuple[int, ...] | None = None
    several_meshes: bool = False
    rule: str | None = None

    @property
    def share(self) -> float:
        """What the fullest device holds, as a share of all: 1 if nothing is divided, 1/devices if everything is."""
        return self.bytes_per_device / self.bytes if self.bytes else 0.0

    def largest_replicated(self, n: int = 5) -> tuple[LeafReport, ...]:
        """Returns the arrays of which most is held beyond one copy, the largest first.

        Args:
            n: How many at most.

        Raises:
            ValueError: If that is negative.
        """
        if n < 0:
            raise ValueError(f"`n` is the number of arrays to return; it was {n}.")
        found = [leaf for leaf in self.leaves if leaf.replicated_bytes]
        return tuple(sorted(found, key=lambda leaf: -leaf.replicated_bytes)[:n])

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings, numbers and None, for tests and for files."""
        return {
            "mesh": dict(self.mesh),
            "devices": self.devices,
            "source": self.source,
            "leaves": [_plain_report(leaf) for leaf in self.leaves],
            "bytes": self.bytes,
            "bytes_per_device": self.bytes_per_device,
            "replicated_bytes": self.replicated_bytes,
            "groups": {key: asdict(group) for key, group in self.groups.items()},
            "imbalance": self.imbalance,
            "share": self.share,
            "share_whole": self.share_whole,
            "unused_mesh_axes": dict(self.unused_mesh_axes),
            "problems": list(self.problems),
            "device_ids": None if self.device_ids is None else list(self.device_ids),
            "several_meshes": self.several_meshes,
            "rule": self.rule,
        }

    def to_html(self, path: str | os.PathLike[str], title: str | None = None) -> Path:
        """Writes a page with a treemap, a search box and a table of the arrays; it loads nothing from anywhere.

        The area of an array is its bytes on each device, its colour the mesh axes that divide it. What follows `#q=`
        in the page's address is searched for. The file is written whole or not at all.

        Args:
            path: The file; one that is there is replaced.
            title: The heading of the page; `"Sharding report"`, with the rule that it is by, if None.

        Returns:
            The path of the file.

        Raises:
            FileNotFoundError: If there is no folder for it.
            IsADirectoryError: If it is a folder.
        """
        return save_page(self, path, title)

    def save_lock(self, path: str | os.PathLike[str]) -> None:
        """Writes the mesh, and of each array shape, axes and spec, to a file that `assert_sharding_lock` compares with.

        Args:
            path: The file; one that is there is replaced, at once and as a whole.

        Raises:
            OSError: If it cannot be written.
            ValueError: If something is wrong with the specs.
        """
        save_lock(lock_of(self.leaves, self.mesh, self.problems), path)

    def _table(self, limit: int | None) -> Table:
        """Returns what is shown: the first arrays, and totals and notes of all."""
        return _table(self, limit)


def _plain_report(leaf: LeafReport) -> dict[str, Any]:
    return {
        **plain_leaf(leaf),
        "unused": dict(leaf.unused),
        "padding": [{**asdict(each), "mesh_axes": list(each.mesh_axes)} for each in leaf.padding],
        "place": leaf.place,
    }


def _table(of: ShardingReport, limit: int | None) -> Table:
    """Returns what is shown of a report: its first leaves, and totals and notes of all."""
    shown = of.leaves[:limit]
    count = f"{len(of.leaves)} array{'s' if len(of.leaves) != 1 else ''}"
    return Table(
        title=_title(of),
        rows=[leaf_row(leaf) for leaf in shown],
        more=len(of.leaves) - len(shown),
        total=Row(f"{count}, {of.share:.1%} on the fullest device", "", *costs_shown(of), []),
        notes=list(_notes(of)),
    )


def decided_by(of: ShardingReport) -> str:
    """Returns in words what a report goes by."""
    if of.rule is not None:
        return f"`{of.rule}`"
    return "the specs given" if of.source == "specs" else "the arrays' own shardings"


def _title(of: ShardingReport) -> str:
    whole = f"{of.share_whole:.1%} of the bytes undivided"
    mesh = mesh_in_words(of.mesh, of.devices, of.several_meshes)
    return f"{mesh}; by {decided_by(of)}; {whole}; imbalance {of.imbalance:.2f}"


def _notes(of: ShardingReport) -> Iterator[Note]:
    """Returns what else is to be said of a report, the problems first."""
    if of.problems:
        yield Note(f"Problems ({len(of.problems)}):", some_problems(of.problems, "`report.problems`"), True)
    if len(of.groups) > 1:
        groups = sorted(of.groups.items(), key=lambda item: -item[1].bytes_per_device)
        parts = [f"{key} {costs_shown(group)[1]}" for key, group in groups[:_MOST_GROUPS]]
        more = [f"{len(groups) - _MOST_GROUPS} more"] if len(groups) > _MOST_GROUPS else []
        yield Note("Bytes on each device by part:", parts + more, False)
    largest = of.largest_replicated(_MOST_NOTES)
    if largest and of.devices > 1:
        copies = [f"{leaf.path or '(the array itself)'} {costs_shown(leaf)[2]}" for leaf in largest]
        yield Note("Most in copies:", copies, False)
    if of.unused_mesh_axes:
        unused = [f"{axis!r}: {why}" for axis, why in of.unused_mesh_axes.items()]
        bad = any(of.mesh[axis] > 1 for axis in of.unused_mesh_axes)
        yield Note("Mesh axes over which no array is divided:", unused, bad)
    padding = list(_padding_notes(of))
    if padding:
        yield Note("Padding that would help:", padding, True)


def _padding_notes(of: ShardingReport) -> Iterator[str]:
    """Yields the padding that would save most, for arrays that mesh axes cannot divide further as they are.

    What saves less than a thousandth of what a device holds is left out, but for specs that fit with it alone.
    """
    found: list[tuple[int, LeafReport, tuple[Padding, ...]]] = []
    for leaf in of.leaves:
        saved = leaf.bytes_per_device - leaf.padding[0].bytes_per_device if leaf.padding else 0
        if leaf.padding and leaf.error:
            found.append((saved, leaf, padding_choices(leaf)[0]))
        elif _LEAST_SAVED * of.bytes_per_device < saved and _stuck(leaf, of.mesh):
            found.append((saved, leaf, padding_choices(leaf)[0]))
    found.sort(key=lambda one: -one[0])
    for _, leaf, sizes in found[:_MOST_NOTES]:
        less = f"{format_bytes(leaf.bytes_per_device)} -> {format_bytes(sizes[0].bytes_per_device)} on each device"
        yield f"{leaf.path or '(the array itself)'}: {padding_shown(leaf, sizes)}, {less}"


def _stuck(leaf: LeafReport, mesh: Mapping[str, int]) -> bool:
    """Tells whether a mesh axis divides no dimension of the part of an array that a device holds."""
    return any(all((one.size // one.parts) % mesh[axis] for one in leaf.axes) for axis in leaf.unused)
