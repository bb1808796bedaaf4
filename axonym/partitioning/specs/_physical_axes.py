"""Specs, shardings and mesh axes of single axes: `pspec_for_axis`, `physical_axis_size` and the like."""

import math

from jax.sharding import NamedSharding, PartitionSpec as P

from ...named._axis import Axis, AxisSelection, AxisSelector, Names, axis_name, parse_selection
from ...named._axis_layout import round_up
from ...named._traceback import strip_library_frames
from ..mapping._mapping import PhysicalAxisSpec, ResourceMapping, as_mapping
from ._active_mesh import MeshLike, get_abstract_mesh, resolve_mesh
from ._resolve_spec import check_mapped_axes, find_mapping, resolve_sharding, resolve_spec


def pspec_for_axis(axis: AxisSelection, mapping: ResourceMapping | None = None) -> P:
    """Returns the `PartitionSpec` of an array with these axes.

    Args:
        axis: One axis or several, by name or as `Axis`; sizes are checked where they are given and a mesh is set.
        mapping: The mapping; the active mapping if None. Without either, nothing is sharded.

    Returns:
        A spec with one entry for each axis.

    Raises:
        ValueError: If a mesh axis is unknown or used twice, or a size is not divisible.

    Example:
        >>> import axonym as nym
        >>> nym.pspec_for_axis(("batch", "embed"), {"batch": "data"})
        P('data', None)
    """
    return resolve_spec(*_parse_axes(axis), find_mapping(mapping), get_abstract_mesh())


def sharding_for_axis(
    axis: AxisSelection, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> NamedSharding:
    """Returns the sharding of an array with these axes.

    Args:
        axis: One axis or several, by name or as `Axis`.
        mapping: The mapping; the active mapping if None. Without either, nothing is sharded.
        mesh: The mesh, abstract or with devices; the active mesh if None.

    Returns:
        A sharding over the mesh, with one entry for each axis.

    Raises:
        ValueError: If there is no mesh, a mesh axis is unknown or used twice, or a size is not divisible.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> nym.sharding_for_axis(nym.Axis("batch", 8), {"batch": "data"}, mesh).shard_shape((8,))
        (2,)
    """
    mesh = resolve_mesh(mesh, "`sharding_for_axis`")
    return resolve_sharding(*_parse_axes(axis), find_mapping(mapping), mesh)


def physical_axis_name(axis: AxisSelector, mapping: ResourceMapping | None = None) -> PhysicalAxisSpec | None:
    """Returns the mesh axis that an axis is mapped to, a tuple if there are several, None if it is not mapped.

    Args:
        axis: The axis, by name or as `Axis`.
        mapping: The mapping; the active mapping if None. Without either, nothing is sharded.

    Example:
        >>> import axonym as nym
        >>> nym.physical_axis_name("batch", {"batch": ("data", "replica")})
        ('data', 'replica')
    """
    found = as_mapping(mapping)
    return None if found is None else found.get(axis_name(axis))


def physical_axis_size(
    axis: AxisSelector, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> int | None:
    """Returns the number of parts an axis is sharded into, None if it is not mapped.

    Args:
        axis: The axis, by name or as `Axis`.
        mapping: The mapping; the active mapping if None. Without either, nothing is sharded.
        mesh: The mesh, abstract or with devices; the active mesh if None.

    Returns:
        The product of the sizes of its mesh axes, whatever the size of the axis.

    Raises:
        ValueError: If the axis is mapped and there is no mesh, or the mesh lacks one of its mesh axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     nym.physical_axis_size("batch", {"batch": ("data", "model")})
        8
    """
    found, name = as_mapping(mapping), axis_name(axis)
    axes = () if found is None else found.mesh_axes(name)
    if not axes:
        return None
    mesh = resolve_mesh(mesh, "`physical_axis_size`")
    check_mapped_axes(name, axes, mesh, (name,), (None,))
    return math.prod(mesh.shape[one] for one in axes)


def round_axis_for_partitioning(
    axis: Axis, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> Axis:
    """Returns the axis with its size rounded up to a multiple of its number of parts.

    Args:
        axis: The axis.
        mapping: The mapping; the active mapping if None. Without either, nothing is sharded.
        mesh: The mesh, abstract or with devices; the active mesh if None.

    Returns:
        The axis itself if it is not mapped or its size fits.

    Raises:
        TypeError: If the axis is given by its name alone.
        ValueError: If the axis is mapped and there is no mesh, or the mesh lacks one of its mesh axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     nym.round_axis_for_partitioning(nym.Axis("vocab", 10), {"vocab": "data"})
        Axis(name='vocab', size=12)
    """
    parts = physical_axis_size(axis, mapping, mesh)
    if not isinstance(axis, Axis):
        raise strip_library_frames(
            TypeError(f"`round_axis_for_partitioning` needs a size: give `Axis({axis!r}, size)` instead of {axis!r}.")
        )
    return axis if parts is None or axis.size % parts == 0 else axis.resize(round_up(axis.size, parts))


def _parse_axes(axis: AxisSelection) -> tuple[Names, tuple[int | None, ...]]:
    """Returns the names and sizes of selected axes, None for sizes that are not given."""
    chosen = parse_selection(axis)
    return tuple(map(axis_name, chosen)), tuple(one.size if isinstance(one, Axis) else None for one in chosen)
