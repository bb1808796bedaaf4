"""A mesh as a drawing: SVG text, made without any library, that reads on a light page and on a dark one.

Cells have a colour of their own and dark text on it; all other text and lines are of a grey in the middle. There is no
style sheet, since one within a page would hold for all of it.
"""

import colorsys
import dataclasses
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape

from ._device_layout import Block, MeshAxis, MeshDevice, blocks, long_axes, names_shown, printable


_LEFT, _RIGHT, _CUT = "\N{LEFTWARDS ARROW}", "\N{RIGHTWARDS ARROW}", "\N{HORIZONTAL ELLIPSIS}"
_GREY, _INK = "#7d838c", "#1c2430"
_HEIGHT, _GAP, _MARGIN = 30, 8, 16
_LONGEST, _LONGEST_UNKNOWN = 32, 8  # how many places along an axis are drawn, with devices and without
_BLOCKS, _LEGEND, _WIDE = 12, 12, 900
_START, _END = 20, 11  # how much of a very long name is drawn; the notes have all of it


@dataclasses.dataclass(frozen=True)
class _Style:
    """What all cells of a drawing have in common."""

    names: tuple[str, str]
    width: int
    processes: tuple[int, ...]
    slices: tuple[int, ...]
    longest: int  # how many places along an axis are drawn
    left: float  # where the cells begin: right of the index and the name of the rows
    top: float  # below the heading and the name and index of the columns
    cells: tuple[float, float]  # how wide and how high the cells of a block are together
    extent: tuple[float, float]  # how wide and how high a block is with its labels


def drawing(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], title: str, notes: Sequence[str]) -> str:
    """Returns a mesh as SVG: its title, its blocks of cells, a note on each axis, and the processes' colours."""
    axes = [dataclasses.replace(axis, name=_cut(printable(axis.name))) for axis in axes]
    found = list(blocks(axes, devices))
    style = _style(axes, devices, found)
    parts = [_text(_MARGIN, 26, title, "start", 14, "bold")]
    width, height = style.extent
    across = _across(axes, len(found), width)
    y, right = 40.0, _MARGIN + _wide(title, 14)
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


def _cut(name: str) -> str:
    return name if len(name) <= _START + _END + 1 else name[:_START] + _CUT + name[-_END:]


def _wide(text: str, size: int = 12) -> float:
    """Returns how wide a bold text is at most, whatever the font of the page."""
    return size * sum(map(_em, text))


def _em(letter: str) -> float:
    """Returns how wide a bold letter is in a wide font, in parts of the size."""
    if unicodedata.east_asian_width(letter) in "FW" or letter in "mwMW@%" + _CUT + _LEFT + _RIGHT:
        return 1.05
    return 0.46 if letter in " .,:;()'|!il" else 0.8 if letter.isupper() else 0.7


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


def _style(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], found: Sequence[Block]) -> _Style:
    """Returns what holds for all blocks; a label that is longer than the cells has room as well."""
    names, longest = names_shown(axes), _LONGEST if devices else _LONGEST_UNKNOWN
    processes = tuple(sorted({device.process for device in devices}))
    slices = tuple(sorted({device.slice for device in devices}))
    digits = max((len(str(device.id)) for device in devices), default=1)
    own = max((len(" ".join(_own(device, processes, slices))) for device in devices), default=0)
    width = max(42, 8 * digits + 16, 6 * own + 8)
    length = found[0].cells.shape[0]
    high, wide = (
        len(_some(count, longest)) * (each + _GAP)
        for count, each in zip(found[0].cells.shape, (_HEIGHT, width), strict=True)
    )
    above = max(_wide(text) for text in (f"{names[1]} {_RIGHT}" * bool(names[1]), *(one.heading for one in found)))
    beside = _wide(f"{_LEFT} {names[0]}") * bool(names[0])
    more = max(0, above - wide) / 2
    left = more + max(44, 30 + 7 * len(str(length - 1))) * bool(names[0])
    top = max(40 * bool(names[1]) + 22 * bool(found[0].heading), (beside - high) / 2)
    extent = left + wide + more, top + high + max(0, beside - high) / 2
    return _Style(names, width, processes, slices, longest, left, top, (wide, high), extent)


def _own(device: MeshDevice, processes: Sequence[int], slices: Sequence[int]) -> list[str]:
    """Returns what a cell says beside the id: process and slice, where there are several."""
    return [f"p{device.process}"] * (len(processes) > 1) + [f"s{device.slice}"] * (len(slices) > 1)


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


def _block(block: Block, style: _Style) -> Iterator[str]:
    """Yields a block's heading, its axes and its cells, from its own upper left corner."""
    rows, columns = (_some(length, style.longest) for length in block.cells.shape)
    across, middle = style.left + style.cells[0] / 2, style.top + style.cells[1] / 2
    if block.heading:
        yield _text(across, style.top - 6 - 40 * bool(style.names[1]), block.heading, weight="bold")
    if style.names[1]:
        yield _text(across, style.top - 25, f"{style.names[1]} {_RIGHT}", weight="bold")
    if style.names[0]:
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
    index = f", slice {device.slice}" * (len(style.slices) > 1)
    where = f"device {device.id}, process {device.process}{index}, {printable(device.kind)}"
    own = _own(device, style.processes, style.slices)
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
            7.4 * sum(1 + (unicodedata.east_asian_width(letter) in "FW") for letter in note),
        )


def _legend(devices: Sequence[MeshDevice], style: _Style) -> Iterator[tuple[str, float]]:
    """Yields a line for each slice with the colours of its processes, and how wide it is."""
    for index in [index for index in _some(len(style.slices), _LEGEND) if index is not None]:
        inside = sorted({device.process for device in devices if device.slice == style.slices[index]})
        several = len(style.slices) > 1
        label = f"slice {style.slices[index]}" * several
        parts, x = [_text(0, 12, label, "start", 12, "bold")] * several, max(64, _wide(label) + 12) * several
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
