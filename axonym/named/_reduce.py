"""Reductions over named axes, and the functions that run along one axis.

Every reduction takes `axis`: one axis, several, or None for all of them. The result lacks those axes; with none left it
is a named array without axes, of which `.scalar()` is the plain array.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ._axis import AxisSelection, AxisSelector
from ._base import N, NamedBase
from ._plan import along, kept, reduced, reduced_along


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
    return reduced(jnp.sum, x, axis, where, dtype=dtype)


def prod(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None, dtype: Any = None) -> N:
    """Multiplies the elements along axes; see `jax.numpy.prod`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.prod(nym.arange(nym.Axis("i", 4), start=1)).item()
        24
    """
    return reduced(jnp.prod, x, axis, where, dtype=dtype)


def mean(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None, dtype: Any = None) -> N:
    """Averages the elements along axes; see `jax.numpy.mean`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.mean(nym.arange(nym.Axis("i", 4)), "i").item()
        1.5
    """
    return reduced(jnp.mean, x, axis, where, dtype=dtype)


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
    return reduced(jnp.var, x, axis, where, ddof=ddof, dtype=dtype)


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
    return reduced(jnp.std, x, axis, where, ddof=ddof, dtype=dtype)


def max(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None, initial: Any = None) -> N:
    """Takes the largest element along axes; see `jax.numpy.max`. Arguments as for `sum`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        where: Boolean array with some of the axes of `x`; elements where it is False are left out.
        initial: The smallest value that the result can have; the lowest of the element type with `where`.

    Example:
        >>> import axonym as nym
        >>> nym.max(nym.arange(nym.Axis("i", 4)), "i").item()
        3
    """
    if where is not None and initial is None:
        initial = _lowest(x.dtype)
    return reduced(jnp.max, x, axis, where, initial)


def min(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None, initial: Any = None) -> N:
    """Takes the smallest element along axes; see `jax.numpy.min`. Arguments as for `max`.

    Example:
        >>> import axonym as nym
        >>> nym.min(nym.arange(nym.Axis("i", 4)), "i").item()
        0
    """
    if where is not None and initial is None:
        initial = _highest(x.dtype)
    return reduced(jnp.min, x, axis, where, initial)


def _lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf
    return True if jnp.issubdtype(dtype, jnp.bool_) else jnp.iinfo(dtype).max


def any(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None) -> N:
    """Tells whether any element along axes is true; see `jax.numpy.any`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.any(nym.arange(nym.Axis("i", 4)) > 2, "i").item()
        True
    """
    return reduced(jnp.any, x, axis, where)


def all(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None) -> N:
    """Tells whether all elements along axes are true; see `jax.numpy.all`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.all(nym.arange(nym.Axis("i", 4)) > 2, "i").item()
        False
    """
    return reduced(jnp.all, x, axis, where)


def logsumexp(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None) -> N:
    """Computes `log(sum(exp(x)))` along axes without overflow; see `jax.nn.logsumexp`. Arguments as for `sum`.

    Example:
        >>> import axonym as nym
        >>> nym.logsumexp(nym.full({"i": 4}, 1000.0), "i").item()  # 1000 + log 4
        1001.386...
    """
    return reduced(jax.nn.logsumexp, x, axis, where)


def argmax(x: N, axis: AxisSelector | None = None) -> N:
    """Returns where the largest element lies along an axis; see `jax.numpy.argmax`.

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
    return reduced_along(jnp.argmax, x, axis)


def argmin(x: N, axis: AxisSelector | None = None) -> N:
    """Returns where the smallest element lies along an axis; see `jax.numpy.argmin`. Arguments as for `argmax`.

    Example:
        >>> import axonym as nym
        >>> nym.argmin(nym.named([3, 9, 4], "i"), "i").item()
        0
    """
    return reduced_along(jnp.argmin, x, axis)


def softmax(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None) -> N:
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
    return kept(jax.nn.softmax, x, axis, where)


def log_softmax(x: N, axis: AxisSelection | None = None, *, where: NamedBase | None = None) -> N:
    """Computes `log(softmax(x))` along axes exactly; see `jax.nn.log_softmax`. Arguments as for `softmax`.

    Example:
        >>> import axonym as nym
        >>> nym.log_softmax(nym.zeros({"i": 1}), "i").array
        Array([0.], dtype=float32)
    """
    return kept(jax.nn.log_softmax, x, axis, where)


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
    return along(jnp.cumsum, x, axis, dtype=dtype)


def sort(x: N, axis: AxisSelector) -> N:
    """Sorts the elements along an axis, smallest first; see `jax.numpy.sort`. Arguments as for `argmax`.

    Example:
        >>> import axonym as nym
        >>> nym.sort(nym.named([3, 9, 4], "i"), "i").array
        Array([3, 4, 9], dtype=int32)
    """
    return along(jnp.sort, x, axis)


def argsort(x: N, axis: AxisSelector) -> N:
    """Returns the positions that sort the elements along an axis; see `jax.numpy.argsort`. Arguments as for `argmax`.

    Example:
        >>> import axonym as nym
        >>> nym.argsort(nym.named([3, 9, 4], "i"), "i").array
        Array([0, 2, 1], dtype=int32)
    """
    return along(jnp.argsort, x, axis)
