"""From a mapping to specs: `resolve_spec`, which everything that shards by a mapping asks.

So `shard`, `named_jit`, layers and creation functions raise the same errors, inside and outside jit. What a layout is,
and which sizes fit it, is decided in `AxisLayout`.
"""

from collections.abc import Sequence

from jax.sharding import NamedSharding, PartitionSpec as P

from ...named._axis import Names
from ...named._axis_layout import AxisLayout, MeshLike, describe_array
from ...named._cache import cached_plan
from ...named._format import suggest_name
from ...named._traceback import strip_library_frames
from ..mapping._mapping import AxisMapping, ResourceMapping, as_mapping
from ..mapping._typos import describe_unknown_mesh_axis, warn_unknown_mesh_axes, warn_unknown_name
from ._active_mesh import describe_mixed_types, is_manual_axis


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
        ValueError: If a mesh axis is unknown or would shard two axes, an axis is mapped to Auto and Explicit mesh axes,
            or a size is not divisible.
    """
    mesh_axes: list[tuple[str, tuple[str, ...]]] = []
    for name in names:
        axes = mapping.mesh_axes(name)
        if warn and not mapping.knows(name):
            warn_unknown_name(name, mapping)
        check_mapped_axes(name, axes, mesh, names, sizes)
        axes = tuple(axis for axis in axes if not is_manual_axis(mesh, axis))
        mixed = describe_mixed_types(f"axis {name!r}", axes, mesh)
        if mixed is not None:
            raise strip_library_frames(ValueError(f"{mixed}{describe_array(names, sizes)}"))
        mesh_axes.append((name, axes))
    spec = AxisLayout(mesh, tuple(mesh_axes), mapping.uneven).spec(names, sizes)
    if warn and mesh is not None:
        warn_unknown_mesh_axes(mapping, mesh)
    return spec


@cached_plan
def resolve_sharding(
    names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike, warn: bool = True
) -> NamedSharding:
    """Returns the sharding of an array with these names; see `resolve_spec`."""
    return NamedSharding(mesh, resolve_spec(names, sizes, mapping, mesh, warn))


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
            raise strip_library_frames(
                ValueError(f"{problem}{describe_array(names, sizes)}{suggest_name(axis, mesh.axis_names)}")
            )
