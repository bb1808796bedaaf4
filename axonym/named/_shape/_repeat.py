"""Elements repeated along axes that an array has."""

import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._ambient import replicate_dims
from .._axis import AxisSelector, find_axes, find_axis, format_axes, format_value
from .._base import N, NamedBase, check_named, format_shape, is_traced
from ._apply_unsharded import apply_unsharded


def repeat(x: N, repeats: Any, axis: AxisSelector, total_repeat_length: int | None = None) -> N:
    """Repeats each element along an axis; see `jax.numpy.repeat`.

    Args:
        x: Array of any axes.
        repeats: How often: one integer, or one for each element, as a named array with just that axis, a plain 1-D
            array or a list.
        axis: The axis, which keeps its name.
        total_repeat_length: The size that the axis gets. It must be given where `repeats` is traced; what lies beyond
            is cut off, and what is missing is filled with the last element.

    Returns:
        Array with the axes of `x`, one of them longer.

    Raises:
        ValueError: If the axis is not there, `repeats` has other axes or a negative number, or its sum is not known.
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
    counts = _counts(x, dim, repeats)
    total = None if total_repeat_length is None else operator.index(total_repeat_length)
    if isinstance(counts, int):
        return apply_unsharded(_repeated_alike, x, (dim,), counts, total)
    if total is None:
        if is_traced(counts):
            raise ValueError(
                f"how often axis {x.names[dim]!r} of {format_shape(x)} is repeated is traced, so its new size is not "
                "known: give `total_repeat_length`"
            )
        total = int(np.sum(np.broadcast_to(counts, x.array.shape[dim])))
    return apply_unsharded(_repeated, x, (dim,), total, args=(counts,))


def _counts(x: NamedBase, dim: int, repeats: Any) -> Any:
    """Returns how often to repeat: an integer, or an array with a number for each element, checked as far as known."""
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


def _repeated_alike(array: Any, dims: tuple[int, ...], count: int, total: int | None) -> Any:
    return jnp.repeat(array, count, dims[0], total_repeat_length=total)


def _repeated(array: Any, dims: tuple[int, ...], total: int, counts: Any) -> Any:
    counts = jnp.broadcast_to(replicate_dims(counts, range(counts.ndim)), (array.shape[dims[0]],))
    return jnp.repeat(array, counts, dims[0], total_repeat_length=total)


def tile(x: N, reps: Mapping[Any, int]) -> N:
    """Repeats the whole array along axes; see `jax.numpy.tile`.

    Args:
        x: Array of any axes.
        reps: How often for each axis, given by an `Axis` or by name; the others stay as they are.

    Returns:
        Array with the axes of `x`, some of them longer.

    Raises:
        TypeError: If `reps` is no mapping, or a number no integer.
        ValueError: If an axis is not there, is given twice, or a number is negative.

    Example:
        >>> import axonym as nym
        >>> nym.tile(nym.arange(nym.Axis("i", 3)), {"i": 2}).array
        Array([0, 1, 2, 0, 1, 2], dtype=int32)
    """
    check_named(x)
    if not isinstance(reps, Mapping):
        raise TypeError(f"`tile` takes a mapping from axis to number, such as {{'pos': 2}}, not {format_value(reps)}.")
    dims, counts = find_axes(x.names, x.array.shape, tuple(reps)), tuple(map(operator.index, reps.values()))
    if any(count < 0 for count in counts):
        few = [x.names[dim] for dim, count in zip(dims, counts, strict=True) if count < 0]
        raise ValueError(f"axes {format_axes(few)} of {format_shape(x)} cannot be repeated a negative number of times")
    return apply_unsharded(_tiled, x, dims, counts) if dims else x


def _tiled(array: Any, dims: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    often = dict(zip(dims, counts, strict=True))
    return jnp.tile(array, tuple(often.get(dim, 1) for dim in range(array.ndim)))
