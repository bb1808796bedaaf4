"""Differences along an axis."""

from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._ambient import replicate_dims, reshard_by_name
from .._axis import AxisSelector, Names, find_axis, format_axes
from .._base import A, NamedBase, format_shape, with_array
from .._broadcasting import align_axes, check_matching_sizes, split_operand
from .._cached_jit import cached_jit
from .._resize import reshard_like, unname_axis
from ._apply_reduction import find_position


def diff(
    x: A,
    axis: AxisSelector | int,
    *,
    n: int = 1,
    prepend: NamedBase | ArrayLike | None = None,
    append: NamedBase | ArrayLike | None = None,
) -> A:
    """Computes differences of neighbouring elements along an axis; see `jax.numpy.diff`.

    Args:
        x: Array of any axes.
        axis: The axis to run along, which becomes shorter by `n` elements.
        n: The number of times to take differences.
        prepend: Values to put before `x` first: a scalar, or an array with some of its axes, which must have the same
            size except for `axis`. Without `axis` it is one element.
        append: Values to put after `x` first, likewise.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, an `Axis` given has another size, `n` is negative, or `prepend` or
            `append` does not fit.

    Example:
        >>> import axonym as nym
        >>> nym.diff(nym.named([1, 4, 9], "i"), "i", prepend=0).array
        Array([1, 3, 5], dtype=int32)
    """
    selector: Any = axis
    if not isinstance(x, NamedBase):
        ends: Any = {"prepend": prepend, "append": append}
        return jnp.diff(x, n=n, axis=find_position(x, axis), **ends)
    index = find_axis(x.names, x.array.shape, selector)
    if n < 0:
        raise ValueError(f"`n`, the number of times to take differences, must not be negative, {n} was given")
    end_names, arrays = [], []
    for end in (prepend, append):
        array, names = (None, None) if end is None else split_operand(end)
        end_names.append(names)
        if names is not None:
            _check_end(x, index, array, names)
            arrays.append(array)
    return with_array(x, cached_jit(_compute_diff, x.names, index, n, *end_names)(x.array, *arrays))


def _check_end(x: NamedBase, index: int, array: Any, names: Names) -> None:
    if not set(names) <= set(x.names):
        raise ValueError(
            f"`prepend` and `append` must have axes of {format_shape(x)} only, not {format_axes(names, array.shape)}"
        )
    sizes = dict(zip(names, array.shape if names else (), strict=True))
    sizes.pop(x.names[index], None)
    check_matching_sizes((x.names, x.array.shape), (tuple(sizes), tuple(sizes.values())))


def _compute_diff(names: Names, index: int, n: int, before: Names | None, after: Names | None, *arrays: Any) -> Any:
    array, rest = replicate_dims(arrays[0], (index,)), iter(arrays[1:])
    ends = [None if own is None else _broadcast_end(array, next(rest), names, index, own) for own in (before, after)]
    result = jnp.diff(array, n=n, axis=index, prepend=ends[0], append=ends[1])
    return reshard_by_name(result, names if result.shape == array.shape else unname_axis(names, index))


def _broadcast_end(array: Any, end: Any, names: Names, index: int, own: Names) -> Any:
    """Returns the values to prepend or append, with all axes of the array."""
    end = align_axes(end, own, names)
    length = end.shape[index] if own else 1
    return reshard_like(array, jnp.broadcast_to(end, (*array.shape[:index], length, *array.shape[index + 1 :])))
