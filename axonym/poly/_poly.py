"""Arithmetic, calculus, roots and fits of polynomials, vectorised over all axes but that of the coefficients."""

import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, overload

import jax.numpy as jnp

from .._ground.arguments import check_number
from .._ground.jax_compat import is_traced
from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    check_selected_once,
    find_axes,
    find_axis,
    parse_one_axis,
)
from ..named._base import N, NamedBase, check_named, format_shape, with_array
from ..named._broadcasting import split_operand
from ..named._gufunc import apply_gufunc
from ..named._operation import run_operation, shard_over_auto


def find_coefficient_axis(x: Any, axis: AxisSelector | None, contents: str = "coefficients") -> str:
    """Returns the name of the axis given, or of the only axis."""
    check_named(x)
    if axis is not None:
        return x.names[find_axis(x.names, x.array.shape, axis)]
    if len(x.names) != 1:
        raise ValueError(f"which axis of {format_shape(x)} has the {contents}? Give it as `axis`")
    return x.names[0]


def find_common_axis(p: NamedBase, q: NamedBase, axis: AxisSelector | None) -> str:
    """Returns the name of the coefficient axis of two polynomials, which may differ in size."""
    p_name, q_name = find_coefficient_axis(p, axis), find_coefficient_axis(q, axis)
    if p_name != q_name:
        raise ValueError(
            f"the coefficients are along axis {p_name!r} of {format_shape(p)} and axis {q_name!r} of "
            f"{format_shape(q)}; `rename` one of them"
        )
    return p_name


def parse_count(name: str, value: Any) -> int:
    """Returns an argument as a nonnegative integer; raises a TypeError or ValueError that names it."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, not {type(value).__name__}.") from None
    if count < 0:
        raise ValueError(f"`{name}` must not be negative, it is {count}")
    return count


def apply_to_polynomials(
    fn: Callable[..., Any],
    signature: str,
    arrays: Sequence[N],
    cores: Sequence[AxisSelection],
    outs: Sequence[Names],
    **options: Hashable,
) -> tuple[N, ...]:
    """Applies a module-level function of single polynomials, vectorised by its signature; see `apply_gufunc`."""
    return apply_gufunc(
        _vectorize_function, arrays, cores, outs, function=fn, signature=signature, options=tuple(options.items())
    )


def _vectorize_function(
    *arrays: Any, function: Callable[..., Any], signature: str, options: tuple[tuple[str, Any], ...]
) -> Any:
    return jnp.vectorize(functools.partial(function, **dict(options)), signature=signature)(*arrays)


def polyadd(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Adds polynomials; see `jax.numpy.polyadd`.

    Args:
        p: Coefficients, highest power first.
        q: Coefficients, highest power first; their number may differ. Its other axes broadcast by name.
        axis: The axis of the coefficients, by name if the sizes differ; by default the only one.

    Returns:
        Coefficients of the sum, as many as the longer one. Their axis comes last.

    Raises:
        ValueError: If the axis is missing or ambiguous, or the other axes do not broadcast.
        TypeError: If one is not a named array.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1, 2, 3], "power"), nym.named([10, 20], "power")
        >>> nym.poly.polyadd(p, q).array
        Array([ 1, 12, 23], dtype=int32)
    """
    return _combine_polynomials(jnp.polyadd, p, q, axis)[0]


def polysub(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Subtracts polynomials; see `jax.numpy.polysub`. Arguments as for `polyadd`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1, 2, 3], "power"), nym.named([10, 20], "power")
        >>> nym.poly.polysub(p, q).array
        Array([  1,  -8, -17], dtype=int32)
    """
    return _combine_polynomials(jnp.polysub, p, q, axis)[0]


def polymul(p: N, q: N, axis: AxisSelector | None = None) -> N:
    """Multiplies polynomials; see `jax.numpy.polymul`. Arguments as for `polyadd`.

    Returns:
        Coefficients of the product, `n + m - 1` for `n` and `m`. Leading zeros are kept: see `trim_zeros`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1.0, 2.0], "power"), nym.named([1.0, 3.0], "power")
        >>> nym.poly.polymul(p, q).array
        Array([1., 5., 6.], dtype=float32)
    """
    return _combine_polynomials(_multiply_polynomials, p, q, axis)[0]


def _multiply_polynomials(p: Any, q: Any) -> Any:
    # The product is a convolution, and XLA computes a wrong gradient of it if the coefficients are sharded.
    whole = {"coefficient": ()}
    p, q = (shard_over_auto(coefficients, ("coefficient",), whole) for coefficients in (p, q))
    return shard_over_auto(jnp.polymul(p, q), ("coefficient",), whole)


def polydiv(p: N, q: N, axis: AxisSelector | None = None) -> tuple[N, N]:
    """Divides polynomials; see `jax.numpy.polydiv`. Arguments as for `polyadd`.

    Returns:
        Coefficients of the quotient, `n - m + 1` for `n` and `m` but at least one, and of the remainder, as many as of
        `p`. Leading zeros are kept: see `trim_zeros`.

    Example:
        >>> import axonym as nym
        >>> p, q = nym.named([1.0, 5.0, 7.0], "power"), nym.named([1.0, 3.0], "power")
        >>> [x.array for x in nym.poly.polydiv(p, q)]
        [Array([1., 2.], dtype=float32), Array([0., 0., 1.], dtype=float32)]
    """
    quotient, remainder = _combine_polynomials(jnp.polydiv, p, q, axis, "(k),(n)")
    return quotient, remainder


def _combine_polynomials(
    fn: Callable[..., Any], p: N, q: N, axis: AxisSelector | None, out: str = "(k)"
) -> tuple[N, ...]:
    name = find_common_axis(p, q, axis)
    return apply_to_polynomials(fn, f"(n),(m)->{out}", (p, q), (name, name), ((name,),) * (out.count(",") + 1))


def trim_zeros(x: N, trim: str = "fb", axis: AxisSelection | None = None) -> N:
    """Removes zeros at the ends; see `jax.numpy.trim_zeros`.

    The size of the result depends on the values, so `x` must not be traced.

    Args:
        x: Array.
        trim: Which ends: "f" for the front, "b" for the back, "fb" for both.
        axis: Axis, several of them, or all for None. Along each, positions are removed where all elements are zero.

    Returns:
        Array with the same names, replicated on an Explicit mesh.

    Raises:
        ValueError: If an axis is missing, or `trim` is invalid.
        TypeError: If `x` is not a named array, or is traced.

    Example:
        >>> import axonym as nym
        >>> nym.poly.trim_zeros(nym.named([0, 0, 1, 2, 0], "power"), "f").array
        Array([1, 2, 0], dtype=int32)
    """
    check_named(x)
    if is_traced(x.array):
        raise TypeError(
            f"`trim_zeros` of {format_shape(x)} has a size that depends on values, which are unknown under `jax.jit`; "
            "call it outside"
        )
    if not isinstance(trim, str) or not trim or set(trim) - set("fb"):
        raise ValueError(f"`trim` must be 'f', 'b' or 'fb', not {trim!r}")
    dims = find_axes(x.names, x.array.shape, axis)
    if not dims:
        return x
    # Every device looks at all elements to find the size of the result.
    trim_dims = functools.partial(jnp.trim_zeros, trim=trim, axis=dims)
    return with_array(x, run_operation(trim_dims, [x.names], None, x.array, whole=x.names))


def polyval(p: N, x: Any, axis: AxisSelector | None = None) -> N:
    """Evaluates polynomials; see `jax.numpy.polyval`.

    Args:
        p: Coefficients, highest power first.
        x: The points: a scalar or a named array, which broadcasts by name with the other axes of `p`.
        axis: The axis of the coefficients; by default the only one.

    Returns:
        Array with the other axes of `p` and the axes of `x`, broadcast by name.

    Raises:
        ValueError: If the axis is missing or ambiguous, `x` has it also, or the other axes do not broadcast.
        TypeError: If `p` is not a named array, or `x` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> p = nym.named([1.0, 0.0, 2.0], "power")
        >>> nym.poly.polyval(p, nym.named([0.0, 1.0, 3.0], "x")).array
        Array([ 2.,  3., 11.], dtype=float32)
    """
    name, points = find_coefficient_axis(p, axis), _as_named(x, p)
    if name in points.names:
        raise ValueError(
            f"axis {name!r} of {format_shape(x)} is the axis of the coefficients {format_shape(p)}; `rename` one of "
            "them"
        )
    return apply_gufunc(_evaluate_polynomials, (p, points), (name, ()), ((),))[0]


def _as_named(x: Any, like: N) -> N:
    """Returns a scalar or a named array as an array of the same class as another one."""
    array, names = split_operand(x)
    return with_array(like, jnp.asarray(array), names)


def _evaluate_polynomials(p: Any, x: Any) -> Any:
    return jnp.polyval(jnp.moveaxis(p, -1, 0), x)  # which broadcasts all axes of `p` but the first with `x`


def polyder(p: N, m: int = 1, axis: AxisSelector | None = None) -> N:
    """Differentiates polynomials; see `jax.numpy.polyder`.

    Args:
        p: Coefficients, highest power first.
        m: The order of the derivative.
        axis: The axis of the coefficients; by default the only one.

    Returns:
        Coefficients of the derivative, `m` fewer. Their axis comes last.

    Raises:
        ValueError: If the axis is missing or ambiguous, or `m` is negative.
        TypeError: If `p` is not a named array, or `m` is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.poly.polyder(nym.named([1.0, 2.0, 3.0], "power")).array
        Array([2., 2.], dtype=float32)
    """
    name = find_coefficient_axis(p, axis)
    return apply_to_polynomials(jnp.polyder, "(n)->(k)", (p,), (name,), ((name,),), m=parse_count("m", m))[0]


def polyint(p: N, m: int = 1, k: Any = None, axis: AxisSelector | None = None) -> N:
    """Integrates polynomials; see `jax.numpy.polyint`.

    Args:
        p: Coefficients, highest power first.
        m: The number of integrations.
        k: The constants of integration: a scalar for all, or a named array of other axes of `p`, with the axis of the
            coefficients in size `m` if each integration has its own; zero if None.
        axis: The axis of the coefficients, by name if `k` has it; by default the only one.

    Returns:
        Coefficients of the integral, `m` more. Their axis comes last.

    Raises:
        ValueError: If the axis is missing or ambiguous, `k` has it in another size, its other axes do not broadcast,
            or `m` is negative.
        TypeError: If `p` is not a named array, `k` is a plain array with axes, or `m` is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.poly.polyint(nym.named([2.0, 2.0], "power"), k=3.0).array
        Array([1., 2., 3.], dtype=float32)
    """
    name, order = find_coefficient_axis(p, axis), parse_count("m", m)
    constants = _as_named(0 if k is None else k, p)
    if name in constants.names:  # one constant for each integration
        if constants.axis_size(name) != order:
            raise ValueError(
                f"{order} integrations need {order} constants along axis {name!r}, not {constants.axis_size(name)} "
                f"as in {format_shape(constants)}"
            )
        cores, signature = (name, name), "(n),(m)->(k)"
    else:
        cores, signature = (name, ()), "(n),()->(k)"
    return apply_to_polynomials(_integrate_polynomial, signature, (p, constants), cores, ((name,),), m=order)[0]


def _integrate_polynomial(p: Any, k: Any, *, m: int) -> Any:
    return jnp.polyint(p, m, k)


def roots(p: N, axis: AxisSelector | None = None) -> N:
    """Finds the roots of polynomials; see `jax.numpy.roots` with `strip_zeros=False`.

    Args:
        p: Coefficients, highest power first.
        axis: The axis of the coefficients; by default the only one.

    Returns:
        Complex array of `n - 1` roots for `n` coefficients, along a last axis of the same name. If
        leading coefficients are zero there are fewer roots, and the missing ones are NaN, at the end.

    Raises:
        ValueError: If the axis is missing or ambiguous.
        TypeError: If `p` is not a named array.

    Example:
        >>> import axonym as nym
        >>> roots = nym.poly.roots(nym.named([1.0, -3.0, 2.0], "power"))
        >>> nym.round(nym.sort(roots.real, "power"), 4).array
        Array([1., 2.], dtype=float32)
    """
    name = find_coefficient_axis(p, axis)
    return apply_to_polynomials(jnp.roots, "(n)->(k)", (p,), (name,), ((name,),), strip_zeros=False)[0]


def poly(zeros: N, axis: AxisSelector | None = None) -> N:
    """Finds the coefficients of polynomials from their roots; see `jax.numpy.poly`.

    Args:
        zeros: The roots.
        axis: The axis of the roots; by default the only one.

    Returns:
        Coefficients, highest power first, one more than roots, along a last axis of the same name. The
        leading ones are 1.

    Raises:
        ValueError: If the axis is missing or ambiguous.
        TypeError: If `zeros` is not a named array.

    Example:
        >>> import axonym as nym
        >>> nym.poly.poly(nym.named([1.0, 2.0], "power")).array
        Array([ 1., -3.,  2.], dtype=float32)
    """
    name = find_coefficient_axis(zeros, axis, "roots")
    return apply_to_polynomials(_compute_coefficients, "(n)->(k)", (zeros,), (name,), ((name,),))[0]


def _compute_coefficients(zeros: Any) -> Any:
    return jnp.atleast_1d(jnp.poly(zeros))  # without roots `jax.numpy.poly` returns a scalar


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
    powers = parse_one_axis(new_axis)
    return apply_to_polynomials(
        _compute_powers, "()->(k)", (x,), ((),), ((powers.name,),), size=powers.size, increasing=bool(increasing)
    )[0]


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
    arrays = (x, y) if w is None else (x, y, w)
    _check_points(x, y, points, degree, bool(cov) and not full and cov != "unscaled")
    if rcond is not None:
        rcond = check_number("polyfit: `rcond`", rcond)
    outs: tuple[tuple[str, ...], ...]
    if full:
        outs, result = ((name,), (), (), (name,), ()), "(k),(),(),(k),()"
    elif cov:
        if other is None:
            raise ValueError(f"the covariance has axis {name!r} of the coefficients twice: name the second as `other`")
        check_selected_once((name, axis_name(other)))
        outs, result = ((name,), (name, other)), "(k),(k,k)"
    else:
        outs, result = ((name,),), "(k)"
    results = apply_to_polynomials(
        _fit_points,
        f"{','.join(['(n)'] * len(arrays))}->{result}",
        arrays,
        (points,) * len(arrays),
        outs,
        deg=degree,
        rcond=rcond,
        full=bool(full),
        cov=cov,
    )
    return results if full or cov else results[0]


def _check_points(x: N, y: N, axis: str, degree: int, scaled: bool) -> None:
    x_size = x.axis_size(axis)
    y_size = y.array.shape[find_axis(y.names, y.array.shape, axis)]
    if x_size != y_size:
        raise ValueError(
            f"axis {axis!r} has size {x_size} and size {y_size} in {format_shape(x)} and {format_shape(y)}"
        )
    # The residuals are divided by the number of points less that of the coefficients.
    if not x_size or (scaled and x_size <= degree + 1):
        raise ValueError(
            f"there are {x_size} points along axis {axis!r} of {format_shape(x)}, "
            + (f"more than {degree + 1} are needed to scale the covariance" if x_size else "at least one is needed")
        )


def _fit_points(*arrays: Any, deg: int, rcond: float | None, full: bool, cov: Any) -> Any:
    x, y, *w = (array.astype(jnp.result_type(array, float)) for array in arrays)
    results = jnp.polyfit(x, y, deg, rcond, full, *w, cov=cov)
    if full:
        coefficients, residuals, *diagnostics = results
        return coefficients, residuals.reshape(()), *diagnostics  # JAX returns the residual of one fit as a vector
    return results
