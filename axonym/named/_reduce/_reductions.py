"""Reductions along axes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._axis import AxesOrPositions, AxisSelector, find_axes
from .._base import A, NamedBase, format_shape, make_unnamed_error, with_array
from .._broadcasting import apply_binary
from .._wide_sums import compute_wide, is_narrow_float, widen_float
from . import _masked
from ._apply_reduction import Mask, apply_keeping_axes, apply_reduction, apply_reduction_along, find_positions


def any(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Returns whether any element along axes is true; see `jax.numpy.any`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.any(nym.arange(nym.Axis("i", 4)) > 2, "i").item()
        True
    """
    return apply_reduction(jnp.any, x, axis, where)


def all(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Returns whether all elements along axes are true; see `jax.numpy.all`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.all(nym.arange(nym.Axis("i", 4)) > 2, "i").item()
        False
    """
    return apply_reduction(jnp.all, x, axis, where)


def count_nonzero(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Counts the elements along axes that are not 0; see `jax.numpy.count_nonzero`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.count_nonzero(nym.arange(nym.Axis("i", 4)) > 1, "i").item()
        2
    """
    return apply_reduction(_masked.compute_count_nonzero, x, axis, where)


def sum(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Adds the elements along axes; see `jax.numpy.sum`.

    Plain arrays and numbers pass through to `jax.numpy`, as in all reductions and functions along axes: `axis` is then
    a position or several.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False are ignored.
        dtype: Element type of the result, by default the type of `x` (small integers widen).

    Returns:
        Array with the axes of `x` that were not reduced.

    Raises:
        ValueError: If `x` lacks an axis, or an `Axis` given has another size.
        TypeError: If a plain array is reduced along a named axis, or with a named mask.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> nym.sum(x, "embed").array
        Array([3., 3.], dtype=float32)
    """
    return apply_reduction(jnp.sum, x, axis, where, dtype=dtype)


def prod(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Multiplies the elements along axes; see `jax.numpy.prod`. Alias: `product`.

    Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.prod(nym.arange(nym.Axis("i", 4), start=1)).item()
        24
    """
    return apply_reduction(jnp.prod, x, axis, where, by_compiler=True, dtype=dtype)


def mean(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Averages the elements along axes; see `jax.numpy.mean`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.mean(nym.arange(nym.Axis("i", 4)), "i").item()
        1.5
    """
    return apply_reduction(jnp.mean, x, axis, where, dtype=dtype)


# Sums and squares may be too large for float16 where means and roots are not.
_std, _nanmean = compute_wide(jnp.std), compute_wide(jnp.nanmean)


def average(x: A, axis: AxesOrPositions | None = None, weights: NamedBase | ArrayLike | None = None) -> A:
    """Computes the weighted average along axes; see `jax.numpy.average`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        weights: Array with some of the axes of `x`; None for equal weights.

    Returns:
        Array with the axes of `x` that were not reduced: `sum(x * weights) / sum(weights)`.

    Raises:
        TypeError: If the weights are not named.
        ValueError: If `x` lacks an axis, an `Axis` given has another size, or the weights have an axis that `x` lacks.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 3))
        >>> nym.average(i, "i", weights=i).item()
        1.666...
    """
    if weights is None:
        return apply_reduction(jnp.mean, x, axis, None)
    if not isinstance(x, NamedBase):
        dims = find_positions(x, axis)
        if isinstance(weights, NamedBase):
            raise TypeError(f"A plain array of shape {np.shape(x)} takes plain `weights`, not named ones.")
        return jnp.average(x, dims, weights)
    if not isinstance(weights, NamedBase):
        raise make_unnamed_error(weights)
    if not set(weights.names) <= set(x.names):
        raise ValueError(f"`weights` must have axes of {format_shape(x)} only, they have {format_shape(weights)}")
    selection: Any = axis
    reduced_sizes = {x.names[dim]: x.array.shape[dim] for dim in find_axes(x.names, x.array.shape, selection)}
    dtype = jnp.result_type(x.dtype, weights.dtype)
    weighted = apply_reduction(jnp.sum, apply_binary(_multiply_weights, x, weights), tuple(reduced_sizes), None)
    # The weights are constant along axes that they lack.
    times = math.prod(size for name, size in reduced_sizes.items() if name not in weights.names)
    weight_axes = tuple(name for name in reduced_sizes if name in weights.names)
    total = apply_reduction(_sum_weights, weights, weight_axes, None, times=times)
    result = apply_binary(jnp.divide, weighted, total)
    return with_array(result, result.array.astype(dtype)) if is_narrow_float(dtype) else result


def _multiply_weights(array: Any, weights: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(array, weights), jnp.inexact):
        weights = jnp.astype(weights, float)
    return widen_float(array) * widen_float(weights)


def _sum_weights(weights: Any, axis: tuple[int, ...], times: int) -> Any:
    return jnp.sum(widen_float(weights), axis=axis) * times


def var(
    x: A,
    axis: AxesOrPositions | None = None,
    *,
    where: Mask | None = None,
    ddof: int = 0,
    dtype: Any = None,
) -> A:
    """Computes the variance along axes; see `jax.numpy.var`. Arguments as for `sum`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False are ignored.
        ddof: Delta degrees of freedom: the divisor is the number of elements minus `ddof`.
        dtype: Element type of the result.

    Example:
        >>> import axonym as nym
        >>> nym.var(nym.arange(nym.Axis("i", 4)), "i").item()
        1.25
    """
    return apply_reduction(jnp.var if where is None else _masked.masked_var, x, axis, where, ddof=ddof, dtype=dtype)


def std(
    x: A,
    axis: AxesOrPositions | None = None,
    *,
    where: Mask | None = None,
    ddof: int = 0,
    dtype: Any = None,
) -> A:
    """Computes the standard deviation along axes; see `jax.numpy.std`. Arguments as for `var`.

    Example:
        >>> import axonym as nym
        >>> nym.std(nym.full({"i": 3}, 7.0), "i").item()
        0.0
    """
    return apply_reduction(_std if where is None else _masked.masked_std, x, axis, where, ddof=ddof, dtype=dtype)


product = prod


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


def logsumexp(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `log(sum(exp(x)))` along axes without overflow; see `jax.nn.logsumexp`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.logsumexp(nym.full({"i": 4}, 1000.0), "i").item()  # 1000 + log 4
        1001.386...
    """
    return apply_reduction(jax.nn.logsumexp, x, axis, where)


def logmeanexp(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `log(mean(exp(x)))` along axes without overflow; see `jax.nn.logmeanexp`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.nn.logmeanexp(nym.full({"i": 4}, 1000.0), "i").item()
        1000.0
    """
    return apply_reduction(jax.nn.logmeanexp, x, axis, where)


def softmax(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `exp(x) / sum(exp(x))` along axes without overflow; see `jax.nn.softmax`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False become 0.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks an axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.softmax(nym.zeros({"i": 4}), "i").array
        Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    return apply_keeping_axes(jax.nn.softmax, x, axis, where)


def log_softmax(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None) -> A:
    """Computes `log(softmax(x))` along axes without overflow; see `jax.nn.log_softmax`. Arguments as for `softmax`.

    Example:
        >>> import axonym as nym
        >>> nym.log_softmax(nym.zeros({"i": 1}), "i").array
        Array([0.], dtype=float32)
    """
    return apply_keeping_axes(jax.nn.log_softmax, x, axis, where)


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
    return apply_reduction(jnp.nanprod, x, axis, where, by_compiler=True, dtype=dtype)


def nanmean(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Averages the elements along axes, ignoring NaN; see `jax.numpy.nanmean`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.nanmean(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        2.5
    """
    return apply_reduction(_nanmean, x, axis, where, dtype=dtype)


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
