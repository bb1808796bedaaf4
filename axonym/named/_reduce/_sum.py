"""Sums, products, means and variances."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._axis import AxesOrPositions, find_axes
from .._base import A, NamedBase, format_shape, make_unnamed_error
from .._broadcasting import apply_binary
from ._apply_reduction import Mask, apply_reduction, find_positions
from ._masked import compute_prod, masked_std, masked_var


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
    return apply_reduction(compute_prod, x, axis, where, dtype=dtype)


def mean(x: A, axis: AxesOrPositions | None = None, *, where: Mask | None = None, dtype: Any = None) -> A:
    """Averages the elements along axes; see `jax.numpy.mean`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.mean(nym.arange(nym.Axis("i", 4)), "i").item()
        1.5
    """
    return apply_reduction(jnp.mean, x, axis, where, dtype=dtype)


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
    chosen = {x.names[i]: x.array.shape[i] for i in find_axes(x.names, x.array.shape, selection)}
    weighted = apply_reduction(jnp.sum, apply_binary(_multiply_weights, x, weights), tuple(chosen), None)
    # The weights are constant along axes that they lack.
    times = math.prod(size for name, size in chosen.items() if name not in weights.names)
    total = apply_reduction(
        _sum_weights, weights, tuple(name for name in chosen if name in weights.names), None, times=times
    )
    return apply_binary(jnp.divide, weighted, total)


def _multiply_weights(array: Any, weights: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(array, weights), jnp.inexact):
        weights = jnp.astype(weights, float)
    return array * weights


def _sum_weights(weights: Any, axis: tuple[int, ...], times: int) -> Any:
    return jnp.sum(weights, axis=axis) * times


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
    return apply_reduction(jnp.var if where is None else masked_var, x, axis, where, ddof=ddof, dtype=dtype)


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
    return apply_reduction(jnp.std if where is None else masked_std, x, axis, where, ddof=ddof, dtype=dtype)


product = prod
