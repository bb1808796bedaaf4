"""Planned signatures: an operation and everything static about one call of it, compiled once and found again.

What an eager call costs is dispatch. A planned operation is one compiled function per operation, names and options, so
a call with known names does no planning at all; inside a trace it is inlined and leaves nothing behind.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

from ._ambient import replicate_dims, reshard_by_name
from ._axis import (
    AxisSelection,
    AxisSelector,
    Names,
    find_axes,
    find_axis,
    format_value,
    make_hashable_selection,
)
from ._base import N, NamedBase, check_named, format_shape, with_array
from ._broadcasting import align_axes, check_matching_sizes, get_array, jit_inline
from ._cache import cached_plan


@cached_plan
def cached_jit(fn: Callable[..., Any], *static: Hashable) -> Callable[..., Any]:
    """Returns `fn` with its first arguments fixed, compiled once per signature of the arrays that follow them.

    The mapping and the mesh in force are part of JAX's own cache key, so `fn` may ask for them as it is traced.
    """
    return jit_inline(functools.partial(fn, *static))


def apply_reduction(
    fn: Callable[..., Any],
    x: N,
    axis: AxisSelection | None,
    where: NamedBase | None,
    initial: Any = None,
    **options: Hashable,
) -> N:
    """Applies a positional reduction over named axes; `where` is lined up with `x` by name."""
    check_named(x)
    array, chosen = x.array, make_hashable_selection(axis)
    if where is None and initial is None:
        call, rest = _reduction(fn, x.names, array.shape, chosen, *options.items())
        return with_array(x, call(array), rest)
    given = {} if initial is None else {"initial": initial}
    dims, rest = _left(x.names, array.shape, chosen)
    own = None if where is None else _mask_names(x, where)
    mask = None if where is None else where.array
    return with_array(x, cached_jit(_applied_where, fn, dims, x.names, own, *options.items())(array, mask, given), rest)


def apply_keeping_axes(fn: Callable[..., Any], x: N, axis: AxisSelection | None, where: NamedBase | None) -> N:
    """Applies a positional function over named axes that keeps them; `where` is lined up with `x` by name."""
    check_named(x)
    array, chosen = x.array, make_hashable_selection(axis)
    if where is None:
        return with_array(x, _reduction(fn, x.names, array.shape, chosen)[0](array))
    dims, _ = _left(x.names, array.shape, chosen)
    return with_array(x, cached_jit(_applied_where, fn, dims, x.names, _mask_names(x, where))(array, where.array, {}))


@cached_plan
def _reduction(
    fn: Callable[..., Any], names: Names, sizes: tuple[int, ...], axis: Any, *options: tuple[str, Hashable]
) -> tuple[Callable[..., Any], Names]:
    """Returns what reduces an array with these names and sizes, compiled, and the names that are left."""
    dims, rest = _left(names, sizes, axis)
    return cached_jit(_applied, fn, dims, *options), rest


@cached_plan
def _left(names: Names, sizes: tuple[int, ...], axis: Any) -> tuple[tuple[int, ...], Names]:
    """Returns the positions of the axes chosen, and the names of the others."""
    dims = find_axes(names, sizes, axis)
    return dims, tuple(name for i, name in enumerate(names) if i not in dims)


def _applied(fn: Callable[..., Any], dims: tuple[int, ...], *rest: Any) -> Any:
    *options, array = rest
    return fn(array, axis=dims, **dict(options))


def _mask_names(x: NamedBase, where: NamedBase) -> Names:
    """Returns the names of a mask, known to have axes of the array only."""
    if not isinstance(where, NamedBase):
        raise TypeError(f"`where` must be a named array with axes of {format_shape(x)}, not {format_value(where)}.")
    if not set(where.names) <= set(x.names):
        raise ValueError(f"`where` must have axes of {format_shape(x)} only, it has {format_shape(where)}")
    check_matching_sizes((x.names, x.array.shape), (where.names, where.array.shape))
    return where.names


def _applied_where(fn: Callable[..., Any], dims: tuple[int, ...], names: Names, own: Names | None, *rest: Any) -> Any:
    *options, array, where, given = rest
    mask = None if own is None else align_axes(where, own, names)
    return fn(array, axis=dims, where=mask, **given, **dict(options))


def apply_reduction_along(fn: Callable[..., Any], x: N, axis: AxisSelector | None) -> N:
    """Applies a positional function that removes one axis, or all of them for None."""
    check_named(x)
    if axis is None:
        return with_array(x, cached_jit(_flat, fn)(get_array(x)), ())
    index = find_axis(x.names, x.array.shape, axis)
    return with_array(x, cached_jit(_applied, fn, index)(x.array), x.names[:index] + x.names[index + 1 :])


def _flat(fn: Callable[..., Any], array: Any) -> Any:
    return fn(replicate_dims(array, range(array.ndim)))


def apply_along(fn: Callable[..., Any], x: N, axis: AxisSelector, **options: Hashable) -> N:
    """Applies a positional function that runs along one axis and keeps it."""
    check_named(x)
    index = find_axis(x.names, x.array.shape, axis)
    return with_array(x, cached_jit(_along, fn, x.names, index, *options.items())(x.array))


def _along(fn: Callable[..., Any], names: Names, index: int, *rest: Any) -> Any:
    *options, array = rest
    return reshard_by_name(fn(replicate_dims(array, (index,)), axis=index, **dict(options)), names)
