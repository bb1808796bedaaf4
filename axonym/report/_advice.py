"""Why mesh axes do not divide an array, what is to be said of each of its dimensions, and what padding would help."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec as P

from ..named._axis import Names
from ..partitioning.sharding._partition_specs import get_sharded_axes, pad_spec
from ..partitioning.specs._active_mesh import MeshLike, is_manual_axis
from ..partitioning.specs._bytes_per_device import count_array_bytes
from ..partitioning.specs._divisibility import round_up
from ..partitioning.specs._spec_problems import describe_dimension, find_spec_problems, get_requested_axes
from ._explanation import AxisExplanation, Decision
from ._leaf import Padding
from ._problems import divided


_MOST_PADDINGS = 3
_MOST_GROWTH = 1.5  # more padding than half of a dimension is no advice


ASKED = "the spec asks for it and is refused"


class Unused(NamedTuple):
    """A mesh axis that does not divide an array: which, whether it could as things are, and why it does not."""

    axis: str
    could: bool
    why: str


@functools.lru_cache(maxsize=8192)
def unused_axes(shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> tuple[Unused, ...]:
    """Returns the mesh axes that do not divide an array, in the order of the mesh, each with the reason."""
    used = divided(spec)
    return tuple(
        _unused(axis, shape, names, spec, mesh) for axis in mesh.axis_names if axis not in used or mesh.shape[axis] == 1
    )


def unused_if_refused(spec: P | None, mesh: MeshLike) -> tuple[Unused, ...]:
    """Returns the mesh axes of an array whose spec is refused, none of which divides it."""
    entries = () if spec is None else spec.partitions
    asked = {axis for entry in entries if entry is not P.UNCONSTRAINED for axis in get_requested_axes(entry)}
    return tuple(
        Unused(axis, False, axis_alone(axis, mesh) or (ASKED if axis in asked else "the spec is refused"))
        for axis in mesh.axis_names
    )


def _unused(axis: str, shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> Unused:
    left = parts_of(shape, spec, mesh)
    why = axis_alone(axis, mesh) or _kept_from(axis, left, spec)
    fits = [] if why is not None else [at for at, part in enumerate(left) if part % mesh.shape[axis] == 0]
    if fits:
        best = max(fits, key=lambda at: left[at])
        beside = get_sharded_axes(pad_spec(spec, len(left))[best])
        also = f" beside {', '.join(map(repr, beside))}" if beside else ""
        return Unused(axis, True, f"nothing asks for it; it could divide {describe_dimension(best, names)}{also}")
    return Unused(axis, False, _too_small(mesh.shape[axis], shape, left) if why is None else why)


def _kept_from(axis: str, left: tuple[int, ...], spec: P) -> str | None:
    """Returns what keeps a mesh axis from dividing an array, whatever its sizes are."""
    for kind in ("unreduced", "reduced"):
        if axis in getattr(spec, kind, ()):
            return f"the array is {kind} over it"
    if not left:
        return "the array has no dimensions"
    if 0 in left:
        return "the array is empty"
    return "left to the compiler" if P.UNCONSTRAINED in spec.partitions else None


def _free(left: tuple[int, ...], spec: P, mesh: MeshLike) -> list[str]:
    """Returns the mesh axes that may divide the parts of an array further, if their sizes do."""
    used = divided(spec)
    return [
        axis
        for axis in mesh.axis_names
        if axis not in used and axis_alone(axis, mesh) is None and _kept_from(axis, left, spec) is None
    ]


def _too_small(size: int, shape: tuple[int, ...], left: tuple[int, ...]) -> str:
    what = f"the array {shape}" if left == shape else f"the part {left} on each device"
    if max(left) < size:
        return f"size {size} is too much for {what}"
    return f"size {size} divides no dimension of {what}"


def unused_by_all(axis: str, mesh: MeshLike, leaves: Sequence[Sequence[Unused]]) -> str:
    """Returns why a mesh axis divides none of the arrays, each of which has its own reasons."""
    alone = axis_alone(axis, mesh)
    if alone is not None or not leaves:
        return alone or "there are no arrays"
    reasons = [one for leaf in leaves for one in leaf if one.axis == axis]
    asked = sum(one.why == ASKED for one in reasons)
    if asked:
        return f"what asks for it is refused, for {asked} of {len(leaves)} arrays"
    could = sum(one.could for one in reasons)
    if could:
        return f"nothing asks for it; it could divide {could} of {len(leaves)} arrays"
    kinds = dict.fromkeys(one.why for one in reasons)
    if len(kinds) == 1:
        return next(iter(kinds))
    return f"size {mesh.shape[axis]} divides no dimension that is free, of any array"


def axis_alone(axis: str, mesh: MeshLike) -> str | None:
    """Returns why a mesh axis can divide nothing at all, None if it can."""
    if is_manual_axis(mesh, axis):
        return "it is Manual here"
    return "it has size 1" if mesh.shape[axis] == 1 else None


def parts_of(shape: tuple[int, ...], spec: P | None, mesh: MeshLike | None) -> tuple[int, ...]:
    """Returns the shape of the part of an array that each device holds."""
    if spec is None or mesh is None:
        return shape
    sizes = mesh.shape
    entries = pad_spec(spec, len(shape))
    return tuple(
        size // math.prod(sizes[axis] for axis in get_sharded_axes(entry))
        for size, entry in zip(shape, entries, strict=True)
    )


@functools.lru_cache(maxsize=8192)
def axes_explained(
    shape: tuple[int, ...],
    names: Names | None,
    spec: P,
    mesh: MeshLike,
    decision: Decision,
    whole: str | None = None,
    by: str = "",
) -> tuple[AxisExplanation, ...]:
    """Explains each dimension of an array: that a spec divides it, or why it is whole and what mesh axes could."""
    says = by or ("the spec" if decision == "spec" else "its own sharding")
    whole = whole or f"{says} leaves it whole"
    gives = f"{by}:" if by else f"{says} says"
    free = _free(parts_of(shape, spec, mesh), spec, mesh)
    found: list[AxisExplanation] = []
    for at, (size, entry) in enumerate(zip(shape, pad_spec(spec, len(shape)), strict=True)):
        axes = get_sharded_axes(entry)
        parts = math.prod(mesh.shape[axis] for axis in axes)
        kind: Decision = "size 1" if axes and parts == 1 else decision
        if entry is P.UNCONSTRAINED:
            why = f"{says} leaves it to the compiler"
        elif axes:
            why = f"{gives} {' x '.join(map(repr, axes))}" + (", which has size 1" if parts == 1 else "")
        else:
            why = "; ".join([whole, *_could(size, free, mesh)])
        found.append(AxisExplanation(None if names is None else names[at], size, axes, parts, kind, why))
    return tuple(found)


def _could(size: int, free: list[str], mesh: MeshLike) -> Iterator[str]:
    """Yields what the mesh axes that are free could do for a dimension that is whole."""
    fit = [axis for axis in free if size and size % mesh.shape[axis] == 0]
    if fit:
        yield f"{' or '.join(map(repr, fit))} could divide it"
    elif free:
        axis = min(free, key=lambda one: mesh.shape[one])
        parts = mesh.shape[axis]
        if size > parts:
            fits = round_up(size, parts)
            yield f"{axis!r} of size {parts} does not divide it, the next size that fits is {fits}"


def axes_refused(shape: tuple[int, ...], names: Names | None, problems: tuple[str, ...]) -> tuple[AxisExplanation, ...]:
    """Explains the dimensions of an array whose spec is refused: those that are to blame, and the others."""
    found: list[AxisExplanation] = []
    for at, size in enumerate(shape):
        where = describe_dimension(at, names)
        own = [each for each in problems if where in each]
        why = "; ".join(own or problems)
        found.append(AxisExplanation(None if names is None else names[at], size, (), 1, "refused", why))
    return tuple(found)


@functools.lru_cache(maxsize=8192)
def paddings(shape: tuple[int, ...], dtype: Any, spec: P, mesh: MeshLike) -> tuple[Padding, ...]:
    """Returns larger sizes of single dimensions with which more mesh axes divide an array, the best first.

    Only those that save memory on each device count, and of those with which it is the same the fewest mesh axes.
    """
    left = parts_of(shape, spec, mesh)
    free = _free(left, spec, mesh)
    now = count_array_bytes(dtype, left)
    found: list[Padding] = []
    for at, part in enumerate(left):
        parts = shape[at] // part if part else 0
        for axes in _choices(free) if part else ():
            over = math.prod(mesh.shape[axis] for axis in axes)
            padded = round_up(part, over)
            if padded == part or padded > part * _MOST_GROWTH:
                continue
            then = count_array_bytes(dtype, (*left[:at], padded // over, *left[at + 1 :]))
            if then < now:
                own = get_sharded_axes(pad_spec(spec, len(shape))[at])
                found.append(Padding(at, shape[at], padded * parts, (*own, *axes), then))
    found.sort(key=lambda one: (one.bytes_per_device, len(one.mesh_axes)))
    return tuple(found[:_MOST_PADDINGS])


def asked_paddings(shape: tuple[int, ...], dtype: Any, spec: P, mesh: MeshLike) -> tuple[Padding, ...]:
    """Returns the sizes with which a spec fits an array that it does not fit, one for each dimension to pad.

    There are none if more is wrong than sizes. The bytes are those with all dimensions padded.
    """
    if len(spec) > len(shape):
        return ()
    over = [() if entry is P.UNCONSTRAINED else get_requested_axes(entry) for entry in pad_spec(spec, len(shape))]
    if any(axis not in mesh.axis_names for axes in over for axis in axes):
        return ()
    parts = [math.prod(mesh.shape[axis] for axis in axes) for axes in over]
    padded = tuple(round_up(size, number) for size, number in zip(shape, parts, strict=True))
    if find_spec_problems(padded, None, spec, mesh):
        return ()
    then = count_array_bytes(dtype, parts_of(padded, spec, mesh))
    changed = [at for at, size in enumerate(padded) if size != shape[at]]
    return tuple(Padding(at, shape[at], padded[at], over[at], then) for at in changed)


def _choices(free: list[str]) -> Iterator[tuple[str, ...]]:
    """Yields which of the free mesh axes may go on one dimension together: each, each two, and all."""
    for number in sorted({1, 2, len(free)}):
        yield from itertools.combinations(free, number) if number <= len(free) and number else ()
