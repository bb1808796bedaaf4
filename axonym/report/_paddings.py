"""Larger sizes with which an array can be sharded over more mesh axes, or with which its spec is valid."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from jax.sharding import PartitionSpec as P

from ..named._axis_layout import round_up
from ..partitioning.sharding._partition_specs import get_sharded_axes, pad_spec
from ..partitioning.specs._active_mesh import MeshLike
from ..partitioning.specs._bytes_per_device import count_array_bytes
from ..partitioning.specs._spec_problems import find_spec_problems, get_requested_axes
from ._leaf_report import Padding
from ._unused_axes import find_free_axes, get_shard_shape


_MOST_PADDINGS = 3
_MOST_GROWTH = 1.5  # padding by more than half of a dimension is not worth advising


def find_paddings(shape: tuple[int, ...], dtype: Any, spec: P, mesh: MeshLike) -> tuple[Padding, ...]:
    """Returns larger sizes of single dimensions that save memory on each device, the best first.

    Of paddings that save the same, the one with the fewest mesh axes comes first.
    """
    shard = get_shard_shape(shape, spec, mesh)
    free = find_free_axes(shape, spec, mesh)
    now = count_array_bytes(dtype, shard)
    found: list[Padding] = []
    for at, part in enumerate(shard):
        for axes in _combine_axes(free) if part else ():
            over = math.prod(mesh.shape[axis] for axis in axes)
            padded = round_up(part, over)
            if padded == part or padded > part * _MOST_GROWTH:
                continue
            then = count_array_bytes(dtype, (*shard[:at], padded // over, *shard[at + 1 :]))
            if then < now:
                own = get_sharded_axes(pad_spec(spec, len(shape))[at])
                found.append(Padding(at, shape[at], padded * (shape[at] // part), (*own, *axes), then))
    found.sort(key=lambda one: (one.bytes_per_device, len(one.mesh_axes)))
    return tuple(found[:_MOST_PADDINGS])


def find_required_paddings(shape: tuple[int, ...], dtype: Any, spec: P, mesh: MeshLike) -> tuple[Padding, ...]:
    """Returns the sizes that make an invalid spec valid, one for each dimension to pad; none if sizes don't suffice.

    The bytes are those with all dimensions padded.
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
    then = count_array_bytes(dtype, get_shard_shape(padded, spec, mesh))
    changed = [at for at, size in enumerate(padded) if size != shape[at]]
    return tuple(Padding(at, shape[at], padded[at], over[at], then) for at in changed)


def _combine_axes(free: list[str]) -> Iterator[tuple[str, ...]]:
    """Yields which of the free mesh axes may shard one dimension together: each, each pair, and all."""
    for number in sorted({1, 2, len(free)}):
        yield from itertools.combinations(free, number) if number <= len(free) and number else ()
