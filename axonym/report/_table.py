"""Tables of arrays and their axes, and grids of short texts, as plain text and as HTML."""

import html
import json
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ._format import check_count


WIDTH = 120
_MOST_ROWS = 40
_MOST_CELL = (24, WIDTH, 28)  # columns for an axis, its size, which is never cut, and its mesh axes
_LEAST = 8  # columns that a cell keeps when it is cut
_COSTS = ("bytes", "per device", "copies")
STYLE = """<style>
.axonym-table{font:0.85em/1.45 monospace;color:inherit}
.axonym-table table{margin:0;font:inherit;border-collapse:collapse;background:none;color:inherit}
.axonym-table tr{background:none!important}
.axonym-table th,.axonym-table td{padding:1px 10px;text-align:left!important;border:0;color:inherit;font-weight:normal}
.axonym-table th,.axonym-table td{vertical-align:top}
.axonym-table thead th,.axonym-table tr.all td{font-weight:bold}
.axonym-table tr.leaf>*{border-top:1px solid rgba(128,128,128,.35)}
.axonym-table tr.all>*{border-top:2px solid rgba(128,128,128,.7)}
.axonym-table td:last-child:not(.number){min-width:24ch}
.axonym-table .number{text-align:right!important;white-space:nowrap}
.axonym-table tr.axis>:first-child{padding-left:28px}
.axonym-table tr.replicated>*{opacity:.75}
.axonym-table .bad{border-left:3px solid #e5484d;padding-left:8px}
.axonym-table p{margin:6px 0}</style>"""


class Row(NamedTuple):
    """An array: its name, kind and bytes (all, on each device, in copies), its axes, and whether it has an error."""

    name: str
    kind: str
    costs: tuple[str, str, str]
    axes: Sequence[tuple[str, str, str, str]] = ()
    is_bad: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}  {self.kind}" if self.kind else self.name


class Note(NamedTuple):
    """A list below the table: its heading and items, whether it calls for a change, and whether the items are lines."""

    heading: str
    items: Sequence[str]
    is_bad: bool = False
    has_lines: bool = False


class Table(NamedTuple):
    """A title, a row for each array, the totals, and notes."""

    title: str
    rows: Sequence[Row]
    total: Row
    notes: Sequence[Note]


class PrintedTable(ABC):
    """Base class for results that are printed as a table."""

    @abstractmethod
    def table(self, limit: int | None = None) -> str:
        """Returns the table as text.

        Args:
            limit: How many rows to show; all of them if None.
        """

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__


class PrintedReport(PrintedTable):
    """Base class for results that are printed as a table and saved as JSON."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings, numbers and None, for tests and for files."""

    def to_json(self, indent: int | None = 2) -> str:
        """Returns the result of `to_dict` as JSON, with sorted keys.

        Args:
            indent: By how much levels are indented; None puts everything on one line.
        """
        return json.dumps(self.to_dict(), indent=indent, sort_keys=True)


class TabularReport(PrintedReport):
    """Base class for results whose table is of arrays and their axes, shown as HTML in a notebook."""

    @abstractmethod
    def _make_table(self) -> Table:
        """Returns the table of all arrays."""

    def table(self, limit: int | None = _MOST_ROWS) -> str:
        """Returns the table as text, at most 120 columns wide.

        Args:
            limit: How many arrays to show; all of them if None. Totals and notes are always of all arrays.

        Raises:
            TypeError: If the limit is not an integer.
            ValueError: If the limit is negative.
        """
        if limit is not None:
            check_count("limit", limit, "the number of arrays to show, or None for all")
        table = self._make_table()
        lines = [*_wrap_text(table.title), "", *_format_rows(table, table.rows[:limit]), *_format_notes(table)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = self._make_table()
        rows = "".join(_format_html_rows(table, table.rows[:_MOST_ROWS]))
        notes = "".join(map(_format_html_note, table.notes))
        return f'<div class="axonym-table">{STYLE}<p>{html.escape(table.title)}</p><table>{rows}</table>{notes}</div>'


def _format_rows(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line for each array with its bytes, and one for each of its axes."""
    arrays = [*rows, table.total]
    cost_widths = [max(map(len, column)) for column in zip(_COSTS, *(row.costs for row in arrays), strict=True)]
    axis_heads = ("axis", "size", "mesh axes")
    columns = zip(axis_heads, *(axis[:3] for row in rows for axis in row.axes), strict=True)
    axis_widths = [min(max(map(len, cells)), limit) for cells, limit in zip(columns, _MOST_CELL, strict=True)]
    # 18 columns are the least for the reasons next to the axes.
    label_width = max(sum(axis_widths) + 18, *(len(row.label) for row in arrays))
    label_width = min(label_width, WIDTH - sum(cost_widths) - 2 * len(cost_widths))
    ruler = "-" * (label_width + sum(cost_widths) + 2 * len(cost_widths))

    def format_array(label: str, costs: Sequence[str]) -> str:
        if len(label) > label_width:  # the end of a path says more than its beginning
            label = f"…{label[len(label) - label_width + 1 :]}"
        return _format_cells((label, *costs), (label_width, *cost_widths), (True, False, False, False))

    def format_axis(cells: Sequence[str]) -> str:
        line = _format_cells(cells, axis_widths, (True, False, True))
        return f"  {line:<{sum(axis_widths) + 4}}  "

    yield from (format_array("array", _COSTS), f"{format_axis(axis_heads)}why", ruler)
    for row in rows:
        yield format_array(row.label, row.costs)
        for *cells, why in row.axes:
            yield from _wrap_text(why, format_axis(cells))
    if len(rows) < len(table.rows):
        yield f"… {len(table.rows) - len(rows)} more; `.table(limit=None)` shows all"
    yield from (ruler, format_array(table.total.label, table.total.costs))


def _format_notes(table: Table) -> Iterator[str]:
    for note in table.notes:
        yield ""
        if note.has_lines:
            yield from (note.heading, *note.items)
        elif note.is_bad:
            yield note.heading
            for item in note.items:
                yield from _wrap_text(item, "  ")
        else:
            yield from _wrap_text(f"{note.heading} {', '.join(note.items)}")


def _wrap_text(text: str, start: str = "") -> list[str]:
    """Returns a text in lines, the later ones aligned with the first."""
    indent = " " * min(len(start), WIDTH // 2)
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=indent) or [start.rstrip()]


def _format_html_rows(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    heads = '<th>array / axis</th><th class="number">size</th><th>mesh axes</th><th>why</th>'
    yield f"<thead><tr>{heads}{_format_html_numbers(_COSTS, 'th')}</tr></thead><tbody>"
    for row in rows:
        mark = ' class="bad"' if row.is_bad else ""
        label = f"<b>{html.escape(row.name)}</b>&ensp;{html.escape(row.kind)}"
        yield f'<tr class="leaf"><th colspan="4"{mark}>{label}</th>{_format_html_numbers(row.costs)}</tr>'
        for axis in row.axes:
            name, size, mesh_axes, why = map(html.escape, axis)
            cells = f'<td>{name}</td><td class="number">{size}</td><td>{mesh_axes}</td><td colspan="4">{why}</td>'
            yield f'<tr class="axis{" replicated" if mesh_axes == "-" else ""}">{cells}</tr>'
    if len(rows) < len(table.rows):
        notice = f"… {len(table.rows) - len(rows)} more; <code>.table(limit=None)</code> shows all"
        yield f'<tr class="leaf"><td colspan="7">{notice}</td></tr>'
    total = f'<td colspan="4">{html.escape(table.total.label)}</td>{_format_html_numbers(table.total.costs)}'
    yield f'<tr class="all">{total}</tr></tbody>'


def _format_html_numbers(cells: tuple[str, ...], tag: str = "td") -> str:
    return "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in cells)


def _format_html_note(note: Note) -> str:
    heading, items = html.escape(note.heading), [*map(html.escape, note.items)]
    if note.has_lines:
        return f"<p>{heading}</p><pre>{'<br>'.join(items)}</pre>"
    if note.is_bad:
        return f'<p class="bad">{"<br>".join([heading, *items])}</p>'
    return f"<p>{heading} {', '.join(items)}</p>"


class GridRow(NamedTuple):
    """A row: a text in each column, and lines below it that have the whole width."""

    cells: Sequence[str]
    below: Sequence[str] = ()


class Grid(NamedTuple):
    """Rows under headings; columns whose headings are in `texts` are aligned to the left, all others to the right.

    The note stands below the rows.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[GridRow]
    texts: Sequence[str] = ()
    note: str = ""


class GridPage(NamedTuple):
    """What is printed: a title, grids, and notes."""

    title: str
    grids: Sequence[Grid]
    notes: Sequence[str]


def format_page(page: GridPage) -> str:
    """Returns a page as text, at most 120 columns wide."""
    lines = textwrap.wrap(page.title, WIDTH)
    for grid in page.grids:
        lines += ["", *_format_grid_lines(grid)]
    notes = [line for note in page.notes for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ")]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def format_html_page(page: GridPage) -> str:
    """Returns a page as an HTML element, with its own style."""
    title = f"<p><b>{html.escape(page.title)}</b></p>"
    grids = "".join(
        f"<p>{html.escape(grid.title)}</p>{_format_html_grid(grid)}<p>{html.escape(grid.note)}</p>"
        for grid in page.grids
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in page.notes)
    return f'<div class="axonym-table">{STYLE}{title}{grids}{notes}</div>'


def _list_columns(grid: Grid) -> list[int]:
    """Returns the columns that some row has a text in."""
    return [column for column in range(len(grid.heads)) if any(row.cells[column] for row in grid.rows)]


def _format_grid_lines(grid: Grid) -> Iterator[str]:
    columns = _list_columns(grid)
    lines = [[cells[column] for column in columns] for cells in (grid.heads, *(row.cells for row in grid.rows))]
    is_text = [grid.heads[column] in grid.texts for column in columns]
    widths = _fit_widths([max(map(len, cells)) for cells in zip(*lines, strict=True)], is_text)
    ruler = "-" * max(sum(widths) + 2 * len(widths) - 2, len(grid.title))
    if grid.title:
        yield from (grid.title, ruler)
    yield _format_cells(lines[0], widths, is_text)
    if not grid.title:
        yield ruler
    for row, cells in zip(grid.rows, lines[1:], strict=True):
        yield _format_cells(cells, widths, is_text)
        indent = " " * (widths[0] + 2)
        for line in row.below:
            yield from textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
    yield from textwrap.wrap(grid.note, WIDTH, subsequent_indent="  ")


def _fit_widths(widths: list[int], is_text: list[bool]) -> list[int]:
    """Returns the widths of columns with the widest texts cut until a line is short enough."""
    excess = sum(widths) + 2 * len(widths) - 2 - WIDTH
    while excess > 0 and any(is_left and width > _LEAST for is_left, width in zip(is_text, widths, strict=True)):
        widest = max((column for column in range(len(widths)) if is_text[column]), key=lambda column: widths[column])
        widths[widest] -= 1
        excess -= 1
    return widths


def _format_cells(cells: Sequence[str], widths: Sequence[int], is_text: Sequence[bool]) -> str:
    """Returns a line of cells that are cut to the widths of their columns; texts are aligned to the left."""
    parts = []
    for cell, width, is_left in zip(cells, widths, is_text, strict=True):
        cut = cell if len(cell) <= width else f"{cell[: width - 1]}…"
        parts.append(cut.ljust(width) if is_left else cut.rjust(width))
    return "  ".join(parts).rstrip()


def _format_html_grid(grid: Grid) -> str:
    columns = _list_columns(grid)
    marks = {column: "" if grid.heads[column] in grid.texts else ' class="number"' for column in columns}
    heads = "".join(f"<th{marks[column]}>{html.escape(grid.heads[column])}</th>" for column in columns)
    rows = []
    for row in grid.rows:
        cells = "".join(f"<td{marks[column]}>{html.escape(row.cells[column])}</td>" for column in columns)
        rows.append(f'<tr class="leaf">{cells}</tr>')
        if row.below:
            lines = "<br>".join(map(html.escape, row.below))
            rows.append(f'<tr class="axis"><td colspan="{len(columns)}">{lines}</td></tr>')
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
