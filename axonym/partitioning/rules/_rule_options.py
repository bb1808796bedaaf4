"""What rules are given: their mesh, names of its axes and numbers, checked, and shown and pickled with the rule."""

import dataclasses
import functools
import math
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from ...named._axis import format_value
from ..specs._resolve_spec import MeshLike, get_abstract_mesh, resolve_mesh
from ..specs._spec_problems import format_mesh
from ._sharding_rule import applied_mesh, check_mesh_axes, parse_axis_names


class OnAMesh:
    """What frozen dataclasses with a field `mesh` have in common: a short repr, and pickles with the mesh in them."""

    mesh: Any

    def __repr__(self) -> str:
        """Shows what differs from the defaults."""
        fields = [field for field in dataclasses.fields(self) if field.init]  # pyright: ignore[reportArgumentType]
        given = [(field, getattr(self, field.name)) for field in fields]
        return f"{type(self).__name__}({', '.join(_shown(*one) for one in given if one[1] != one[0].default)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the options; of a mesh with devices their numbers, as devices are of one process."""
        return functools.partial(_rebuilt, type(self), **self._given_options()), (_portable(self.mesh),)

    def _given_options(self) -> dict[str, Any]:
        """Returns what the object is made from, besides its mesh."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return {field.name: getattr(self, field.name) for field in fields if field.name != "mesh"}

    def _mesh_here(self) -> MeshLike:
        """Returns the mesh of the rule or, if it has none, the one it is applied with; in `shard_map` what is there.

        Raises:
            ValueError: If the rule is applied with a mesh of other axes or sizes than its own, or there is none.
        """
        mesh, applied = self.mesh, applied_mesh()
        here = get_abstract_mesh() if applied is None else applied
        if mesh is not None and applied is not None and applied.shape != mesh.shape:
            raise ValueError(
                f"the rule `{type(self).__name__}` was made for mesh {format_mesh(mesh)}, the mesh here is "
                f"{format_mesh(applied)}; leave out its `mesh`"
            )
        if mesh is not None and here is not None and AxisType.Manual in here.axis_types and here.shape == mesh.shape:
            return here
        return resolve_mesh(applied if mesh is None else mesh, f"`{type(self).__name__}`")

    def _keep(self, **options: Any) -> Self:
        """Sets fields while the object is made."""
        for name, value in options.items():
            object.__setattr__(self, name, value)
        return self


def _shown(field: dataclasses.Field[Any], value: Any) -> str:
    return f"{field.name}={value!r}"


def _portable(mesh: MeshLike | None) -> Any:
    """Returns what a mesh is made from in another process."""
    if not isinstance(mesh, Mesh):
        return mesh
    numbers = tuple((device.platform, device.id) for device in mesh.devices.flat)
    return mesh.devices.shape, mesh.axis_names, mesh.axis_types, numbers


def _rebuilt(cls: type, mesh: Any, **options: Any) -> Any:
    """Returns the object of a pickle, with the devices of the same numbers.

    Raises:
        ValueError: If one of the devices is not there.
    """
    return cls(mesh=_mesh_of(mesh) if isinstance(mesh, tuple) else mesh, **options)


def _mesh_of(made_from: tuple[Any, ...]) -> Mesh:
    sizes, names, types, numbers = made_from
    here = {
        (device.platform, device.id): device for kind in sorted({one for one, _ in numbers}) for device in _all_of(kind)
    }
    absent = [number for number in numbers if number not in here]
    if absent:
        kind, number = absent[0]
        raise ValueError(
            f"this pickle has a mesh with device {number} of platform {kind!r}, which is not here; pickle what has no "
            "mesh, or an abstract one"
        )
    devices = np.empty(math.prod(sizes), object)
    devices[:] = [here[number] for number in numbers]
    return Mesh(devices.reshape(sizes), names, axis_types=types)


def _all_of(platform: str) -> list[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError:
        return []


def checked_mesh(mesh: Any) -> MeshLike | None:
    """Returns the mesh that a rule is given, or None.

    Raises:
        TypeError: If it is something else.
    """
    if mesh is None or isinstance(mesh, Mesh | AbstractMesh):
        return mesh
    raise TypeError(f"`mesh` is a mesh, as `axonym.create_mesh` makes it, not {format_value(mesh)}.")


def checked_names(names: Any, mesh: MeshLike | None, what: str) -> tuple[str, ...]:
    """Returns a list of names of mesh axes as a tuple.

    Raises:
        TypeError: If it is no list of names.
        ValueError: If a name is there twice, or the mesh lacks one.
    """
    if isinstance(names, str):
        raise TypeError(f"`{what}` is a list of names of mesh axes, not one name; write [{names!r}].")
    wrong = [name for name in names if not isinstance(name, str)] if isinstance(names, list | tuple) else [names]
    if wrong:
        raise TypeError(f"`{what}` is a list of names of mesh axes; {format_value(wrong[0])} is none.")
    names = parse_axis_names(names, what)
    if mesh is not None:
        check_mesh_axes(mesh, names)
    return names


def whole_number(number: Any, what: str, least: int = 0) -> int:
    """Returns a number as a Python integer.

    Raises:
        TypeError: If it is no number, or a bool.
        ValueError: If it is less than it may be, or not whole.
    """
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | float | np.integer | np.floating):
        raise TypeError(f"`{what}` is a whole number, {least} or more, not {format_value(number)}.")
    if not math.isfinite(number) or number != int(number) or number < least:
        raise ValueError(f"`{what}` is a whole number, {least} or more, not {format_value(number)}")
    return int(number)
