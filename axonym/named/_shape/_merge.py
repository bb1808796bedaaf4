"""Several axes made one, and one axis made several."""

import math
from typing import Any

import jax

from .._ambient import out_sharding
from .._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    Names,
    axis_name,
    check_unique,
    intern_names,
    listed,
    position,
    positions,
    spec_axes,
)
from .._base import N, check_named, described, like
from .._plan import planned
from ._order import rearrange


def flatten_axes(x: N, old_axes: AxisSelection, new_axis: AxisSelector) -> N:
    """Merges axes into one, the first given varying slowest.

    Args:
        x: Array of any axes.
        old_axes: The axes to merge, in the order in which they are merged.
        new_axis: The axis that they become, a name or an `Axis` of the product of their sizes.

    Returns:
        Array in which the new axis stands where the first of the old ones stood.

    Raises:
        ValueError: If no axis is given, one is not there, or the sizes do not fit.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "heads": 3, "head_dim": 4})
        >>> nym.flatten_axes(x, ("heads", "head_dim"), "embed").shape
        (batch: 2, embed: 12)
    """
    check_named(x)
    merged = tuple(x.names[i] for i in positions(x.names, x.array.shape, old_axes))
    if not merged:
        raise ValueError(f"no axes of {described(x)} to merge into {axis_name(new_axis)!r} were given")
    first = min(x.names.index(name) for name in merged)
    rest = tuple(name for name in x.names if name not in merged)
    before = tuple(name for name in x.names[:first] if name in rest)
    x = rearrange(x, (*before, *merged, *(name for name in rest if name not in before)))
    size = math.prod(x.axis_size(name) for name in merged)
    if isinstance(new_axis, Axis) and new_axis.size != size:
        raise ValueError(f"axes {listed(merged)} of {described(x)} have {size} elements, not {new_axis.size}")
    sizes = (*x.array.shape[: len(before)], size, *x.array.shape[len(before) + len(merged) :])
    return _reshape(x, sizes, (*before, axis_name(new_axis), *x.names[len(before) + len(merged) :]))


def unflatten_axis(x: N, axis: AxisSelector, new_axes: AxisSpec) -> N:
    """Splits an axis into several, the first varying slowest.

    Args:
        x: Array of any axes.
        axis: The axis to split.
        new_axes: The axes that it becomes; the product of their sizes must be its size.

    Returns:
        Array in which the new axes stand where the old one stood.

    Raises:
        ValueError: If the axis is not there, the sizes do not fit, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "embed": 12})
        >>> nym.unflatten_axis(x, "embed", {"heads": 3, "head_dim": 4}).shape
        (batch: 2, heads: 3, head_dim: 4)
    """
    check_named(x)
    index, new = position(x.names, x.array.shape, axis), spec_axes(new_axes)
    sizes = tuple(one.size for one in new)
    if math.prod(sizes) != x.array.shape[index]:
        raise ValueError(
            f"axis {x.names[index]!r} of {described(x)} has {x.array.shape[index]} elements, "
            f"{listed([one.name for one in new], sizes)} have {math.prod(sizes)}"
        )
    names = (*x.names[:index], *(one.name for one in new), *x.names[index + 1 :])
    return _reshape(x, (*x.array.shape[:index], *sizes, *x.array.shape[index + 1 :]), names)


def _reshape(x: N, sizes: tuple[int, ...], names: Names) -> N:
    check_unique(names)
    return like(x, planned(_reshaped, sizes, intern_names(names))(x.array), intern_names(names))


def _reshaped(sizes: tuple[int, ...], names: Names, array: Any) -> Any:
    return jax.lax.reshape(array, sizes, out_sharding=out_sharding(names, sizes))
