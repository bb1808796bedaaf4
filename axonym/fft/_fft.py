"""Fourier transforms of complex, real and Hermitian-symmetric arrays, and the frequencies of their elements."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .._ground.arguments import check_choice
from ..named._array import NamedArray
from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    find_axes,
    parse_one_axis,
    parse_selection,
)
from ..named._base import N, NamedBase, check_named, format_shape, with_array
from ..named._broadcasting import apply_to_whole_axes, get_scalar
from ..named._gufunc import apply_gufunc
from ..named._shape._rearrange import rearrange
from ..named._sharding import constrain_sharding
from ..named._wide_sums import widen_float


def fft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms to frequencies; see `jax.numpy.fft.fft`, and `jax.numpy.fft.fftn` for several axes.

    Args:
        x: Array.
        axis: Axis, several of them, or all for None. An `Axis` or a mapping also gives the number of points of the
            transform: `x` is truncated or padded with zeros to it.
        norm: "backward", the default, divides by the number of points in the inverse only, "forward" only here, and
            "ortho" divides by its square root in both.

    Returns:
        Complex array with the same names in the same order. The transformed axes have as many elements as points.

    Raises:
        ValueError: If an axis is missing or has no points, no axis is given, or `norm` is unknown.
        TypeError: If `x` is not a named array.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 1.0], [1.0, 1.0]], ("batch", "time"))
        >>> nym.fft.fft(x, "time").real.array
        Array([[2., 0.],
               [2., 0.]], dtype=float32)
        >>> nym.fft.fft(x, {"time": 4}).shape
        (batch: 2, time: 4)
    """
    return _apply_transform(jnp.fft.fftn, x, axis, norm)


def ifft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms back from frequencies; see `jax.numpy.fft.ifft` and `jax.numpy.fft.ifftn`. Arguments as for `fft`.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1.0, 2.0, 4.0], "time")
        >>> nym.fft.ifft(nym.fft.fft(x)).real.array
        Array([1., 2., 4.], dtype=float32)
    """
    return _apply_transform(jnp.fft.ifftn, x, axis, norm)


def rfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms a real array to the nonnegative half of its frequencies; see `jax.numpy.fft.rfft` and `rfftn`.

    Args:
        x: Real array; floats of 16 bits are transformed in float32.
        axis: As for `fft`. The last axis given is halved; for None, the last axis of `x`.
        norm: As for `fft`.

    Returns:
        Complex array with the same names in the same order. The last axis given has `n // 2 + 1` elements for `n`
        points, the others as many as points.

    Raises:
        ValueError: If an axis is missing or has no points, no axis is given, or `norm` is unknown.
        TypeError: If `x` is not a named array, or is complex.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"time": 8, "batch": 2})
        >>> nym.fft.rfft(x, "time").shape
        (time: 5, batch: 2)
    """
    return _apply_transform(jnp.fft.rfftn, _widen_real("rfft", x), axis, norm)


def irfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms half of the frequencies back to a real array; see `jax.numpy.fft.irfft` and `irfftn`.

    Args:
        x: Array such as a result of `rfft`.
        axis: Axis, several of them, or all for None. `x` has half of the last one given. An `Axis` or a mapping also
            gives the number of points of the result, by default `2 * (m - 1)` for `m` frequencies of the last axis, so
            an odd number of points must be given.
        norm: As for `fft`.

    Returns:
        Real array with the same names in the same order. The transformed axes have as many elements as points.

    Raises:
        ValueError: If an axis is missing or has no points, no axis is given, or `norm` is unknown.
        TypeError: If `x` is not a named array.

    Example:
        >>> import axonym as nym
        >>> Time = nym.Axis("time", 3)
        >>> x = nym.named([1.0, 2.0, 4.0], Time)
        >>> nym.fft.irfft(nym.fft.rfft(x), Time).array
        Array([1., 2., 4.], dtype=float32)
    """
    return _apply_transform(jnp.fft.irfftn, x, axis, norm, is_half=True)


def hfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms half of a symmetric array to its real frequencies; see `jax.numpy.fft.hfft`. Arguments as for `irfft`.

    Example:
        >>> import axonym as nym
        >>> nym.fft.hfft(nym.named([1.0, 2.0, 3.0], "time")).array
        Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    return _apply_transform(_compute_hfftn, x, axis, norm, is_half=True)


def ihfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms real frequencies back to half of a symmetric array; see `jax.numpy.fft.ihfft`. Otherwise as `rfft`.

    Example:
        >>> import axonym as nym
        >>> nym.fft.ihfft(nym.named([8.0, -2.0, 0.0, -2.0], "time")).real.array
        Array([1., 2., 3.], dtype=float32)
    """
    return _apply_transform(_compute_ihfftn, _widen_real("ihfft", x), axis, norm)


# `hfft` is computed by an inverse transform and `ihfft` by a forward one, so `norm` names the other direction.
_INVERSE = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def _compute_hfftn(array: Any, s: tuple[int, ...], axes: tuple[int, ...], norm: str | None) -> Any:
    return jnp.fft.irfftn(jnp.conj(array), s, axes, _INVERSE[norm])


def _compute_ihfftn(array: Any, s: tuple[int, ...], axes: tuple[int, ...], norm: str | None) -> Any:
    return jnp.conj(jnp.fft.rfftn(array, s, axes, _INVERSE[norm]))


def _widen_real(name: str, x: N) -> N:
    """Returns a real array, floats in float32 at least; raises a TypeError if it is complex."""
    check_named(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        complex_name = {"rfft": "fft", "ihfft": "ifft"}[name]
        raise TypeError(f"`{name}` needs a real array, not {x.dtype} {format_shape(x)}; use `{complex_name}`")
    return with_array(x, widen_float(x.array))  # JAX widens 16-bit floats for `fft` alone


def _parse_points(x: NamedBase, axis: AxisSelection | None, is_half: bool) -> tuple[Names, tuple[int, ...]]:
    """Returns the names of the axes to transform, and the number of points along each.

    If `is_half`, the last axis of `x` has only the nonnegative half of the frequencies.
    """
    check_named(x)
    names, sizes = x.names, x.array.shape
    selectors = names if axis is None else parse_selection(axis)
    dims = find_axes(names, sizes, tuple(axis_name(selector) for selector in selectors))
    if not dims:
        raise ValueError(f"there is no axis to transform in {format_shape(x)}")
    points = [
        selector.size if isinstance(selector, Axis) else sizes[dim]
        for selector, dim in zip(selectors, dims, strict=True)
    ]
    if is_half and not isinstance(selectors[-1], Axis):
        points[-1] = 2 * (points[-1] - 1)  # n points, if n is even, have n // 2 + 1 nonnegative frequencies
    for dim, number in zip(dims, points, strict=True):
        if number < 1:
            raise ValueError(
                f"a transform along axis {names[dim]!r} of {format_shape(x)} needs at least one point; "
                f"give their number with `Axis({names[dim]!r}, size)`"
            )
    return tuple(names[dim] for dim in dims), tuple(points)


def _apply_transform(
    fn: Callable[..., Any], x: N, axis: AxisSelection | None, norm: str | None, is_half: bool = False
) -> N:
    axes, points = _parse_points(x, axis, is_half)
    if norm is not None:
        check_choice("`norm`", norm, ("backward", "ortho", "forward"))
    (result,) = apply_gufunc(_transform_last_dims, (x,), (axes,), (axes,), transform=fn, s=points, norm=norm)
    return result if result.names == x.names else rearrange(result, x.names)


def _transform_last_dims(array: Any, transform: Callable[..., Any], s: tuple[int, ...], norm: str | None) -> Any:
    return transform(array, s, tuple(range(-len(s), 0)), norm)


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
    full = _parse_axis_with_points(axis)
    return constrain_sharding(NamedArray(jnp.fft.fftfreq(full.size, get_scalar("`d`", d)), full))


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
    full = _parse_axis_with_points(axis)
    half = Axis(full.name if new_axis is None else axis_name(new_axis), full.size // 2 + 1)
    if isinstance(new_axis, Axis) and new_axis != half:
        raise ValueError(
            f"the axis of the frequencies of ({full}) has size {half.size}, not {new_axis.size} as in ({new_axis})"
        )
    return constrain_sharding(NamedArray(jnp.fft.rfftfreq(full.size, get_scalar("`d`", d)), half))


def _parse_axis_with_points(axis: Axis) -> Axis:
    parsed = parse_one_axis(axis)
    if not parsed.size:
        raise ValueError(f"axis ({parsed}) needs at least one point to have frequencies")
    return parsed


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
