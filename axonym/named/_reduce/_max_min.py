"""Maxima and minima, and their positions."""

from typing import Any

import jax.numpy as jnp

from .._axis import AxesOrPositions, AxisSelector
from .._base import A
from . import _masked
from ._apply_reduction import Mask, apply_reduction, apply_reduction_along


def max(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, initial: Any = None) -> A:
    """Returns the largest element along axes; see `jax.numpy.max`. Alias: `amax`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False are ignored.
        initial: Lower bound of the result; with `where` the lowest value of the element type by default.

    Example:
        >>> import axonym as nym
        >>> nym.max(nym.arange(nym.Axis("i", 4)), "i").item()
        3
    """
    return apply_reduction(jnp.max if where is None else _masked.masked_max, x, axis, where, initial)


def min(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, initial: Any = None) -> A:
    """Returns the smallest element along axes; see `jax.numpy.min`. Alias: `amin`.

    Arguments as for `max`.

    Example:
        >>> import axonym as nym
        >>> nym.min(nym.arange(nym.Axis("i", 4)), "i").item()
        0
    """
    return apply_reduction(jnp.min if where is None else _masked.masked_min, x, axis, where, initial)


def ptp(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Returns the range, largest minus smallest element, along axes; see `jax.numpy.ptp`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.ptp(nym.named([3, 9, 4], "i"), "i").item()
        6
    """
    return apply_reduction(_masked.compute_ptp, x, axis, where)


def argmax(x: A, axis: AxisSelector | int | None = None) -> A:
    """Returns the position of the largest element along an axis; see `jax.numpy.argmax`.

    Args:
        x: Array of any axes.
        axis: One axis, or None for the position in the flattened array.

    Returns:
        Integer array with the other axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.argmax(nym.named([3, 9, 4], "i"), "i").item()
        1
    """
    return apply_reduction_along(jnp.argmax, x, axis)


def argmin(x: A, axis: AxisSelector | int | None = None) -> A:
    """Returns the position of the smallest element along an axis; see `jax.numpy.argmin`.

    Arguments as for `argmax`.

    Example:
        >>> import axonym as nym
        >>> nym.argmin(nym.named([3, 9, 4], "i"), "i").item()
        0
    """
    return apply_reduction_along(jnp.argmin, x, axis)


amax = max
amin = min
