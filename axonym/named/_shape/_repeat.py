"""Repeating elements along existing axes."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._ambient import replicate_dims
from .._arguments import check_integer
from .._axis import AxisSelector, find_axes, find_axis, format_axes, format_value
from .._base import N, NamedBase, check_named, format_shape, is_traced
from ._apply_unsharded import apply_unsharded


def repeat(x: N, repeats: Any, axis: AxisSelector, total_repeat_length: int | None = None) -> N:
    """Repeats each element along an axis; see `jax.numpy.repeat`.

    Args:
        x: Array of any axes.
        repeats: The number of repeats: one integer, or one for each element, as a named array with only that axis, a
            plain 1-D array or a list.
        axis: The axis, which keeps its name.
        total_repeat_length: The new size of the axis, needed if `repeats` is traced. Further elements are dropped, and
            missing ones filled with the last element.

    Returns:
        Array with the axes of `x`, one of them longer.

    Raises:
        ValueError: If the axis is missing, `repeats` has other axes or a negative number, or its sum is not known.
        TypeError: If `repeats` does not hold integers.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 3))
        >>> nym.repeat(x, 2, "i").array
        Array([0, 0, 1, 1, 2, 2], dtype=int32)
        >>> nym.repeat(x, [1, 0, 2], "i").array
        Array([0, 2, 2], dtype=int32)
    """
    check_named(x)
    dim = find_axis(x.names, x.array.shape, axis)
    counts = _parse_repeats(x, dim, repeats)
    total = None if total_repeat_length is None else check_integer("repeat: `total_repeat_length`", total_repeat_length)
    if isinstance(counts, int):
        return apply_unsharded(_repeat_equally, x, (dim,), counts, total)
    if total is None:
        if is_traced(counts):
            raise ValueError(
                f"`repeats` for axis {x.names[dim]!r} of {format_shape(x)} is traced, so its new size is not known; "
                "give `total_repeat_length`"
            )
        total = int(np.sum(np.broadcast_to(counts, x.array.shape[dim])))
    return apply_unsharded(_repeat_each, x, (dim,), total, args=(counts,))


def _parse_repeats(x: NamedBase, dim: int, repeats: Any) -> Any:
    """Returns the numbers of repeats, an integer or an array with one for each element, checked if known."""
    name, size = x.names[dim], x.array.shape[dim]
    counts = repeats.array if isinstance(repeats, NamedBase) else repeats
    counts = counts if isinstance(counts, jax.Array) else np.asarray(counts)
    if not jnp.issubdtype(counts.dtype, jnp.integer) and counts.size:
        raise TypeError(f"axis {name!r} of {format_shape(x)} is repeated by integers, not by {format_value(repeats)}")
    if isinstance(repeats, NamedBase) and repeats.names not in ((), (name,)):
        raise ValueError(f"`repeats` along {name!r} must have just that axis, it has {format_shape(repeats)}")
    if counts.shape not in ((), (size,)):
        raise ValueError(f"axis {name!r} of {format_shape(x)} has {size} elements, `repeats` has shape {counts.shape}")
    if is_traced(counts):
        return counts
    if counts.size and counts.min() < 0:
        raise ValueError(f"axis {name!r} of {format_shape(x)} cannot be repeated a negative number of times")
    return counts.astype(int) if counts.ndim else int(counts)


def _repeat_equally(array: Any, dims: tuple[int, ...], count: int, total: int | None) -> Any:
    return jnp.repeat(array, count, dims[0], total_repeat_length=total)


def _repeat_each(array: Any, dims: tuple[int, ...], total: int, counts: Any) -> Any:
    counts = jnp.broadcast_to(replicate_dims(counts, range(counts.ndim)), (array.shape[dims[0]],))
    return jnp.repeat(array, counts, dims[0], total_repeat_length=total)


def tile(x: N, reps: Mapping[Any, int]) -> N:
    """Repeats the entire array along axes; see `jax.numpy.tile`.

    Args:
        x: Array of any axes.
        reps: The number of repeats for each axis, an `Axis` or its name; the other axes stay as they are.

    Returns:
        Array with the axes of `x`, some of them longer.

    Raises:
        TypeError: If `reps` is not a mapping, or a number not an integer.
        ValueError: If an axis is missing or given twice, or a number is negative.

    Example:
        >>> import axonym as nym
        >>> nym.tile(nym.arange(nym.Axis("i", 3)), {"i": 2}).array
        Array([0, 1, 2, 0, 1, 2], dtype=int32)
    """
    check_named(x)
    if not isinstance(reps, Mapping):
        raise TypeError(f"`tile` takes a mapping from axis to number, such as {{'pos': 2}}, not {format_value(reps)}.")
    dims = find_axes(x.names, x.array.shape, tuple(reps))
    counts = tuple([check_integer("tile: a number of repetitions", count) for count in reps.values()])
    if any(count < 0 for count in counts):
        negative = [x.names[dim] for dim, count in zip(dims, counts, strict=True) if count < 0]
        raise ValueError(
            f"axes {format_axes(negative)} of {format_shape(x)} cannot be repeated a negative number of times"
        )
    return apply_unsharded(_compute_tile, x, dims, counts) if dims else x


def _compute_tile(array: Any, dims: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    reps = dict(zip(dims, counts, strict=True))
    return jnp.tile(array, tuple(reps.get(dim, 1) for dim in range(array.ndim)))
