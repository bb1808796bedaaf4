"""The axes and devices of a mesh as `describe_mesh` shows them: as grids of two axes.

The last two axes longer than 1 are the rows and columns, and there is a grid for each index along the others.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh


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


def list_mesh_devices(mesh: Mesh) -> tuple[MeshDevice, ...]:
    return tuple(
        MeshDevice(
            device.id,
            device.process_index,
            getattr(device, "slice_index", None) or 0,
            device.platform,
            device.device_kind,
            tuple(map(int, place)),
        )
        for place, device in np.ndenumerate(mesh.devices)
    )


def list_mesh_axes(mesh: Mesh | AbstractMesh, devices: Sequence[MeshDevice]) -> tuple[MeshAxis, ...]:
    """Returns the axes of a mesh, with what they cross if it has devices."""
    sizes = tuple(mesh.shape.values())
    all_slices = len({device.slice for device in devices})
    axes = []
    for axis, (name, size) in enumerate(mesh.shape.items()):
        processes = _count_along_axis([device.process for device in devices], sizes, axis)
        slices = _count_along_axis([device.slice for device in devices], sizes, axis)
        reach = _format_reach(size, processes, slices, all_slices) if devices else ""
        axes.append(MeshAxis(str(name), size, mesh.axis_types[axis], max(processes), max(slices), reach))
    return tuple(axes)


def _count_along_axis(indices: Sequence[int], sizes: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Returns how many different indices there are along an axis, at least and at most."""
    if not indices:
        return (0, 0)
    lines = np.sort(np.moveaxis(np.reshape(indices, sizes), axis, -1), axis=-1)
    different = 1 + (np.diff(lines, axis=-1) != 0).sum(axis=-1)
    return int(different.min()), int(different.max())


def _format_reach(size: int, processes: tuple[int, int], slices: tuple[int, int], all_slices: int) -> str:
    if size == 1:
        return "one device"
    if max(slices) > 1:
        more = f", {_format_count_range(processes, 'processes')}" if processes != slices else ""
        return f"across {_format_count_range(slices, 'slices')}{more}"
    if max(processes) > 1:
        return f"across {_format_count_range(processes, 'processes')}{' of a slice' if all_slices > 1 else ''}"
    return "within a process"


def _format_count_range(counts: tuple[int, int], noun: str) -> str:
    return f"{counts[1]:,} {noun}" if counts[0] == counts[1] else f"up to {counts[1]:,} {noun}"


def find_long_axes(axes: Sequence[MeshAxis]) -> list[int]:
    """Returns which axes are longer than 1; the others are not shown."""
    return [i for i, axis in enumerate(axes) if axis.size > 1]


def get_grid_names(axes: Sequence[MeshAxis]) -> tuple[str, str]:
    """Returns the names of the axes along the rows and the columns of each grid, "" where there is none."""
    names = ["", "", *(escape_unprintable(axes[i].name) for i in find_long_axes(axes))]
    return names[-2], names[-1]


def escape_unprintable(text: str) -> str:
    """Escapes characters that a line of text or XML cannot contain, as in a Python literal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def split_into_grids(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice]) -> Iterator[DeviceGrid]:
    shown = find_long_axes(axes)
    outer, (rows, columns) = shown[:-2], [1, 1, *(axes[i].size for i in shown)][-2:]
    cells = np.empty(prod(axis.size for axis in axes), dtype=object)
    cells[: len(devices)] = devices
    places = np.ndindex(tuple(axes[i].size for i in outer))
    for place, grid in zip(places, cells.reshape((-1, rows, columns)), strict=True):
        names = [escape_unprintable(axes[i].name) for i in outer]
        yield DeviceGrid(", ".join(f"{name} {index}" for name, index in zip(names, place, strict=True)), grid)


def format_ranges(numbers: Sequence[int], most: int = 3) -> str:
    """Writes numbers as ranges, `0-3, 8-11`, leaving out some if there are more than `most`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(texts if len(texts) <= most else [*texts[: most - 1], "...", texts[-1]])


def pick_shown(number: int, most: int) -> list[int | None]:
    """Returns which of so many things are shown, with None in place of the others."""
    return [*range(number)] if number <= most else [*range(most - 2), None, number - 1]


def format_plural(number: int, one: str, many: str) -> str:
    """Writes a number with its noun, as in `1 process` and `1,024 devices`."""
    return f"{number:,} {one if number == 1 else many}"
