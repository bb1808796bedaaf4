"""`roll` and `flip`, which move elements along axes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._axis import AxisSelection, find_axes, format_axes, format_value
from .._base import N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import as_integer
from .._cached_jit import cached_jit
from ._apply_unsharded import apply_unsharded


def roll(x: N, shift: Any, axis: AxisSelection) -> N:
    """Rolls elements along axes, from the end back to the start; see `jax.numpy.roll`.

    Args:
        x: Array of any axes.
        shift: The number of places, towards the end if positive: an integer or an integer scalar array, named or not,
            which may be traced; or a sequence of them, one for each axis.
        axis: The axis, or several.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If an axis is missing, or there is not one shift for each axis.
        TypeError: If a shift is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.roll(nym.arange(nym.Axis("i", 5)), 2, "i").array
        Array([3, 4, 0, 1, 2], dtype=int32)
    """
    check_named(x)
    dims = find_axes(x.names, x.array.shape, axis)
    given = tuple(shift) if isinstance(shift, Sequence) and not isinstance(shift, str) else (shift,) * len(dims)
    if len(given) != len(dims):
        raise ValueError(f"{len(given)} shifts were given for the axes {format_axes([x.names[dim] for dim in dims])}")
    shifts = tuple(_parse_shift(x, one) for one in given)
    if not dims:
        return x
    if all(isinstance(one, int) for one in shifts):
        return apply_unsharded(_roll_static, x, dims, shifts)
    return apply_unsharded(_roll_traced, x, dims, args=shifts)


def _parse_shift(x: NamedBase, shift: Any) -> Any:
    number = as_integer(shift)
    if number is None:
        raise TypeError(f"{format_shape(x)} is rolled by an integer along each axis, not by {format_value(shift)}.")
    return number


def _roll_static(array: Any, dims: tuple[int, ...], shifts: tuple[int, ...]) -> Any:
    return jnp.roll(array, shifts, dims)


def _roll_traced(array: Any, dims: tuple[int, ...], *shifts: Any) -> Any:
    return jnp.roll(array, jnp.stack([jnp.asarray(shift) for shift in shifts]), dims)


def flip(x: N, axis: AxisSelection | None = None) -> N:
    """Reverses elements along axes; see `jax.numpy.flip`.

    Args:
        x: Array of any axes.
        axis: The axis, several, or None for all of them.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If an axis is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> nym.flip(nym.arange(nym.Axis("i", 3)), "i").array
        Array([2, 1, 0], dtype=int32)
    """
    check_named(x)
    return with_array(x, cached_jit(_reverse_dims, find_axes(x.names, x.array.shape, axis))(x.array))


def _reverse_dims(dims: tuple[int, ...], array: Any) -> Any:
    return jax.lax.rev(array, dims)
