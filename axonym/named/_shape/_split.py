"""Splitting arrays along an axis."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from .._ambient import replicate_dims, reshard_by_name
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    axis_name,
    check_unique_names,
    find_axis,
    format_axes,
    format_value,
    intern_names,
    parse_one_axis,
)
from .._base import N, check_named, with_array
from .._broadcasting import jit_inline
from .._cache import cached_plan
from .._cached_jit import cached_jit


def unbind(x: N, axis: AxisSelector) -> tuple[N, ...]:
    """Splits an array into its slices along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to remove.

    Returns:
        One array for each element of the axis, with the other axes of `x`.

    Raises:
        ValueError: If the axis is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> q, k = nym.unbind(nym.zeros({"qk": 2, "embed": 3}), "qk")
        >>> q.shape
        (embed: 3)
    """
    check_named(x)
    index = find_axis(x.names, x.array.shape, axis)
    names = intern_names(x.names[:index] + x.names[index + 1 :])
    return tuple([with_array(x, piece, names) for piece in cached_jit(_compute_unbind, index)(x.array)])


def _compute_unbind(index: int, array: Any) -> tuple[Any, ...]:
    array = replicate_dims(array, (index,))
    return tuple(
        jax.lax.squeeze(jax.lax.slice_in_dim(array, i, i + 1, axis=index), (index,)) for i in range(array.shape[index])
    )


def split(x: N, axis: AxisSelector, new_axes: Sequence[Axis]) -> tuple[N, ...]:
    """Splits an array into consecutive pieces along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to split.
        new_axes: The axis of each piece, whose sizes add up to the size of `axis`.

    Returns:
        One array for each new axis, with that axis in place of the old one.

    Raises:
        TypeError: If a new axis has no size.
        ValueError: If the axis is missing, the sizes do not add up, or a name would occur twice.

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
            f"`split` takes the axes of the pieces, as in make_axes(head=2, tail=3), not {format_value(new_axes)}."
        )
    axis_name(axis)  # others may not be hashable
    pieces = tuple([one if isinstance(one, Axis) else parse_one_axis(one) for one in new_axes])
    call, names = _plan_split(x.names, x.array.shape, axis, pieces)
    return tuple([with_array(x, array, own) for array, own in zip(call(x.array), names, strict=True)])


@cached_plan
def _plan_split(
    names: Names, sizes: tuple[int, ...], axis: AxisSelector, pieces: tuple[Axis, ...]
) -> tuple[Callable[..., Any], tuple[Names, ...]]:
    """Returns the compiled split, and the names of each piece."""
    index, lengths = find_axis(names, sizes, axis), tuple(one.size for one in pieces)
    if sum(lengths) != sizes[index]:
        raise ValueError(
            f"axis {names[index]!r} of {format_axes(names, sizes)} cannot be split into pieces of {lengths} elements"
        )
    results = tuple(intern_names((*names[:index], one.name, *names[index + 1 :])) for one in pieces)
    for own in results:
        check_unique_names(own)
    return jit_inline(functools.partial(_compute_split, index, lengths, results)), results


def _compute_split(index: int, sizes: tuple[int, ...], names: tuple[Names, ...], array: Any) -> tuple[Any, ...]:
    pieces = jax.lax.split(replicate_dims(array, (index,)), sizes, axis=index)
    return tuple(reshard_by_name(piece, own) for piece, own in zip(pieces, names, strict=True))
