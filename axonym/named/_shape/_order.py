"""Names and their order."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from .._axis import (
    Axis,
    AxisSelector,
    Names,
    PartialAxisSpec,
    axis_name,
    check_unique,
    intern_names,
    listed,
    ordered,
    position,
    shown,
)
from .._base import N, check_named, like
from .._plan import planned


def rename(x: N, renames: Mapping[Any, AxisSelector]) -> N:
    """Gives axes other names; no data moves.

    Args:
        x: Array of any axes.
        renames: New axis for old axis, each a name or an `Axis` of the size found.

    Returns:
        Array with the same axes in the same order under the new names.

    Raises:
        ValueError: If an axis is not there, has another size, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> nym.rename(nym.zeros({"pos": 4, "embed": 2}), {"pos": "key_pos"}).shape
        (key_pos: 4, embed: 2)
    """
    check_named(x)
    names = list(x.names)
    for old, new in renames.items():
        index = position(x.names, x.array.shape, old)
        if isinstance(new, Axis) and new.size != x.array.shape[index]:
            raise ValueError(
                f"axis {x.names[index]!r} has size {x.array.shape[index]}, it cannot become "
                f"{listed([new.name], [new.size])}"
            )
        names[index] = axis_name(new)
    check_unique(tuple(names))
    return like(x, x.array, intern_names(tuple(names)))


def rearrange(x: N, order: PartialAxisSpec) -> N:
    """Puts the axes into another order.

    Args:
        x: Array of any axes.
        order: The axes in their new order; `...` stands for those not named, in the order they have now.

    Returns:
        Array with the same axes in the new order; `x` itself if it has that order.

    Raises:
        TypeError: If the order is no sequence.
        ValueError: If an axis is unknown, given twice, or left out without `...`.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> nym.rearrange(x, ("embed", ..., "batch")).shape
        (embed: 4, pos: 3, batch: 2)
    """
    check_named(x)
    if isinstance(order, str | Axis) or not isinstance(order, Iterable):
        raise TypeError(f"`rearrange` takes a sequence of axes, such as ('batch', ...), not {shown(order)}.")
    dims, names = _new_order(x.names, x.array.shape, tuple(order))
    return x if names == x.names else like(x, planned(_transpose, dims)(x.array), names)


@functools.lru_cache(maxsize=8192)
def _new_order(names: Names, sizes: tuple[int, ...], order: tuple[Any, ...]) -> tuple[tuple[int, ...], Names]:
    result = ordered(names, sizes, order)
    return tuple(map(names.index, result)), intern_names(result)


def _transpose(order: tuple[int, ...], array: Any) -> Any:
    return jnp.transpose(array, order)
