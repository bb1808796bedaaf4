"""`describe_mesh`: where each device is, and what communication along each axis crosses, as text.

The text has grids of two axes: the last two axes longer than 1 are the rows and columns, and there is a grid for each
index along the others.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from math import prod

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from .._ground.jax_compat import is_tracing


_MAX_DEVICES = 64  # shown one by one; of more devices, the processes are shown
_LINE_LENGTH = 100  # characters
_FIRST_PROCESSES, _LAST_PROCESSES = 8, 2  # shown where there are more


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
    """Escapes characters that a line of text cannot contain, as in a Python literal."""
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


def _format_plural(number: int, singular: str, plural: str) -> str:
    """Writes a number with its noun, as in `1 process` and `1,024 devices`."""
    return f"{number:,} {singular if number == 1 else plural}"


def _list_indices(device: MeshDevice, processes: Collection[int], slices: Collection[int]) -> list[str]:
    """Returns the second line of a cell: process and slice, where there are several."""
    texts: list[str] = []
    if len(processes) > 1:
        texts.append(f"p{device.process}")
    if len(slices) > 1:
        texts.append(f"s{device.slice}")
    return texts


@dataclasses.dataclass(frozen=True, repr=False)
class MeshDescription:
    """The description that [`describe_mesh`][axonym.describe_mesh] returns; `print` shows it as text.

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
        A description. `print` shows it as text: up to 64 devices one by one, more of them by process.

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
