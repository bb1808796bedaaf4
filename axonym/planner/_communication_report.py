"""`communication_report`: what a compiled program sends between devices, printed, saved, and read by tests."""

import html
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..named._axis import suggest_name
from ..report._table import STYLE, PrintedReport, format_bytes
from ..report._write_file import write_html_page
from ._argument_groups import group_arguments
from ._collectives import COLLECTIVE_KINDS, Collective, list_collectives
from ._compile import compile_function, find_mesh, get_platform, list_arguments, parse_program
from ._logical_axes import list_argument_axes
from ._spmd_warnings import Rematerialization, read_rematerializations
from ._sum_bytes import sum_bytes_by


_MOST_ROWS = 40
_HEADS = ("collective", "over", "axes", "runs", "bytes", "sent", "pass", "layer", "operation", "source")
_NUMBERS = ("runs", "bytes", "sent")
_SUMMED_BY = ("kind", "mesh_axes", "axes", "layer", "operation", "run_in", "source")


@dataclass(frozen=True, repr=False)
class CommunicationReport(PrintedReport):
    """What a compiled program sends between devices: printed, a table; in a notebook, HTML.

    Bytes are those on one device; loops count as often as they run.

    Attributes:
        collectives: Each collective, those that move most bytes first.
        mesh: The sizes of the mesh axes; empty if the program is not on a mesh.
        platform: The platform it is compiled for, such as `"tpu"`; empty if not known.
        rematerializations: The arrays that the compiler replicates since it knows no direct way between two shardings;
            empty for a program that was compiled before, since only the compiler's log tells.
        names: The names of the axes of the arguments, of which `axes` of a collective are some.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        ...     x = nym.shard(nym.ones({"batch": 8, "embed": 4}))
        ...     report = nym.planner.communication_report(lambda x: nym.sum(x, "embed"), x)
        >>> [(one.kind, one.mesh_axes, one.axes, one.bytes) for one in report.collectives]
        [('all-reduce', ('model',), ('embed',), 8)]
    """

    collectives: tuple[Collective, ...]
    mesh: Mapping[str, int] = field(hash=False)
    platform: str = ""
    rematerializations: tuple[Rematerialization, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes that a device has from all collectives."""
        return sum(one.bytes for one in self.collectives)

    @property
    def sent_bytes(self) -> int:
        """The bytes that a device sends in all collectives if they are done over rings."""
        return sum(one.runs * one.sent_bytes for one in self.collectives)

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
            one
            for one in self.collectives
            if kind in (None, one.kind) and (axis is None or axis in one.mesh_axes or axis in one.axes)
        )

    def count_bytes(self, by: str = "kind") -> dict[Any, int]:
        """Returns the bytes that a device has from collectives, summed up by an attribute of them.

        Args:
            by: `"kind"`, `"mesh_axes"`, `"axes"`, `"layer"`, `"operation"`, `"run_in"` or `"source"`.

        Raises:
            ValueError: If it is another one.
        """
        return sum_bytes_by(self.collectives, by, _SUMMED_BY)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings and numbers."""
        collectives = [{**asdict(one), "bytes": one.bytes, "cause": one.cause} for one in self.collectives]
        return {
            "bytes": self.bytes,
            "sent_bytes": self.sent_bytes,
            "mesh": dict(self.mesh),
            "platform": self.platform,
            "collectives": collectives,
            "rematerializations": [asdict(one) for one in self.rematerializations],
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
        """Returns the table as text: a line for each collective, and totals.

        Args:
            limit: How many collectives to show; all of them if None. Totals are always of all.
        """
        rows = [_HEADS, *map(_make_cells, self.collectives[:limit])]
        shown = [at for at in range(len(_HEADS)) if any(row[at] for row in rows[1:])]
        widths = {at: max(len(row[at]) for row in rows) for at in shown}
        lines = [
            "  ".join(
                row[at].rjust(widths[at]) if _HEADS[at] in _NUMBERS else row[at].ljust(widths[at]) for at in shown
            ).rstrip()
            for row in rows
        ]
        more = len(self.collectives) - len(rows) + 1
        lines += [f"… {more} more; `.table(limit=None)` shows all"] if more else []
        return "\n".join([self._format_title(), "", *(lines if self.collectives else []), *self._format_notes()])

    def _repr_html_(self) -> str:
        return self._make_html(_MOST_ROWS)

    def _format_title(self) -> str:
        sizes = ", ".join(f"{axis}: {size}" for axis, size in self.mesh.items())
        where = f"mesh ({sizes})" if sizes else "no mesh"
        on = f" of {self.platform} devices" if self.platform else ""
        total = f"{format_bytes(self.bytes)} on each device from collectives, {format_bytes(self.sent_bytes)} sent"
        return f"{where}{on}; {total if self.collectives else 'nothing is sent between devices'}"

    def _format_notes(self) -> Iterator[str]:
        by_axes = self.count_bytes("mesh_axes")
        if len(by_axes) > 1:
            parts = (f"{', '.join(axes) or 'unknown'} {format_bytes(size)}" for axes, size in by_axes.items())
            yield from ("", f"Bytes over mesh axes: {'; '.join(parts)}")
        for one in self.rematerializations:
            what = (
                f"{format_bytes(one.bytes)} of {one.operation or 'an array'}{f' in {one.layer}' if one.layer else ''}"
            )
            yield f"Replicated and sliced again: {what}, from {one.source} to {one.target}; reshard in smaller steps"
        if self.platform == "cpu" and self.collectives:
            yield "XLA for CPUs sends bfloat16 as float32 and no reduce-scatter; TPUs and GPUs send less."

    def _make_html(self, limit: int | None) -> str:
        marks = {name: " class='number'" if name in _NUMBERS else "" for name in (*_HEADS, "cause")}
        head = "".join(f"<th{mark}>{name}</th>" for name, mark in marks.items())
        rows = []
        for one in self.collectives[:limit]:
            cells = "".join(
                f"<td{mark}>{html.escape(cell)}</td>"
                for mark, cell in zip(marks.values(), (*_make_cells(one), one.cause), strict=True)
            )
            rows.append(f"<tr>{cells}</tr>")
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._format_notes() if note)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>" if rows else ""
        return f'<div class="axonym-table">{STYLE}<p>{html.escape(self._format_title())}</p>{table}{notes}</div>'


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
    compiled, log = compile_function(fn, args, kwargs)
    arguments = list_arguments(compiled)
    mesh = find_mesh(compiled, arguments)
    sizes = dict(mesh.shape) if mesh is not None else {}
    axes = list_argument_axes(group_arguments([*arguments[0], *arguments[1].values()]))
    program, devices = parse_program(compiled), math.prod(sizes.values())
    ranked = tuple(sorted(list_collectives(program, sizes, devices, axes), key=lambda one: -one.bytes))
    return CommunicationReport(ranked, sizes, get_platform(mesh), read_rematerializations(log), tuple(axes.sizes))


def _make_cells(one: Collective) -> tuple[str, ...]:
    over, axes = ", ".join(one.mesh_axes), ", ".join(one.axes)
    numbers = (str(one.runs), format_bytes(one.bytes), format_bytes(one.runs * one.sent_bytes))
    origin = (_shorten_sum(one.layer), _shorten_sum(one.operation), _shorten_source(one.source))
    return (one.kind, over, axes, *numbers, one.run_in, *origin)


def _shorten_sum(names: str) -> str:
    """Returns the first of several names, such as `up + down + 3 more`."""
    first = names.split(" + ")
    return names if len(first) <= 3 else " + ".join([*first[:2], f"{len(first) - 2} more"])


def _shorten_source(source: str) -> str:
    """Returns a line without the folder that the program runs in."""
    folder = f"{os.getcwd()}{os.sep}"
    return source.removeprefix(folder)
