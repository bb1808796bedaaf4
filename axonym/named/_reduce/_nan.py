"""Reductions that ignore NaN."""

from typing import Any

import jax.numpy as jnp

from .._axis import AxesOrPositions, AxisSelector
from .._base import A
from . import _masked
from ._apply_reduction import Mask, apply_reduction, apply_reduction_along


def nansum(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Adds the elements along axes, ignoring NaN; see `jax.numpy.nansum`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.nansum(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        5.0
    """
    return apply_reduction(jnp.nansum, x, axis, where, dtype=dtype)


def nanprod(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Multiplies the elements along axes, ignoring NaN; see `jax.numpy.nanprod`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.nanprod(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        4.0
    """
    return apply_reduction(_masked.compute_nanprod, x, axis, where, dtype=dtype)


def nanmean(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Averages the elements along axes, ignoring NaN; see `jax.numpy.nanmean`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.nanmean(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        2.5
    """
    return apply_reduction(jnp.nanmean, x, axis, where, dtype=dtype)


def nanvar(
    x: A,
    axis: AxesOrPositions | None = None,
    *,
    where: Mask | None = None,
    ddof: int = 0,
    dtype: Any = None,
) -> A:
    """Computes the variance along axes, ignoring NaN; see `jax.numpy.nanvar`. Arguments as for `var`.

    Example:
        >>> import axonym as nym
        >>> nym.nanvar(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        2.25
    """
    return apply_reduction(_masked.masked_nanvar, x, axis, where, ddof=ddof, dtype=dtype)


def nanstd(
    x: A,
    axis: AxesOrPositions | None = None,
    *,
    where: Mask | None = None,
    ddof: int = 0,
    dtype: Any = None,
) -> A:
    """Computes the standard deviation along axes, ignoring NaN; see `jax.numpy.nanstd`. Arguments as for `var`.

    Example:
        >>> import axonym as nym
        >>> nym.nanstd(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        1.5
    """
    return apply_reduction(_masked.masked_nanstd, x, axis, where, ddof=ddof, dtype=dtype)


def nanmax(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, initial: Any = None) -> A:
    """Returns the largest element along axes, ignoring NaN; see `jax.numpy.nanmax`. Arguments as for `max`.

    Example:
        >>> import axonym as nym
        >>> nym.nanmax(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        4.0
    """
    return apply_reduction(jnp.nanmax if where is None else _masked.masked_nanmax, x, axis, where, initial)


def nanmin(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, initial: Any = None) -> A:
    """Returns the smallest element along axes, ignoring NaN; see `jax.numpy.nanmin`. Arguments as for `max`.

    Example:
        >>> import axonym as nym
        >>> nym.nanmin(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        1.0
    """
    return apply_reduction(jnp.nanmin if where is None else _masked.masked_nanmin, x, axis, where, initial)


def nanargmax(x: A, axis: AxisSelector | int | None = None) -> A:
    """Returns the position of the largest element along an axis, ignoring NaN; see `jax.numpy.nanargmax`.

    Arguments as for `argmax`; where all elements are NaN the result is -1.

    Example:
        >>> import axonym as nym
        >>> nym.nanargmax(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        2
    """
    return apply_reduction_along(jnp.nanargmax, x, axis)


def nanargmin(x: A, axis: AxisSelector | int | None = None) -> A:
    """Returns the position of the smallest element along an axis, ignoring NaN; see `jax.numpy.nanargmin`.

    Arguments as for `argmax`; where all elements are NaN the result is -1.

    Example:
        >>> import axonym as nym
        >>> nym.nanargmin(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        0
    """
    return apply_reduction_along(jnp.nanargmin, x, axis)
