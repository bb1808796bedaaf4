"""Joining arrays, along a new axis or one that they have."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from .._ambient import resharded
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    axis_name,
    check_unique,
    intern_names,
    position,
)
from .._base import N, check_named, described, like
from .._plan import planned
from ._order import rearrange


def stack(axis: AxisSelector, arrays: Iterable[N]) -> N:
    """Joins arrays of the same axes along a new axis, which comes first.

    Args:
        axis: The new axis, a name or an `Axis` whose size is the number of arrays.
        arrays: At least one array; all have the same axes, in any order.

    Returns:
        Array with the new axis followed by those of the first array.

    Raises:
        TypeError: If one of them is not a named array.
        ValueError: If there is no array, the number does not fit, or the axes differ.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 3))
        >>> nym.stack("copy", [x, -x]).shape
        (copy: 2, i: 3)
    """
    rows, name = _rows("stack", axis, arrays, None), axis_name(axis)
    first = rows[0]
    if isinstance(axis, Axis) and axis.size != len(rows):
        raise ValueError(f"axis {name!r} has size {axis.size}, {len(rows)} arrays were given to `stack`")
    check_unique((name, *first.names))
    names = intern_names((name, *first.names))
    return like(first, planned(_stacked, names)(*(row.array for row in rows)), names)


def _stacked(names: Names, *arrays: Any) -> Any:
    return resharded(jnp.stack([resharded(array, names[1:]) for array in arrays]), names)


def concatenate(axis: AxisSelector, arrays: Iterable[N]) -> N:
    """Joins arrays end to end along an axis that all of them have.

    Args:
        axis: The axis, a name or an `Axis` of the size of the result.
        arrays: At least one array; all have the same axes, in any order, and the same sizes but along `axis`.

    Returns:
        Array with the axes of the first array in its order.

    Raises:
        TypeError: If one of them is not a named array.
        ValueError: If there is no array, an axis is missing, or sizes do not fit.

    Example:
        >>> import axonym as nym
        >>> nym.concatenate("i", [nym.zeros({"i": 2}), nym.ones({"i": 3})]).shape
        (i: 5)
    """
    rows = _rows("concatenate", axis, arrays, axis_name(axis))
    first = rows[0]
    index = position(first.names, first.array.shape, axis_name(axis))
    size = sum(row.array.shape[index] for row in rows)
    if isinstance(axis, Axis) and axis.size != size:
        raise ValueError(f"axis {axis.name!r} has size {axis.size}, the arrays given to `concatenate` have {size}")
    return like(first, planned(_concatenated, first.names, index)(*(row.array for row in rows)))


def _concatenated(names: Names, index: int, *arrays: Any) -> Any:
    rest = (*names[:index], "", *names[index + 1 :])  # pieces may not be divided along the axis that grows
    return resharded(jnp.concatenate([resharded(array, rest) for array in arrays], axis=index), names)


def _rows(function: str, axis: AxisSelector, arrays: Iterable[N], but: str | None) -> list[N]:
    """Returns the arrays with their axes in one order, checked to be the same ones of the same sizes, but for one."""
    rows = list(arrays)
    if not rows:
        raise ValueError(f"`{function}` along {axis_name(axis)!r} needs at least one array")
    for x in rows:
        check_named(x)
    return [_same_axes(function, x, rows[0], but) for x in rows]


def _same_axes(function: str, x: N, first: N, but: str | None) -> N:
    if set(x.names) != set(first.names):
        raise ValueError(f"`{function}` takes arrays of the same axes, not {described(first)} and {described(x)}")
    x = rearrange(x, first.names)
    for name, size, wanted in zip(x.names, x.array.shape, first.array.shape, strict=True):
        if name != but and size != wanted:
            raise ValueError(
                f"axis {name!r} has size {wanted} and size {size} in {described(first)} and {described(x)}"
            )
    return x
