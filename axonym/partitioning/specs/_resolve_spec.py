"""From names to specs: the one checker that decides where an axis goes and refuses what cannot be.

Whoever shards anything by name asks `checked_spec`, so that `shard`, `named_jit`, layers and creation functions raise
the same errors, inside and outside jit.
"""

import functools
import inspect
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from ..._jax_compat import is_tracing
from ...named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    format_axes,
    parse_selection,
    suggest_name,
)
from ..mapping._axis_mapping import AxisMapping, PhysicalAxisSpec, ResourceMapping, as_mapping
from ..mapping._typos import is_typo


MeshLike: TypeAlias = Mesh | AbstractMesh

_LIBRARIES = (__name__.partition(".")[0] + ".", "jax.", "equinox.", "contextlib")


def get_abstract_mesh() -> AbstractMesh | None:
    """Returns the mesh in force, inside a traced function and outside, without its devices; None if there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def get_active_mesh() -> MeshLike | None:
    """Returns the mesh in force, with its devices where arrays can be moved to them; None if there is none."""
    mesh = get_abstract_mesh()
    if mesh is None or is_tracing():
        return mesh
    concrete = jax.sharding.get_mesh()
    return concrete if concrete.abstract_mesh == mesh else mesh


def require_mesh(purpose: str, remedy: str = "set one with `jax.set_mesh(mesh)`") -> MeshLike:
    """Returns the mesh in force.

    Raises:
        ValueError: If there is none.
    """
    mesh = get_active_mesh()
    if mesh is None:
        raise ValueError(f"{purpose} needs a mesh; {remedy}")
    return mesh


def resolve_mesh(mesh: MeshLike | None, purpose: str) -> MeshLike:
    """Returns the mesh given, or the one in force if it is None.

    Raises:
        ValueError: If there is neither.
    """
    return require_mesh(purpose, "set one with `jax.set_mesh(mesh)` or pass `mesh=`") if mesh is None else mesh


@functools.lru_cache(maxsize=16384)
def resolve_spec(names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike | None) -> P:
    """Returns the spec of an array with these names, one entry for each axis.

    Args:
        names: The names of its axes.
        sizes: Their sizes, None where it is not known.
        mapping: The mapping to go by.
        mesh: The mesh to check against; None checks only what needs no mesh. Its Manual axes are left out.

    Raises:
        ValueError: If a mesh axis is unknown or would divide two axes, or a size is not divisible.
    """
    owners: dict[str, str] = {}
    entries: list[Any] = []
    for name, size in zip(names, sizes, strict=True):
        axes = mapping.mesh_axes(name)
        if not mapping.knows(name):
            _warn_near_miss(name, mapping)
        _check_known(name, axes, mesh, (names, sizes))
        axes = tuple(axis for axis in axes if not is_manual_axis(mesh, axis))
        if mesh is not None and not _divides(size, axes, mesh):
            if mapping.uneven == "error":
                raise _uneven(name, axes, mesh, (names, sizes))
            axes = ()
        for axis in axes:
            if axis in owners:
                raise ValueError(
                    f"axes {owners[axis]!r} and {name!r} of {_shown(names, sizes)} are both mapped to mesh axis "
                    f"{axis!r}; map one of them to another mesh axis or to None"
                )
            owners[axis] = name
        entries.append(make_spec_entry(axes))
    if mesh is not None:
        _warn_near_miss_of_mesh(mapping, mesh)
    return P(*entries)


@functools.lru_cache(maxsize=16384)
def resolve_sharding(
    names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike
) -> NamedSharding:
    """Returns the sharding of an array with these names; see `checked_spec`."""
    return NamedSharding(mesh, resolve_spec(names, sizes, mapping, mesh))


def make_spec_entry(axes: tuple[str, ...]) -> Any:
    """Returns the entry of a spec for an axis divided over these mesh axes."""
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _shown(names: Names, sizes: Sequence[int | None]) -> str:
    return format_axes(names, None if None in sizes else sizes)  # pyright: ignore[reportArgumentType]


def _array_shown(array: tuple[Names, Sequence[int | None]]) -> str:
    """Returns the part of an error message about one axis that shows the whole array, if it has more axes."""
    return f"; the array is {_shown(*array)}" if len(array[0]) > 1 else ""


def _check_known(
    name: str, axes: tuple[str, ...], mesh: MeshLike | None, array: tuple[Names, Sequence[int | None]]
) -> None:
    for axis in axes:
        if mesh is not None and axis not in mesh.axis_names:
            raise ValueError(f"{_unknown(name, axis, mesh)}{_array_shown(array)}{suggest_name(axis, mesh.axis_names)}")


def _unknown(name: str, axis: str, mesh: MeshLike) -> str:
    return (
        f"axis {name!r} is mapped to mesh axis {axis!r}, which the mesh "
        f"{format_axes(mesh.axis_names, tuple(mesh.shape.values()))} does not have"
    )


def is_manual_axis(mesh: MeshLike | None, axis: str) -> bool:
    """Tells whether a mesh axis is Manual, as inside `shard_map`."""
    return mesh is not None and mesh.axis_types[mesh.axis_names.index(axis)] == AxisType.Manual


def _divides(size: int | None, axes: tuple[str, ...], mesh: MeshLike) -> bool:
    return size is None or size % math.prod(mesh.shape[axis] for axis in axes) == 0


def _uneven(name: str, axes: tuple[str, ...], mesh: MeshLike, array: tuple[Names, Sequence[int | None]]) -> ValueError:
    size = dict(zip(*array, strict=True))[name]
    product = format_mesh_axes(axes, mesh)
    return ValueError(
        f"axis {name!r} has size {size}, which mesh axis {product} does not divide; the next size that fits is "
        f"{round_up(size or 0, math.prod(mesh.shape[axis] for axis in axes))} (`round_axis_for_partitioning`), or "
        f"leave the axis whole with `uneven='replicate'`{_array_shown(array)}"
    )


def format_mesh_axes(axes: Iterable[Any], mesh: MeshLike) -> str:
    """Returns mesh axes with their sizes, as errors about what they divide together show them."""
    return " x ".join(f"{axis!r} of size {mesh.shape[axis]}" for axis in axes)


def round_up(size: int, parts: int) -> int:
    """Returns the next size that can be divided into so many parts."""
    return -(-size // parts) * parts


def _warn_near_miss(name: str, mapping: AxisMapping) -> None:
    for known in mapping:
        if is_typo(name, known):
            _warn_once(
                f"axis {name!r} is not in the mapping, which has {known!r}; if the same axis is meant, it is "
                "replicated by mistake: correct the name, or map it to None to say so"
            )


@functools.lru_cache(maxsize=4096)
def _warn_near_miss_of_mesh(mapping: AxisMapping, mesh: MeshLike) -> None:
    """Warns of entries that would be an error on this mesh, and by their look on any: one mapping may serve several."""
    for name in mapping:
        for axis in mapping.mesh_axes(name):
            if axis in mesh.axis_names:
                continue
            if name in mesh.axis_names:
                _warn_once(
                    f"{_unknown(name, axis, mesh)}, but it has {name!r}; a mapping goes from names to mesh axes: "
                    f"is it {axis!r} that is to be divided over {name!r}?"
                )
            elif any(is_typo(axis, known, 3) for known in mesh.axis_names):
                _warn_once(f"{_unknown(name, axis, mesh)}{suggest_name(axis, mesh.axis_names)}")


@functools.lru_cache(maxsize=4096)
def _warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=user_stacklevel())


def user_stacklevel() -> int:
    """Returns at which level of the stack the code is that called this library, by way of JAX or not."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
        frame, levels = frame.f_back, levels + 1
    return levels


def _given(axis: AxisSelection) -> tuple[Names, tuple[int | None, ...]]:
    chosen = parse_selection(axis)
    return tuple(map(axis_name, chosen)), tuple(one.size if isinstance(one, Axis) else None for one in chosen)


def require_mapping(mapping: ResourceMapping | None) -> AxisMapping:
    found = as_mapping(mapping)
    if found is None:
        raise ValueError("no axis mapping is given and none is in force; use `with axis_mapping(...)` or pass one")
    return found


def pspec_for_axis(axis: AxisSelection, mapping: ResourceMapping | None = None) -> P:
    """Returns the `PartitionSpec` of an array with these axes.

    Args:
        axis: One axis or several, by name or as `Axis`; sizes are checked where they are given and a mesh is set.
        mapping: The mapping to go by; the one in force if None.

    Returns:
        A spec with one entry for each axis.

    Raises:
        ValueError: If there is no mapping, a mesh axis is unknown or used twice, or a size is not divisible.

    Example:
        >>> import axonym as nym
        >>> nym.pspec_for_axis(("batch", "embed"), {"batch": "data"})
        P('data', None)
    """
    return resolve_spec(*_given(axis), require_mapping(mapping), get_abstract_mesh())


def sharding_for_axis(
    axis: AxisSelection, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> NamedSharding:
    """Returns the sharding of an array with these axes.

    Args:
        axis: One axis or several, by name or as `Axis`.
        mapping: The mapping to go by; the one in force if None.
        mesh: The mesh, abstract or with devices; the one in force if None.

    Returns:
        A sharding over the mesh, with one entry for each axis.

    Raises:
        ValueError: If there is no mapping or no mesh, a mesh axis is unknown or used twice, or a size is not divisible.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> nym.sharding_for_axis(nym.Axis("batch", 8), {"batch": "data"}, mesh).shard_shape((8,))
        (2,)
    """
    mesh = resolve_mesh(mesh, "`sharding_for_axis`")
    return resolve_sharding(*_given(axis), require_mapping(mapping), mesh)


def physical_axis_name(axis: AxisSelector, mapping: ResourceMapping | None = None) -> PhysicalAxisSpec | None:
    """Returns the mesh axis that an axis is mapped to, a tuple if there are several, None if it is not mapped.

    Args:
        axis: The axis, by name or as `Axis`.
        mapping: The mapping to go by; the one in force if None.

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
    """Returns into how many parts an axis is divided, None if it is not mapped.

    Args:
        axis: The axis, by name or as `Axis`.
        mapping: The mapping to go by; the one in force if None.
        mesh: The mesh, abstract or with devices; the one in force if None.

    Returns:
        The product of the sizes of its mesh axes.

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
    _check_known(name, axes, mesh, ((name,), (None,)))
    return math.prod(mesh.shape[one] for one in axes)


def round_axis_for_partitioning(
    axis: Axis, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> Axis:
    """Returns the axis with its size rounded up to what its mesh axes divide.

    Args:
        axis: The axis.
        mapping: The mapping to go by; the one in force if None.
        mesh: The mesh, abstract or with devices; the one in force if None.

    Returns:
        The axis itself if it is not mapped or its size fits.

    Raises:
        ValueError: If the axis is mapped and there is no mesh, or the mesh lacks one of its mesh axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     nym.round_axis_for_partitioning(nym.Axis("vocab", 10), {"vocab": "data"})
        Axis(name='vocab', size=12)
    """
    parts = physical_axis_size(axis, mapping, mesh)
    return axis if parts is None or axis.size % parts == 0 else axis.resize(round_up(axis.size, parts))
