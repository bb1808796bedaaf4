"""From a mapping to specs: `resolve_spec`, which everything that shards by a mapping asks, and specs written by hand.

So `shard`, `named_jit`, layers and creation functions raise the same errors, inside and outside jit. What a layout is,
and which sizes fit it, is decided in `AxisLayout`.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from .._ground.caches import cached_plan
from .._ground.errors import make_error
from .._ground.formats import suggest_name
from ..named._axis import Axis, AxisSelection, AxisSelector, Names, axis_name, parse_selection
from ..named._axis_layout import (
    AxisLayout,
    count_parts,
    describe_array,
    describe_uneven,
    get_axes_of_type,
    get_entry_axes,
    make_spec_entry,
    round_up,
)
from ._active_mesh import (
    MeshLike,
    describe_mixed_types,
    format_mesh,
    get_abstract_mesh,
    is_manual_axis,
    resolve_mesh,
    suggest_mesh_axis,
)
from ._mapping import (
    AxisMapping,
    PhysicalAxisSpec,
    ResourceMapping,
    Uneven,
    as_mapping,
    describe_unknown_mesh_axis,
    warn_unknown_mesh_axes,
    warn_unknown_name,
)


@cached_plan
def resolve_spec(
    names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike | None, warn: bool = True
) -> P:
    """Returns the spec of an array with these names, with one entry for each axis.

    An axis of size 1 is replicated where its mesh axes have more devices: the one key head that all queries share, say.

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
            raise make_error(ValueError, f"{mixed}{describe_array(names, sizes)}")
        mesh_axes.append((name, axes))
    spec = AxisLayout(mesh, tuple(mesh_axes), mapping.uneven).spec(names, sizes)
    if warn and mesh is not None:
        warn_unknown_mesh_axes(mapping, mesh)
    return spec


@cached_plan
def resolve_sharding(
    names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike, warn: bool = True
) -> NamedSharding:
    """Returns the sharding of an array with these names; see `resolve_spec`.

    It is cached, so that equal shardings are mostly one object, which `place_leaves` compares by `is` first.
    """
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
            raise make_error(
                ValueError, f"{problem}{describe_array(names, sizes)}{suggest_name(axis, mesh.axis_names)}"
            )


@cached_plan
def find_spec_problems(shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> tuple[str, ...]:
    """Returns all problems of a spec for an array of this shape on this mesh, none if JAX accepts it."""
    problems = [
        *_find_rank_problems(shape, spec),
        *_find_entry_problems(shape, names, spec, mesh),
        *_find_reduction_problems(spec, mesh),
    ]
    if problems or AxisType.Manual in mesh.axis_types:
        return tuple(dict.fromkeys(problems))
    try:
        sharding = NamedSharding(mesh, spec)
        sharding.check_compatible_aval(shape)
        sharding.shard_shape(shape)
    except Exception as error:  # whatever else JAX may refuse
        return (f"JAX refuses {spec}: {get_first_line(error)}",)
    return ()


def get_first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_rule_spec(
    spec: P, shape: tuple[int | None, ...], uneven: Uneven, mesh: MeshLike | None, remedy: str | None = None
) -> P:
    """Returns the spec for a plain array, without mesh axes that are Manual here, if it fits.

    A dimension of size 1 is replicated where its mesh axes have more devices, as by `resolve_spec`.

    Args:
        spec: The spec.
        shape: The sizes of the array, None where a size is not known.
        uneven: What happens to a dimension that is not divisible.
        mesh: The mesh; without one, only what needs no mesh is checked.
        remedy: How to mend a dimension that is not divisible; if None, the specs that a rule can return instead.

    Raises:
        ValueError: If a mesh axis is unknown or would shard two dimensions, or a size is not divisible.
    """
    for problem in _find_rank_problems(shape, spec):
        raise ValueError(problem)
    owners: dict[Any, str] = {}
    entries: list[Any] = []
    for dim, entry in enumerate(spec):
        where = describe_dimension(dim, None)
        axes = usable_axes = () if entry is P.UNCONSTRAINED else get_requested_axes(entry)
        if mesh is not None:
            for axis in axes:
                if axis not in mesh.axis_names:
                    raise ValueError(_describe_unknown_entry(axis, where, mesh))
            usable_axes = tuple(axis for axis in axes if not is_manual_axis(mesh, axis))
            problem = describe_uneven(where, shape[dim], usable_axes, mesh)
            if problem is not None:
                if shape[dim] != 1 and uneven == "error":
                    raise ValueError(f"{problem}; {remedy or _suggest_spec(spec, dim)}")
                usable_axes = ()
        for problem in _find_repeated_axes(usable_axes, where, owners):
            raise ValueError(problem)
        entries.append(entry if usable_axes == axes else make_spec_entry(usable_axes))
    # The spec itself may also say over which mesh axes the array is reduced, or unreduced.
    return spec if all(map(operator.is_, spec, entries)) else P(*entries)


def _suggest_spec(spec: P, dim: int) -> str:
    """Returns the remedy for a rule's spec whose entry at one dimension does not fit."""
    entries = [None if position == dim else entry for position, entry in enumerate(spec)]
    fitting = P(*entries) if any(entries) else P()
    return f"use {fitting} instead, or replicate what does not fit with `uneven='replicate'`"


def _find_rank_problems(shape: Sequence[int | None], spec: P) -> Iterator[str]:
    surplus = len(spec) - len(shape)
    if surplus > 0:
        entries = f"{len(spec)} {'entry' if len(spec) == 1 else 'entries'}"
        dimensions = f"{len(shape)} {'dimension' if len(shape) == 1 else 'dimensions'}"
        last = "the last" if surplus == 1 else f"the last {surplus}"
        array = "the array" if None in shape else f"the array {shape}"
        yield f"{spec} has {entries}, {array} has {dimensions}; leave out {last}"


def _find_entry_problems(shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> Iterator[str]:
    owners: dict[Any, str] = {}
    for dim, entry in enumerate(spec.partitions):
        where = describe_dimension(dim, names) if dim < len(shape) else f"entry {dim}"
        if entry is P.UNCONSTRAINED:
            if AxisType.Auto not in mesh.axis_types:
                yield f"{where} is left to the compiler, which only Auto mesh axes allow, and the mesh has none"
            continue
        axes = get_requested_axes(entry)
        for axis in dict.fromkeys(axes):
            if axis not in mesh.axis_names:
                yield _describe_unknown_entry(axis, where, mesh)
            elif is_manual_axis(mesh, axis):
                yield f"{where}: mesh axis {axis!r} is Manual here, where no spec can name it; leave it out"
        yield from _find_repeated_axes(axes, where, owners)
        usable = [axis for axis in axes if axis in mesh.axis_names and not is_manual_axis(mesh, axis)]
        if dim < len(shape) and len(set(usable)) == len(axes):
            problem = describe_uneven(where, shape[dim], usable, mesh)
            if problem is not None:
                yield problem


def get_requested_axes(entry: Any) -> tuple[Any, ...]:
    """Returns the mesh axes of an entry of a spec, or an invalid entry as it is."""
    return get_entry_axes(entry) if entry is None or isinstance(entry, str | tuple) else (entry,)


def describe_dimension(dim: int, names: Names | None) -> str:
    """Returns the name of a dimension in messages."""
    return f"dimension {dim}" if names is None else f"axis {names[dim]!r}"


def _describe_unknown_entry(axis: Any, where: str, mesh: MeshLike) -> str:
    """Returns the message for a mesh axis of an entry that the mesh lacks."""
    if isinstance(axis, str):
        return f"{where}: no mesh axis {axis!r} in {format_mesh(mesh)}{suggest_mesh_axis(axis, mesh)}"
    return f"{where}: an entry is a name of a mesh axis, a tuple of names, or None, not {axis!r}"


def _find_repeated_axes(axes: Sequence[Any], where: str, owners: dict[Any, str]) -> Iterator[str]:
    """Yields the mesh axes of an entry that shard another dimension too, and records all of them."""
    for axis in axes:
        if axis in owners:
            conflict = f"{where} twice" if owners[axis] == where else f"both {owners[axis]} and {where}"
            yield f"mesh axis {axis!r} shards {conflict}; leave it out of one of the entries"
        owners.setdefault(axis, where)


def _find_reduction_problems(spec: P, mesh: MeshLike) -> Iterator[str]:
    """Yields the problems of the mesh axes that a spec names as reduced or unreduced."""
    for kind in ("unreduced", "reduced"):
        for axis in sorted(getattr(spec, kind, ()), key=str):
            if axis not in mesh.axis_names:
                yield f"{kind}: no mesh axis {axis!r} in {format_mesh(mesh)}{suggest_mesh_axis(str(axis), mesh)}"
            elif axis not in get_axes_of_type(mesh, AxisType.Explicit):
                yield f"{kind}: mesh axis {axis!r} is not Explicit, and an array can be {kind} over such alone"


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
    return find_mapping(mapping).get(axis_name(axis))


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
    name = axis_name(axis)
    axes = find_mapping(mapping).mesh_axes(name)
    if not axes:
        return None
    mesh = resolve_mesh(mesh, "`physical_axis_size`")
    check_mapped_axes(name, axes, mesh, (name,), (None,))
    return count_parts(axes, mesh)


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
        raise make_error(
            TypeError, f"`round_axis_for_partitioning` needs a size: give `Axis({axis!r}, size)` instead of {axis!r}."
        )
    return axis if parts is None or axis.size % parts == 0 else axis.resize(round_up(axis.size, parts))


def _parse_axes(axis: AxisSelection) -> tuple[Names, tuple[int | None, ...]]:
    """Returns the names and sizes of selected axes, None for sizes that are not given."""
    selection = parse_selection(axis)
    return tuple(map(axis_name, selection)), tuple(
        selected.size if isinstance(selected, Axis) else None for selected in selection
    )
