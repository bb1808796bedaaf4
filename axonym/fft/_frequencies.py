"""The frequencies of the elements of a transform, and their order."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name, find_axes, parse_one_axis
from ..named._base import N, check_named
from ..named._broadcasting import apply_to_whole_axes, get_scalar


def fftfreq(axis: Axis, d: Any = 1.0) -> NamedArray:
    """Makes the frequencies of the elements of `fft` along an axis; see `jax.numpy.fft.fftfreq`.

    Args:
        axis: The axis, with the number of points.
        d: Distance between points, a scalar.

    Returns:
        Array with that axis: the nonnegative frequencies, then the negative ones.

    Raises:
        TypeError: If the axis has no size, or `d` is an array with axes.
        ValueError: If the axis has no points, or `d` is a named array with axes.

    Example:
        >>> import axonym as nym
        >>> nym.fft.fftfreq(nym.Axis("time", 4)).array
        Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    one = _check_has_points(axis)
    return constrain_sharding(NamedArray(jnp.fft.fftfreq(one.size, get_scalar("`d`", d)), one))


def rfftfreq(axis: Axis, d: Any = 1.0, new_axis: AxisSelector | None = None) -> NamedArray:
    """Makes the frequencies of the elements of `rfft` along an axis; see `jax.numpy.fft.rfftfreq`.

    Args:
        axis: The axis before the transform, with the number of points `n`.
        d: Distance between points, a scalar.
        new_axis: The axis of the result, or its name; the name of `axis` if None, as in `rfft`.

    Returns:
        Array with one axis of size `n // 2 + 1`.

    Raises:
        TypeError: If the axis has no size, or `d` is an array with axes.
        ValueError: If the axis has no points, `new_axis` has another size, or `d` is a named array with axes.

    Example:
        >>> import axonym as nym
        >>> nym.fft.rfftfreq(nym.Axis("time", 4), new_axis="frequency")
        NamedArray(float32, frequency: 3, [0.  , 0.25, 0.5 ])
    """
    one = _check_has_points(axis)
    half = Axis(one.name if new_axis is None else axis_name(new_axis), one.size // 2 + 1)
    if isinstance(new_axis, Axis) and new_axis != half:
        raise ValueError(
            f"the axis of the frequencies of ({one}) has size {half.size}, not {new_axis.size} as in ({new_axis})"
        )
    return constrain_sharding(NamedArray(jnp.fft.rfftfreq(one.size, get_scalar("`d`", d)), half))


def _check_has_points(axis: Axis) -> Axis:
    one = parse_one_axis(axis)
    if not one.size:
        raise ValueError(f"axis ({one}) needs at least one point to have frequencies")
    return one


def fftshift(x: N, axis: AxisSelection | None = None) -> N:
    """Moves frequency zero to the middle; see `jax.numpy.fft.fftshift`.

    Args:
        x: Array.
        axis: Axis, several of them, or all for None.

    Returns:
        Array with the same axes.

    Raises:
        ValueError: If an axis is missing, or an `Axis` has another size.
        TypeError: If `x` is not a named array.

    Example:
        >>> import axonym as nym
        >>> nym.fft.fftshift(nym.fft.fftfreq(nym.Axis("time", 4))).array
        Array([-0.5 , -0.25,  0.  ,  0.25], dtype=float32)
    """
    return _apply_shift(jnp.fft.fftshift, x, axis)


def ifftshift(x: N, axis: AxisSelection | None = None) -> N:
    """Moves frequency zero back to the front; see `jax.numpy.fft.ifftshift`. Arguments as for `fftshift`.

    Example:
        >>> import axonym as nym
        >>> x = nym.fft.fftfreq(nym.Axis("time", 5))
        >>> (nym.fft.ifftshift(nym.fft.fftshift(x)) == x).all().item()
        True
    """
    return _apply_shift(jnp.fft.ifftshift, x, axis)


def _apply_shift(fn: Callable[..., Any], x: N, axis: AxisSelection | None) -> N:
    check_named(x)
    return apply_to_whole_axes(fn, x, find_axes(x.names, x.array.shape, axis))
