"""Cutting arrays apart along an axis."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from .._ambient import resharded, undivided
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    check_unique,
    intern_names,
    position,
    shown,
    sized_axis,
)
from .._base import N, check_named, described, like
from .._plan import planned


def unbind(x: N, axis: AxisSelector) -> tuple[N, ...]:
    """Takes an array apart along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to take apart.

    Returns:
        As many arrays as the axis has elements, each with the other axes of `x`.

    Raises:
        ValueError: If the axis is not there or has another size.

    Example:
        >>> import axonym as nym
        >>> q, k = nym.unbind(nym.zeros({"qk": 2, "embed": 3}), "qk")
        >>> q.shape
        (embed: 3)
    """
    check_named(x)
    index = position(x.names, x.array.shape, axis)
    names = x.names[:index] + x.names[index + 1 :]
    pieces = planned(_pieces, index)(x.array)
    return tuple(like(x, piece, intern_names(names)) for piece in pieces)


def _pieces(index: int, array: Any) -> tuple[Any, ...]:
    array = undivided(array, (index,))
    return tuple(
        jax.lax.squeeze(jax.lax.slice_in_dim(array, i, i + 1, axis=index), (index,)) for i in range(array.shape[index])
    )


def split(x: N, axis: AxisSelector, new_axes: Sequence[Axis]) -> tuple[N, ...]:
    """Cuts an array into consecutive pieces along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to cut.
        new_axes: The axis of each piece, whose sizes add up to that of `axis`.

    Returns:
        One array for each new axis, which stands where the old one stood.

    Raises:
        TypeError: If a new axis has no size.
        ValueError: If the axis is not there, the sizes do not add up, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 5))
        >>> head, tail = nym.split(x, "i", nym.make_axes(head=2, tail=3))
        >>> tail.array
        Array([2, 3, 4], dtype=int32)
    """
    check_named(x)
    if not isinstance(new_axes, Iterable):
        raise TypeError(
            f"`split` takes the axes of the pieces, as in make_axes(head=2, tail=3), not {shown(new_axes)}."
        )
    index, pieces = position(x.names, x.array.shape, axis), tuple(map(sized_axis, new_axes))
    sizes = tuple(one.size for one in pieces)
    if sum(sizes) != x.array.shape[index]:
        raise ValueError(f"axis {x.names[index]!r} of {described(x)} cannot be cut into pieces of {sizes} elements")
    names = tuple(intern_names((*x.names[:index], one.name, *x.names[index + 1 :])) for one in pieces)
    for own in names:
        check_unique(own)
    arrays = planned(_cut, index, sizes, names)(x.array)
    return tuple(like(x, array, own) for array, own in zip(arrays, names, strict=True))


def _cut(index: int, sizes: tuple[int, ...], names: tuple[Names, ...], array: Any) -> tuple[Any, ...]:
    pieces = jax.lax.split(undivided(array, (index,)), sizes, axis=index)
    return tuple(resharded(piece, own) for piece, own in zip(pieces, names, strict=True))
