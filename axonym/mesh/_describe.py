"""`describe_mesh`: where each device is, and what communication along each axis crosses, as text or drawing.

Both show grids of two axes: the last two axes longer than 1 are the rows and columns, and there is a grid for each
index along the others. The drawing is SVG, readable on light and on dark pages: cells have a light color and dark text,
all other text and lines are medium gray. It has no style sheet, because that would apply to the entire page.
"""

import colorsys
import dataclasses
import itertools
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from html import escape
from math import prod
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from .._ground.atomic_file import check_file_path, open_replacement
from .._ground.jax_compat import is_tracing


# Of the text:
_MAX_DEVICES = 64  # shown one by one; of more devices, the processes are shown
_LINE_LENGTH = 100  # characters
_FIRST_PROCESSES, _LAST_PROCESSES = 8, 2  # shown where there are more

# Of the drawing, in pixels unless they are counts:
_LEFT, _RIGHT, _CUT = "\N{LEFTWARDS ARROW}", "\N{RIGHTWARDS ARROW}", "\N{HORIZONTAL ELLIPSIS}"
_GRAY, _INK = "#7d838c", "#1c2430"
_CELL_HEIGHT, _GAP, _MARGIN = 30, 8, 16
_MAX_CELLS, _MAX_EMPTY_CELLS = 32, 8  # drawn along an axis, with devices and without
_MAX_GRIDS, _MAX_LEGEND = 12, 12  # grids, and entries of the legend
_MAX_WIDTH = 900
_GRID_SPACING = 18
_NAME_START, _NAME_END = 20, 11  # characters of a long name that are drawn; the notes have all of it


@dataclasses.dataclass(frozen=True)
class MeshAxis:
    """A mesh axis, and how many processes and slices it crosses.

    Attributes:
        name: Its name.
        size: The number of devices along it.
        type: Its axis type.
        processes: The largest number of processes along it; 0 if the mesh has no devices.
        slices: The largest number of slices along it; 0 if the mesh has no devices.
        reach: Both in words, such as `across 2 slices`; empty if the mesh has no devices.
    """

    name: str
    size: int
    type: AxisType
    processes: int
    slices: int
    reach: str


@dataclasses.dataclass(frozen=True)
class MeshDevice:
    """A device and its place in a mesh.

    Attributes:
        id: Its id in JAX.
        process: The index of its process.
        slice: The index of its slice, 0 on platforms without slices.
        platform: Its platform, such as `cpu`, `gpu` or `tpu`.
        kind: Its kind, as the platform calls it.
        place: Its index along each mesh axis.
    """

    id: int
    process: int
    slice: int
    platform: str
    kind: str
    place: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class DeviceGrid:
    """The devices of a mesh at one index along all axes but two; None for each device of an `AbstractMesh`."""

    heading: str
    cells: np.ndarray


def _describe_axes(mesh: Mesh | AbstractMesh, devices: Sequence[MeshDevice]) -> Iterator[MeshAxis]:
    """Yields the axes of a mesh, with what they cross if it has devices."""
    sizes = tuple(mesh.shape.values())
    all_slices = len({device.slice for device in devices})
    for axis, (name, size) in enumerate(mesh.shape.items()):
        processes = slices = 0, 0
        reach = ""
        if devices:
            processes = _count_along_axis([device.process for device in devices], sizes, axis)
            slices = _count_along_axis([device.slice for device in devices], sizes, axis)
            reach = _format_reach(size, processes, slices, all_slices)
        yield MeshAxis(str(name), size, mesh.axis_types[axis], max(processes), max(slices), reach)


def _count_along_axis(indices: Sequence[int], sizes: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Returns how many different indices there are along an axis, at least and at most."""
    lines = np.sort(np.moveaxis(np.reshape(indices, sizes), axis, -1), axis=-1)
    different = 1 + (np.diff(lines, axis=-1) != 0).sum(axis=-1)
    return int(different.min()), int(different.max())


def _format_reach(size: int, processes: tuple[int, int], slices: tuple[int, int], all_slices: int) -> str:
    if size == 1:
        return "one device"
    if max(slices) > 1:
        processes_text = f", {_format_count_range(processes, 'processes')}" if processes != slices else ""
        return f"across {_format_count_range(slices, 'slices')}{processes_text}"
    if max(processes) > 1:
        return f"across {_format_count_range(processes, 'processes')}{' of a slice' if all_slices > 1 else ''}"
    return "within a process"


def _format_count_range(counts: tuple[int, int], noun: str) -> str:
    return f"{counts[1]:,} {noun}" if counts[0] == counts[1] else f"up to {counts[1]:,} {noun}"


def _find_long_axes(axes: Sequence[MeshAxis]) -> list[int]:
    """Returns which axes are longer than 1; the others are not shown."""
    return [i for i, axis in enumerate(axes) if axis.size > 1]


def _get_grid_names(axes: Sequence[MeshAxis]) -> tuple[str, str]:
    """Returns the names of the axes along the rows and the columns of each grid, "" where there is none."""
    names = ["", "", *(escape_unprintable(axes[i].name) for i in _find_long_axes(axes))]
    return names[-2], names[-1]


def escape_unprintable(text: str) -> str:
    """Escapes characters that a line of text or XML cannot contain, as in a Python literal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _split_into_grids(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice]) -> Iterator[DeviceGrid]:
    long_axes = _find_long_axes(axes)
    outer = long_axes[:-2]
    rows, columns = [1, 1, *(axes[i].size for i in long_axes)][-2:]
    cells = np.empty(prod(axis.size for axis in axes), dtype=object)
    cells[: len(devices)] = devices  # all of them None if the mesh is abstract
    places = np.ndindex(tuple(axes[i].size for i in outer))
    for place, grid in zip(places, cells.reshape((-1, rows, columns)), strict=True):
        names = [escape_unprintable(axes[i].name) for i in outer]
        yield DeviceGrid(", ".join(f"{name} {index}" for name, index in zip(names, place, strict=True)), grid)


def _format_ranges(numbers: Sequence[int], max_ranges: int = 3) -> str:
    """Writes numbers as ranges, `0-3, 8-11`, leaving out some if there are more than `max_ranges`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(texts if len(texts) <= max_ranges else [*texts[: max_ranges - 1], "...", texts[-1]])


def pick_shown(number: int, max_shown: int) -> list[int | None]:
    """Returns which of so many things are shown, with None in place of the others."""
    return [*range(number)] if number <= max_shown else [*range(max_shown - 2), None, number - 1]


def _format_plural(number: int, singular: str, plural: str) -> str:
    """Writes a number with its noun, as in `1 process` and `1,024 devices`."""
    return f"{number:,} {singular if number == 1 else plural}"


@dataclasses.dataclass(frozen=True)
class _DrawingPlan:
    """Names, numbers and lengths that hold for all grids of a drawing."""

    names: tuple[str, str]
    width: int
    processes: tuple[int, ...]
    slices: tuple[int, ...]
    longest: int  # how many cells along an axis are drawn
    left_margin: float  # start of the cells, right of the index and the name of the rows
    top: float  # start of the cells, below the heading and the name and index of the columns
    cells: tuple[float, float]  # width and height of all cells of a grid together
    extent: tuple[float, float]  # width and height of a grid with its labels


def _draw_mesh(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], title: str, notes: Sequence[str]) -> str:
    """Returns a mesh as SVG: its title, its grids, a note on each axis, and a legend of the colors."""
    axes = [dataclasses.replace(axis, name=_shorten_name(escape_unprintable(axis.name))) for axis in axes]
    grids = list(_split_into_grids(axes, devices))
    plan = _plan_drawing(axes, devices, grids)
    parts = [_draw_text(_MARGIN, 26, title, "start", 14, "bold")]
    width, height = plan.extent
    across = _count_grids_per_row(axes, len(grids), width)
    y, right = 40.0, _MARGIN + _measure_text(title, 14)
    for number, grid_number in enumerate(pick_shown(len(grids), _MAX_GRIDS)):
        x = _MARGIN + number % across * (width + _GRID_SPACING)
        if number > 0 and number % across == 0:
            y += height + 14
        if grid_number is None:
            parts.append(_draw_text(x + width / 2, y + (plan.top + height) / 2, "...", size=14, weight="bold"))
        else:
            parts.append(_translate_svg(x, y, "".join(_draw_mesh_grid(grids[grid_number], plan))))
        right = max(right, x + width)
    y += height + 22
    for lines in (_draw_notes(notes), _draw_legend(devices, plan)):
        for line, wide in lines:
            parts.append(_translate_svg(_MARGIN, y, line))
            y, right = y + 20, max(right, _MARGIN + wide)
        y += 8
    body, width, height = "\n".join(parts), right + _MARGIN, y
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="system-ui, Helvetica, Arial, sans-serif">\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>\n"
    )


def _shorten_name(name: str) -> str:
    return name if len(name) <= _NAME_START + _NAME_END + 1 else name[:_NAME_START] + _CUT + name[-_NAME_END:]


def _measure_text(text: str, size: int = 12) -> float:
    """Returns the largest width of a bold text, in any font."""
    return size * sum(map(_measure_letter, text))


def _measure_letter(letter: str) -> float:
    """Returns the width of a bold letter in a wide font, relative to the font size."""
    if unicodedata.east_asian_width(letter) in "FW" or letter in "mwMW@%" + _CUT + _LEFT + _RIGHT:
        return 1.05
    if letter in " .,:;()'|!il":
        return 0.46
    return 0.8 if letter.isupper() else 0.7


def _count_grids_per_row(axes: Sequence[MeshAxis], number: int, width: float) -> int:
    """Returns how many grids are side by side: if not all, complete rounds of the axis that changes fastest."""
    fit = max(1, int(_MAX_WIDTH // (width + _GRID_SPACING)))
    if number <= fit:
        return number
    outer_sizes = [axes[axis].size for axis in _find_long_axes(axes)[:-2]]
    fastest = outer_sizes[-1] if outer_sizes else 1
    return max(fit // fastest, 1) * min(fastest, fit)


def _translate_svg(x: float, y: float, inside: str) -> str:
    return f'<g transform="translate({x:g},{y:g})">{inside}</g>'


def _plan_drawing(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice], grids: Sequence[DeviceGrid]) -> _DrawingPlan:
    """Returns the sizes that all grids have in common, with room for long labels."""
    names, longest = _get_grid_names(axes), _MAX_CELLS if devices else _MAX_EMPTY_CELLS
    processes = tuple(sorted({device.process for device in devices}))
    slices = tuple(sorted({device.slice for device in devices}))
    digits = max((len(str(device.id)) for device in devices), default=1)
    indices_length = max((len(" ".join(_list_indices(device, processes, slices))) for device in devices), default=0)
    width = max(42, 8 * digits + 16, 6 * indices_length + 8)
    rows, columns = grids[0].cells.shape
    cells_width = len(pick_shown(columns, longest)) * (width + _GAP)
    cells_height = len(pick_shown(rows, longest)) * (_CELL_HEIGHT + _GAP)
    headings = [grid.heading for grid in grids]
    index_width, row_name_height, labels_height = 0, 0.0, 0
    if names[0]:
        index_width = max(44, 30 + 7 * len(str(rows - 1)))
        row_name_height = _measure_text(f"{_LEFT} {names[0]}")  # rotated
    if names[1]:
        headings.append(f"{names[1]} {_RIGHT}")
        labels_height += 40
    if grids[0].heading:
        labels_height += 22
    # What is longer than the cells sticks out on both sides of them.
    overhang = max(0, max(map(_measure_text, headings)) - cells_width) / 2
    left_margin = overhang + index_width
    top = max(labels_height, (row_name_height - cells_height) / 2)
    extent = left_margin + cells_width + overhang, top + cells_height + max(0, row_name_height - cells_height) / 2
    cells = cells_width, cells_height
    return _DrawingPlan(names, width, processes, slices, longest, left_margin, top, cells, extent)


def _list_indices(device: MeshDevice, processes: Collection[int], slices: Collection[int]) -> list[str]:
    """Returns the second line of a cell: process and slice, where there are several."""
    texts: list[str] = []
    if len(processes) > 1:
        texts.append(f"p{device.process}")
    if len(slices) > 1:
        texts.append(f"s{device.slice}")
    return texts


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
    across, middle = plan.left_margin + plan.cells[0] / 2, plan.top + plan.cells[1] / 2
    if grid.heading:
        yield _draw_text(across, plan.top - 6 - 40 * bool(plan.names[1]), grid.heading, weight="bold")
    if plan.names[1]:
        yield _draw_text(across, plan.top - 25, f"{plan.names[1]} {_RIGHT}", weight="bold")
    if plan.names[0]:
        turned = f'<g transform="translate(14,{middle:g}) rotate(-90)">'
        # Rotated by -90 degrees, an arrow to the left points down, where the index grows.
        yield turned + _draw_text(0, 0, f"{_LEFT} {plan.names[0]}", weight="bold") + "</g>"
    for i, row in enumerate(rows):
        y = plan.top + i * (_CELL_HEIGHT + _GAP)
        if plan.names[0]:
            yield _draw_text(plan.left_margin - 10, y + 20, "..." if row is None else str(row), "end", 11)
        for j, column in enumerate(columns):
            x = plan.left_margin + j * (plan.width + _GAP)
            if i == 0 and plan.names[1]:
                yield _draw_text(x + plan.width / 2, plan.top - 9, "..." if column is None else str(column), size=11)
            if row is not None and column is not None:
                yield _draw_device(x, y, grid.cells[row, column], plan)
    if len(plan.slices) > 1:
        yield from _draw_slice_outlines(grid, rows, columns, plan)


def _draw_device(x: float, y: float, device: MeshDevice | None, plan: _DrawingPlan) -> str:
    box = f'<rect x="{x:g}" y="{y:g}" width="{plan.width}" height="{_CELL_HEIGHT}" rx="5"'
    if device is None:
        return f'{box} fill="none" stroke="{_GRAY}" stroke-dasharray="3 3"/>'
    fill, edge = _pick_colors(plan.processes.index(device.process))
    slice_text = f", slice {device.slice}" if len(plan.slices) > 1 else ""
    tooltip = f"device {device.id}, process {device.process}{slice_text}, {escape_unprintable(device.kind)}"
    index_texts = _list_indices(device, plan.processes, plan.slices)
    middle = x + plan.width / 2
    texts = _draw_text(middle, y + (15 if index_texts else 20), str(device.id), weight="bold", fill=_INK)
    if index_texts:
        texts += _draw_text(middle, y + 26, " ".join(index_texts), size=9, fill=_INK)
    return f'<g>{box} fill="{fill}" stroke="{edge}"/>{texts}<title>{escape(tooltip)}</title></g>'


def _pick_colors(number: int) -> tuple[str, str]:
    """Returns a light and a darker color of one hue; consecutive numbers get very different hues."""
    hue = (0.58 + number * 0.381966) % 1  # steps of the golden angle
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
    wide, high = plan.width + _GAP, _CELL_HEIGHT + _GAP
    left_edge, top_edge = plan.left_margin - _GAP / 2 - wide, plan.top - _GAP / 2 - high
    across, down = np.argwhere(slices[1:] != slices[:-1]), np.argwhere(slices[:, 1:] != slices[:, :-1])
    lines = [f"M{left_edge + j * wide:g} {top_edge + (i + 1) * high:g}h{wide}" for i, j in across]
    lines += [f"M{left_edge + (j + 1) * wide:g} {top_edge + i * high:g}v{high}" for i, j in down]
    yield f'<path d="{"".join(sorted(lines))}" fill="none" stroke="{_GRAY}" stroke-width="2.5" stroke-linecap="round"/>'


def _draw_notes(notes: Sequence[str]) -> Iterator[tuple[str, float]]:
    for note in notes:
        yield (
            f'<text y="12" font-size="12" font-family="ui-monospace, Menlo, Consolas, monospace" xml:space="preserve" '
            f'fill="{_GRAY}">{escape(note)}</text>',
            7.4 * sum(1 + (unicodedata.east_asian_width(letter) in "FW") for letter in note),
        )


def _draw_legend(devices: Sequence[MeshDevice], plan: _DrawingPlan) -> Iterator[tuple[str, float]]:
    """Yields a line for each slice with the colors of its processes, and its width."""
    for index in [index for index in pick_shown(len(plan.slices), _MAX_LEGEND) if index is not None]:
        processes = sorted({device.process for device in devices if device.slice == plan.slices[index]})
        several = len(plan.slices) > 1
        parts: list[str] = []
        x = 0.0
        if several:
            label = f"slice {plan.slices[index]}"
            parts.append(_draw_text(0, 12, label, "start", 12, "bold"))
            x = max(64, _measure_text(label) + 12)
        for number in pick_shown(len(processes), _MAX_LEGEND // 2 if several else _MAX_LEGEND):
            if number is None:
                parts.append(_draw_text(x, 12, "...", "start"))
                x += 28
                continue
            fill, edge = _pick_colors(plan.processes.index(processes[number]))
            parts.append(f'<rect x="{x:g}" y="2" width="12" height="12" rx="3" fill="{fill}" stroke="{edge}"/>')
            parts.append(_draw_text(x + 18, 12, f"process {processes[number]}", "start"))
            x += 90 + 6 * len(str(processes[number]))
        yield "".join(parts), x


@dataclasses.dataclass(frozen=True, repr=False)
class MeshDescription:
    """The description that [`describe_mesh`][axonym.describe_mesh] returns: text if printed, a drawing in a notebook.

    Attributes:
        axes: The mesh axes, in order.
        devices: The devices in the order of the mesh, the last axis fastest; none for an `AbstractMesh`.

    Example:
        >>> import axonym as nym
        >>> described = nym.describe_mesh(nym.create_mesh((4, 2), ("data", "model")))
        >>> [(axis.name, axis.size, axis.reach) for axis in described.axes]
        [('data', 4, 'within a process'), ('model', 2, 'within a process')]
        >>> described.devices[5].place
        (2, 1)
        >>> described.processes, described.slices, described.platforms
        ((0,), (0,), ('cpu',))
        >>> described.to_svg()[:4]
        '<svg'
    """

    axes: tuple[MeshAxis, ...]
    devices: tuple[MeshDevice, ...]

    @property
    def size(self) -> int:
        """The number of devices, also for an `AbstractMesh`."""
        return prod(axis.size for axis in self.axes)

    @property
    def processes(self) -> tuple[int, ...]:
        """The indices of the processes that have devices in the mesh, in order."""
        return tuple(sorted({device.process for device in self.devices}))

    @property
    def slices(self) -> tuple[int, ...]:
        """The indices of the slices that have devices in the mesh, in order."""
        return tuple(sorted({device.slice for device in self.devices}))

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms of the devices, such as `cpu`, in the order of the mesh."""
        return tuple(dict.fromkeys(device.platform for device in self.devices))

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """The kinds of the devices, as their platform calls them, in the order of the mesh."""
        return tuple(dict.fromkeys(device.kind for device in self.devices))

    def to_svg(self, path: str | Path | None = None) -> str:
        """Draws the mesh: a cell for each device with its id, colored by process, with slices outlined.

        An axis longer than 32 is drawn with a gap. The cells of an `AbstractMesh` are empty.

        Args:
            path: A file to write the drawing to, if any.

        Returns:
            The drawing, as the text of an SVG file.
        """
        text = _draw_mesh(self.axes, self.devices, self._format_title(), self._format_axis_rows())
        if path is not None:
            with open_replacement(check_file_path(path, "drawing", "mesh.svg")) as file:
                file.write(text.encode())
        return text

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.to_svg()}</div>'

    def __str__(self) -> str:
        lines = [self._format_title(), "", *(f"  {note}" for note in self._format_axis_rows())]
        if self.devices:
            format_devices = _format_grids if len(self.devices) <= _MAX_DEVICES else _format_processes
            lines += ["", *format_devices(self.axes, self.devices)]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _format_title(self) -> str:
        sizes = ", ".join(f"{escape_unprintable(axis.name)}: {axis.size}" for axis in self.axes)
        if not self.devices:
            return f"abstract mesh ({sizes}) for {_format_plural(self.size, 'device', 'devices')}"
        kinds = [escape_unprintable(kind) for kind in self.device_kinds if kind not in self.platforms]
        many = [f"{escape_unprintable(' and '.join(self.platforms))} {word}" for word in ("device", "devices")]
        parts = [
            _format_plural(self.size, *many) + (f" ({', '.join(kinds)})" if kinds else ""),
            _format_plural(len(self.processes), "process", "processes"),
            *([_format_plural(len(self.slices), "slice", "slices")] if len(self.slices) > 1 else []),
        ]
        return f"mesh ({sizes}): {', '.join(parts)}"

    def _format_axis_rows(self) -> list[str]:
        if not self.axes:
            return []
        rows = [(escape_unprintable(axis.name), f"{axis.size:,}", axis.type.name, axis.reach) for axis in self.axes]
        names, sizes, types = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:3])
        return [f"{name:<{names}}  {size:>{sizes}}  {kind:<{types}}  {reach}" for name, size, kind, reach in rows]


def describe_mesh(mesh: Mesh | AbstractMesh | None = None) -> MeshDescription:
    r"""Describes a mesh: where each device is, and whether communication along each axis stays within a process.

    Args:
        mesh: The mesh, with devices or without; the active mesh if None.

    Returns:
        A description. `print` shows it as text: up to 64 devices one by one, more of them by process. In a notebook it
        is a drawing, which `to_svg` writes to a file.

    Raises:
        TypeError: `mesh` is not a mesh.
        ValueError: The mesh is empty, or `mesh` is None and no mesh is active.

    Example:
        >>> import axonym as nym
        >>> print(nym.describe_mesh(nym.create_mesh((2, 4), ("data", "model"))))
        mesh (data: 2, model: 4): 8 cpu devices, 1 process
        <BLANKLINE>
          data   2  Auto  within a process
          model  4  Auto  within a process
        <BLANKLINE>
        data \ model | 0  1  2  3
        -------------+-----------
                   0 | 0  1  2  3
                   1 | 4  5  6  7
    """
    described_mesh: object = mesh
    if mesh is None:
        described_mesh = jax.sharding.get_abstract_mesh()
        if not is_tracing() and jax.sharding.get_mesh().abstract_mesh == described_mesh:
            described_mesh = jax.sharding.get_mesh()  # with its devices
    if not isinstance(described_mesh, (Mesh, AbstractMesh)):
        raise TypeError(
            f"`describe_mesh` takes a mesh, not a {type(described_mesh).__name__}; make one with `create_mesh`"
        )
    if described_mesh.empty:
        raise ValueError("`describe_mesh` has no mesh to describe; pass one, or set one with `set_mesh(mesh)`")
    devices: list[MeshDevice] = []
    if isinstance(described_mesh, Mesh):
        for place, device in np.ndenumerate(described_mesh.devices):
            slice_index = getattr(device, "slice_index", None) or 0  # only some platforms have slices
            index = tuple(map(int, place))
            devices.append(
                MeshDevice(device.id, device.process_index, slice_index, device.platform, device.device_kind, index)
            )
    return MeshDescription(tuple(_describe_axes(described_mesh, devices)), tuple(devices))


def _format_grids(axes: tuple[MeshAxis, ...], devices: tuple[MeshDevice, ...]) -> Iterator[str]:
    """Yields the lines of a text with a cell for each device, in grids of two axes."""
    processes = {device.process for device in devices}
    slices = {device.slice for device in devices}
    id_width = max(len(str(device.id)) for device in devices)
    for number, grid in enumerate(_split_into_grids(axes, devices)):
        if number:
            yield ""
        if grid.heading:
            yield f"{grid.heading}:"
        texts = [
            [" ".join([f"{device.id:>{id_width}}", *_list_indices(device, processes, slices)]) for device in row]
            for row in grid.cells
        ]
        yield from _format_grid(texts, _get_grid_names(axes))
    legend = ["device id"]
    if len(processes) > 1:
        legend.append("p: process")
    if len(slices) > 1:
        legend.append("s: slice")
    if len(legend) > 1:
        yield ""
        yield f"(in each cell: {', '.join(legend)})"


def _format_grid(texts: list[list[str]], names: tuple[str, str]) -> Iterator[str]:
    """Yields the lines of a grid of texts, in several parts if its rows are too long."""
    rows, columns = len(texts), len(texts[0])
    labels = [str(i) if names[0] else "" for i in range(rows)]
    corner = " \\ ".join(filter(None, names))
    label_width = max(len(corner), *map(len, labels))
    width = max(len(str(columns - 1)), *(len(text) for row in texts for text in row))
    step = max(1, (_LINE_LENGTH - label_width - 1) // (width + 2))
    step = columns if step >= columns else 2 ** (step.bit_length() - 1)  # a power of two, as most mesh axes are
    for start in range(0, columns, step):
        part = range(start, min(start + step, columns))
        head = "  ".join(f"{i:>{width}}" for i in part)
        if start:
            yield ""
        if names[1]:
            yield f"{corner:>{label_width}} | {head}"
            yield f"{'-' * label_width}-+{'-' * (len(head) + 1)}"
        for label, row in zip(labels, texts, strict=True):
            yield f"{label:>{label_width}} | " + "  ".join(f"{row[i]:>{width}}" for i in part)


def _format_processes(axes: tuple[MeshAxis, ...], devices: tuple[MeshDevice, ...]) -> Iterator[str]:
    """Yields a line for each process: its part of the mesh and its devices."""
    ordered = sorted(devices, key=lambda device: device.process)
    groups = {key: list(group) for key, group in itertools.groupby(ordered, lambda device: device.process)}
    shown_processes = list(groups)
    if len(shown_processes) > _FIRST_PROCESSES + _LAST_PROCESSES + 1:
        shown_processes = [*shown_processes[:_FIRST_PROCESSES], *shown_processes[-_LAST_PROCESSES:]]
    shows_slices = len({device.slice for device in devices}) > 1
    rows = [_format_process_row(axes, process, groups[process], shows_slices) for process in shown_processes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        if number == _FIRST_PROCESSES and len(shown_processes) < len(groups):
            yield f"... {_format_plural(len(groups) - len(shown_processes), 'more process', 'more processes')} ..."
        yield "  ".join(f"{part:<{width}}" for part, width in zip(row, widths, strict=True))


def _format_process_row(
    axes: tuple[MeshAxis, ...], process: int, devices: list[MeshDevice], shows_slices: bool
) -> list[str]:
    """Returns the indices of a process along each axis, if they are a block of the mesh, and its device ids."""
    indices = [{device.place[axis] for device in devices} for axis in range(len(axes))]
    is_block = prod(map(len, indices)) == len(devices)
    ranges: list[str] = []
    for axis in _find_long_axes(axes):
        ranges.append(f"{escape_unprintable(axes[axis].name)} {_format_ranges(sorted(indices[axis]))}")
    if not is_block:
        ranges[0] = f"within {ranges[0]}"
    row = [f"process {process}"]
    if shows_slices:
        row.append(f"slice {_format_ranges([device.slice for device in devices])}")
    return [*row, *ranges, f"ids {_format_ranges([device.id for device in devices])}"]
