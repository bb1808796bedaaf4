"""Planned signatures: an operation and everything static about one call of it, compiled once and found again.

What an eager call costs is dispatch. A planned operation is one compiled function per operation, names and options, so
a call with known names does no planning at all; inside a trace it is inlined and leaves nothing behind.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import jax

from ._align import check_sizes, lined_up
from ._ambient import resharded, undivided
from ._axis import (
    AxisSelection,
    AxisSelector,
    Names,
    check_once,
    check_rank,
    intern_names,
    listed,
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
        return like(x, planned(_flat, fn)(x.array), ())
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


class IndexEntry(NamedTuple):
    """What is static about the index of one axis: its kind, and the names or bounds that go with it."""

    position: int
    kind: str  # "scalar", "slice", "window" or "array"
    detail: Any  # (), (start, stop, step), a length or the names of the index array


Entries: TypeAlias = tuple[IndexEntry, ...]


class IndexPlan(NamedTuple):
    """What is static about an index: its entries in the order of the axes, and the axes of what it picks."""

    entries: Entries
    names: Names
    sizes: tuple[int, ...]


@functools.lru_cache(maxsize=8192)
def planned_index(
    names: Names, sizes: tuple[int, ...], parts: tuple[tuple[Any, ...], ...]
) -> tuple[IndexPlan, tuple[int, ...]]:
    """Plans an index of parts, each an axis, a kind, what else is static about it, and the shape of its array.

    Returns:
        The plan, and for each of its entries which part it was.

    Raises:
        ValueError: If an axis is not there or indexed twice, or sizes do not fit.
    """
    given = [IndexEntry(position(names, sizes, selector), kind, detail) for selector, kind, detail, _ in parts]
    check_once(tuple(names[entry.position] for entry in given))
    for entry in given:
        if entry.kind == "window" and not 0 <= entry.detail <= sizes[entry.position]:
            raise ValueError(
                f"a `dslice` of {entry.detail} elements does not fit into axis {names[entry.position]!r} of "
                f"{listed(names, sizes)}"
            )
    order = tuple(sorted(range(len(given)), key=lambda i: given[i].position))
    entries = tuple(given[i] for i in order)
    axes = _result_axes(names, sizes, entries, {given[i].position: part[3] for i, part in enumerate(parts)})
    return IndexPlan(entries, intern_names(tuple(axes)), tuple(axes.values())), order


def _result_axes(
    names: Names, sizes: tuple[int, ...], entries: Entries, shapes: dict[int, tuple[int, ...]]
) -> dict[str, int]:
    """Returns the axes left in place, and those of index arrays where the first axis that brings them stood."""
    lengths, picked = list(sizes), {}
    for at, kind, detail in entries:
        if kind == "slice":
            lengths[at] = len(range(sizes[at])[slice(*detail)])
        elif kind == "window":
            lengths[at] = detail
        else:
            picked[at] = detail, shapes[at]
    brought = {name for own, _ in picked.values() for name in own}
    for at, kind, _ in entries:
        if kind != "array" and names[at] in brought:
            raise ValueError(
                f"axis {names[at]!r} of {listed(names, sizes)} is indexed by itself and by an index array that has it"
            )
    kept = [at for at in range(len(names)) if at not in picked]
    check_sizes((tuple(names[at] for at in kept), tuple(lengths[at] for at in kept)), *picked.values())
    axes: dict[str, int] = {}
    for at, name in enumerate(names):
        axes |= zip(*picked.get(at, ((name,), (lengths[at],))), strict=True)
    return axes
