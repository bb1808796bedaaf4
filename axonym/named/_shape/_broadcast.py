"""Repeating values along axes that an array lacks."""

from typing import Any

import jax.numpy as jnp

from .._align import check_sizes, lined_up
from .._ambient import out_sharding
from .._axis import (
    AxisSpec,
    Names,
    intern_names,
    listed,
    spec_axes,
)
from .._base import N, check_named, described, like
from .._plan import planned


def broadcast_to(x: N, axes: AxisSpec) -> N:
    """Repeats the values along the axes that `x` lacks.

    Args:
        x: Array of any axes.
        axes: All axes of the result, in order; those of `x` must be among them.

    Returns:
        Array with just the axes given.

    Raises:
        ValueError: If an axis of `x` is not among them or has another size.

    Example:
        >>> import axonym as nym
        >>> Batch, Embed = nym.make_axes(batch=2, embed=3)
        >>> nym.broadcast_to(nym.ones(Embed), (Embed, Batch)).shape
        (embed: 3, batch: 2)
    """
    check_named(x)
    wanted = spec_axes(axes)
    names, sizes = tuple(axis.name for axis in wanted), tuple(axis.size for axis in wanted)
    check_sizes((x.names, x.array.shape), (names, sizes))
    if extra := [name for name in x.names if name not in names]:
        raise ValueError(f"{described(x)} cannot be broadcast to {listed(names, sizes)}, which lacks {listed(extra)}")
    if names == x.names:
        return x
    return like(x, planned(_repeated, x.names, names, sizes)(x.array), intern_names(names))


def _repeated(own: Names, names: Names, sizes: tuple[int, ...], array: Any) -> Any:
    return jnp.broadcast_to(lined_up(array, own, names), sizes, out_sharding=out_sharding(names, sizes))


def broadcast_axis(x: N, axes: AxisSpec) -> N:
    """Adds the axes that `x` lacks, in front, by repeating its values along them.

    Args:
        x: Array of any axes.
        axes: The axes that the result must have; those of `x` must have the size found there.

    Returns:
        Array with the missing axes in the order given, followed by those of `x`.

    Raises:
        ValueError: If an axis of `x` has another size.

    Example:
        >>> import axonym as nym
        >>> nym.broadcast_axis(nym.ones({"embed": 3}), nym.Axis("batch", 2)).shape
        (batch: 2, embed: 3)
    """
    check_named(x)
    wanted = spec_axes(axes)
    check_sizes((x.names, x.array.shape), (tuple(one.name for one in wanted), tuple(one.size for one in wanted)))
    return broadcast_to(x, (*(one for one in wanted if one.name not in x.names), *x.axes))
