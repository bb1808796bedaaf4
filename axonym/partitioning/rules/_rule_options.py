"""Options of rules: meshes, names of mesh axes and numbers, checked, shown and pickled with the rule."""

import dataclasses
import functools
import math
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from ...named._format import format_value
from ...named._traceback import strip_library_frames
from ..specs._active_mesh import (
    MeshLike,
    check_mesh as check_mesh,
    check_mesh_axes,
    format_mesh,
    get_abstract_mesh,
    resolve_mesh,
)


class HasMesh:
    """Base class of frozen dataclasses with a field `mesh`: a short repr, and pickles that include the mesh."""

    mesh: Any

    def __repr__(self) -> str:
        """Shows the options that differ from the defaults."""
        fields = [field for field in dataclasses.fields(self) if field.init]  # pyright: ignore[reportArgumentType]
        options = [(field, getattr(self, field.name)) for field in fields]
        shown = [f"{field.name}={value!r}" for field, value in options if value != field.default]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the options; of a mesh with devices their ids, as devices belong to one process."""
        return functools.partial(_unpickle, type(self), **self._get_options()), (_pickle_mesh(self.mesh),)

    def _get_options(self) -> dict[str, Any]:
        """Returns the arguments that make the object, except the mesh."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return {field.name: getattr(self, field.name) for field in fields if field.name != "mesh"}

    def _resolve_mesh(self, mesh: MeshLike | None = None) -> MeshLike:
        """Returns the mesh of the rule, of the call, or else the active mesh; inside `shard_map` with its Manual axes.

        Raises a ValueError if there is none, or the rule was made for a mesh of other axes or sizes than the call's.
        """
        own, here = self.mesh, get_abstract_mesh() if mesh is None else mesh
        if own is None:
            return resolve_mesh(mesh, f"`{type(self).__name__}`")
        if mesh is not None and mesh.shape != own.shape:
            raise strip_library_frames(
                ValueError(
                    f"the rule `{type(self).__name__}` was made for mesh {format_mesh(own)}, the mesh here is "
                    f"{format_mesh(mesh)}; leave out its `mesh`"
                )
            )
        is_manual = here is not None and AxisType.Manual in here.axis_types and here.shape == own.shape
        return here if is_manual else own  # pyright: ignore[reportReturnType]

    def _set_options(self, **options: Any) -> Self:
        """Sets fields while the object is made."""
        for name, value in options.items():
            object.__setattr__(self, name, value)
        return self


def _pickle_mesh(mesh: MeshLike | None) -> Any:
    """Returns the arguments from which `_rebuild_mesh` makes the mesh in another process."""
    if not isinstance(mesh, Mesh):
        return mesh
    ids = tuple((device.platform, device.id) for device in mesh.devices.flat)
    return mesh.devices.shape, mesh.axis_names, mesh.axis_types, ids


def _unpickle(cls: type, mesh: Any, **options: Any) -> Any:
    """Returns the pickled object, with the devices of the same ids."""
    return cls(mesh=_rebuild_mesh(*mesh) if isinstance(mesh, tuple) else mesh, **options)


def _rebuild_mesh(sizes: Any, names: Any, types: Any, ids: tuple[tuple[str, int], ...]) -> Mesh:
    """Returns a mesh of the devices with these ids; raises a ValueError if there is no such device."""
    here = {
        (device.platform, device.id): device for kind in sorted({kind for kind, _ in ids}) for device in _devices(kind)
    }
    for kind, number in ids:
        if (kind, number) not in here:
            raise strip_library_frames(
                ValueError(
                    f"this pickle has a mesh with device {number} of platform {kind!r}, which is not here; pickle a "
                    "rule without a mesh, or with an abstract one"
                )
            )
    devices = np.empty(math.prod(sizes), object)
    devices[:] = [here[one] for one in ids]
    return Mesh(devices.reshape(sizes), names, axis_types=types)


def _devices(platform: str) -> list[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError:
        return []


def parse_axis_names(names: Any, what: str) -> tuple[str, ...]:
    """Returns names of mesh axes, given as one name or several; raises an error if they are not names or repeated."""
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise strip_library_frames(
            TypeError(f"`{what}` is a name of a mesh axis or a list of them, not {format_value(names)}.")
        )
    if len(set(given)) != len(given):
        raise strip_library_frames(ValueError(f"`{what}` is {tuple(given)}, which names a mesh axis twice"))
    return tuple(given)


def check_axis_names(names: Any, mesh: MeshLike | None, what: str) -> tuple[str, ...]:
    """Returns a list of names of mesh axes as a tuple; raises an error if it is not one, or the mesh lacks a name."""
    if isinstance(names, str):
        raise strip_library_frames(
            TypeError(f"`{what}` is a list of names of mesh axes, not one name; write [{names!r}].")
        )
    wrong = [name for name in names if not isinstance(name, str)] if isinstance(names, list | tuple) else [names]
    if wrong:
        raise strip_library_frames(
            TypeError(f"`{what}` is a list of names of mesh axes; {format_value(wrong[0])} is not a name.")
        )
    names = parse_axis_names(names, what)
    if mesh is not None:
        check_mesh_axes(mesh, names)
    return names


def check_integer(number: Any, what: str, least: int = 0) -> int:
    """Returns a number as a Python integer; raises an error if it is not integral, or too small."""
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | float | np.integer | np.floating):
        raise strip_library_frames(
            TypeError(f"`{what}` is an integer of at least {least}, not {format_value(number)}.")
        )
    if not math.isfinite(number) or number != int(number) or number < least:
        raise strip_library_frames(
            ValueError(f"`{what}` is an integer of at least {least}, not {format_value(number)}")
        )
    return int(number)
