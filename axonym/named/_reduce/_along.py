"""Functions that run along one axis and keep it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._ambient import replicate_dims, reshard_by_name
from .._axis import AxisSelector, Names, find_axis, format_axes
from .._base import N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import align_axes, check_matching_sizes, split_operand
from .._cached_jit import apply_along, cached_jit


def cumsum(x: N, axis: AxisSelector, *, dtype: Any = None) -> N:
    """Adds up the elements along an axis, keeping every partial sum; see `jax.numpy.cumsum`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        dtype: Element type of the result.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.cumsum(nym.arange(nym.Axis("i", 4)), "i").array
        Array([0, 1, 3, 6], dtype=int32)
    """
    return apply_along(jnp.cumsum, x, axis, dtype=dtype)


def cumprod(x: N, axis: AxisSelector, *, dtype: Any = None) -> N:
    """Multiplies the elements along an axis, keeping every partial product; see `jax.numpy.cumprod`.

    Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.cumprod(nym.arange(nym.Axis("i", 4), start=1), "i").array
        Array([ 1,  2,  6, 24], dtype=int32)
    """
    return apply_along(_products, x, axis, dtype=dtype)


def nancumsum(x: N, axis: AxisSelector, *, dtype: Any = None) -> N:
    """Adds up the elements along an axis, with 0 for NaN; see `jax.numpy.nancumsum`. Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.nancumsum(nym.named([1.0, float("nan"), 4.0], "i"), "i").array
        Array([1., 1., 5.], dtype=float32)
    """
    return apply_along(jnp.nancumsum, x, axis, dtype=dtype)


def nancumprod(x: N, axis: AxisSelector, *, dtype: Any = None) -> N:
    """Multiplies the elements along an axis, with 1 for NaN; see `jax.numpy.nancumprod`. Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.nancumprod(nym.named([2.0, float("nan"), 4.0], "i"), "i").array
        Array([2., 2., 8.], dtype=float32)
    """
    return apply_along(jnp.nancumprod, x, axis, dtype=dtype)


def cumulative_sum(x: N, axis: AxisSelector, *, dtype: Any = None, include_initial: bool = False) -> N:
    """Adds up the elements along an axis, from 0 on if that is wanted; see `jax.numpy.cumulative_sum`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        dtype: Element type of the result.
        include_initial: Whether the result begins with what the sum of nothing is, and so is longer by one element.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.cumulative_sum(nym.named([1, 2], "i"), "i", include_initial=True).array
        Array([0, 1, 3], dtype=int32)
    """
    return _cumulated(jnp.cumulative_sum, 0, x, axis, dtype, include_initial)


def cumulative_prod(x: N, axis: AxisSelector, *, dtype: Any = None, include_initial: bool = False) -> N:
    """Multiplies the elements along an axis, from 1 on if that is wanted; see `jax.numpy.cumulative_prod`.

    Arguments as for `cumulative_sum`.

    Example:
        >>> import axonym as nym
        >>> nym.cumulative_prod(nym.named([2, 3], "i"), "i", include_initial=True).array
        Array([1, 2, 6], dtype=int32)
    """
    return _cumulated(_cumulative_products, 1, x, axis, dtype, include_initial)


def _products(array: Any, axis: int, dtype: Any) -> Any:
    # On an Auto mesh the compiler of jaxlib 0.10 pads what is divided along the axis once for all functions that run
    # over it, with 0 for sums and 1 for products; so products get an array of their own.
    return jnp.cumprod(jax.lax.optimization_barrier(array), axis=axis, dtype=dtype)


def _cumulative_products(array: Any, axis: int, dtype: Any) -> Any:
    return jnp.cumulative_prod(jax.lax.optimization_barrier(array), axis=axis, dtype=dtype)


def _cumulated(fn: Callable[..., Any], initial: int, x: N, axis: AxisSelector, dtype: Any, include_initial: bool) -> N:
    if not include_initial:
        return apply_along(fn, x, axis, dtype=dtype)
    check_named(x)
    index = find_axis(x.names, x.array.shape, axis)
    return with_array(x, cached_jit(_begun, fn, initial, x.names, index, dtype)(x.array))


def _begun(fn: Callable[..., Any], initial: int, names: Names, index: int, dtype: Any, array: Any) -> Any:
    result = fn(replicate_dims(array, (index,)), axis=index, dtype=dtype)
    begin = jnp.full_like(result, initial, shape=(*result.shape[:index], 1, *result.shape[index + 1 :]))
    return reshard_by_name(jnp.concatenate([_placed_as(result, begin), result], axis=index), _resized(names, index))


def _placed_as(array: Any, end: Any) -> Any:
    """Returns what is to be joined to an array with the sharding that the array has on an Explicit mesh."""
    spec = jax.typeof(array).sharding.spec
    return jax.reshard(end, spec) if any(spec) or any(jax.typeof(end).sharding.spec) else end


def _resized(names: Names, index: int) -> Names:
    """Returns the names of a result along which one axis has another size, which a mesh axis may not divide."""
    return (*names[:index], "", *names[index + 1 :])


def diff(
    x: N, axis: AxisSelector, *, n: int = 1, prepend: N | complex | None = None, append: N | complex | None = None
) -> N:
    """Subtracts from each element along an axis the one before it; see `jax.numpy.diff`.

    Args:
        x: Array of any axes.
        axis: The axis to run along, which becomes shorter by `n` elements.
        n: How often to do it.
        prepend: What to put in front of `x` first: a scalar, or an array with some of its axes, that are of the same
            size but for `axis`. Without `axis` it is one element.
        append: What to put behind `x` first, likewise.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, an `Axis` given has another size, `n` is negative, or what is to be joined
            to `x` does not fit.

    Example:
        >>> import axonym as nym
        >>> nym.diff(nym.named([1, 4, 9], "i"), "i", prepend=0).array
        Array([1, 3, 5], dtype=int32)
    """
    check_named(x)
    index = find_axis(x.names, x.array.shape, axis)
    if n < 0:
        raise ValueError(f"differences are taken `n` times, zero times or more, not {n} times")
    own, arrays = [], []
    for one in (prepend, append):
        array, names = (None, None) if one is None else split_operand(one)
        own.append(names)
        if names is not None:
            _check_joins(x, index, array, names)
            arrays.append(array)
    return with_array(x, cached_jit(_differences, x.names, index, n, *own)(x.array, *arrays))


def _check_joins(x: NamedBase, index: int, array: Any, names: Names) -> None:
    if not set(names) <= set(x.names):
        raise ValueError(
            f"what is joined to {format_shape(x)} must have axes of it only, it has {format_axes(names, array.shape)}"
        )
    own, name = dict(zip(names, array.shape if names else (), strict=True)), x.names[index]
    own.pop(name, None)
    check_matching_sizes((x.names, x.array.shape), (tuple(own), tuple(own.values())))


def _differences(names: Names, index: int, n: int, before: Names | None, behind: Names | None, *arrays: Any) -> Any:
    array, rest = replicate_dims(arrays[0], (index,)), iter(arrays[1:])
    ends = [None if own is None else _end(array, next(rest), names, index, own) for own in (before, behind)]
    result = jnp.diff(array, n=n, axis=index, prepend=ends[0], append=ends[1])
    return reshard_by_name(result, names if result.shape == array.shape else _resized(names, index))


def _end(array: Any, end: Any, names: Names, index: int, own: Names) -> Any:
    """Returns what is to be joined to an array with all of its axes."""
    end = align_axes(end, own, names)
    length = end.shape[index] if own else 1
    return _placed_as(array, jnp.broadcast_to(end, (*array.shape[:index], length, *array.shape[index + 1 :])))


def sort(x: N, axis: AxisSelector, *, stable: bool = True, descending: bool = False) -> N:
    """Sorts the elements along an axis, smallest first; see `jax.numpy.sort`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        stable: Whether equal elements keep their order.
        descending: Whether the largest comes first.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.sort(nym.named([3, 9, 4], "i"), "i").array
        Array([3, 4, 9], dtype=int32)
    """
    return apply_along(jnp.sort, x, axis, stable=stable, descending=descending)


def argsort(x: N, axis: AxisSelector, *, stable: bool = True, descending: bool = False) -> N:
    """Returns the positions that sort the elements along an axis; see `jax.numpy.argsort`. Arguments as for `sort`.

    Example:
        >>> import axonym as nym
        >>> nym.argsort(nym.named([3, 9, 4], "i"), "i").array
        Array([0, 2, 1], dtype=int32)
    """
    return apply_along(jnp.argsort, x, axis, stable=stable, descending=descending)
