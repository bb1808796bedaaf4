"""A table of arrays and their axes as plain text and as HTML; it knows nothing of what is said in it."""

import html
import json
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


_WIDTH = 120
_MOST_ROWS = 40
_MOST_CELL = (24, 12, 28)
_COSTS = ("bytes", "per device", "copies")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STYLE = (
    "<style>.axonym-explanation{font:0.85em/1.45 monospace;color:inherit}"
    ".axonym-explanation table{font:inherit;border-collapse:collapse;background:none;color:inherit}"
    ".axonym-explanation tr{background:none!important}"
    ".axonym-explanation th,.axonym-explanation td{padding:1px 10px;text-align:left;border:0;color:inherit;"
    "font-weight:normal;vertical-align:top}"
    ".axonym-explanation thead th,.axonym-explanation tr.all td{font-weight:bold}"
    ".axonym-explanation tr.leaf>*{border-top:1px solid rgba(128,128,128,.35)}"
    ".axonym-explanation tr.all>*{border-top:2px solid rgba(128,128,128,.7)}"
    ".axonym-explanation .number{text-align:right;white-space:nowrap}"
    ".axonym-explanation tr.axis>:first-child{padding-left:28px}"
    ".axonym-explanation tr.whole>*{opacity:.75}"
    ".axonym-explanation .bad{border-left:3px solid #e5484d;padding-left:8px}"
    ".axonym-explanation p{margin:6px 0}</style>"
)


def some_problems(problems: Sequence[str], where: str, most: int = 20) -> list[str]:
    """Returns the first problems, and how many more there are and where all of them are found."""
    more = len(problems) - most
    return [*problems] if more <= 0 else [*problems[:most], f"and {more} more; {where} has all"]


class Row(NamedTuple):
    """An array: its name and kind, its bytes, on each device and in copies, its axes, and whether it is refused."""

    name: str
    kind: str
    bytes: str
    per_device: str
    copies: str
    axes: list[tuple[str, str, str, str]]
    bad: bool = False

    @property
    def label(self) -> str:
        """Returns name and kind."""
        return f"{self.name}  {self.kind}" if self.kind else self.name

    @property
    def costs(self) -> tuple[str, str, str]:
        """Returns the three numbers."""
        return self.bytes, self.per_device, self.copies


class Note(NamedTuple):
    """Something said below the table: a heading, what falls under it, and whether it calls for a change."""

    heading: str
    things: list[str]
    bad: bool


class Table(NamedTuple):
    """What is shown: a title, rows for arrays, how many more there are, the totals, and notes."""

    title: str
    rows: list[Row]
    more: int
    total: Row
    notes: list[Note]


class Tabled(ABC):
    """What is a table where it is printed, one as HTML in a notebook, and plain values as JSON."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings, numbers and None, for tests and for files."""

    @abstractmethod
    def _table(self, limit: int | None) -> Table:
        """Returns what is shown, with so many rows at most."""

    def table(self, limit: int | None = _MOST_ROWS) -> str:
        """Returns the table as text, at most 120 columns wide.

        Args:
            limit: How many arrays are shown; all of them if None. Totals and notes are always of all arrays.

        Raises:
            ValueError: If the limit is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"`limit` is the number of arrays to show, or None for all; it was {limit}.")
        return as_text(self._table(limit))

    def to_json(self, indent: int | None = 2) -> str:
        """Returns what `to_dict` returns as JSON, with sorted keys.

        Args:
            indent: By how much levels are indented; None puts everything on one line.
        """
        return json.dumps(self.to_dict(), indent=indent, sort_keys=True)

    def __str__(self) -> str:
        """Shows the table, with its first rows."""
        return self.table()

    def __repr__(self) -> str:
        """Shows the table, with its first rows."""
        return self.table()

    def _repr_html_(self) -> str:
        """Shows the table in a notebook, in its colours."""
        return as_html(self._table(_MOST_ROWS))


def format_bytes(number: int) -> str:
    """Returns a number of bytes as people read it: `1.5 MiB`."""
    value, unit = float(number), 0
    while round(value, 1) >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def as_text(table: Table) -> str:
    """Returns a table as lines of at most 120 characters."""
    return "\n".join([*_wrapped(table.title), "", *_text_rows(table), *_text_notes(table)])


def _text_rows(table: Table) -> Iterator[str]:
    """Returns a line for each array with its bytes, and one for each of its axes."""
    everything = [*table.rows, table.total]
    numbers = [max(len(head), *(len(row.costs[at]) for row in everything)) for at, head in enumerate(_COSTS)]
    cells = [("axis", "size", "mesh axes", ""), *(axis for row in table.rows for axis in row.axes)]
    name, size, over = (min(max(len(cell[at]) for cell in cells), most) for at, most in enumerate(_MOST_CELL))
    wide = max(name + size + over + 18, *(len(row.label) for row in everything))
    wide = min(wide, _WIDTH - sum(numbers) - 2 * len(numbers))
    ruler = "-" * (wide + sum(numbers) + 2 * len(numbers))

    def line(label: str, costs: tuple[str, ...]) -> str:
        kept = label if len(label) <= wide else f"…{label[len(label) - wide + 1 :]}"
        return kept.ljust(wide) + "".join(f"  {cost:>{width}}" for cost, width in zip(costs, numbers, strict=True))

    yield from (line("array", _COSTS), f"  {'axis':<{name}}  {'size':>{size}}  {'mesh axes':<{over}}  why", ruler)
    for row in table.rows:
        yield line(row.label, row.costs)
        for one, two, three, why in row.axes:
            first = f"  {_cut(one, name):<{name}}  {two:>{size}}  {_cut(three, over):<{over}}  "
            yield from _wrapped(why, first)
    if table.more:
        yield f"… {table.more} more; `.table(limit=None)` shows all"
    yield from (ruler, line(table.total.label, table.total.costs))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _text_notes(table: Table) -> Iterator[str]:
    for note in table.notes:
        yield ""
        if note.bad:
            yield note.heading
            for thing in note.things:
                yield from _wrapped(thing, "  ")
        else:
            yield from _wrapped(f"{note.heading} {', '.join(note.things)}")


def _wrapped(text: str, first: str = "") -> list[str]:
    """Returns a text in lines, the later ones under the first."""
    indent = " " * min(len(first), _WIDTH // 2)
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent) or [first.rstrip()]


def as_html(table: Table) -> str:
    """Returns a table as HTML that brings its own style and takes the colours of what it stands in."""
    body, notes = "".join(_html_rows(table)), "".join(_html_notes(table))
    return (
        f'<div class="axonym-explanation">{_STYLE}<p>{html.escape(table.title)}</p><table>{body}</table>{notes}</div>'
    )


def _html_rows(table: Table) -> Iterator[str]:
    heads = f'<th>array / axis</th><th class="number">size</th><th>mesh axes</th><th>why</th>{_numbers(_COSTS, "th")}'
    yield f"<thead><tr>{heads}</tr></thead><tbody>"
    for row in table.rows:
        mark = ' class="bad"' if row.bad else ""
        label = f"<b>{html.escape(row.name)}</b>&ensp;{html.escape(row.kind)}"
        yield f'<tr class="leaf"><th colspan="4"{mark}>{label}</th>{_numbers(row.costs)}</tr>'
        for axis in row.axes:
            name, size, over, why = map(html.escape, axis)
            kind = "axis whole" if over == "-" else "axis"
            cells = f'<td>{name}</td><td class="number">{size}</td><td>{over}</td><td colspan="4">{why}</td>'
            yield f'<tr class="{kind}">{cells}</tr>'
    if table.more:
        more = f"… {table.more} more; <code>.table(limit=None)</code> shows all"
        yield f'<tr class="leaf"><td colspan="7">{more}</td></tr>'
    total = f'<td colspan="4">{html.escape(table.total.label)}</td>{_numbers(table.total.costs)}'
    yield f'<tr class="all">{total}</tr></tbody>'


def _numbers(cells: tuple[str, ...], tag: str = "td") -> str:
    return "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in cells)


def _html_notes(table: Table) -> Iterator[str]:
    for note in table.notes:
        things = [html.escape(thing) for thing in note.things]
        start, separator = (
            (f'<p class="bad">{html.escape(note.heading)}<br>', "<br>")
            if note.bad
            else (
                f"<p>{html.escape(note.heading)} ",
                ", ",
            )
        )
        yield f"{start}{separator.join(things)}</p>"
