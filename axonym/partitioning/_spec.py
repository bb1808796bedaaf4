"""From names to specs: the one checker that decides where an axis goes and refuses what cannot be.

Whoever shards anything by name asks `checked_spec`, so that `shard`, `named_jit`, layers and creation functions raise
the same errors, inside and outside jit.
"""

import functools
import inspect
import math
import re
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    listed,
    near_miss,
    selected,
)
from ._mapping import AxisMapping, PhysicalAxisSpec, ResourceMapping, normalised


MeshLike: TypeAlias = Mesh | AbstractMesh

_LIBRARIES = (__name__.removesuffix("partitioning._spec"), "jax.", "equinox.", "contextlib")
_WORD = re.compile(r"[^\W\d_]+")


def ambient_mesh() -> AbstractMesh | None:
    """Returns the mesh in force, inside a traced function and outside, without its devices; None if there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def tracing() -> bool:
    """Tells whether a function is being traced here, by `jax.jit` or by an eager transformation."""
    try:
        jax.sharding.get_mesh()
    except ValueError:  # what JAX says inside a traced function, and only there
        return True
    return False


def mesh_in_force() -> MeshLike | None:
    """Returns the mesh in force, with its devices where arrays can be moved to them; None if there is none."""
    mesh = ambient_mesh()
    if mesh is None or tracing():
        return mesh
    concrete = jax.sharding.get_mesh()
    return concrete if concrete.abstract_mesh == mesh else mesh


def needed_mesh(purpose: str, remedy: str = "set one with `jax.set_mesh(mesh)`") -> MeshLike:
    """Returns the mesh in force.

    Raises:
        ValueError: If there is none.
    """
    mesh = mesh_in_force()
    if mesh is None:
        raise ValueError(f"{purpose} needs a mesh; {remedy}")
    return mesh


@functools.lru_cache(maxsize=16384)
def checked_spec(names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike | None) -> P:
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
        _check_known(name, axes, mesh)
        axes = tuple(axis for axis in axes if not _is_manual(mesh, axis))
        if not _fits(name, size, axes, mapping, mesh):
            axes = ()
        for axis in axes:
            if axis in owners:
                raise ValueError(
                    f"axes {owners[axis]!r} and {name!r} of {_shown(names, sizes)} are both mapped to mesh axis "
                    f"{axis!r}; map one of them to another mesh axis or to None"
                )
            owners[axis] = name
        entries.append(spec_entry(axes))
    return P(*entries)


@functools.lru_cache(maxsize=16384)
def checked_sharding(
    names: Names, sizes: tuple[int | None, ...], mapping: AxisMapping, mesh: MeshLike
) -> NamedSharding:
    """Returns the sharding of an array with these names; see `checked_spec`."""
    return NamedSharding(mesh, checked_spec(names, sizes, mapping, mesh))


def spec_entry(axes: tuple[str, ...]) -> Any:
    """Returns the entry of a spec for an axis divided over these mesh axes."""
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _shown(names: Names, sizes: Sequence[int | None]) -> str:
    return listed(names, None if None in sizes else sizes)  # pyright: ignore[reportArgumentType]


def _check_known(name: str, axes: tuple[str, ...], mesh: MeshLike | None) -> None:
    for axis in axes:
        if mesh is not None and axis not in mesh.axis_names:
            raise ValueError(
                f"axis {name!r} is mapped to mesh axis {axis!r}, which the mesh "
                f"{listed(mesh.axis_names, tuple(mesh.shape.values()))} does not have{near_miss(axis, mesh.axis_names)}"
            )


def _is_manual(mesh: MeshLike | None, axis: str) -> bool:
    return mesh is not None and mesh.axis_types[mesh.axis_names.index(axis)] == AxisType.Manual


def _fits(name: str, size: int | None, axes: tuple[str, ...], mapping: AxisMapping, mesh: MeshLike | None) -> bool:
    if mesh is None or size is None:
        return True
    parts = math.prod(mesh.shape[axis] for axis in axes)
    if size % parts == 0:
        return True
    if mapping.uneven == "replicate":
        return False
    product = " x ".join(f"{axis!r} of size {mesh.shape[axis]}" for axis in axes)
    raise ValueError(
        f"axis {name!r} has size {size}, which mesh axis {product} does not divide; the next size that fits is "
        f"{math.ceil(size / parts) * parts} (`round_axis_for_partitioning`), or leave the axis whole with "
        "`uneven='replicate'`"
    )


def _warn_near_miss(name: str, mapping: AxisMapping) -> None:
    for known in mapping:
        if _one_slip(name, known):
            _warn_once(name, known)


@functools.lru_cache(maxsize=4096)
def _warn_once(name: str, known: str) -> None:
    warnings.warn(
        f"axis {name!r} is not in the mapping, which has {known!r}; if the same axis is meant, it is replicated by "
        "mistake: correct the name, or map it to None to say so",
        RuntimeWarning,
        stacklevel=levels_inside(),
    )


def levels_inside() -> int:
    """Returns at which level of the stack the code is that called this library, by way of JAX or not."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
        frame, levels = frame.f_back, levels + 1
    return levels


@functools.lru_cache(maxsize=16384)
def _one_slip(one: str, other: str) -> bool:
    """Tells whether two names differ in letter case alone or by one slip of a typist, and hardly on purpose.

    A slip is two letters swapped, one left out or, in a long word, one changed. Names that differ in the first letter
    of a word (`patch` and `batch`), in digits, in a plural or in a short word (`pos_q` and `pos_k`) are meant.
    """
    if one.casefold() == other.casefold():
        return True
    short, long = sorted((one, other), key=len)
    if len(short) < 4 or len(long) - len(short) > 1:
        return False
    at = next((i for i, letter in enumerate(short) if letter != long[i]), len(short))
    if short[:at] + short[at : at + 2][::-1] + short[at + 2 :] == long:
        return True
    word = next((word for word in _WORD.finditer(long) if word.start() < at < word.end()), None)
    if word is None or len(word.group()) < 5:
        return False
    last = at + 1 == word.end()
    if len(short) < len(long):
        return short[at:] == long[at + 1 :] and not (last and long[at] == "s")
    return short[at + 1 :] == long[at + 1 :] and short[at].isalpha() and not last and len(word.group()) > 5


def _given(axis: AxisSelection) -> tuple[Names, tuple[int | None, ...]]:
    chosen = selected(axis)
    return tuple(map(axis_name, chosen)), tuple(one.size if isinstance(one, Axis) else None for one in chosen)


def _needed_mapping(mapping: ResourceMapping | None) -> AxisMapping:
    found = normalised(mapping)
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
    return checked_spec(*_given(axis), _needed_mapping(mapping), ambient_mesh())


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
    if mesh is None:
        mesh = needed_mesh("`sharding_for_axis`", "set one with `jax.set_mesh(mesh)` or pass `mesh=`")
    return checked_sharding(*_given(axis), _needed_mapping(mapping), mesh)


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
    found = normalised(mapping)
    return None if found is None else found.get(axis_name(axis))


def physical_axis_size(axis: AxisSelector, mapping: ResourceMapping | None = None) -> int | None:
    """Returns into how many parts an axis is divided, None if it is not mapped.

    Args:
        axis: The axis, by name or as `Axis`.
        mapping: The mapping to go by; the one in force if None.

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
    found, name = normalised(mapping), axis_name(axis)
    axes = () if found is None else found.mesh_axes(name)
    if not axes:
        return None
    mesh = needed_mesh("`physical_axis_size`")
    _check_known(name, axes, mesh)
    return math.prod(mesh.shape[one] for one in axes)


def round_axis_for_partitioning(axis: Axis, mapping: ResourceMapping | None = None) -> Axis:
    """Returns the axis with its size rounded up to what its mesh axes divide.

    Args:
        axis: The axis.
        mapping: The mapping to go by; the one in force if None.

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
    parts = physical_axis_size(axis, mapping)
    return axis if parts is None or axis.size % parts == 0 else axis.resize(math.ceil(axis.size / parts) * parts)
