"""Padding that a report advises: larger sizes with which an array is sharded further, or its spec is valid."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec as P

from ..named._axis_layout import MeshLike, round_up
from ..partitioning._leaves import count_array_bytes
from ..partitioning._resolve_spec import find_spec_problems, get_requested_axes
from ..partitioning._shard import get_sharded_axes, pad_spec
from ._explain import find_free_axes, get_shard_shape
from ._explanation import LeafReport, Padding


_MAX_PADDINGS = 3  # of an array: the best of them, which a reader takes in at a glance
_MAX_PADDING_GROWTH = 1.5  # operations compute on padding as well; by more than half it is not worth advising


def find_paddings(shape: tuple[int, ...], dtype: Any, spec: P, mesh: MeshLike) -> tuple[Padding, ...]:
    """Returns larger sizes of single dimensions that save memory on each device, the best first.

    Of paddings that save the same, the one with the fewest mesh axes comes first.
    """
    shard = get_shard_shape(shape, spec, mesh)
    free = find_free_axes(shape, spec, mesh)
    # A dimension may get any free mesh axis, any two of them, or all.
    choices = [axes for number in sorted({1, 2, len(free)} - {0}) for axes in itertools.combinations(free, number)]
    current_bytes = count_array_bytes(dtype, shard)
    paddings: list[Padding] = []
    for dim, part in enumerate(shard):
        for axes in choices if part else ():
            parts = math.prod(mesh.shape[axis] for axis in axes)
            padded = round_up(part, parts)
            if padded == part or padded > part * _MAX_PADDING_GROWTH:
                continue
            padded_bytes = count_array_bytes(dtype, (*shard[:dim], padded // parts, *shard[dim + 1 :]))
            if padded_bytes < current_bytes:
                dim_axes = get_sharded_axes(pad_spec(spec, len(shape))[dim])
                paddings.append(
                    Padding(dim, shape[dim], padded * (shape[dim] // part), (*dim_axes, *axes), padded_bytes)
                )
    paddings.sort(key=lambda padding: (padding.bytes_per_device, len(padding.mesh_axes)))
    return tuple(paddings[:_MAX_PADDINGS])


def find_required_paddings(shape: tuple[int, ...], dtype: Any, spec: P, mesh: MeshLike) -> tuple[Padding, ...]:
    """Returns a padding for each dimension that an invalid spec needs padded; none if padding does not make it valid.

    The bytes are those with all dimensions padded.
    """
    if len(spec) > len(shape):
        return ()
    requested_axes = [
        () if entry is P.UNCONSTRAINED else get_requested_axes(entry) for entry in pad_spec(spec, len(shape))
    ]
    if any(axis not in mesh.axis_names for axes in requested_axes for axis in axes):
        return ()
    parts = [math.prod(mesh.shape[axis] for axis in axes) for axes in requested_axes]
    padded = tuple(round_up(size, number) for size, number in zip(shape, parts, strict=True))
    if find_spec_problems(padded, None, spec, mesh):
        return ()
    padded_bytes = count_array_bytes(dtype, get_shard_shape(padded, spec, mesh))
    changed = [dim for dim, size in enumerate(padded) if size != shape[dim]]
    return tuple(Padding(dim, shape[dim], padded[dim], requested_axes[dim], padded_bytes) for dim in changed)


def format_paddings(leaf: LeafReport, paddings: Sequence[Padding]) -> str:
    """Returns in words which dimensions of an array to pad together."""
    texts: list[str] = []
    for padding in paddings:
        name, mesh_axes = leaf.axes[padding.dimension].name, " x ".join(map(repr, padding.mesh_axes))
        dimension = f"dimension {padding.dimension}" if name is None else f"axis {name!r}"
        texts.append(f"{dimension} from {padding.size} to {padding.padded_size} for {mesh_axes}")
    return " and ".join(texts)


def list_padding_choices(leaf: LeafReport) -> list[tuple[Padding, ...]]:
    """Returns the ways to pad an array: one dimension, or together all that an invalid spec needs."""
    if leaf.error and leaf.padding:
        return [leaf.padding]
    return [(padding,) for padding in leaf.padding]
