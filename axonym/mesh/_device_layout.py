"""What is where in a mesh: the facts that a description of it is made of, and how they are laid out on a page.

A mesh of any number of axes is shown as blocks of two: its last two axes longer than 1 are the rows and columns, and
there is a block for each place along the others.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh


@dataclasses.dataclass(frozen=True)
class MeshAxis:
    """A mesh axis, and what lies between the devices along it.

    Attributes:
        name: Its name.
        size: How many devices there are along it.
        type: Its axis type.
        processes: How many processes a line of devices along it goes through, at most; 0 where the mesh has no devices.
        slices: How many slices it goes through, likewise.
        reach: Both in words, such as `across 2 slices`; empty where the mesh has no devices.
    """

    name: str
    size: int
    type: AxisType
    processes: int
    slices: int
    reach: str


@dataclasses.dataclass(frozen=True)
class MeshDevice:
    """A device, and where it is.

    Attributes:
        id: Its number, as JAX gives it.
        process: The index of the process that it belongs to.
        slice: The index of the slice that it is in, 0 where the platform knows no slices.
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
class Block:
    """Two axes' worth of a mesh: the devices at one place along all other axes; None stands for an unknown one."""

    heading: str
    cells: np.ndarray


def mesh_devices(mesh: Mesh) -> tuple[MeshDevice, ...]:
    """Returns the devices of a mesh, in the order of the mesh."""
    return tuple(
        MeshDevice(
            device.id,
            device.process_index,
            _slice(device),
            device.platform,
            device.device_kind,
            tuple(map(int, place)),
        )
        for place, device in np.ndenumerate(mesh.devices)
    )


def _slice(device: Any) -> int:
    index = getattr(device, "slice_index", None)
    return 0 if index is None else index


def mesh_axes(mesh: Mesh | AbstractMesh, devices: Sequence[MeshDevice]) -> tuple[MeshAxis, ...]:
    """Returns the axes of a mesh, with what they cross if there are devices."""
    sizes = tuple(mesh.shape.values())
    found = []
    for axis, (name, size) in enumerate(mesh.shape.items()):
        processes = _met([device.process for device in devices], sizes, axis)
        slices = _met([device.slice for device in devices], sizes, axis)
        reach = _reach(size, processes, slices, len({device.slice for device in devices})) if devices else ""
        found.append(MeshAxis(str(name), size, mesh.axis_types[axis], max(processes), max(slices), reach))
    return tuple(found)


def _met(indices: Sequence[int], sizes: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Returns how many different indices a line along an axis meets, at least and at most."""
    if not indices:
        return (0, 0)
    lines = np.sort(np.moveaxis(np.reshape(indices, sizes), axis, -1), axis=-1)
    different = 1 + (np.diff(lines, axis=-1) != 0).sum(axis=-1)
    return int(different.min()), int(different.max())


def _reach(size: int, processes: tuple[int, int], slices: tuple[int, int], all_slices: int) -> str:
    if size == 1:
        return "one device"
    if max(slices) > 1:
        more = f", {_counted(processes, 'processes')}" if processes != slices else ""
        return f"across {_counted(slices, 'slices')}{more}"
    if max(processes) > 1:
        return f"across {_counted(processes, 'processes')}{' of a slice' if all_slices > 1 else ''}"
    return "within a process"


def _counted(met: tuple[int, int], what: str) -> str:
    return f"{met[1]:,} {what}" if met[0] == met[1] else f"up to {met[1]:,} {what}"


def long_axes(axes: Sequence[MeshAxis]) -> list[int]:
    """Returns which axes are longer than 1, and so have to be shown."""
    return [at for at, axis in enumerate(axes) if axis.size > 1]


def names_shown(axes: Sequence[MeshAxis]) -> tuple[str, str]:
    """Returns the names of the axes along the rows and the columns of each block, empty where there is none."""
    names = ["", "", *(printable(axes[at].name) for at in long_axes(axes))]
    return names[-2], names[-1]


def printable(text: str) -> str:
    """Writes what cannot be shown in one line, or not in XML at all, as an escape, as in a literal of Python."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def blocks(axes: Sequence[MeshAxis], devices: Sequence[MeshDevice]) -> Iterator[Block]:
    """Yields the blocks of a mesh, in order."""
    shown = long_axes(axes)
    others, (rows, columns) = shown[:-2], [1, 1, *(axes[at].size for at in shown)][-2:]
    cells = np.empty(prod(axis.size for axis in axes), dtype=object)
    cells[: len(devices)] = devices
    outer = tuple(axes[at].size for at in others)
    for place, block in zip(np.ndindex(outer), cells.reshape((-1, rows, columns)), strict=True):
        yield Block(", ".join(f"{printable(axes[at].name)} {i}" for at, i in zip(others, place, strict=True)), block)


def ranges(numbers: Sequence[int], most: int = 3) -> str:
    """Writes numbers in order as `0-3, 8-11`, and no more than so many ranges of them."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    return ", ".join(shown if len(shown) <= most else [*shown[: most - 1], "...", shown[-1]])


def plural(number: int, one: str, many: str) -> str:
    """Writes a number of things, as in `1 process` and `1,024 devices`."""
    return f"{number:,} {one if number == 1 else many}"
