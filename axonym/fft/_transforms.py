"""Fourier transforms of complex, real and Hermitian-symmetric arrays, over any number of axes."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..named._arguments import check_choice
from ..named._axis import Axis, AxisSelection, Names, axis_name, find_axes, parse_selection
from ..named._base import N, NamedBase, check_named, format_shape
from ..named._gufunc import apply_gufunc
from ..named._shape._rearrange import rearrange


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
        x: Real array.
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
    return _apply_transform(jnp.fft.rfftn, _check_real("rfft", x), axis, norm)


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
    return _apply_transform(jnp.fft.irfftn, x, axis, norm, halved=True)


def hfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms half of a symmetric array to its real frequencies; see `jax.numpy.fft.hfft`. Arguments as for `irfft`.

    Example:
        >>> import axonym as nym
        >>> nym.fft.hfft(nym.named([1.0, 2.0, 3.0], "time")).array
        Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    return _apply_transform(_compute_hfftn, x, axis, norm, halved=True)


def ihfft(x: N, axis: AxisSelection | None = None, norm: str | None = None) -> N:
    """Transforms real frequencies back to half of a symmetric array; see `jax.numpy.fft.ihfft`. Otherwise as `rfft`.

    Example:
        >>> import axonym as nym
        >>> nym.fft.ihfft(nym.named([8.0, -2.0, 0.0, -2.0], "time")).real.array
        Array([1., 2., 3.], dtype=float32)
    """
    return _apply_transform(_compute_ihfftn, _check_real("ihfft", x), axis, norm)


_INVERSE = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def _compute_hfftn(array: Any, s: tuple[int, ...], axes: tuple[int, ...], norm: str | None) -> Any:
    return jnp.fft.irfftn(jnp.conj(array), s, axes, _INVERSE[norm])


def _compute_ihfftn(array: Any, s: tuple[int, ...], axes: tuple[int, ...], norm: str | None) -> Any:
    return jnp.conj(jnp.fft.rfftn(array, s, axes, _INVERSE[norm]))


def _check_real(name: str, x: N) -> N:
    check_named(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        other = "fft" if name == "rfft" else "ifft"
        raise TypeError(f"`{name}` needs a real array, not {x.dtype} {format_shape(x)}; use `{other}`")
    return x


def _parse_points(x: NamedBase, axis: AxisSelection | None, halved: bool) -> tuple[Names, tuple[int, ...]]:
    """Returns the names of the axes to transform, and the number of points along each."""
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
                f"a transform along axis {names[dim]!r} of {format_shape(x)} needs at least one point; "
                f"give their number with `Axis({names[dim]!r}, size)`"
            )
    return tuple(names[dim] for dim in dims), tuple(points)


def _apply_transform(
    fn: Callable[..., Any], x: N, axis: AxisSelection | None, norm: str | None, halved: bool = False
) -> N:
    axes, points = _parse_points(x, axis, halved)
    if norm is not None:
        check_choice("`norm`", norm, ("backward", "ortho", "forward"))
    (result,) = apply_gufunc(_transform_last_dims, (x,), (axes,), (axes,), transform=fn, s=points, norm=norm)
    return result if result.names == x.names else rearrange(result, x.names)


def _transform_last_dims(array: Any, transform: Callable[..., Any], s: tuple[int, ...], norm: str | None) -> Any:
    return transform(array, s, tuple(range(-len(s), 0)), norm)
