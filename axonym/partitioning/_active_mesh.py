"""The active mesh and its axes."""

from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from .._ground.errors import make_error
from .._ground.formats import format_value, suggest_name
from .._ground.jax_compat import is_tracing
from ..named._axis_layout import (
    MeshLike as MeshLike,
    format_mesh as format_mesh,
    format_mesh_types as format_mesh_types,
)


def get_abstract_mesh() -> AbstractMesh | None:
    """Returns the active mesh without its devices, inside and outside of traced functions; None if there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def get_active_mesh() -> MeshLike | None:
    """Returns the active mesh, with its devices outside of traced functions; None if there is none."""
    mesh = get_abstract_mesh()
    if mesh is None or is_tracing():
        return mesh
    # Within `jax.sharding.use_abstract_mesh`, `get_mesh` still returns the mesh that was set before.
    concrete = jax.sharding.get_mesh()
    return concrete if concrete.abstract_mesh == mesh else mesh


def require_mesh(purpose: str, remedy: str = "set one with `jax.set_mesh(mesh)`") -> MeshLike:
    mesh = get_active_mesh()
    if mesh is None:
        raise make_error(ValueError, f"{purpose} needs a mesh; {remedy}")
    return mesh


def check_mesh(mesh: Any) -> MeshLike | None:
    """Returns the mesh that is given, or None; raises a TypeError if it is something else."""
    if mesh is None or isinstance(mesh, Mesh | AbstractMesh):
        return mesh
    raise make_error(TypeError, f"`mesh` is a mesh, such as `axonym.create_mesh` returns, not {format_value(mesh)}.")


def resolve_mesh(mesh: MeshLike | None, purpose: str) -> MeshLike:
    """Returns the given mesh, or the active mesh if it is None; raises a ValueError if there is neither."""
    check_mesh(mesh)
    if mesh is None:
        return require_mesh(purpose, "set one with `jax.set_mesh(mesh)` or pass `mesh=`")
    return mesh


def is_manual_axis(mesh: MeshLike | None, axis: str) -> bool:
    """Returns whether a mesh axis is Manual, as inside `shard_map`."""
    return mesh is not None and mesh.axis_types[mesh.axis_names.index(axis)] == AxisType.Manual


def describe_mixed_types(where: str, axes: Iterable[str], mesh: MeshLike | None) -> str | None:
    """Returns the message for an axis that is sharded over Auto and Explicit mesh axes, None if it is not.

    In compiled functions JAX keeps only the Explicit ones, or puts them first.
    """
    axis_types = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    axes_on_mesh = [axis for axis in axes if axis in axis_types]
    if len({axis_types[axis] for axis in axes_on_mesh}) < 2:
        return None
    mixed_axes = " and ".join(f"{axis!r} ({axis_types[axis].name})" for axis in axes_on_mesh)
    return (
        f"{where} is sharded over mesh axes {mixed_axes}, a mix that JAX does not keep in compiled functions; use "
        "mesh axes of one type for it, or make both of the same type by `axis_types`"
    )


def check_mesh_axes(mesh: MeshLike, names: Iterable[str]) -> None:
    """Checks that a mesh has these axes; raises a ValueError if it lacks one of them."""
    for name in names:
        if name not in mesh.axis_names:
            raise make_error(ValueError, f"no mesh axis {name!r} in {format_mesh(mesh)}{suggest_mesh_axis(name, mesh)}")


def suggest_mesh_axis(name: str, mesh: MeshLike) -> str:
    """Returns the end of an error message that names the closest axis of a mesh, or nothing."""
    return suggest_name(name, [axis for axis in mesh.axis_names if isinstance(axis, str)])
