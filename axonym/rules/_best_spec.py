"""The search that rules share: over which mesh axes to shard which dimensions of an array, among all ways to do so.

This is dynamic programming over the mesh axes. Among the assignments of the first axes after which the remaining ones
have the same choices, only the best is kept. So it finds the best assignment, with a few dozen steps for real shapes
and meshes, without listing all of them.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from jax.sharding import AxisType, PartitionSpec as P

from .._ground.caches import cached_plan
from ..named._axis_layout import make_spec_entry
from ..partitioning._active_mesh import MeshLike, check_mesh_axes


MeshAxes: TypeAlias = tuple[tuple[str, int], ...]
"""Mesh axes and their sizes, in the order of the mesh."""

WantedDims: TypeAlias = tuple[tuple[str, int], ...]
"""For some mesh axes the dimension that each should shard, if it can."""


class _State(NamedTuple):
    """What the choices for the remaining mesh axes depend on.

    Args:
        divisors: For each dimension the greatest divisor of its shard size that the remaining mesh axes can use.
        sharded: The sharded dimensions.
        parts: The number of parts in all, 1 where it is not limited: then it is part of the merit.
    """

    divisors: tuple[int, ...]
    sharded: frozenset[int]
    parts: int


_Merit: TypeAlias = tuple[int, int, tuple[int, ...]]
"""The cost of a way to a state, less is better: minus the parts, misplaced mesh axes, and the rank of each axis.

The rank of a mesh axis is that of the dimension that it shards, in the order of preference; the last if it shards none.
"""


def get_usable_axes(mesh: MeshLike, names: Iterable[str] | None = None) -> MeshAxes:
    """Returns the mesh axes of these names, all if None, that can shard something: larger than 1 and not Manual."""
    names = mesh.axis_names if names is None else tuple(names)
    check_mesh_axes(mesh, names)
    return tuple(
        (name, size)
        for (name, size), kind in zip(mesh.shape.items(), mesh.axis_types, strict=True)
        if size > 1 and kind != AxisType.Manual and name in names
    )


@cached_plan
def find_best_spec(
    shape: tuple[int, ...],
    axes: MeshAxes,
    *,
    order: tuple[int, ...] | None = None,
    wanted_dims: WantedDims = (),
    replicated: frozenset[int] = frozenset(),
    max_parts: int | None = None,
    target_parts: int | None = None,
) -> P:
    """Returns the spec of an array that shards it into the most equal parts.

    Among specs with equally many parts it prefers, in this order, mesh axes where they are wanted, a replicated first
    dimension if it looks like a stack of layers, more sharded dimensions, dimensions that come first in `order`, and
    the first mesh axis on the first dimension.

    Args:
        shape: The sizes of the array.
        axes: The mesh axes to use, each at most once.
        order: The dimensions in the order of preference; by position, larger ones sharded first, if None.
        wanted_dims: Where mesh axes should go, if that does not reduce the number of parts.
        replicated: Dimensions that are not sharded.
        max_parts: The largest number of parts, if there is a limit.
        target_parts: The number of parts that suffices; the smallest possible number of at least as many is used.

    Returns:
        A spec with one entry for each dimension; an empty one if nothing is sharded, such as an array without elements.
    """
    if 0 in shape:
        return P()
    order_or_position = order or tuple(range(len(shape)))
    by_size = order or tuple(sorted(order_or_position, key=lambda dim: (-shape[dim], dim)))
    preference = {dim: rank for rank, dim in enumerate(by_size)}
    possible = math.prod(size for _, size in axes)
    max_parts = None if max_parts is None or max_parts >= possible else max(max_parts, 1)
    target_parts = None if target_parts is None or target_parts >= possible else max(target_parts, 1)
    free = [(rank, dim) for rank, dim in enumerate(order_or_position) if dim not in replicated]
    states = _search_states(shape, axes, free, dict(wanted_dims), max_parts, target_parts)

    def rank_state(state: _State) -> Any:
        minus_parts, misplaced, ranks = states[state]
        parts, sharded = state.parts * -minus_parts, state.sharded
        has_too_few_parts = target_parts is not None and parts < target_parts
        # Beyond the number of parts that suffices, fewer are better.
        parts_rank = -parts if target_parts is None or has_too_few_parts else parts
        # Layers may be stacked along the first dimension: the smallest, before at least two others.
        shards_stack = 0 in sharded and len(shape) > 2 and all(shape[0] < size for size in shape[1:])
        dim_ranks = sorted(preference[dim] for dim in sharded)
        return has_too_few_parts, parts_rank, misplaced, shards_stack, -len(sharded), dim_ranks, ranks

    entries: list[tuple[str, ...]] = [()] * len(shape)
    for (name, _), rank in zip(axes, states[min(states, key=rank_state)][2], strict=True):
        if rank < len(shape):  # the last rank is that of mesh axes that shard nothing
            entries[order_or_position[rank]] += (name,)
    return P(*map(make_spec_entry, entries)) if any(entries) else P()


def _search_states(
    shape: tuple[int, ...],
    axes: MeshAxes,
    free: list[tuple[int, int]],
    wanted_dims: dict[str, int],
    max_parts: int | None,
    target_parts: int | None,
) -> dict[_State, _Merit]:
    """Returns the states after all mesh axes, with the merit of the best way to each."""
    is_limited = max_parts is not None or target_parts is not None
    states: dict[_State, _Merit] = {_State(shape, frozenset(), 1): (-1, 0, ())}
    for number, (name, size) in enumerate(axes):
        later_parts = math.prod(later_size for _, later_size in axes[number + 1 :])
        next_states: dict[_State, _Merit] = {}
        for (divisors, sharded, parts), (minus_parts, misplaced, ranks) in states.items():
            # Without this mesh axis:
            later_divisors = tuple([math.gcd(divisor, later_parts) for divisor in divisors])
            merit = minus_parts, misplaced + (name in wanted_dims), (*ranks, len(shape))
            state = _State(later_divisors, sharded, parts)
            next_states[state] = min(merit, next_states.get(state, merit))
            if max_parts is not None and parts * size > max_parts:
                continue
            if target_parts is not None and parts >= target_parts:
                continue
            # With this mesh axis on each dimension that it divides:
            for rank, dim in free:
                if divisors[dim] % size:
                    continue
                new_divisors = list(later_divisors)
                new_divisors[dim] = math.gcd(divisors[dim] // size, later_parts)
                is_misplaced = wanted_dims.get(name, dim) != dim
                # Without a limit the choices do not depend on the parts, so they only count as a merit.
                new_parts = parts * size if is_limited else parts
                new_minus_parts = minus_parts if is_limited else minus_parts * size
                state = _State(tuple(new_divisors), sharded | {dim}, new_parts)
                merit = new_minus_parts, misplaced + is_misplaced, (*ranks, rank)
                next_states[state] = min(merit, next_states.get(state, merit))
        states = next_states
    return states
