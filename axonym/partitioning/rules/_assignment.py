"""The search that rules share: which mesh axes divide which dimensions of one array, over all ways to do it.

It goes through the mesh axes one by one. Of all ways to use those so far that leave the same to decide, as the others
can divide the same of what is left and the same dimensions are divided, it keeps the best. So it finds the best of all
ways, with a few dozen steps for real shapes and meshes, and does not list them.
"""

import functools
import math
from typing import Any, NamedTuple, TypeAlias

from jax.sharding import PartitionSpec as P

from ..specs._resolve_spec import make_spec_entry


MeshAxes: TypeAlias = tuple[tuple[str, int], ...]
"""Mesh axes and their sizes, in the order of the mesh."""

Wanted: TypeAlias = tuple[tuple[str, int], ...]
"""For some mesh axes the dimension that each is to divide, if it can."""


class _State(NamedTuple):
    """What decides how to go on: what is left of each dimension, which ones are divided, into how many parts in all.

    Of what is left of a dimension only that counts which the mesh axes to come can divide. The parts count only where
    there is a limit to them; without one, more are better whatever follows, and they are in the merit.
    """

    left: tuple[int, ...]
    divided: frozenset[int]
    parts: int


_Merit: TypeAlias = tuple[int, int, tuple[int, ...]]
"""What is least in the best way to a state: minus the parts, the mesh axes misplaced, and the rank where each goes."""


@functools.lru_cache(maxsize=8192)
def best_spec(
    shape: tuple[int, ...],
    axes: MeshAxes,
    *,
    order: tuple[int, ...] | None = None,
    wanted: Wanted = (),
    whole: frozenset[int] = frozenset(),
    most: int | None = None,
    enough: int | None = None,
) -> P:
    """Returns the spec of an array that divides it into the most equal parts.

    Of the ways that do, those are taken, one after the other, that put mesh axes where they are wanted, leave a leading
    dimension whole that looks like a stack of layers, divide more dimensions, divide those that come first in `order`
    if not all can be divided, and put the first mesh axis on the first dimension.

    Args:
        shape: The sizes of the array.
        axes: The mesh axes to use, each at most once.
        order: The dimensions in the order of preference; by position, larger ones divided first, if None.
        wanted: Where mesh axes are to go, if the array is not divided less for it.
        whole: Dimensions that are not divided.
        most: The most parts to divide it into, if there is a limit.
        enough: How many parts are enough; the fewest of at least as many are taken.

    Returns:
        A spec with one entry for each dimension; an empty one if nothing is divided, as an array without elements is.
    """
    if 0 in shape:
        return P()
    order_or_position = order or tuple(range(len(shape)))
    by_size = order or tuple(sorted(order_or_position, key=lambda at: (-shape[at], at)))
    preference = {at: place for place, at in enumerate(by_size)}
    possible = math.prod(size for _, size in axes)
    most = None if most is None or most >= possible else max(most, 1)
    enough = None if enough is None or enough >= possible else max(enough, 1)
    free = [(rank, at) for rank, at in enumerate(order_or_position) if at not in whole]
    states = _all_states(shape, axes, free, dict(wanted), most, enough)

    def worth(state: _State) -> Any:
        fewer, misses, places = states[state]
        total, divided = state.parts * -fewer, state.divided
        reached = (total < enough, total if total >= enough else -total) if enough is not None else (False, -total)
        stack = 0 in divided and _looks_like_a_stack(shape)
        return *reached, misses, stack, -len(divided), sorted(preference[at] for at in divided), places

    best = min(states, key=worth)
    return _spec(axes, states[best][2], order_or_position)


def _all_states(
    shape: tuple[int, ...],
    axes: MeshAxes,
    free: list[tuple[int, int]],
    wanted: dict[str, int],
    most: int | None,
    enough: int | None,
) -> dict[_State, _Merit]:
    """Returns what all ways to use the mesh axes come to, with the best of the ways to each."""
    limited = most is not None or enough is not None
    states: dict[_State, _Merit] = {_State(shape, frozenset(), 1): (-1, 0, ())}
    for number, (name, size) in enumerate(axes):
        to_come = math.prod(other for _, other in axes[number + 1 :])
        following: dict[_State, _Merit] = {}
        for (left, divided, parts), (fewer, misses, places) in states.items():
            idle = tuple([math.gcd(one, to_come) for one in left])
            merit = fewer, misses + (name in wanted), (*places, len(shape))
            _keep(following, _State(idle, divided, parts), merit)
            if (most is not None and parts * size > most) or (enough is not None and parts >= enough):
                continue
            for rank, at in free:
                if left[at] % size == 0:
                    rest = (*idle[:at], math.gcd(left[at] // size, to_come), *idle[at + 1 :])
                    merit = fewer if limited else fewer * size, misses + (wanted.get(name, at) != at), (*places, rank)
                    _keep(following, _State(rest, divided | {at}, parts * size if limited else parts), merit)
        states = following
    return states


def _keep(states: dict[_State, _Merit], state: _State, merit: _Merit) -> None:
    kept = states.get(state)
    if kept is None or merit < kept:
        states[state] = merit


def _looks_like_a_stack(shape: tuple[int, ...]) -> bool:
    """Tells whether the first dimension may be that of stacked layers: the smallest, before at least two others."""
    return len(shape) > 2 and all(shape[0] < size for size in shape[1:])


def _spec(axes: MeshAxes, places: tuple[int, ...], dims: tuple[int, ...]) -> P:
    """Returns the spec that puts each mesh axis on the dimension of its rank, those of the last rank nowhere."""
    entries: list[tuple[str, ...]] = [()] * len(dims)
    for (name, _), rank in zip(axes, places, strict=True):
        if rank < len(dims):
            entries[dims[rank]] += (name,)
    return P(*map(make_spec_entry, entries)) if any(entries) else P()
