"""Windows that reach over the end of a shard: what a device needs from its neighbours, and how it gets it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..named._axis_layout import AxisLayout


class Halo(NamedTuple):
    """What a device needs from its neighbours for its part of a result, along one axis."""

    before: int
    """How many elements of the device before."""
    after: int
    """How many elements of the device after."""
    padding: tuple[int, int]
    """How much is then added at both ends, or cut off where it is negative."""


def plan_halo(
    count: int, size: int, result_size: int, window: int, stride: int, start: int, spread: int = 1
) -> Halo | None:
    """Returns the halo of an axis in `count` shards, None if devices need different parts or those of far neighbours.

    Args:
        count: The number of shards.
        size: The number of elements.
        result_size: The number of windows.
        window: How many elements a window spans.
        stride: How far it moves each time.
        start: How many elements are added before the first one.
        spread: The distance between elements where zeros are put between them; the three before count these zeros.
    """
    if count == 1 or size % count or result_size % count or result_size * stride != size * spread:
        return None
    shard = size // count
    end = (result_size // count - 1) * stride - start + window  # of the last window, from the first own element on
    before, after = max(0, -(-start // spread)), max(0, -(-end // spread) - shard)
    if max(before, after) > shard:
        return None
    return Halo(before, after, (start - before * spread, end - (shard + after - 1) * spread - 1))


def add_halo(x: Any, dim: int, halo: Halo, layout: AxisLayout, axis: str, fill: Any) -> Any:
    """Returns the shard of a device with the elements of its neighbours; beyond the ends there is a fill value."""
    mesh_axes, count = layout.list_mesh_axes((axis,)), layout.count_shards((axis,))
    place, size = jax.lax.axis_index(mesh_axes), x.shape[dim]
    parts = [x]
    if halo.before:
        last = jax.lax.slice_in_dim(x, size - halo.before, size, axis=dim)
        sent = jax.lax.ppermute(last, mesh_axes, [(device, device + 1) for device in range(count - 1)])
        parts.insert(0, jnp.where(place == 0, fill, sent))
    if halo.after:
        first = jax.lax.slice_in_dim(x, 0, halo.after, axis=dim)
        sent = jax.lax.ppermute(first, mesh_axes, [(device + 1, device) for device in range(count - 1)])
        parts.append(jnp.where(place == count - 1, fill, sent))
    return jnp.concatenate(parts, axis=dim)
