"""Functions that run along one axis and keep it."""

from typing import Any

import jax.numpy as jnp

from .._axis import AxisSelector
from .._base import N
from .._plan import along


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
