"""Why arrays are not sharded over a mesh axis, and whether they could be."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from jax.sharding import PartitionSpec as P

from ..named._axis import Names
from ..partitioning.sharding._partition_specs import get_sharded_axes, pad_spec
from ..partitioning.specs._active_mesh import MeshLike, is_manual_axis
from ..partitioning.specs._spec_problems import describe_dimension


class UnusedAxis(NamedTuple):
    """A mesh axis that an array is not sharded over: its name, whether it could shard the array, and the reason."""

    axis: str
    is_free: bool
    why: str


def get_spec_axes(spec: P | None) -> tuple[str, ...]:
    """Returns the mesh axes that a spec shards an array over, in order."""
    return () if spec is None else tuple(axis for entry in spec.partitions for axis in get_sharded_axes(entry))


def get_shard_shape(shape: tuple[int, ...], spec: P | None, mesh: MeshLike) -> tuple[int, ...]:
    """Returns the shape of the part of an array on each device."""
    entries = map(get_sharded_axes, pad_spec(spec, len(shape)))
    parts = (math.prod(mesh.shape[axis] for axis in axes) for axes in entries)
    return tuple(size // number for size, number in zip(shape, parts, strict=True))


def find_unused_axes(shape: tuple[int, ...], names: Names | None, spec: P | None, mesh: MeshLike) -> list[UnusedAxis]:
    """Returns the mesh axes that do not shard an array, which are all of them if its spec is invalid."""
    if spec is None:
        invalid = "its spec is invalid"
        return [UnusedAxis(axis, False, _explain_useless_axis(axis, mesh) or invalid) for axis in mesh.axis_names]
    used = get_spec_axes(spec)
    unused = [axis for axis in mesh.axis_names if axis not in used or mesh.shape[axis] == 1]
    return [_explain_unused_axis(axis, shape, names, spec, mesh) for axis in unused]


def find_free_axes(shape: tuple[int, ...], spec: P, mesh: MeshLike) -> list[str]:
    """Returns the mesh axes over which an array may be sharded further, if its sizes are divisible by theirs."""
    used = get_spec_axes(spec)
    free = [axis for axis in mesh.axis_names if axis not in used and _explain_useless_axis(axis, mesh) is None]
    return [axis for axis in free if _explain_blocked_axis(axis, shape, spec) is None]


def _explain_unused_axis(axis: str, shape: tuple[int, ...], names: Names | None, spec: P, mesh: MeshLike) -> UnusedAxis:
    why = _explain_useless_axis(axis, mesh) or _explain_blocked_axis(axis, shape, spec)
    if why is not None:
        return UnusedAxis(axis, False, why)
    shard, size = get_shard_shape(shape, spec, mesh), mesh.shape[axis]
    fits = [at for at, part in enumerate(shard) if part % size == 0]
    if fits:
        best = max(fits, key=lambda at: shard[at])
        others = get_sharded_axes(pad_spec(spec, len(shard))[best])
        along = f" along with {', '.join(map(repr, others))}" if others else ""
        return UnusedAxis(axis, True, f"unused; it could shard {describe_dimension(best, names)}{along}")
    array = f"the array {shape}" if shard == shape else f"the shard {shard} on each device"
    if max(shard) < size:
        return UnusedAxis(axis, False, f"its size {size} is larger than any dimension of {array}")
    return UnusedAxis(axis, False, f"no dimension of {array} is divisible by its size {size}")


def _explain_useless_axis(axis: str, mesh: MeshLike) -> str | None:
    """Returns why no array can be sharded over a mesh axis, None if arrays can."""
    if is_manual_axis(mesh, axis):
        return "it is Manual here"
    return "it has size 1" if mesh.shape[axis] == 1 else None


def _explain_blocked_axis(axis: str, shape: tuple[int, ...], spec: P) -> str | None:
    """Returns why an array cannot be sharded over a mesh axis, whatever its sizes are; None if it can."""
    for kind in ("unreduced", "reduced"):
        if axis in getattr(spec, kind, ()):
            return f"the array is {kind} over it"
    if not shape:
        return "the array has no dimensions"
    if 0 in shape:
        return "the array is empty"
    return "left to the compiler" if P.UNCONSTRAINED in spec.partitions else None


def summarize_unused_axis(axis: str, mesh: MeshLike, leaves: Sequence[Sequence[UnusedAxis]]) -> str:
    """Returns why no array is sharded over a mesh axis, from the reasons of each array."""
    useless = _explain_useless_axis(axis, mesh)
    if useless is not None or not leaves:
        return useless or "there are no arrays"
    reasons = [one for leaf in leaves for one in leaf if one.axis == axis]
    free = sum(one.is_free for one in reasons)
    if free:
        return f"unused; it could shard {free} of {len(leaves)} arrays"
    kinds = {one.why for one in reasons}
    return kinds.pop() if len(kinds) == 1 else f"no free dimension of any array is divisible by {mesh.shape[axis]}"
