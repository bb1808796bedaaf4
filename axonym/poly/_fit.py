"""Fitting polynomials to points, and the matrix of powers that this takes."""

import operator
from typing import Any, Literal, overload

import jax.numpy as jnp

from ..named._axis import Axis, AxisSelector, axis_name, check_selected_once, find_axis, parse_one_axis
from ..named._base import N, check_named, format_shape
from ..named._gufunc import apply_gufunc
from ._coefficients import coefficient_axis


def vander(x: N, new_axis: Axis, increasing: bool = False) -> N:
    """Makes the powers of each element; see `jax.numpy.vander`.

    Args:
        x: Array.
        new_axis: The axis of the powers, which says how many there are.
        increasing: Whether power 0 comes first and not last.

    Returns:
        Array with the axes of `x`, and the new axis behind them.

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
    return apply_gufunc(_powers, (x,), ((),), ((one.name,),), size=one.size, increasing=bool(increasing))[0]


def _powers(x: Any, size: int, increasing: bool) -> Any:
    def powers(one: Any) -> Any:
        return jnp.vander(one[None], size, increasing)[0]

    return jnp.vectorize(powers, signature="()->(k)")(x)


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
        x: Where the points are, along one axis and maybe others.
        y: What the polynomials are to be there: an array with that axis, and maybe others, one polynomial for each.
        deg: The degree, which gives one coefficient more.
        rcond: Singular values smaller than this share of the largest one count as zero.
        full: Whether to return all that the fit has found.
        w: Weights of the points, with their axis and maybe others; all the same if None.
        cov: Whether to return the covariance of the coefficients, which "unscaled" does not scale by the residuals.
        axis: The axis of the points; the only one of `x` if None.
        new_axis: The name of the axis of the coefficients; that of the points, which is gone, if None.
        other: The name of the second axis of the covariance, needed if `cov` is set.

    Returns:
        Coefficients, highest power first, along an axis behind the others. If `full` is set a tuple of them, the sums
        of squared residuals, the ranks, the singular values along the same axis, and `rcond`. If else `cov` is set a
        tuple of them and the covariance, whose last two axes are that of the coefficients and `other`.

    Raises:
        ValueError: If the axis is not there or not clear, axes do not broadcast, the degree is negative, there are no
            points or too few for a covariance, or `cov` is set without `other`.
        TypeError: If an array is not named, or the degree no integer.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([0.0, 1.0, 2.0, 3.0], "point")
        >>> y = nym.named([[1.0, 3.0, 5.0, 7.0], [2.0, 1.0, 0.0, -1.0]], ("line", "point"))
        >>> abs(nym.round(nym.poly.polyfit(x, y, 1, new_axis="power"), 3)).array
        Array([[2., 1.],
               [1., 2.]], dtype=float32)
    """
    points = coefficient_axis(x, axis, "points")
    check_named(y)
    name, degree = points if new_axis is None else axis_name(new_axis), _degree(deg)
    given = (x, y) if w is None else (x, y, w)
    _check_points(x, y, points, degree, bool(cov) and not full and cov != "unscaled")
    options = {"deg": degree, "rcond": rcond, "full": bool(full), "cov": cov}
    outs: tuple[tuple[str, ...], ...] = ((name,),)
    if full:
        outs = ((name,), (), (), (name,), ())
    elif cov:
        if other is None:
            raise ValueError(f"the covariance has axis {name!r} of the coefficients twice: name the second as `other`")
        check_selected_once((name, axis_name(other)))
        outs = ((name,), (name, other))
    results = apply_gufunc(_fitted, given, (points,) * len(given), outs, **options)
    return results if full or cov else results[0]


def _check_points(x: N, y: N, axis: str, degree: int, scaled: bool) -> None:
    number = x.axis_size(axis)
    found = y.array.shape[find_axis(y.names, y.array.shape, axis)]
    if number != found:
        raise ValueError(f"axis {axis!r} has size {number} and size {found} in {format_shape(x)} and {format_shape(y)}")
    if not number or (scaled and number <= degree + 1):
        raise ValueError(
            f"there are {number} points along axis {axis!r} of {format_shape(x)}, "
            + (f"more than {degree + 1} are needed to scale the covariance" if number else "one or more are needed")
        )


def _degree(deg: int) -> int:
    try:
        degree = operator.index(deg)
    except TypeError:
        raise TypeError(f"The degree of a polynomial is an integer, not {type(deg).__name__}.") from None
    if degree < 0:
        raise ValueError(f"the degree of a polynomial is zero or more, not {degree}")
    return degree


def _fitted(*arrays: Any, deg: int, rcond: float | None, full: bool, cov: Any) -> Any:
    arrays = tuple(array.astype(jnp.result_type(array, float)) for array in arrays)

    def fitted(x: Any, y: Any, w: Any = None) -> Any:
        results = jnp.polyfit(x, y, deg, rcond, full, w, cov)
        return (results[0], results[1].reshape(()), *results[2:]) if full else results

    outs = "(k),(),(),(k),()" if full else "(k),(k,k)" if cov else "(k)"
    return jnp.vectorize(fitted, signature=",".join(["(n)"] * len(arrays)) + f"->{outs}")(*arrays)
