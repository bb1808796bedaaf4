"""Why each axis of an array is sharded as it is: by a mapping or by a spec."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec as P

from ..named._axis import Names
from ..named._axis_layout import format_mesh_axes, round_up
from ..partitioning.mapping._mapping import AxisMapping
from ..partitioning.mapping._typos import is_typo
from ..partitioning.sharding._partition_specs import get_sharded_axes, pad_spec
from ..partitioning.specs._active_mesh import MeshLike, is_manual_axis
from ..partitioning.specs._resolve_spec import resolve_spec
from ..partitioning.specs._spec_problems import describe_dimension
from ._explanation import AxisExplanation, Decision, format_entry
from ._unused_axes import find_free_axes


class LeafMapping(NamedTuple):
    """The mapping of an array, whether only its part of the tree has this mapping, and the names of all arrays."""

    mapping: AxisMapping
    is_of_part: bool
    names: frozenset[str]

    def format_entry(self, name: str) -> str:
        """Returns the entry for a name as it is written, and whether it is in the mapping of a part."""
        axes = self.mapping.mesh_axes(name)
        entry = format_entry(name, axes) if axes else f"{name!r}: None"
        return f"{entry} in the mapping of this part" if self.is_of_part else entry

    def find_near_miss(self, name: str) -> str | None:
        """Returns a name that was perhaps meant, a short one only if no array has an axis of that name."""
        found = (known for known in self.mapping if is_typo(name, known, 4 if known in self.names else 3))
        return next(found, None)


def explain_named_axis(name: str, size: int, entry: Any, of: LeafMapping, mesh: MeshLike) -> AxisExplanation:
    """Explains an axis by its entry in the mapping and in the spec that follows from it."""
    requested = of.mapping.mesh_axes(name)
    if requested:
        given = get_sharded_axes(entry)
        return _explain_requested_axis(name, size, requested, given, "mapping", of.format_entry(name), mesh)
    if of.mapping.knows(name):
        return AxisExplanation(name, size, (), 1, "None", of.format_entry(name))
    near = of.find_near_miss(name)
    why = "not in the mapping of this part" if of.is_of_part else "not in the mapping"
    why += "" if near is None else f"; did you mean {near!r}?"
    return AxisExplanation(name, size, (), 1, "not in the mapping", why, near)


def explain_invalid_axes(
    names: Names, sizes: tuple[int, ...], of: LeafMapping, mesh: MeshLike, error: str
) -> list[AxisExplanation]:
    """Explains each axis of an array with an error, whether it causes the error or not."""
    claims = [axis for name in names for axis in of.mapping.mesh_axes(name)]
    axes: list[AxisExplanation] = []
    for name, size in zip(names, sizes, strict=True):
        try:
            (entry,) = resolve_spec((name,), (size,), of.mapping, mesh, warn=False)
            axis = explain_named_axis(name, size, entry, of, mesh)
            cause = error if any(claims.count(one) > 1 for one in axis.mesh_axes) else None
        except ValueError as refused:
            axis, cause = None, str(refused)
        axes.append(axis if axis and not cause else AxisExplanation(name, size, (), 1, "refused", cause or error))
    return axes


def explain_axes(
    shape: tuple[int, ...],
    names: Names | None,
    spec: P,
    mesh: MeshLike | None,
    decision: Decision,
    source: str,
    *,
    requested: P | None = None,
    unsharded: str | None = None,
) -> list[AxisExplanation]:
    """Explains each dimension of an array: over which mesh axes a spec shards it, or which others could.

    Args:
        shape: The sizes of the array.
        names: The names of its axes, if it has some.
        spec: Its valid spec.
        mesh: The mesh of the spec; None if the array is not sharded.
        decision: The origin of the spec.
        source: The same in words.
        requested: The requested spec, if some of its mesh axes may have been left out.
        unsharded: The reason why a dimension is not sharded; by default, the source.
    """
    free = [] if mesh is None else find_free_axes(shape, spec, mesh)
    given, asked = pad_spec(spec, len(shape)), pad_spec(spec if requested is None else requested, len(shape))
    axes: list[AxisExplanation] = []
    for at, size in enumerate(shape):
        name, over, entry = None if names is None else names[at], get_sharded_axes(given[at]), asked[at]
        if entry is P.UNCONSTRAINED:
            parts = 1 if mesh is None else math.prod(mesh.shape[axis] for axis in over)
            axes.append(AxisExplanation(name, size, over, parts, decision, f"{source}: left to the compiler"))
        elif mesh is not None and get_sharded_axes(entry):
            why = f"{source}: {' x '.join(map(repr, get_sharded_axes(entry)))}"
            axes.append(_explain_requested_axis(name, size, get_sharded_axes(entry), over, decision, why, mesh))
        else:
            why = "; ".join([unsharded or f"{source}: replicated", *_advise_axis(size, free, mesh)])
            axes.append(AxisExplanation(name, size, (), 1, decision, why))
    return axes


def explain_refused_axes(shape: tuple[int, ...], names: Names | None, problems: Sequence[str]) -> list[AxisExplanation]:
    """Explains each dimension of an array with an invalid spec, by its own problems or else by all."""
    axes: list[AxisExplanation] = []
    for at, size in enumerate(shape):
        own = [each for each in problems if describe_dimension(at, names) in each]
        why = "; ".join(own or problems)
        axes.append(AxisExplanation(None if names is None else names[at], size, (), 1, "refused", why))
    return axes


def _explain_requested_axis(
    name: str | None,
    size: int,
    requested: tuple[str, ...],
    given: tuple[str, ...],
    decision: Decision,
    why: str,
    mesh: MeshLike,
) -> AxisExplanation:
    """Explains whether an axis is sharded over the requested mesh axes, or why not."""
    usable = [axis for axis in requested if not is_manual_axis(mesh, axis)]
    parts = math.prod(mesh.shape[axis] for axis in given)
    if not usable:
        decision, why = "manual", f"{why}, which is Manual here"
    elif not given and size == 1:
        decision, why = "size 1", f"{why}, but an axis of size 1 is replicated"
    elif not given:
        fits = round_up(size, math.prod(mesh.shape[axis] for axis in usable))
        over = format_mesh_axes(usable, mesh)
        decision, why = "uneven", f"{why}, but {size} is not divisible by {over}; the next size that fits is {fits}"
    elif parts == 1:
        decision, why = "size 1", f"{why}, which has size 1"
    return AxisExplanation(name, size, given, parts, decision, why)


def _advise_axis(size: int, free: list[str], mesh: MeshLike | None) -> Iterator[str]:
    """Yields how the free mesh axes could shard a dimension."""
    if mesh is None or not free:
        return
    fit = [axis for axis in free if size and size % mesh.shape[axis] == 0]
    if fit:
        yield f"{' or '.join(map(repr, fit))} could shard it"
        return
    axis = min(free, key=lambda one: mesh.shape[one])
    if size > mesh.shape[axis]:
        fits = round_up(size, mesh.shape[axis])
        yield f"not divisible by {format_mesh_axes([axis], mesh)}, the next size that fits is {fits}"
