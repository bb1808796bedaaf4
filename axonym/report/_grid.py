"""Grids of short texts under headings, several on a page with a title and notes, as plain text and as HTML."""

import html
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ._table import STYLE, WIDTH


_LEAST = 8  # columns that a cell keeps when it is cut


class GridRow(NamedTuple):
    """A row: a text in each column, and lines below it that have the whole width."""

    cells: Sequence[str]
    below: Sequence[str] = ()


class Grid(NamedTuple):
    """Rows under headings; columns whose headings are in `texts` are aligned to the left, all others to the right."""

    title: str
    heads: Sequence[str]
    rows: Sequence[GridRow]
    texts: Sequence[str] = ()


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
    grids = "".join(f"<p>{html.escape(grid.title)}</p>{_format_html_grid(grid)}" for grid in page.grids)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in page.notes)
    return f'<div class="axonym-table">{STYLE}{title}{grids}{notes}</div>'


def _list_columns(grid: Grid) -> list[int]:
    """Returns the columns that some row has a text in."""
    return [at for at in range(len(grid.heads)) if any(row.cells[at] for row in grid.rows)]


def _format_grid_lines(grid: Grid) -> Iterator[str]:
    columns = _list_columns(grid)
    lines = [[grid.heads[at] for at in columns], *([row.cells[at] for at in columns] for row in grid.rows)]
    is_text = [grid.heads[at] in grid.texts for at in columns]
    widths = _fit_widths([max(map(len, column)) for column in zip(*lines, strict=True)], is_text)
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


def _fit_widths(widths: list[int], is_text: list[bool]) -> list[int]:
    """Returns the widths of columns with the widest texts cut until a line is short enough."""
    excess = sum(widths) + 2 * len(widths) - 2 - WIDTH
    while excess > 0 and any(text and width > _LEAST for text, width in zip(is_text, widths, strict=True)):
        widest = max((at for at in range(len(widths)) if is_text[at]), key=lambda at: widths[at])
        widths[widest] -= 1
        excess -= 1
    return widths


def _format_cells(cells: Sequence[str], widths: Sequence[int], is_text: Sequence[bool]) -> str:
    parts = []
    for cell, width, text in zip(cells, widths, is_text, strict=True):
        cut = cell if len(cell) <= width else f"{cell[: width - 1]}…"
        parts.append(cut.ljust(width) if text else cut.rjust(width))
    return "  ".join(parts).rstrip()


def _format_html_grid(grid: Grid) -> str:
    columns = _list_columns(grid)
    marks = {at: "" if grid.heads[at] in grid.texts else ' class="number"' for at in columns}
    heads = "".join(f"<th{marks[at]}>{html.escape(grid.heads[at])}</th>" for at in columns)
    rows = []
    for row in grid.rows:
        cells = "".join(f"<td{marks[at]}>{html.escape(row.cells[at])}</td>" for at in columns)
        rows.append(f'<tr class="leaf">{cells}</tr>')
        if row.below:
            below = "<br>".join(map(html.escape, row.below))
            rows.append(f'<tr class="axis"><td colspan="{len(columns)}">{below}</td></tr>')
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
