"""From names to specs: the single judge of which mesh axes shard an array.

Everything that shards by name asks `resolve_spec`, so that `shard`, `named_jit`, layers and creation functions raise
the same errors, inside and outside jit.
"""

from collections.abc import Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec as P

from ...named._axis import Names, format_axes, suggest_name
from ...named._cache import cached_plan
from ..mapping._mapping import AxisMapping, ResourceMapping, as_mapping
from ..mapping._typos import describe_unknown_mesh_axis, warn_unknown_mesh_axes, warn_unknown_name
from ._active_mesh import MeshLike, is_manual_axis
from ._divisibility import describe_uneven


@cached_plan
def resolve_spec(
    names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike | None, warn: bool = True
) -> P:
    """Returns the spec of an array with these names, with one entry for each axis.

    An axis of size 1 is replicated where its mesh axes have more devices, as one key head is that all others share.

    Args:
        names: The names of its axes.
        sizes: Their sizes, None where a size is not known.
        mapping: The mapping.
        mesh: The mesh to check against, whose Manual axes are left out; without one, only conflicts are checked.
        warn: Whether to warn of names that look mistyped.

    Raises:
        ValueError: If a mesh axis is unknown or would shard two axes, or a size is not divisible.
    """
    owners: dict[str, str] = {}
    entries: list[Any] = []
    for name, size in zip(names, sizes, strict=True):
        axes = mapping.mesh_axes(name)
        if warn and not mapping.knows(name):
            warn_unknown_name(name, mapping)
        check_mapped_axes(name, axes, mesh, names, sizes)
        axes = tuple(axis for axis in axes if not is_manual_axis(mesh, axis))
        uneven = None if mesh is None else describe_uneven(f"axis {name!r}", size, axes, mesh)
        if uneven is not None and size != 1 and mapping.uneven == "error":
            remedy = "(`round_axis_for_partitioning`), or replicate the axis with `uneven='replicate'`"
            raise ValueError(f"{uneven} {remedy}{_describe_array(names, sizes)}")
        axes = axes if uneven is None and (mesh is not None or size != 1) else ()
        for axis in axes:
            if axis in owners:
                raise ValueError(
                    f"axes {owners[axis]!r} and {name!r} of {_format_known_sizes(names, sizes)} are both mapped to "
                    f"mesh axis {axis!r}; map one of them to another mesh axis or to None"
                )
            owners[axis] = name
        entries.append(make_spec_entry(axes))
    if warn and mesh is not None:
        warn_unknown_mesh_axes(mapping, mesh)
    return P(*entries)


@cached_plan
def resolve_sharding(
    names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike, warn: bool = True
) -> NamedSharding:
    """Returns the sharding of an array with these names; see `resolve_spec`."""
    return NamedSharding(mesh, resolve_spec(names, sizes, mapping, mesh, warn))


def make_spec_entry(axes: tuple[str, ...]) -> Any:
    """Returns the entry of a spec for an axis that is sharded over these mesh axes."""
    return None if not axes else axes[0] if len(axes) == 1 else axes


def find_mapping(mapping: ResourceMapping | None) -> AxisMapping:
    """Returns the given mapping, or the active mapping if it is None; an empty one if there is neither."""
    return as_mapping(mapping) or AxisMapping()


def check_mapped_axes(
    name: str, axes: tuple[str, ...], mesh: MeshLike | None, names: Names, sizes: Sequence[int | None]
) -> None:
    """Raises a ValueError if a mesh lacks one of the mesh axes that an axis of an array is mapped to."""
    for axis in axes:
        if mesh is not None and axis not in mesh.axis_names:
            problem = describe_unknown_mesh_axis(name, axis, mesh)
            raise ValueError(f"{problem}{_describe_array(names, sizes)}{suggest_name(axis, mesh.axis_names)}")


def _format_known_sizes(names: Names, sizes: Sequence[int | None]) -> str:
    return format_axes(names, None if None in sizes else sizes)  # pyright: ignore[reportArgumentType]


def _describe_array(names: Names, sizes: Sequence[int | None]) -> str:
    """Returns the end of an error message about one axis that shows the array, if it has more axes."""
    return f"; the array is {_format_known_sizes(names, sizes)}" if len(names) > 1 else ""
