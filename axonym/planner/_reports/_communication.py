"""`communication_report`: what a compiled program sends between devices; and assertions on it, for tests."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

from ..._ground.formats import format_bytes, suggest_name
from ...partitioning._leaves import count_array_bytes
from ...report._table import Grid, GridPage, GridRow, PrintedReport, format_html_page
from ...report._write_file import write_html_page
from .._compiler._compiled_program import read_program
from .._program._arguments import group_arguments
from .._program._collectives import (
    COLLECTIVE_KINDS,
    Collective,
    find_slice_groups,
    list_argument_axes,
    list_collectives,
)
from .._program._compiler_output import Rematerialization, read_rematerializations
from ._sum_bytes import sum_bytes_by


_MOST_ROWS = 40
_HEADS = ("collective", "over", "axes", "count", "runs", "bytes", "sent", "pass", "layer", "operation", "source")
_NUMBERS = ("count", "runs", "bytes", "sent")
_FEW_BYTES = 64  # of losses and counts, which are added up where they are computed
_SUMMED_BY = ("kind", "mesh_axes", "axes", "layer", "operation", "run_in", "source")


@dataclass(frozen=True, repr=False)
class CommunicationReport(PrintedReport):
    """What a compiled program sends between devices: printed, a table; in a notebook, HTML.

    Bytes are those on one device; loops count as often as they run. Collectives that differ in nothing that the table
    shows are one row with their count.

    Attributes:
        collectives: Each collective, those that move most bytes first.
        mesh: The sizes of the mesh axes; empty if the program is not on a mesh.
        platform: The platform it is compiled for, such as `"tpu"`; empty if not known.
        rematerializations: The arrays that the compiler replicates since it knows no direct way between two shardings.
            They are read from the log of the compiler, so there are none for a program that was compiled before.
        names: The names of the axes of the arguments; the `axes` of each collective are among them.
        moved_bytes: The bytes of arguments that are moved before the program runs, as `in_axis_resources` does.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        ...     x = nym.shard(nym.ones({"batch": 8, "embed": 4}))
        ...     report = nym.planner.communication_report(lambda x: nym.sum(x, "embed"), x)
        >>> [(sent.kind, sent.mesh_axes, sent.axes, sent.bytes) for sent in report.collectives]
        [('all-reduce', ('model',), ('embed',), 8)]
    """

    collectives: tuple[Collective, ...]
    mesh: Mapping[str, int] = field(hash=False)
    platform: str = ""
    rematerializations: tuple[Rematerialization, ...] = ()
    names: tuple[str, ...] = ()
    moved_bytes: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of the results of all collectives on one device."""
        return sum(collective.bytes for collective in self.collectives)

    @property
    def sent_bytes(self) -> int:
        """The bytes that a device sends in all collectives if they are done over rings."""
        return sum(collective.runs * collective.sent_bytes for collective in self.collectives)

    def select(self, kind: str | None = None, axis: str | None = None) -> tuple[Collective, ...]:
        """Returns the collectives of a kind, along an axis, or both.

        Args:
            kind: Such as `"all-gather"`; any if None.
            axis: A mesh axis, or a named axis of the arrays; any if None.

        Raises:
            ValueError: If there is no such kind, or neither the mesh nor the arguments have such an axis.
        """
        if kind is not None and kind not in COLLECTIVE_KINDS:
            raise ValueError(f"there is no collective {kind!r}; the kinds are {', '.join(map(repr, COLLECTIVE_KINDS))}")
        if axis is not None and axis not in (*self.mesh, *self.names):
            raise ValueError(
                f"there is no axis {axis!r}; the mesh has {', '.join(map(repr, self.mesh)) or 'no axes'}, the "
                f"arguments have {', '.join(map(repr, self.names)) or 'no names'}"
                f"{suggest_name(axis, (*self.names, *self.mesh, *COLLECTIVE_KINDS))}"
            )
        return tuple(
            collective
            for collective in self.collectives
            if kind in (None, collective.kind) and axis in (None, *collective.mesh_axes, *collective.axes)
        )

    def count_bytes(self, by: str = "kind") -> dict[Any, int]:
        """Returns the bytes of the results of collectives on one device, summed up by an attribute of the collectives.

        Args:
            by: `"kind"`, `"mesh_axes"`, `"axes"`, `"layer"`, `"operation"`, `"run_in"` or `"source"`.

        Raises:
            ValueError: If `by` is none of these.
        """
        return sum_bytes_by(self.collectives, by, _SUMMED_BY)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings and numbers."""
        collectives = [
            {**asdict(collective), "bytes": collective.bytes, "cause": collective.cause}
            for collective in self.collectives
        ]
        return {
            "bytes": self.bytes,
            "sent_bytes": self.sent_bytes,
            "moved_bytes": self.moved_bytes,
            "mesh": dict(self.mesh),
            "platform": self.platform,
            "collectives": collectives,
            "rematerializations": [asdict(array) for array in self.rematerializations],
        }

    def to_html(self, path: str | os.PathLike[str], title: str = "Communication report") -> Path:
        """Writes a page with the table; it loads nothing from anywhere and is written completely or not at all.

        Args:
            path: The file; an existing one is replaced.
            title: The heading of the page.

        Returns:
            The path of the file.
        """
        return write_html_page(path, title, self._make_html(None), "communication.html")

    def table(self, limit: int | None = _MOST_ROWS) -> str:
        """Returns the table as text: a line for each collective, or for several that are alike, and totals.

        Args:
            limit: How many lines to show; all of them if None. Totals are always of all.
        """
        lines = [self._format_title(), ""]
        if self.collectives:
            groups = _group_alike(self.collectives)
            rows = [_HEADS, *map(_make_cells, groups[:limit])]
            columns = [column for column in zip(*rows, strict=True) if any(column[1:])]  # without those that are empty
            aligned = []
            for column in columns:
                width = max(map(len, column))
                is_number = column[0] in _NUMBERS
                aligned.append([cell.rjust(width) if is_number else cell.ljust(width) for cell in column])
            lines += ["  ".join(cells).rstrip() for cells in zip(*aligned, strict=True)]
            if omitted_count := len(groups) - len(rows[1:]):
                lines.append(f"… {omitted_count} more; `.table(limit=None)` shows all")
        return "\n".join([*lines, *self._format_notes()])

    def _repr_html_(self) -> str:
        return self._make_html(_MOST_ROWS)

    def _format_title(self) -> str:
        sizes = ", ".join(f"{axis}: {size}" for axis, size in self.mesh.items())
        mesh = f"mesh ({sizes})" if sizes else "no mesh"
        if self.platform:
            mesh += f" of {self.platform} devices"
        if not self.collectives:
            return f"{mesh}; the program sends nothing between devices"
        return (
            f"{mesh}; {format_bytes(self.bytes)} on each device from collectives, {format_bytes(self.sent_bytes)} sent"
        )

    def _format_notes(self) -> Iterator[str]:
        if self.moved_bytes:
            yield f"Arguments moved before the program, not counted: {format_bytes(self.moved_bytes)} on each device"
        by_axes = self.count_bytes("mesh_axes")
        if len(by_axes) > 1:
            parts = (f"{', '.join(axes) or 'unknown'} {format_bytes(size)}" for axes, size in by_axes.items())
            yield from ("", f"Bytes over mesh axes: {'; '.join(parts)}")
        for array in self.rematerializations:
            subject = f"{format_bytes(array.bytes)} of {array.operation or 'an array'}"
            if array.layer:
                subject += f" in {array.layer}"
            change = f"from {array.source} to {array.target}"
            yield f"Replicated and sliced again: {subject}, {change}; reshard in smaller steps"
        if self.platform == "cpu" and self.collectives:
            yield "XLA for CPUs sends bfloat16 as float32 and scatters no sums by itself; TPUs and GPUs send less."

    def _make_html(self, limit: int | None) -> str:
        rows = [GridRow((*_make_cells(group), group[0].cause)) for group in _group_alike(self.collectives)[:limit]]
        heads = (*_HEADS, "cause")
        grids = [Grid("", heads, rows, [head for head in heads if head not in _NUMBERS])] if rows else []
        return format_html_page(GridPage(self._format_title(), grids, [*filter(None, self._format_notes())]))


def communication_report(fn: Any, /, *args: Any, **kwargs: Any) -> CommunicationReport:
    """Returns what a compiled program sends between devices, read from the optimized program; nothing is run.

    Args:
        fn: A compiled or lowered function, what `compile_for` returns, a function of `named_jit`, `fsdp` or `jax.jit`,
            or a plain function, which `named_jit` compiles.
        args: Its arguments, which may be shapes; none for what is lowered or compiled.
        kwargs: Its keyword arguments.

    Raises:
        TypeError: If there are arguments for a function that is lowered already, or `fn` is not a function.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 8, "embed": 4}))
        ...     report = nym.planner.communication_report(nym.named_jit(lambda x: nym.sum(x)), x)
        >>> report.count_bytes("mesh_axes")
        {('data',): 4}
    """
    program = read_program(fn, args, kwargs)
    sizes = dict(program.mesh.shape) if program.mesh is not None else {}
    axes = list_argument_axes(group_arguments([*program.args, *program.kwargs.values()]))
    slices = find_slice_groups(program.mesh)
    collectives = list_collectives(program.hlo, sizes, math.prod(sizes.values()), axes, slices)
    return CommunicationReport(
        collectives=tuple(sorted(collectives, key=lambda collective: -collective.bytes)),
        mesh=sizes,
        platform=program.platform,
        rematerializations=read_rematerializations(program.log),
        names=tuple(axes.sizes),
        moved_bytes=_count_moved_bytes((args, kwargs), (program.args, program.kwargs)),
    )


def _count_moved_bytes(arguments: Any, placed: Any) -> int:
    """Returns the bytes on one device of arguments that the program takes with another sharding than they have."""
    arrays, shapes = jax.tree.leaves(arguments), jax.tree.leaves(placed)
    if len(arrays) != len(shapes):  # of a function that was lowered before, or with static arguments
        return 0
    size = 0
    for array, shape in zip(arrays, shapes, strict=True):
        sharding = getattr(shape, "sharding", None)  # None if the program does not use the argument
        if sharding is None or not isinstance(array, jax.Array) or not array.committed:
            continue
        if not sharding.is_equivalent_to(array.sharding, array.ndim):
            size += count_array_bytes(array.dtype, sharding.shard_shape(array.shape))
    return size


def _group_alike(collectives: Sequence[Collective]) -> list[list[Collective]]:
    """Returns collectives in groups that have one row, those that move most bytes first."""
    groups: dict[tuple[str, ...], list[Collective]] = {}
    for collective in collectives:
        groups.setdefault(_make_cells([collective]), []).append(collective)
    return sorted(groups.values(), key=lambda group: -len(group) * group[0].bytes)


def _make_cells(group: Sequence[Collective]) -> tuple[str, ...]:
    """Returns the texts of a row, in the order of `_HEADS`; bytes are those of the group."""
    collective, count = group[0], len(group)
    return (
        collective.kind,
        ", ".join(collective.mesh_axes),
        ", ".join(collective.axes),
        str(count) if count > 1 else "",
        str(collective.runs),
        format_bytes(count * collective.bytes),
        format_bytes(count * collective.runs * collective.sent_bytes),
        collective.run_in,
        _shorten_names(collective.layer),
        _shorten_names(collective.operation),
        collective.source.removeprefix(f"{os.getcwd()}{os.sep}"),
    )


def _shorten_names(text: str) -> str:
    """Returns names joined by `+`, such as `up + down + 3 more`, with those after the second counted."""
    names = text.split(" + ")
    return text if len(names) <= 3 else " + ".join([*names[:2], f"{len(names) - 2} more"])


def assert_no_collectives(fn: Any, axis: str | None = None, /, *args: Any, **kwargs: Any) -> None:
    """Asserts that a program sends nothing along an axis.

    Args:
        fn: As for `communication_report`.
        axis: A mesh axis, or a named axis of the arrays; None for all of them.
        args: The arguments of the function.
        kwargs: Its keyword arguments.

    Raises:
        AssertionError: If it sends something; the message lists each collective, its bytes, layer and source line.
        TypeError: If `axis` is not a name.
        ValueError: If neither the mesh nor the arguments have such an axis, or there is no mesh of several devices, so
            that nothing could be found.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 8, "embed": 4}))
        ...     nym.planner.assert_no_collectives(lambda x: nym.sum(x, "embed"), "data", x)
    """
    if not isinstance(axis, str | None):
        raise TypeError(
            "`assert_no_collectives` takes a mesh axis or a named axis in front of the arguments of the function, or "
            f"None for all of them, not a {type(axis).__name__}"
        )
    report = _report_on_mesh(fn, args, kwargs)
    collectives = report.select(axis=axis)
    if collectives:
        size = format_bytes(sum(collective.bytes for collective in collectives))
        along = f"along {axis!r}" if axis else "between devices"
        raise AssertionError(f"the program sends {size} {along}:\n{_format_collectives(report, collectives)}")


def assert_communication(
    fn: Any,
    /,
    *args: Any,
    at_most: int | Mapping[str, int] | None = None,
    at_most_runs: Mapping[str, int] | None = None,
    **kwargs: Any,
) -> None:
    """Asserts that a program sends at most so many bytes, and at most so often.

    Args:
        fn: As for `communication_report`.
        args: The arguments of the function.
        at_most: The most bytes of the results of all collectives on one device, or of those of a kind or along an axis:
            `{"all-gather": 2**20, "model": 0}`.
        at_most_runs: How often each collective of a kind or along an axis may run: with `{"replica": 1}` none that goes
            along `replica` is in a loop over layers or microbatches. Those of a few bytes, such as of a loss, do not
            count.
        kwargs: The keyword arguments of the function.

    Raises:
        AssertionError: If it sends more or more often; the message lists the largest collectives.
        TypeError: If neither limit is given.
        ValueError: If a key is no kind of collective, and neither the mesh nor the arguments have such an axis, there
            is no mesh of several devices, or a limit is negative.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 8, "embed": 4}))
        ...     nym.planner.assert_communication(
        ...         lambda x: nym.sum(x, "batch"),
        ...         x,
        ...         at_most={"all-reduce": 16, "all-gather": 0},
        ...         at_most_runs={"data": 1},
        ...     )
    """
    if at_most is None and at_most_runs is None:
        raise TypeError(
            "`assert_communication` takes a limit: bytes as `at_most`, or numbers of runs as `at_most_runs`"
        )
    limits: dict[str | None, int] = {}
    if isinstance(at_most, Mapping):
        limits.update(at_most)
    elif at_most is not None:
        limits[None] = at_most
    run_limits = at_most_runs or {}
    for name, unit, numbers in (("at_most", "bytes", limits), ("at_most_runs", "runs", run_limits)):
        for key, limit in numbers.items():
            if not isinstance(limit, int | float) or not limit >= 0:
                subject = f" for {key!r}" if key else ""
                raise ValueError(f"`{name}` is a number of {unit}, 0 or more; it was {limit!r}{subject}")
    report = _report_on_mesh(fn, args, kwargs)
    for key, limit in limits.items():
        collectives = _select_collectives(report, key)
        size = sum(collective.bytes for collective in collectives)
        if size > limit:
            subject = f" in {key!r}" if key else ""
            raise AssertionError(
                f"a device has {format_bytes(size)} from collectives{subject}, more than the {format_bytes(limit)} "
                f"that are allowed:\n{_format_collectives(report, collectives)}"
            )
    for key, limit in run_limits.items():
        frequent = tuple(
            collective
            for collective in _select_collectives(report, key)
            if collective.runs > limit and collective.result_bytes > _FEW_BYTES
        )
        if frequent:
            most_runs = max(collective.runs for collective in frequent)
            raise AssertionError(
                f"a collective in {key!r} runs {most_runs} times, more often than the {limit} that are allowed:\n"
                f"{_format_collectives(report, frequent)}"
            )


def _select_collectives(report: CommunicationReport, key: str | None) -> tuple[Collective, ...]:
    """Returns the collectives of a kind or along an axis; all of them for None."""
    return report.select(kind=key) if key in COLLECTIVE_KINDS else report.select(axis=key)


def _report_on_mesh(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CommunicationReport:
    """Returns the report of a program; raises an error if it is for one device, where nothing could be found."""
    report = communication_report(fn, *args, **kwargs)
    if not report.collectives and math.prod(report.mesh.values()) == 1:
        raise ValueError(
            "the program is for one device, which sends nothing; set a mesh of several devices (`jax.set_mesh`) and an "
            "`axis_mapping` around the assertion, or pass what `compile_for` returns"
        )
    return report


def _format_collectives(report: CommunicationReport, collectives: tuple[Collective, ...]) -> str:
    """Returns the table of some collectives of a report."""
    return CommunicationReport(collectives, report.mesh, report.platform).table(10)
