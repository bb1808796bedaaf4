"""The SVG drawing of `describe_mesh`, readable on light and on dark pages.

Cells have a light color and dark text; all other text and lines are medium gray. There is no style sheet, because it
would apply to the entire page.
"""

import colorsys
import dataclasses
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from ._device_grid import (
    DeviceGrid,
    MeshAxis,
    MeshDevice,
    escape_unprintable,
    find_long_axes,
    get_grid_names,
    pick_shown,
    split_into_grids,
)


_LEFT, _RIGHT, _CUT = "\N{LEFTWARDS ARROW}", "\N{RIGHTWARDS ARROW}", "\N{HORIZONTAL ELLIPSIS}"
_GRAY, _INK = "#7d838c", "#1c2430"
_HEIGHT, _GAP, _MARGIN = 30, 8, 16
_LONGEST, _LONGEST_UNKNOWN = 32, 8  # cells drawn along an axis, with devices and without
_GRIDS, _LEGEND, _WIDE = 12, 12, 900
_START, _END = 20, 11  # characters of a long name that are drawn; the notes have all of it


@dataclasses.dataclass(frozen=True)
class _DrawingPlan:
    """Names, numbers and lengths that hold for all grids of a drawing."""

    names: tuple[str, str]
    width: int
    processes: tuple[int, ...]
    slices: tuple[int, ...]
    longest: int  # how many cells along an axis are drawn
    left: float  # start of the cells, right of the index and the name of the rows
    top: float  # start of the cells, below the heading and the name and index of the columns
    cells: tuple[float, float]  # width and height of all cells of a grid together
    extent: tuple[float, float]  # width and height of a grid with its labels


def draw_mesh(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], title: str, notes: Sequence[str]) -> str:
    """Returns a mesh as SVG: its title, its grids, a note on each axis, and a legend of the colors."""
    axes = [dataclasses.replace(axis, name=_shorten_name(escape_unprintable(axis.name))) for axis in axes]
    found = list(split_into_grids(axes, devices))
    plan = _plan_drawing(axes, devices, found)
    parts = [_draw_text(_MARGIN, 26, title, "start", 14, "bold")]
    width, height = plan.extent
    across = _count_grids_per_row(axes, len(found), width)
    y, right = 40.0, _MARGIN + _measure_text(title, 14)
    for at, which in enumerate(pick_shown(len(found), _GRIDS)):
        x = _MARGIN + at % across * (width + 18)
        y += (height + 14) * (at > 0 and at % across == 0)
        if which is None:
            parts.append(_draw_text(x + width / 2, y + (plan.top + height) / 2, "...", size=14, weight="bold"))
        else:
            parts.append(_translate_svg(x, y, "".join(_draw_mesh_grid(found[which], plan))))
        right = max(right, x + width)
    y += height + 22
    for lines in (_draw_notes(notes), _draw_legend(devices, plan)):
        for line, wide in lines:
            parts.append(_translate_svg(_MARGIN, y, line))
            y, right = y + 20, max(right, _MARGIN + wide)
        y += 8
    return _make_svg(parts, right + _MARGIN, y, title)


def _shorten_name(name: str) -> str:
    return name if len(name) <= _START + _END + 1 else name[:_START] + _CUT + name[-_END:]


def _measure_text(text: str, size: int = 12) -> float:
    """Returns the largest width of a bold text, in any font."""
    return size * sum(map(_measure_letter, text))


def _measure_letter(letter: str) -> float:
    """Returns the width of a bold letter in a wide font, relative to the font size."""
    if unicodedata.east_asian_width(letter) in "FW" or letter in "mwMW@%" + _CUT + _LEFT + _RIGHT:
        return 1.05
    return 0.46 if letter in " .,:;()'|!il" else 0.8 if letter.isupper() else 0.7


def _count_grids_per_row(axes: Sequence[MeshAxis], number: int, width: float) -> int:
    """Returns how many grids are side by side: if not all, complete rounds of the axis that changes fastest."""
    fit = max(1, int(_WIDE // (width + 18)))
    inner = [axes[at].size for at in find_long_axes(axes)[:-2]] or [1]
    return number if number <= fit else max(fit // inner[-1], 1) * min(inner[-1], fit)


def _translate_svg(x: float, y: float, inside: str) -> str:
    return f'<g transform="translate({x:g},{y:g})">{inside}</g>'


def _make_svg(parts: Sequence[str], width: float, height: float, title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="system-ui, Helvetica, Arial, sans-serif">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>\n"
    )


def _plan_drawing(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], found: Sequence[DeviceGrid]) -> _DrawingPlan:
    """Returns the sizes that all grids have in common, with room for long labels."""
    names, longest = get_grid_names(axes), _LONGEST if devices else _LONGEST_UNKNOWN
    processes = tuple(sorted({device.process for device in devices}))
    slices = tuple(sorted({device.slice for device in devices}))
    digits = max((len(str(device.id)) for device in devices), default=1)
    own = max((len(" ".join(_list_indices(device, processes, slices))) for device in devices), default=0)
    width = max(42, 8 * digits + 16, 6 * own + 8)
    length = found[0].cells.shape[0]
    high, wide = (
        len(pick_shown(count, longest)) * (each + _GAP)
        for count, each in zip(found[0].cells.shape, (_HEIGHT, width), strict=True)
    )
    above = max(
        _measure_text(text) for text in (f"{names[1]} {_RIGHT}" * bool(names[1]), *(one.heading for one in found))
    )
    beside = _measure_text(f"{_LEFT} {names[0]}") * bool(names[0])
    more = max(0, above - wide) / 2
    left = more + max(44, 30 + 7 * len(str(length - 1))) * bool(names[0])
    top = max(40 * bool(names[1]) + 22 * bool(found[0].heading), (beside - high) / 2)
    extent = left + wide + more, top + high + max(0, beside - high) / 2
    return _DrawingPlan(names, width, processes, slices, longest, left, top, (wide, high), extent)


def _list_indices(device: MeshDevice, processes: Sequence[int], slices: Sequence[int]) -> list[str]:
    """Returns the second line of a cell: process and slice, where there are several."""
    return [f"p{device.process}"] * (len(processes) > 1) + [f"s{device.slice}"] * (len(slices) > 1)


def _draw_text(
    x: float, y: float, text: str, anchor: str = "middle", size: int = 12, weight: str = "", fill: str = _GRAY
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{bold}>{escape(text)}</text>'
    )


def _draw_mesh_grid(grid: DeviceGrid, plan: _DrawingPlan) -> Iterator[str]:
    """Yields the heading, the axes and the cells of a grid."""
    rows, columns = (pick_shown(length, plan.longest) for length in grid.cells.shape)
    across, middle = plan.left + plan.cells[0] / 2, plan.top + plan.cells[1] / 2
    if grid.heading:
        yield _draw_text(across, plan.top - 6 - 40 * bool(plan.names[1]), grid.heading, weight="bold")
    if plan.names[1]:
        yield _draw_text(across, plan.top - 25, f"{plan.names[1]} {_RIGHT}", weight="bold")
    if plan.names[0]:
        turned = f'<g transform="translate(14,{middle:g}) rotate(-90)">'
        # Rotated by -90 degrees, an arrow to the left points down, where the index grows.
        yield turned + _draw_text(0, 0, f"{_LEFT} {plan.names[0]}", weight="bold") + "</g>"
    for i, row in enumerate(rows):
        y = plan.top + i * (_HEIGHT + _GAP)
        if plan.names[0]:
            yield _draw_text(plan.left - 10, y + 20, "..." if row is None else str(row), "end", 11)
        for j, column in enumerate(columns):
            x = plan.left + j * (plan.width + _GAP)
            if i == 0 and plan.names[1]:
                yield _draw_text(x + plan.width / 2, plan.top - 9, "..." if column is None else str(column), size=11)
            if row is not None and column is not None:
                yield _draw_device(x, y, grid.cells[row, column], plan)
    if len(plan.slices) > 1:
        yield from _draw_slice_outlines(grid, rows, columns, plan)


def _draw_device(x: float, y: float, device: MeshDevice | None, plan: _DrawingPlan) -> str:
    box = f'<rect x="{x:g}" y="{y:g}" width="{plan.width}" height="{_HEIGHT}" rx="5"'
    if device is None:
        return f'{box} fill="none" stroke="{_GRAY}" stroke-dasharray="3 3"/>'
    fill, edge = _pick_colors(plan.processes.index(device.process))
    index = f", slice {device.slice}" * (len(plan.slices) > 1)
    where = f"device {device.id}, process {device.process}{index}, {escape_unprintable(device.kind)}"
    own = _list_indices(device, plan.processes, plan.slices)
    middle = x + plan.width / 2
    texts = _draw_text(middle, y + (15 if own else 20), str(device.id), weight="bold", fill=_INK)
    if own:
        texts += _draw_text(middle, y + 26, " ".join(own), size=9, fill=_INK)
    return f'<g>{box} fill="{fill}" stroke="{edge}"/>{texts}<title>{escape(where)}</title></g>'


def _pick_colors(number: int) -> tuple[str, str]:
    """Returns a light and a darker color of one hue; consecutive numbers get very different hues."""
    hue = (0.58 + number * 0.381966) % 1
    shades = [colorsys.hls_to_rgb(hue, lightness, 0.62) for lightness in (0.80, 0.52)]
    light, dark = ("#" + "".join(f"{round(255 * part):02x}" for part in shade) for shade in shades)
    return light, dark


def _draw_slice_outlines(
    grid: DeviceGrid, rows: list[int | None], columns: list[int | None], plan: _DrawingPlan
) -> Iterator[str]:
    """Yields lines between slices and around the grid."""
    slices = np.full((len(rows) + 2, len(columns) + 2), -1)
    for i, row in enumerate(rows, 1):
        for j, column in enumerate(columns, 1):
            if row is not None and column is not None:
                slices[i, j] = grid.cells[row, column].slice
    wide, high = plan.width + _GAP, _HEIGHT + _GAP
    left, top = plan.left - _GAP / 2 - wide, plan.top - _GAP / 2 - high
    across, down = np.argwhere(slices[1:] != slices[:-1]), np.argwhere(slices[:, 1:] != slices[:, :-1])
    lines = [f"M{left + j * wide:g} {top + (i + 1) * high:g}h{wide}" for i, j in across]
    lines += [f"M{left + (j + 1) * wide:g} {top + i * high:g}v{high}" for i, j in down]
    yield f'<path d="{"".join(sorted(lines))}" fill="none" stroke="{_GRAY}" stroke-width="2.5" stroke-linecap="round"/>'


def _draw_notes(notes: Sequence[str]) -> Iterator[tuple[str, float]]:
    for note in notes:
        kept = escape(note)
        yield (
            f'<text y="12" font-size="12" font-family="ui-monospace, Menlo, Consolas, monospace" xml:space="preserve" '
            f'fill="{_GRAY}">{kept}</text>',
            7.4 * sum(1 + (unicodedata.east_asian_width(letter) in "FW") for letter in note),
        )


def _draw_legend(devices: Sequence[MeshDevice], plan: _DrawingPlan) -> Iterator[tuple[str, float]]:
    """Yields a line for each slice with the colors of its processes, and its width."""
    for index in [index for index in pick_shown(len(plan.slices), _LEGEND) if index is not None]:
        inside = sorted({device.process for device in devices if device.slice == plan.slices[index]})
        several = len(plan.slices) > 1
        label = f"slice {plan.slices[index]}" * several
        parts, x = (
            [_draw_text(0, 12, label, "start", 12, "bold")] * several,
            max(64, _measure_text(label) + 12) * several,
        )
        for at in pick_shown(len(inside), _LEGEND // 2 if several else _LEGEND):
            if at is None:
                parts.append(_draw_text(x, 12, "...", "start"))
                x += 28
                continue
            fill, edge = _pick_colors(plan.processes.index(inside[at]))
            parts.append(f'<rect x="{x:g}" y="2" width="12" height="12" rx="3" fill="{fill}" stroke="{edge}"/>')
            parts.append(_draw_text(x + 18, 12, f"process {inside[at]}", "start"))
            x += 90 + 6 * len(str(inside[at]))
        yield "".join(parts), x
