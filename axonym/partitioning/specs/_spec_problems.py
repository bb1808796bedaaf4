"""Problems of specs that are written by hand: whether a spec fits a plain array on a mesh."""

from collections.abc import Iterator, Sequence
from typing import Any

from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from ...named._axis import Names
from ...named._axis_layout import describe_uneven, get_entry_axes, make_spec_entry
from ...named._cache import cached_plan
from ..mapping._mapping import Uneven
from ._active_mesh import MeshLike, format_mesh, is_manual_axis, suggest_mesh_axis


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
    except Exception as refused:  # whatever else JAX may refuse
        return (f"JAX refuses {spec}: {get_first_line(refused)}",)
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
    for at, entry in enumerate(spec):
        where, axes = describe_dimension(at, None), () if entry is P.UNCONSTRAINED else get_requested_axes(entry)
        kept = axes if mesh is None else _drop_manual_axes(axes, where, mesh)
        problem = None if mesh is None else describe_uneven(where, shape[at], kept, mesh)
        if problem is not None and shape[at] != 1 and uneven == "error":
            raise ValueError(f"{problem}; {remedy or _suggest_spec(spec, at)}")
        kept = () if problem is not None else kept
        for problem in _find_repeated_axes(kept, where, owners):
            raise ValueError(problem)
        entries.append(entry if kept == axes else make_spec_entry(kept))
    return spec if all(one is other for one, other in zip(spec, entries, strict=True)) else P(*entries)


def _drop_manual_axes(axes: tuple[Any, ...], where: str, mesh: MeshLike) -> tuple[Any, ...]:
    """Returns the mesh axes of an entry that are not Manual; raises a ValueError if the mesh lacks one of them."""
    for axis in axes:
        if axis not in mesh.axis_names:
            raise ValueError(_describe_unknown_entry(axis, where, mesh))
    return tuple(axis for axis in axes if not is_manual_axis(mesh, axis))


def _suggest_spec(spec: P, at: int) -> str:
    """Returns the remedy for a rule's spec whose entry at one dimension does not fit."""
    entries = [None if here == at else entry for here, entry in enumerate(spec)]
    fitting = P(*entries) if any(entries) else P()
    return f"use {fitting} instead, or replicate what does not fit with `uneven='replicate'`"


def _find_rank_problems(shape: Sequence[int | None], spec: P) -> Iterator[str]:
    if len(spec) > len(shape):
        entries = f"{len(spec)} {'entry' if len(spec) == 1 else 'entries'}"
        dimensions = f"{len(shape)} {'dimension' if len(shape) == 1 else 'dimensions'}"
        more = len(spec) - len(shape)
        last = "the last" if more == 1 else f"the last {more}"
        array = "the array" if None in shape else f"the array {shape}"
        yield f"{spec} has {entries}, {array} has {dimensions}; leave out {last}"


def _find_entry_problems(shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> Iterator[str]:
    owners: dict[Any, str] = {}
    for at, entry in enumerate(spec.partitions):
        where = describe_dimension(at, names) if at < len(shape) else f"entry {at}"
        if entry is P.UNCONSTRAINED:
            if AxisType.Auto not in mesh.axis_types:
                yield f"{where} is left to the compiler, which only Auto mesh axes allow, and the mesh has none"
            continue
        axes = get_requested_axes(entry)
        yield from _find_unusable_axes(axes, where, mesh)
        yield from _find_repeated_axes(axes, where, owners)
        usable = [axis for axis in axes if axis in mesh.axis_names and not is_manual_axis(mesh, axis)]
        if at < len(shape) and len(set(usable)) == len(axes):
            problem = describe_uneven(where, shape[at], usable, mesh)
            yield from () if problem is None else (problem,)


def get_requested_axes(entry: Any) -> tuple[Any, ...]:
    """Returns the mesh axes of an entry of a spec, or an invalid entry as it is."""
    return get_entry_axes(entry) if entry is None or isinstance(entry, str | tuple) else (entry,)


def describe_dimension(at: int, names: Names | None) -> str:
    """Returns the name of a dimension in messages."""
    return f"dimension {at}" if names is None else f"axis {names[at]!r}"


def _find_unusable_axes(axes: Sequence[Any], where: str, mesh: MeshLike) -> Iterator[str]:
    """Yields the mesh axes of an entry that are invalid, unknown or Manual."""
    for axis in dict.fromkeys(axes):
        if axis not in mesh.axis_names:
            yield _describe_unknown_entry(axis, where, mesh)
        elif is_manual_axis(mesh, axis):
            yield f"{where}: mesh axis {axis!r} is Manual here, where no spec can name it; leave it out"


def _describe_unknown_entry(axis: Any, where: str, mesh: MeshLike) -> str:
    """Returns the message for a mesh axis of an entry that the mesh lacks."""
    if isinstance(axis, str):
        return f"{where}: no mesh axis {axis!r} in {format_mesh(mesh)}{suggest_mesh_axis(axis, mesh)}"
    return f"{where}: an entry is a name of a mesh axis, a tuple of names, or None, not {axis!r}"


def _find_repeated_axes(axes: Sequence[Any], where: str, owners: dict[Any, str]) -> Iterator[str]:
    """Yields the mesh axes of an entry that shard another dimension too, and records all of them."""
    for axis in axes:
        if axis in owners:
            both = f"{where} twice" if owners[axis] == where else f"both {owners[axis]} and {where}"
            yield f"mesh axis {axis!r} shards {both}; leave it out of one of the entries"
        owners.setdefault(axis, where)


def _find_reduction_problems(spec: P, mesh: MeshLike) -> Iterator[str]:
    """Yields the problems of the mesh axes that a spec names as reduced or unreduced."""
    for kind in ("unreduced", "reduced"):
        for axis in sorted(getattr(spec, kind, ()), key=str):
            if axis not in mesh.axis_names:
                yield f"{kind}: no mesh axis {axis!r} in {format_mesh(mesh)}{suggest_mesh_axis(str(axis), mesh)}"
            elif mesh.axis_types[mesh.axis_names.index(axis)] != AxisType.Explicit:
                yield f"{kind}: mesh axis {axis!r} is not Explicit, and an array can be {kind} over such alone"
