"""A mesh as a drawing: SVG text, made without any library, that reads on a light page and on a dark one.

Cells have a colour of their own and dark text on it; all other text and lines are of a grey in the middle. There is no
style sheet, since one within a page would hold for all of it.
"""

import colorsys
import dataclasses
from collections.abc import Iterator, Sequence
from html import escape

from ._layout import Block, MeshAxis, MeshDevice, blocks, long_axes, names_shown


_LEFT, _RIGHT = "\N{LEFTWARDS ARROW}", "\N{RIGHTWARDS ARROW}"
_GREY, _INK = "#7d838c", "#1c2430"
_HEIGHT, _GAP, _MARGIN = 30, 8, 16
_LONGEST, _LONGEST_UNKNOWN = 32, 8  # how many places along an axis are drawn, with devices and without
_BLOCKS, _LEGEND, _WIDE = 12, 12, 900


@dataclasses.dataclass(frozen=True)
class _Style:
    """What all cells of a drawing have in common."""

    names: tuple[str, str]
    width: int
    processes: tuple[int, ...]
    slices: tuple[int, ...]
    left: int  # where the cells begin: right of the index and the name of the rows
    top: int  # below the heading and the name and index of the columns
    longest: int  # how many places along an axis are drawn


def drawing(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], title: str, notes: Sequence[str]) -> str:
    """Returns a mesh as SVG: its title, its blocks of cells, a note on each axis, and the processes' colours."""
    found = list(blocks(axes, devices))
    style = _style(axes, devices, bool(found[0].heading))
    parts = [_text(_MARGIN, 26, title, "start", 14, "bold")]
    width, height = _extent(found[0], style)
    across = _across(axes, len(found), width)
    y, right = 40.0, _MARGIN + 8.6 * len(title)
    for at, which in enumerate(_some(len(found), _BLOCKS)):
        x = _MARGIN + at % across * (width + 18)
        y += (height + 14) * (at > 0 and at % across == 0)
        if which is None:
            parts.append(_text(x + width / 2, y + (style.top + height) / 2, "...", size=14, weight="bold"))
        else:
            parts.append(_moved(x, y, "".join(_block(found[which], style))))
        right = max(right, x + width)
    y += height + 22
    for lines in (_noted(notes), _legend(devices, style)):
        for line, wide in lines:
            parts.append(_moved(_MARGIN, y, line))
            y, right = y + 20, max(right, _MARGIN + wide)
        y += 8
    return _document(parts, right + _MARGIN, y, title)


def _across(axes: Sequence[MeshAxis], number: int, width: float) -> int:
    """Returns how many blocks stand side by side: if not all, then whole rounds of the axis that changes fastest."""
    fit = max(1, int(_WIDE // (width + 18)))
    inner = [axes[at].size for at in long_axes(axes)[:-2]] or [1]
    return number if number <= fit else max(fit // inner[-1], 1) * min(inner[-1], fit)


def _moved(x: float, y: float, inside: str) -> str:
    return f'<g transform="translate({x:g},{y:g})">{inside}</g>'


def _document(parts: Sequence[str], width: float, height: float, title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="system-ui, Helvetica, Arial, sans-serif">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>\n"
    )


def _style(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], headed: bool) -> _Style:
    names = names_shown(axes)
    digits = max((len(str(device.id)) for device in devices), default=1)
    processes = tuple(sorted({device.process for device in devices}))
    slices = tuple(sorted({device.slice for device in devices}))
    left, top = 44 * bool(names[0]), 40 * bool(names[1]) + 22 * headed
    return _Style(
        names, max(42, 8 * digits + 16), processes, slices, left, top, _LONGEST if devices else _LONGEST_UNKNOWN
    )


def _text(
    x: float, y: float, text: str, anchor: str = "middle", size: int = 12, weight: str = "", fill: str = _GREY
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{bold}>{escape(text)}</text>'
    )


def _some(number: int, most: int) -> list[int | None]:
    """Returns which of so many things are drawn; None stands for those left out."""
    return list(range(number)) if number <= most else [*range(most - 2), None, number - 1]


def _extent(block: Block, style: _Style) -> tuple[float, float]:
    """Returns how wide and how high a block is."""
    rows, columns = (len(_some(length, style.longest)) for length in block.cells.shape)
    return style.left + columns * (style.width + _GAP), style.top + rows * (_HEIGHT + _GAP)


def _block(block: Block, style: _Style) -> Iterator[str]:
    """Yields a block's heading, its axes and its cells, from its own upper left corner."""
    rows, columns = (_some(length, style.longest) for length in block.cells.shape)
    width, height = _extent(block, style)
    if block.heading:
        yield _text((style.left + width) / 2, 16, block.heading, weight="bold")
    if style.names[1]:
        yield _text((style.left + width) / 2, style.top - 25, f"{style.names[1]} {_RIGHT}", weight="bold")
    if style.names[0]:
        middle = (style.top + height) / 2
        turned = f'<g transform="translate(14,{middle:g}) rotate(-90)">'
        # Turned to the left, an arrow to the left points down, the way in which the index grows.
        yield turned + _text(0, 0, f"{_LEFT} {style.names[0]}", weight="bold") + "</g>"
    for i, row in enumerate(rows):
        y = style.top + i * (_HEIGHT + _GAP)
        if style.names[0]:
            yield _text(style.left - 10, y + 20, "..." if row is None else str(row), "end", 11)
        for j, column in enumerate(columns):
            x = style.left + j * (style.width + _GAP)
            if i == 0 and style.names[1]:
                yield _text(x + style.width / 2, style.top - 9, "..." if column is None else str(column), size=11)
            if row is not None and column is not None:
                yield _cell(x, y, block.cells[row, column], style)
    if len(style.slices) > 1:
        yield from _outlines(block, rows, columns, style)


def _cell(x: float, y: float, device: MeshDevice | None, style: _Style) -> str:
    box = f'<rect x="{x:g}" y="{y:g}" width="{style.width}" height="{_HEIGHT}" rx="5"'
    if device is None:
        return f'{box} fill="none" stroke="{_GREY}" stroke-dasharray="3 3"/>'
    fill, edge = colours(style.processes.index(device.process))
    several = len(style.slices) > 1
    where = f"device {device.id}, process {device.process}{f', slice {device.slice}' * several}, {device.kind}"
    own = [f"p{device.process}"] * (len(style.processes) > 1) + [f"s{device.slice}"] * several
    middle = x + style.width / 2
    texts = _text(middle, y + (15 if own else 20), str(device.id), weight="bold", fill=_INK)
    if own:
        texts += _text(middle, y + 26, " ".join(own), size=9, fill=_INK)
    return f'<g>{box} fill="{fill}" stroke="{edge}"/>{texts}<title>{escape(where)}</title></g>'


def colours(number: int) -> tuple[str, str]:
    """Returns a light colour and a darker one of its hue; neighbouring numbers are far apart in hue."""
    hue = (0.58 + number * 0.381966) % 1
    shades = [colorsys.hls_to_rgb(hue, lightness, 0.62) for lightness in (0.80, 0.52)]
    light, dark = ("#" + "".join(f"{round(255 * part):02x}" for part in shade) for shade in shades)
    return light, dark


def _outlines(block: Block, rows: list[int | None], columns: list[int | None], style: _Style) -> Iterator[str]:
    """Yields a line wherever two slices meet, and around the block."""
    at: dict[tuple[int, int], int] = {}
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if row is not None and column is not None:
                at[i, j] = block.cells[row, column].slice
    wide, high = style.width + _GAP, _HEIGHT + _GAP
    lines: set[str] = set()
    for (i, j), index in at.items():
        x, y = style.left + j * wide - _GAP / 2, style.top + i * high - _GAP / 2
        sides = {
            (i - 1, j): (x, y, "h"),
            (i + 1, j): (x, y + high, "h"),
            (i, j - 1): (x, y, "v"),
            (i, j + 1): (x + wide, y, "v"),
        }
        for beside, (left, top, way) in sides.items():
            if at.get(beside) != index:
                lines.add(f"M{left:g} {top:g}{way}{wide if way == 'h' else high}")
    yield f'<path d="{"".join(sorted(lines))}" fill="none" stroke="{_GREY}" stroke-width="2.5" stroke-linecap="round"/>'


def _noted(notes: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yields a line for each note, and how wide it is."""
    for note in notes:
        kept = escape(note)
        yield (
            f'<text y="12" font-size="12" font-family="ui-monospace, Menlo, Consolas, monospace" xml:space="preserve" '
            f'fill="{_GREY}">{kept}</text>',
            7.4 * len(note),
        )


def _legend(devices: Sequence[MeshDevice], style: _Style) -> Iterator[tuple[str, float]]:
    """Yields a line for each slice with the colours of its processes, and how wide it is."""
    for index in [index for index in _some(len(style.slices), _LEGEND) if index is not None]:
        inside = sorted({device.process for device in devices if device.slice == style.slices[index]})
        several = len(style.slices) > 1
        parts, x = [_text(0, 12, f"slice {style.slices[index]}", "start", 12, "bold")] * several, 64.0 * several
        for at in _some(len(inside), _LEGEND // 2 if several else _LEGEND):
            if at is None:
                parts.append(_text(x, 12, "...", "start"))
                x += 28
                continue
            fill, edge = colours(style.processes.index(inside[at]))
            parts.append(f'<rect x="{x:g}" y="2" width="12" height="12" rx="3" fill="{fill}" stroke="{edge}"/>')
            parts.append(_text(x + 18, 12, f"process {inside[at]}", "start"))
            x += 90 + 6 * len(str(inside[at]))
        yield "".join(parts), x
