"""`describe_mesh`: where each device is, and what communication along each axis crosses, as text or drawing."""

import dataclasses
import itertools
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from .._atomic_file import check_file_path, open_replacement
from .._jax_compat import is_tracing
from ._device_grid import (
    DeviceGrid,
    MeshAxis,
    MeshDevice,
    escape_unprintable,
    find_long_axes,
    format_plural,
    format_ranges,
    get_grid_names,
    list_mesh_axes,
    list_mesh_devices,
    split_into_grids,
)
from ._mesh_svg import draw_mesh


_MOST_DEVICES, _WIDTH = 64, 100  # devices that are shown one by one, characters per line
_FIRST, _LAST = 8, 2  # processes that are shown where there are more


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
        text = draw_mesh(self.axes, self.devices, self._format_title(), self._format_axis_rows())
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
            format_devices = _format_grids if len(self.devices) <= _MOST_DEVICES else _format_processes
            lines += ["", *format_devices(self.axes, self.devices)]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _format_title(self) -> str:
        sizes = ", ".join(f"{escape_unprintable(axis.name)}: {axis.size}" for axis in self.axes)
        if not self.devices:
            return f"abstract mesh ({sizes}) for {format_plural(self.size, 'device', 'devices')}"
        kinds = [escape_unprintable(kind) for kind in self.device_kinds if kind not in self.platforms]
        many = [f"{escape_unprintable(' and '.join(self.platforms))} {word}" for word in ("device", "devices")]
        parts = [
            format_plural(self.size, *many) + (f" ({', '.join(kinds)})" if kinds else ""),
            format_plural(len(self.processes), "process", "processes"),
            *([format_plural(len(self.slices), "slice", "slices")] if len(self.slices) > 1 else []),
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
    chosen = _find_current_mesh() if mesh is None else mesh
    if not isinstance(chosen, (Mesh, AbstractMesh)):
        raise TypeError(f"`describe_mesh` takes a mesh, not a {type(chosen).__name__}; make one with `create_mesh`")
    if chosen.empty:
        raise ValueError("`describe_mesh` has no mesh to describe; pass one, or set one with `set_mesh(mesh)`")
    devices = list_mesh_devices(chosen) if isinstance(chosen, Mesh) else ()
    return MeshDescription(list_mesh_axes(chosen, devices), devices)


def _find_current_mesh() -> Mesh | AbstractMesh:
    """Returns the active mesh, with its devices unless a function is being traced."""
    abstract = jax.sharding.get_abstract_mesh()
    mesh = None if is_tracing() else jax.sharding.get_mesh()
    return mesh if mesh is not None and mesh.abstract_mesh == abstract else abstract


def _format_grids(axes: tuple[MeshAxis, ...], devices: tuple[MeshDevice, ...]) -> Iterator[str]:
    """Yields the lines of a text with a cell for each device, in grids of two axes."""
    several = [len({value(device) for device in devices}) > 1 for value in (lambda d: d.process, lambda d: d.slice)]
    ids = max(len(str(device.id)) for device in devices)

    def cell(device: MeshDevice) -> str:
        own = f"p{device.process}" * several[0], f"s{device.slice}" * several[1]
        return " ".join([f"{device.id:>{ids}}", *filter(None, own)])

    for at, grid in enumerate(split_into_grids(axes, devices)):
        yield from [""] if at else []
        yield from [f"{grid.heading}:"] if grid.heading else []
        yield from _format_grid(grid, get_grid_names(axes), cell)
    if any(several):
        parts = ["device id", *["p: process"] * several[0], *["s: slice"] * several[1]]
        yield ""
        yield f"(in each cell: {', '.join(parts)})"


def _format_grid(grid: DeviceGrid, names: tuple[str, str], cell: Any) -> Iterator[str]:
    """Yields the lines of one grid, in several parts if its rows are too long."""
    rows, columns = grid.cells.shape
    texts = [[cell(device) for device in row] for row in grid.cells]
    labels = [str(i) if names[0] else "" for i in range(rows)]
    corner = " \\ ".join(filter(None, names))
    left = max(len(corner), *map(len, labels))
    width = max(len(str(columns - 1)), *(len(text) for row in texts for text in row))
    step = max(1, (_WIDTH - left - 1) // (width + 2))
    step = columns if step >= columns else 2 ** (step.bit_length() - 1)
    for start in range(0, columns, step):
        here = range(start, min(start + step, columns))
        head = "  ".join(f"{i:>{width}}" for i in here)
        yield from [""] if start else []
        if names[1]:
            yield f"{corner:>{left}} | {head}"
            yield f"{'-' * left}-+{'-' * (len(head) + 1)}"
        for label, row in zip(labels, texts, strict=True):
            yield f"{label:>{left}} | " + "  ".join(f"{row[i]:>{width}}" for i in here)


def _format_processes(axes: tuple[MeshAxis, ...], devices: tuple[MeshDevice, ...]) -> Iterator[str]:
    """Yields a line for each process: its part of the mesh and its devices."""
    ordered = sorted(devices, key=lambda device: device.process)
    groups = {key: list(group) for key, group in itertools.groupby(ordered, lambda device: device.process)}
    shown = list(groups)
    if len(shown) > _FIRST + _LAST + 1:
        shown = [*shown[:_FIRST], *shown[-_LAST:]]
    several = len({device.slice for device in devices}) > 1
    rows = [_format_process_row(axes, process, groups[process], several) for process in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, row in enumerate(rows):
        if at == _FIRST and len(shown) < len(groups):
            yield f"... {format_plural(len(groups) - len(shown), 'more process', 'more processes')} ..."
        yield "  ".join(f"{part:<{width}}" for part, width in zip(row, widths, strict=True))


def _format_process_row(axes: tuple[MeshAxis, ...], process: int, held: list[MeshDevice], several: bool) -> list[str]:
    """Returns the indices of a process along each axis, if they are a block of the mesh, and its device ids."""
    indices = [{device.place[at] for device in held} for at in range(len(axes))]
    is_block = prod(map(len, indices)) == len(held)
    parts = [f"{escape_unprintable(axes[at].name)} {format_ranges(sorted(indices[at]))}" for at in find_long_axes(axes)]
    return [
        f"process {process}",
        *([f"slice {format_ranges([device.slice for device in held])}"] if several else []),
        *(parts if is_block else [f"within {parts[0]}", *parts[1:]]),
        f"ids {format_ranges([device.id for device in held])}",
    ]
