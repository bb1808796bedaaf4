"""Sums, products and means."""

from typing import Any

import jax.numpy as jnp

from .._axis import AxisSelection
from .._base import N, NamedBase
from .._cached_jit import apply_reduction
from ._masked import masked_std, masked_var


def sum(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None, dtype: Any = None) -> N:
    """Adds the elements along axes; see `jax.numpy.sum`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False are left out.
        dtype: Element type of the result, that of `x` by default (small integers widen).

    Returns:
        Array with the axes of `x` that were not reduced.

    Raises:
        ValueError: If `x` lacks an axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> nym.sum(x, "embed").array
        Array([3., 3.], dtype=float32)
    """
    return apply_reduction(jnp.sum, x, axis, where, dtype=dtype)


def prod(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None, dtype: Any = None) -> N:
    """Multiplies the elements along axes; see `jax.numpy.prod`. It is `product` as well.

    Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.prod(nym.arange(nym.Axis("i", 4), start=1)).item()
        24
    """
    return apply_reduction(jnp.prod, x, axis, where, dtype=dtype)


def mean(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None, dtype: Any = None) -> N:
    """Averages the elements along axes; see `jax.numpy.mean`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.mean(nym.arange(nym.Axis("i", 4)), "i").item()
        1.5
    """
    return apply_reduction(jnp.mean, x, axis, where, dtype=dtype)


def var(
    x: N,
    axis: AxisSelection | None = None,
    *,
    where: NamedBase | None = None,
    ddof: int = 0,
    dtype: Any = None,
) -> N:
    """Computes the variance along axes; see `jax.numpy.var`. Arguments as for `sum`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False are left out.
        ddof: What is taken from the number of elements in the divisor.
        dtype: Element type of the result.

    Example:
        >>> import axonym as nym
        >>> nym.var(nym.arange(nym.Axis("i", 4)), "i").item()
        1.25
    """
    return apply_reduction(jnp.var if where is None else masked_var, x, axis, where, ddof=ddof, dtype=dtype)


def std(
    x: N,
    axis: AxisSelection | None = None,
    *,
    where: NamedBase | None = None,
    ddof: int = 0,
    dtype: Any = None,
) -> N:
    """Computes the standard deviation along axes; see `jax.numpy.std`. Arguments as for `var`.

    Example:
        >>> import axonym as nym
        >>> nym.std(nym.full({"i": 3}, 7.0), "i").item()
        0.0
    """
    return apply_reduction(jnp.std if where is None else masked_std, x, axis, where, ddof=ddof, dtype=dtype)


product = prod
