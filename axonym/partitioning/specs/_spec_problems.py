"""What can be wrong with a spec for an array on a mesh, in words; whoever checks specs written by hand asks here."""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from ...named._ambient import get_entry_axes
from ...named._axis import Names, format_axes, suggest_name
from ..mapping._axis_mapping import Uneven
from ._resolve_spec import MeshLike, format_mesh_axes, is_manual_axis, make_spec_entry, round_up


@functools.lru_cache(maxsize=8192)
def find_spec_problems(shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> tuple[str, ...]:
    """Returns everything that is wrong with a spec for an array of this shape on this mesh; nothing if JAX takes it."""
    problems = [*_rank(shape, spec), *_entries(shape, names, spec, mesh), *_reductions(spec, mesh)]
    if problems or AxisType.Manual in mesh.axis_types:
        return tuple(dict.fromkeys(problems))
    try:
        sharding = NamedSharding(mesh, spec)
        sharding.check_compatible_aval(shape)
        sharding.shard_shape(shape)
    except Exception as refused:  # what JAX comes to refuse beside
        return (f"JAX refuses {spec}: {first_line(refused)}",)
    return ()


def first_line(error: Exception) -> str:
    """Returns the first line of what an error says, or else its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_rule_spec(
    spec: P, shape: tuple[int | None, ...], uneven: Uneven, mesh: MeshLike | None, remedy: str | None = None
) -> P:
    """Returns the spec that is given for a plain array, without mesh axes that are Manual here, if it fits.

    Args:
        spec: The spec.
        shape: The sizes of the array, None where one is not known.
        uneven: What happens to a dimension that is not divisible.
        mesh: The mesh; if it is not known only what needs none is checked.
        remedy: What to do about a dimension that is not divisible; for None what a rule can give in place of the spec.

    Raises:
        ValueError: If a mesh axis is unknown or would divide two axes, or a size is not divisible.
    """
    for problem in _rank(shape, spec):
        raise ValueError(problem)
    owners: dict[Any, str] = {}
    entries: list[Any] = []
    for at, entry in enumerate(spec):
        where, axes = dimension(at, None), () if entry is P.UNCONSTRAINED else get_requested_axes(entry)
        given = axes if mesh is None else _here(axes, where, mesh)
        problem = None if mesh is None else uneven_problem(where, shape[at], given, mesh)
        if problem is not None and uneven == "error":
            raise ValueError(f"{problem}; {remedy or _remedy(spec, at)}")
        given = () if problem is not None else given
        for problem in _twice(given, where, owners):
            raise ValueError(problem)
        entries.append(entry if given == axes else make_spec_entry(given))
    return spec if all(one is other for one, other in zip(spec, entries, strict=True)) else P(*entries)


def _here(axes: tuple[Any, ...], where: str, mesh: MeshLike) -> tuple[Any, ...]:
    """Returns the mesh axes of an entry that are not Manual.

    Raises:
        ValueError: If the mesh does not have one of them.
    """
    for axis in axes:
        if axis not in mesh.axis_names:
            raise ValueError(_unknown(axis, where, mesh))
    return tuple(axis for axis in axes if not is_manual_axis(mesh, axis))


def _remedy(spec: P, at: int) -> str:
    """Returns what a rule may give in place of a spec that does not divide a dimension."""
    entries = [None if here == at else entry for here, entry in enumerate(spec)]
    whole = P(*entries) if any(entries) else P()
    return f"give {whole} for it, or leave what does not fit whole with `uneven='replicate'`"


def _rank(shape: Sequence[int | None], spec: P) -> Iterator[str]:
    if len(spec) > len(shape):
        entries, dimensions = _counted(len(spec), "entry", "entries"), _counted(len(shape), "dimension", "dimensions")
        more = len(spec) - len(shape)
        last = "the last" if more == 1 else f"the last {more}"
        array = "the array" if None in shape else f"the array {shape}"
        yield f"{spec} has {entries}, {array} has {dimensions}; leave out {last}"


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _entries(shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> Iterator[str]:
    """Yields what is wrong with the entries of a spec, in their order."""
    owners: dict[Any, str] = {}
    for at, entry in enumerate(spec.partitions):
        where = dimension(at, names) if at < len(shape) else f"entry {at}"
        if entry is P.UNCONSTRAINED:
            if AxisType.Auto not in mesh.axis_types:
                yield f"{where} is left to the compiler, which only Auto mesh axes allow, and the mesh has none"
            continue
        axes = get_requested_axes(entry)
        yield from _unusable(axes, where, mesh)
        yield from _twice(axes, where, owners)
        known = tuple(
            dict.fromkeys(axis for axis in axes if axis in mesh.axis_names and not is_manual_axis(mesh, axis))
        )
        if at < len(shape) and len(known) == len(axes):
            problem = uneven_problem(where, shape[at], known, mesh)
            yield from () if problem is None else (problem,)


def get_requested_axes(entry: Any) -> tuple[Any, ...]:
    """Returns what an entry of a spec asks for, mesh axes or what is there in place of them."""
    return get_entry_axes(entry) if entry is None or isinstance(entry, str | tuple) else (entry,)


def dimension(at: int, names: Names | None) -> str:
    """Returns how one dimension of an array is called."""
    return f"dimension {at}" if names is None else f"axis {names[at]!r}"


def _unusable(axes: Sequence[Any], where: str, mesh: MeshLike) -> Iterator[str]:
    """Yields which mesh axes of an entry are none, are not there, or cannot be named here."""
    for axis in dict.fromkeys(axes):
        if axis not in mesh.axis_names:
            yield _unknown(axis, where, mesh)
        elif is_manual_axis(mesh, axis):
            yield f"{where}: mesh axis {axis!r} is Manual here, where no spec can name it; leave it out"


def _unknown(axis: Any, where: str, mesh: MeshLike) -> str:
    """Returns that a mesh does not have what an entry asks for."""
    if isinstance(axis, str):
        return f"{where}: no mesh axis {axis!r} in {format_mesh(mesh)}{suggest_name(axis, _strings(mesh))}"
    return f"{where}: an entry is a name of a mesh axis, a tuple of names, or None, not {axis!r}"


def format_mesh(mesh: MeshLike) -> str:
    """Returns the axes of a mesh with their sizes."""
    return format_axes(tuple(map(str, mesh.axis_names)), tuple(mesh.shape.values()))


def _strings(mesh: MeshLike) -> list[str]:
    return [name for name in mesh.axis_names if isinstance(name, str)]


def _twice(axes: Sequence[Any], where: str, owners: dict[Any, str]) -> Iterator[str]:
    """Yields which mesh axes of an entry divide something else already, and notes those of the entry."""
    for axis in axes:
        if axis in owners:
            both = f"{where} twice" if owners[axis] == where else f"both {owners[axis]} and {where}"
            yield f"mesh axis {axis!r} divides {both}; leave it out of one of the entries"
        owners.setdefault(axis, where)


def uneven_problem(where: str, size: int | None, axes: Sequence[Any], mesh: MeshLike) -> str | None:
    """Returns that mesh axes do not divide a size, None if they do."""
    parts = math.prod(mesh.shape[axis] for axis in axes)
    if size is None or size % parts == 0:
        return None
    over = format_mesh_axes(axes, mesh)
    fits = f"the next size that fits is {round_up(size, parts)}"
    return f"{where} has size {size}, which mesh axis {over} does not divide; {fits}"


def _reductions(spec: P, mesh: MeshLike) -> Iterator[str]:
    """Yields what is wrong with the mesh axes over which an array is said to be reduced or still to be summed."""
    for kind in ("unreduced", "reduced"):
        for axis in sorted(getattr(spec, kind, ()), key=str):
            if axis not in mesh.axis_names:
                yield f"{kind}: no mesh axis {axis!r} in {format_mesh(mesh)}{suggest_name(str(axis), _strings(mesh))}"
            elif mesh.axis_types[mesh.axis_names.index(axis)] != AxisType.Explicit:
                yield f"{kind}: mesh axis {axis!r} is not Explicit, and an array can be {kind} over such alone"
