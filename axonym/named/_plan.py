"""Planned signatures: an operation and everything static about one call of it, compiled once and found again.

What an eager call costs is dispatch. A planned operation is one compiled function per operation, names and options, so
a call with known names does no planning at all; inside a trace it is inlined and leaves nothing behind.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax

from ._align import array_of, check_sizes, lined_up
from ._ambient import resharded, undivided
from ._axis import (
    AxisSelection,
    AxisSelector,
    Names,
    check_rank,
    position,
    positions,
    selected,
    shown,
)
from ._base import N, NamedBase, check_named, described, like


@functools.lru_cache(maxsize=8192)
def planned(fn: Callable[..., Any], *static: Hashable) -> Callable[..., Any]:
    """Returns `fn` with its first arguments fixed, compiled once per signature of the arrays that follow them.

    The mapping and the mesh in force are part of JAX's own cache key, so `fn` may ask for them as it is traced.
    """
    return jax.jit(functools.partial(fn, *static), inline=True)


@functools.lru_cache(maxsize=8192)
def _without(names: Names, chosen: tuple[str, ...]) -> tuple[tuple[int, ...], Names] | None:
    """Returns the positions of the names chosen and the names left; None if something is wrong with them."""
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(names):
        return None
    return tuple(map(names.index, chosen)), tuple(name for name in names if name not in chosen)


def _axes_of(x: NamedBase, axis: AxisSelection | None) -> tuple[tuple[int, ...], Names]:
    check_named(x)
    names, sizes = x.names, x.array.shape
    check_rank(names, sizes)
    chosen: Any = names if axis is None else (axis,) if type(axis) is str else selected(axis)
    plan = _without(names, chosen) if all(type(one) is str for one in chosen) else None
    if plan is None:
        dims = positions(names, sizes, chosen)
        plan = dims, tuple(name for i, name in enumerate(names) if i not in dims)
    return plan


def reduced(
    fn: Callable[..., Any],
    x: N,
    axis: AxisSelection | None,
    where: NamedBase | None,
    initial: Any = None,
    **options: Hashable,
) -> N:
    """Applies a positional reduction over named axes; `where` is lined up with `x` by name."""
    dims, rest = _axes_of(x, axis)
    if where is None and initial is None:
        return like(x, planned(_applied, fn, dims, *options.items())(x.array), rest)
    mask = None if where is None else _lined_up_mask(x, where)
    given = {} if initial is None else {"initial": initial}
    return like(x, fn(x.array, axis=dims, where=mask, **given, **options), rest)


def kept(fn: Callable[..., Any], x: N, axis: AxisSelection | None, where: NamedBase | None) -> N:
    """Applies a positional function over named axes that keeps them; `where` is lined up with `x` by name."""
    dims, _ = _axes_of(x, axis)
    if where is None:
        return like(x, planned(_applied, fn, dims)(x.array))
    return like(x, fn(x.array, axis=dims, where=_lined_up_mask(x, where)))


def _applied(fn: Callable[..., Any], dims: tuple[int, ...], *rest: Any) -> Any:
    *options, array = rest
    return fn(array, axis=dims, **dict(options))


def _lined_up_mask(x: NamedBase, where: NamedBase) -> Any:
    if not isinstance(where, NamedBase):
        raise TypeError(f"`where` must be a named array with axes of {described(x)}, not {shown(where)}.")
    if not set(where.names) <= set(x.names):
        raise ValueError(f"`where` must have axes of {described(x)} only, it has {described(where)}")
    check_sizes((x.names, x.array.shape), (where.names, where.array.shape))
    return lined_up(where.array, where.names, x.names)


def reduced_along(fn: Callable[..., Any], x: N, axis: AxisSelector | None) -> N:
    """Applies a positional function that removes one axis, or all of them for None."""
    check_named(x)
    if axis is None:
        return like(x, planned(_flat, fn)(array_of(x)), ())
    index = position(x.names, x.array.shape, axis)
    return like(x, planned(_applied, fn, index)(x.array), x.names[:index] + x.names[index + 1 :])


def _flat(fn: Callable[..., Any], array: Any) -> Any:
    return fn(undivided(array, range(array.ndim)))


def along(fn: Callable[..., Any], x: N, axis: AxisSelector, **options: Hashable) -> N:
    """Applies a positional function that runs along one axis and keeps it."""
    check_named(x)
    index = position(x.names, x.array.shape, axis)
    return like(x, planned(_along, fn, x.names, index, *options.items())(x.array))


def _along(fn: Callable[..., Any], names: Names, index: int, *rest: Any) -> Any:
    *options, array = rest
    return resharded(fn(undivided(array, (index,)), axis=index, **dict(options)), names)
