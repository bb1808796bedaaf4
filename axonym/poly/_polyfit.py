"""Least-squares fits of polynomials to points, and the Vandermonde matrix."""

from typing import Any, Literal, overload

import jax.numpy as jnp

from ..named._arguments import check_number
from ..named._axis import Axis, AxisSelector, axis_name, check_selected_once, find_axis, parse_one_axis
from ..named._base import N, check_named, format_shape
from ._coefficient_axis import apply_to_polynomials, find_coefficient_axis, parse_count


def vander(x: N, new_axis: Axis, increasing: bool = False) -> N:
    """Makes the powers of each element, the Vandermonde matrix of a vector; see `jax.numpy.vander`.

    Args:
        x: Array.
        new_axis: The axis of the powers, with their number.
        increasing: Whether power 0 comes first instead of last.

    Returns:
        Array with the axes of `x`, then the new axis.

    Raises:
        ValueError: If `x` has an axis of that name.
        TypeError: If `x` is not a named array, or the new axis has no size.

    Example:
        >>> import axonym as nym
        >>> nym.poly.vander(nym.named([2, 3], "x"), nym.Axis("power", 3)).array
        Array([[4, 2, 1],
               [9, 3, 1]], dtype=int32)
    """
    one = parse_one_axis(new_axis)
    options = {"size": one.size, "increasing": bool(increasing)}
    return apply_to_polynomials(_compute_powers, "()->(k)", (x,), ((),), ((one.name,),), **options)[0]


def _compute_powers(x: Any, *, size: int, increasing: bool) -> Any:
    return jnp.vander(x[None], size, increasing)[0]


@overload
def polyfit(
    x: N,
    y: N,
    deg: int,
    rcond: float | None = None,
    full: Literal[False] = False,
    w: N | None = None,
    cov: Literal[False] = False,
    *,
    axis: AxisSelector | None = None,
    new_axis: str | None = None,
    other: str | None = None,
) -> N: ...


@overload
def polyfit(
    x: N,
    y: N,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: N | None = None,
    cov: bool | Literal["unscaled"] = False,
    *,
    axis: AxisSelector | None = None,
    new_axis: str | None = None,
    other: str | None = None,
) -> N | tuple[N, ...]: ...


def polyfit(
    x: N,
    y: N,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: N | None = None,
    cov: bool | Literal["unscaled"] = False,
    *,
    axis: AxisSelector | None = None,
    new_axis: str | None = None,
    other: str | None = None,
) -> N | tuple[N, ...]:
    """Fits polynomials to points by least squares; see `jax.numpy.polyfit`.

    Args:
        x: The positions of the points, along one axis and optionally others.
        y: The values at the points: an array with that axis and optionally others, one polynomial for each.
        deg: The degree; there is one coefficient more.
        rcond: Singular values below this fraction of the largest count as zero.
        full: Whether to return the diagnostics of the fit too.
        w: Weights of the points, with their axis and optionally others; all the same if None.
        cov: Whether to return the covariance of the coefficients, which "unscaled" does not scale by the residuals.
        axis: The axis of the points; by default the only one of `x`.
        new_axis: The name of the axis of the coefficients; the axis of the points, which it replaces, if None.
        other: The name of the second axis of the covariance, needed if `cov` is set.

    Returns:
        Coefficients, highest power first, along the last axis. If `full` is set, a tuple of them, the sums of squared
        residuals, the ranks, the singular values along the same axis, and `rcond`. Otherwise, if `cov` is set, a tuple
        of them and the covariance, whose last two axes are the axis of the coefficients and `other`.

    Raises:
        ValueError: If the axis is missing or ambiguous, axes do not broadcast, the degree is negative, there are no
            points or too few for a covariance, or `cov` is set without `other`.
        TypeError: If an array is not named, or the degree is not an integer.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([0.0, 1.0, 2.0, 3.0], "point")
        >>> y = nym.named([[1.0, 3.0, 5.0, 7.0], [2.0, 1.0, 0.0, -1.0]], ("line", "point"))
        >>> abs(nym.round(nym.poly.polyfit(x, y, 1, new_axis="power"), 3)).array
        Array([[2., 1.],
               [1., 2.]], dtype=float32)
    """
    points = find_coefficient_axis(x, axis, "points")
    check_named(y)
    name, degree = points if new_axis is None else axis_name(new_axis), parse_count("deg", deg)
    given = (x, y) if w is None else (x, y, w)
    _check_points(x, y, points, degree, bool(cov) and not full and cov != "unscaled")
    if rcond is not None:
        rcond = check_number("polyfit: `rcond`", rcond)
    options = {"deg": degree, "rcond": rcond, "full": bool(full), "cov": cov}
    outs: tuple[tuple[str, ...], ...] = ((name,),)
    signature = "(k)"
    if full:
        outs, signature = ((name,), (), (), (name,), ()), "(k),(),(),(k),()"
    elif cov:
        if other is None:
            raise ValueError(f"the covariance has axis {name!r} of the coefficients twice: name the second as `other`")
        check_selected_once((name, axis_name(other)))
        outs, signature = ((name,), (name, other)), "(k),(k,k)"
    signature = f"{','.join(['(n)'] * len(given))}->{signature}"
    results = apply_to_polynomials(_fit_points, signature, given, (points,) * len(given), outs, **options)
    return results if full or cov else results[0]


def _check_points(x: N, y: N, axis: str, degree: int, scaled: bool) -> None:
    number = x.axis_size(axis)
    found = y.array.shape[find_axis(y.names, y.array.shape, axis)]
    if number != found:
        raise ValueError(f"axis {axis!r} has size {number} and size {found} in {format_shape(x)} and {format_shape(y)}")
    if not number or (scaled and number <= degree + 1):
        raise ValueError(
            f"there are {number} points along axis {axis!r} of {format_shape(x)}, "
            + (f"more than {degree + 1} are needed to scale the covariance" if number else "at least one is needed")
        )


def _fit_points(*arrays: Any, deg: int, rcond: float | None, full: bool, cov: Any) -> Any:
    x, y, *w = (array.astype(jnp.result_type(array, float)) for array in arrays)
    results = jnp.polyfit(x, y, deg, rcond, full, *w, cov=cov)
    return (results[0], results[1].reshape(()), *results[2:]) if full else results
