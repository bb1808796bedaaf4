"""The transforms: of complex numbers, of real ones, and of those whose transform is real, over any number of axes."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._axis import Axis, AxisSelection, Names, axis_name, find_axes, parse_selection
from ..named._base import N, NamedBase, check_named, format_shape
from ..named._gufunc import apply_gufunc
from ..named._shape import rearrange


def fft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms to frequencies; see `jax.numpy.fft.fft`, and `jax.numpy.fft.fftn` for several axes.

    Args:
        x: Array.
        axis: Axis, several of them, or all for None. An `Axis`, or the size that a mapping gives, says how many points
            the transform has: `x` is cut off behind them, or padded with zeros, if it has another size.
        norm: "backward", the default, divides by the number of points in the inverse only, "forward" here only, and
            "ortho" by its square root in both.

    Returns:
        Complex array with the same names in the same order. The axes transformed have as many elements as points.

    Raises:
        ValueError: If an axis is not there or has no points, no axis is given, or the norm is another.
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
    return _transformed(jnp.fft.fftn, x, *_points(x, axis), norm)


def ifft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms back from frequencies; see `jax.numpy.fft.ifft` and `jax.numpy.fft.ifftn`. Arguments as for `fft`.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1.0, 2.0, 4.0], "time")
        >>> nym.fft.ifft(nym.fft.fft(x)).real.array
        Array([1., 2., 4.], dtype=float32)
    """
    return _transformed(jnp.fft.ifftn, x, *_points(x, axis), norm)


def rfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms real numbers to the half of their frequencies that says all; see `jax.numpy.fft.rfft` and `rfftn`.

    Args:
        x: Real array.
        axis: As for `fft`. Of several axes the last one given is halved; for None it is the last one of `x`.
        norm: As for `fft`.

    Returns:
        Complex array with the same names in the same order. The last axis given has `n // 2 + 1` elements for `n`
        points, the others as many as points.

    Raises:
        ValueError: If an axis is not there or has no points, no axis is given, or the norm is another.
        TypeError: If `x` is not a named array, or complex.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"time": 8, "batch": 2})
        >>> nym.fft.rfft(x, "time").shape
        (time: 5, batch: 2)
    """
    return _transformed(jnp.fft.rfftn, _real("rfft", x), *_points(x, axis), norm)


def irfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms half of the frequencies back to real numbers; see `jax.numpy.fft.irfft` and `irfftn`.

    Args:
        x: Array, as `rfft` returns it.
        axis: Axis, several of them, or all for None. Of the last one given `x` has the half. An `Axis`, or the size
            that a mapping gives, says how many points the result has; of the last axis `2 * (m - 1)` if there are `m`
            frequencies and no size is given. So give it for an odd number of points.
        norm: As for `fft`.

    Returns:
        Real array with the same names in the same order, whose axes have as many elements as points.

    Raises:
        ValueError: If an axis is not there or has no points, no axis is given, or the norm is another.
        TypeError: If `x` is not a named array.

    Example:
        >>> import axonym as nym
        >>> Time = nym.Axis("time", 3)
        >>> x = nym.named([1.0, 2.0, 4.0], Time)
        >>> nym.fft.irfft(nym.fft.rfft(x), Time).array
        Array([1., 2., 4.], dtype=float32)
    """
    return _transformed(jnp.fft.irfftn, x, *_points(x, axis, halved=True), norm)


def hfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms half of what is symmetric to its real frequencies; see `jax.numpy.fft.hfft`. Arguments as for `irfft`.

    Example:
        >>> import axonym as nym
        >>> nym.fft.hfft(nym.named([1.0, 2.0, 3.0], "time")).array
        Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    return _transformed(_hfftn, x, *_points(x, axis, halved=True), norm)


def ihfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms real frequencies back to half of what is symmetric; see `jax.numpy.fft.ihfft`. Else as `rfft`.

    Example:
        >>> import axonym as nym
        >>> nym.fft.ihfft(nym.named([8.0, -2.0, 0.0, -2.0], "time")).real.array
        Array([1., 2., 3.], dtype=float32)
    """
    return _transformed(_ihfftn, _real("ihfft", x), *_points(x, axis), norm)


_INVERSE = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def _hfftn(array: Any, s: tuple[int, ...], axes: tuple[int, ...], norm: str | None) -> Any:
    return jnp.fft.irfftn(jnp.conj(array), s, axes, _INVERSE[norm])


def _ihfftn(array: Any, s: tuple[int, ...], axes: tuple[int, ...], norm: str | None) -> Any:
    return jnp.conj(jnp.fft.rfftn(array, s, axes, _INVERSE[norm]))


def _real(name: str, x: N) -> N:
    check_named(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        whole = "fft" if name == "rfft" else "ifft"
        raise TypeError(f"`{name}` takes real numbers, {format_shape(x)} has {x.dtype}; use `{whole}`")
    return x


def _points(x: NamedBase, axis: AxisSelection | None, halved: bool = False) -> tuple[Names, tuple[int, ...]]:
    """Returns the names of the axes transformed, and how many points the transform has along each."""
    check_named(x)
    names, sizes = x.names, x.array.shape
    chosen = names if axis is None else parse_selection(axis)
    dims = find_axes(names, sizes, tuple(axis_name(one) for one in chosen))
    if not dims:
        raise ValueError(f"there is no axis to transform in {format_shape(x)}")
    points = [one.size if isinstance(one, Axis) else sizes[dim] for one, dim in zip(chosen, dims, strict=True)]
    if halved and not isinstance(chosen[-1], Axis):
        points[-1] = 2 * (points[-1] - 1)
    for dim, number in zip(dims, points, strict=True):
        if number < 1:
            raise ValueError(
                f"a transform along axis {names[dim]!r} of {format_shape(x)} needs one point or more; "
                f"say how many with `Axis({names[dim]!r}, size)`"
            )
    return tuple(names[dim] for dim in dims), tuple(points)


def _transformed(fn: Callable[..., Any], x: N, axes: Names, points: tuple[int, ...], norm: str | None) -> N:
    if norm not in _INVERSE:
        raise ValueError(f"the `norm` of a transform is 'backward', 'ortho' or 'forward', not {norm!r}")
    (result,) = apply_gufunc(_over_last, (x,), (axes,), (axes,), transform=fn, s=points, norm=norm)
    return result if result.names == x.names else rearrange(result, x.names)


def _over_last(array: Any, transform: Callable[..., Any], s: tuple[int, ...], norm: str | None) -> Any:
    return transform(array, s, tuple(range(-len(s), 0)), norm)
