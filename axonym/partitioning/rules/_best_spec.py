"""The search that rules share: over which mesh axes to shard which dimensions of an array, among all ways to do so.

This is dynamic programming over the mesh axes. Among the assignments of the first axes after which the remaining ones
have the same choices, only the best is kept. So it finds the best assignment, with a few dozen steps for real shapes
and meshes, without listing all of them.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from jax.sharding import AxisType, PartitionSpec as P

from ...named._axis_layout import make_spec_entry
from ...named._cache import cached_plan
from ..specs._active_mesh import MeshLike, check_mesh_axes


MeshAxes: TypeAlias = tuple[tuple[str, int], ...]
"""Mesh axes and their sizes, in the order of the mesh."""

Wanted: TypeAlias = tuple[tuple[str, int], ...]
"""For some mesh axes the dimension that each should shard, if it can."""


class _State(NamedTuple):
    """What the choices for the remaining mesh axes depend on.

    Args:
        left: For each dimension the greatest divisor of its shard size that the remaining mesh axes can use.
        sharded: The sharded dimensions.
        parts: The number of parts in all, 1 where it is not limited: then it is part of the merit.
    """

    left: tuple[int, ...]
    sharded: frozenset[int]
    parts: int


_Merit: TypeAlias = tuple[int, int, tuple[int, ...]]
"""The cost of a way to a state, less is better: minus the parts, misplaced mesh axes, and the rank of each axis."""


def get_usable_axes(mesh: MeshLike, names: Iterable[str] | None = None) -> MeshAxes:
    """Returns the mesh axes of these names, all if None, that can shard something: larger than 1 and not Manual."""
    names = mesh.axis_names if names is None else tuple(names)
    check_mesh_axes(mesh, names)
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(
        (name, mesh.shape[name])
        for name, kind in axes
        if mesh.shape[name] > 1 and kind != AxisType.Manual and name in names
    )


@cached_plan
def find_best_spec(
    shape: tuple[int, ...],
    axes: MeshAxes,
    *,
    order: tuple[int, ...] | None = None,
    wanted: Wanted = (),
    replicated: frozenset[int] = frozenset(),
    most: int | None = None,
    enough: int | None = None,
) -> P:
    """Returns the spec of an array that shards it into the most equal parts.

    Among specs with equally many parts it prefers, in this order, mesh axes where they are wanted, a replicated first
    dimension if it looks like a stack of layers, more sharded dimensions, dimensions that come first in `order`, and
    the first mesh axis on the first dimension.

    Args:
        shape: The sizes of the array.
        axes: The mesh axes to use, each at most once.
        order: The dimensions in the order of preference; by position, larger ones sharded first, if None.
        wanted: Where mesh axes should go, if that does not reduce the number of parts.
        replicated: Dimensions that are not sharded.
        most: The largest number of parts, if there is a limit.
        enough: The number of parts that is enough; the smallest possible number of at least as many is used.

    Returns:
        A spec with one entry for each dimension; an empty one if nothing is sharded, such as an array without elements.
    """
    if 0 in shape:
        return P()
    order_or_position = order or tuple(range(len(shape)))
    by_size = order or tuple(sorted(order_or_position, key=lambda at: (-shape[at], at)))
    preference = {at: place for place, at in enumerate(by_size)}
    possible = math.prod(size for _, size in axes)
    most = None if most is None or most >= possible else max(most, 1)
    enough = None if enough is None or enough >= possible else max(enough, 1)
    free = [(rank, at) for rank, at in enumerate(order_or_position) if at not in replicated]
    states = _search_states(shape, axes, free, dict(wanted), most, enough)

    def rank_state(state: _State) -> Any:
        fewer, misses, places = states[state]
        total, sharded = state.parts * -fewer, state.sharded
        reached = (total < enough, total if total >= enough else -total) if enough is not None else (False, -total)
        stack = 0 in sharded and _looks_like_a_stack(shape)
        return *reached, misses, stack, -len(sharded), sorted(preference[at] for at in sharded), places

    best = min(states, key=rank_state)
    return _make_spec(axes, states[best][2], order_or_position)


def _search_states(
    shape: tuple[int, ...],
    axes: MeshAxes,
    free: list[tuple[int, int]],
    wanted: dict[str, int],
    most: int | None,
    enough: int | None,
) -> dict[_State, _Merit]:
    """Returns the states after all mesh axes, with the merit of the best way to each."""
    limited = most is not None or enough is not None
    states: dict[_State, _Merit] = {_State(shape, frozenset(), 1): (-1, 0, ())}
    for number, (name, size) in enumerate(axes):
        to_come = math.prod(other for _, other in axes[number + 1 :])
        following: dict[_State, _Merit] = {}
        for (left, sharded, parts), (fewer, misses, places) in states.items():
            idle = tuple([math.gcd(one, to_come) for one in left])
            merit = fewer, misses + (name in wanted), (*places, len(shape))
            _keep_best(following, _State(idle, sharded, parts), merit)
            if (most is not None and parts * size > most) or (enough is not None and parts >= enough):
                continue
            for rank, at in free:
                if left[at] % size == 0:
                    rest = (*idle[:at], math.gcd(left[at] // size, to_come), *idle[at + 1 :])
                    merit = fewer if limited else fewer * size, misses + (wanted.get(name, at) != at), (*places, rank)
                    _keep_best(following, _State(rest, sharded | {at}, parts * size if limited else parts), merit)
        states = following
    return states


def _keep_best(states: dict[_State, _Merit], state: _State, merit: _Merit) -> None:
    kept = states.get(state)
    if kept is None or merit < kept:
        states[state] = merit


def _looks_like_a_stack(shape: tuple[int, ...]) -> bool:
    """Returns whether layers may be stacked along the first dimension: the smallest, before at least two others."""
    return len(shape) > 2 and all(shape[0] < size for size in shape[1:])


def _make_spec(axes: MeshAxes, places: tuple[int, ...], dims: tuple[int, ...]) -> P:
    """Returns the spec that puts each mesh axis on the dimension of its rank, or nowhere if that is the last rank."""
    entries: list[tuple[str, ...]] = [()] * len(dims)
    for (name, _), rank in zip(axes, places, strict=True):
        if rank < len(dims):
            entries[dims[rank]] += (name,)
    return P(*map(make_spec_entry, entries)) if any(entries) else P()
