"""Cumulative sums and products along an axis."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .._ambient import constrain_auto_dim
from .._axis import AxisSelector, find_axis
from .._base import A, NamedBase
from .._resize import apply_resizing, reshard_like
from ._apply_reduction import apply_along, find_position


def cumsum(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Adds up the elements along an axis, keeping all partial sums; see `jax.numpy.cumsum`.

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


def cumprod(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Multiplies the elements along an axis, keeping all partial products; see `jax.numpy.cumprod`.

    Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.cumprod(nym.arange(nym.Axis("i", 4), start=1), "i").array
        Array([ 1,  2,  6, 24], dtype=int32)
    """
    return apply_along(jnp.cumprod, x, axis, sharded=False, dtype=dtype)


def nancumsum(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Adds up the elements along an axis, with 0 for NaN; see `jax.numpy.nancumsum`. Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.nancumsum(nym.named([1.0, float("nan"), 4.0], "i"), "i").array
        Array([1., 1., 5.], dtype=float32)
    """
    return apply_along(jnp.nancumsum, x, axis, dtype=dtype)


def nancumprod(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Multiplies the elements along an axis, with 1 for NaN; see `jax.numpy.nancumprod`. Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.nancumprod(nym.named([2.0, float("nan"), 4.0], "i"), "i").array
        Array([2., 2., 8.], dtype=float32)
    """
    return apply_along(jnp.nancumprod, x, axis, sharded=False, dtype=dtype)


def cumulative_sum(x: A, axis: AxisSelector | int, *, dtype: Any = None, include_initial: bool = False) -> A:
    """Adds up the elements along an axis, optionally starting at 0; see `jax.numpy.cumulative_sum`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        dtype: Element type of the result.
        include_initial: Whether the result begins with the empty sum, 0, and so has one more element.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.cumulative_sum(nym.named([1, 2], "i"), "i", include_initial=True).array
        Array([0, 1, 3], dtype=int32)
    """
    return _apply_cumulative(jnp.cumulative_sum, 0, x, axis, dtype, include_initial)


def cumulative_prod(x: A, axis: AxisSelector | int, *, dtype: Any = None, include_initial: bool = False) -> A:
    """Multiplies the elements along an axis, optionally starting at 1; see `jax.numpy.cumulative_prod`.

    Arguments as for `cumulative_sum`.

    Example:
        >>> import axonym as nym
        >>> nym.cumulative_prod(nym.named([2, 3], "i"), "i", include_initial=True).array
        Array([1, 2, 6], dtype=int32)
    """
    return _apply_cumulative(jnp.cumulative_prod, 1, x, axis, dtype, include_initial)


def _apply_cumulative(
    fn: Callable[..., Any], initial: int, x: Any, axis: Any, dtype: Any, include_initial: bool
) -> Any:
    if not include_initial:
        return apply_along(fn, x, axis, sharded=not initial, dtype=dtype)
    if not isinstance(x, NamedBase):
        return _prepend_initial(x, find_position(x, axis), fn, initial, dtype)
    index = find_axis(x.names, x.array.shape, axis)
    return apply_resizing(_prepend_initial, x, index, accumulate=fn, initial=initial, dtype=dtype)


def _prepend_initial(array: Any, axis: int, accumulate: Callable[..., Any], initial: int, dtype: Any) -> Any:
    if initial:  # only products are wrong along a sharded axis
        array = constrain_auto_dim(array, axis)
    result = accumulate(array, axis=axis, dtype=dtype)
    first = jnp.full_like(result, initial, shape=(*result.shape[:axis], 1, *result.shape[axis + 1 :]))
    return jnp.concatenate([reshard_like(result, first), result], axis=axis)
